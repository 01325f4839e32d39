"""Why a job runs the way it does, or why it does not run, and when that will change: the work of `trimtab explain`.

What the controller has written into the job's status comes first: it decides. What is worked out here, from a look at
the cluster or a dumped snapshot, adds what a status has no room for: the place in line, the nodes that the job is
expected to get, and what would be decided about it if it were placed now.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from trimtab import settings
from trimtab.api.convert import to_eta, to_placement
from trimtab.api.status import PendingStatus
from trimtab.commands import calibration, learned, remedies, why_not
from trimtab.commands.dumps import read_snapshot
from trimtab.commands.job_list import no_such_job
from trimtab.commands.live import deciding, look
from trimtab.commands.outlook import outlook
from trimtab.commands.planning import PlanOutput, decide
from trimtab.commands.reach import Reach
from trimtab.errors import UsageError
from trimtab.names import JOB_KIND
from trimtab.observe.calibration import corrected
from trimtab.observe.jobs import JobFacts
from trimtab.observe.snapshot import Observation
from trimtab.settings import KubeSettings, PriceSettings
from trimtab.ui import explain as ui
from trimtab.ui import output, tables, words
from trimtab.ui.choices import TypeChoice, overview
from trimtab.ui.form import Output
from trimtab_policy.inputs.changes import freed
from trimtab_policy.perf.correction import Corrections
from trimtab_policy.perf.hierarchy import Learned
from trimtab_policy.scheduling.etas import forecasts, intervals
from trimtab_policy.scheduling.fair_share import in_line
from trimtab_policy.types import Job, Pending, PendingReason, Snapshot


class _Account(Struct):
    """All that is known of one job."""

    key: str
    rows: list[ui.Rows]
    now: Snapshot
    """The cluster, with all that run and wait, in line."""
    snapshot: Snapshot
    """As if the job held nothing and alone were waiting."""
    line: ui.Place | None = None
    prospect: ui.Prospect | None = None
    pending: Pending | None = None
    """What nobody needs to ask a policy about."""
    job: Job | None = None
    """In the snapshot; None for one that no policy is asked about."""
    facts: JobFacts | None = None
    known: Learned = Learned()
    holds: bool = False
    """It has GPUs, so that what a policy cannot do for it now does not keep it waiting."""


async def run(
    form: Output, namespace: str, name: str, policy: str, snapshot: Path | None, why: str, kube: KubeSettings
) -> None:
    """Print what is known of a job of the live cluster, or of a dump."""
    configured = settings.load()
    calibration.use(configured.perf)
    if snapshot:
        account = _of_dump(read_snapshot(snapshot), namespace, name)
        found = _explained(account, policy or configured.policy.name, configured.prices, why)
    else:
        observation, known = await look(kube), await learned.learned(kube, configured.reports)
        decides = await deciding(kube, configured.policy, configured.monitor)
        found = explain_live(observation, namespace, name, known, configured, policy or decides, why)
    _tell(form, found, configured.prices.currency)


def _live(observation: Observation, facts: JobFacts, known: Learned, *, correct: bool) -> _Account:
    uid, now = facts.meta.uid, observation.snapshot
    released = _release(now, uid, facts)
    if correct:
        now, released = corrected(now, Corrections(known)), corrected(released, Corrections(known))
    line, prospect = _prospects(in_line(now), uid, _told(facts), facts.status.pending)
    return _Account(
        key=facts.meta.key,
        rows=[ui.standing(facts, now.time)],
        now=in_line(now),
        snapshot=released,
        line=line,
        prospect=prospect,
        pending=observation.refused.get(uid) or _told(facts),
        job=None if uid in observation.refused else next((job for job in released.jobs if job.uid == uid), None),
        facts=facts,
        known=known,
        holds=facts.holds_gpus,
    )


def _of_dump(now: Snapshot, namespace: str, name: str) -> _Account:
    job = next((job for job in now.jobs if (job.namespace, job.name) == (namespace, name)), None)
    if job is None:
        raise UsageError(f"the snapshot has no {JOB_KIND} {namespace}/{name} that waits or runs")
    line, prospect = _prospects(in_line(now), job.uid, None)
    released = _release(now, job.uid)
    rows = [ui.of_dump(job) + ui.running(job, now.time)]
    alone = next(each for each in released.jobs if each.uid == job.uid)
    return _Account(
        f"{namespace}/{name}", rows, in_line(now), released, line, prospect, job=alone, holds=job.placement is not None
    )


class Explained(NamedTuple):
    """What there is to say about a job: for programs, and in rows for people."""

    value: dict[str, Any]
    rows: list[tuple[str, str]]
    decided: list[tuple[str, str]]
    """What would be decided if it were placed now."""
    choices: tuple[TypeChoice, ...]


def explain_live(
    observation: Observation, namespace: str, name: str, known: Learned, configured: settings.Settings, policy: str,
    why: str = "",
) -> Explained:  # fmt: skip
    """What is known of a job of a live cluster. Raises TrimtabError for one that there is not, and UsageError."""
    facts = _find(observation, namespace, name)
    account = _live(observation, facts, known, correct=configured.reports.correct)
    return _explained(account, policy, configured.prices, why)


def explain_alone(observation: Observation, namespace: str, name: str, known: Learned, reach: Reach) -> Explained:
    """What a job's status says of it, for those who do not see what it competes with. Raises TrimtabError."""
    facts, now = _find(observation, namespace, name), observation.snapshot.time
    told, eta = _told(facts), to_eta(facts.status.pending.start_time, now) if facts.status.pending else None
    start = ui.Prospect(eta, "", 0, ()) if eta else None
    rows = [
        ui.standing(facts, now),
        ui.pending(told) if told else [],
        ui.prospects(None, start, now),
        learned.story(facts, known, observation.snapshot),
        ui.history(facts.status, now),
        [("Not known", f"its place in line, and other choices: you do not see {reach.left_out}")],
    ]
    value: dict[str, Any] = {
        "job": facts.meta.key,
        "state": words.state(facts),
        "plan": facts.status.plan.to_wire() if facts.status.plan else None,
        "pending": told,
        "line": None,
        "start": start,
        "decision": None,
        "choices": (),
        "currency": "",
        "helps": (),
    }
    value |= _of_status(facts, known, observation.snapshot)
    return Explained(value, [*ui.told_by(rows)], [], ())


def _of_status(facts: JobFacts, known: Learned, snapshot: Snapshot) -> dict[str, Any]:
    observed = facts.status.observed
    return {
        "status": facts.status.to_wire(),
        "observed": observed.to_wire() if observed else None,
        "learned": learned.value(facts, known, snapshot),
    }


def _explained(account: _Account, policy: str, prices: PriceSettings, why: str) -> Explained:
    facts, now = account.facts, account.snapshot.time
    objection = _objection(account, why, policy) if why else None
    decided = decide(account.snapshot, account.job, policy) if account.job else PlanOutput()
    pending = account.pending or (None if account.holds else decided.pending)
    choices: tuple[TypeChoice, ...] = ()
    if account.job:
        choices = outlook(account.snapshot, account.job, decided.placement, prices.per_gpu_hour)
    rows = [*account.rows]
    rows += [ui.pending(pending)] if pending else []
    rows.append(ui.prospects(account.line, account.prospect, now))
    if facts:
        rows += [learned.story(facts, account.known, account.snapshot), ui.history(facts.status, now)]
    value: dict[str, Any] = {
        "job": account.key,
        "state": words.state(facts) if facts else "Running" if not account.line else "Pending",
        "plan": facts.status.plan.to_wire() if facts and facts.status.plan else None,
        "pending": pending,
        "line": account.line,
        "start": account.prospect,
        "decision": decided.placement,
        "choices": choices,
        "currency": prices.currency,
        "helps": remedies.questions(account.now, account.snapshot, account.job) if account.job and pending else (),
    }
    if objection:
        value["whyNot"] = objection
    if facts:
        value |= _of_status(facts, account.known, account.snapshot)
    told = [*ui.told_by(rows), *(ui.told_by([ui.objection(objection, now)]) if objection else [])]
    return Explained(value, told, _if_placed_now(account, decided), choices)


def _if_placed_now(account: _Account, decided: PlanOutput) -> list[tuple[str, str]]:
    if decided.placement:
        plan = account.facts.status.plan if account.facts else None
        since = ui.since_then(plan, decided.placement) if plan and account.holds else []
        heading = "If placed now" if account.holds else "Decision"
        return [*since, *ui.decision(decided.placement, heading)]
    return ui.nowhere(decided.pending) if decided.pending and account.holds else []


def _tell(form: Output, found: Explained, currency: str) -> None:
    parts: list[Any] = [tables.pairs(rows) for rows in (found.rows, found.decided) if rows]
    parts += [overview(found.choices, currency)] if found.choices else []
    output.show(form, found.value, output.spaced(parts))


def _objection(account: _Account, why: str, policy: str) -> ui.Objection:
    asked = why_not.wanted(why, account.snapshot.gpu_types)
    if account.job is None:
        ended = "has ended" if account.facts and account.facts.finished else "is not decided about"
        raise UsageError(f"{why_not.OPTION}: {account.key} {ended}: nothing would give it GPUs now")
    return why_not.objection(account.now, account.snapshot, account.job, asked, policy)


def _prospects(
    now: Snapshot, uid: str, told: Pending | None, status: PendingStatus | None = None
) -> tuple[ui.Place | None, ui.Prospect | None]:
    """The job's place in line, and its start, as the controller says where it has; None for a job that does not
    wait."""
    line = now.waiting()
    place = ui.place(line, uid)
    if place is None:
        return None, None
    reason = told.reason if told else PendingReason.INSUFFICIENT_GPUS
    waits = [Pending(job.uid, reason if job.uid == uid else PendingReason.INSUFFICIENT_GPUS, "") for job in line]
    starts = forecasts(now, waits)
    if uid not in starts:
        return place, None
    eta = to_eta(status.start_time if status else None, now.time) or intervals(now, starts)[uid]
    shape, nodes = starts[uid][1].shape, starts[uid][1].nodes
    return place, ui.Prospect(eta, shape.gpu_type, shape.gpus, nodes, _where(now, nodes))


def _where(now: Snapshot, nodes: tuple[str, ...]) -> str:
    """`rack r3`: the nearest domain that all of these nodes share."""
    topologies = [node.topology for node in now.nodes if node.name in nodes]
    shared = list(takewhile(lambda values: len(set(values)) == 1, zip(*topologies, strict=False)))
    return next((values[0] for values in reversed(shared) if values[0]), "")


def _told(facts: JobFacts) -> Pending | None:
    """What the controller says about a job that waits."""
    said = facts.status.pending
    if said is None:
        return None
    return Pending(facts.meta.uid, said.reason, said.message, said.blockers, said.alternatives)


def _release(snapshot: Snapshot, uid: str, facts: JobFacts | None = None) -> Snapshot:
    """The snapshot as if the job held nothing and alone were waiting."""
    job = next((job for job in snapshot.jobs if job.uid == uid), None)
    held = job.placement if job else None
    if facts and facts.holds_gpus and facts.status.plan:
        held = to_placement(uid, facts.status.plan)
    shares = {share.node: share.gpus for share in held.shares} if held else {}
    need = job.requirements if job else None
    nodes = tuple(freed(node, shares[node.name], need) if node.name in shares else node for node in snapshot.nodes)
    jobs = tuple(
        replace(job, placement=None) if job.uid == uid else job
        for job in snapshot.jobs
        if job.placement or job.uid == uid
    )
    return replace(snapshot, nodes=nodes, jobs=jobs)


def _find(observation: Observation, namespace: str, name: str) -> JobFacts:
    for facts in observation.jobs.values():
        if (facts.meta.namespace, facts.meta.name) == (namespace, name):
            return facts
    raise no_such_job(namespace, name, [facts.meta.key for facts in observation.jobs.values()])
