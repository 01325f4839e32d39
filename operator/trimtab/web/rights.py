"""What a visitor may see: on one's own machine all that one's kubeconfig may; in a cluster what the API server says.

In a cluster the console reads with its own account, and shows nobody more than they could read themselves. A bearer
token says who they are (TokenReview); each kind and namespace is asked about with their whole UserInfo
(SubjectAccessReview). Answers count for half a minute and are bounded in number; what is not known is denied.

    401 no token, or one that is no good     403 may not     429 too many     503 nobody can be asked
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec
from msgspec import Struct

from trimtab import names
from trimtab.kube.resources import JOBS
from trimtab.kube.reviews import (
    LONGEST_TOKEN,
    Client,
    NotKnown,
    Reviews,
    Right,
    TokenRefusal,
    User,
    bearer,
    may_do,
    review_token,
)
from trimtab.web.audience import EVERYTHING, Audience

SECONDS = 30.0
"""For which an answer counts."""
REMEMBERED = 8192
"""Answers about rights that are kept."""
AT_ONCE = 16
MOST_NAMESPACES = 512
"""That are asked about for one visitor; of further ones nothing is shown."""
HINT = "a bearer token of a user or service account of this cluster (e.g. `kubectl create token NAME`)"
VERBS = "list", "watch"


class Abilities(Struct, frozen=True, rename="camel"):
    """What a visitor may ask for."""

    nodes: bool = True
    queues: bool = True
    all_jobs: bool = True
    plan: bool = True
    whatif: bool = True
    doctor: bool = True


def _abilities(audience: Audience) -> Abilities:
    nodes, queues, every = audience.nodes, audience.queues, audience.namespaces is None
    whole = every and nodes
    return Abilities(
        nodes=nodes, queues=queues, all_jobs=every, plan=nodes, whatif=whole, doctor=whole and queues
    )  # fmt: skip


class Visitor(Struct, frozen=True):
    """Somebody who asks."""

    name: str
    audience: Audience
    can: Abilities


class Rights(Protocol):
    """Says who asks."""

    @property
    def mode(self) -> str:
        """`local` or `cluster`."""

    async def visitor(self, headers: Mapping[str, str], address: str, namespaces: frozenset[str]) -> Visitor:
        """Who asks with these headers, from this address, and whose jobs of these namespaces they see.

        Raises NotKnown, TooMany, and ApiError where the API server cannot be asked."""


class OwnRights:
    """Everything that the kubeconfig may read: whoever has the path has the rights of who started the process."""

    mode = "local"

    def __init__(self, audience: Audience = EVERYTHING) -> None:
        self._audience = audience

    async def visitor(self, headers: Mapping[str, str], address: str, namespaces: frozenset[str]) -> Visitor:
        """The owner."""
        return Visitor("", self._audience, _abilities(self._audience))


class ReviewedRights:
    """What the API server says of a bearer token."""

    mode = "cluster"

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._tokens: Reviews[User] = Reviews(self._whose, clock)
        self._answers: OrderedDict[tuple[bytes, Right], tuple[float, bool]] = OrderedDict()
        """Until when, and what."""
        self._asking = asyncio.Semaphore(AT_ONCE)

    async def visitor(self, headers: Mapping[str, str], address: str, namespaces: frozenset[str]) -> Visitor:
        """Who has this token, and what they may see."""
        token = bearer(headers.get("Authorization", ""), HINT)
        if len(token) > LONGEST_TOKEN:
            raise NotKnown(f"the token is longer than {LONGEST_TOKEN} characters")
        user = await self._tokens.found(token, (address, ""), SECONDS)
        every = await self._may(user, JOBS.plural)
        nodes, queues = await asyncio.gather(
            self._all_of(user, ("nodes", ""), ("gpunodes", names.GROUP)), self._all_of(user, ("queues", names.GROUP))
        )
        seen = None if every else await self._namespaces(user, namespaces)
        audience = Audience(seen, nodes, queues)
        return Visitor(user.username, audience, _abilities(audience))

    async def _whose(self, token: str) -> User | TokenRefusal:
        status = await review_token(self._client, token)
        if not status.authenticated or not status.user.username:
            return TokenRefusal("the token is not good, or no longer: send another one")
        return status.user

    async def _namespaces(self, user: User, every: Iterable[str]) -> frozenset[str]:
        asked = sorted(every)[:MOST_NAMESPACES]
        found = await asyncio.gather(*(self._may(user, JOBS.plural, namespace=each) for each in asked))
        return frozenset(each for each, may in zip(asked, found, strict=True) if may)

    async def _all_of(self, user: User, *kinds: tuple[str, str]) -> bool:
        return all(await asyncio.gather(*(self._may(user, kind, group) for kind, group in kinds)))

    async def _may(self, user: User, resource: str, group: str = names.GROUP, namespace: str = "") -> bool:
        rights = (Right(verb, group, resource, namespace) for verb in VERBS)
        return all(await asyncio.gather(*(self._has(user, right) for right in rights)))

    async def _has(self, user: User, right: Right) -> bool:
        key = msgspec.msgpack.encode(user, order="deterministic"), right
        known = self._answers.get(key)
        if known is not None and known[0] > self._clock():
            return known[1]
        async with self._asking:
            may = await may_do(self._client, user, right)
        self._answers[key] = self._clock() + SECONDS, may
        self._answers.move_to_end(key)
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        return may
