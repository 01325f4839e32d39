"""Structured logs on standard error, for people (`console`) or machines (`json`).

`configure` is called once, at start. Loggers of libraries (kopf, aiohttp, asyncio) go through the same pipe, so that
every line has the same form. What holds for a whole stretch of work is bound once:

    structlog.contextvars.bind_contextvars(epoch=7)
"""

from __future__ import annotations

import io
import logging
import sys
from typing import Any, Protocol, TextIO

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.types import EventDict, ExcInfo, Processor

from trimtab.printable import printable

LIBRARY_LEVELS = {"kopf": logging.WARNING, "aiohttp.access": logging.WARNING, "asyncio": logging.WARNING}
EXPECTED = "OS signals are ignored: running not in the main thread."
"""kopf says so at each start; it is how we run it."""


class Wanted(Protocol):
    """`LogSettings`, or what has the same two fields."""

    @property
    def level(self) -> str: ...

    @property
    def format(self) -> str: ...


def configure(settings: Wanted) -> None:
    """Set up structlog and the standard library's logging."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_renderers(settings.format))
    )
    handler.addFilter(lambda record: record.getMessage() != EXPECTED)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    for name, level in LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(logging.DEBUG if settings.level == "debug" else level)


def _renderers(form: str) -> list[Processor]:
    if form == "json":
        return [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            # local variables stay out of logs: they hold tokens
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(default=_readable),
        ]
    return [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        _cleaned,
        # rich's tracebacks show all local variables: seconds of work, right when things go wrong
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_traceback),
    ]


def _cleaned(logger: Any, method: str, event: EventDict) -> EventDict:
    """What strangers wrote makes no line and moves no cursor; only tracebacks have several lines."""
    several = "exception", "stack"
    return {name: _shown(value, lines=name in several) for name, value in event.items()}


def _shown(value: Any, lines: bool) -> Any:
    """The value as it is where its words are harmless."""
    if isinstance(value, str):
        return printable(value, lines=lines)
    told = repr(value)
    clean = printable(told)
    return value if clean == told else clean


def _traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, exc_info)
    stream.write(printable(plain.getvalue(), lines=True))


def _readable(value: Any) -> str:
    return str(value)
