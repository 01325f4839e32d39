"""Jobs: those that wait for what never comes, stop for too long, or have a status that nobody understands any more."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator
from datetime import datetime

from pydantic import ValidationError

from trimtab import __version__, names
from trimtab.api.status import JobStatus
from trimtab.doctor.findings import Finding, Reason, count, error, some, warning, well
from trimtab.doctor.inventory import Pod, Seen, known
from trimtab.kube.objects import JobObject
from trimtab.observe import jobs
from trimtab.observe.jobs import JobFacts
from trimtab.observe.pods import TERMINAL
from trimtab.ui.words import duration
from trimtab_policy.types import NEVER_STARTS

UNSEEN_SECONDS = 60.0
"""The controller sees a new job within a second; a busy one within some."""
TOLD_ANEW = {"pending", "shadow", "trainerStatus"}
"""Fields of a status that may be taken away: every round says them again, or every report."""
OVERDUE_SECONDS = 60.0
"""Pods get their grace period after the deadline of a stop."""


def readable(seen: Seen) -> Iterator[Finding]:
    """Whether spec and status of all jobs can be read, whichever version wrote them."""
    found = _facts(seen)
    wrong = [(job, facts) for job, facts in zip(known(seen.jobs), found, strict=True) if facts.unreadable]
    for job, facts in wrong:
        message = f"job {facts.meta.key}: {facts.error}: another version wrote it, and the controller leaves it alone"
        yield error(Reason.JOB_UNREADABLE, message, _readable_again(job), (_object(facts),))
    odd = [facts for facts in found if facts.error and not facts.unreadable and not facts.finished]
    for facts in odd:
        message = f"job {facts.meta.key} is not understood by Trimtab {__version__}: {facts.error}"
        fix = f"kubectl -n {facts.meta.namespace} edit ltj {facts.meta.name}"
        yield warning(Reason.JOB_UNREADABLE, message, fix, (_object(facts),))
    if not wrong and not odd:
        yield well(f"{count(len(found), 'job')} understood, spec and status")


def _readable_again(job: JobObject) -> str:
    """What to do about a status that cannot be read: after a rollback, words that only the newer version knows."""
    where = f"kubectl -n {job.metadata.namespace}"
    try:
        JobStatus.model_validate_json(bytes(job.status))
    except ValidationError as refused:
        fields = {str(item["loc"][0]) for item in refused.errors() if item["loc"]}
        if fields and fields <= TOLD_ANEW:
            patch = json.dumps({"status": dict.fromkeys(sorted(fields))})
            return f"{where} patch ltj {job.metadata.name} --subresource=status --type=merge -p '{patch}'"
    return f"use the version that wrote it; or, once it runs no more: {where} delete ltj {job.metadata.name}"


def stuck(seen: Seen) -> Iterator[Finding]:
    """Jobs that will not get on by themselves."""
    alive = [facts for facts in _facts(seen) if facts.ours and not facts.finished and not facts.error]
    wrong = False
    unseen = [f for f in alive if not f.status.conditions and seen.now - f.created > UNSEEN_SECONDS]
    if unseen:
        wrong = True
        about = sorted(facts.meta.key for facts in unseen)
        message = f"no controller has looked at {some(about)}"
        yield error(
            Reason.JOB_UNSEEN, message, "see what is said of the controller above", [_object(f) for f in unseen]
        )
    for facts in sorted(alive, key=lambda facts: facts.meta.key):
        for finding in (*_forever(facts), *_overdue(facts, seen.now)):
            wrong = True
            yield finding
    if not wrong:
        yield well(f"{count(len(alive), 'job')} not ended, none stuck" if alive else "no job waits or runs")


def _forever(facts: JobFacts) -> Iterator[Finding]:
    pending = facts.status.pending
    if pending is None or facts.status.plan is not None or facts.suspended or pending.reason not in NEVER_STARTS:
        return
    message = f"job {facts.meta.key} can never start as it is ({pending.reason}): {pending.message}"
    fix = "; or ".join(pending.alternatives) or f"trimtab explain -n {facts.meta.namespace} {facts.meta.name}"
    yield warning(Reason.JOB_NEVER_STARTS, message, fix, (_object(facts),))


def _overdue(facts: JobFacts, now: float) -> Iterator[Finding]:
    stop = facts.status.stop
    late = now - stop.deadline_time.timestamp() if stop else 0.0
    if stop is None or late <= OVERDUE_SECONDS:
        return
    message = f"job {facts.meta.key} should have stopped {duration(late)} ago ({stop.cause}), and still holds its GPUs"
    fix = (
        f"kubectl -n {facts.meta.namespace} get pods -o wide -l {names.LABEL_JOB}={facts.meta.name}: "
        "a pod that does not end is on a node whose kubelet is gone; delete that Node if it will not return"
    )
    yield warning(Reason.STOP_OVERDUE, message, fix, (_object(facts),))


def orphans(seen: Seen) -> Iterator[Finding]:
    """Pods of gangs that no job owns: whoever deletes a job with `--cascade=orphan` leaves them, and their GPUs with
    them. The controller takes away only pods that name a job which is gone, for these may be anybody's by now."""
    there = {job.metadata.uid for job in known(seen.jobs)}
    left = [pod for pod in known(seen.gang_pods) if _is_left(pod, there, seen.now)]
    by_job: dict[str, list[Pod]] = defaultdict(list)
    for pod in left:
        by_job[f"{pod.metadata.namespace}/{pod.metadata.labels.get(names.LABEL_JOB, '')}"].append(pod)
    for key, pods in sorted(by_job.items()):
        namespace, _, name = key.partition("/")
        nodes = sorted({pod.spec.node_name for pod in pods if pod.spec.node_name})
        held = f", and hold their GPUs on {some(nodes)}" if nodes else ""
        message = f"{count(len(pods), 'pod')} of job {key} {'is' if len(pods) == 1 else 'are'} left without it{held}"
        fix = f"kubectl -n {namespace} delete pods -l {names.LABEL_JOB}={name}"
        yield warning(Reason.PODS_ORPHANED, message, fix, [f"Pod/{pod.metadata.key}" for pod in pods])
    if not left:
        yield well(f"{count(len(known(seen.gang_pods)), 'pod')} of gangs, each of a job")


def _is_left(pod: Pod, there: Collection[str], now: float) -> bool:
    """Whether a pod that has neither ended nor is about to is of no job; a new one may be of a job not seen yet."""
    meta, owner = pod.metadata, pod.metadata.job
    if meta.deletion_timestamp or pod.status.phase in TERMINAL or (owner and owner.uid in there):
        return False
    made = datetime.fromisoformat(meta.creation_timestamp).timestamp() if meta.creation_timestamp else 0.0
    return now - made > UNSEEN_SECONDS


def priorities(seen: Seen) -> Iterator[Finding]:
    """PriorityClasses that jobs name and that are not there."""
    there = {each.metadata.name for each in known(seen.classes)}
    lacking: dict[str, list[JobFacts]] = defaultdict(list)
    for facts in _facts(seen):
        named = facts.spec.priority_class_name if facts.spec and not facts.finished else None
        if named and named not in there:
            lacking[named].append(facts)
    for named, about in sorted(lacking.items()):
        jobs_of = some(sorted(facts.meta.key for facts in about))
        message = f"there is no PriorityClass {named}, and {jobs_of} cannot start without"
        fix = f"kubectl create priorityclass {named} --value=1000, or name one of: {some(sorted(there), 5)}"
        yield warning(Reason.PRIORITY_CLASS_MISSING, message, fix, [_object(facts) for facts in about])
    if not lacking:
        yield well(f"{count(len(there), 'PriorityClass').replace('Classs', 'Classes')}, and no job names another")


def _facts(seen: Seen) -> list[JobFacts]:
    return [jobs.facts(job) for job in known(seen.jobs)]


def _object(facts: JobFacts) -> str:
    return f"{names.JOB_KIND}/{facts.meta.key}"
