"""`POST /v1/report`: where trainings report their steps.

The server stands beside the controller's rounds in the same loop, so every request is short, small and bounded: a limit
on connections, on how long each part of one lasts, on the body and on requests in work (`trimtab.serving.guard`). Only
the leader takes reports; the others answer 503, and clients come again. Whose report it is, `tokens` finds out; what
becomes of it, `progress`.

    200 taken (or ignored, if it is of the past); `checkpoint` says by when the job is to have saved its state
    401 no valid token   403 another job's pod, or no such job      404 another path   405 not a POST   408 too slow
    409 an old plan's pod   413 too big   422 a field is wrong      429 too often      500 a mistake of ours
    503 not the leader, or the API server does not answer
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import msgspec
import structlog
from aiohttp import web

from trimtab.controller.reports.progress import Body, ProgressReports, ReportRefused, SaveRequest
from trimtab.controller.reports.tokens import Tokens
from trimtab.errors import ApiError, LeadershipLost
from trimtab.kube.reviews import NotKnown, TooMany
from trimtab.serving.guard import Busy, ConnectionGuard, ConnectionLimits
from trimtab.serving.listener import Listener, seats
from trimtab.serving.tls import of_server
from trimtab.settings import ReportSettings
from trimtab.telemetry import metrics
from trimtab.telemetry.ports import PortCounts
from trimtab.telemetry.server import SEATS

PATH = "/v1/report"
LARGEST_BODY = 16 << 10
SECONDS = 3.0
"""For the headers of a request, for its body, and to fetch the answer. A connection serves one report, and ends."""
CONNECTIONS, PER_ADDRESS = 512, 256
"""Open at once, in all and of one address: many trainings may be behind one, and nobody alone locks everybody out."""
AT_ONCE = 64
"""Requests in work."""
PACE = 400.0
"""Reports a second: those of 4,000 jobs."""
REFUSALS = ("401", "403", "422")
"""Counted from 0 on: an alert asks for their rates, and Prometheus does not see a counter be born at 1."""
LATER = "5"
"""Seconds after which who is refused for now may come again."""

log = structlog.get_logger(__name__)
_BODY = msgspec.json.Decoder(Body)


class ReportServer:
    """`async with ReportServer(settings.reports, tokens, progress, leading) as server:` serves at `server.url`."""

    def __init__(
        self, settings: ReportSettings, tokens: Tokens, progress: ProgressReports, leading: Callable[[], bool]
    ) -> None:
        self.url = ""
        self._settings = settings
        self._tokens = tokens
        self._progress = progress
        self._leading = leading

    async def __aenter__(self) -> ReportServer:
        for result in REFUSALS:
            metrics.REPORTS.labels(result)
        room = seats(CONNECTIONS, SEATS)
        limits = ConnectionLimits(
            room, min(PER_ADDRESS, room), SECONDS, LARGEST_BODY, AT_ONCE, keep_alive=False, pace=PACE
        )
        counts = PortCounts(metrics.PORTS, "reports", room)
        self._guard = ConnectionGuard(self._answer, limits, counts, "reports")
        self._listener = Listener(self._guard, self._settings.host, self._settings.port, "reports.port")
        await self._listener.secure(of_server("reports.tls", self._settings.tls), counts.certificates)
        self.url = self._listener.url
        log.info("listening", reports=f"{self.url}{PATH}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._listener.close()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        asked: SaveRequest | None = None
        try:
            self._fits(request)
            raw = await self._read(request)  # before it has a place among those in work, of which there are few
            async with self._guard.work(len(raw)):
                (result, asked), status, message = await self._take(request, raw), 200, ""
        except Busy:
            result, status, message = "429", 429, "too many reports at once: try again later"
        except ReportRefused as refused:
            result, status, message = str(refused.status), refused.status, str(refused)
        except Exception:
            log.exception("a report could not be taken: this is a bug, please report it")
            result, status, message = "500", 500, "a mistake of the controller: its log says more"
        metrics.REPORTS.labels(result).inc()
        headers = {"Retry-After": LATER} if status in (429, 503) else {}
        headers |= {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        said: dict[str, object] = {"error": message} if message else {"result": result}
        if asked:
            said["checkpoint"] = asked
        answer = web.Response(
            status=status, body=msgspec.json.encode(said), headers=headers, content_type="application/json"
        )
        answer.force_close()
        return answer

    def _fits(self, request: web.BaseRequest) -> None:
        if request.path != PATH:
            raise ReportRefused(404, f"there is only {PATH}")
        if request.method != "POST":
            raise ReportRefused(405, f"{PATH} takes POST")
        if not self._leading():
            raise ReportRefused(503, "this controller does not lead: try again, another one does")
        if (request.content_length or 0) > LARGEST_BODY:
            raise ReportRefused(413, f"a report has at most {LARGEST_BODY} bytes")

    async def _take(self, request: web.BaseRequest, raw: bytes) -> tuple[str, SaveRequest | None]:
        try:
            caller = await self._tokens.caller(request.headers.get("Authorization", ""), request.remote or "")
        except NotKnown as error:
            raise ReportRefused(401, str(error)) from error
        except TooMany as error:
            raise ReportRefused(429, str(error)) from error
        except (ApiError, LeadershipLost) as error:
            raise ReportRefused(503, f"the token could not be reviewed: {error}") from error
        body = _understood(raw)
        return self._progress.take(body, caller.uid), self._progress.asked(body.job)

    async def _read(self, request: web.BaseRequest) -> bytes:
        try:
            return await self._guard.body(request)
        except TimeoutError:
            raise ReportRefused(408, f"the body has not arrived within {SECONDS:g} s") from None
        except web.HTTPRequestEntityTooLarge:
            raise ReportRefused(413, f"a report has at most {LARGEST_BODY} bytes") from None


def _understood(raw: bytes) -> Body:
    try:
        return _BODY.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReportRefused(422, f"the report cannot be understood: {error}") from error
