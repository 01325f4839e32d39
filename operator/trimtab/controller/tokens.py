"""Whose token it is: the API server is asked (TokenReview), and its answer remembered for a minute.

Only tokens for our own audience count, so that a token stolen from here opens nothing else and one made for something
else opens nothing here; and only tokens bound to a pod, which end with it. What the token says of itself is never
believed; it is looked at beforehand only to spare the API server the review of what could not pass anyway.

Rubbish must not get in the way of others. Answers about it are kept apart, tokens that were good are reviewed again in
places of their own, and so are those that name a pod which reports: of these nobody can make up one. Whose tokens turn
out to be no good is asked about more slowly, and never not at all: behind one address there may be many.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from trimtab.errors import TrimtabError, Unreachable
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import TOKEN_REVIEWS

REMEMBERED = 4096
"""Answers that are kept at most, of good tokens and of others."""
GOOD_SECONDS, BAD_SECONDS = 60.0, 10.0
LONGEST_TOKEN = 8192
REVIEWS_AT_ONCE = 16
"""Of each standing of tokens. More are refused, to spare the API server."""
STRIKES, STRIKE_SECONDS = 32, 0.5
"""New tokens of one standing from one address that may be no good, or are not known to be yet; and after how long each
of them is forgiven. More are refused until then, so that two a second are reviewed however many come."""
LONGEST_LIFE = 1e10
"""A token that ends later by its own account, in seconds since 1970, is none that an API server has signed."""
REVIEW_SECONDS = 3.0
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"


class NotKnown(TrimtabError):
    """The token says nothing about who sends it."""


class TooMany(TrimtabError):
    """As many tokens as we may ask about are being asked about."""


class _Malformed(NotKnown):
    """No API server makes such a token: a strike."""


class Caller(Struct, frozen=True):
    """The pod that a token is bound to, as the API server vouches."""

    pod: str
    uid: str


class _Pod(Struct, frozen=True):
    name: str = ""
    uid: str = ""


class _Bound(Struct, frozen=True):
    """The claim `kubernetes.io` of a token: what it says that it is bound to."""

    namespace: str = ""
    pod: _Pod = _Pod()


class _User(Struct, frozen=True):
    extra: dict[str, tuple[str, ...]] = {}


class _ReviewStatus(Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: tuple[str, ...] = ()
    error: str = ""


class _Review(Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


class Standing(Enum):
    """What is known of a token before it is reviewed; each is reviewed in places of its own."""

    MET = "it was good before"
    NAMED = "it names a pod that reports"
    NEW = "nothing"


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
        reports: Callable[[str, str], bool] = lambda _key, _uid: False,
    ) -> None:
        """`reports` says of a pod, `namespace/name` and UID, whether it is one that we wait to hear from."""
        self._client = client
        self._reports = reports
        self._audience = audience
        self._clock = clock
        self._wall = wall
        self._good: OrderedDict[bytes, _Known] = OrderedDict()
        """Also those whose time is over."""
        self._bad: OrderedDict[bytes, _Known] = OrderedDict()
        self._asking = dict.fromkeys(Standing, 0)
        """Reviews that wait for their answer."""
        self._strikes: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Address, and UID of the pod that is named; when the last strike will be forgiven."""

    async def caller(self, authorization: str, address: str = "") -> Caller:
        """Who sends this header from this address.

        Raises NotKnown; TooMany; ApiError or LeadershipLost where nobody could be asked.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise NotKnown("send the token of the projected volume as `Authorization: Bearer TOKEN`")
        try:
            lifetime, named = self._worth_asking(token)
        except _Malformed as error:
            self._strike((address, ""))
            raise NotKnown(str(error)) from None
        key = hashlib.sha256(token.encode()).digest()
        known = self._good.get(key) or self._bad.get(key)
        if known is None or known[0] <= self._clock():
            met = key in self._good
            meeting = self._ask(token, lifetime, Standing.MET) if met else self._meet(token, lifetime, (address, named))
            known = await meeting
            self._good.pop(key, None)
            self._bad.pop(key, None)
        if isinstance(known[1], str):
            _keep(self._bad, key, known)
            raise NotKnown(known[1])
        _keep(self._good, key, known)
        return known[1]

    async def _meet(self, token: str, lifetime: float, sender: tuple[str, str]) -> _Known:
        """Ask about a new token. It counts against its sender until it has turned out good."""
        if self._strikes.get(sender, 0.0) - self._clock() > (STRIKES - 1) * STRIKE_SECONDS:
            raise TooMany("too many tokens from this address were no good: try again in a few seconds")
        self._strike(sender)
        bad = False
        try:
            found = await self._ask(token, lifetime, Standing.NAMED if sender[1] else Standing.NEW)
            bad = isinstance(found[1], str)
            return found
        finally:
            if not bad:
                self._strike(sender, -1)

    def _strike(self, sender: tuple[str, str], count: int = 1) -> None:
        """Add to what is to be forgiven; the time that each takes begins when those before it are."""
        now = self._clock()
        ends = min(max(self._strikes.get(sender, now), now) + count * STRIKE_SECONDS, now + STRIKES * STRIKE_SECONDS)
        _keep(self._strikes, sender, ends)

    def _worth_asking(self, token: str) -> tuple[float, str]:
        """Seconds that the token still lives by its own account, and the UID of the pod that it names, if that reports.

        Raises NotKnown where a review would refuse it; _Malformed where it was never signed by an API server.
        """
        claims = _claims(token) if len(token) <= LONGEST_TOKEN and token.isascii() else None
        if claims is None:
            raise _Malformed("the token is no service-account token")
        audiences = claims.get("aud", [])
        if self._audience not in (audiences if isinstance(audiences, list) else [audiences]):
            raise NotKnown(f"the token is not for the audience {self._audience}")
        ends = claims.get("exp")
        if isinstance(ends, bool) or not isinstance(ends, int | float) or not 0 <= ends <= LONGEST_LIFE:
            raise _Malformed("the token does not say until when it is good")
        if ends <= self._wall():
            raise NotKnown("the token has expired: read the file anew, the kubelet renews it")
        return ends - self._wall(), self._named(claims)

    def _named(self, claims: dict[str, Any]) -> str:
        try:
            bound = msgspec.convert(claims.get("kubernetes.io", {}), _Bound)
        except msgspec.ValidationError:
            return ""
        return bound.pod.uid if self._reports(f"{bound.namespace}/{bound.pod.name}", bound.pod.uid) else ""

    async def _ask(self, token: str, lifetime: float, standing: Standing) -> _Known:
        if self._asking[standing] >= REVIEWS_AT_ONCE:
            raise TooMany("too many tokens are being reviewed: try again later")
        self._asking[standing] += 1
        try:
            body = {
                "apiVersion": TOKEN_REVIEWS.api_version,
                "kind": "TokenReview",
                "spec": {"token": token, "audiences": [self._audience]},
            }
            raw = await self._client.request("POST", TOKEN_REVIEWS.path(), body=body, deadline=REVIEW_SECONDS)
        finally:
            self._asking[standing] -= 1
        try:
            found = self._judge(_REVIEW.decode(raw).status)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise Unreachable(f"its review was answered with something else: {error}") from error
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
