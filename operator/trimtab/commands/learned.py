"""What the controller has learned from running jobs, for commands that explain: read, applied, and in words."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from trimtab.api.convert import to_placement
from trimtab.errors import ApiError, Forbidden, NotFound
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import ConfigMapObject
from trimtab.kube.resources import CONFIG_MAPS
from trimtab.observe.calibration import NotUnderstood, read_calibration
from trimtab.observe.jobs import JobFacts
from trimtab.printable import say
from trimtab.settings import KubeSettings, ReportSettings
from trimtab.ui import words
from trimtab_policy.perf.hierarchy import Estimate, Learned, LevelEffect
from trimtab_policy.perf.lessons import CorrectionRules, Level, Locality, key_of
from trimtab_policy.placement import topology
from trimtab_policy.types import Snapshot

_CONFIG_MAP = msgspec.json.Decoder(ConfigMapObject)


async def learned(kube: KubeSettings, reports: ReportSettings) -> Learned:
    """What the ConfigMap of the controller comes to; nothing where there is none, or where one may not read it."""
    async with await KubeClient.connect(kube) as client:
        try:
            found = await client.get(CONFIG_MAPS.path(reports.namespace, reports.config_map))
            state = read_calibration(_CONFIG_MAP.decode(found).data)
        except NotFound:
            return Learned()
        except Forbidden:
            _note(f"you may not read ConfigMap {reports.namespace}/{reports.config_map}")
            return Learned()
        except (ApiError, NotUnderstood) as error:
            _note(str(error))
            return Learned()
    return Learned(state, CorrectionRules(largest_factor=reports.largest_factor))


def _note(why: str) -> None:
    """For people: programs read the standard output."""
    say(f"trimtab: predictions are not corrected by what jobs were seen to take: {why}", error=True)


class PlanError(NamedTuple):
    """What is known of the error of predictions for a plan: factors of observed over predicted step time."""

    estimate: Estimate
    effects: tuple[LevelEffect, ...]
    """Of the levels that it comes from."""
    low: float
    """Lower end of the 80 % interval of what such a job shows."""
    high: float
    measured: float
    """How much of that interval was seen here: 0 to 1."""


def of_plan(facts: JobFacts, known: Learned, snapshot: Snapshot) -> PlanError | None:
    """Of the job's standing plan; None without one, or where nothing is known even of the cluster."""
    plan = facts.status.plan
    if plan is None or facts.error or facts.training is None:
        return None
    job = facts.as_job(created=facts.created)
    held, estimates = to_placement(job.uid, plan), known.of(job.namespace)
    nodes = {node.name: node for node in snapshot.nodes}
    spec = snapshot.gpu_types.get(plan.gpu_type)
    lies = topology.locality(spec, held.shares, nodes) if spec else Locality.UNKNOWN
    key = key_of(job, plan.gpu_type, held.plan, lies)
    found = estimates.of(key)
    return PlanError(found, estimates.effects(key), *estimates.next(found), estimates.measured) if found else None


def story(facts: JobFacts, known: Learned, snapshot: Snapshot) -> list[tuple[str, str]]:
    """What the job reports, against what was predicted, and what other jobs have taught about such predictions."""
    said: list[tuple[str, str]] = []
    observed, plan = facts.status.observed, facts.status.plan
    if observed and facts.training:
        saved = observed.last_checkpoint_step
        kept = "no checkpoint is known of" if saved is None else f"checkpoint at step {saved}"
        said.append(("Progress", f"step {observed.steps_done} of {facts.training.steps}; {kept}"))
    if plan:
        predicted = plan.predicted.step_milliseconds / 1000
        text = f"predicted {words.duration(predicted)}"
        if plan.predicted.correction_permille:
            text += f" (×{plan.predicted.correction_permille / 1000:.2f} by what other jobs took)"
        if observed and observed.step_milliseconds and observed.epoch == plan.epoch:
            taken = observed.step_milliseconds / 1000
            text = f"{words.duration(taken)}, {taken / predicted:.2f} times what was expected; {text}"
        said.append(("Step time", text))
    if found := of_plan(facts, known, snapshot):
        of_levels = (f"{_LEVEL[level]} ×{factor:.2f} ({_jobs(jobs)})" for level, factor, jobs in found.effects)
        said += [
            ("Learned", _learned(found.estimate)),
            ("By level", ", ".join(of_levels)),
            (
                "Certainty",
                f"four in five such jobs take ×{found.low:.2f} to ×{found.high:.2f}; {found.measured:.0%} of that range"
                " was seen here, the rest is believed",
            ),
        ]
    return said


def value(facts: JobFacts, known: Learned, snapshot: Snapshot) -> dict[str, Any] | None:
    """The same for programs: `low` and `high` are of the factor, `nextLow` and `nextHigh` of what a job shows; factors
    of `levels` are over the level before."""
    found = of_plan(facts, known, snapshot)
    if found is None:
        return None
    estimate = found.estimate
    return {
        "factor": round(estimate.factor, 4),
        "low": round(estimate.low, 4),
        "high": round(estimate.high, 4),
        "nextLow": round(found.low, 4),
        "nextHigh": round(found.high, 4),
        "jobs": estimate.jobs,
        "level": estimate.level.value,
        "levels": [
            {"level": level.value, "factor": round(factor, 4), "jobs": jobs} for level, factor, jobs in found.effects
        ],
        "measured": round(found.measured, 2),
    }


_LEVEL = {
    Level.CLUSTER: "cluster",
    Level.GPU_TYPE: "GPU type",
    Level.FRAMEWORK: "framework",
    Level.MODEL: "model",
    Level.PLAN: "class of plans",
    Level.LOCALITY: "locality",
}
_FROM = {
    Level.LOCALITY: "of its kind",
    Level.PLAN: "of its kind that lay otherwise in link domains",
    Level.MODEL: "of its model with other plans",
    Level.FRAMEWORK: "of other models in its framework on its GPU type",
    Level.GPU_TYPE: "in other frameworks on its GPU type",
    Level.CLUSTER: "on other GPU types",
}


def _learned(estimate: Estimate) -> str:
    by = f"{_jobs(estimate.jobs)} {_FROM[estimate.level]}"
    interval = f"{estimate.low:.2f} to {estimate.high:.2f}"
    return f"×{estimate.factor:.2f} of what the performance model says (80 %: {interval}), from {by}"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
