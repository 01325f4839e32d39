"""GPU-seconds: what was held between two looks counts once, with what agents said of it, and gaps do not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import A100, NOW, gang_pod, gpu_reading, job_object, placement, plan_of, queue_object
from tests.observe.world import World, job_of_pod

from trimtab.api.status import JobStatus, PlanTerms
from trimtab.controller.loop.accounting import SWEEPS, Accounting, count
from trimtab.kube.objects import JobObject
from trimtab.observe.gpu_use import GpuUse
from trimtab.observe.snapshot import Caches, Observation
from trimtab.telemetry import metrics
from trimtab.telemetry.metrics import OTHERS, LabelValues

SWEEP = 60.0
QUEUES = [queue_object("q", {"gpuType": "*", "gpus": 64})]
BUSY = {"smUtilizationPercent": 90}


def counted(**labels: str) -> dict[str, float]:
    """Use -> seconds, of all series with these labels."""
    found: dict[str, float] = {}
    for family in metrics.GPU_SECONDS.collect():
        for sample in family.samples:
            if sample.name.endswith("_total") and labels.items() <= sample.labels.items():
                use = sample.labels["use"]
                found[use] = found.get(use, 0.0) + sample.value
    return found


class Ledger:
    """A controller that counts, of the jobs of one namespace."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.world = World(2)
        self.jobs: list[JobObject] = []
        self.restart()

    def restart(self) -> None:
        self.accounting = Accounting(0.02, SWEEP, job_of_pod, clock=lambda: self.world.now)

    def plan(self, name: str, node: str = "n1", gpus: int = 8, queue: str = "q") -> None:
        plan = plan_of(placement(f"uid-{name}", {node: gpus}), terms=PlanTerms(queue=queue))
        self.jobs.append(job_object(name, {}, JobStatus(plan=plan, last_epoch=1), namespace=self.tenant))

    def observe(self) -> Observation:
        world = self.world
        caches = Caches(world.nodes.values(), world.pods, self.jobs, QUEUES)
        return world.observer.observe(caches, NOW + world.now)

    def look(self, after: float = 0.0) -> dict[str, float]:
        self.world.now += after
        self.accounting.see(self.observe())
        return counted(tenant=self.tenant)


def test_what_was_held_since_the_last_look_counts_though_its_job_is_gone_by_now() -> None:
    ledger = Ledger("deleted")
    ledger.plan("a")
    assert ledger.look() == {"unknown": 0}
    ledger.jobs.clear()
    assert ledger.look(10) == {"unknown": 80}
    assert ledger.look(10) == {"unknown": 80}
    assert counted(tenant="deleted", queue="q", gpu_type=A100) == {"unknown": 80}


def test_agents_say_whether_they_are_used() -> None:
    ledger = Ledger("observed")
    ledger.plan("a")
    own = {"pods": ["observed/a-1-0"]}
    ledger.world.report("n1", [dict(g, **own) for g in readings("n1", 6, BUSY) + readings("n1", 2, {}, first=6)])
    ledger.look()
    assert ledger.look(10) == {"used": 60, "idle": 20}
    ledger.world.report("n1", [dict(g, **own) for g in readings("n1", 8, {})])
    assert ledger.look(5) == {"used": 90, "idle": 30}
    assert ledger.look(1) == {"used": 90, "idle": 38}


def readings(node: str, count: int, changes: Mapping[str, object], first: int = 0) -> list[dict[str, object]]:
    return [gpu_reading(index, node, **changes) for index in range(first, first + count)]


def test_pods_that_are_left_of_a_gang_count_until_they_have_ended() -> None:
    ledger = Ledger("default")
    before = counted(tenant="default", queue="q").get("unknown", 0.0)
    ledger.world.pods = [
        gang_pod("left", 1, 0, "n1", phase="Running", metadata={"annotations": {"trimtab.dev/queue": "q"}})
    ]
    ledger.look()
    ledger.world.pods = []
    ledger.look(5)
    assert counted(tenant="default", queue="q")["unknown"] - before == 40


def test_a_gap_without_a_look_counts_nothing_nor_does_the_time_before_the_first() -> None:
    ledger = Ledger("gap")
    ledger.plan("a")
    ledger.look()
    assert ledger.look(SWEEPS * SWEEP) == {"unknown": 8 * SWEEPS * SWEEP}
    assert ledger.look(SWEEPS * SWEEP + 1) == {"unknown": 8 * SWEEPS * SWEEP}
    ledger.restart()
    assert ledger.look(30) == {"unknown": 8 * SWEEPS * SWEEP}, "a successor counts from its own first look on"
    assert ledger.look(1) == {"unknown": 8 * SWEEPS * SWEEP + 8}


def test_a_queue_that_is_not_there_has_no_name() -> None:
    ledger = Ledger("nameless")
    ledger.plan("a", queue="made-up")
    ledger.look()
    ledger.look(1)
    assert counted(tenant="nameless", queue="") == {"unknown": 8}
    assert counted(tenant="nameless", queue="made-up") == {}


def test_however_many_namespaces_there_are_their_label_has_few_values() -> None:
    values = LabelValues(2)
    assert [values.of(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", OTHERS, "a", OTHERS]


Table = Mapping[tuple[str, str, str], GpuUse]
USES = st.builds(GpuUse, st.integers(0, 64), st.integers(0, 64), st.integers(0, 64))
TABLES: st.SearchStrategy[Table] = st.dictionaries(
    st.tuples(st.sampled_from(["", "q"]), st.sampled_from(["team-a", "team-b"]), st.just("drawn")), USES, max_size=4
)


@given(st.lists(st.tuples(TABLES, st.floats(-10, 400)), max_size=10))
def test_the_sum_of_all_is_the_time_times_the_gpus_that_were_held(looks: list[tuple[Table, float]]) -> None:
    before = sum(counted(gpu_type="drawn").values())
    expected = 0.0
    for table, seconds in looks:
        count(table, seconds, 180.0)
        if 0 <= seconds <= 180:
            expected += seconds * sum(use.used + use.idle + use.unknown for use in table.values())
    assert sum(counted(gpu_type="drawn").values()) - before == pytest.approx(expected, rel=1e-6, abs=1e-3)
