"""Admission policies: is refused what authors may not set, and what are their jobs held against?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trimtab.doctor.findings import Finding, Reason, applied, some, warning, well
from trimtab.doctor.inventory import Seen, known

POLICIES = (
    "trimtab-job-limits",
    "trimtab-job-queues",
    "trimtab-job-authors",
    "trimtab-job-pods",
    "trimtab-job-deletion",
    "trimtab-finalizers",
    "trimtab-marks",
    "trimtab-gang-names",
    "trimtab-pods",
    "trimtab-gpus-by-jobs",
    "trimtab-controller",
    "trimtab-controller-pods",
    "trimtab-controller-templates",
    "trimtab-controller-elsewhere",
    "trimtab-controller-records",
    "trimtab-controller-other-kinds",
    "trimtab-other-job-limits",
    "trimtab-stand-ins",
    "trimtab-controller-stand-ins",
)
"""Those of manifests/admission.yaml that deny, which a test holds equal: the installed package has no manifests."""
ADVICE = "trimtab-job-advice"
"""The one that only warns, so that nothing is open without it."""
OF_AGENTS = "trimtab-agent-own-node"
"""That of manifests/agent.yaml."""
LIMITED = "trimtab-job-limits"
"""The one that has the limits, as variables."""
LIMITS = (
    "maxGpusPerJob",
    "maxPodsPerJob",
    "maxJobBytes",
    "maxMinRuntimeSeconds",
    "maxTerminationGraceSeconds",
    "openPriorityClasses",
    "fakeAnnotations",
    "resourceClaims",
)
OPEN = ("openResources", "openAnnotations")
"""Lists of trimtab-job-pods, its first variables: what else is open to authors who may not create pods."""
INSTALL = f"{applied('admission.yaml')} (of the chart: admission.enabled=true)"
INSTALL_OF_AGENTS = f"{applied('agent.yaml')} (the chart has it with the agents)"


def policies(seen: Seen) -> Iterator[Finding]:
    """Whether all are there, bound so that they deny, and understood by the API server."""
    sets: list[tuple[Sequence[str], str, str]] = [
        (POLICIES, "authors of jobs and pods may set what only the controller may", INSTALL)
    ]
    if isinstance(seen.pods, tuple) and seen.of("agent"):
        sets.append(((OF_AGENTS,), "an agent may report for other nodes", INSTALL_OF_AGENTS))
    wrong = [finding for wanted, without, fix in sets for finding in _not_in_force(seen, wanted, without, fix)]
    yield from wrong or [well(f"{sum(len(wanted) for wanted, _, _ in sets)} admission policies are in force")]
    yield from _misunderstood(seen)


def _not_in_force(seen: Seen, wanted: Sequence[str], without: str, fix: str) -> Iterator[Finding]:
    there = {each.metadata.name for each in known(seen.rules)}
    denying = {each.spec.policy_name for each in known(seen.in_force) if "Deny" in each.spec.validation_actions}
    lacking = [name for name in wanted if name not in there]
    idle = [name for name in wanted if name in there - denying]
    if lacking:
        missing = f"no admission policy {some(lacking, len(POLICIES))}: {without}"
        yield warning(Reason.ADMISSION_ABSENT, missing, fix, _objects(lacking))
    if idle:
        unbound = f"no binding with the action Deny for {some(idle, len(POLICIES))}: {without}"
        yield warning(Reason.ADMISSION_NOT_IN_FORCE, unbound, fix, _objects(idle))


def _misunderstood(seen: Seen) -> Iterator[Finding]:
    """What the API server itself says against an expression: a kind of another version, mostly."""
    for each in known(seen.rules):
        checked = each.status.type_checking
        if each.metadata.name in (*POLICIES, OF_AGENTS) and checked and checked.expression_warnings:
            first = checked.expression_warnings[0]
            message = f"{each.metadata.name}: {first.field_ref}: {' '.join(first.warning.split())}"
            fix = "install CRDs and admission policies of the same version (`trimtab doctor` names differences)"
            yield warning(Reason.ADMISSION_NOT_UNDERSTOOD, message, fix, _objects([each.metadata.name]))


def limits(seen: Seen) -> Iterator[Finding]:
    """What jobs are held against."""
    held = [each for each in known(seen.rules) if each.metadata.name == LIMITED]
    told = {each.name: each.expression.strip("'") for rules in held for each in rules.spec.variables}
    said = ", ".join(f"{name} {told[name]}" for name in LIMITS if told.get(name))
    yield well(f"limits: {said}" if said else "jobs are held against no limits")


def _objects(policies: Sequence[str]) -> list[str]:
    return [f"ValidatingAdmissionPolicy/{name}" for name in policies]
