"""How far one's own rights reach: which kinds may be followed in the whole cluster, and which in some namespaces only.

Whoever has the rights of one namespace sees that, and is told what is left out. The API server is asked once, at the
start; where it does not say, everything is tried, and what fails is told as trouble.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from msgspec import Struct

from trimtab.errors import ApiError, Forbidden
from trimtab.kube.resources import GPUNODES, JOBS, NODES, PODS, PRIORITY_CLASSES, QUEUES, Resource
from trimtab.kube.reviews import Client, Right, may_i

KINDS = NODES, PODS, JOBS, QUEUES, PRIORITY_CLASSES, GPUNODES
NAMESPACED = PODS, JOBS
VERBS = "list", "watch"
EVERY = ("",)
"""All namespaces, or none in particular."""


class Reach(Struct, frozen=True):
    """What may be followed, of the kinds that a look is made of."""

    places: Mapping[str, tuple[str, ...]]
    """Plural of a kind -> the namespaces in which it may be; `EVERY` for all of them."""

    def of(self, kind: Resource) -> tuple[str, ...]:
        """Namespaces in which objects of this kind may be followed; empty for none."""
        return self.places.get(kind.plural, ())

    def whole(self, *kinds: Resource) -> bool:
        """Whether all of these may be, everywhere."""
        return all(self.of(kind) == EVERY for kind in kinds)

    @property
    def namespaces(self) -> frozenset[str] | None:
        """Whose jobs are seen; None for all."""
        return None if self.whole(JOBS) else frozenset(self.of(JOBS))

    @property
    def left_out(self) -> str:
        """What is not seen, in words; empty where nothing is left out."""
        missing = {"other namespaces": self.whole(JOBS), "nodes": self.whole(NODES), "queues": self.whole(QUEUES)}
        return ", ".join(what for what, seen in missing.items() if not seen)


EVERYWHERE = Reach({kind.plural: EVERY for kind in KINDS})


async def reach(client: Client, namespaces: Iterable[str]) -> Reach:
    """How far it is for who asks; these namespaces are tried where a kind may not be followed in all of them.

    Raises Forbidden where no job may be seen.
    """
    tried = sorted(set(namespaces))
    try:
        found = await asyncio.gather(*(_places(client, kind, tried if kind in NAMESPACED else ()) for kind in KINDS))
    except ApiError:
        return EVERYWHERE
    made = Reach({kind.plural: places for kind, places in zip(KINDS, found, strict=True)})
    if not made.of(JOBS):
        raise Forbidden(
            f"you may list and watch {JOBS.plural} neither in the whole cluster nor in namespace {', '.join(tried)}:"
            " name a namespace where you may with --namespace, or ask for the role trimtab-viewer there"
        )
    return made


async def _places(client: Client, kind: Resource, namespaces: Iterable[str]) -> tuple[str, ...]:
    if await _may(client, kind, ""):
        return EVERY
    return tuple([space for space in namespaces if await _may(client, kind, space)])


async def _may(client: Client, kind: Resource, namespace: str) -> bool:
    group = kind.api_version.rpartition("/")[0]
    rights = (Right(verb, group, kind.plural, namespace) for verb in VERBS)
    return all(await asyncio.gather(*(may_i(client, right) for right in rights)))
