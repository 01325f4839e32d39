"""Queues: one that nobody understands is closed, and whatever the others say, jobs are in line or told why not."""

from __future__ import annotations

import json

import msgspec
from tests.builders import NOW, job_object, node_object, queue_object
from tests.fuzz.draw import Draw, Json
from tests.fuzz.target import Target
from tests.fuzz.targets.jobs import _is_object

from trimtab.api.schema import structural
from trimtab.api.v1alpha1 import QueueSpec, QueueStatus
from trimtab.kube.objects import Meta, QueueObject
from trimtab.observe import jobs, nodes, queues
from trimtab_policy.types import Quota

_SPEC, _STATUS = structural(QueueSpec), structural(QueueStatus)
_NODES = [found for name in ("n1", "n2") if (found := nodes.facts(node_object(name), ()))]
_JOBS = [
    jobs.facts(job_object(name, {"queue": queue} if queue else {}, namespace=namespace))
    for name, queue, namespace in (("a", "q", "team-a"), ("b", None, "team-b"), ("c", "gone", "team-a"))
]


def _spec(draw: Draw) -> Json:
    spec = draw.fields(_SPEC, one_in=2)
    if draw.chance(2):
        spec["namespaces"] = draw.listed(lambda: draw.text(63, usual=("team-a", "team-b")), 3)
    if draw.chance(2):
        kind = {"gpuType": draw.pick(("*", "A100-SXM4-80GB", "A100", "H100", "x"))}
        spec["quotas"] = draw.listed(
            lambda: kind | {"gpus": draw.integer(0, 100), "guaranteed": draw.integer(0, 100)}, 3
        )
    return spec


def run(data: bytes) -> None:
    """A few queues, and the line of three jobs."""
    draw = Draw(data)
    found = [queues.facts(queue_object("z"))]
    for name in ("q", "r")[: 1 + draw.below(2)]:
        spec = draw.encoded(draw.spoiled(_spec(draw)))
        status = draw.encoded(draw.spoiled(draw.fields(_STATUS))) if draw.chance(3) else b"{}"
        if not (_is_object(spec) and _is_object(status)):
            return
        facts = queues.facts(QueueObject(Meta(name, uid=name), msgspec.Raw(spec), msgspec.Raw(status)))
        assert not facts.error or facts.quotas == (Quota(name, "*", 0),)
        assert all(0 <= quota.guaranteed < 1 << 62 and 0 <= quota.gpus < 1 << 62 for quota in facts.quotas)
        found.append(facts)
    line = queues.Queues(found)
    assert all(weight > 0 for weight in line.weights.values())
    assert all(problem.message for problem in line.problems(_NODES))
    out = line.beyond([(job, draw.pick((0, 1 << 31))) for job in _JOBS], NOW, draw.pick((0, 1, 100)))
    for job in _JOBS:
        assert isinstance(line.of(job), str)
        for pending in (line.refusal(job), out.get(job.meta.uid)):
            assert pending is None or (pending.message and json.dumps(pending.alternatives))


TARGET = Target("Queues: limits, guarantees, whose jobs", run)
