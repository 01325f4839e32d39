"""Two counters that NVML lacks, from a DCGM exporter on the same node: tensor cores at work, memory at work.

DCGM writes "blank" numbers where it has none (dcgm_structs.h): 2147483632 and the next few as int32,
9223372036854775792 and the next few as int64, 140737488355328 and the next few as doubles. All of them are far from
being shares, and so is whatever else is no number between 0 and 1: `NA`.

An exporter that is down costs the two readings, nothing else.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Final

import aiohttp
import structlog
from msgspec.structs import replace

from trimtab.agent.backend import NA, NodeReading, known
from trimtab.kube.backoff import Backoff
from trimtab.telemetry import agent_metrics as metrics

FIELDS: Final = {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "tensor_active", "DCGM_FI_PROF_DRAM_ACTIVE": "dram_active"}
SCRAPE_SECONDS: Final = 5.0
"""The exporter itself collects every 30 s unless told otherwise."""
TIMEOUT_SECONDS: Final = 2.0
FRESH_SECONDS: Final = 30.0
"""Counters older than that are NA."""
LARGEST_ANSWER: Final = 8 << 20
SLACK: Final = 1.02

_LINE = re.compile(rf"^({'|'.join(FIELDS)})\{{([^}}]*)\}}\s+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

log = structlog.get_logger(__name__)

Counters = dict[str, dict[str, float]]
"""By UUID, then by the name of the reading."""


def parse(text: str) -> tuple[Counters, int]:
    """The two counters of each GPU in the Prometheus text format, and how many were blank.

    Lines about parts of a partitioned GPU (`GPU_I_ID`) are left out: they say nothing about the whole.
    """
    found: Counters = {}
    blanks = 0
    for name, labels, number in _LINE.findall(text):
        said = dict(_LABEL.findall(labels))
        if said.get("GPU_I_ID") or not (uuid := said.get("UUID", "")):
            continue
        value = share(number)
        blanks += not known(value)
        found.setdefault(uuid, {})[FIELDS[name]] = value
    return found, blanks


def share(text: str) -> float:
    """A share in [0, 1], or NA."""
    try:
        value = float(text)
    except ValueError:
        return NA
    return min(value, 1.0) if 0 <= value <= SLACK else NA


class Exporter:
    """Scrapes `url` for as long as `run` runs; `merge` adds what it said last to a reading."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._counters: Counters = {}
        self._at = float("-inf")
        self._trouble = ""

    async def run(self) -> None:
        """Scrape, for ever. Raises nothing."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        backoff = Backoff(initial=SCRAPE_SECONDS, cap=60.0)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=1)) as session:
            while True:
                try:
                    await self._scrape(session)
                    backoff.reset()
                    await asyncio.sleep(SCRAPE_SECONDS)
                except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                    self._failed(error)
                    await asyncio.sleep(backoff.next())

    def merge(self, reading: NodeReading) -> NodeReading:
        """The reading with the exporter's counters."""
        if time.monotonic() - self._at > FRESH_SECONDS:
            return reading
        gpus = tuple(
            replace(gpu, **counters) if (counters := self._counters.get(gpu.uuid)) else gpu for gpu in reading.gpus
        )
        return replace(reading, gpus=gpus)

    async def _scrape(self, session: aiohttp.ClientSession) -> None:
        async with session.get(self._url) as answer:
            answer.raise_for_status()
            content = await answer.content.read(LARGEST_ANSWER)
            while not answer.content.at_eof() and len(content) < LARGEST_ANSWER:
                content += await answer.content.read(LARGEST_ANSWER - len(content))
        self._counters, blanks = parse(content.decode(errors="replace"))
        self._at = time.monotonic()
        self._trouble = ""
        metrics.DCGM_SCRAPES.labels("read").inc()
        metrics.DCGM_BLANKS.inc(blanks)

    def _failed(self, error: Exception) -> None:
        metrics.DCGM_SCRAPES.labels("failed").inc()
        if (trouble := repr(error)) != self._trouble:
            self._trouble = trouble
            log.warning("the DCGM exporter does not answer", url=self._url, error=trouble)
