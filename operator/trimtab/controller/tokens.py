"""Whose token it is: the API server is asked (TokenReview), and its answer remembered for a minute.

Only tokens for our own audience count, so that a token stolen from here opens nothing else and one made for something
else opens nothing here; and only tokens bound to a pod, which end with it. What the token says of itself is never
believed; it is looked at beforehand only to spare the API server the review of what could not pass anyway.

Rubbish must not get in the way of those who are known: answers about it are kept apart, tokens that were good are
reviewed again in places of their own, and an address that keeps sending it is asked about no more for a while.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from trimtab.errors import TrimtabError
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import TOKEN_REVIEWS

REMEMBERED = 4096
"""Answers that are kept at most, of good tokens and of others."""
GOOD_SECONDS, BAD_SECONDS = 60.0, 10.0
LONGEST_TOKEN = 8192
REVIEWS_AT_ONCE = 16
"""Of tokens that are new, and as many of tokens that were good. More are refused, to spare the API server."""
STRIKES, STRIKE_SECONDS = 8, 60.0
"""New tokens from one address within that time that were no good, or are not known to be yet; more are refused."""
REVIEW_SECONDS = 3.0
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"


class NotKnown(TrimtabError):
    """The token says nothing about who sends it."""


class TooMany(TrimtabError):
    """As many tokens as we may ask about are being asked about."""


class Caller(Struct, frozen=True):
    """The pod that a token is bound to, as the API server vouches."""

    pod: str
    uid: str


class _User(Struct, frozen=True):
    extra: dict[str, tuple[str, ...]] = {}


class _ReviewStatus(Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: tuple[str, ...] = ()
    error: str = ""


class _Review(Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


_REVIEW = msgspec.json.Decoder(_Review)
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Known = tuple[float, Caller | str]
"""Until when by the monotonic clock, and the pod or why there is none."""


class Tokens:
    """Asks about tokens for one audience."""

    def __init__(
        self,
        client: KubeClient,
        audience: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._audience = audience
        self._clock = clock
        self._wall = wall
        self._good: OrderedDict[bytes, _Known] = OrderedDict()
        """Also those whose time is over."""
        self._bad: OrderedDict[bytes, _Known] = OrderedDict()
        self._asking = {True: 0, False: 0}
        """Reviews of tokens that were good before, and of new ones."""
        self._strikes: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Address -> until when its strikes count, and how many."""

    async def caller(self, authorization: str, address: str = "") -> Caller:
        """Who sends this header from this address.

        Raises NotKnown; TooMany; ApiError or LeadershipLost where nobody could be asked.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise NotKnown("send the token of the projected volume as `Authorization: Bearer TOKEN`")
        lifetime = self._worth_asking(token)
        key = hashlib.sha256(token.encode()).digest()
        known = self._good.get(key) or self._bad.get(key)
        if known is None or known[0] <= self._clock():
            met = key in self._good
            known = await (self._ask(token, lifetime, before=True) if met else self._meet(token, lifetime, address))
            self._good.pop(key, None)
            self._bad.pop(key, None)
        if isinstance(known[1], str):
            _keep(self._bad, key, known)
            raise NotKnown(known[1])
        _keep(self._good, key, known)
        return known[1]

    async def _meet(self, token: str, lifetime: float, address: str) -> _Known:
        """Ask about a new token. It counts against its address until it has turned out good."""
        until, strikes = self._strikes.get(address, (0.0, 0))
        if until <= self._clock():
            until, strikes = self._clock() + STRIKE_SECONDS, 0
        if strikes >= STRIKES:
            raise TooMany("too many tokens from this address were no good: try again in a minute")
        _keep(self._strikes, address, (until, strikes + 1))
        bad = False
        try:
            found = await self._ask(token, lifetime, before=False)
            bad = isinstance(found[1], str)
            return found
        finally:
            until, strikes = self._strikes.get(address, (until, 1))
            if not bad:
                _keep(self._strikes, address, (until, max(0, strikes - 1)))

    def _worth_asking(self, token: str) -> float:
        """Seconds that the token still lives by its own account; raises NotKnown where a review would refuse it."""
        claims = _claims(token) if len(token) <= LONGEST_TOKEN and token.isascii() else None
        if claims is None:
            raise NotKnown("the token is no service-account token")
        audiences = claims.get("aud", [])
        if self._audience not in (audiences if isinstance(audiences, list) else [audiences]):
            raise NotKnown(f"the token is not for the audience {self._audience}")
        ends = claims.get("exp")
        if not isinstance(ends, int | float) or ends <= self._wall():
            raise NotKnown("the token has expired: read the file anew, the kubelet renews it")
        return ends - self._wall()

    async def _ask(self, token: str, lifetime: float, *, before: bool) -> _Known:
        if self._asking[before] >= REVIEWS_AT_ONCE:
            raise TooMany("too many tokens are being reviewed: try again later")
        self._asking[before] += 1
        try:
            body = {
                "apiVersion": TOKEN_REVIEWS.api_version,
                "kind": "TokenReview",
                "spec": {"token": token, "audiences": [self._audience]},
            }
            raw = await self._client.request("POST", TOKEN_REVIEWS.path(), body=body, deadline=REVIEW_SECONDS)
        finally:
            self._asking[before] -= 1
        found = self._judge(_REVIEW.decode(raw).status)
        keep = BAD_SECONDS if isinstance(found, str) else min(GOOD_SECONDS, lifetime)
        return self._clock() + keep, found

    def _judge(self, status: _ReviewStatus) -> Caller | str:
        if not status.authenticated or self._audience not in status.audiences:
            return "the API server does not vouch for the token"
        name, uid = status.user.extra.get(_POD_NAME, ()), status.user.extra.get(_POD_UID, ())
        if not name or not uid:
            return "the token is not bound to a pod: use that of the projected volume"
        return Caller(name[0], uid[0])


def _keep(answers: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    """The oldest go first."""
    answers[key] = value
    answers.move_to_end(key)
    if len(answers) > REMEMBERED:
        answers.popitem(last=False)


def _claims(token: str) -> dict[str, Any] | None:
    """What a JWT says of itself; None where it is none."""
    parts = token.split(".")
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (IndexError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    return claims if len(parts) == 3 and isinstance(claims, dict) else None
