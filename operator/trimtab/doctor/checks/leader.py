"""The controller: does one lead, and only one; which version is it, is it ready, and does it take its ConfigMap?"""

from __future__ import annotations

from collections.abc import Iterator

from trimtab import __version__
from trimtab.decide import choice
from trimtab.decide.standing import read_standing
from trimtab.doctor.findings import Finding, Reason, error, listed, not_checked, some, warning, well
from trimtab.doctor.inventory import Lease, Seen, known, posix
from trimtab.errors import PolicyError
from trimtab.observe import jobs
from trimtab.ui.words import duration
from trimtab_policy.scheduling.choice import Choice

FEW_CHANGES, QUICK_LEASES = 6, 2.0
"""So many changes of leadership, each after so few lifetimes of the Lease on average, are no restarts any more."""


def leads(seen: Seen) -> Iterator[Finding]:
    """Whether the Lease is renewed. Two looks decide where they can: the times in it are those of another clock."""
    where = f"Lease {seen.settings.leadership.name} in {seen.namespace}"
    looks = known(seen.lease)
    start = (
        f"start the controller (`kubectl -n {seen.namespace} get pods`, or `trimtab controller`), "
        "or give its namespace with -n"
    )
    if not looks or not looks[-1].holder:
        gone = "there is none" if not looks else "its last leader gave it back"
        yield error(Reason.NO_LEADER, f"nobody leads ({where}: {gone}): no job is planned", start)
        return
    last, age = looks[-1], looks[-1].age(seen.now)
    renewed = len(looks) > 1
    if not renewed and (age is None or age > last.seconds):
        since = "ever" if age is None else f"for {duration(age)}, and it is good for {duration(last.seconds)}"
        yield error(Reason.NO_LEADER, f"nobody leads: {last.holder} has not renewed {where} {since}", start)
        return
    others = sorted({look.holder for look in looks if look.holder} - {last.holder})
    if others or _flaps(last, seen.now):
        message = (
            f"leadership goes to and fro ({where}, {last.spec.lease_transitions} changes so far): now {last.holder}"
        )
        message += f", before {some(others)}" if others else ""
        fix = "run one controller, or find what keeps them from renewing: their logs say `lease neither taken`"
        yield error(Reason.LEADERS_ALTERNATE, message, fix)
        return
    yield from _holder(seen, last)


def _holder(seen: Seen, last: Lease) -> Iterator[Finding]:
    pods = [] if not isinstance(seen.pods, tuple) else seen.of("controller")
    host = last.holder.rpartition("_")[0] or last.holder
    if pods and host not in {pod.metadata.name for pod in pods} and seen.settings.leadership.identity is None:
        here = some([pod.metadata.name for pod in pods])
        message = f"{last.holder} leads, which is none of the controller's pods here ({here})"
        fix = "stop the other one, if nobody meant it: they wait for each other, and only one of them acts"
        yield warning(Reason.LEADER_ELSEWHERE, message, fix)
        return
    yield well(f"{last.holder} leads (epoch {last.spec.lease_transitions or 0})")


def _flaps(lease: Lease, now: float) -> bool:
    changes, made = lease.spec.lease_transitions or 0, posix(lease.metadata.creation_timestamp)
    return changes >= FEW_CHANGES and made is not None and (now - made) / changes < QUICK_LEASES * lease.seconds


def epoch(seen: Seen) -> Iterator[Finding]:
    """Whether the leader's epoch is above that of all statuses: lower ones are refused, whoever writes them."""
    looks, all_jobs = known(seen.lease), known(seen.jobs)
    ours = (looks[-1].spec.lease_transitions or 0) if looks else 0
    told = {job.metadata.key: jobs.facts(job).status.leader_epoch or 0 for job in all_jobs}
    ahead = sorted(key for key, theirs in told.items() if theirs > ours)
    if not ahead:
        yield well(f"epoch {ours} is no lower than that of any status")
        return
    most, lease = max(told.values()), seen.settings.leadership.name
    why = f"the Lease has {ours}: it was deleted, or comes from a backup" if looks else "the Lease is gone"
    message = (
        f"statuses of {some(ahead)} were written under epoch {most}, and {why}. What is written with less is refused"
    )
    patch = f"""'{{"spec":{{"leaseTransitions":{most}}}}}'"""
    fix = f"kubectl -n {seen.namespace} patch lease {lease} --type=merge -p {patch}"
    fix += (
        "; the controller then leads anew, with one more" if looks else " (start the controller first, which makes it)"
    )
    yield error(Reason.EPOCH_BEHIND, message, fix, [f"LLMTrainingJob/{key}" for key in ahead])


def pods(seen: Seen) -> Iterator[Finding]:
    """Whether the pods of Trimtab are ready, and of this version."""
    found = [pod for pod in known(seen.pods) if pod.part in ("controller", "extender", "agent")]
    broken = [pod for pod in found if not pod.ready and pod.status.phase != "Succeeded"]
    if broken:
        about = sorted(pod.metadata.name for pod in broken)
        namespace = broken[0].metadata.namespace
        fix = f"kubectl -n {namespace} describe pod {about[0]}; kubectl -n {namespace} logs {about[0]}"
        message = f"{len(broken)} of {len(found)} pods of Trimtab are not ready: {some(about)}"
        yield error(Reason.NOT_READY, message, fix, [f"Pod/{pod.metadata.key}" for pod in broken])
    elif found:
        yield well(f"all {len(found)} pods of Trimtab are ready")
    else:
        yield well("no part of Trimtab runs as a pod of this cluster")


def versions(seen: Seen) -> Iterator[Finding]:
    """Whether the controller is of the version of this command."""
    told = sorted({pod.version for pod in seen.of("controller") if pod.version})
    if not told and (deployment := known(seen.deployment)):
        told = [deployment.version] if deployment.version else []
    if not told:
        yield not_checked(
            "the controller is no pod of this cluster", "its metric trimtab_build_info, which names its version"
        )
        return
    other = [version for version in told if version != __version__]
    if other:
        message = f"the controller is {some(other)}, and this command {__version__}: they may not understand each other"
        yield warning(Reason.VERSION_DIFFERS, message, f"pip install trimtab=={other[0]}, or upgrade the installation")
        return
    yield well(f"the controller is {__version__}, as this command is")


def policy(seen: Seen) -> Iterator[Finding]:
    """Whether the ConfigMap that chooses policies is understood: one that is not is ignored as a whole."""
    data, own = known(seen.policy), seen.settings.policy
    name = own.config_map.name
    if data is None:
        yield well(f"no ConfigMap {name}: the controller decides as it was started")
        return
    try:
        chosen = choice.read_choice(data, Choice(own.name, own.fallback, own.shadow, own.deadline_seconds))
    except PolicyError as refused:
        namespace = own.config_map.namespace
        message = f"ConfigMap {name} is not understood, and none of it is in force: {refused}"
        fix = f"kubectl -n {namespace} edit configmap {name}; `trimtab policies` lists all policies"
        yield error(Reason.POLICY_REFUSED, message, fix, (f"ConfigMap/{namespace}/{name}",))
        return
    yield well(f"ConfigMap {name}: {chosen.describe()}")


def standing(seen: Seen) -> Iterator[Finding]:
    """Whether the policy was found to be worse than its fallback on this cluster."""
    data, own = known(seen.standing), seen.settings.monitor
    if not own.period_seconds:
        yield well("policies are not compared with their fallback: monitor.period_seconds is 0")
        return
    if data is None:
        yield well("the policy was not compared with its fallback yet: there were too few jobs, or it is off")
        return
    about = (f"ConfigMap/{own.namespace}/{own.config_map}",)
    forget = f"kubectl -n {own.namespace} delete configmap {own.config_map}"
    try:
        found = read_standing(data)
    except PolicyError as refused:
        message = f"ConfigMap {own.config_map} is not understood, and nothing is kept of comparisons: {refused}"
        yield error(Reason.STANDING_REFUSED, message, forget, about)
        return
    told = found.latest.describe() if found.latest else "never compared"
    ago = duration(max(0.0, seen.now - found.compared))
    if found.fallen:
        message = f"{found.fallback} decides in place of {found.policy}, which did worse here; {ago} ago: {told}"
        fix = "choose another policy (ConfigMap trimtab-policy), or wait: it comes back once it does as well again"
        yield warning(Reason.POLICY_REPLACED, message, fix, about)
        return
    yield well(f"{found.policy} is no worse here than {found.fallback}; {ago} ago: {told}")


def agents_versions(seen: Seen) -> dict[str, list[str]]:
    """Version -> nodes whose agent has another one than this command."""
    found: dict[str, list[str]] = {}
    for pod in seen.of("agent"):
        if pod.version and pod.version != __version__:
            found.setdefault(pod.version, []).append(pod.spec.node_name)
    return found


def told_versions(found: dict[str, list[str]]) -> str:
    """`0.0.9 on gpu-[0-3]`."""
    return "; ".join(f"{version} on {listed(nodes)}" for version, nodes in sorted(found.items()))
