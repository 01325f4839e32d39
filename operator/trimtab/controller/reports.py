"""`POST /v1/report`: where trainings report their steps.

The server stands beside the controller's rounds in the same loop, so every request is short, small and bounded: a limit
on connections, on how long one lasts, on the body and on requests in work. Only the leader takes reports; the others
answer 503, and clients come again. Whose report it is, `tokens` finds out; what becomes of it, `progress`.

    200 taken (or ignored, if it is of the past); `checkpoint` says by when the job is to have saved its state
    401 no valid token   403 another job's pod, or no such job      404 another path   405 not a POST   408 too slow
    409 an old plan's pod   413 too big   422 a field is wrong      429 too often      500 a mistake of ours
    503 not the leader, or the API server does not answer
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

import msgspec
import structlog
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_server import Server

from trimtab.controller.progress import Asked, Body, Progress, Refused
from trimtab.controller.tokens import NotKnown, Tokens, TooMany
from trimtab.errors import ApiError, LeadershipLost
from trimtab.settings import ReportSettings
from trimtab.telemetry import metrics

PATH = "/v1/report"
LARGEST_BODY = 16 << 10
BODY_SECONDS = 3.0
"""A body that has not arrived by then is cut off."""
CONNECTION_SECONDS = 10.0
"""A connection serves one report; whatever it does, it ends after so long."""
CONNECTIONS = 512
AT_ONCE = 64
"""Requests in work, and connections of one address: nobody alone locks everybody out."""
REFUSALS = ("401", "403", "422")
"""Counted from 0 on: an alert asks for their rates, and Prometheus does not see a counter be born at 1."""
LATER = "5"
"""Seconds after which who is refused for now may come again."""

log = structlog.get_logger(__name__)
_BODY = msgspec.json.Decoder(Body)


class ReportServer:
    """`async with ReportServer(settings.reports, tokens, progress, leading) as server:` serves at `server.url`."""

    def __init__(
        self, settings: ReportSettings, tokens: Tokens, progress: Progress, leading: Callable[[], bool]
    ) -> None:
        self.url = ""
        self._settings = settings
        self._tokens = tokens
        self._progress = progress
        self._leading = leading
        self._working = 0

    async def __aenter__(self) -> ReportServer:
        for result in REFUSALS:
            metrics.REPORTS.labels(result)
        self._runner = web.ServerRunner(_Brief(self._answer))
        await self._runner.setup()
        await web.TCPSite(self._runner, self._settings.host, self._settings.port).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        log.info("listening", reports=f"{self.url}{PATH}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        self._working += 1
        asked: Asked | None = None
        try:
            if self._working > AT_ONCE:
                raise Refused(429, "too many reports at once: try again later")
            (result, asked), status, message = await self._take(request), 200, ""
        except Refused as refused:
            result, status, message = str(refused.status), refused.status, str(refused)
        except Exception:
            log.exception("a report could not be taken: this is a bug, please report it")
            result, status, message = "500", 500, "a mistake of the controller: its log says more"
        finally:
            self._working -= 1
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

    async def _take(self, request: web.BaseRequest) -> tuple[str, Asked | None]:
        if request.path != PATH:
            raise Refused(404, f"there is only {PATH}")
        if request.method != "POST":
            raise Refused(405, f"{PATH} takes POST")
        if not self._leading():
            raise Refused(503, "this controller does not lead: try again, another one does")
        if (request.content_length or 0) > LARGEST_BODY:
            raise Refused(413, f"a report has at most {LARGEST_BODY} bytes")
        try:
            caller = await self._tokens.caller(request.headers.get("Authorization", ""), request.remote or "")
        except NotKnown as error:
            raise Refused(401, str(error)) from error
        except TooMany as error:
            raise Refused(429, str(error)) from error
        except (ApiError, LeadershipLost) as error:
            raise Refused(503, f"the token could not be reviewed: {error}") from error
        body = _understood(await _read(request))
        return self._progress.take(body, caller.uid), self._progress.asked(body.job)


async def _read(request: web.BaseRequest) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise Refused(408, f"the body has not arrived within {BODY_SECONDS:g} s") from None
    except web.HTTPRequestEntityTooLarge:
        raise Refused(413, f"a report has at most {LARGEST_BODY} bytes") from None


def _understood(raw: bytes) -> Body:
    try:
        return _BODY.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(422, f"the report cannot be understood: {error}") from error


class _Brief(Server):
    """Connections end by themselves, also those that never send a request; beyond the limit they end at once."""

    def __init__(self, handler: Callable[[web.BaseRequest], object]) -> None:
        super().__init__(handler, request_factory=_request, access_log=None, lingering_time=0.0)  # type: ignore[arg-type]  # aiohttp's own types are private

    def __call__(self) -> RequestHandler:
        handler = super().__call__()
        loop = asyncio.get_running_loop()
        loop.call_later(0.0, self._admit, handler)
        loop.call_later(CONNECTION_SECONDS, _end, handler)
        return handler

    def _admit(self, handler: RequestHandler) -> None:
        """As soon as it is known who has connected."""
        here = _address(handler)
        alike = sum(_address(each) == here for each in self.connections)
        if len(self.connections) > CONNECTIONS or alike > AT_ONCE:
            _end(handler)


def _address(handler: RequestHandler) -> str:
    peer = handler.transport.get_extra_info("peername") if handler.transport else None
    return str(peer[0]) if peer else ""


def _end(handler: RequestHandler) -> None:
    if handler.transport is not None:
        handler.transport.abort()


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=LARGEST_BODY)
