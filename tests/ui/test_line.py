"""The table of `trimtab queue`: who waits, for what, and until when."""

from __future__ import annotations

import pytest
from rich.console import Console
from tests.builders import NOW, job_object, node_object, placement, plan_of

from trimtab.api.convert import to_start_time
from trimtab.api.status import JobStatus, PendingStatus
from trimtab.errors import TrimtabError
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.settings import PriceSettings
from trimtab.ui import line
from trimtab_policy.types import Eta, PendingReason

HOUR = 3600.0


def seen(told: PendingStatus | None) -> Observation:
    """One job holds all there is, and one waits."""
    runs = JobStatus(plan=plan_of(placement("uid-runs", {"n1": 8})), last_epoch=1)
    jobs = [job_object("runs", status=runs), job_object("waits", status=JobStatus(pending=told))]
    return ClusterObserver(()).observe(Caches([node_object("n1")], [], jobs), NOW)


def pending(reason: PendingReason, expected: float) -> PendingStatus:
    eta = Eta(NOW + expected / 2, NOW + expected, NOW + 2 * expected)
    return PendingStatus(reason=reason, message="it waits", start_time=to_start_time(eta))


def test_the_start_is_the_one_that_the_controller_tells() -> None:
    """By the line of its own policy, of which a command knows nothing."""
    [row] = line.rows(seen(pending(PendingReason.WAITING_FOR_BETTER, 5 * HOUR)))
    assert (row.job, row.place, row.reason) == ("default/waits", 1, "WaitingForBetterGpus")
    assert row.starts_in_seconds == pytest.approx(5 * HOUR, abs=60)


@pytest.mark.parametrize("told", [None, pending(PendingReason.INSUFFICIENT_GPUS, -HOUR)])
def test_where_nothing_was_told_or_it_has_passed_it_is_worked_out(told: PendingStatus | None) -> None:
    [row] = line.rows(seen(told))
    assert row.reason == "InsufficientGpus"
    assert row.starts_in_seconds is not None
    assert 0 <= row.starts_in_seconds < 5 * HOUR
    assert row.gpus > 0


def test_of_a_queue_that_there_is_not_the_nearest_is_named() -> None:
    with pytest.raises(TrimtabError, match="there is no queue nosuch"):
        line.rows(seen(None), "nosuch")


def test_what_a_run_is_expected_to_cost_is_told_where_there_is_a_price() -> None:
    waits = seen(pending(PendingReason.INSUFFICIENT_GPUS, HOUR))
    [free] = line.rows(waits)
    assert free.cost is None
    [row] = line.rows(waits, prices=PriceSettings(per_gpu_hour={free.gpu_type: 3600.0}))
    assert row.cost is not None
    assert row.cost > 0
    [dear] = line.rows(waits, prices=PriceSettings(per_gpu_hour={free.gpu_type: 7200.0}))
    assert dear.cost == pytest.approx(2 * row.cost, abs=0.02)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(line.table([row], "EUR"))
    told = captured.get().split()
    assert told[told.index("COST") + 1] == "EUR"
    assert f"{row.cost:.2f}" in told
