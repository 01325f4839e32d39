"""The table of jobs: columns that are there only where they say something."""

from __future__ import annotations

from rich.console import Console
from tests.builders import MOMENT, job_object, placement, plan_of

from trimtab.api.convert import to_shadow
from trimtab.api.status import JobStatus
from trimtab.observe.jobs import JobFacts, facts
from trimtab.ui import tables
from trimtab_policy.types import PendingReason

RUNS = JobStatus(plan=plan_of(placement()), last_epoch=1)
WATCHED = RUNS.model_copy(update={"shadow": to_shadow("sia", PendingReason.BEHIND_OTHERS, now=MOMENT)})


def shown(*rows: JobFacts, policies: bool) -> list[list[str]]:
    """Cells of the printed table; no cell of these has two blanks in a row."""
    console = Console(width=300)
    with console.capture() as captured:
        console.print(tables.jobs(rows, lambda facts: 0.0, policies=policies))
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in captured.get().splitlines()]


def job(status: JobStatus) -> JobFacts:
    return facts(job_object(status=status))


def test_who_decided_is_told_only_where_it_is_asked_for() -> None:
    assert shown(job(RUNS), policies=False)[0][-1] == "STATE"
    assert [line[-1] for line in shown(job(RUNS), job(JobStatus()), policies=True)] == ["POLICY", "best_fit", "-"]


def test_a_shadow_policy_has_a_column_where_there_is_one() -> None:
    lines = shown(job(WATCHED), job(RUNS), policies=True)
    assert [line[-1] for line in lines] == ["SHADOW", "waits", "-"]
