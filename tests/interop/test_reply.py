"""What is written to a Workload, and when: row by row, and under any history."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some
from syrupy.assertion import SnapshotAssertion
from tests.builders import NOW
from tests.interop.tickets import admitted, ask, condition, evicted, stand, ticket, waiting
from tests.interop.webhooks import problems

from trimtab.interop import request
from trimtab.interop.reply import Amend, Create, Tell, Withdraw, WorkloadPair, next_write
from trimtab.interop.workload import read_workload
from trimtab_policy.types import Bounds

Json = dict[str, Any]


def case(workload: Any = None, **changes: Any) -> WorkloadPair:
    defaults: Json = {"ask": ask(), "living": False, "now": NOW}
    return WorkloadPair(workload=workload, **(defaults | changes))


def told(workload: Any, **changes: Any) -> Json:
    """The status patch; the test is wrong where there is none."""
    write = next_write(case(workload, **changes))
    assert isinstance(write, Tell), write
    assert write.patch["metadata"] == {"resourceVersion": "7"}
    patch: Json = write.patch["status"]
    return patch


def conditions(patch: Json) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in patch["conditions"]}


def test_a_job_without_a_workload_asks() -> None:
    assert next_write(case()) == Create(request.workload(ask()))
    assert next_write(case(living=True)) == Create(request.workload(ask()))


def test_who_wants_nothing_writes_nothing() -> None:
    assert next_write(case(ask=None)) is None
    assert next_write(case(ended=(True, "done"))) is None


def test_a_job_that_waits_is_left_in_line() -> None:
    assert next_write(case(ticket())) is None
    assert next_write(case(ticket(waiting()))) is None


def test_a_job_edited_while_it_waits_asks_otherwise(golden: SnapshotAssertion) -> None:
    write = next_write(case(ticket(waiting()), ask=ask(gpus=Bounds(8, 8), queue="others")))
    assert isinstance(write, Amend)
    assert write.patch == golden


def test_an_edit_that_its_reservation_still_serves_changes_nothing() -> None:
    assert next_write(case(ticket(admitted(16)), ask=ask(gpus=Bounds(8, 32)))) is None


def test_a_reservation_that_is_of_no_use_is_given_up_when_nothing_runs() -> None:
    workload, wants = ticket(admitted(8)), ask(gpus=Bounds(16, 16))
    assert next_write(case(workload, ask=wants, living=True)) is None
    assert next_write(case(workload, ask=wants)) == Withdraw("uid-workload")


def test_a_suspended_job_gives_its_quota_back_when_nothing_runs() -> None:
    for status in (waiting(), admitted()):
        assert next_write(case(ticket(status), ask=None, living=True)) is None
        assert next_write(case(ticket(status), ask=None)) == Withdraw("uid-workload")


def test_the_quota_of_an_evicted_job_is_given_back_when_its_last_pod_is_gone(golden: SnapshotAssertion) -> None:
    ready = condition("PodsReady", True, "Started")
    workload = ticket(evicted(reclaimablePods=[{"name": "main", "count": 4}]))
    assert next_write(case(workload, living=True)) is None
    status = evicted(reclaimablePods=[{"name": "main", "count": 4}], accumulatedPastExecutionTimeSeconds=60)
    status["conditions"].append(ready)
    assert told(ticket(status)) == golden


def test_who_was_preempted_is_in_line_again_at_once_others_when_kueue_says_so() -> None:
    assert conditions(told(ticket(evicted("Preempted"))))["Requeued"] == ("True", "Preempted")
    assert conditions(told(ticket(evicted("Deactivated"))))["Requeued"] == ("False", "Deactivated")


def test_an_evicted_job_that_was_edited_gives_back_first_and_asks_otherwise_then() -> None:
    wants = ask(queue="others")
    status = told(ticket(evicted()), ask=wants)
    after = ticket({"conditions": status["conditions"]})
    assert isinstance(next_write(case(after, ask=wants)), Amend)


def test_that_a_gang_runs_is_told_once_and_that_it_has_failed() -> None:
    started = told(ticket(admitted()), living=True, running=True, gpus=16)
    assert conditions(started)["PodsReady"] == ("True", "Started")
    runs = ticket(admitted() | started)
    assert next_write(case(runs, living=True, running=True, gpus=16)) is None
    failed = told(runs, living=True, running=False, gpus=16)
    assert conditions(failed)["PodsReady"] == ("False", "WaitForRecovery")
    again = told(ticket(admitted() | failed), living=True, running=True, gpus=16)
    assert conditions(again)["PodsReady"] == ("True", "Recovered")


def test_gpus_that_a_running_gang_does_not_need_are_given_back() -> None:
    patch = told(ticket(admitted(16)), living=True, running=True, gpus=8)
    assert patch["reclaimablePods"] == [{"name": "main", "count": 8}]
    after = ticket(admitted(16) | patch)
    assert after.gpus == 8
    assert next_write(case(after, living=True, running=True, gpus=8)) is None


def test_of_a_partial_admission_too() -> None:
    patch = told(ticket(admitted(12)), living=True, running=True, gpus=8)
    assert patch["reclaimablePods"] == [{"name": "main", "count": 8}]
    assert ticket(admitted(12) | patch).gpus == 8


def test_an_elastic_job_keeps_what_it_may_grow_into_and_a_starting_one_gives_nothing_back() -> None:
    running = ticket(admitted(16, condition("PodsReady", True, "Started")))
    assert next_write(case(running, living=True, running=True, gpus=8, elastic=True)) is None
    assert next_write(case(ticket(admitted(16)), living=True, gpus=8)) is None


def test_the_end_of_a_job_is_told_when_its_last_pod_has_ended() -> None:
    workload = ticket(admitted())
    assert next_write(case(workload, ended=(True, "all steps done"), living=True)) is None
    for completed, reason in ((True, "Succeeded"), (False, "Failed")):
        finished = told(workload, ended=(completed, "why"))
        assert conditions(finished)["Finished"] == ("True", reason)
        assert next_write(case(ticket(admitted() | finished), ended=(completed, "why"))) is None


def test_a_job_that_ends_before_it_was_admitted_is_finished_all_the_same() -> None:
    assert conditions(told(ticket(waiting()), ended=(False, "no such image")))["Finished"] == ("True", "Failed")


def test_nothing_is_written_to_what_is_going_or_finished() -> None:
    assert next_write(case(ticket(evicted(), deletionTimestamp="2026-01-02T03:04:05Z"))) is None
    assert next_write(case(ticket(admitted(16, condition("Finished"))), ask=None)) is None


def test_conditions_and_fields_of_others_are_kept() -> None:
    theirs = condition("Somebodys", True, "Theirs", "kept")
    patch = told(ticket(admitted(16, theirs)), living=True, running=True, gpus=16)
    assert theirs in patch["conditions"]
    assert set(patch) == {"conditions"}


# --- any history -----------------------------------------------------------------------------------------------------
def merged(before: Json, patch: Json) -> Json:
    after = copy.deepcopy(before)
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = merged(after.get(key) or {}, value) if isinstance(value, dict) else value
    return after


STATUSES = some.sampled_from(
    [{}, waiting(), admitted(16), admitted(8), evicted(), evicted("PodsReadyTimeout", count=8)]
)
GANGS = some.fixed_dictionaries(
    {
        "living": some.booleans(),
        "running": some.booleans(),
        "gpus": some.integers(4, 16),
        "elastic": some.booleans(),
        "ended": some.sampled_from([None, None, (True, "done"), (False, "broken")]),
    }
)
ASKS = some.sampled_from([None, ask(), ask(gpus=Bounds(4, 8)), ask(gpus=Bounds(12, 16)), ask(queue="others")])


@settings(max_examples=300)
@given(status=STATUSES, looks=some.lists(some.tuples(GANGS, ASKS), min_size=1, max_size=6))
def test_whatever_happens_kueue_takes_what_is_written_and_it_settles(status: Json, looks: list[Any]) -> None:
    """Each look is followed until nothing is left to write; every write passes the webhook's rules."""
    raw: Json | None = {**request.workload(ask()), "status": status}
    for gang, asked in looks:
        for _ in range(6):
            known = stand(raw["status"], spec=raw["spec"], annotations=raw["metadata"]["annotations"]) if raw else None
            write = next_write(case(read_workload(known) if known else None, ask=asked, **gang))
            if write is None:
                break
            before = raw
            if isinstance(write, Create):
                raw = {**write.workload, "status": {}}
            elif isinstance(write, Withdraw):
                assert not gang["living"]
                raw = None
            else:
                assert before
                assert write.patch["metadata"].pop("resourceVersion") == "7"
                raw = merged(before, write.patch)
            if raw:
                assert problems(raw, before) == []
        else:
            raise AssertionError(f"does not settle: {gang} {asked}")
        assert json.dumps(raw)


def test_times_are_to_the_second() -> None:
    patch = told(ticket(evicted()))
    times = {each["type"]: each["lastTransitionTime"] for each in patch["conditions"]}
    assert times["QuotaReserved"] == datetime.fromtimestamp(NOW, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
