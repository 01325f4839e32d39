"""An independent witness: follows the cluster at the API server itself, past every proxy, and judges each event.

    async with Watcher(kubeconfig) as watcher:
        await watcher.until(lambda seen: holds(seen.job("j"), "Complete"), 30, "j to complete")
    assert not watcher.violations

It is also the eyes of the tests: what it has seen is at hand at once, where a `kubectl get` costs a process each time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
from tests.faults import witness_state
from tests.faults.invariants import Judge, Limits, Violation
from tests.faults.witness_state import JOBS, KINDS, MAY_BE_ABSENT, NODES, PODS, Object, name_of

from trimtab.kube.connection import connect
from trimtab.settings import KubeSettings

TICK = 0.25
"""Seconds between looks at what must not last."""
RELIST = 120.0
"""Seconds after which a list checks what the watch has told."""


class Watcher:
    """Follows pods, nodes, jobs, queues, priorities, quotas, devices and claims of all namespaces."""

    def __init__(self, kubeconfig: Path, limits: Limits = Limits()) -> None:  # noqa: B008 - frozen
        self.judge = Judge(limits)
        self.changes: dict[str, int] = dict.fromkeys(KINDS, 0)
        """Events by kind since the start, lists left out."""
        self._kubeconfig = kubeconfig
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Condition()

    @property
    def violations(self) -> list[Violation]:
        return self.judge.violations

    # --- what is seen -----------------------------------------------------------------------------------------------
    def job(self, name: str, namespace: str = "default") -> Object:
        """The job, or an empty object."""
        wanted = f"{namespace}/{name}"
        return next((each for each in self.jobs() if name_of(each) == wanted), {})

    def jobs(self) -> list[Object]:
        return list(self.judge.ledger.objects[JOBS].values())

    def node(self, name: str) -> Object:
        return self.judge.ledger.named(NODES, name)

    def pods(self, job: str, namespace: str = "default") -> list[Object]:
        """Pods that carry the job's label, ended ones too."""
        return [
            pod
            for pod in self.judge.ledger.objects[PODS].values()
            if pod["metadata"].get("labels", {}).get("trimtab.dev/job") == job
            and pod["metadata"]["namespace"] == namespace
        ]

    async def until(
        self, happened: Callable[[Watcher], object], seconds: float = 30, what: str | Callable[[], str] = ""
    ) -> None:
        """Wait until what was seen satisfies `happened`; looked at with every event. Fails with `what`."""
        limit = time.monotonic() + seconds
        async with self._news:
            while not happened(self):
                self._fail_if_blind()
                if time.monotonic() > limit:
                    raise AssertionError(f"waited {seconds:g} s for {what() if callable(what) else what}")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), TICK)

    async def rests(self, seconds: float) -> dict[str, int]:
        """I11: how many objects of each kind were written in so many seconds; nodes left out, which live."""
        before = dict(self.changes)
        await asyncio.sleep(seconds)
        return {k: n for k in KINDS if k != NODES and (n := self.changes[k] - before[k])}

    @asynccontextmanager
    async def excuse(self) -> AsyncIterator[None]:
        """Time does not count meanwhile: nobody can act."""
        self.judge.excused = True
        try:
            yield
        finally:
            self.judge.tick(time.time())
            self.judge.excused = False

    # --- following --------------------------------------------------------------------------------------------------
    async def __aenter__(self) -> Watcher:
        connection = await connect(KubeSettings(kubeconfig=self._kubeconfig))
        self._server = connection.server
        tls = aiohttp.TCPConnector(ssl=connection.ssl_context(), limit=0)
        self._session = aiohttp.ClientSession(connector=tls, read_bufsize=1 << 22)
        listed = {kind: asyncio.Event() for kind in KINDS}
        self._tasks = [asyncio.create_task(self._follow(kind, event)) for kind, event in listed.items()]
        self._tasks.append(asyncio.create_task(self._tick()))
        for event in listed.values():
            while not event.is_set():
                self._fail_if_blind()
                await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self._session.close()
        await asyncio.sleep(0.1)  # TLS transports end a moment after their session

    def _fail_if_blind(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def _follow(self, kind: str, listed: asyncio.Event) -> None:
        while True:
            try:
                version = await self._list(kind)
                if version or kind in MAY_BE_ABSENT:
                    listed.set()
                if version:
                    await self._watch(kind, version)
                else:
                    await asyncio.sleep(0.2)
            except (aiohttp.ClientError, ConnectionError, TimeoutError):
                await asyncio.sleep(0.2)  # the API server itself may be restarted by a test

    async def _list(self, kind: str) -> str:
        """Its resource version; empty while the kind is not served (a CRD is being made, or was deleted)."""
        async with self._session.get(f"{self._server}{KINDS[kind]}") as answer:
            if answer.status in (404, 429, 500, 503):
                return ""
            assert answer.status == 200, await answer.text()
            content = await answer.json()
        self.judge.listed(time.time(), kind, content["items"])
        await self._tell()
        return str(content["metadata"]["resourceVersion"])

    async def _watch(self, kind: str, version: str) -> None:
        query = f"?watch=1&resourceVersion={version}&timeoutSeconds={RELIST:.0f}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(f"{self._server}{KINDS[kind]}{query}", timeout=timeout) as stream:
            if stream.status != 200:
                await asyncio.sleep(0.2)
                return
            async for line in stream.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                self.changes[kind] += 1
                self.judge.see(time.time(), kind, event["type"], event["object"])
                await self._tell()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.judge.tick(time.time())

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


def state(job: Object) -> str:
    """A job in one line, for messages."""
    true = [
        f"{c['type']}={c['reason']}"
        for c in witness_state.status_of(job).get("conditions", [])
        if c["status"] == "True"
    ]
    plan, pending = witness_state.plan_of(job), witness_state.status_of(job).get("pending") or {}
    return (
        f"{true} epoch {plan.get('epoch')} on {[n['name'] for n in plan.get('nodes', [])]} {pending.get('message', '')}"
    )
