"""Pages that no command prints: overview, timeline. Pure functions of one look at the cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from trimtab import names
from trimtab.api import conditions
from trimtab.api.convert import to_eta
from trimtab.api.status import JobStatus
from trimtab.observe.jobs import JobFacts
from trimtab.observe.queues import Queues
from trimtab.observe.snapshot import Observation
from trimtab.ui import words
from trimtab.web.audience import Audience
from trimtab.web.columns import Waits
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.etas import UNCERTAINTY, forecasts
from trimtab_policy.scheduling.fair_share import in_line
from trimtab_policy.scheduling.forecast import seconds
from trimtab_policy.scheduling.reservations import reserve
from trimtab_policy.types import Eta, Job, Pending, PendingReason

MOST_LINES = 50
MOST_SPANS = 5000


class Deciders(Struct, frozen=True):
    """Who decides."""

    policy: str = ""
    """The one that does now."""
    chosen: Choice = Choice("", "")

    def value(self) -> dict[str, str]:
        """For programs."""
        return {"policy": self.policy, "chosen": self.chosen.policy, "fallback": self.chosen.fallback}


class ExpectedRun(Struct, frozen=True):
    """What a waiting job is expected to start on, and for how long."""

    gpu_type: str
    gpus: int
    nodes: tuple[str, ...]
    seconds: float


Runs = Mapping[str, ExpectedRun]


def expected_runs(seen: Observation, reservations: int, starvation_seconds: float) -> tuple[Runs, dict[str, str]]:
    """UID -> what each job in line is expected to start on, where that is in sight; and node -> UID of the job that it
    is kept for. Takes a while."""
    line = in_line(seen.snapshot)
    waiting = {job.uid: job for job in line.waiting()}
    waits = []
    for uid in waiting:
        told = seen.jobs[uid].status.pending if uid in seen.jobs else None
        waits.append(Pending(uid, told.reason if told else PendingReason.INSUFFICIENT_GPUS, ""))
    runs = {
        uid: ExpectedRun(
            start.shape.gpu_type, start.shape.gpus, start.nodes, seconds(waiting[uid], start.shape) / line.speedup
        )
        for uid, (_, start, _) in forecasts(line, waits).items()
    }
    kept = reserve(line, waits, reservations, starvation_seconds)
    return runs, {share.node: each.job for each in kept for share in each.shares}


def waits_of(seen: Observation, kept: Mapping[str, str]) -> Waits:
    """Places in line, and starts as the controller tells them; `kept`: node -> UID of the job that it is kept for."""
    line = in_line(seen.snapshot).waiting()
    starts: dict[str, Eta] = {}
    for uid, facts in seen.jobs.items():
        pending = facts.status.pending
        if pending and not facts.holds_gpus and (eta := to_eta(pending.start_time, seen.snapshot.time)):
            starts[uid] = eta
    return Waits({job.uid: place for place, job in enumerate(line, start=1)}, starts, kept)


# --- overview --------------------------------------------------------------------------------------------------------
def overview(seen: Observation, waits: Waits, deciders: Deciders, audience: Audience) -> dict[str, Any]:
    """The cluster in short."""
    shown = [facts for facts in seen.jobs.values() if audience.sees(facts.meta.namespace)]
    return {
        "time": seen.snapshot.time,
        "running": sum(facts.holds_gpus for facts in shown),
        "waiting": sum(_waits(facts, waits) for facts in shown),
        "gpus": _gpus(seen, waits) if audience.nodes else [],
        "deciding": deciders.value(),
        "line": _line(shown, waits),
        "decisions": _decisions(shown),
        "shadow": shadow(shown),
    }


def _waits(facts: JobFacts, waits: Waits) -> bool:
    """Whether it is in line; where nobody's place is known, whether it neither runs nor is suspended or over."""
    if waits.places:
        return facts.meta.uid in waits.places
    return not (facts.holds_gpus or facts.finished or facts.suspended)


def _gpus(seen: Observation, waits: Waits) -> list[dict[str, Any]]:
    """By type: who has how many."""
    free = {node.name: node for node in seen.snapshot.nodes}
    held = Counter[str]()
    for job in seen.snapshot.jobs:
        for share in job.placement.shares if job.placement else ():
            held[share.node] += share.gpus
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, facts in seen.nodes.items():
        kind = sums[facts.gpu.name if facts.gpu else ""]
        node, has = free.get(name), held[name]
        left = max(0, node.free_gpus) if node else 0
        kind.update({"nodes": 1, "gpus": facts.gpus, "held": has})
        kind["kept" if name in waits.kept else "free"] += left
        kind["foreign" if node else "unavailable"] += max(0, facts.gpus - has - left)
    fields = "nodes", "gpus", "held", "free", "kept", "foreign", "unavailable"
    return [{"gpuType": kind, **{field: sums[kind][field] for field in fields}} for kind in sorted(sums)]


def _line(shown: Iterable[JobFacts], waits: Waits) -> list[dict[str, Any]]:
    known = ((waits.places.get(facts.meta.uid, 0), facts.meta.key, facts) for facts in shown)
    waiting = sorted((each for each in known if each[0]), key=lambda each: each[:2])
    found = []
    for place, key, facts in waiting[:MOST_LINES]:
        pending, eta = facts.status.pending, waits.starts.get(facts.meta.uid)
        found.append(
            {
                "job": key,
                "place": place,
                "state": words.state(facts),
                "message": pending.message if pending else "",
                "alternatives": list(pending.alternatives) if pending else [],
                "start": eta,
            }
        )
    return found


def _decisions(shown: Iterable[JobFacts]) -> list[dict[str, Any]]:
    """The latest plans, the newest first."""
    plans = [(facts.status.plan, facts.meta.key) for facts in shown if facts.status.plan]
    plans.sort(key=lambda each: (each[0].created_time, each[1]), reverse=True)
    return [
        {"time": plan.created_time.timestamp(), "job": key, "policy": plan.policy, "text": plan.reason}
        for plan, key in plans[:MOST_LINES]
    ]


def shadow(shown: Iterable[JobFacts], *, differences: bool = False) -> dict[str, Any]:
    """What a policy that is only watched would have done otherwise."""
    found = [(facts, facts.status.shadow) for facts in shown if facts.status.shadow]
    later = [(facts.meta.key, told, told.difference_seconds) for facts, told in found if told]
    value: dict[str, Any] = {
        "policy": later[0][1].policy if later else "",
        "jobs": len(later),
        "same": sum(not late for _, _, late in later),
        "savedSeconds": -sum(late or 0 for _, _, late in later),
    }
    if differences:
        value["differences"] = [
            {"job": key, "summary": told.summary, "differenceSeconds": late} for key, told, late in later if late
        ]
    return value


# --- timeline --------------------------------------------------------------------------------------------------------
def timeline(
    seen: Observation, waits: Waits, runs: Runs, audience: Audience,
    begin: float, end: float, by: str,
) -> dict[str, Any]:  # fmt: skip
    """What ran, runs and is expected to run between two moments. `runs`: UID of a waiting job -> what it is
    expected to start on; `by` is `type`, `queue` or `node`."""
    jobs, lines = {job.uid: job for job in seen.snapshot.jobs}, Queues(seen.queues.values())
    reserved = frozenset(waits.kept.values())
    spans = [
        {"queue": lines.of(facts), **span}
        for facts in seen.jobs.values()
        for span in _spans(facts, seen.snapshot.time, jobs, waits.starts, runs, reserved)
        if span["end"] >= begin and span["start"] <= end
    ][:MOST_SPANS]
    if not audience.nodes:  # others' jobs are seen by the GPUs that they hold
        spans = [span for span in spans if audience.sees(span["job"].partition("/")[0])]
    sizes = _lane_sizes(seen, spans, by, audience)
    lanes = {name: number for number, name in enumerate(sorted(sizes))}
    told = []
    for span in spans:
        hidden = not audience.sees(span["job"].partition("/")[0])
        shown = {**span, "job": "" if hidden else span["job"], "text": "" if hidden else span["text"]}
        del shown["queue"]
        told += [{**shown, "lane": lanes[lane]} for lane in _lanes_of(span, by) if lane in lanes]
    marks = [
        mark
        for facts in seen.jobs.values()
        if audience.sees(facts.meta.namespace)
        for mark in _marks(facts.meta.key, facts.status)
        if begin <= mark["time"] <= end
    ]
    return {
        "time": seen.snapshot.time,
        "from": begin,
        "to": end,
        "by": by,
        "lanes": [{"name": name, "gpus": sizes[name]} for name in lanes],
        "spans": told,
        "marks": sorted(marks, key=lambda mark: mark["time"]),
    }


def _lanes_of(span: Mapping[str, Any], by: str) -> Iterable[str]:
    return span["nodes"] if by == "node" else (span["queue"] if by == "queue" else span["gpuType"],)


def _lane_sizes(seen: Observation, spans: Iterable[Mapping[str, Any]], by: str, audience: Audience) -> dict[str, int]:
    """GPUs of each lane; 0 where they are not known, or not this audience's to know."""
    if by == "queue":
        return dict.fromkeys({span["queue"] for span in spans} | seen.queues.keys(), 0)
    sizes = Counter[str]()
    for facts in seen.nodes.values() if audience.nodes else ():
        sizes[facts.name if by == "node" else facts.gpu.name if facts.gpu else ""] += facts.gpus
    for span in spans if by == "type" else ():
        sizes[span["gpuType"]] += 0
    return dict(sizes)


def _spans(
    facts: JobFacts, now: float, jobs: Mapping[str, Job],
    starts: Mapping[str, Eta], runs: Runs, reserved: frozenset[str],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """`reserved`: UIDs of the jobs that nodes are kept for."""
    status, uid = facts.status, facts.meta.uid
    job = jobs.get(uid) if facts.holds_gpus else None
    base = {"job": facts.meta.key, "endLow": None, "endHigh": None, "startLow": None, "startHigh": None}
    if plan := status.plan:
        held = {"gpus": plan.gpus, "gpuType": plan.gpu_type, "nodes": [node.name for node in plan.nodes]}
        began = plan.created_time.timestamp()
        if facts.finished:
            over = status.completion_time.timestamp() if status.completion_time else now
            yield base | held | {"kind": "past", "start": began, "end": max(began, over), "text": words.state(facts)}
        else:
            ends = _ends(job, now)
            yield base | held | {"kind": "running", "start": began, "text": words.state(facts)} | ends
    elif (eta := starts.get(uid)) and (run := runs.get(uid)):
        yield base | {
            "gpus": run.gpus,
            "gpuType": run.gpu_type,
            "nodes": list(run.nodes),
            "kind": "reserved" if uid in reserved else "expected",
            "start": eta.expected,
            "end": eta.expected + run.seconds,
            "startLow": eta.low,
            "startHigh": eta.high,
            "text": words.state(facts),
        }


def _ends(job: Job | None, now: float) -> dict[str, float]:
    """When a running job gives its GPUs back, with an interval of 80 %."""
    if job is None or job.expected_finish is None:
        return {"end": now}
    told = job.placement.prediction.uncertainty if job.placement else 1.0
    factor = told if told > 1 else UNCERTAINTY
    since = now if job.steps_done or job.started is None else job.started
    whole = max(0.0, job.expected_finish - since)
    return {
        "end": max(now, job.expected_finish),
        "endLow": max(now, since + whole / factor),
        "endHigh": max(now, since + whole * factor),
    }


def _marks(key: str, status: JobStatus) -> Iterator[dict[str, Any]]:
    """Moments of a job's history."""
    for stop in status.stops:
        gained = f" for {stop.beneficiary}" if stop.beneficiary else ""
        text = f"asked to stop{gained}: {stop.cause} (plan {stop.epoch})"
        yield {"time": stop.time.timestamp(), "job": key, "kind": "stop", "text": text}
    for failure in status.failures:
        at = f" on {failure.node}" if failure.node else ""
        text = f"{failure.reason}{at}: {failure.cause} (plan {failure.epoch})"
        yield {"time": failure.time.timestamp(), "job": key, "kind": "failure", "text": text}
    if status.completion_time:
        done = conditions.holds(status.conditions, names.COMPLETE)
        text = "completed" if done else "failed for good"
        yield {"time": status.completion_time.timestamp(), "job": key, "kind": "end", "text": text}
