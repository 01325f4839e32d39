"""What the controller has learned from running jobs, for commands that explain: read, applied, and in words."""

from __future__ import annotations

from typing import Any

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
from trimtab_policy.perf.correction import CorrectionRules, Estimate, Learned, key_of

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


def of_plan(facts: JobFacts, known: Learned) -> Estimate | None:
    """What is known of the error of predictions for the job's standing plan."""
    plan = facts.status.plan
    if plan is None or facts.error or facts.training is None:
        return None
    job = facts.as_job(created=facts.created)
    return known.of(job.namespace).of(key_of(job, plan.gpu_type, to_placement(job.uid, plan).plan))


def story(facts: JobFacts, known: Learned) -> list[tuple[str, str]]:
    """What the job reports, against what was predicted, and what other jobs have taught about such predictions."""
    said: list[tuple[str, str]] = []
    observed, plan = facts.status.observed, facts.status.plan
    if observed and facts.training:
        saved = observed.last_checkpoint_step
        kept = "no checkpoint is known of" if saved is None else f"checkpoint at step {saved}"
        said.append(("Progress", f"step {observed.steps_done} of {facts.training.steps}; {kept}"))
    if plan:
        predicted = plan.predicted.step_milliseconds / 1000
        text = f"predicted {words.duration(predicted)} a step"
        if plan.predicted.correction_permille:
            text += f" (×{plan.predicted.correction_permille / 1000:.2f} by what other jobs took)"
        if observed and observed.step_milliseconds and observed.epoch == plan.epoch:
            taken = observed.step_milliseconds / 1000
            text = f"{words.duration(taken)} a step, {taken / predicted:.2f} times what was expected; {text}"
        said.append(("Step time", text))
    if estimate := of_plan(facts, known):
        said.append(("Learned", _learned(estimate)))
    return said


def value(facts: JobFacts, known: Learned) -> dict[str, Any] | None:
    """The same for programs."""
    estimate = of_plan(facts, known)
    if estimate is None:
        return None
    return {
        "factor": round(estimate.factor, 4),
        "low": round(estimate.low, 4),
        "high": round(estimate.high, 4),
        "jobs": estimate.jobs,
    }


def _learned(estimate: Estimate) -> str:
    many = f"{estimate.jobs} jobs of its kind"
    by = {0: "other jobs on its GPU type", 1: "1 job of its kind"}.get(estimate.jobs, many)
    interval = f"{estimate.low:.2f} to {estimate.high:.2f}"
    return f"×{estimate.factor:.2f} of what the performance model says (80 %: {interval}), from {by}"
