"""What another policy would have done, job by job."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.builders import H100, placement

from trimtab_policy.scheduling.comparison import Agreement, Difference, compare
from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.specs import ParallelPlan
from trimtab_policy.types import Pending, PendingReason, Placement

WAITS = Pending("uid-job", PendingReason.INSUFFICIENT_GPUS, "all busy")
STARTS = placement(nodes={"n1": 8})
SLOWER = replace(STARTS.prediction, run_seconds=STARTS.prediction.run_seconds + 90)


def outcome(answer: Placement | Pending) -> Outcome:
    placed, pending = ((answer,), ()) if isinstance(answer, Placement) else ((), (answer,))
    return Outcome({answer.job: "x"}, placed, pending, (), (), {})


def difference(real: Placement | Pending, other: Placement | Pending) -> Difference:
    [found] = compare(outcome(real), outcome(other))
    return found


@pytest.mark.parametrize(
    ("other", "agreement"),
    [
        (STARTS, Agreement.SAME),
        (placement(nodes={"n2": 4, "n3": 4}), Agreement.SAME),
        (placement(nodes={"n1": 8}, gpu_type=H100), Agreement.OTHER_TYPE),
        (placement(nodes={"n1": 4}, gpu_type=H100), Agreement.OTHER_TYPE),
        (placement(nodes={"n1": 4}), Agreement.OTHER_COUNT),
        (placement(nodes={"n1": 8}, plan=ParallelPlan(data=2, tensor=4, zero_stage=1)), Agreement.OTHER_PLAN),
    ],
)
def test_how_two_starts_differ_and_nodes_alone_make_no_difference(other: Placement, agreement: Agreement) -> None:
    found = difference(STARTS, other)
    assert (found.agreement, found.placement, found.starts) == (agreement, other, True)


def test_the_predicted_difference_is_negative_where_the_other_is_faster() -> None:
    slow = replace(STARTS, prediction=SLOWER)
    assert difference(STARTS, slow).seconds == 90
    assert difference(slow, STARTS).seconds == -90


def test_a_job_that_only_one_of_both_starts_has_no_difference_in_seconds() -> None:
    waits, starts = difference(STARTS, WAITS), difference(WAITS, STARTS)
    assert (waits.agreement, waits.pending, waits.starts, waits.seconds) == (Agreement.WOULD_WAIT, WAITS, True, None)
    assert (starts.agreement, starts.placement, starts.starts) == (Agreement.WOULD_START, STARTS, False)
    assert starts.seconds is None


def test_to_wait_for_another_reason_is_to_wait_all_the_same() -> None:
    found = difference(WAITS, replace(WAITS, reason=PendingReason.BEHIND_OTHERS))
    assert (found.agreement, found.starts) == (Agreement.SAME, False)


def test_jobs_that_only_one_of_both_was_asked_about_are_left_out() -> None:
    stranger = replace(WAITS, job="uid-stranger")
    assert compare(outcome(WAITS), outcome(stranger)) == ()
