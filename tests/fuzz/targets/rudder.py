"""Rudder, with weights from elsewhere and jobs at their edges: a decision that is finite, or one documented error."""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import astuple
from tests.builders import A100, H100, NOW, job, node, placement, snapshot
from tests.fuzz.draw import Draw
from tests.fuzz.target import Target

from trimtab_policy.learned import rudder, worth
from trimtab_policy.learned.guards import LONGEST_WAIT
from trimtab_policy.learned.rudder import Rudder
from trimtab_policy.learned.store import WeightsError
from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.scheduling.shield import check
from trimtab_policy.types import Correction, Job, Node, Quota, Snapshot

_FIGURES = (0.0, 1.0, -1.0, 1e-9, 30.0, -700.0, 1e6, -1e38, 1e38, 3e38)
"""Finite, as `store.load` has it, in float32."""
_STEPS = (1000, 1, 10**6, 10**9)
_AGES = (60.0, -3600.0, 0.0, LONGEST_WAIT - 1, LONGEST_WAIT, 30 * 86_400.0, 56 * 365 * 86_400.0)
_FACTORS = (1.0, 1e-3, 1e3)


def _weights(draw: Draw) -> dict[str, np.ndarray]:
    """Arrays of a file that `store.load` let through: finite, of the right names, of any shape."""
    shapes = {**worth.SHAPES, worth.RANGES: (2, worth.FEATURES)}
    found = {name: np.zeros(shape) for name, shape in shapes.items()} | {"constants": worth.ANALYTIC.copy()}
    found[worth.RANGES][:] = [[-3.0], [3.0]]
    for _ in range(draw.below(6)):
        array = found[draw.pick(tuple(shapes))]
        array.flat[draw.below(array.size)] = draw.pick(_FIGURES) if draw.chance(2) else draw.number(-1e38, 1e38)
    if draw.chance(12):
        found[draw.pick(tuple(shapes))] = np.zeros(draw.pick(((), (1,), (0, 17), (12, 17, 1))))
    return found


def _job(draw: Draw, number: int) -> Job:
    low = draw.pick((1, 1, 2, 8))
    held = placement(f"uid-j{number}", {f"n{draw.below(3)}": draw.pick((1, 4, 8))}, draw.pick((A100, H100)))
    runs = draw.chance(3)
    elastic = draw.chance(2)
    age = draw.pick(_AGES)
    return job(
        f"j{number}",
        gpus=(low, low * draw.pick((1, 2, 8, 2048))),
        model="gpt2" if runs else draw.pick(("gpt2", "gpt2", "llama3-8b")),  # what runs can run
        steps=draw.pick(_STEPS),
        global_batch_size=64 if runs else draw.pick((64, 1, 65_536)),
        gpu_types=draw.pick(((), (), (A100,), tuple(f"x{n}" for n in range(1000)), (H100, "x"))),
        namespace=draw.pick(("a", "b")),
        queue=draw.pick(("", "q")),
        created=NOW - age,
        waits_since=draw.pick((None, NOW, NOW - age / 2)),
        priority=draw.pick((0, 0, 1, 2, -(2**31), 2**31 - 1)),
        entitled=draw.chance(4),
        restarts=draw.pick((0, 5, 6, 10**9)),
        steps_done=draw.pick((0, 1, 10**9)),
        elastic=elastic,
        placement=held if runs else None,
        preemptible=runs and elastic and not draw.chance(3),
        started=draw.pick((None, NOW - 1, NOW - age)) if runs else None,
        expected_finish=draw.pick((None, NOW - 60, NOW + 1.0, NOW + 1e9)) if runs else None,
        served=draw.pick(({}, {A100: 3600.0}, {H100: 1e15})),
        restart_seconds=draw.pick((0.0, 60.0, 1e9)),
        lost_seconds=draw.pick((0.0, 1e9)),
        corrections=(Correction(A100, "", draw.pick(_FACTORS), 1.2),) if draw.chance(3) else (),
    )


def _snapshot(draw: Draw) -> Snapshot:
    jobs = [_job(draw, number) for number in range(1 + draw.below(6))]
    free = {f"n{number}": 8 for number in range(3)}
    types = dict.fromkeys(free, A100)
    kept: list[Job] = []
    for each in jobs:
        if each.placement:
            (share,) = each.placement.shares
            if free[share.node] < share.gpus or each.placement.gpu_type != types[share.node]:
                continue
            free[share.node] -= share.gpus
        kept.append(each)
    nodes: list[Node] = [
        node(name, types[name], free=left, link_domain=draw.pick(("", "c"))) for name, left in free.items()
    ]
    nodes.append(node("h", H100))
    quotas = [Quota("q", draw.pick((ALL_TYPES, A100)), draw.pick((0, 4, 64, 10**9)))] if draw.chance(2) else []
    return snapshot(nodes, kept, quotas=quotas, speedup=draw.pick((1.0, 1.0, 1800.0)))


def run(data: bytes) -> None:
    """One decision by weights of somebody else."""
    draw = Draw(data)
    try:
        policy = Rudder(rudder.trained(_weights(draw)))
    except WeightsError as error:
        assert "shape" in str(error)
        return
    now = _snapshot(draw)
    try:
        decision = policy.decide(now)
    except ValueError as error:  # isolation then leaves out that job, or another policy decides
        assert "no finite number" in str(error)
        return
    answered = [each.job for each in (*decision.placements, *decision.pending)]
    assert len(answered) == len({*answered})
    assert {each.uid for each in now.waiting()} <= {*answered}
    for each in decision.placements:
        assert all(math.isfinite(figure) and figure > 0 for figure in astuple(each.prediction))
        assert all(math.isfinite(other.prediction.step_seconds) for other in each.alternatives)
    refused = check(now, decision).refused
    # The shield's to keep: a worth below zero stops a gang for nobody.
    assert {each.rule for each in refused} <= {"nobody_gains"}, refused
    known = {each.uid for each in now.jobs}
    for doubt in decision.doubts:
        assert {*doubt.jobs} <= known
        assert doubt.message
        assert len(doubt.message) < 500


TARGET = Target("rudder: weights from elsewhere, and jobs at their edges", run)
