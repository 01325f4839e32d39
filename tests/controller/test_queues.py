"""What is written about queues, when, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from prometheus_client.samples import Sample
from tests.builders import A100, NOW, job_object, node_object, placement, plan_of, queue_object
from tests.live.harness import eventually

from trimtab.api.status import JobStatus
from trimtab.controller.jobs.queues import QueueStatusWriter
from trimtab.errors import ApiError, Conflict, LeadershipLost, NotFound, Overloaded
from trimtab.kube.objects import JobObject, QueueObject
from trimtab.kube.resources import QUEUES
from trimtab.observe.snapshot import Caches, ClusterObserver
from trimtab.telemetry import metrics

NODES = [node_object("n1"), node_object("n2")]


class Bench:
    """A controller's part in this, with the API server played."""

    def __init__(self, *queues: QueueObject, seconds: float = 0.01) -> None:
        self.objects = {queue.metadata.name: queue for queue in queues}
        self.jobs: list[JobObject] = []
        self.answers: list[ApiError | LeadershipLost] = []
        """What goes wrong, one request after the other."""
        self.written: list[dict[str, Any]] = []
        self.asked = 0
        self.queues = self
        """As of `Cluster`."""
        this = cast(Any, self)
        self.tally = QueueStatusWriter(this, this, lambda: 7, seconds)

    async def apply(self, path: str, body: dict[str, Any], *, subresource: str) -> bytes:
        """As of `KubeClient`."""
        name = body["metadata"]["name"]
        assert (path, subresource) == (QUEUES.path(name=name), "status")
        self.asked += 1
        if self.answers:
            raise self.answers.pop(0)
        self.written.append(body)
        self.objects[name] = queue_object(name, status=body["status"])
        return b"{}"

    def apply_written(self, answer: bytes) -> None:
        """As of the reflector."""
        assert answer == b"{}"

    def look(self) -> None:
        self.tally.tell(ClusterObserver(()).observe(Caches(NODES, [], self.jobs, self.objects.values()), NOW))

    def statuses(self) -> list[dict[str, Any]]:
        return [body["status"] for body in self.written]


@asynccontextmanager
async def telling(bench: Bench) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(bench.tally.run())
    yield task
    task.cancel()


async def written(bench: Bench, count: int) -> None:
    await eventually(lambda: len(bench.written) >= count, what=f"{count} writes", pause=0.01)


def runs(name: str, queue: str, nodes: dict[str, int]) -> JobObject:
    return job_object(name, {"queue": queue}, JobStatus(plan=plan_of(placement(f"uid-{name}", nodes)), last_epoch=1))


async def test_how_a_queue_is_used() -> None:
    bench = Bench(queue_object("q", {"gpuType": A100, "guaranteed": 4}, weight=2))
    bench.jobs = [runs("r", "q", {"n1": 8}), job_object("w", {"queue": "q"})]
    bench.jobs += [job_object("s", {"queue": "q", "suspend": True}), job_object("other")]
    async with telling(bench):
        bench.look()
        await written(bench, 1)
    [body] = bench.written
    assert body["metadata"] == {"name": "q", "uid": "queue-q"}
    assert body["status"] == {
        "runningJobs": 1,
        "pendingJobs": 1,
        "gpus": 8,
        "sharePermille": 250,
        "uses": [{"gpuType": A100, "gpus": 8, "borrowed": 4}],
        "leaderEpoch": 7,
    }


async def test_an_unused_queue_is_told_of_once_and_then_only_news() -> None:
    bench = Bench(queue_object("q"))
    async with telling(bench):
        bench.look()
        await written(bench, 1)
        for _ in range(5):
            bench.look()
            await asyncio.sleep(0.02)
        bench.jobs = [job_object("w", {"queue": "q"})]
        bench.look()
        await written(bench, 2)
    assert [status["pendingJobs"] for status in bench.statuses()] == [0, 1]


async def test_what_another_controller_has_told_is_not_told_again() -> None:
    told = {"runningJobs": 0, "pendingJobs": 0, "gpus": 0, "sharePermille": 0, "uses": [], "leaderEpoch": 3}
    bench = Bench(queue_object("a", status=told), queue_object("b"))
    async with telling(bench):
        bench.look()
        await written(bench, 1)
    assert [body["metadata"]["name"] for body in bench.written] == ["b"]


async def test_many_rounds_in_a_short_time_are_one_write() -> None:
    bench = Bench(queue_object("q"), seconds=60)
    async with telling(bench):
        for count in range(20):
            bench.jobs = [job_object(f"w{i}", {"queue": "q"}) for i in range(count)]
            bench.look()
        await written(bench, 1)
        bench.jobs = []
        bench.look()
        await asyncio.sleep(0.05)
    assert [status["pendingJobs"] for status in bench.statuses()] == [19]


@pytest.mark.parametrize("error", [NotFound("gone"), Conflict("another UID")])
async def test_a_queue_that_is_gone_holds_nobody_up(error: ApiError) -> None:
    bench = Bench(queue_object("a"), queue_object("b"))
    bench.answers = [error]
    async with telling(bench):
        bench.look()
        await written(bench, 1)
    assert [body["metadata"]["name"] for body in bench.written] == ["b"]


async def test_what_the_api_server_did_not_take_is_written_later_without_any_news() -> None:
    bench = Bench(queue_object("q"))
    bench.answers = [Overloaded("too many requests")] * 2
    async with telling(bench):
        bench.look()
        await written(bench, 1)
    assert bench.asked == 3


async def test_who_no_longer_leads_ends() -> None:
    bench = Bench(queue_object("q"))
    bench.answers = [LeadershipLost("the lease is gone")]
    async with telling(bench) as task:
        bench.look()
        with pytest.raises(LeadershipLost):
            await task


def samples(*gauges: Any) -> Sequence[Sample]:
    return [sample for gauge in gauges for family in gauge.collect() for sample in family.samples]


async def test_metrics_of_a_queue_end_with_it() -> None:
    gauges = metrics.QUEUE_GPUS, metrics.QUEUE_SHARE, metrics.QUEUE_PENDING_JOBS
    bench = Bench(queue_object("q"))
    bench.jobs = [runs("r", "q", {"n1": 8}), job_object("w", {"queue": "q"})]
    async with telling(bench):
        bench.look()
        await eventually(lambda: len(samples(*gauges)) == 3, pause=0.01)
        assert {(sample.name, sample.value) for sample in samples(*gauges)} == {
            ("trimtab_queue_gpus", 8.0),
            ("trimtab_queue_share", 0.5),
            ("trimtab_queue_pending_jobs", 1.0),
        }
        bench.objects.clear()
        bench.look()
        await eventually(lambda: not samples(*gauges), pause=0.01)
