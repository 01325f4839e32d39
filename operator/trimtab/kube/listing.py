"""List a kind once, without keeping up with it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from trimtab.kube.client import KubeClient
from trimtab.kube.resources import Resource

T = TypeVar("T")

PAGE_SIZE = 500


class _ListItems(msgspec.Struct):
    items: list[msgspec.Raw]


async def list_all(client: KubeClient, resource: Resource, kind: type[T]) -> list[T]:
    """All objects of a kind, in all namespaces, decoded. Raises ApiError and msgspec.DecodeError."""
    decoder = msgspec.json.Decoder(kind)
    found: list[T] = []
    async for page in client.pages(resource.path(), PAGE_SIZE):
        found += [decoder.decode(item) for item in msgspec.json.decode(page, type=_ListItems).items]
    return found
