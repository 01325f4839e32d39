"""All checks, in the order in which one would look: what everything else depends on comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from trimtab.doctor.checks import (
    admission,
    agents,
    clocks,
    imex,
    jobs,
    kueue,
    leader,
    nodes,
    queues,
    rights,
    scheduler,
    server,
)
from trimtab.doctor.findings import CheckGroup, CheckResult, Finding, Severity, not_checked
from trimtab.doctor.inventory import NotSeen, Seen, Unknown


class DoctorCheck(Struct, frozen=True):
    """One thing that is looked at."""

    group: CheckGroup
    title: str
    look: Callable[[Seen], Iterator[Finding]]


REACHABLE = DoctorCheck(CheckGroup.API_SERVER, "reachable", server.reachable)
CHECKS = (
    REACHABLE,
    DoctorCheck(CheckGroup.API_SERVER, "version", server.version),
    DoctorCheck(CheckGroup.API_SERVER, "CRDs", server.crds),
    DoctorCheck(CheckGroup.RIGHTS, "yours", rights.own),
    DoctorCheck(CheckGroup.RIGHTS, "service accounts", rights.parts),
    DoctorCheck(CheckGroup.RIGHTS, "admission policies", admission.policies),
    DoctorCheck(CheckGroup.RIGHTS, "limits of jobs", admission.limits),
    DoctorCheck(CheckGroup.CONTROLLER, "leader", leader.leads),
    DoctorCheck(CheckGroup.CONTROLLER, "epoch", leader.epoch),
    DoctorCheck(CheckGroup.CONTROLLER, "pods", leader.pods),
    DoctorCheck(CheckGroup.CONTROLLER, "version", leader.versions),
    DoctorCheck(CheckGroup.CONTROLLER, "policy", leader.policy),
    DoctorCheck(CheckGroup.CONTROLLER, "monitor", leader.standing),
    DoctorCheck(CheckGroup.CLOCKS, "this machine", clocks.here),
    DoctorCheck(CheckGroup.CLOCKS, "controller", clocks.controller),
    DoctorCheck(CheckGroup.CLOCKS, "nodes", clocks.nodes),
    DoctorCheck(CheckGroup.NODES, "labels", nodes.labels),
    DoctorCheck(CheckGroup.NODES, "NVLink between nodes", imex.sessions),
    DoctorCheck(CheckGroup.AGENTS, "reports", agents.reports),
    DoctorCheck(CheckGroup.SCHEDULER, "extender", scheduler.extender),
    DoctorCheck(CheckGroup.SCHEDULER, "second scheduler", scheduler.scheduler),
    DoctorCheck(CheckGroup.SCHEDULER, "configuration", scheduler.configuration),
    DoctorCheck(CheckGroup.SCHEDULER, "certificates", scheduler.certificates),
    DoctorCheck(CheckGroup.JOBS, "queues", queues.contradictions),
    DoctorCheck(CheckGroup.JOBS, "bounds of namespaces", queues.bounds),
    DoctorCheck(CheckGroup.JOBS, "statuses", jobs.readable),
    DoctorCheck(CheckGroup.JOBS, "stuck jobs", jobs.stuck),
    DoctorCheck(CheckGroup.JOBS, "pods without a job", jobs.orphans),
    DoctorCheck(CheckGroup.JOBS, "priorities", jobs.priorities),
    DoctorCheck(CheckGroup.KUEUE, "version", kueue.version),
)


def examine(seen: Seen) -> tuple[CheckResult, ...]:
    """What all checks say. One that needs what could not be seen says that it was not made."""
    checks = (REACHABLE,) if isinstance(seen.version, Unknown) else CHECKS
    return tuple(CheckResult(check.group, check.title, _findings(check, seen)) for check in checks)


def _findings(check: DoctorCheck, seen: Seen) -> tuple[Finding, ...]:
    found: list[Finding] = []
    try:
        for finding in check.look(seen):
            found.append(finding)
    except NotSeen as lacking:
        found.append(not_checked(lacking.unknown.why, lacking.unknown.fix))
    return tuple(found)


def worst(said: tuple[CheckResult, ...]) -> Severity:
    """The worst that was said of the installation: what was not checked says nothing of it."""
    levels = {finding.level for each in said for finding in each.findings}
    return next((level for level in (Severity.ERROR, Severity.WARNING) if level in levels), Severity.OK)
