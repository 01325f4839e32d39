"""The life of a job as a specification: what is done next in every situation, and nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import MOMENT, NOW, gang_pod, placement, plan_of

from trimtab import names
from trimtab.api import conditions
from trimtab.api.history import FailureCause
from trimtab.api.status import JobStatus, PendingStatus, Shadow
from trimtab.apply import transitions
from trimtab.apply.actions import BindPod, CreatePod, CreateService, DeletePod, Step, WriteStatus
from trimtab.apply.gang_failures import GangFailure
from trimtab.apply.steps import HUNG_SECONDS, JobContext, next_step
from trimtab.kube.objects import Meta, PodObject
from trimtab_policy.types import PendingReason

META = Meta(name="job", namespace="default", uid="uid-job", generation=1)
PLAN = plan_of(placement(nodes={"n1": 4, "n2": 4}))
PLANNED = transitions.planned(JobStatus(), META, PLAN, NOW)
SCHEDULED = transitions.scheduled(PLANNED, META, NOW, all_running=False)
RUNNING = transitions.scheduled(PLANNED, META, NOW, all_running=True)
PENDING = PendingStatus(reason=PendingReason.INSUFFICIENT_GPUS, message="all busy")


def view(status: JobStatus = JobStatus(), *pods: PodObject, **changes: Any) -> JobContext:  # noqa: B008 - frozen
    defaults: dict[str, Any] = {"suspended": False, "finished": False, "max_restarts": 1, "backoff": (1.0, 300.0)}
    defaults |= {"has_service": bool(pods)}
    return JobContext(META, status, now=NOW, pods=pods, **(defaults | changes))


def pods(phase: str = "Pending", nodes: tuple[str, str] = ("n1", "n2"), **changes: Any) -> tuple[PodObject, ...]:
    return tuple(gang_pod("job", 1, rank, node, phase=phase, **changes) for rank, node in enumerate(nodes))


UNBOUND, BOUND = pods(nodes=("", "")), pods()
DELETED = {"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}


def written(step: Step) -> WriteStatus:
    [action] = step
    assert isinstance(action, WriteStatus)
    return action


def given_up(step: Step) -> tuple[str, int]:
    """The step takes the plan away: the reason, and how many restarts it leaves used up."""
    action = written(step)
    status = action.status
    assert status.plan is None
    assert status.pending
    assert status.pending.reason is PendingReason.BACKING_OFF
    assert status.retry_time
    assert status.retry_time > MOMENT
    assert action.happening
    assert action.happening.type == "Warning"
    assert (action.happening.epoch, status.last_epoch) == (1, 1)
    assert [find(status, kind) for kind in (names.PLANNED, names.GANG_SCHEDULED, names.PODS_READY)] == ["False"] * 3
    return action.happening.reason, status.restarts


def find(status: JobStatus, kind: str) -> str | None:
    condition = conditions.find(status.conditions, kind)
    return condition.status if condition else None


# --- waiting and planning ------------------------------------------------------------------------------------------
def test_nothing_is_done_before_there_is_an_answer() -> None:
    assert next_step(view()) == ()


def test_why_a_job_waits_is_written_once() -> None:
    action = written(next_step(view(pending=PENDING)))
    assert action.status.pending == PENDING
    assert action.happening == transitions.JobEvent("Warning", "InsufficientGpus", "all busy", 0)
    assert next_step(view(action.status, pending=PENDING)) == ()


def test_another_message_of_the_same_reason_is_no_news() -> None:
    before = transitions.waiting(JobStatus(), META, PENDING, NOW)
    action = written(next_step(view(before, pending=PENDING.model_copy(update={"message": "still busy"}))))
    assert action.happening is None


def test_a_plan_is_written_down_before_anything_else() -> None:
    action = written(next_step(view(plan=PLAN, pending=PENDING)))
    assert (action.status.plan, action.status.last_epoch, action.status.pending) == (PLAN, 1, None)
    assert action.happening
    assert (action.happening.reason, action.happening.message) == ("Planned", "best_fit: because")


def test_no_plan_is_written_while_pods_of_an_earlier_one_are_ending() -> None:
    assert next_step(view(JobStatus(), *pods(**DELETED), plan=PLAN)) == ()


# --- the shadow policy ---------------------------------------------------------------------------------------------
SHADOW = Shadow(policy="sia", summary="8×T4 dp=8", gpu_type="T4", gpus=8, predicted_finish_time=MOMENT)


def test_what_a_shadow_policy_would_do_is_written_beside_why_the_job_waits() -> None:
    action = written(next_step(view(pending=PENDING, shadow=SHADOW)))
    assert (action.status.pending, action.status.shadow) == (PENDING, SHADOW)


def test_a_shadow_policy_never_delays_a_gang() -> None:
    assert next_step(view(PLANNED, shadow=SHADOW)) == (CreateService(), CreatePod(0), CreatePod(1))
    assert next_step(view(PLANNED, *UNBOUND, shadow=SHADOW)) == next_step(view(PLANNED, *UNBOUND))
    action = written(next_step(view(PLANNED, *BOUND, shadow=SHADOW)))
    assert (find(action.status, names.GANG_SCHEDULED), action.status.shadow) == ("True", SHADOW)


def test_a_shadow_policy_that_only_gets_to_it_later_says_the_same_is_no_news_and_no_event() -> None:
    action = written(next_step(view(RUNNING, *pods("Running"), shadow=SHADOW)))
    assert (action.status.shadow, action.happening) == (SHADOW, None)
    later = SHADOW.model_copy(update={"predicted_finish_time": MOMENT + timedelta(hours=1)})
    assert next_step(view(action.status, *pods("Running"), shadow=later)) == ()
    another = SHADOW.model_copy(update={"summary": "4×T4 dp=4", "gpus": 4})
    assert written(next_step(view(action.status, *pods("Running"), shadow=another))).status.shadow == another


def test_a_shadow_policy_has_nothing_to_say_about_a_job_that_has_ended() -> None:
    assert next_step(view(RUNNING, *pods("Succeeded"), finished=True, shadow=SHADOW)) == ()
    assert written(next_step(view(RUNNING, *pods("Succeeded"), shadow=SHADOW))).status.shadow is None


def test_what_it_said_goes_with_what_it_was_said_about() -> None:
    waits = transitions.shadowed(transitions.waiting(JobStatus(), META, PENDING, NOW), SHADOW)
    assert transitions.planned(waits, META, PLAN, NOW).shadow is None
    runs = transitions.shadowed(RUNNING, SHADOW)
    assert transitions.suspended(runs, META, NOW).shadow is None
    assert transitions.set_back(runs, META, GangFailure("NodeLost", "gone"), NOW, (1.0, 2.0)).shadow is None


# --- carrying out --------------------------------------------------------------------------------------------------
def test_the_service_and_all_pods_are_created_at_once() -> None:
    assert next_step(view(PLANNED)) == (CreateService(), CreatePod(0), CreatePod(1))


def test_only_what_is_missing_is_created() -> None:
    assert next_step(view(PLANNED, has_service=True)) == (CreatePod(0), CreatePod(1))
    assert next_step(view(PLANNED, UNBOUND[1])) == (CreatePod(0),)
    assert next_step(view(PLANNED, *UNBOUND, has_service=False)) == (CreateService(),)


def test_nothing_is_bound_before_everything_exists() -> None:
    assert next_step(view(PLANNED, BOUND[0])) == (CreatePod(1),)


def test_all_pods_are_bound_at_once_to_the_nodes_of_the_plan() -> None:
    step = next_step(view(PLANNED, *UNBOUND))
    assert step == (BindPod("job-1-0", "pod-job-1-0", "n1"), BindPod("job-1-1", "pod-job-1-1", "n2"))


def test_what_is_bound_or_was_answered_is_not_bound_again() -> None:
    assert next_step(view(PLANNED, BOUND[0], UNBOUND[1])) == (BindPod("job-1-1", "pod-job-1-1", "n2"),)
    assumed = {"pod-job-1-0": "n1"}
    assert next_step(view(PLANNED, *UNBOUND, assumed=assumed)) == (BindPod("job-1-1", "pod-job-1-1", "n2"),)


def test_a_bound_gang_is_scheduled_even_where_the_bindings_are_not_visible_yet() -> None:
    assumed = {"pod-job-1-0": "n1", "pod-job-1-1": "n2"}
    for gang in (view(PLANNED, *BOUND), view(PLANNED, *UNBOUND, assumed=assumed)):
        action = written(next_step(gang))
        assert action.status == SCHEDULED
        assert action.happening
        assert action.happening.reason == "GangScheduled"


def test_a_running_gang_is_ready() -> None:
    action = written(next_step(view(SCHEDULED, *pods("Running"))))
    assert find(action.status, names.PODS_READY) == "True"
    assert action.status.start_time == MOMENT
    assert action.happening
    assert action.happening.reason == "Running"


def test_a_plan_whose_pods_have_their_nodes_is_not_said_to_be_binding() -> None:
    for status, reason in ((PLANNED, "Binding"), (SCHEDULED, "Bound"), (RUNNING, "Bound")):
        told = conditions.find(status.conditions, names.PLANNED)
        assert told
        assert told.reason == reason


def test_a_gang_is_not_ready_before_all_of_it_runs() -> None:
    assert next_step(view(SCHEDULED, pods("Running")[0], BOUND[1])) == ()


HALF_DONE = (pods("Succeeded")[0], pods("Running")[1])


@pytest.mark.parametrize(("status", "gang"), [(SCHEDULED, BOUND), (RUNNING, pods("Running")), (RUNNING, HALF_DONE)])
def test_nothing_is_done_while_nothing_changes(status: JobStatus, gang: tuple[PodObject, ...]) -> None:
    assert next_step(view(status, *gang)) == ()


def test_progress_is_written_when_it_moves() -> None:
    action = written(next_step(view(RUNNING, *pods("Running"), progress=40)))
    assert action.status.trainer_status
    assert action.status.trainer_status.progress_percentage == 40
    assert action.happening is None
    assert next_step(view(action.status, *pods("Running"), progress=40)) == ()


def test_a_gang_whose_pods_have_all_succeeded_is_complete() -> None:
    action = written(next_step(view(RUNNING, *pods("Succeeded"))))
    assert find(action.status, names.COMPLETE) == "True"
    assert action.status.completion_time == MOMENT
    assert action.status.plan == PLAN
    assert action.happening
    assert action.happening.reason == "Completed"


def test_success_counts_even_when_the_node_has_gone_since() -> None:
    gone = {"lost": {"n1": "deleted"}, "unavailable": {"n1": "deleted"}}
    action = written(next_step(view(RUNNING, *pods("Succeeded"), **gone)))
    assert find(action.status, names.COMPLETE) == "True"


# --- what comes in between -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("status", "gang", "changes", "reason"),
    [
        (PLANNED, UNBOUND, {"unavailable": {"n2": "cordoned"}}, "NodeUnavailable"),
        (PLANNED, (), {"unavailable": {"n2": "cordoned"}}, "NodeUnavailable"),
        (PLANNED, BOUND, {"lost": {"n2": "deleted"}}, "NodeLost"),
        (RUNNING, pods("Running"), {"lost": {"n2": "NotReady for 60 s"}}, "NodeLost"),
        (PLANNED, (BOUND[0], UNBOUND[1]), {"binding_overdue": True}, "BindTimeout"),
        (PLANNED, pods(nodes=("", ""), **DELETED), {}, "PodDeleted"),
        (RUNNING, (pods("Running")[0], pods("Running", **DELETED)[1]), {}, "PodDeleted"),
        (SCHEDULED, BOUND[:1], {}, "PodDeleted"),
        (PLANNED, pods(nodes=("n1", "n9")), {}, "BoundElsewhere"),
        (PLANNED, UNBOUND, {"setback": GangFailure("BindRefused", "409")}, "BindRefused"),
        (RUNNING, pods("Running"), {"setback": GangFailure("SpecChanged", "gpus.max")}, "SpecChanged"),
    ],
)
def test_whatever_stops_a_gang_takes_its_plan_away_and_costs_no_restart(
    status: JobStatus, gang: tuple[PodObject, ...], changes: dict[str, Any], reason: str
) -> None:
    assert given_up(next_step(view(status, *gang, **changes))) == (reason, 0)


def test_a_cordon_does_not_touch_what_is_bound() -> None:
    cordoned = {"unavailable": {"n1": "cordoned", "n2": "cordoned"}}
    assert written(next_step(view(PLANNED, *BOUND, **cordoned))).status == SCHEDULED
    assert next_step(view(RUNNING, *pods("Running"), **cordoned)) == ()


def test_a_pod_that_was_bound_at_last_is_not_overdue() -> None:
    assert written(next_step(view(PLANNED, *BOUND, binding_overdue=True))).status == SCHEDULED


def test_a_pod_that_vanished_before_the_gang_was_scheduled_is_created_again() -> None:
    assert next_step(view(PLANNED, BOUND[1])) == (CreatePod(0),)


EXITED = {"name": "trainer", "state": {"terminated": {"exitCode": 3}}}
FAILED_POD = {"status": {"phase": "Failed", "containerStatuses": [EXITED]}}


def test_a_failure_of_the_training_costs_a_restart() -> None:
    gang = (pods("Running")[0], pods(**FAILED_POD)[1])
    action = written(next_step(view(RUNNING, *gang)))
    assert given_up((action,)) == ("PodFailed", 1)
    assert action.happening
    assert action.happening.message == "pod job-1-1: container trainer exited with 3"


def test_the_last_restart_used_up_is_the_end() -> None:
    used_up = RUNNING.model_copy(update={"restarts": 1})
    action = written(next_step(view(used_up, pods("Running")[0], pods(**FAILED_POD)[1])))
    assert find(action.status, names.FAILED) == "True"
    assert action.status.completion_time == MOMENT
    assert action.happening
    assert (action.happening.type, action.happening.reason) == ("Warning", "Failed")
    assert action.happening.message.endswith("; no restarts are left")


@pytest.mark.parametrize("reason", ["OutOfnvidia.com/gpu", "Evicted", "NodeShutdown"])
def test_a_refusal_or_eviction_by_the_kubelet_costs_no_restart(reason: str) -> None:
    refused = pods(status={"phase": "Failed", "reason": reason, "message": "no GPUs"})
    used_up = RUNNING.model_copy(update={"restarts": 1})
    assert given_up(next_step(view(used_up, *refused))) == ("PodRefused", 1)


def test_a_pod_that_was_deleted_and_failed_for_it_costs_no_restart() -> None:
    assert given_up(next_step(view(RUNNING, *pods(**FAILED_POD, **DELETED)))) == ("PodDeleted", 0)


def test_pods_that_a_broken_gpu_has_ended_cost_no_restart() -> None:
    used_up = RUNNING.model_copy(update={"restarts": 1})
    broken = GangFailure("GpuUnhealthy", "GPU 3: XID 79", cause=FailureCause.GPU)
    assert given_up(next_step(view(used_up, *pods(**FAILED_POD), setback=broken))) == ("GpuUnhealthy", 1)


def test_the_pause_doubles_with_every_setback_in_a_row_up_to_its_limit() -> None:
    pauses = []
    for setbacks in (0, 1, 2, 9, 10_000):
        before = PLANNED.model_copy(update={"setbacks": setbacks})
        status = written(next_step(view(before, setback=GangFailure("NodeLost", "n1")))).status
        assert status.retry_time
        pauses.append((status.retry_time - MOMENT) / timedelta(seconds=1))
        assert status.setbacks == setbacks + 1
    assert pauses == [1, 2, 4, 300, 300]


def test_however_much_is_said_of_a_refusal_the_status_can_be_written() -> None:
    for used_up in (0, 1):
        before = PLANNED.model_copy(update={"restarts": used_up})
        step = next_step(view(before, *pods(**FAILED_POD), setback=GangFailure("NodeOverallocated", "because " * 9999)))
        assert len(written(step).status.conditions[-1].message) < 1100


def test_a_gang_that_has_run_for_a_while_starts_its_pauses_anew() -> None:
    before = RUNNING.model_copy(update={"setbacks": 5})
    for ran, setbacks in ((299, 6), (300, 1)):
        gang = view(before, *pods("Running"), setback=GangFailure("NodeLost", "n1"))
        assert written(next_step(replace(gang, now=NOW + ran))).status.setbacks == setbacks


# --- cleaning up ---------------------------------------------------------------------------------------------------
def deletions(*names_: str, force: bool = False) -> Step:
    return tuple(DeletePod(name, f"pod-{name}", force) for name in names_)


WITHOUT_PLAN = written(next_step(view(RUNNING, setback=GangFailure("NodeLost", "n1")))).status


def test_pods_without_a_plan_are_deleted_whatever_they_do() -> None:
    assert next_step(view(WITHOUT_PLAN, *pods("Running"))) == deletions("job-1-0", "job-1-1")
    assert next_step(view(WITHOUT_PLAN, *pods("Failed"))) == deletions("job-1-0", "job-1-1")


def test_what_is_being_deleted_is_left_alone() -> None:
    assert next_step(view(WITHOUT_PLAN, *pods("Running", **DELETED))) == ()
    assert next_step(view(WITHOUT_PLAN, *pods("Running"), deleted={"pod-job-1-0": False})) == deletions("job-1-1")


@pytest.mark.parametrize(
    ("deletion", "seconds"),
    [("2311-03-16T19:04:05Z", 9_000_000_000), ("1759-03-26T00:00:00Z", 10_000_000_000), ("2026-01-02T03:05:05Z", 90)],
    ids=["for centuries", "for so many that they overflow", "for a moment more than its spec says"],
)
def test_a_pod_that_somebody_has_deleted_with_more_time_than_it_has_is_given_its_own(
    deletion: str, seconds: int
) -> None:
    """Who may delete his pods could keep GPUs from those whom they were taken back for."""
    meta = {"metadata": {"deletionTimestamp": deletion, "deletionGracePeriodSeconds": seconds}}
    given = pods("Running", **meta, spec={"terminationGracePeriodSeconds": 45})
    assert [(each.name, each.force, each.grace) for each in next_step(view(WITHOUT_PLAN, *given))] == [
        ("job-1-0", False, 45),
        ("job-1-1", False, 45),
    ]
    asked = {"pod-job-1-0": False, "pod-job-1-1": False}
    assert not any(isinstance(each, DeletePod) for each in next_step(view(WITHOUT_PLAN, *given, deleted=asked)))
    none = pods("Running", **DELETED, spec={"terminationGracePeriodSeconds": 0})
    assert next_step(view(WITHOUT_PLAN, *none)) == (), "nothing to shorten"
    [first, _] = next_step(view(WITHOUT_PLAN, *pods("Running", spec={"terminationGracePeriodSeconds": 0})))
    assert isinstance(first, DeletePod)
    assert first.grace == 1, "with none the API server would forget it before its kubelet has ended it"


def test_pods_of_a_node_that_is_gone_are_forced_out_for_nobody_would_confirm_their_end() -> None:
    gone = {"gone_nodes": frozenset({"n1"})}
    both = pods("Running", **DELETED)
    assert next_step(view(WITHOUT_PLAN, *both, **gone)) == deletions("job-1-0", force=True)
    assert next_step(view(WITHOUT_PLAN, *both, deleted={"pod-job-1-0": True}, **gone)) == ()
    asked = {"pod-job-1-0": False}  # politely, while the node was still there
    assert next_step(view(WITHOUT_PLAN, *both, deleted=asked, **gone)) == deletions("job-1-0", force=True)


def test_strays_go_before_anything_is_created() -> None:
    stray = gang_pod("job", 0, 0, "n7")
    assert next_step(view(PLANNED, stray)) == deletions("job-0-0")
    assert next_step(view(PLANNED, stray, deleted={"pod-job-0-0": False})) == ()


@pytest.mark.parametrize("rank", ["2", "-1", "x", "", "00"])
def test_a_pod_whose_rank_was_tampered_with_is_a_stray(rank: str) -> None:
    odd = gang_pod("job", 1, 1, labels={names.LABEL_RANK: rank})
    assert next_step(view(PLANNED, UNBOUND[0], odd)) == deletions("job-1-1")


def test_of_two_pods_that_claim_one_rank_one_is_a_stray() -> None:
    double = replace(UNBOUND[0], metadata=replace(UNBOUND[0].metadata, name="other", uid="other"))
    assert next_step(view(PLANNED, *UNBOUND, double)) == (DeletePod("other", "other"),)


def test_a_finished_job_keeps_the_pods_that_have_ended_for_their_logs() -> None:
    gang = (pods("Failed")[0], pods("Running")[1])
    assert next_step(view(RUNNING, *gang, finished=True)) == deletions("job-1-1")
    assert next_step(view(RUNNING, *pods("Succeeded"), finished=True)) == ()


# --- suspending ----------------------------------------------------------------------------------------------------
STAGES = [
    (JobStatus(), ()),
    (PLANNED, ()),
    (PLANNED, UNBOUND),
    (PLANNED, BOUND),
    (RUNNING, pods("Running")),
    (WITHOUT_PLAN, ()),
]


@pytest.mark.parametrize(("status", "gang"), STAGES)
def test_suspending_takes_the_plan_away_then_the_pods(status: JobStatus, gang: tuple[PodObject, ...]) -> None:
    action = written(next_step(view(status, *gang, suspended=True, plan=PLAN, pending=PENDING)))
    assert (action.status.plan, action.status.pending, action.status.retry_time) == (None, None, None)
    assert find(action.status, names.SUSPENDED) == "True"
    assert action.happening
    assert action.happening.reason == "Suspended"
    assert next_step(view(action.status, *gang, suspended=True)) == deletions(*(pod.metadata.name for pod in gang))
    assert next_step(view(action.status, suspended=True, plan=PLAN)) == ()


def test_a_resumed_job_is_planned_anew() -> None:
    suspended = transitions.suspended(RUNNING, META, NOW)
    again = plan_of(placement(nodes={"n3": 8}), epoch=2)
    action = written(next_step(view(suspended, plan=again)))
    assert (action.status.plan, action.status.last_epoch) == (again, 2)
    assert find(action.status, names.SUSPENDED) == "False"


def test_a_resumed_job_that_has_to_wait_is_not_suspended_any_more() -> None:
    suspended = transitions.suspended(RUNNING, META, NOW)
    status = written(next_step(view(suspended, pending=PENDING))).status
    assert find(status, names.SUSPENDED) == "False"
    assert find(status, names.PLANNED) == "False"


def test_a_finished_job_is_not_suspended() -> None:
    assert next_step(view(RUNNING, *pods("Succeeded"), finished=True, suspended=True)) == ()


def test_a_job_whose_earlier_pods_should_have_ended_says_which_and_what_to_do() -> None:
    """A kubelet that is gone confirms no deletion; in the meantime its pod may still compute."""
    leaving, backing_off = pods("Running", **DELETED), JobStatus(last_epoch=1)
    assert next_step(view(backing_off, *leaving, plan=PLAN)) == ()
    action = written(next_step(replace(view(backing_off, *leaving, plan=PLAN), now=NOW + HUNG_SECONDS + 1)))
    told = action.status.pending
    assert told
    assert (action.status.plan, told.reason) == (None, PendingReason.BACKING_OFF)
    assert told.blockers == tuple(f"pod job-1-{i} of its earlier gang on node n{i + 1}" for i in range(2))
    assert "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in told.message
    assert find(action.status, names.PLANNED) == "False"
    assert action.happening
    assert (action.happening.type, action.happening.reason) == ("Warning", names.REASON_HELD_UP)
    again = replace(view(action.status, *leaving, plan=PLAN), now=NOW + HUNG_SECONDS + 60)
    assert next_step(again) == (), "told once"
    assert written(next_step(view(action.status, plan=PLAN))).status.plan
