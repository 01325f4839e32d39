"""Rules for authors of jobs: they are there, they deny, the API server understands them, and they have their limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.doctor.world import healthy, in_force, only, pod, rules, wrong

from trimtab.doctor.checks import admission
from trimtab.doctor.findings import Reason, Severity
from trimtab.names import ACCELERATORS, API_VERSION, GPU_RESOURCES

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
POLICY = "ValidatingAdmissionPolicy"
EVERY = (*admission.POLICIES, admission.OF_AGENTS)


@pytest.mark.parametrize(
    ("file", "wanted"),
    [("admission.yaml", (*admission.POLICIES, admission.ADVICE)), ("agent.yaml", (admission.OF_AGENTS,))],
)
def test_what_is_looked_for_is_what_the_manifests_install(file: str, wanted: tuple[str, ...]) -> None:
    found = list(yaml.safe_load_all((MANIFESTS / file).read_text()))
    policies = [each["metadata"]["name"] for each in found if each["kind"] == POLICY]
    assert sorted(policies) == sorted(wanted)
    bindings = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"].endswith("PolicyBinding")}
    assert {spec["policyName"] for spec in bindings.values()} == set(wanted)
    denies = {spec["policyName"]: spec["validationActions"] == ["Deny"] for spec in bindings.values()}
    assert denies == {name: name != admission.ADVICE for name in wanted}


def test_the_limits_that_are_told_are_the_first_variables_of_the_manifest_and_no_parameters() -> None:
    found = list(yaml.safe_load_all((MANIFESTS / "admission.yaml").read_text()))
    (limited,) = (
        each["spec"] for each in found if each["kind"] == POLICY and each["metadata"]["name"] == admission.LIMITED
    )
    assert tuple(each["name"] for each in limited["variables"][: len(admission.LIMITS)]) == admission.LIMITS
    versions = {each["spec"].get("paramKind", {}).get("apiVersion", "") for each in found}
    assert versions == {"", API_VERSION}, "those of core types, after a reinstallation, are lost (kubernetes#130887)"


def _rules() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / "admission.yaml").read_text()))


def test_what_is_open_to_authors_are_the_first_variables_of_their_rule() -> None:
    found = {each["metadata"]["name"]: each["spec"] for each in _rules() if each["kind"] == POLICY}
    variables = found["trimtab-job-pods"]["variables"]
    assert tuple(each["name"] for each in variables[: len(admission.OPEN)]) == admission.OPEN


def test_what_is_a_gpu_is_the_same_for_the_kind_and_for_every_rule() -> None:
    told = {
        each["metadata"]["name"]: yaml.safe_load(variable["expression"])
        for each in _rules()
        for variable in each["spec"].get("variables", [])
        if variable["name"] == "accelerators"
    }
    assert told == {rule: list(ACCELERATORS) for rule in ("trimtab-job-authors", "trimtab-gpus-by-jobs")}
    for name in GPU_RESOURCES:
        assert name.startswith(ACCELERATORS)


def test_the_readme_names_no_accelerator_that_is_let_through() -> None:
    readme = (MANIFESTS.parent / "docs/tasks/tenants.md").read_text()
    told = re.search(r"no template has resources of that kind \((.*?), \.\.\.", readme, re.DOTALL)
    assert told
    names = re.findall(r"`([^`]+)\*`", told[1])
    assert len(names) >= 5
    assert [name for name in names if not name.startswith(ACCELERATORS)] == []


def test_none_at_all_is_a_warning_with_the_manifest_that_has_them() -> None:
    (finding,) = wrong(admission.policies, healthy(rules=(), in_force=(), pods=()))
    assert (finding.level, finding.reason) == (Severity.WARNING, Reason.ADMISSION_ABSENT)
    assert "authors of jobs and pods may set what only the controller may" in finding.message
    assert finding.fix.startswith("kubectl apply --server-side --force-conflicts -f manifests/admission.yaml ")
    assert len(finding.objects) == len(admission.POLICIES)


@pytest.mark.parametrize(("gone", "file"), [("trimtab-marks", "admission.yaml"), (admission.OF_AGENTS, "agent.yaml")])
def test_one_that_is_missing_or_denies_nothing_is_named(gone: str, file: str) -> None:
    kept = tuple(name for name in EVERY if name != gone)
    (missing,) = wrong(admission.policies, healthy(rules=tuple(map(rules, kept))))
    assert missing.reason is Reason.ADMISSION_ABSENT
    unbound = healthy(in_force=tuple(map(in_force, kept)))
    audited = healthy(in_force=(*map(in_force, kept), in_force(gone, "Audit")))
    for seen in (unbound, audited):
        (idle,) = wrong(admission.policies, seen)
        assert idle.reason is Reason.ADMISSION_NOT_IN_FORCE
        assert idle.objects == missing.objects == (f"ValidatingAdmissionPolicy/{gone}",)
        assert f"manifests/{file}" in idle.fix


def test_the_agents_rule_is_missed_only_where_there_are_agents() -> None:
    kept = tuple(map(rules, admission.POLICIES))
    finding = only(admission.policies, healthy(rules=kept, pods=(pod("controller"),)))
    assert (finding.level, finding.message) == (
        Severity.OK,
        f"{len(admission.POLICIES)} admission policies are in force",
    )


def test_what_the_api_server_says_against_an_expression_is_told() -> None:
    ours = rules(EVERY[0], "ERROR: <input>:1:8:\n undefined field 'spce'")
    odd = (ours, *map(rules, EVERY[1:]), rules("theirs", "of no concern"))
    (finding,) = wrong(admission.policies, healthy(rules=odd))
    assert finding.reason is Reason.ADMISSION_NOT_UNDERSTOOD
    where = f"{EVERY[0]}: spec.validations[0].expression"
    assert finding.message.startswith(f"{where}: ERROR: <input>:1:8: undefined field")


def test_limits_are_told() -> None:
    assert only(admission.limits, healthy()).message == "limits: maxGpusPerJob 1024, fakeAnnotations Deny"
    assert only(admission.limits, healthy(rules=())).message == "jobs are held against no limits"
