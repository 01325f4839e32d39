"""The page that `trimtab explain` shows: where a job stands, why, what comes next, and what it went through.

Everything here is words for what is known: rows of a name and a sentence, the most urgent first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import Condition, JobStatus, Plan, PlanAlternative, StopRequest
from trimtab.observe.jobs import JobFacts
from trimtab.ui import words
from trimtab_policy.specs import ParallelPlan, Prediction
from trimtab_policy.types import Eta, Job, Pending, Placement

Rows = list[tuple[str, str]]

SHOWN = 3
"""Jobs in front that are named."""
ENDED = (names.COMPLETE, names.FAILED)


class Place(Struct, frozen=True):
    """Where a job stands in line."""

    position: int
    """1: it is next."""
    waiting: int
    """Jobs in line, it included."""
    before: tuple[str, ...]
    """`namespace/name (why it comes first)`, those right in front of it last; only some where there are many."""


class Prospect(Struct, frozen=True):
    """When and where a job is expected to start."""

    eta: Eta
    gpu_type: str
    gpus: int
    """0 where only the time is known."""
    nodes: tuple[str, ...]
    where: str = ""
    """The domain that all the nodes share, such as a rack; empty for none."""


class WantedGpus(Struct, frozen=True):
    """GPUs that somebody has asked about."""

    gpu_type: str = ""
    """Of the cluster; empty for any."""
    gpus: int = 0
    """0 for any number."""

    def describe(self) -> str:
        """`32×H100-SXM5-80GB`, `H100-SXM5-80GB`, `32 GPUs`."""
        if not self.gpu_type:
            return f"{self.gpus} GPUs"
        return f"{self.gpus}×{self.gpu_type}" if self.gpus else self.gpu_type


class Objection(Struct, frozen=True):
    """What speaks against these GPUs for a job, and what it would do on them."""

    wanted: WantedGpus
    because: tuple[str, ...]
    """Sentences, the first of which is the real obstacle."""
    helps: tuple[str, ...] = ()
    plan: ParallelPlan | None = None
    """The fastest that the job could run there; None where there is none."""
    prediction: Prediction | None = None
    start: Eta | None = None
    """When it could begin there, where it cannot now and that is in sight."""


def place(line: Sequence[Job], uid: str) -> Place | None:
    """The job's place among those that wait, in their order; None for one that is not among them."""
    found = next((number for number, job in enumerate(line) if job.uid == uid), None)
    if found is None:
        return None
    me = line[found]
    before = tuple(f"{job.namespace}/{job.name} ({_why_first(job, me)})" for job in line[max(0, found - SHOWN) : found])
    return Place(found + 1, len(line), before)


def _why_first(other: Job, me: Job) -> str:
    if other.priority != me.priority:
        return f"priority {other.priority} against {me.priority}"
    if (other.queue, other.namespace) != (me.queue, me.namespace):
        if other.entitled != me.entitled:
            return f"queue {other.queue or other.namespace} holds less than it is guaranteed"
        if other.share != me.share:
            return f"queue {other.queue or other.namespace} has had less of the cluster"
    return "older"


def standing(facts: JobFacts, now: float) -> Rows:
    """Where the job stands, and why: the job's own status in sentences."""
    status = facts.status
    said: Rows = [("Job", _title(facts)), ("State", _state(facts, now))]
    if plan := status.plan:
        said += _plan(plan)
        if note := _note(status, plan):
            said.append(("But", note))
    if status.stop:
        said += _stop(status.stop, now)
    if plan and plan.waits_for and not conditions.holds(status.conditions, names.GANG_SCHEDULED):
        said += [("Waits for", f"{gone.job} to stop ({gone.cause})") for gone in plan.waits_for]
    for kind, heading in (
        (names.PREEMPTED, "Preempted"),
        (names.DEGRADED, "Degraded"),
        (names.DRIFTED, "Drifted"),
        (names.IDLE, "Idle"),
    ):
        if (condition := conditions.find(status.conditions, kind)) and condition.status == "True":
            said.append((heading, condition.message))
    if status.retry_time and not plan and not facts.finished and status.retry_time.timestamp() > now:
        said.append(("Tries again", _in(status.retry_time, now)))
    ended = (conditions.find(status.conditions, kind) for kind in ENDED)
    said += [("Ended", each.message) for each in ended if each and each.status == "True" and each.message]
    if status.shadow:
        said.append(("Shadow", words.shadow(status.shadow)))
    return said


def pending(found: Pending) -> Rows:
    """Why a job waits, what is in the way, and what helps."""
    said: Rows = [("Pending", found.reason.value), ("Because", found.message)]
    said += [("Blocked by", blocker) for blocker in found.blockers]
    return said + [("What helps", hint) for hint in found.alternatives]


def decision(found: Placement, heading: str = "Decision") -> Rows:
    """What a policy would give the job."""
    where = words.nodes([share.node for share in found.shares], limit=8)
    return [(heading, found.reason), ("Nodes", where), ("Run time", words.duration(found.prediction.run_seconds))]


def objection(found: Objection, now: float) -> Rows:
    """What speaks against other GPUs, and what the job would do on them."""
    said: Rows = [(f"Why not {found.wanted.describe()}", text) for text in found.because]
    said += [("What helps", hint) for hint in found.helps]
    if found.start:
        low, expected, high = (
            words.minutes(max(0.0, at - now)) for at in (found.start.low, found.start.expected, found.start.high)
        )
        said.append(
            ("Could start", f"in ~{expected} (four times of five in {low} to {high}), were nobody else to wait")
        )
    if found.plan and found.prediction:
        rate, seconds = words.rate(found.prediction.tokens_per_second), words.duration(found.prediction.run_seconds)
        said.append(("Would run", f"{found.plan.describe()}: {rate} tokens/s, {seconds} in all"))
    return said


def since_then(plan: Plan, now: Placement) -> Rows:
    """Whether what would be decided now is what was decided when the plan was made."""
    then, today = f"{plan.gpus}×{plan.gpu_type}, {plan.summary}", f"{now.gpus}×{now.gpu_type}, {now.plan.describe()}"
    moment = f"as it was decided at {_moment(plan.created_time)}"
    return [("Since then", f"the same {moment}" if then == today else f"not {moment} ({then}): now {today}")]


def nowhere(found: Pending) -> Rows:
    """Why a job that holds GPUs would get none if it were placed now."""
    return [("If placed now", f"{found.reason.value}: {found.message}")]


def prospects(where: Place | None, found: Prospect | None, now: float) -> Rows:
    """The job's place in line, and when its turn comes."""
    said: Rows = []
    if where:
        text = f"{where.position} of {where.waiting}"
        if where.before:
            more = where.position - 1 - len(where.before)
            text += f", behind {', '.join(where.before)}" + (f" and {more} more" if more else "")
        said.append(("In line", text))
    if found:
        eta = found.eta
        low, expected, high = (words.minutes(moment - now) for moment in (eta.low, eta.expected, eta.high))
        where_ = f" ({found.where})" if found.where else ""
        text = f"in ~{expected} (four times of five in {low} to {high})"
        on = f", with {found.gpus}×{found.gpu_type} on {words.nodes(found.nodes)}{where_}" if found.gpus else ""
        said.append(("Starts", text + on))
    elif where:
        said.append(("Starts", "not in sight: no job that is expected to end makes room for it"))
    return said


def history(status: JobStatus, now: float) -> Rows:
    """What the job went through, oldest first."""
    events: list[tuple[datetime, str]] = []
    if status.start_time:
        events.append((status.start_time, "ran for the first time"))
    for stop in status.stops:
        gained = f" for {stop.beneficiary}" if stop.beneficiary else ""
        parts = ("saved in", stop.save_seconds), ("back after", stop.start_seconds)
        took = "".join(f", {what} {words.duration(seconds)}" for what, seconds in parts if seconds is not None)
        events.append((stop.time, f"asked to stop{gained}: {stop.cause} (plan {stop.epoch}){took}"))
    for failure in status.failures:
        at = f" on {failure.node}" if failure.node else ""
        events.append((failure.time, f"{failure.reason}{at}: {failure.cause} (plan {failure.epoch})"))
    if status.completion_time:
        done = "completed" if conditions.holds(status.conditions, names.COMPLETE) else "failed for good"
        events.append((status.completion_time, done))
    events.sort(key=lambda event: event[0])  # what is of one second stays in the order in which it comes about
    said: Rows = [("History", f"{_moment(time)}  {text}") for time, text in events]
    if status.restarts or status.last_epoch:
        counted = (
            _many(status.restarts, "restart") + " after failures",
            _many(len(status.stops), "request") + " to stop",
            _many(status.last_epoch or 0, "plan"),
        )
        said.append(("Counts", ", ".join(counted)))
    saved = status.observed.last_checkpoint_time if status.observed else None
    if saved:
        said.append(("Checkpoint", f"{_moment(saved)}, {words.duration(max(0.0, now - saved.timestamp()))} ago"))
    return said


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _title(facts: JobFacts) -> str:
    spec = facts.spec
    told = [] if spec is None else [f"queue {spec.queue}"] if spec.queue else []
    if spec and spec.priority_class_name:
        told.append(f"priority class {spec.priority_class_name}")
    return facts.meta.key + (f" ({', '.join(told)})" if told else "")


def _state(facts: JobFacts, now: float) -> str:
    told: Condition | None = facts.status.conditions[-1] if facts.status.conditions else None
    since = f", for {words.duration(max(0.0, now - told.last_transition_time.timestamp()))}" if told else ""
    return words.state(facts) + since


def _plan(plan: Plan) -> Rows:
    what = f"{plan.gpus}×{plan.gpu_type}, {plan.mode} {plan.summary} (plan {plan.epoch}, by {plan.policy})"
    return [
        ("Plan", what),
        ("Because", plan.reason),
        *(("Lost then", _lost(each)) for each in plan.alternatives or ()),
        ("On", words.nodes([node.name for node in plan.nodes], limit=8)),
    ]


def _note(status: JobStatus, plan: Plan) -> str:
    """What the condition Planned says beside why it was planned so: what it waits for, where it breaks the spec."""
    told = conditions.find(status.conditions, names.PLANNED)
    if told is None or told.status != "True":
        return ""
    note, own, _ = told.message.partition(f"{plan.policy}: ")
    return note.removesuffix("; ") if own else ""


def _lost(other: PlanAlternative) -> str:
    """What lost when the plan was decided, and why."""
    figures = f"{words.rate(other.tokens_per_second)} tokens/s, {words.duration(other.run_seconds)} in all"
    return f"{other.gpus}×{other.gpu_type}, {other.summary}: {figures}; {other.why_not}"


def _stop(stop: StopRequest, now: float) -> Rows:
    gained = f" for {stop.beneficiary}" if stop.beneficiary else ""
    said: Rows = [("Asked to stop", f"{_moment(stop.requested_time)}{gained} ({stop.cause}): {stop.message}")]
    if stop.acknowledged_time:
        said.append(("Checkpoint", f"saved at {_moment(stop.acknowledged_time)}: it stops now"))
    else:
        said.append(("Checkpoint", f"not saved yet; it is stopped {_in(stop.deadline_time, now)} at the latest"))
    if plan := stop.successor:
        said.append(("Goes on", f"with {plan.gpus}×{plan.gpu_type}, {plan.mode} {plan.summary} (plan {plan.epoch})"))
    return said


def _in(moment: datetime, now: float) -> str:
    left = moment.timestamp() - now
    return f"in {words.duration(left)}" if left > 0 else f"since {_moment(moment)}"


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def running(job: Job, now: float) -> Rows:
    """A running job of a dump, which knows no more of it."""
    held = job.placement
    said: Rows = []
    if held is not None:
        shares = [share.node for share in held.shares]
        said.append(("Plan", f"{held.gpus}×{held.gpu_type}, {held.plan.describe()}"))
        said += [("Because", held.reason), ("On", words.nodes(shares, limit=8))]
    if job.expected_finish:
        said.append(("Ends", f"in ~{words.minutes(job.expected_finish - now)}"))
    return said


def of_dump(job: Job) -> Rows:
    """The head of the page where there is no status to read."""
    told = [f"queue {job.queue}"] if job.queue else []
    told += [f"priority {job.priority}"] if job.priority else []
    title = f"{job.namespace}/{job.name}" + (f" ({', '.join(told)})" if told else "")
    return [("Job", title), ("State", "runs" if job.placement else "waits")]


def told_by(parts: Sequence[Rows]) -> Iterator[tuple[str, str]]:
    """All rows in order, a name that repeats the one before it left out."""
    last = ""
    for name, text in (row for part in parts for row in part):
        yield ("" if name == last else name), text
        last = name
