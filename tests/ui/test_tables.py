"""The tables of jobs and nodes: columns that are there only where they say something, and why a node takes no pods."""

from __future__ import annotations

from rich.console import Console
from tests.builders import MOMENT, NOW, fault, gpu_reading, gpunode_object, job_object, node_object, placement, plan_of

from trimtab.api.convert import to_shadow
from trimtab.api.status import JobStatus
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.jobs import JobFacts, facts
from trimtab.observe.snapshot import Caches, ClusterObserver
from trimtab.settings import TelemetrySettings
from trimtab.ui import tables
from trimtab.ui.listing import Listing
from trimtab_policy.types import PendingReason

RUNS = JobStatus(plan=plan_of(placement()), last_epoch=1)
WATCHED = RUNS.model_copy(update={"shadow": to_shadow("sia", PendingReason.BEHIND_OTHERS, now=MOMENT)})


def cells(table: Listing) -> list[list[str]]:
    """Cells of the printed table; no cell of these has two blanks in a row."""
    console = Console(width=300)
    with console.capture() as captured:
        console.print(table)
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in captured.get().splitlines()]


def shown(*rows: JobFacts, policies: bool) -> list[list[str]]:
    return cells(tables.jobs(rows, lambda facts: 0.0, more=["POLICY"] if policies else []))


def job(status: JobStatus) -> JobFacts:
    return facts(job_object(status=status))


def test_who_decided_is_told_only_where_it_is_asked_for() -> None:
    assert shown(job(RUNS), policies=False)[0][-1] == "STATE"
    assert [line[-1] for line in shown(job(RUNS), job(JobStatus()), policies=True)] == ["POLICY", "best_fit", "-"]


def test_a_shadow_policy_has_a_column_where_there_is_one() -> None:
    lines = shown(job(WATCHED), job(RUNS), policies=True)
    assert [line[-1] for line in lines] == ["SHADOW", "waits", "-"]


def test_the_state_of_a_node_tells_what_its_agent_says() -> None:
    heard = GpuNodes(TelemetrySettings())
    heard.take(gpunode_object("a", [gpu_reading(0, "a", faults=[fault(code=79)])]))
    heard.take(gpunode_object("b", [gpu_reading(index, "b", smUtilizationPercent=90) for index in range(8)]))
    nodes = [node_object(name) for name in ("a", "b", "c", "d", "e", "f", "g", "h")]
    table = tables.nodes(ClusterObserver((), heard).observe(Caches(nodes, [], []), NOW))
    _, *lines = cells(table)
    assert lines[0][-1].startswith("its GPUs are unhealthy: GPU 0: XID 79")
    assert [line[-1] for line in lines[1:3]] == ["Ready (ForeignLoad)", "Ready"]
    assert [line[3] for line in lines[:3]] == ["-", "0", "8"]
