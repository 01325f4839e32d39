"""Job objects, as the API server admits them or an older one did: understood or found wrong, and decided about.

A spec meets the schema but for a part; its status is what a controller wrote, tweaked. Whatever it says, its facts can
be told, a policy answers with finite figures or a reason in words, and the plan can be written and read again.
"""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import msgspec
from tests.builders import H100, JOB_SPEC, NOW, T4, node, placement, plan_of, snapshot
from tests.fuzz.draw import QUANTITIES, Draw, Json
from tests.fuzz.target import Target

from trimtab.api.convert import to_placement
from trimtab.api.schema import structural
from trimtab.api.status import JobStatus
from trimtab.api.v1alpha1 import JobSpec
from trimtab.errors import SpecError
from trimtab.kube.objects import JobObject, Meta
from trimtab.observe import jobs
from trimtab.telemetry import metrics
from trimtab.ui import words
from trimtab_policy import policy

_SCHEMA = structural(JobSpec)
_CLUSTER = (node("n1"), node("n2"), node("h1", H100), node("t1", T4, 4))
_ISOLATED = metrics.ISOLATED_ERRORS.labels("spec")
_POLICIES = [policy.load("fcfs"), policy.load("best_fit")]
_STATUS: Json = JobStatus(plan=plan_of(placement(nodes={"n1": 8}), 3), last_epoch=3).to_wire()
_USUAL: dict[str, tuple[Any, ...]] = {
    "gpus": ({"min": 1, "max": 8}, {"min": 1, "max": 16384}, {"min": 2, "max": 2}, {"max": 4}),
    "model": ({"preset": "gpt2"}, {"preset": "llama3-8b"}, {"preset": "mixtral-8x7b"}),
    "launcher": ("Torchrun", "Megatron", "Torchtitan", "DeepSpeed", "Custom"),
}


def _spec(draw: Draw) -> Json:
    spec: Json = copy.deepcopy(JOB_SPEC)
    spec["model"] = dict(draw.pick(_USUAL["model"]))
    spec["resources"]["gpus"] = dict(draw.pick(_USUAL["gpus"]))
    spec["launcher"] = draw.pick(_USUAL["launcher"])
    for name, field in _SCHEMA["properties"].items():
        if name == "template" or not draw.chance(5):
            continue
        drawn = draw.of(field)
        spec[name] = {**spec[name], **drawn} if isinstance(spec.get(name), dict) and isinstance(drawn, dict) else drawn
    for part, first, second in (("training", "steps", "tokens"), ("model", "architecture", "preset")):
        if isinstance(spec[part], dict) and first in spec[part] and second in spec[part]:
            del spec[part][draw.pick((first, second))]
    if draw.chance(4):
        spec["template"] = {"metadata": draw.json(2), "spec": _pod(draw)}
    return spec


def _pod(draw: Draw) -> Json:
    asked = {
        draw.pick(("cpu", "memory", "nvidia.com/gpu", "x.y/z")): draw.pick(QUANTITIES) for _ in range(draw.below(4))
    }
    container: Json = {"name": "trainer", "image": draw.text(usual=("trainer:1",))}
    container["resources"] = draw.pick(({"requests": asked}, {"limits": asked}, None, {"requests": None}, {}))
    spec: Json = {"containers": [container] * (1 + draw.below(3))}
    for name in ("initContainers", "overhead", "nodeSelector", "tolerations", "affinity", "resources"):
        if draw.chance(6):
            spec[name] = draw.pick(([container], asked, {"x": "y"}, None, draw.json(2)))
    return spec


def _isolated() -> float:
    """Of this counter alone: to collect all of them takes as long as the rest of a run."""
    return sum(each.value for each in _ISOLATED.collect()[0].samples if each.name.endswith("_total"))


def run(data: bytes) -> None:
    """One job, and a policy that decides about it."""
    draw = Draw(data)
    raw = draw.encoded(draw.spoiled(_spec(draw)))
    status = draw.encoded(draw.tweaked(copy.deepcopy(_STATUS))) if draw.chance(3) else b"{}"
    if not (_is_object(raw) and _is_object(status)):
        return
    obj = JobObject(Meta("job", "default", uid="u", generation=1), msgspec.Raw(raw), msgspec.Raw(status))
    before = _isolated()
    facts = jobs.facts(obj)
    assert _isolated() == before, facts.error
    for told in (facts.expected_finish(), facts.retry_at(), facts.waits_since):
        assert told is None or math.isfinite(told)
    assert words.state(facts)
    assert isinstance(facts.steps_done(), int)
    try:
        job = facts.as_job(created=NOW)
    except SpecError as error:
        assert str(error)
        return
    _decide(draw, job)


def _is_object(raw: bytes) -> bool:
    """What the API server keeps: an object, no name in it twice, its texts in Unicode, not nested for ever."""
    try:
        return isinstance(json.loads(raw.decode()), dict) and isinstance(msgspec.json.decode(raw), dict)
    except (ValueError, RecursionError):
        return False


def _decide(draw: Draw, job: Any) -> None:
    decision = draw.pick(_POLICIES).decide(snapshot(_CLUSTER, [job]))
    assert len(decision.placements) + len(decision.pending) == 1
    for found in decision.placements:
        figures = msgspec.structs.astuple(found.prediction)
        assert all(math.isfinite(figure) and figure > 0 for figure in figures), found
        status = JobStatus(plan=plan_of(found), last_epoch=1)
        again = JobStatus.model_validate_json(json.dumps(status.to_wire()))
        assert again == status
        assert again.plan
        assert to_placement(job.uid, again.plan).shares == found.shares
    for pending in decision.pending:
        assert pending.message
        assert pending.eta is None or all(map(math.isfinite, msgspec.structs.astuple(pending.eta)))


TARGET = Target("LLMTrainingJobs: read, decided about, and their plans written down", run)
