"""Who may read /metrics, where that is not everybody (`metrics.authentication: Kubernetes`).

A scraper shows a bearer token; the API server says whose it is (TokenReview) and whether they may `get` the path
/metrics (SubjectAccessReview), as for the API server's own metrics. ClusterRole `trimtab-metrics-reader` of the chart
lets somebody. Answers count for a minute, refusals for ten seconds. Where nobody can be asked, nobody is let in.

    401 no token, or one that is not good    403 may not read it    429 too many of no good
    503 the API server does not answer, or does not let us ask
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import structlog
from aiohttp import web

from trimtab.errors import ApiError, SettingsError, TrimtabError
from trimtab.kube.reviews import (
    LONGEST_TOKEN,
    Client,
    NotKnown,
    Reviews,
    TokenRefusal,
    TooMany,
    bearer,
    may_get,
    review_token,
)
from trimtab.serving.tls import Pair, loopback

PATH = "/metrics"
LATER = "5"
"""Seconds after which who is refused for now may come again."""
TOLD_SECONDS = 60.0
"""Between two lines in the log about an API server that cannot be asked."""

log = structlog.get_logger(__name__)


class Guarded(Protocol):
    """The part of `HttpSettings` that says who may read."""

    @property
    def host(self) -> str: ...

    @property
    def tls(self) -> Pair: ...

    @property
    def authentication(self) -> str: ...


def scrapers_of(settings: Guarded, client: Client | None) -> Scrapers | None:
    """Who decides about scrapers; None where all are let in. Raises SettingsError where tokens could be overheard."""
    if settings.authentication == "None":
        return None
    if not settings.tls.certificate and not loopback(settings.host):
        raise SettingsError(
            "metrics.authentication: scrapers would show their tokens in plain text to whoever listens;"
            " give metrics.tls a certificate and key, or listen on 127.0.0.1 (metrics.host)"
        )
    if client is None:
        raise SettingsError("metrics.authentication: there is no API server to ask about tokens")
    return Scrapers(client)


class Scrapers:
    """Asks about those who ask for metrics."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._reviews = Reviews(self._ask, clock)
        self._told = float("-inf")

    async def refused(self, request: web.BaseRequest) -> web.Response | None:
        """What to answer instead of metrics; None for whoever may have them."""
        address = request.remote or ""
        try:
            token = bearer(request.headers.get("Authorization", ""), "a token of an account that may read metrics")
            if len(token) > LONGEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
                self._reviews.strike((address, ""))
                raise NotKnown("that is no token")
            await self._reviews.found(token, (address, ""))
        except NotKnown as error:
            return _refusal(error.status, error)
        except TooMany as error:
            return _refusal(429, error)
        except ApiError as error:
            self._tell(error)
            return _refusal(503, "the API server cannot be asked about the token: the log says more")
        return None

    async def _ask(self, token: str) -> str | TokenRefusal:
        """Name of who may read metrics."""
        status = await review_token(self._client, token)
        if not status.authenticated or not status.user.username:
            return TokenRefusal("the API server does not vouch for the token")
        if not await may_get(self._client, status.user, PATH):
            return TokenRefusal(
                f"{status.user.username} may not get {PATH}: bind ClusterRole trimtab-metrics-reader", 403
            )
        return status.user.username

    def _tell(self, error: ApiError) -> None:
        now = self._clock()
        if now - self._told >= TOLD_SECONDS:
            self._told = now
            log.warning("metrics are told nobody: the API server cannot be asked who may have them", error=str(error))


def _refusal(status: int, message: TrimtabError | str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    headers |= {"Retry-After": LATER} if status in (429, 503) else {}
    response = web.Response(status=status, text=f"{message}\n", headers=headers)
    response.force_close()
    return response
