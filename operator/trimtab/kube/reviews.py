"""Who somebody is and what they may do, by the API server's own word (TokenReview, SubjectAccessReview), remembered.

Rubbish must not get in the way of others. Answers about it are kept apart, tokens that were good are reviewed again in
places of their own, and so are those that whoever asks can name a reason for. Whose tokens turn out to be no good is
asked about more slowly, and never not at all: behind one address there may be many.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from trimtab.errors import TrimtabError, Unreachable
from trimtab.kube.resources import SELF_SUBJECT_ACCESS_REVIEWS, SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS

REMEMBERED = 4096
"""Answers that are kept at most, of good tokens and of others."""
GOOD_SECONDS, BAD_SECONDS = 60.0, 10.0
LONGEST_TOKEN = 8192
REVIEWS_AT_ONCE = 16
"""Of each standing of tokens. More are refused, to spare the API server."""
STRIKES, STRIKE_SECONDS = 32, 0.5
"""New tokens of one standing from one address that may be no good, or are not known to be yet; and after how long each
of them is forgiven. More are refused until then, so that two a second are reviewed however many come."""
REVIEW_SECONDS = 3.0

_Answer = TypeVar("_Answer", bound=Struct)
_Found = TypeVar("_Found")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
Sender = tuple[str, str]
"""Address, and what is named that gives a token a better standing."""


class NotKnown(TrimtabError):
    """The token says nothing about who sends it, or not somebody who may do what they ask for (`status` 403)."""

    def __init__(self, message: str, status: int = 401) -> None:
        super().__init__(message)
        self.status = status


class TooMany(TrimtabError):
    """As many tokens as we may ask about are being asked about."""


class TokenRefusal(Struct, frozen=True):
    """Why a token is no good."""

    message: str
    status: int = 401


class User(Struct, frozen=True):
    """Who a token is of, as the API server has it."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class TokenStatus(Struct, frozen=True):
    """Answer to a TokenReview."""

    authenticated: bool = False
    user: User = User()
    audiences: tuple[str, ...] = ()
    error: str = ""


class AccessStatus(Struct, frozen=True):
    """Answer to a SubjectAccessReview."""

    allowed: bool = False
    denied: bool = False


class _TokenReview(Struct, frozen=True):
    status: TokenStatus = TokenStatus()


class _AccessReview(Struct, frozen=True):
    status: AccessStatus = AccessStatus()


class TokenStanding(Enum):
    """What is known of a token before it is reviewed; each is reviewed in places of its own."""

    MET = "it was good before"
    NAMED = "it names somebody whom we wait for"
    NEW = "nothing"


class Client(Protocol):
    """What is needed of `trimtab.kube.client.KubeClient`."""

    async def request(self, method: str, path: str, *, body: dict[str, Any], deadline: float) -> bytes: ...


_TOKEN_REVIEW = msgspec.json.Decoder(_TokenReview)
_ACCESS_REVIEW = msgspec.json.Decoder(_AccessReview)


class Reviews(Generic[_Found]):
    """Remembers what `ask` has found out about tokens, and bounds how often it is asked."""

    def __init__(
        self,
        ask: Callable[[str], Awaitable[_Found | TokenRefusal]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask` may raise; then nothing is remembered."""
        self._ask = ask
        self._clock = clock
        self._good: OrderedDict[bytes, tuple[float, _Found]] = OrderedDict()
        """Until when by the clock, and what; also those whose time is over."""
        self._bad: OrderedDict[bytes, tuple[float, TokenRefusal]] = OrderedDict()
        self.asking = dict.fromkeys(TokenStanding, 0)
        """Reviews that wait for their answer."""
        self._strikes: OrderedDict[Sender, float] = OrderedDict()
        """When the last strike will be forgiven."""

    async def found(self, token: str, sender: Sender, lifetime: float = GOOD_SECONDS) -> _Found:
        """What is known of a token that lives for so many seconds. Raises NotKnown; TooMany; and what `ask` raises."""
        key = hashlib.sha256(token.encode()).digest()
        known = self._good.get(key) or self._bad.get(key)
        if known is None or known[0] <= self._clock():
            answer = await (
                self._reviewed(token, TokenStanding.MET) if key in self._good else self._meet(token, sender)
            )
            seconds = BAD_SECONDS if isinstance(answer, TokenRefusal) else min(GOOD_SECONDS, lifetime)
            self._good.pop(key, None)
            self._bad.pop(key, None)
            until = self._clock() + seconds
        else:
            until, answer = known
        if isinstance(answer, TokenRefusal):
            _keep(self._bad, key, (until, answer))
            raise NotKnown(answer.message, answer.status)
        _keep(self._good, key, (until, answer))
        return answer

    def strike(self, sender: Sender, count: int = 1) -> None:
        """Add to what is to be forgiven; the time that each takes begins when those before it are."""
        now = self._clock()
        ends = min(max(self._strikes.get(sender, now), now) + count * STRIKE_SECONDS, now + STRIKES * STRIKE_SECONDS)
        _keep(self._strikes, sender, ends)

    async def _meet(self, token: str, sender: Sender) -> _Found | TokenRefusal:
        """Ask about a new token. It counts against its sender until it has turned out good."""
        if self._strikes.get(sender, 0.0) - self._clock() > (STRIKES - 1) * STRIKE_SECONDS:
            raise TooMany("too many tokens from this address were no good: try again in a few seconds")
        self.strike(sender)
        bad = False
        try:
            answer = await self._reviewed(token, TokenStanding.NAMED if sender[1] else TokenStanding.NEW)
            bad = isinstance(answer, TokenRefusal)
            return answer
        finally:
            if not bad:
                self.strike(sender, -1)

    async def _reviewed(self, token: str, standing: TokenStanding) -> _Found | TokenRefusal:
        if self.asking[standing] >= REVIEWS_AT_ONCE:
            raise TooMany("too many tokens are being reviewed: try again later")
        self.asking[standing] += 1
        try:
            return await self._ask(token)
        finally:
            self.asking[standing] -= 1


def bearer(authorization: str, hint: str) -> str:
    """The token of a header. Raises NotKnown, with this hint at where to get one."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise NotKnown(f"send {hint} as `Authorization: Bearer TOKEN`")
    return token


async def review_token(client: Client, token: str, audience: str = "") -> TokenStatus:
    """Whose token it is; without an audience, among those that the API server itself takes. Raises ApiError."""
    spec = {"token": token} | ({"audiences": [audience]} if audience else {})
    body = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": "TokenReview", "spec": spec}
    raw = await client.request("POST", TOKEN_REVIEWS.path(), body=body, deadline=REVIEW_SECONDS)
    return _understood(_TOKEN_REVIEW, raw).status


class Right(Struct, frozen=True):
    """Something that somebody may do, or not, with a kind of objects."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    """Empty: in all of them."""


async def may_do(client: Client, user: User, right: Right) -> bool:
    """Whether RBAC (or what else decides) gives them this right. Raises ApiError."""
    return await _allowed(client, user, {"resourceAttributes": _attributes(right)})


async def may_i(client: Client, right: Right) -> bool:
    """Whether who asks has this right. Raises ApiError."""
    body = {
        "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": _attributes(right)},
    }
    raw = await client.request("POST", SELF_SUBJECT_ACCESS_REVIEWS.path(), body=body, deadline=REVIEW_SECONDS)
    return _granted(raw)


async def may_get(client: Client, user: User, path: str) -> bool:
    """Whether RBAC (or what else decides) lets them `get` this path, which is no resource. Raises ApiError."""
    return await _allowed(client, user, {"nonResourceAttributes": {"path": path, "verb": "get"}})


async def _allowed(client: Client, user: User, asked: dict[str, Any]) -> bool:
    spec = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra, **asked}
    body = {"apiVersion": SUBJECT_ACCESS_REVIEWS.api_version, "kind": "SubjectAccessReview", "spec": spec}
    raw = await client.request("POST", SUBJECT_ACCESS_REVIEWS.path(), body=body, deadline=REVIEW_SECONDS)
    return _granted(raw)


def _attributes(right: Right) -> dict[str, str]:
    return {"verb": right.verb, "group": right.group, "resource": right.resource, "namespace": right.namespace}


def _granted(raw: bytes) -> bool:
    status = _understood(_ACCESS_REVIEW, raw).status
    return status.allowed and not status.denied


def _understood(decoder: msgspec.json.Decoder[_Answer], raw: bytes) -> _Answer:
    try:
        return decoder.decode(raw)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Unreachable(f"its review was answered with something else: {error}") from error


def _keep(answers: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    """The oldest go first."""
    answers[key] = value
    answers.move_to_end(key)
    if len(answers) > REMEMBERED:
        answers.popitem(last=False)
