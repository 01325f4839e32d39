"""What drivers of dynamic resource allocation and claims say: it costs its node, and no GPU is there or held twice."""

from __future__ import annotations

import msgspec
from tests.builders import NOW, gang_pod, job_object, placement, plan_of, pod_object
from tests.devices import bare_node, claim_object, device_class, nvidia_gpu, nvidia_mig, slice_manifest
from tests.fuzz.draw import QUANTITIES, Draw, Json
from tests.fuzz.target import Target

from trimtab import names
from trimtab.api.status import JobStatus
from trimtab.kube.objects import ResourceClaimObject, ResourceSliceObject
from trimtab.observe.gpus import MOST_GPUS, MOST_MEMORY
from trimtab.observe.snapshot import Caches, ClusterObserver
from trimtab.telemetry import metrics

_NODES = [bare_node(name) for name in ("n1", "n2")]
_OWN = {"resourceClaims": [{"name": "gpus", "resourceClaimName": "c"}]}
_PODS = [
    gang_pod("job", 1, 0, "n1", gpus=0, spec=_OWN),
    gang_pod("job", 1, 1, gpus=8),
    pod_object("foreign", "n1", gpus=2),
    pod_object("claims", "n2", spec=_OWN),
]
_JOB = job_object(status=JobStatus(plan=plan_of(placement(nodes={"n1": 4, "n2": 4})), last_epoch=1))
_PARTS = [metrics.ISOLATED_ERRORS.labels(part) for part in ("devices", "claims", "node")]
_CLASSES = ((), (device_class(),), (device_class(resource=""), device_class(names.AMD_DRIVER, "")))
_SLICE = msgspec.json.Decoder(ResourceSliceObject)
_CLAIM = msgspec.json.Decoder(ResourceClaimObject)
_DEVICES = (*(f"gpu-{index}" for index in range(8)), "gpu-0-mig-1g10gb-19-0", "x")


def _device(draw: Draw, index: int) -> Json:
    device = nvidia_mig(index % 8, draw.below(3)) if draw.chance(6) else nvidia_gpu(index)
    if draw.chance(3):
        name = draw.pick(("productName", "uuid", "type", "cudaComputeCapability"))
        kind = draw.pick(("string", "version"))
        device["attributes"][name] = {kind: draw.text(64, usual=("gpu", "amdgpu", "NVIDIA H200"))}
    if draw.chance(5):
        device["capacity"]["memory"]["value"] = draw.pick(QUANTITIES)
    if draw.chance(5):
        device["taints"] = [{"key": draw.text(63), "effect": draw.pick(("NoSchedule", "NoExecute", "None", "x"))}]
    return device


def _slices(draw: Draw) -> list[ResourceSliceObject]:
    found = []
    for number in range(draw.pick((2, 1, 4, 6))):
        made = slice_manifest(
            draw.pick(("n1", "n2", "", "gone")),
            [_device(draw, index) for index in range(draw.pick((8, 1, 0, 3)))],
            driver=draw.pick((names.NVIDIA_DRIVER, names.NVIDIA_DRIVER, names.AMD_DRIVER, "x")),
            pool=draw.pick(("", "n1", "other")),
            generation=draw.pick((1, 1, 2, -1, 1 << 62)),
            count=draw.pick((1, 1, 2, 0, 1 << 40)),
            number=number,
        )
        try:
            found.append(_SLICE.decode(draw.encoded(draw.spoiled(made))))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # told as unreadable, and left out
    return found


def _claims(draw: Draw) -> list[ResourceClaimObject]:
    found = []
    for number in range(draw.pick((1, 0, 3))):
        owner = {"apiVersion": "v1", "name": "x", "kind": draw.pick(("Pod", "Job"))}
        owner["uid"] = draw.pick(("pod-claims", "y"))
        made = claim_object(
            f"c{number}",
            draw.pick(("n1", "n2", "other")),
            draw.listed(lambda: draw.pick(_DEVICES), 9),
            *draw.listed(lambda: draw.pick(tuple(pod.metadata.uid for pod in _PODS)), 3),
            admin=draw.chance(6),
            metadata={"ownerReferences": [owner]} if draw.chance(3) else {},
        )
        try:
            found.append(_CLAIM.decode(draw.encoded(draw.spoiled(msgspec.to_builtins(made)))))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return found


def _isolated() -> float:
    """Of these counters alone: to collect all of them takes as long as the rest of a run."""
    return sum(each.value for part in _PARTS for each in part.collect()[0].samples if each.name.endswith("_total"))


def run(data: bytes) -> None:
    """Two looks at a cluster of two nodes, with a gang, a pod that asks by request and one that does by claim."""
    draw, observer, before = Draw(data), ClusterObserver(()), _isolated()
    for _ in range(2):
        slices, claims, classes = _slices(draw), _claims(draw), draw.pick(_CLASSES)
        caches = Caches(_NODES, _PODS, [_JOB], slices=slices, claims=claims, device_classes=classes)
        seen = observer.observe(caches, NOW)
        assert seen.nodes.keys() == {"n1", "n2"}, "a plan lies on both"
        for name, facts in seen.nodes.items():
            offered = sum(len(each.spec.devices) for each in slices if each.spec.node_name == name)
            assert 0 <= facts.gpus + facts.withdrawn <= min(offered, MOST_GPUS)
            assert (facts.gpu is None) == bool(facts.unavailable)
            assert facts.gpu is None or 0 < facts.gpu.memory_bytes <= MOST_MEMORY
            assert all(problem.message for problem in facts.problems)
        allocated = [claim.status.allocation for claim in claims if claim.status.allocation]
        held = {(each.pool, each.device) for found in allocated for each in found.devices.results}
        for node in seen.snapshot.nodes:
            assert node.gpus >= node.free_gpus >= node.gpus - 4 - 2 - len(held), "each GPU is charged once"
    assert _isolated() == before


TARGET = Target("ResourceSlices and ResourceClaims, as drivers and schedulers write them", run)
