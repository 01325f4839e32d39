"""What would be decided about a job, and who would make room: the work of `trimtab plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from trimtab import settings
from trimtab.commands import calibration, cluster_option, learned
from trimtab.commands.dumps import read_snapshot
from trimtab.commands.live import look
from trimtab.commands.outlook import outlook
from trimtab.decide.engine import Engine
from trimtab.decide.rules import rules_of
from trimtab.errors import UsageError
from trimtab.kube.objects import JobObject, Meta
from trimtab.names import JOB_KIND
from trimtab.observe import jobs as job_facts
from trimtab.observe.calibration import corrected
from trimtab.observe.eligibility import eligible
from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.queues import QueueFacts, Queues
from trimtab.printable import say
from trimtab.settings import KubeSettings, PriceSettings, ReportSettings
from trimtab.ui import explain as ui
from trimtab.ui import output, tables
from trimtab.ui.choices import TypeChoice, overview
from trimtab.ui.form import Output
from trimtab_policy import catalog
from trimtab_policy.inputs import documents
from trimtab_policy.inputs.documents import NotYaml
from trimtab_policy.perf.correction import Corrections
from trimtab_policy.perf.hierarchy import Learned
from trimtab_policy.scheduling.choice import Choice as Deciders
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.types import Job, Pending, Placement, Snapshot

DEADLINE_SECONDS = 60.0
"""Nobody waits in a queue behind this decision, so the policy may take its time."""


async def run(
    form: Output,
    facts: JobFacts,
    snapshot: Path | None,
    gpus: str,
    policy: str,
    priority: int,
    prices: Path | None,
    kube: KubeSettings,
) -> None:
    """Decide on the live cluster, on a dump, or on an empty cluster of `gpus`, and print what comes of it."""
    configured, known = settings.load(), Learned()
    calibration.use(configured.perf)
    said = settings.read_prices(prices) if prices else configured.prices
    if snapshot or gpus:
        now = read_snapshot(snapshot) if snapshot else cluster_option.snapshot(gpus)
        site = PlanSite(now, None, {})
    else:
        observation, known = await look(kube), await _known_errors(kube, configured.reports)
        site = PlanSite(observation.snapshot, observation.nodes, observation.queues)
    _known(said, site.snapshot)
    _tell(form, plan_on(site, facts, known, policy, priority, rules_of(configured), said), said.currency)


class PlanSite(NamedTuple):
    """The cluster that is asked about."""

    snapshot: Snapshot
    nodes: Mapping[str, NodeFacts] | None
    """None where nothing is known of nodes but what the snapshot says."""
    queues: Mapping[str, QueueFacts]


class Planned(NamedTuple):
    """What would be decided about a job: for programs, and in parts for people."""

    value: dict[str, Any]
    decided: PlanOutput
    choices: tuple[TypeChoice, ...]

    @property
    def rows(self) -> list[tuple[str, str]]:
        """In sentences."""
        found = self.decided
        said = [*ui.decision(found.placement)] if found.placement else []
        return [*said, *found.asked, *(ui.pending(found.pending) if found.pending else [])]


def plan_on(
    site: PlanSite, facts: JobFacts, known: Learned, policy: str, priority: int, rules: Rules, prices: PriceSettings
) -> Planned:
    """Decide about a job as if it alone waited. Raises UsageError when the policy fails."""
    now, admitted, queue = site.snapshot, None, None
    if site.nodes is not None:
        queue = Queues(site.queues.values()).of(facts)
        admitted = eligible(facts.template["spec"], [site.nodes[node.name] for node in now.nodes])
    job = facts.as_job(queue=queue, created=now.time, eligible=admitted, priority=priority)
    others = tuple(other for other in now.jobs if other.placement)
    alone = corrected(msgspec.structs.replace(now, jobs=(*others, job)), Corrections(known))
    return _planned(facts, alone, policy, rules, prices)


async def _known_errors(kube: KubeSettings, reports: ReportSettings) -> Learned:
    return await learned.learned(kube, reports) if reports.correct else Learned()


class PlanOutput(Struct, frozen=True):
    """What would be decided about a job."""

    placement: Placement | None = None
    pending: Pending | None = None
    asked: tuple[tuple[str, str], ...] = ()
    """Running jobs (`namespace/name`) that would be asked to stop or to move for it, and why."""


def decide(snapshot: Snapshot, job: Job, policy: str, rules: Rules | None = None) -> PlanOutput:
    """Ask a policy about one job, and make room for it where `rules` say so.

    Raises UsageError when the policy fails, UnknownPolicy for one that there is not.
    """
    deciders = Deciders(policy, "fcfs", deadline_seconds=DEADLINE_SECONDS)
    deciders.check()
    outcome = Engine().decide(snapshot, deciders, rules)
    for fallback in outcome.fallbacks:
        raise UsageError(f"policy {fallback.policy} failed: {fallback.message}")
    placement = next((found for found in outcome.placements if found.job == job.uid), None)
    pending = next((found for found in outcome.pending if found.job == job.uid), None)
    named = {other.uid: f"{other.namespace}/{other.name}" for other in snapshot.jobs}
    asked = [(named[stop.job], f"stops: {stop.reason}") for stop in outcome.stops]
    asked += [(named[move.placement.job], f"moves: {move.placement.reason}") for move in outcome.moves]
    return PlanOutput(placement, pending, tuple(asked))


def _known(prices: PriceSettings, snapshot: Snapshot) -> None:
    """Raises UsageError for a price of a GPU type that neither the cluster nor the catalogue has: a misspelt one."""
    for name in prices.per_gpu_hour:
        try:
            snapshot.gpu_types.get(name) or catalog.gpu(name)
        except catalog.UnknownGpu as error:
            raise UsageError(f"prices.per_gpu_hour: {error}") from error


def _planned(facts: JobFacts, snapshot: Snapshot, policy: str, rules: Rules, prices: PriceSettings) -> Planned:
    job = snapshot.jobs[-1]
    decided = decide(snapshot, job, policy, rules)
    choices = outlook(snapshot, job, decided.placement, prices.per_gpu_hour)
    value: dict[str, Any] = {
        "job": facts.meta.key,
        "decision": decided.placement,
        "pending": decided.pending,
        "asked": dict(decided.asked),
        "choices": choices,
        "currency": prices.currency,
    }
    return Planned(value, decided, choices)


def _tell(form: Output, found: Planned, currency: str) -> None:
    decided = found.decided
    parts: list[Any] = [tables.pairs(ui.decision(decided.placement))] if decided.placement else []
    parts += [tables.pairs(list(decided.asked))] if decided.asked else []
    parts += [tables.pairs(ui.pending(decided.pending))] if decided.pending else []
    output.show(form, found.value, output.spaced([*parts, overview(found.choices, currency)]))


def _of_other_kind(file: Path, beside: Sequence[Path], stated: Sequence[str], run: int) -> dict[str, Any]:
    from trimtab.commands.conversion import job_in  # only where it is needed: readers and their tables
    from trimtab.foreign.convert import to_own

    made = to_own(job_in(file, beside, stated, run), runnable=False)
    for note in made.notes:
        say(f"note: {note}", error=True)
    return made.documents[0]


def manifest(file: Path, beside: Sequence[Path] = (), stated: Sequence[str] = (), run: int = 0) -> JobFacts:
    """The job of a manifest file; one of another kind is read first, with files `beside` it and what is `stated`.

    Raises UsageError naming file and field.
    """
    try:
        document = documents.parse(file.read_bytes(), documents.LARGEST_OBJECT)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except NotYaml:
        document = None  # several documents, or a script
    if not isinstance(document, dict) or document.get("kind") != JOB_KIND:
        document = _of_other_kind(file, beside, stated, run)
    meta = document.get("metadata") or {}
    if not isinstance(meta, dict):
        raise UsageError(f"{file}: metadata must be a mapping")
    raw = msgspec.Raw(msgspec.json.encode(document.get("spec") or {}))
    known = Meta(name=str(meta.get("name", file.stem)), namespace=str(meta.get("namespace", "default")), uid="planned")
    facts = job_facts.facts(JobObject(known, raw))
    if facts.error:
        raise UsageError(f"{file}: {facts.error}")
    return facts
