"""Extender binding as a specification: pods wait behind a gate until all exist, kube-scheduler binds, we watch."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import NOW, gang_pod, placement, plan_of

from trimtab import names
from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.apply.actions import (
    BindPod,
    CreateClaimTemplate,
    CreateComputeDomain,
    CreatePod,
    CreatePodGroup,
    CreateService,
    DeleteClaimTemplate,
    DeleteComputeDomain,
    DeletePod,
    DeletePodGroup,
    ReleasePod,
    Step,
    WriteStatus,
)
from trimtab.apply.gang_failures import MESSAGE_LIMIT, GangFailure
from trimtab.apply.gates import released
from trimtab.apply.steps import JobContext, next_step
from trimtab.kube.objects import Meta, PodObject

META = Meta(name="job", namespace="default", uid="uid-job", generation=1)
PLANNED = transitions.planned(JobStatus(), META, plan_of(placement(nodes={"n1": 4, "n2": 4})), NOW)
SCHEDULED = transitions.scheduled(PLANNED, META, NOW, all_running=False)
GATE = {"schedulingGates": [{"name": names.SCHEDULING_GATE}]}
OTHER_GATE = {"schedulingGates": [{"name": "example.com/quota"}]}


def view(status: JobStatus, *pods: PodObject, **changes: Any) -> JobContext:
    defaults: dict[str, Any] = {"suspended": False, "finished": False, "max_restarts": 1, "backoff": (1.0, 300.0)}
    defaults |= {"has_service": bool(pods), "gated": True}
    return JobContext(META, status, now=NOW, pods=pods, **(defaults | changes))


def pod(
    rank: int, node: str = "", spec: dict[str, Any] | None = None, *, says: tuple[str, str] = ("", "")
) -> PodObject:
    metadata = {"annotations": {names.ANNOTATION_BINDING: "Extender"}}
    reason, message = says
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return gang_pod("job", 1, rank, metadata=metadata, spec={"nodeName": node, **(spec or {})},
                    status={"phase": "Pending", "conditions": [condition] if reason else []})  # fmt: skip


def group(epoch: int, **changes: Any) -> Meta:
    return Meta(name=f"job-{epoch}", uid=f"group-{epoch}", labels={names.LABEL_EPOCH: str(epoch)}, **changes)


GOING = "2026-01-02T03:04:05Z"
GATED = (pod(0, spec=GATE), pod(1, spec=GATE))
RELEASED = (pod(0), pod(1))
BOUND = (pod(0, "n1"), pod(1, "n2"))


def given_up(step: Step) -> WriteStatus:
    [action] = step
    assert isinstance(action, WriteStatus)
    assert action.status.plan is None
    assert action.happening
    return action


# --- gates ---------------------------------------------------------------------------------------------------------
def test_no_gate_is_taken_away_before_all_pods_exist() -> None:
    assert next_step(view(PLANNED)) == (CreateService(), CreatePod(0), CreatePod(1))
    assert next_step(view(PLANNED, GATED[1])) == (CreatePod(0),)


def test_the_gates_of_the_whole_gang_are_taken_away_at_once() -> None:
    assert next_step(view(PLANNED, *GATED)) == (
        ReleasePod("job-1-0", "pod-job-1-0"),
        ReleasePod("job-1-1", "pod-job-1-1"),
    )


def test_no_gate_is_taken_away_once_a_node_of_the_plan_takes_no_pods() -> None:
    step = next_step(view(PLANNED, *GATED, unavailable={"n2": "cordoned"}))
    assert given_up(step).happening == transitions.JobEvent("Warning", "NodeUnavailable", "node n2: cordoned", 1)


def test_a_release_that_was_interrupted_goes_on_with_the_rest() -> None:
    assert next_step(view(PLANNED, RELEASED[0], GATED[1])) == (ReleasePod("job-1-1", "pod-job-1-1"),)


def test_kube_scheduler_is_left_to_bind_them() -> None:
    assert next_step(view(PLANNED, *RELEASED)) == ()
    assert next_step(view(PLANNED, BOUND[0], RELEASED[1])) == ()


def test_a_gate_of_somebody_else_is_left_alone() -> None:
    assert next_step(view(PLANNED, pod(0, spec=OTHER_GATE), RELEASED[1])) == ()


def test_a_gang_that_is_bound_as_a_whole_is_scheduled() -> None:
    [action] = next_step(view(PLANNED, *BOUND))
    assert isinstance(action, WriteStatus)
    assert action.status == SCHEDULED


def test_whoever_starts_anew_sees_that_kube_scheduler_is_at_work() -> None:
    assert not released(GATED)
    assert released((GATED[0], RELEASED[1]))
    assert not released(BOUND)
    assert not released((gang_pod("job", 1, 0),)), "made for direct binding"


# --- what goes wrong -----------------------------------------------------------------------------------------------
ELSEWHERE = "131 node(s) didn't satisfy plugin(s) [NodeAffinity]."
TAINTED = f"0/132 nodes are available: 1 node(s) had untolerated taint(s), {ELSEWHERE}"
GROUP = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled"


def test_a_gang_that_is_not_bound_in_time_is_given_up_with_the_words_of_kube_scheduler() -> None:
    refused = pod(1, says=("Unschedulable", TAINTED))
    action = given_up(next_step(view(PLANNED, BOUND[0], refused, binding_overdue=True)))
    assert action.happening
    assert action.happening.reason == "BindTimeout"
    assert action.happening.message == (
        f"kube-scheduler has bound 1 of 2 pods in time; of pod job-1-1 for node n2: {TAINTED}"
    )
    assert action.refused == ("n2",)


def test_an_extender_that_did_not_answer_is_no_fault_of_the_node() -> None:
    failed = pod(1, says=("SchedulerError", "failed filter with extender at URL https://x: connection refused"))
    assert given_up(next_step(view(PLANNED, BOUND[0], failed, binding_overdue=True))).refused == ()


@pytest.mark.parametrize(
    ("reason", "text", "blamed"),
    [
        ("Unschedulable", TAINTED, True),
        ("Unschedulable", f"0/132 nodes are available: {ELSEWHERE[:-1]}, 1 node(s) had untolerated taint(s).", True),
        ("Unschedulable", "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity.", True),
        ("Unschedulable", f"0/132 nodes are available: 1 Insufficient nvidia.com/gpu, {ELSEWHERE}", True),
        ("Unschedulable", "0/132 nodes are available: pod has unbound immediate PersistentVolumeClaims.", False),
        ("Unschedulable", f"0/132 nodes are available: 1 n1, the place of gang a/b, is cordoned, {ELSEWHERE}", False),
        (
            "Unschedulable",
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity].",
            True,
        ),
        ("Unschedulable", GROUP, False),
        ("SchedulerError", TAINTED, False),
        ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates", False),
    ],
)
def test_a_node_is_blamed_only_for_what_is_said_of_it_alone(reason: str, text: str, blamed: bool) -> None:
    step = next_step(view(PLANNED, pod(0, says=(reason, text)), BOUND[1], binding_overdue=True))
    assert given_up(step).refused == (("n1",) if blamed else ())


def test_of_a_gang_that_is_refused_as_a_whole_the_pod_is_named_that_does_not_fit() -> None:
    gang = (pod(0, says=("Unschedulable", GROUP)), pod(1, says=("Unschedulable", TAINTED)))
    action = given_up(next_step(view(PLANNED, *gang, binding_overdue=True)))
    assert action.happening
    assert action.happening.message.endswith(f"of pod job-1-1 for node n2: {TAINTED}")
    assert action.refused == ("n2",)


def test_a_pod_that_nobody_has_looked_at_is_no_fault_of_the_node_either() -> None:
    action = given_up(next_step(view(PLANNED, BOUND[0], RELEASED[1], binding_overdue=True)))
    assert action.happening
    assert action.happening.message == "kube-scheduler has bound 1 of 2 pods in time"
    assert action.refused == ()


def test_a_kube_scheduler_that_says_nothing_may_not_be_there() -> None:
    spec = {"schedulerName": "trimtab"}
    action = given_up(next_step(view(PLANNED, pod(0, spec=spec), pod(1, spec=spec), binding_overdue=True)))
    assert action.happening
    assert action.happening.message.endswith("said nothing of any: does one run that has the profile trimtab?")


def test_what_was_said_of_a_gate_is_passed_on_only_while_a_gate_is_there() -> None:
    gated = ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
    for spec, ends in ((None, "in time"), (OTHER_GATE, gated[1])):
        action = given_up(next_step(view(PLANNED, pod(0, spec=spec, says=gated), BOUND[1], binding_overdue=True)))
        assert action.happening
        assert action.happening.message.endswith(ends)


def test_long_explanations_are_cut() -> None:
    refused = pod(0, says=("Unschedulable", "why not " * 1000))
    action = given_up(next_step(view(PLANNED, refused, RELEASED[1], binding_overdue=True)))
    assert action.happening
    assert len(action.happening.message) == MESSAGE_LIMIT


def test_a_gang_that_was_bound_at_the_last_moment_is_kept() -> None:
    [action] = next_step(view(PLANNED, *BOUND, binding_overdue=True))
    assert isinstance(action, WriteStatus)
    assert action.status == SCHEDULED


def test_a_pod_that_kube_scheduler_put_elsewhere_stops_the_gang() -> None:
    action = given_up(next_step(view(PLANNED, pod(0, "n9"), RELEASED[1])))
    assert action.happening
    assert action.happening.reason == "BoundElsewhere"


# --- the other mode ------------------------------------------------------------------------------------------------
DIRECT = (gang_pod("job", 1, 0), gang_pod("job", 1, 1))


@pytest.mark.parametrize(
    ("gang", "gated"), [(GATED, False), (RELEASED, False), (DIRECT, True), ((GATED[0], DIRECT[1]), True)]
)
def test_a_gang_that_waits_to_be_bound_in_the_other_way_is_planned_anew(
    gang: tuple[PodObject, ...], gated: bool
) -> None:
    action = given_up(next_step(view(PLANNED, *gang, gated=gated)))
    assert action.happening
    assert action.happening.reason == "BindingChanged"


@pytest.mark.parametrize(("gang", "gated"), [(BOUND, False), ((gang_pod("job", 1, 0, "n1"), BOUND[1]), True)])
def test_a_gang_that_is_bound_is_kept_in_either_mode(gang: tuple[PodObject, ...], gated: bool) -> None:
    assert next_step(view(SCHEDULED, *gang, gated=gated)) == ()


def test_direct_binding_does_not_look_at_gates() -> None:
    step = next_step(view(PLANNED, *DIRECT, gated=False))
    assert step == (BindPod("job-1-0", "pod-job-1-0", "n1"), BindPod("job-1-1", "pod-job-1-1", "n2"))


# --- PodGroups -----------------------------------------------------------------------------------------------------
def test_the_pod_group_comes_before_the_pods_that_name_it() -> None:
    assert next_step(view(PLANNED, pod_groups=())) == (CreateService(), CreatePodGroup())
    assert next_step(view(PLANNED, pod_groups=(group(1),))) == (CreateService(), CreatePod(0), CreatePod(1))


def test_a_gang_that_exists_needs_no_pod_group_any_more() -> None:
    assert next_step(view(PLANNED, *RELEASED, pod_groups=())) == ()


def test_the_pod_group_goes_after_the_pods() -> None:
    without_plan = given_up(next_step(view(PLANNED, *GATED, setback=GangFailure("NodeLost", "n1")))).status
    assert next_step(view(without_plan, *GATED, pod_groups=(group(1),))) == (
        DeletePod("job-1-0", "pod-job-1-0"),
        DeletePod("job-1-1", "pod-job-1-1"),
    )
    assert next_step(view(without_plan, pod_groups=(group(1),))) == (DeletePodGroup("job-1", "group-1"),)


def test_a_pod_group_that_goes_already_holds_up_no_plan() -> None:
    without_plan = given_up(next_step(view(PLANNED, setback=GangFailure("NodeLost", "n1")))).status
    again = plan_of(placement(nodes={"n3": 8}), epoch=2)
    going = group(1, deletion_timestamp=GOING)
    for changes in ({"pod_groups": (going,)}, {"pod_groups": (group(1),), "deleted": {"group-1": False}}):
        [action] = next_step(view(without_plan, plan=again, **changes))
        assert isinstance(action, WriteStatus)
        assert action.status.plan == again


def test_a_finished_job_keeps_its_pods_and_not_its_pod_group() -> None:
    ended = tuple(replace(each, status=replace(each.status, phase="Succeeded")) for each in BOUND)
    finished = transitions.completed(SCHEDULED, META, NOW)
    assert next_step(view(finished, *ended, finished=True, pod_groups=(group(1),))) == (
        DeletePodGroup("job-1", "group-1"),
    )


# --- claims --------------------------------------------------------------------------------------------------------
def test_the_claim_template_comes_before_the_pods_that_name_it() -> None:
    first = view(PLANNED, by_claim=True, claim_templates=())
    assert next_step(first) == (CreateService(), CreateClaimTemplate())
    own = view(PLANNED, by_claim=True, claim_templates=(group(1),))
    assert next_step(own) == (CreateService(), CreatePod(0), CreatePod(1))
    of_another = view(PLANNED, by_claim=True, claim_templates=(group(7, deletion_timestamp=GOING),), pod_groups=())
    assert next_step(of_another) == (CreateService(), CreatePodGroup(), CreateClaimTemplate())


def test_a_claim_template_that_was_taken_away_is_made_again_before_any_pod_goes_on() -> None:
    assert next_step(view(PLANNED, *GATED, by_claim=True, claim_templates=())) == (CreateClaimTemplate(),)
    [action] = next_step(view(PLANNED, *BOUND, by_claim=True, claim_templates=()))
    assert isinstance(action, WriteStatus), "each pod has its claim"


def test_nothing_is_made_of_a_gang_while_it_is_not_known_whether_its_template_is_there() -> None:
    assert next_step(view(PLANNED, by_claim=True)) == ()
    assert next_step(view(PLANNED, *RELEASED, by_claim=True)) == (), "it needs none any more"


def test_the_claim_template_goes_after_the_pods() -> None:
    without_plan = given_up(next_step(view(PLANNED, *GATED, setback=GangFailure("NodeLost", "n1")))).status
    assert not any(
        isinstance(a, DeleteClaimTemplate) for a in next_step(view(without_plan, *GATED, claim_templates=(group(1),)))
    )
    assert next_step(view(without_plan, claim_templates=(group(1),))) == (DeleteClaimTemplate("job-1", "group-1"),)
    assert next_step(view(without_plan, claim_templates=(group(1),), deleted={"group-1": False})) == ()


# --- ComputeDomains ------------------------------------------------------------------------------------------------
def test_the_compute_domain_comes_before_the_pods_that_name_it() -> None:
    first = view(PLANNED, linked=True, compute_domains=(), pod_groups=())
    assert next_step(first) == (CreateService(), CreatePodGroup(), CreateComputeDomain())
    of_another = view(PLANNED, linked=True, compute_domains=(group(7, deletion_timestamp=GOING),))
    assert next_step(of_another) == (CreateService(), CreateComputeDomain())
    own = view(PLANNED, linked=True, compute_domains=(group(1),))
    assert next_step(own) == (CreateService(), CreatePod(0), CreatePod(1))


def test_a_gang_has_none_where_it_is_not_linked_or_the_kind_is_not_known_or_a_pod_is_there_already() -> None:
    for changes in ({"compute_domains": ()}, {"linked": True}, {"linked": True, "compute_domains": None}):
        assert next_step(view(PLANNED, **changes)) == (CreateService(), CreatePod(0), CreatePod(1))
    half = view(PLANNED, GATED[0], linked=True, compute_domains=())
    assert next_step(half) == (CreatePod(1),), "all pods of a gang have a channel, or none"


def test_the_compute_domain_goes_after_the_pods() -> None:
    without_plan = given_up(next_step(view(PLANNED, *GATED, setback=GangFailure("NodeLost", "n1")))).status
    first = next_step(view(without_plan, *GATED, compute_domains=(group(1),)))
    assert {type(action) for action in first} == {DeletePod}
    assert next_step(view(without_plan, compute_domains=(group(1),))) == (DeleteComputeDomain("job-1", "group-1"),)


def leaving(*pods: PodObject) -> tuple[PodObject, ...]:
    """The same pods, deleted and not gone yet."""
    return tuple(replace(each, metadata=replace(each.metadata, deletion_timestamp=GOING)) for each in pods)


ALL = ("pod_groups", "claim_templates", "compute_domains")
DELETED = (
    DeletePodGroup("job-1", "group-1"),
    DeleteClaimTemplate("job-1", "group-1"),
    DeleteComputeDomain("job-1", "group-1"),
)


def test_what_the_pods_of_a_gang_need_stays_until_they_are_gone() -> None:
    without_plan = given_up(next_step(view(PLANNED, *BOUND, setback=GangFailure("NodeLost", "n1")))).status
    own = dict.fromkeys(ALL, (group(1),))
    assert next_step(view(without_plan, *leaving(*BOUND), **own)) == (), "their daemons serve them until they end"
    assert next_step(view(without_plan, leaving(BOUND[0])[0], **own)) == ()
    assert next_step(view(without_plan, **own)) == DELETED


def test_of_a_finished_job_it_goes_once_the_last_pod_has_ended() -> None:
    finished = transitions.completed(SCHEDULED, META, NOW)
    own = dict.fromkeys(ALL, (group(1),))
    ended = replace(BOUND[0], status=replace(BOUND[0].status, phase="Succeeded"))
    assert next_step(view(finished, ended, *leaving(BOUND[1]), finished=True, **own)) == ()
    assert next_step(view(finished, ended, finished=True, **own)) == DELETED


def test_of_a_job_that_is_being_deleted_it_goes_whatever_keeps_the_job() -> None:
    own = dict.fromkeys(ALL, (group(1),))
    assert next_step(view(SCHEDULED, *leaving(*BOUND), being_deleted=True, **own)) == ()
    assert next_step(view(SCHEDULED, being_deleted=True, **own)) == DELETED


def test_a_gang_that_follows_another_one_at_once_takes_its_leavings_away() -> None:
    plan = plan_of(placement(nodes={"n1": 4, "n2": 4}), epoch=2)
    second = transitions.planned(JobStatus(), META, plan, NOW)
    both = dict.fromkeys(ALL, (group(1), group(2)))
    assert next_step(view(second, *leaving(*BOUND), by_claim=True, **both)) == (), "pods of the first are there"
    step = next_step(view(second, by_claim=True, linked=True, **both))
    assert step == (*DELETED, CreateService(), CreatePod(0), CreatePod(1))


def test_what_is_left_of_a_gang_does_not_hold_up_the_next_plan() -> None:
    without_plan = given_up(next_step(view(PLANNED, setback=GangFailure("NodeLost", "n1")))).status
    again = plan_of(placement(nodes={"n3": 8}), epoch=2)
    *deletions, written = next_step(view(without_plan, plan=again, **dict.fromkeys(ALL, (group(1),))))
    assert tuple(deletions) == DELETED
    assert isinstance(written, WriteStatus)
    assert written.status.plan == again
