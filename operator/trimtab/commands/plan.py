"""`trimtab plan -f job.yaml`: what would be decided, without changing anything.

`trimtab explain JOB`: why a job runs the way it does, or why it does not run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml
from msgspec import Struct

from trimtab import settings
from trimtab.api.convert import to_placement
from trimtab.commands import calibration, typed
from trimtab.commands.live import look
from trimtab.commands.options import (
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    OutputOption,
    command,
    kube_settings,
)
from trimtab.commands.outlook import outlook
from trimtab.commands.snapshot import read
from trimtab.decide.choice import Choice as Deciders
from trimtab.decide.engine import Engine
from trimtab.errors import UsageError
from trimtab.kube.objects import JobObject, Meta
from trimtab.names import JOB_KIND
from trimtab.observe import jobs as job_facts
from trimtab.observe.eligibility import eligible
from trimtab.observe.jobs import JobFacts
from trimtab.observe.snapshot import Observation
from trimtab.settings import PriceSettings
from trimtab.ui import output, tables, words
from trimtab.ui.choices import Choice, overview
from trimtab.ui.output import Output
from trimtab_policy import catalog
from trimtab_policy.types import Job, Pending, Placement, Snapshot

PolicyOption = Annotated[str, typer.Option("--policy", help="Policy to ask; `fcfs` answers when it fails.")]
DEADLINE_SECONDS = 60.0
"""Nobody waits in a queue behind this decision, so the policy may take its time."""


PricesOption = Annotated[
    Path | None, typer.Option(help="YAML file with `currency` and `per_gpu_hour`; by default those of the settings.")
]


@command
async def plan(
    file: Annotated[Path, typer.Option("--file", "-f", help="Manifest of an LLMTrainingJob.")],
    snapshot: Annotated[Path | None, typer.Option(help="Decide on this dump instead of the live cluster.")] = None,
    gpus: Annotated[
        str,
        typer.Option(
            help="Decide on an empty cluster of these: TYPE=COUNT or TYPE=COUNTxPER_NODE, separated by commas."
        ),
    ] = "",
    policy: PolicyOption = "best_fit",
    prices: PricesOption = None,
    form: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show what would be decided for a job, and the best plan of every GPU type, without changing anything.

    Examples: trimtab plan -f manifests/samples/llama3-8b.yaml

    trimtab plan -f manifests/samples/llama3-8b.yaml --snapshot now.json -o json

    trimtab plan -f manifests/samples/llama3-70b.yaml --gpus H100-SXM5-80GB=64,A100-SXM4-80GB=32x4 --prices prices.yaml
    """
    facts, configured = _manifest(file), settings.load()
    calibration.use(configured.perf)
    if snapshot and gpus:
        raise UsageError("--snapshot and --gpus are two clusters: name one")
    if snapshot or gpus:
        now, admitted = read(snapshot) if snapshot else typed.snapshot(gpus), None
    else:
        observation = await look(kube_settings(kubeconfig, context))
        now = observation.snapshot
        admitted = eligible(facts.template["spec"], [observation.nodes[node.name] for node in now.nodes])
    said = settings.read_prices(prices) if prices else configured.prices
    _known(said, now)
    job = facts.as_job(created=now.time, eligible=admitted)
    others = tuple(other for other in now.jobs if other.placement)
    _answer(form, facts, _decide(msgspec.structs.replace(now, jobs=(*others, job)), job, policy), said)


@command
async def explain(
    job: Annotated[str, typer.Argument(help="Name of the job.")],
    namespace: NamespaceOption = "default",
    policy: PolicyOption = "best_fit",
    form: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Explain a job: the chosen plan, what lost against it, and what would be decided if it were placed now.

    Example: trimtab explain llama3-8b -n team-a
    """
    configured = settings.load()
    calibration.use(configured.perf)
    observation = await look(kube_settings(kubeconfig, context))
    facts = _find(observation, namespace, job)
    released = _release(observation.snapshot, facts)
    waiting = next((other for other in released.jobs if other.uid == facts.meta.uid), None)
    if refused := observation.refused.get(facts.meta.uid):
        _answer(form, facts, _Decided(pending=refused), configured.prices)
    elif waiting is None:
        output.show(form, facts.status.to_wire(), tables.pairs(_story(facts)))
    else:
        _answer(form, facts, _decide(released, waiting, policy), configured.prices)


class _Decided(Struct, frozen=True):
    """What the policy says about the job, and what it could have said."""

    placement: Placement | None = None
    pending: Pending | None = None
    snapshot: Snapshot | None = None
    job: Job | None = None


def _decide(snapshot: Snapshot, job: Job, policy: str) -> _Decided:
    deciders = Deciders(policy, "fcfs", deadline_seconds=DEADLINE_SECONDS)
    deciders.check()
    outcome = Engine().decide(snapshot, deciders)
    for fallback in outcome.fallbacks:
        raise UsageError(f"policy {fallback.policy} failed: {fallback.message}")
    placement = next((found for found in outcome.placements if found.job == job.uid), None)
    pending = next((found for found in outcome.pending if found.job == job.uid), None)
    return _Decided(placement, pending, snapshot, job)


def _known(prices: PriceSettings, snapshot: Snapshot) -> None:
    """Raises UsageError for a price of a GPU type that neither the cluster nor the catalogue has: a misspelt one."""
    for name in prices.per_gpu_hour:
        try:
            snapshot.gpu_types.get(name) or catalog.gpu(name)
        except catalog.UnknownGpu as error:
            raise UsageError(f"prices.per_gpu_hour: {error}") from error


def _answer(form: Output, facts: JobFacts, decided: _Decided, prices: PriceSettings) -> None:
    placement, pending = decided.placement, decided.pending
    choices: tuple[Choice, ...] = ()
    if decided.snapshot and decided.job:
        choices = outlook(decided.snapshot, decided.job, placement, prices.per_gpu_hour)
    value: dict[str, Any] = {
        "job": facts.meta.key,
        "state": words.state(facts),
        "plan": facts.status.plan.to_wire() if facts.status.plan else None,
        "decision": placement,
        "pending": pending,
        "choices": choices,
        "currency": prices.currency,
    }
    parts: list[Any] = [tables.pairs(_story(facts, why=pending is None))] if facts.status.conditions else []
    if placement:
        where = words.nodes([share.node for share in placement.shares], limit=8)
        said = [("Decision", placement.reason), ("Nodes", where)]
        said.append(("Run time", words.duration(placement.prediction.run_seconds)))
        parts.append(tables.pairs(said))
    if pending:
        said = [("Pending", pending.reason.value), ("Because", pending.message)]
        said += [("Blocked by", blocker) for blocker in pending.blockers]
        said += [("What helps", hint) for hint in pending.alternatives]
        parts.append(tables.pairs(said))
    parts += [overview(choices, prices.currency)] if choices else []
    output.show(form, value, output.spaced(parts))


def _story(facts: JobFacts, *, why: bool = True) -> list[tuple[str, str]]:
    """What the job's own status says; with `why`, also why it waits."""
    said = [("Job", facts.meta.key), ("State", words.state(facts))]
    if plan := facts.status.plan:
        said += [
            ("Plan", f"{plan.gpus}×{plan.gpu_type}, {plan.mode} {plan.summary} (epoch {plan.epoch}, {plan.policy})"),
            ("Because", plan.reason),
            ("On", words.nodes([node.name for node in plan.nodes], limit=8)),
        ]
    elif facts.status.pending and why:
        said.append(("Because", facts.status.pending.message))
    if facts.status.shadow:
        said.append(("Shadow", words.shadow(facts.status.shadow)))
    return said


def _release(snapshot: Snapshot, facts: JobFacts) -> Snapshot:
    """The snapshot as if the job held nothing and alone were waiting."""
    plan = facts.status.plan if facts.holds_gpus else None
    held = {share.node: share.gpus for share in to_placement(facts.meta.uid, plan).shares} if plan else {}
    need = facts.requirements
    nodes = tuple(
        msgspec.structs.replace(
            node,
            free_gpus=node.free_gpus + gpus,
            free_cpu_milli=node.free_cpu_milli + (need.cpu_milli(gpus) if need else 0),
            free_memory=node.free_memory + (need.memory(gpus) if need else 0),
            free_pods=node.free_pods + 1,
        )
        if (gpus := held.get(node.name, 0))
        else node
        for node in snapshot.nodes
    )
    jobs = tuple(
        msgspec.structs.replace(job, placement=None) if job.uid == facts.meta.uid else job
        for job in snapshot.jobs
        if job.placement or job.uid == facts.meta.uid
    )
    return msgspec.structs.replace(snapshot, nodes=nodes, jobs=jobs)


def _find(observation: Observation, namespace: str, name: str) -> JobFacts:
    for facts in observation.jobs.values():
        if (facts.meta.namespace, facts.meta.name) == (namespace, name):
            return facts
    raise UsageError(f"there is no {JOB_KIND} {namespace}/{name}")


def _manifest(file: Path) -> JobFacts:
    """The job of a manifest file. Raises UsageError naming file and field."""
    try:
        document = yaml.safe_load(file.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{file} is no YAML: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != JOB_KIND:
        raise UsageError(f"{file} holds no {JOB_KIND}: `kind` must be {JOB_KIND}, and one document a file")
    meta = document.get("metadata") or {}
    raw = msgspec.Raw(msgspec.json.encode(document.get("spec") or {}))
    known = Meta(name=str(meta.get("name", file.stem)), namespace=str(meta.get("namespace", "default")), uid="planned")
    facts = job_facts.facts(JobObject(known, raw))
    if facts.error:
        raise UsageError(f"{file}: {facts.error}")
    return facts
