"""List a kind once, without keeping up with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from trimtab.kube.client import KubeClient
from trimtab.kube.objects import AnyObject
from trimtab.kube.resources import Resource

T = TypeVar("T")

PAGE_SIZE = 500


class _ListItems(msgspec.Struct):
    items: list[msgspec.Raw] | None
    """None for no objects: of a kind of which only metadata are asked for, the API server says so."""


_ANY = msgspec.json.Decoder(AnyObject)


async def list_all(
    client: KubeClient,
    resource: Resource,
    kind: type[T],
    unreadable: list[str],
    *,
    namespace: str = "",
    params: Mapping[str, str] | None = None,
) -> list[T]:
    """All objects of a kind, of all namespaces or one, decoded. Those that cannot be are left out, as by a reflector,
    and named in `unreadable`. Raises ApiError, and msgspec.DecodeError where the answer is no list."""
    decoder = msgspec.json.Decoder(kind)
    found: list[T] = []
    async for page in client.pages(resource.path(namespace), PAGE_SIZE, params):
        items = msgspec.json.decode(page, type=_ListItems).items or []
        found += _decoded(decoder, items, resource, unreadable)
    return found


def _decoded(
    decoder: msgspec.json.Decoder[T], items: list[msgspec.Raw], resource: Resource, unreadable: list[str]
) -> Iterator[T]:
    for item in items:
        try:
            yield decoder.decode(item)
        except msgspec.DecodeError:
            unreadable.append(f"{resource.plural} {_key(item)}")


def _key(item: msgspec.Raw) -> str:
    try:
        return _ANY.decode(item).metadata.key
    except msgspec.DecodeError:
        return "without a name"
