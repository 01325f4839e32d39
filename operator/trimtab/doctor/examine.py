"""All checks, in the order in which one would look: what everything else depends on comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from trimtab.doctor.checks import (
    admission,
    agents,
    clocks,
    jobs,
    kueue,
    leader,
    nodes,
    queues,
    rights,
    scheduler,
    server,
)
from trimtab.doctor.findings import Finding, Group, Level, Said, not_checked
from trimtab.doctor.seen import NotSeen, Seen, Unknown


class Check(Struct, frozen=True):
    """One thing that is looked at."""

    group: Group
    title: str
    look: Callable[[Seen], Iterator[Finding]]


REACHABLE = Check(Group.API_SERVER, "reachable", server.reachable)
CHECKS = (
    REACHABLE,
    Check(Group.API_SERVER, "version", server.version),
    Check(Group.API_SERVER, "CRDs", server.crds),
    Check(Group.RIGHTS, "yours", rights.own),
    Check(Group.RIGHTS, "service accounts", rights.parts),
    Check(Group.RIGHTS, "admission policies", admission.policies),
    Check(Group.RIGHTS, "limits of jobs", admission.limits),
    Check(Group.CONTROLLER, "leader", leader.leads),
    Check(Group.CONTROLLER, "epoch", leader.epoch),
    Check(Group.CONTROLLER, "pods", leader.pods),
    Check(Group.CONTROLLER, "version", leader.versions),
    Check(Group.CONTROLLER, "policy", leader.policy),
    Check(Group.CLOCKS, "this machine", clocks.here),
    Check(Group.CLOCKS, "controller", clocks.controller),
    Check(Group.CLOCKS, "nodes", clocks.nodes),
    Check(Group.NODES, "labels", nodes.labels),
    Check(Group.AGENTS, "reports", agents.reports),
    Check(Group.SCHEDULER, "extender", scheduler.extender),
    Check(Group.SCHEDULER, "second scheduler", scheduler.scheduler),
    Check(Group.SCHEDULER, "configuration", scheduler.configuration),
    Check(Group.SCHEDULER, "certificates", scheduler.certificates),
    Check(Group.JOBS, "queues", queues.contradictions),
    Check(Group.JOBS, "bounds of namespaces", queues.bounds),
    Check(Group.JOBS, "statuses", jobs.readable),
    Check(Group.JOBS, "stuck jobs", jobs.stuck),
    Check(Group.JOBS, "priorities", jobs.priorities),
    Check(Group.KUEUE, "version", kueue.version),
)


def examine(seen: Seen) -> tuple[Said, ...]:
    """What all checks say. One that needs what could not be seen says that it was not made."""
    checks = (REACHABLE,) if isinstance(seen.version, Unknown) else CHECKS
    return tuple(Said(check.group, check.title, _findings(check, seen)) for check in checks)


def _findings(check: Check, seen: Seen) -> tuple[Finding, ...]:
    found: list[Finding] = []
    try:
        for finding in check.look(seen):
            found.append(finding)
    except NotSeen as lacking:
        found.append(not_checked(lacking.unknown.why, lacking.unknown.fix))
    return tuple(found)


def worst(said: tuple[Said, ...]) -> Level:
    """The worst that was said of the installation: what was not checked says nothing of it."""
    levels = {finding.level for each in said for finding in each.findings}
    return next((level for level in (Level.ERROR, Level.WARNING) if level in levels), Level.OK)
