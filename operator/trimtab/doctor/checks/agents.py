"""Agents: does every GPU node report, and lately? Where there are none, nothing is missing: they are optional."""

from __future__ import annotations

from collections.abc import Iterator

from trimtab import __version__, names
from trimtab.doctor.checks.leader import agents_versions, told_versions
from trimtab.doctor.findings import Finding, Reason, applied, count, listed, warning, well
from trimtab.doctor.gpu_nodes import gpu_nodes
from trimtab.doctor.inventory import Seen, known, posix
from trimtab.kube.objects import GpuNodeObject
from trimtab.observe import telemetry
from trimtab.ui.words import duration


def reports(seen: Seen) -> Iterator[Finding]:
    """Reports that are missing, old, or say that there is nothing to read."""
    found = {report.metadata.name: report for report in known(seen.reports)}
    pods = [] if not isinstance(seen.pods, tuple) else seen.of("agent")
    if not found and not pods:
        yield well("no agents are installed: GPUs are judged by what device plugins say")
        return
    with_gpus = {name for name, facts in gpu_nodes(seen).items() if facts}
    read = {name: telemetry.read_telemetry(report) for name, report in found.items() if name in with_gpus}
    namespace = pods[0].metadata.namespace if pods else seen.namespace
    part = f"{names.LABEL_PART}={names.AGENT_ACCOUNT}"
    logs = f"kubectl -n {namespace} get pods -o wide -l {part}, and the logs of those there"
    wrong = False
    if missing := sorted(with_gpus - found.keys()):
        wrong = True
        message = f"no agent reports of {count(len(missing), 'GPU node')}: {listed(missing)}"
        fix = f"{logs}; the DaemonSet's nodeAffinity and tolerations must let it go there"
        yield warning(Reason.AGENT_MISSING, message, fix, [f"Node/{name}" for name in missing])
    stale = {name: age for name in read if (age := _overdue(found[name], seen)) is not None}
    if stale:
        wrong = True
        message = f"agents of {count(len(stale), 'node')} are silent, for {duration(max(stale.values()))} at most: "
        yield warning(Reason.AGENT_STALE, message + listed(list(stale)), logs, _nodes(stale))
    if blind := {name: told.error for name, told in read.items() if told.error and name not in stale}:
        wrong = True
        first = sorted(blind)[0]
        message = f"agents cannot read the GPUs of {listed(list(blind))}: {first} says: {blind[first]}"
        yield warning(
            Reason.AGENT_BLIND, message, "see `nvidia-smi` on the node: driver and library must fit", _nodes(blind)
        )
    if other := agents_versions(seen) if pods else {}:
        wrong = True
        message = f"agents are not of this version ({__version__}): {told_versions(other)}"
        yield warning(Reason.VERSION_DIFFERS, message, f"{applied('agent.yaml')}, or `helm upgrade`")
    if not wrong:
        yield well(f"{count(len(read), 'GPU node')} reported lately")


def _overdue(report: GpuNodeObject, seen: Seen) -> float | None:
    """Age of a report that is too old; None for one that is not. A clock that is ahead makes no report old."""
    told = telemetry.read_telemetry(report)
    observed = posix(told.observed)
    if told.judged and told.judged.reason == names.REASON_STALE_READINGS:
        return seen.now - observed if observed else 0.0
    if observed is None:
        return None if told.error or not told.gpus else 0.0
    age = seen.now - observed
    return age if age > seen.settings.telemetry.stale_periods * told.period else None


def _nodes(about: dict[str, float] | dict[str, str]) -> list[str]:
    return [f"Node/{name}" for name in sorted(about)]
