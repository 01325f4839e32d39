"""Rights that are missing are told with what they are missing for."""

from __future__ import annotations

import pytest
from tests.doctor.world import OWN, granted, healthy, only, part, pod, wrong

from trimtab.doctor import rbac
from trimtab.doctor.checks import rights
from trimtab.doctor.findings import Finding, Reason, Severity
from trimtab.doctor.inventory import InstalledPart, Seen, Unknown, known


def with_part(changed: InstalledPart, **changes: object) -> Seen:
    kept = [each for each in known(healthy().parts) if each.title != changed.title]
    return healthy(parts=(changed, *kept), **changes)


def test_a_right_that_the_controller_lacks_is_an_error_and_says_what_does_not_work() -> None:
    (finding,) = wrong(rights.parts, with_part(part("controller", rbac.OF_CONTROLLER, without="create pods/binding")))
    assert (finding.level, finding.reason) == (Severity.ERROR, Reason.RIGHT_MISSING)
    assert finding.message == "trimtab-controller may not create pods/binding: it cannot bind pods"
    assert finding.fix.startswith("kubectl apply --server-side --force-conflicts -f manifests/rbac.yaml")
    assert finding.objects == (f"ServiceAccount/{OWN}/trimtab-controller",)


def test_rights_of_one_need_are_told_together() -> None:
    lacking = tuple(
        grant if grant.right.resource != "nodes" else type(grant)(grant.need, grant.right, False)
        for grant in granted(rbac.OF_CONTROLLER)
    )
    (finding,) = wrong(rights.parts, with_part(part("controller", (), grants=lacking)))
    assert "get nodes, list nodes, watch nodes: it sees no nodes" in finding.message


def test_a_right_for_what_may_not_be_there_is_a_warning() -> None:
    kueue = part("controller", rbac.OF_CONTROLLER, without="patch workloads.kueue.x-k8s.io/status")
    (finding,) = wrong(rights.parts, with_part(kueue))
    assert finding.level is Severity.WARNING


@pytest.mark.parametrize(
    ("variable", "value", "unused", "used"),
    [
        ("TRIMTAB_BINDING__MODE", "Extender", "create pods/binding", "list podgroups.scheduling.k8s.io"),
        ("TRIMTAB_BINDING__MODE", "Direct", "list podgroups.scheduling.k8s.io", "create pods/binding"),
        ("TRIMTAB_BINDING__MODE", "Direct", "create resourceclaimtemplates.resource.k8s.io", "create pods/binding"),
        ("TRIMTAB_INTEROP__KUEUE", "Never", "list workloads.kueue.x-k8s.io", "list nodes"),
        ("TRIMTAB_REPORTS__ENABLED", "false", "create tokenreviews.authentication.k8s.io", "list nodes"),
    ],
)
def test_a_right_that_the_controller_as_it_is_set_does_not_use_is_not_missed(
    variable: str, value: str, unused: str, used: str
) -> None:
    pods = (pod("controller", containers=[{"env": [{"name": variable, "value": value}]}]),)
    lacking = {each: part("controller", rbac.OF_CONTROLLER, without=each) for each in (unused, used)}
    assert not wrong(rights.parts, with_part(lacking[unused], pods=pods))
    for seen in (with_part(lacking[used], pods=pods), with_part(lacking[unused])):
        (finding,) = wrong(rights.parts, seen)
        assert finding.reason is Reason.RIGHT_MISSING


@pytest.mark.parametrize("title", ["controller", "extender"])
@pytest.mark.parametrize(
    "lacking", ["create tokenreviews.authentication.k8s.io", "create subjectaccessreviews.authorization.k8s.io"]
)
def test_whoever_asks_scrapers_for_tokens_has_to_be_able_to_review_them(title: str, lacking: str) -> None:
    reviewer = part(title, rbac.OF_REVIEWER, without=lacking)

    def found(*variables: dict[str, str]) -> list[Finding]:
        others = [each for each in known(healthy().pods) if each.part != title]
        return wrong(rights.parts, with_part(reviewer, pods=(*others, pod(title, containers=[{"env": variables}]))))

    (finding,) = found({"name": "TRIMTAB_METRICS__AUTHENTICATION", "value": "Kubernetes"})
    assert (finding.level, finding.reason) == (Severity.ERROR, Reason.RIGHT_MISSING)
    assert lacking in finding.message
    assert "trimtab-metrics-reviewer" in finding.fix
    assert not found()
    assert not found({"name": "TRIMTAB_METRICS__AUTHENTICATION", "value": "None"})


def test_parts_that_are_not_installed_are_no_fault_but_a_controller_without_account_is() -> None:
    assert not wrong(rights.parts, with_part(part("agent", (), runs=False, exists=False, grants=())))
    (finding,) = wrong(rights.parts, with_part(part("controller", (), runs=False, exists=False, grants=())))
    assert finding.reason is Reason.ACCOUNT_MISSING


def test_what_may_not_be_asked_is_not_checked_part_by_part() -> None:
    refused = Unknown("this user may not", "the right to create subjectaccessreviews.authorization.k8s.io")
    found = list(rights.parts(with_part(part("controller", (), grants=refused))))
    assert [each.level for each in found] == [Severity.NOT_CHECKED, Severity.OK, Severity.OK]
    assert "subjectaccessreviews" in found[0].fix
    (hidden,) = (
        each
        for each in rights.parts(with_part(part("agent", (), runs=False, exists=refused, grants=())))
        if each.level is Severity.NOT_CHECKED
    )
    assert hidden.message.startswith("agent:")


def test_ones_own_rights_are_those_of_the_other_commands() -> None:
    assert only(rights.own, healthy()).level is Severity.OK
    (finding,) = wrong(rights.own, healthy(own=granted(rbac.OF_USER, without="list pods")))
    assert finding.message == "you may not list pods: `trimtab get`, `plan` and `explain` cannot show the cluster"


def test_without_a_right_to_the_lease_service_accounts_are_judged_all_the_same() -> None:
    gone = part("controller", (), runs=False, exists=False, grants=())
    (finding,) = wrong(rights.parts, with_part(gone, lease=Unknown("this user may not")))
    assert "it cannot run in the cluster" in finding.message
    (led,) = wrong(rights.parts, with_part(gone))
    assert "it acts as somebody else" in led.message
