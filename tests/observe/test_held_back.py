"""How much may be taken away on agents' word: busy GPUs that no pod asked for, and the brake on faults."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.builders import fault, gang_pod, gpu_reading, node_object, pod_object
from tests.observe.world import BUSY, LOST, SETTINGS, World, node, problems, takes, with_capacity

from trimtab import names
from trimtab.kube.objects import GpuNodeObject
from trimtab.observe import health
from trimtab.observe.health import HealthCondition


# --- foreign load --------------------------------------------------------------------------------------------------
def test_gpus_busy_without_a_pod_are_not_free() -> None:
    world = World()
    world.all_report()
    world.look()
    world.report(gpus=[gpu_reading(index, **(BUSY if index < 3 else {})) for index in range(8)], observed=1)
    assert node(world.look()).free_gpus == 8
    seen = world.beat(60)
    assert (node(seen).free_gpus, node(seen).foreign_gpus) == (5, 3)
    assert ("n1", "ForeignLoad") in problems(seen)


def test_what_pods_have_asked_for_is_not_foreign_and_foreign_load_never_overallocates() -> None:
    world = World()
    world.report(gpus=[gpu_reading(index, **BUSY) for index in range(8)])
    world.pods = [pod_object("a", "n1", gpus=6)]
    seen = world.look()
    assert (node(seen).free_gpus, node(seen).foreign_gpus) == (0, 2)
    world.pods.append(gang_pod("job", 1, 0, "n1", gpus=2))
    seen = world.look()
    assert (node(seen).free_gpus, seen.overallocated) == (0, {})


def test_foreign_load_on_nodes_that_take_no_gangs_is_no_concern_of_ours() -> None:
    world = World()
    world.nodes["n1"] = node_object("n1", labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"})
    world.report(gpus=[gpu_reading(index, **BUSY) for index in range(8)])
    seen = world.look()
    assert (seen.reports.foreign, problems(seen)) == ({}, [("n1", "UnusableGpus")])


def test_foreign_load_neither_switches_off_what_faults_do_nor_is_held_back_by_them() -> None:
    world = World()  # two of eight nodes may be held back for their faults
    for name in ("n1", "n2", "n3", "n4"):
        world.report(name, [gpu_reading(index, name, **(BUSY if index else {})) for index in range(8)])
    world.report("n5", [gpu_reading(0, "n5", faults=[fault(code=79)]), *(gpu_reading(i, "n5") for i in range(1, 8))])
    seen = world.look()
    assert list(seen.reports.unavailable) == ["n5"]
    assert dict(seen.reports.foreign) == {"n1": 7, "n2": 7, "n3": 7, "n4": 7}


def test_foreign_load_has_a_brake_of_its_own_and_what_is_beyond_is_told() -> None:
    world = World(settings=SETTINGS.model_copy(update={"foreign_share": 0.25}))
    for name in ("n1", "n2", "n3"):
        world.report(name, [gpu_reading(index, name, **BUSY) for index in range(8)])
    seen = world.look()
    assert dict(seen.reports.foreign) == {"n1": 8, "n2": 8}
    [said] = [problem.message for problem in seen.problems if problem.name == "n3"]
    assert said.endswith("not acted on, too many nodes have such load already (telemetry.foreign_share)")


def test_a_silent_agents_last_report_makes_no_foreign_load_and_that_of_a_living_one_does() -> None:
    world = World()
    world.pods = [pod_object("a", "n1", gpus=8)]
    for name in ("n1", "n2"):
        world.report(name, [gpu_reading(index, name, **BUSY) for index in range(8)])
    world.look()
    world.pods = []
    assert world.look_only(after=10).reports.foreign == {"n2": 8}
    assert world.beat(70, "n1").reports.foreign == {"n2": 8}
    world.beat(100, "n1", "n2")  # both are silent now: nothing is known
    assert world.beat(60, "n1", "n2").reports.foreign == {}
    world.beat(70, "n2")
    assert world.look().reports.foreign == {"n1": 8}


# --- the brake, whatever device plugins and conditions say ------------------------------------------------------------
def all_withdrawn(world: World, gpus: str) -> None:
    for name in world.nodes:
        world.nodes[name] = with_capacity(node_object(name, allocatable={names.NVIDIA_GPU: gpus}), 8)


def test_device_plugins_that_start_anew_everywhere_do_not_empty_the_cluster() -> None:
    world = World()
    all_withdrawn(world, "7")
    for name in world.nodes:
        world.report(name, [gpu_reading(0, name, faults=[fault(code=79)])])
    assert len(takes(world.look())) == 8
    assert all(said.contained and health.WITHDRAWN in said.message for said, _ in world.told.values())
    all_withdrawn(world, "8")
    assert len(takes(world.look(after=5))) == 6
    all_withdrawn(world, "7")
    assert len(takes(world.look(after=5))) == 8


def test_a_gpu_that_was_withdrawn_for_another_reason_says_nothing_of_this_one() -> None:
    world = World()
    world.nodes["n1"] = with_capacity(node_object("n1", allocatable={names.NVIDIA_GPU: "7"}), 8)
    world.report()
    world.look()
    world.beat(100)
    world.report(gpus=LOST, observed=5000)
    assert "n1" not in takes(world.look())
    world.start()
    assert "n1" not in takes(world.look())
    world.nodes["n1"] = with_capacity(node_object("n1", allocatable={names.NVIDIA_GPU: "6"}), 8)
    assert node(world.look(after=5)).free_gpus == 6
    world.start()
    assert node(world.look()).free_gpus == 6


def test_no_device_plugin_withdraws_a_gpu_for_its_memory_rows() -> None:
    world = World()
    world.nodes["n1"] = with_capacity(node_object("n1", allocatable={names.NVIDIA_GPU: "7"}), 8)
    world.report(gpus=[gpu_reading(0, memoryErrors={"rowRemapFailed": True})])
    assert "n1" not in takes(world.look())


@pytest.mark.parametrize("silent", [False, True], ids=["sound", "silent"])
def test_conditions_that_nobody_can_have_written_hold_back_no_more_than_the_share(silent: bool) -> None:
    world = World(nodes=16)
    world.all_report()
    for name in world.nodes:
        world._write(name, HealthCondition("False", names.REASON_XID_FATAL, "forged"), 0)
    if silent:
        world.reports = {name: _without_gpus(report) for name, report in world.reports.items()}
    world.start()
    assert len(takes(world.look())) == 12
    world.report("n16", [gpu_reading(0, "n16", faults=[fault(code=79)])], observed=7)
    world.look()
    assert world.told["n16"][0].reason == names.REASON_TOO_MANY_UNHEALTHY
    if not silent:
        assert len(takes(world.beat(310))) == 15


def _without_gpus(report: GpuNodeObject) -> GpuNodeObject:
    content = json.loads(bytes(report.status)) | {"gpus": []}
    return GpuNodeObject(report.metadata, msgspec.Raw(json.dumps(content).encode()))
