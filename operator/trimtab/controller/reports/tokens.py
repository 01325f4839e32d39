"""Whose token it is: the API server is asked (TokenReview), and its answer remembered for a minute.

Only tokens for our own audience count, so that a token stolen from here opens nothing else and one made for something
else opens nothing here; and only tokens bound to a pod, which end with it. What the token says of itself is never
believed; it is looked at beforehand only to spare the API server the review of what could not pass anyway, and to
review those that name a pod which reports in places of their own: of these nobody can make up one.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from trimtab.kube.reviews import (
    LONGEST_TOKEN,
    Client,
    NotKnown,
    Reviews,
    TokenRefusal,
    TokenStatus,
    bearer,
    review_token,
)

LONGEST_LIFE = 1e10
"""A token that ends later by its own account, in seconds since 1970, is none that an API server has signed."""
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"


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


class Tokens:
    """Asks about tokens for one audience."""

    def __init__(
        self,
        client: Client,
        audience: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        reports: Callable[[str, str], bool] = lambda _key, _uid: False,
    ) -> None:
        """`reports` says of a pod, `namespace/name` and UID, whether it is one that we wait to hear from."""
        self.reviews = Reviews(self._ask, clock)
        self._client = client
        self._reports = reports
        self._audience = audience
        self._wall = wall

    async def caller(self, authorization: str, address: str = "") -> Caller:
        """Who sends this header from this address.

        Raises NotKnown; TooMany; ApiError or LeadershipLost where nobody could be asked.
        """
        token = bearer(authorization, "the token of the projected volume")
        try:
            lifetime, named = self._worth_asking(token)
        except _Malformed as error:
            self.reviews.strike((address, ""))
            raise NotKnown(str(error)) from None
        return await self.reviews.found(token, (address, named), lifetime)

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

    async def _ask(self, token: str) -> Caller | TokenRefusal:
        return self._judge(await review_token(self._client, token, self._audience))

    def _judge(self, status: TokenStatus) -> Caller | TokenRefusal:
        if not status.authenticated or self._audience not in status.audiences:
            return TokenRefusal("the API server does not vouch for the token")
        name, uid = status.user.extra.get(_POD_NAME, ()), status.user.extra.get(_POD_UID, ())
        if not name or not uid:
            return TokenRefusal("the token is not bound to a pod: use that of the projected volume")
        return Caller(name[0], uid[0])


def _claims(token: str) -> dict[str, Any] | None:
    """What a JWT says of itself; None where it is none."""
    parts = token.split(".")
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (IndexError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    return claims if len(parts) == 3 and isinstance(claims, dict) else None
