"""What agents report: whatever it is, facts are finite and possible, and judging them has an answer."""

from __future__ import annotations

import math

import msgspec
from tests.builders import NOW, fault, gpu_reading, node_object
from tests.fuzz.draw import TIMES, Draw, Json
from tests.fuzz.target import Target

from trimtab import names
from trimtab.api.gpunode import GPUNode
from trimtab.api.schema import structural
from trimtab.kube.objects import GpuNodeObject, Meta
from trimtab.observe import nodes, telemetry
from trimtab.observe.gpunodes import GpuNodes
from trimtab.settings import TelemetrySettings

_STATUS = structural(GPUNode)["properties"]["status"]
_READING = _STATUS["properties"]["gpus"]["items"]
_NODES = {name: found for name in ("n1", "n2") if (found := nodes.facts(node_object(name), ()))}
_SETTINGS = TelemetrySettings()


def _reading(draw: Draw, index: int, node: str) -> Json:
    gpu = gpu_reading(index, node)
    if draw.chance(2):
        gpu |= {k: v for k, v in draw.fields(_READING).items() if draw.byte() & 1 or k not in ("uuid", "index")}
    if draw.chance(4):
        gpu["faults"] = draw.listed(
            lambda: fault(draw.pick(("Xid", "Lost", "RowRemapFailure", "UncorrectableEcc", "x")),
                          draw.pick((79, 0, 48, 31, 10**9)), draw.pick(TIMES))
        )  # fmt: skip
    if draw.chance(4):
        gpu["pods"] = draw.listed(lambda: draw.text(usual=("default/a", "default/b")))
    return gpu


def _status(draw: Draw, node: str, turn: int) -> Json:
    gpus = [_reading(draw, index, node) for index in range(draw.pick((2, 8, 0, 1)))]
    status: Json = {"observedTime": f"report {turn}", "periodSeconds": 30, "bootId": "boot", "gpus": gpus}
    if draw.chance(4):
        status |= {k: v for k, v in draw.fields(_STATUS).items() if k != "gpus"}
    if draw.chance(8):
        judged = {"type": names.HEALTHY, "status": draw.pick(("False", "True", "Unknown")), "reason": draw.text()}
        status["conditions"] = [judged | {"message": draw.text(), "lastTransitionTime": draw.pick(TIMES)}]
    return status


def run(data: bytes) -> None:
    """Several reports of two nodes, and looks at them."""
    draw, clock = Draw(data), [0.0]
    heard = GpuNodes(_SETTINGS, clock=lambda: clock[0], wall=lambda: NOW + clock[0])
    for turn in range(1 + draw.below(4)):
        node = draw.pick(("n1", "n2"))
        raw = draw.rest() if draw.chance(16) else draw.encoded(draw.spoiled(_status(draw, node, turn)))
        if not _is_json(raw):  # the API server sends none
            continue
        annotations = {names.ANNOTATION_REPAIRED: draw.pick(TIMES)} if draw.chance(6) else {}
        obj = GpuNodeObject(Meta(node, uid=draw.pick(("u", "v")), annotations=annotations), msgspec.Raw(raw))
        _check(telemetry.read_telemetry(obj))
        heard.take(obj)
        clock[0] += draw.pick((10.0, 0.0, 200.0, 1e9))
        _look(heard, draw)


def _is_json(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _check(told: telemetry.NodeTelemetry) -> None:
    assert 1 <= told.period <= 3600
    for gpu in told.gpus:
        for figure in msgspec.structs.astuple(gpu):
            assert not isinstance(figure, float) or figure != figure or abs(figure) <= telemetry.BYTES, gpu
    means = told.means(NOW)
    for share in (means.utilization, means.memory_bandwidth, means.power):
        assert share != share or 0 <= share <= 1.0001, means
    assert means.memory_used != means.memory_used or 0 <= means.memory_used <= 1.02, means
    msgspec.json.encode(means)


def _look(heard: GpuNodes, draw: Draw) -> None:
    look = heard.look(_NODES, lambda name: draw.pick((0, 8)))
    assert all(0 < gpus <= 8 for gpus in look.foreign.values()), look.foreign
    assert all(isinstance(why, str) and why for why in look.unavailable.values())
    assert all(problem.message for problem in look.problems)
    assert heard.next_deadline() >= 0
    for told, said, since in heard.untold():
        assert said.reason
        assert math.isfinite(since), told
    for name in _NODES:
        heard.must_leave(name, ["default/a"], NOW)


TARGET = Target("statuses of GPUNodes, as agents write them", run)
