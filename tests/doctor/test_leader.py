"""Who leads, under which epoch, in which version; and the ConfigMap that chooses policies."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import NOW, job_object
from tests.doctor.world import OWN, deployment, healthy, lease, only, pod, wrong

from trimtab.api.status import JobStatus
from trimtab.decide.standing import written
from trimtab.doctor.checks import leader
from trimtab.doctor.findings import Reason, Severity
from trimtab.doctor.inventory import Seen, Unknown
from trimtab_policy.sim.monitor import Comparison, Figures, Standing

HOLDER = "trimtab-controller-0_ab12"


def test_a_lease_that_was_seen_renewed_is_fresh_whatever_its_times_say() -> None:
    looks = (lease(HOLDER, -9000.0), lease(HOLDER, -8998.0, version=2))
    assert only(leader.leads, healthy(lease=looks)).level is Severity.OK


@pytest.mark.parametrize(("renewed", "level"), [(-14.0, Severity.OK), (-16.0, Severity.ERROR)])
def test_one_that_was_not_is_fresh_for_as_long_as_it_says_itself(renewed: float, level: Severity) -> None:
    finding = only(leader.leads, healthy(lease=(lease(HOLDER, renewed),)))
    assert finding.level is level
    assert (finding.reason is Reason.NO_LEADER) == (level is Severity.ERROR)


@pytest.mark.parametrize(
    ("looks", "told"),
    [((), "there is none"), ((lease(""),), "its last leader gave it back"), ((lease(HOLDER, renewTime=None),), "ever")],
)
def test_nobody_leads(looks: tuple[Any, ...], told: str) -> None:
    (finding,) = wrong(leader.leads, healthy(lease=looks))
    assert finding.reason is Reason.NO_LEADER
    assert told in finding.message
    assert "start the controller" in finding.fix


def test_two_that_take_turns_are_seen_at_once_or_by_how_often_it_changed() -> None:
    (at_once,) = wrong(leader.leads, healthy(lease=(lease("a_1"), lease("b_2", version=2))))
    assert at_once.reason is Reason.LEADERS_ALTERNATE
    assert "now b_2, before a_1" in at_once.message
    often = lease(HOLDER, leaseTransitions=40, made=-40 * 20.0)
    (by_rate,) = wrong(leader.leads, healthy(lease=(often,)))
    assert by_rate.reason is Reason.LEADERS_ALTERNATE
    seldom = lease(HOLDER, leaseTransitions=40, made=-40 * 60.0)
    assert not wrong(leader.leads, healthy(lease=(seldom,)))


def test_a_leader_that_is_none_of_the_pods_is_told_of() -> None:
    (finding,) = wrong(leader.leads, healthy(lease=(lease("laptop_1"),)))
    assert finding.reason is Reason.LEADER_ELSEWHERE
    assert not wrong(leader.leads, healthy(lease=(lease("laptop_1"),), pods=()))


def behind(lease_there: bool) -> Seen:
    job = job_object("old", status=JobStatus(leader_epoch=9))
    return healthy(jobs=(job,), lease=(lease(HOLDER),) if lease_there else ())


def test_an_epoch_below_that_of_a_status_is_an_error_with_the_command_that_mends_it() -> None:
    (finding,) = wrong(leader.epoch, behind(True))
    assert finding.reason is Reason.EPOCH_BEHIND
    assert finding.objects == ("LLMTrainingJob/default/old",)
    assert """patch lease trimtab-controller --type=merge -p '{"spec":{"leaseTransitions":9}}'""" in finding.fix
    (gone,) = wrong(leader.epoch, behind(False))
    assert "the Lease is gone" in gone.message


def test_pods_that_are_not_ready_are_named() -> None:
    (finding,) = wrong(leader.pods, healthy(pods=(pod("controller"), pod("agent", "trimtab-agent-x", ready=False))))
    assert finding.reason is Reason.NOT_READY
    assert finding.message.startswith("1 of 2 pods of Trimtab are not ready: trimtab-agent-x")
    assert finding.objects == (f"Pod/{OWN}/trimtab-agent-x",)


def test_a_controller_of_another_version_is_a_warning_and_none_to_be_seen_is_not_checked() -> None:
    (finding,) = wrong(leader.versions, healthy(pods=(pod("controller", version="v0.0.9"),)))
    assert finding.reason is Reason.VERSION_DIFFERS
    assert "0.0.9" in finding.message
    assert only(leader.versions, healthy(pods=(), deployment=None)).level is Severity.NOT_CHECKED


@pytest.mark.parametrize("tag", ["", "latest", "local"])
def test_where_the_image_tells_no_version_the_deployment_does(tag: str) -> None:
    pods = (pod("controller", version=tag),)
    (finding,) = wrong(leader.versions, healthy(pods=pods, deployment=deployment("0.2.0")))
    assert finding.message.startswith("the controller is 0.2.0, and this command")
    assert only(leader.versions, healthy(pods=pods)).level is Severity.OK
    assert only(leader.versions, healthy(pods=(), deployment=deployment("0.2.0"))).reason is Reason.VERSION_DIFFERS
    for unlabelled in (None, deployment("")):
        assert only(leader.versions, healthy(pods=pods, deployment=unlabelled)).level is Severity.NOT_CHECKED


def test_the_version_is_that_of_the_label_or_else_the_tag() -> None:
    tagged = pod("controller", version="1.2.3")
    assert tagged.version == "1.2.3"
    labels = {**tagged.metadata.labels, "app.kubernetes.io/version": "4.5.6"}
    assert replace(tagged, metadata=replace(tagged.metadata, labels=labels)).version == "4.5.6"
    assert pod("controller", version="1.2.3@sha256:00").version == "1.2.3"
    assert pod("controller", containers=[{"image": "registry.test:5000/trimtab"}]).version == ""


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"policy": "no_such_policy"}, "no_such_policy"),
        ({"polcy": "fcfs"}, "unknown key 'polcy'"),
        ({"fallback": "q_learning"}, "learned"),
        ({"deadlineSeconds": "soon"}, "deadlineSeconds"),
    ],
)
def test_a_config_map_that_is_not_understood_is_an_error_that_names_the_key(data: dict[str, str], told: str) -> None:
    (finding,) = wrong(leader.policy, healthy(policy=data))
    assert (finding.level, finding.reason) == (Severity.ERROR, Reason.POLICY_REFUSED)
    assert told in finding.message
    assert finding.fix.startswith("kubectl -n trimtab-system edit configmap trimtab-policy")


def test_no_config_map_is_well() -> None:
    assert only(leader.policy, healthy(policy=None)).level is Severity.OK


def test_without_a_right_to_pods_the_leader_is_told_all_the_same() -> None:
    assert only(leader.leads, healthy(pods=Unknown("this user may not"))).level is Severity.OK


def compared(ratio: float, *, fallen: bool) -> Standing:
    figures = Figures(100.0, 200.0, 3, 0)
    found = Comparison("rudder", "best_fit", 90, 90, ratio, ratio, ratio, ratio, figures, figures)
    return Standing("rudder", "best_fit", fallen=fallen, compared=NOW - 3600, latest=found)


def test_a_policy_that_was_replaced_is_a_warning_with_how_much_worse_it_did() -> None:
    (finding,) = wrong(leader.standing, healthy(standing=written(compared(1.31, fallen=True))))
    assert (finding.level, finding.reason) == (Severity.WARNING, Reason.POLICY_REPLACED)
    assert all(each in finding.message for each in ("best_fit decides in place of rudder", "1.31"))


def test_a_policy_that_was_found_good_enough_or_was_not_compared_is_well() -> None:
    assert "0.80" in only(leader.standing, healthy(standing=written(compared(0.8, fallen=False)))).message
    assert only(leader.standing, healthy(standing=None)).level is Severity.OK


def test_a_verdict_that_is_not_understood_is_an_error_with_the_command_that_forgets_it() -> None:
    (finding,) = wrong(leader.standing, healthy(standing={"standing.json": "nonsense"}))
    assert (finding.level, finding.reason) == (Severity.ERROR, Reason.STANDING_REFUSED)
    assert finding.fix == "kubectl -n trimtab-system delete configmap trimtab-monitor"
