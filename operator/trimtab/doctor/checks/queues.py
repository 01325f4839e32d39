"""Queues: what contradicts itself, another one, or what there is."""

from __future__ import annotations

from collections.abc import Iterator

from trimtab import names
from trimtab.doctor.findings import Finding, Level, Reason, count, well
from trimtab.doctor.seen import Seen, known
from trimtab.observe import nodes, queues

FIXES = {
    Reason.QUEUE_MALFORMED: (Level.ERROR, "kubectl edit ltq {name}; until then it admits nothing"),
    Reason.NAMESPACE_CLAIMED: (Level.WARNING, "take the namespace out of one of them: kubectl edit ltq {name}"),
    Reason.GUARANTEE_TOO_LARGE: (
        Level.WARNING,
        "lower spec.quotas[].guaranteed (kubectl edit ltq {name}), or add GPUs",
    ),
}


def contradictions(seen: Seen) -> Iterator[Finding]:
    """What the controller would complain of, too."""
    levels = seen.settings.topology.levels
    lines = queues.Queues(queues.facts(queue) for queue in known(seen.queues))
    gpu_nodes = [facts for node in known(seen.nodes) if (facts := nodes.facts(node, levels))]
    found = lines.problems(gpu_nodes)
    for problem in found:
        reason = Reason(problem.reason)
        level, fix = FIXES[reason]
        about = (f"{names.QUEUE_KIND}/{problem.name}",)
        yield Finding(level, f"queue {problem.name}: {problem.message}", reason, fix.format(name=problem.name), about)
    if not found:
        yield well(f"{count(len(lines.by_name), 'queue')} without a contradiction")
