"""Queues: what contradicts itself, another one, or what there is."""

from __future__ import annotations

from collections.abc import Iterator

from trimtab import names
from trimtab.doctor.findings import Finding, Reason, Severity, count, some, warning, well
from trimtab.doctor.gpu_nodes import gpu_nodes
from trimtab.doctor.inventory import Seen, known
from trimtab.observe import queues

COUNTED = f"count/{names.JOB_PLURAL}.{names.GROUP}"
"""Resource of a ResourceQuota by which Kubernetes bounds the number of jobs."""
FIXES = {
    Reason.QUEUE_MALFORMED: (Severity.ERROR, "kubectl edit ltq {name}; until then it admits nothing"),
    Reason.NAMESPACE_CLAIMED: (Severity.WARNING, "take the namespace out of one of them: kubectl edit ltq {name}"),
    Reason.GUARANTEE_TOO_LARGE: (
        Severity.WARNING,
        "lower spec.quotas[].guaranteed (kubectl edit ltq {name}), or add GPUs",
    ),
}


def contradictions(seen: Seen) -> Iterator[Finding]:
    """What the controller would complain of, too."""
    lines = queues.Queues(queues.facts(queue) for queue in known(seen.queues))
    found = lines.problems(facts for facts in gpu_nodes(seen).values() if facts)
    for problem in found:
        reason = Reason(problem.reason)
        level, fix = FIXES[reason]
        about = (f"{names.QUEUE_KIND}/{problem.name}",)
        yield Finding(level, f"queue {problem.name}: {problem.message}", reason, fix.format(name=problem.name), about)
    if not found:
        yield well(f"{count(len(lines.by_name), 'queue')} without a contradiction")


def bounds(seen: Seen) -> Iterator[Finding]:
    """Whether it is said how many jobs each namespace may have: maxPendingJobs of a queue counts those that wait."""
    spaces = {job.metadata.namespace for job in known(seen.jobs)}
    lacking = sorted(spaces - {each.metadata.namespace for each in known(seen.quotas) if COUNTED in each.spec.hard})
    if lacking:
        message = (
            f"nothing bounds how many jobs may be made in {count(len(lacking), 'namespace')} ({some(lacking)}):"
            " suspended and finished ones take the controller's memory, too"
        )
        command = f"kubectl -n {lacking[0]} create quota jobs --hard={COUNTED}=200"
        fix = f"{command}; manifests/samples/tenancy has one with what else a tenant's namespace needs"
        yield warning(Reason.JOBS_UNBOUNDED, message, fix, [f"Namespace/{name}" for name in lacking])
    elif spaces:
        yield well(f"{count(len(spaces), 'namespace')} with jobs, and a bound for their number")
    else:
        yield well("no namespace has jobs")
