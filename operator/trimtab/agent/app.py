"""The agent's process: sampler, digest, schedule and publisher put together, and ended.

It outlives everything around it: no driver, a hung driver, no API server, no CRD. What it cannot say in the GPUNode it
says in its log and metrics, and it tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import structlog

from trimtab import __version__, names
from trimtab.agent import backends, dcgm
from trimtab.agent.backend import Backend, BackendError, NodeReading
from trimtab.agent.config import AgentConfig
from trimtab.agent.digest import Digest, GpuState, NodeState, report
from trimtab.agent.pod_resources import with_pods
from trimtab.agent.publish import Publisher, reason
from trimtab.agent.sampler import Sampler
from trimtab.agent.schedule import Cause, Schedule
from trimtab.errors import ApiError, Forbidden
from trimtab.kube.backoff import Backoff
from trimtab.kube.client import KubeClient
from trimtab.kube.slim_auth import PlainConnection, endpoint
from trimtab.telemetry import agent_metrics as metrics
from trimtab.telemetry import logs
from trimtab.telemetry.server import TelemetryServer

TICK_SECONDS: Final = 1.0
DEAD_SECONDS: Final = 300.0
"""/healthz fails when the backend has not answered for so long."""
FORBIDDEN: Final = (
    f"manifests/agent.yaml gives {names.SYSTEM_NAMESPACE}/{names.AGENT_ACCOUNT} the right to write the GPUNode of its"
    " own node, with a token that the kubelet projected into its pod"
)

log = structlog.get_logger(__name__)


async def run_agent(config: AgentConfig) -> None:
    """Run until SIGTERM or SIGINT. Raises SettingsError, or BackendError for a backend that cannot be made."""
    logs.configure(config.log)
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    backend = backends.make_backend(config)
    connection = PlainConnection(endpoint(_path(config.kube.kubeconfig), config.kube.context or None))
    async with KubeClient(connection, config.kube) as client:
        await NodeAgent(config, backend, client).run(stop)


class NodeAgent:
    """All parts of the agent of one node."""

    def __init__(self, config: AgentConfig, backend: Backend, client: KubeClient) -> None:
        self._config = config
        self._backend = backend
        self._boot_id = _boot_id(Path(config.boot_id))
        self._publisher = Publisher(client, config.node)
        self._digest = Digest(config.report_seconds, lambda field: metrics.IMPLAUSIBLE.labels(field).inc())
        self._schedule = Schedule(config.report_seconds, config.least_report_seconds, tick=config.sample_seconds)
        self._sampler = Sampler(backend, config.sample_seconds, self._take)
        self._kubelet = backends.kubelet(config)
        self._kubelet_error = ""
        self._dcgm = dcgm.Exporter(config.dcgm_url) if config.dcgm_url else None
        self._backoff = Backoff(initial=1.0, cap=30.0)
        self._state: NodeState | None = None
        self._news = asyncio.Event()
        self._carried = False
        self._reported = False

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set."""
        config = self._config
        log.info("starting", version=__version__, node=config.node, backend=config.backend, boot=self._boot_id)
        collector = metrics.GpuCollector(self._gpu_rows, self._fault_rows)
        metrics.REGISTRY.register(collector)
        metrics.SAMPLE_AGE.set_function(self._sampler.silence)
        metrics.NODES.set(1)
        async with TelemetryServer(
            config.http, self._unhealthy, self._unready, metrics.REGISTRY, metrics.PORTS
        ) as server:
            log.info("serving", metrics=f"{server.url}/metrics")
            self._sampler.start()
            gc.collect()
            gc.freeze()
            parts = [asyncio.create_task(self._report(), name="report")]
            if self._dcgm:
                parts.append(asyncio.create_task(self._dcgm.run(), name="dcgm"))
            stopping = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait([stopping, *parts], return_when=asyncio.FIRST_COMPLETED)
                for part in parts:
                    if part.done():
                        part.result()
            finally:
                await self._end([stopping, *parts])
                metrics.REGISTRY.unregister(collector)

    # --- readings ---------------------------------------------------------------------------------------------------
    def _take(self, reading: NodeReading, seconds: float) -> None:
        metrics.SAMPLES.labels("error" if reading.error else "read").inc()
        metrics.SAMPLE_SECONDS.observe(seconds)
        if self._kubelet:
            reading = with_pods(reading, self._kubelet.current())
            if self._kubelet.error != self._kubelet_error:
                self._kubelet_error = self._kubelet.error
                log.warning("pods of GPUs", problem=self._kubelet_error or "known again")
        if self._dcgm:
            reading = self._dcgm.merge(reading)
        if reading.error and (self._state is None or self._state.error != reading.error):
            log.error("no GPU can be read", reason=reading.error)
        self._digested(reading)
        self._news.set()

    def _digested(self, reading: NodeReading) -> NodeState:
        self._state = self._digest.take(reading, time.monotonic(), time.time())
        return self._state

    # --- reports ----------------------------------------------------------------------------------------------------
    async def _report(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), TICK_SECONDS)
            self._news.clear()
            if getattr(self._backend, "needs_restart", False) and self._reported:
                raise BackendError(
                    "the driver was replaced under the running agent: it ends, for a new one to load the new library"
                )
            if hung := self._sampler.hung():
                if self._state is None or self._state.error != hung:
                    log.error("no GPU can be read", reason=hung)
                self._digested(NodeReading(error=hung))
            if self._state is None or not await self._carry():
                continue
            state = self._state
            now = time.monotonic()
            if cause := self._schedule.due(state, now):
                await self._write(state, cause, now)

    async def _carry(self) -> bool:
        """Before the first report: learn what an earlier agent knew, or its faults would be overwritten."""
        if self._carried:
            return True
        try:
            previous = await self._publisher.previous()
        except ApiError as error:
            await asyncio.sleep(self._troubled("first", error))
            return False
        carried = self._digest.faults.carry(previous.status if previous else None, self._boot_id)
        if previous and carried:
            self._digest.faults.mend(previous.repaired)
        self._carried = True
        if self._state is not None and self._state.error:
            self._digested(NodeReading(error=self._state.error))
            return True
        self._state = None  # the next reading has what was carried over
        return False

    async def _write(self, state: NodeState, cause: Cause, now: float) -> None:
        config = self._config
        status = report(state, backend=config.backend, period=config.report_seconds, boot_id=self._boot_id)
        try:
            repaired = await self._publisher.write(status)
        except ApiError as error:
            self._schedule.failed(now + self._troubled(cause, error))
            return
        self._backoff.reset()
        self._schedule.wrote(state, now)
        self._reported = True
        metrics.REPORTS.labels(cause, "written").inc()
        log.debug("reported", cause=cause)
        if repaired and self._digest.faults.mend(repaired):
            log.info("faults are mended", before=repaired)

    def _troubled(self, cause: Cause, error: ApiError) -> float:
        """Log and count a failed request; returns how long to wait."""
        metrics.REPORTS.labels(cause, reason(error)).inc()
        self._publisher.forget()
        wait = self._backoff.next(error.retry_after)
        hint = {"hint": FORBIDDEN} if isinstance(error, Forbidden) else {}
        log.warning("not reported", cause=cause, error=str(error), wait=round(wait, 1), **hint)
        return wait

    # --- what others see --------------------------------------------------------------------------------------------
    def _gpu_rows(self) -> Iterator[metrics.GpuRow]:
        for each in self._state.gpus if self._state else ():
            yield (str(each.gpu.index), each.gpu.uuid, each.gpu.product), _numbers(each)

    def _fault_rows(self) -> Iterator[metrics.FaultRow]:
        for each in self._state.gpus if self._state else ():
            for (kind, code), count in each.counts.items():
                yield (str(each.gpu.index), each.gpu.uuid, kind, str(code)), count

    def _unhealthy(self) -> str:
        silent = self._sampler.silence()
        return f"the backend has not answered for {silent:.0f} s" if silent > DEAD_SECONDS else ""

    def _unready(self) -> str:
        return "" if self._reported else "no report was written yet"

    async def _end(self, tasks: list[asyncio.Task[object]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._sampler.stop)
        if self._kubelet:
            await asyncio.to_thread(self._kubelet.close)


def _numbers(state: GpuState) -> Mapping[str, float]:
    gpu = state.gpu
    found = {name: float(getattr(gpu, name)) for name in metrics.GPU_GAUGES if name in _NUMBERS}
    failed = gpu.row_remap_failed
    lost = any(happened.kind == "Lost" for happened in gpu.happened)
    return {
        **found,
        "throttled": state.throttled,
        "row_remap_failed": math.nan if failed is None else float(failed),
        "lost": float(lost),
    }


_NUMBERS: Final = frozenset(metrics.GPU_GAUGES) - {"throttled", "row_remap_failed", "lost"}


def _boot_id(path: Path) -> str:
    """Empty where it cannot be read: then faults are not carried over a restart."""
    try:
        return path.read_text().strip()
    except OSError as error:
        log.warning("cannot tell when the machine was started", file=str(path), error=str(error))
        return ""


def _path(text: str) -> Path | None:
    return Path(text) if text else None
