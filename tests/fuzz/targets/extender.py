"""What kube-scheduler may send: answered as its types want it, or refused as no request; never anything else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from tests.builders import gang_pod, node_object, pod_object
from tests.fuzz.draw import QUANTITIES, Draw, Json, served
from tests.fuzz.target import Target
from tests.fuzz.targets.tokens import finished

from trimtab import names
from trimtab.errors import NotFound, Unreachable
from trimtab.extender.pod_index import PodIndex
from trimtab.extender.verbs import Verbs
from trimtab.extender.wire import WireError, _without_nulls

NODES = ("n1", "n2", "full", "none")


class _Books(PodIndex):
    async def news(self, seconds: float) -> bool:
        return False


class _Watch:
    """Books of a cluster that does not change."""

    def __init__(self) -> None:
        self.index, self.trouble = _Books(), ""
        for name in ("n1", "n2", "full"):
            self.index.node_changed(None, node_object(name))
        self.index.pod_changed(None, pod_object("holder", "full", gpus=8))
        self.index.pod_changed(None, gang_pod("job", 3, 0, "n1", phase="Running"))


class _Binder:
    def __init__(self, draw: Draw, pod: Json) -> None:
        self._draw, self._pod = draw, pod

    async def get(self, path: str) -> bytes:
        if self._draw.chance(8):
            raise NotFound("gone")
        kept = _without_nulls(served(self._pod))
        return msgspec.json.encode(kept | {"spec": {"nodeName": self._draw.pick(("", "n1"))}})

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        if self._draw.chance(8):
            raise Unreachable("away")


_WATCH = _Watch()


def _pod(draw: Draw) -> Json:
    meta: Json = {"name": "p", "namespace": draw.text(usual=("default",)), "uid": "u"}
    if not draw.chance(4):
        owner = {"apiVersion": "trimtab.dev/v1alpha1", "kind": names.JOB_KIND, "name": "job", "uid": "uid-job"}
        meta["ownerReferences"] = [owner | {"controller": draw.pick((True, False, None))}]
        meta["annotations"] = {names.ANNOTATION_NODE: draw.text(usual=NODES), "x": draw.pick(("y", None))}
    asked = {draw.pick((names.NVIDIA_GPU, names.AMD_GPU, "cpu")): draw.pick(QUANTITIES) for _ in range(draw.below(3))}
    containers = [{"name": "c", "resources": {"limits": asked, "requests": draw.pick((asked, None, {}))}}]
    return {"metadata": meta, "spec": {"containers": containers * draw.below(3), "initContainers": None}}


def _args(draw: Draw, pod: Json) -> Json:
    body: Json = {draw.pick(("Pod", "pod", "POD")): pod}
    match draw.below(4):
        case 0 | 1:
            body["NodeNames"] = draw.listed(lambda: draw.text(usual=NODES), 6)
        case 2:
            body["Nodes"] = {"items": draw.listed(lambda: {"metadata": {"name": draw.text(usual=NODES)}}, 3)}
    if draw.chance(6):
        body[draw.pick(("nodenames", "NODENAMES", "Nodes", "pod"))] = draw.pick((None, [], ["n1"], {}, "x"))
    return body


def _preemption(draw: Draw, pod: Json) -> Json:
    victims = {draw.text(usual=NODES): {"Pods": [{"UID": "u"}], "NumPDBViolations": draw.integer()}}
    whole = {draw.text(usual=NODES): {"Pods": [{"metadata": {"uid": draw.pick(("u", None))}}]}}
    return {"Pod": pod} | draw.pick(({"NodeNameToMetaVictims": victims}, {"NodeNameToVictims": whole}, {}))


def _binding(draw: Draw) -> Json:
    return {"PodNamespace": "default", "PodName": "p", "PodUID": "u", "Node": draw.text(usual=NODES)}


def run(data: bytes) -> None:
    """One request of one verb."""
    draw = Draw(data)
    verb, pod = draw.pick(("filter", "prioritize", "preempt", "bind")), _pod(draw)
    _WATCH.trouble = draw.pick(("", "", "away"))
    said = {"preempt": _preemption, "bind": lambda draw, pod: _binding(draw)}.get(verb, _args)(draw, pod)
    binder: Any = _Binder(draw, pod)
    watch: Any = _WATCH  # both answer what the verbs ask, and nothing else
    verbs = Verbs(watch, binder)
    body = draw.rest() if draw.chance(16) else draw.encoded(draw.spoiled(said))
    try:
        answer = finished(verbs.by_path[f"/{verb}"](body))
    except WireError as error:
        assert len(str(error)) < 20_000
        return
    try:
        body.decode()
    except UnicodeDecodeError:
        return  # what was no text goes back as it came
    _check(verb, json.loads(answer))


def _check(verb: str, said: Any) -> None:
    match verb:
        case "filter":
            assert said["Error"] == ""
            assert isinstance(said["FailedAndUnresolvableNodes"], dict)
            assert said["NodeNames"] is None or isinstance(said["NodeNames"], list)
        case "prioritize":
            assert all(0 <= each["Score"] <= 10 and isinstance(each["Host"], str) for each in said)
        case "preempt":
            assert isinstance(said["NodeNameToMetaVictims"], dict)
        case "bind":
            assert isinstance(said["Error"], str)


TARGET = Target("requests of kube-scheduler: filter, prioritize, preempt, bind", run)
