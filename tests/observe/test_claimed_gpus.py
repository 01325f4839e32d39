"""Nodes whose GPUs come by dynamic resource allocation, from the API's objects to the snapshot that policies see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tests.builders import A100, H100, NOW, gang_pod, job_object, node_object, placement, plan_of, pod_object
from tests.devices import bare_node, claim_object, device_class, nvidia_gpu, slice_object

from trimtab import names
from trimtab.api.status import JobStatus
from trimtab.kube.objects import DeviceTaint, JobObject, PodObject, ResourceClaimObject, SliceDevice
from trimtab.observe import devices
from trimtab.observe.gpus import Obstacle
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab_policy.types import Placement

SLICES = [slice_object("n1"), slice_object("n2")]
CLASSES = [device_class()]
FOUR = [f"gpu-{index}" for index in range(4)]
OWN = {"resourceClaims": [{"name": "gpus", "resourceClaimName": "c"}]}


def observed(
    pods: Iterable[PodObject] = (),
    claims: Iterable[ResourceClaimObject] = (),
    jobs: Iterable[JobObject] = (),
    *,
    observer: ClusterObserver | None = None,
    slices: Iterable[Any] = SLICES,
    nodes: Iterable[Any] = (bare_node("n1"), bare_node("n2")),
) -> Observation:
    caches = Caches(nodes, pods, jobs, slices=slices, claims=claims, device_classes=CLASSES)
    return (observer or ClusterObserver(())).observe(caches, NOW)


def planned(given: Placement) -> JobStatus:
    return JobStatus(plan=plan_of(given), last_epoch=1)


def free(seen: Observation) -> dict[str, int]:
    return {node.name: node.free_gpus for node in seen.snapshot.nodes}


# --- what is there ---------------------------------------------------------------------------------------------------
def test_nodes_that_no_device_plugin_speaks_of_are_seen_by_their_slices() -> None:
    clique = bare_node("n2", **{"nvidia.com/gpu.clique": "fabric.1"})
    first, second = observed(nodes=(bare_node("n1"), clique)).snapshot.nodes
    assert (first.name, first.gpu_type, first.gpus, first.free_gpus, first.link_domain) == ("n1", H100, 8, 8, "")
    assert second.link_domain == "fabric.1"


@pytest.mark.parametrize("offered", [None, "0", "8"])
def test_a_device_plugin_that_offers_gpus_counts_more_than_slices(offered: str | None) -> None:
    node = node_object("n1", A100, allocatable={names.NVIDIA_GPU: offered})
    [seen] = observed(nodes=[node]).snapshot.nodes
    assert seen.gpu_type == (A100 if offered == "8" else H100)


def test_without_kube_scheduler_nobody_allocates_them_and_that_is_said_of_the_node() -> None:
    seen = observed(observer=ClusterObserver((), allocates=False))
    assert not seen.snapshot.nodes
    assert "binding.mode to Extender" in seen.snapshot.unavailable["n1"]
    assert seen.nodes["n1"].obstacle is Obstacle.NEEDS_SCHEDULER
    assert [problem.reason for problem in seen.problems_of("n1")] == ["UnusableGpus"]


def test_tainted_devices_are_withdrawn_and_told() -> None:
    lost = nvidia_gpu(0, taints=[{"key": "gpu.nvidia.com/gpu-lost", "effect": "NoSchedule"}])
    seen = observed(slices=[slice_object("n1", [lost, *(nvidia_gpu(index) for index in range(1, 8))])])
    assert (seen.nodes["n1"].gpus, seen.nodes["n1"].withdrawn) == (7, 1)
    assert [problem.reason for problem in seen.problems_of("n1")] == ["TaintedDevice"]


def test_a_change_of_one_nodes_slices_leaves_the_facts_of_others_as_they_are() -> None:
    observer, nodes = ClusterObserver(()), (bare_node("n1"), bare_node("n2"))
    before = observed(observer=observer, nodes=nodes).nodes
    fewer = slice_object("n2", [nvidia_gpu(0)], generation=2)
    after = observed(observer=observer, nodes=nodes, slices=[SLICES[0], fewer]).nodes
    assert after["n1"] is before["n1"]
    assert (before["n2"].gpus, after["n2"].gpus) == (8, 1)


def test_a_node_whose_slices_are_gone_is_there_still_for_the_gang_that_runs_on_it() -> None:
    status = planned(placement(nodes={"n1": 8}, gpu_type=H100))
    pods = [gang_pod("job", 1, 0, "n1", phase="Running")]
    observer, node = ClusterObserver(()), bare_node("n1")
    seen = observed(pods, jobs=[job_object(status=status)], slices=(), nodes=(node, bare_node("n2")), observer=observer)
    assert seen.nodes.keys() == {"n1"}
    assert seen.nodes["n1"].ready
    assert seen.snapshot.unavailable == {"n1": "offers no GPUs (any more)"}
    facts = observer.node(node)
    assert facts
    assert facts.ready


def test_slices_that_we_have_a_bug_for_cost_their_node_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What claims hold elsewhere stays held: else the GPUs of everybody would look free."""

    def cursed(pool: str, device: SliceDevice, ruled: Iterable[tuple[DeviceTaint, str]]) -> devices.GpuDevice:
        if pool == "n1":
            raise ZeroDivisionError
        return sound(pool, device, ruled)

    sound = devices._gpu
    monkeypatch.setattr(devices, "_gpu", cursed)
    claims = [claim_object("c", "n1", FOUR, "pod-a"), claim_object("d", "n2", FOUR, "pod-b")]
    seen = observed(claims=claims)
    assert free(seen) == {"n2": 4}
    assert "cannot be understood" in seen.snapshot.unavailable["n1"]
    assert (seen.nodes["n1"].obstacle, seen.nodes["n1"].ready) == (Obstacle.UNREADABLE, True)


def test_a_claim_that_we_have_a_bug_for_costs_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def cursed(claim: ResourceClaimObject) -> set[str]:
        if claim.metadata.name == "c":
            raise ZeroDivisionError
        return sound(claim)

    sound = devices._consumers
    monkeypatch.setattr(devices, "_consumers", cursed)
    claims = [claim_object("c", "n1", FOUR, "pod-a"), claim_object("d", "n1", ["gpu-4"], "pod-b")]
    assert free(observed(claims=claims)) == {"n1": 7, "n2": 8}


@pytest.mark.parametrize("memory", ["9" * 5000, "1e99", "0", "-1", "much", "1" + "0" * 40])
def test_an_amount_of_memory_that_no_gpu_has_is_none(memory: str) -> None:
    odd = [nvidia_gpu(index, product="NVIDIA H999", memory=memory) for index in range(8)]
    seen = observed(slices=[slice_object("n1", odd), SLICES[1]])
    assert free(seen) == {"n2": 8}
    assert seen.nodes["n1"].obstacle is Obstacle.UNKNOWN_PRODUCT


def test_nothing_is_computed_anew_while_no_claim_and_no_slice_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []

    def counted(claim: ResourceClaimObject) -> set[str]:
        computed.append(claim.metadata.name)
        return sound(claim)

    sound = devices._consumers
    monkeypatch.setattr(devices, "_consumers", counted)
    observer, held = ClusterObserver(()), claim_object("c", "n1", FOUR, "pod-a")
    for _ in range(3):
        observed(claims=[held], observer=observer)
    assert computed == ["c"]
    observed(claims=[held, claim_object("d", "n2", FOUR, "pod-b")], observer=observer)
    assert computed == ["c", "d"]


# --- in which way they are asked for ---------------------------------------------------------------------------------
BY_CLASS = [device_class(resource="")]
CLASS = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
PLUGIN = {"allocatable": {names.NVIDIA_GPU: "8"}}


def mixed(plugins: int, classes: int, observer: ClusterObserver | None = None) -> Observation:
    """So many nodes of one type by a device plugin, and by a DeviceClass that has no extended resource."""
    nodes = [node_object(f"p{index}", H100, **PLUGIN) for index in range(plugins)]
    nodes += [bare_node(f"c{index}") for index in range(classes)]
    slices = [slice_object(f"c{index}") for index in range(classes)]
    caches = Caches(nodes, [], [], slices=slices, device_classes=BY_CLASS)
    return (observer or ClusterObserver(())).observe(caches, NOW)


@pytest.mark.parametrize(
    ("plugins", "classes", "takes"),
    [(2, 1, {"p0", "p1"}), (1, 2, {"c0", "c1"}), (1, 1, {"p0"}), (1, 0, {"p0"}), (0, 1, {"c0"})],
)
def test_only_the_more_common_resource_of_a_type_takes_pods(plugins: int, classes: int, takes: set[str]) -> None:
    seen = mixed(plugins, classes)
    assert free(seen) == dict.fromkeys(takes, 8)
    others = seen.nodes.keys() - takes
    assert seen.snapshot.unavailable.keys() == others
    for name in others:
        facts = seen.nodes[name]
        assert f"are asked for by {facts.resource}, most {H100} by" in seen.snapshot.unavailable[name]
        assert [problem.reason for problem in seen.problems_of(name)] == ["OtherResource"]


def test_another_type_is_asked_for_in_its_own_way() -> None:
    nodes = [node_object("p", A100), bare_node("c")]
    seen = ClusterObserver(()).observe(Caches(nodes, [], [], slices=[slice_object("c")], device_classes=BY_CLASS), NOW)
    assert free(seen) == {"p": 8, "c": 8}
    assert seen.nodes["c"].resource == CLASS


def test_a_gang_on_nodes_of_the_other_way_runs_on() -> None:
    nodes = [*(node_object(name, H100, **PLUGIN) for name in ("p0", "p1")), bare_node("c0")]
    status = planned(placement(nodes={"c0": 8}, gpu_type=H100))
    pods = [gang_pod("job", 1, 0, "c0", phase="Running", gpus=0, spec=OWN)]
    caches = Caches(nodes, pods, [job_object(status=status)], slices=[slice_object("c0")], device_classes=BY_CLASS)
    seen = ClusterObserver(()).observe(caches, NOW)
    assert free(seen) == {"p0": 8, "p1": 8}
    [job] = seen.snapshot.jobs
    assert job.placement
    assert job.placement.shares[0].node == "c0"
    assert not seen.nodes["c0"].unavailable, "its node is as good as before"


# --- who has it ------------------------------------------------------------------------------------------------------
def test_a_pod_that_asks_by_request_is_counted_once_though_kube_scheduler_makes_a_claim_for_it() -> None:
    pods = [pod_object("foreign", "n1", gpus=4)]
    assert free(observed(pods, [claim_object("c", "n1", FOUR, "pod-foreign")])) == {"n1": 4, "n2": 8}
    assert free(observed(pods)) == {"n1": 4, "n2": 8}, "its claim may be seen a moment later"


def test_a_pod_that_asks_by_claim_holds_what_the_claim_does() -> None:
    pods = [pod_object("foreign", "n1", spec=OWN)]
    assert free(observed(pods, [claim_object("c", "n1", FOUR, "pod-foreign")])) == {"n1": 4, "n2": 8}


def test_requests_and_claims_of_one_pod_add_up() -> None:
    made = claim_object("made", "n1", ["gpu-4", "gpu-5"], "pod-foreign")
    own = claim_object("c", "n1", FOUR, "pod-foreign")
    assert free(observed([pod_object("foreign", "n1", gpus=2, spec=OWN)], [made, own])) == {"n1": 2, "n2": 8}


def test_claims_of_pods_that_are_not_on_the_node_hold_their_gpus_all_the_same() -> None:
    coming = claim_object("coming", "n1", FOUR, "pod-coming")
    unknown = claim_object("unknown", "n1", ["gpu-4"], "pod-nobody-knows")
    left = claim_object("left", "n2", FOUR)
    pods = [pod_object("coming", gpus=4), pod_object("ended", "n2", gpus=4, phase="Succeeded")]
    assert free(observed(pods, [coming, unknown, left])) == {"n1": 3, "n2": 4}


def test_a_claim_that_two_pods_share_holds_its_gpus_once() -> None:
    pods = [pod_object(name, "n1", spec=OWN) for name in ("a", "b")]
    assert free(observed(pods, [claim_object("c", "n1", FOUR, "pod-a", "pod-b")])) == {"n1": 4, "n2": 8}


@pytest.mark.parametrize("where", ["", "n1"])
@pytest.mark.parametrize("allocated", [False, True])
@pytest.mark.parametrize("by_claim", [False, True])
def test_a_gang_has_what_its_plan_says_whenever_one_looks(where: str, allocated: bool, by_claim: bool) -> None:
    status = planned(placement(nodes={"n1": 4}, gpu_type=H100))
    pod = gang_pod("job", 1, 0, where, gpus=0 if by_claim else 4, spec=OWN if by_claim else {})
    claims = [claim_object("c", "n1", FOUR, pod.metadata.uid)] if allocated else []
    seen = observed([pod], claims, [job_object(status=status)])
    assert free(seen) == {"n1": 4, "n2": 8}
    assert not seen.overallocated


def test_what_a_stopped_gang_still_has_by_claim_counts_against_its_queue() -> None:
    pod = gang_pod("job", 1, 0, "n1", gpus=0, spec=OWN)
    seen = observed([pod], [claim_object("c", "n1", FOUR, pod.metadata.uid)], [job_object()])
    lingering = [job.placement for job in seen.snapshot.jobs if job.placement]
    assert [share.gpus for each in lingering for share in each.shares] == [4]
    assert free(seen) == {"n1": 4, "n2": 8}


def test_claims_of_a_foreign_pod_are_nobodys_but_that_pods() -> None:
    """A pod that names a job as its owner, and not the claim of any plan, takes no plan's place."""
    status = planned(placement(nodes={"n1": 4}, gpu_type=H100))
    gang = gang_pod("job", 1, 0, "n1", gpus=4)
    thief = gang_pod("job", 1, 0, "n1", gpus=0, spec=OWN, metadata={"uid": "pod-thief"})
    claims = [
        claim_object("gang", "n1", FOUR, gang.metadata.uid),
        claim_object("thief", "n1", ["gpu-4", "gpu-5"], "pod-thief"),
    ]
    assert free(observed([gang, thief], claims, [job_object(status=status)]))["n1"] <= 2
