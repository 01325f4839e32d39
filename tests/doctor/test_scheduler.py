"""Extender binding: who schedules, how that is set, who answers, and until when the certificates are good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.builders import NOW
from tests.doctor.world import gang_pod, healthy, lease, only, pod, scheduler_yaml, wrong

from trimtab import names
from trimtab.doctor.checks import scheduler
from trimtab.doctor.findings import Reason, Severity
from trimtab.doctor.inventory import Seen, Unknown
from trimtab.settings import BindingSettings
from trimtab_local.control_plane.pki import Authority

CHECKS = (scheduler.extender, scheduler.scheduler, scheduler.configuration, scheduler.certificates)


def direct(**changes: Any) -> Seen:
    """The same installation without anything of Extender binding."""
    return healthy(pods=(pod("controller"),), scheduler=None, scheduler_lease=None, **changes)


@pytest.mark.parametrize("look", CHECKS)
def test_where_the_controller_binds_pods_itself_nothing_is_missing(look: Any) -> None:
    assert only(look, direct()).message == scheduler.UNUSED


@pytest.mark.parametrize(
    "changes",
    [
        {"pods": (pod("controller", containers=[{"env": [{"name": "TRIMTAB_BINDING__MODE", "value": "Extender"}]}]),)},
        {"gang_pods": (gang_pod(),)},
        {"settings": healthy().settings.model_copy(update={"binding": BindingSettings(mode="Extender")})},
    ],
)
def test_settings_pods_and_gangs_speak_of_it(changes: dict[str, Any]) -> None:
    assert scheduler.used(healthy(**({"pods": (), "scheduler": None, "scheduler_lease": None} | changes)))


def test_pods_that_the_controller_binds_itself_wait_for_no_scheduler() -> None:
    """They have the same schedulerName: it keeps the cluster's own from them."""
    assert not scheduler.used(direct(gang_pods=(gang_pod(extender=False),)))


def test_an_extender_without_a_ready_pod_is_an_error() -> None:
    (finding,) = wrong(scheduler.extender, healthy(pods=(pod("extender", ready=False),)))
    assert (finding.level, finding.reason) == (Severity.ERROR, Reason.EXTENDER_ABSENT)
    assert only(scheduler.extender, healthy(pods=(pod("scheduler"),))).level is Severity.NOT_CHECKED


def test_what_kube_scheduler_says_of_a_call_that_failed_counts_more_than_readiness() -> None:
    said = (
        'Post "https://trimtab-extender.trimtab-system.svc/filter": dial tcp 10.0.0.7:443: connect: connection refused'
    )
    (finding,) = wrong(scheduler.extender, healthy(gang_pods=(gang_pod(scheduled=said),)))
    assert finding.reason is Reason.EXTENDER_UNANSWERED
    assert said in finding.message
    full = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    assert not wrong(scheduler.extender, healthy(gang_pods=(gang_pod(scheduled=full),)))


def test_pods_that_no_scheduler_has_looked_at_tell_that_there_is_none() -> None:
    (finding,) = wrong(scheduler.scheduler, healthy(gang_pods=(gang_pod(),)))
    assert finding.reason is Reason.SCHEDULER_ABSENT
    assert finding.objects == ("Pod/default/job-1-0",)
    for fine in (gang_pod(age=10), gang_pod(gated=True), gang_pod(node="n1"), gang_pod(scheduled="full")):
        assert not wrong(scheduler.scheduler, healthy(gang_pods=(fine,)))


@pytest.mark.parametrize("told", [lease("s_1", -60.0), lease("", -1.0), lease("s_1", renewTime=None)])
def test_a_lease_that_is_not_renewed_tells_the_same(told: Any) -> None:
    assert only(scheduler.scheduler, healthy(scheduler_lease=told)).reason is Reason.SCHEDULER_ABSENT


def test_without_a_lease_bound_pods_are_proof_enough() -> None:
    there = healthy(scheduler_lease=None, gang_pods=(gang_pod(node="n1"),))
    assert only(scheduler.scheduler, there).level is Severity.OK
    assert only(scheduler.scheduler, healthy(scheduler_lease=None)).level is Severity.NOT_CHECKED


def ignorable(told: dict[str, Any]) -> None:
    told["extenders"][0]["ignorable"] = True


def uncounted(told: dict[str, Any]) -> None:
    told["extenders"][0]["managedResources"][0]["ignoredByScheduler"] = True


def sampled(told: dict[str, Any]) -> None:
    told["profiles"][0].pop("percentageOfNodesToScore")


def killing(told: dict[str, Any]) -> None:
    told["profiles"][0].pop("plugins")


def unverified(told: dict[str, Any]) -> None:
    told["extenders"][0]["tlsConfig"].pop("caFile")


def renamed(told: dict[str, Any]) -> None:
    told["profiles"][0]["schedulerName"] = "other"


def without(told: dict[str, Any]) -> None:
    told["extenders"] = []


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (ignorable, "ignorable is True"),
        (uncounted, "managedResources"),
        (sampled, "percentageOfNodesToScore of profile trimtab is None"),
        (killing, "postFilter"),
        (unverified, "give the CA"),
        (renamed, "no profile trimtab"),
        (without, "no KubeSchedulerConfiguration"),
    ],
)
def test_each_setting_that_is_not_safe_is_named(edit: Callable[[dict[str, Any]], None], said: str) -> None:
    (finding,) = wrong(scheduler.configuration, healthy(scheduler={"scheduler.yaml": scheduler_yaml(edit)}))
    assert finding.reason is Reason.SCHEDULER_MISCONFIGURED
    assert said in finding.message


def test_profiles_beside_and_another_time_out_are_up_to_whoever_installs_it() -> None:
    def beside(told: dict[str, Any]) -> None:
        told["profiles"].append({"schedulerName": "default-scheduler"})
        told["extenders"][0]["httpTimeout"] = "2s"

    assert not wrong(scheduler.configuration, healthy(scheduler={"scheduler.yaml": scheduler_yaml(beside)}))
    assert only(scheduler.configuration, healthy(scheduler=None)).level is Severity.NOT_CHECKED


def test_certificates_by_what_is_left_of_them(tmp_path: Path) -> None:
    Authority("tests").issue(tmp_path / "server", "server", hosts=("127.0.0.1",))
    pem = (tmp_path / "server.crt").read_bytes()
    secret = names.EXTENDER_SECRETS[0]
    end = scheduler._end(pem)
    assert isinstance(end, float)
    days = 86_400.0
    for now, reason in (
        (end - 30 * days, None),
        (end - 3 * days, Reason.CERTIFICATE_ENDS),
        (end + 60, Reason.CERTIFICATE_ENDED),
    ):
        assert only(scheduler.certificates, healthy(certificates={secret: pem}, now=now)).reason is reason
    assert (
        only(scheduler.certificates, healthy(certificates={secret: b"no PEM"}, now=NOW)).level is Severity.NOT_CHECKED
    )
    assert only(scheduler.certificates, healthy(certificates={})).level is Severity.NOT_CHECKED


def test_certificates_are_not_read_unless_asked_for() -> None:
    seen = healthy(certificates=Unknown("not asked for", "--certificates"))
    with pytest.raises(Exception, match="not asked for"):
        list(scheduler.certificates(seen))
