"""Reports in, judgements out: what is fresh, what is news, what a restart remembers, and what garbage can never do."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.builders import NOW, fault, gpu_reading, node_object, pod_object
from tests.observe.test_telemetry import STATUS, raw
from tests.observe.world import BUSY, LOST, REPAIRED, World, node, problems, takes, with_capacity

from trimtab import names
from trimtab.observe.health import HealthCondition


# --- readings ------------------------------------------------------------------------------------------------------
def test_policies_see_fresh_readings_and_when_they_arrived() -> None:
    world = World()
    world.report(gpus=[gpu_reading(index, **BUSY) for index in range(8)])
    seen = world.look(after=7)
    readings = node(seen).readings
    assert readings
    assert (readings.utilization, seen.snapshot.time - readings.arrived) == (pytest.approx(0.9), 7)
    assert node(seen, "n2").readings is None
    assert list(seen.reports.telemetry) == ["n1"]


def test_readings_count_for_three_periods_of_their_agent_and_then_no_more() -> None:
    world = World()
    world.report()
    assert node(world.look(after=89.9)).readings
    seen = world.look(after=0.1)
    assert node(seen).readings is None
    assert problems(seen) == [("n1", names.REASON_STALE_READINGS)]
    assert world.told["n1"][0].reason == names.REASON_STALE_READINGS
    world.report()
    seen = world.look()
    assert node(seen).readings
    assert problems(seen) == []
    assert world.told["n1"][0].status == "True"


def test_age_is_counted_from_arrival_whatever_the_agents_clock_says() -> None:
    world = World()
    world.report(observedTime="2036-01-01T00:00:00Z")
    world.look(after=60)
    world.report(observedTime="1999-01-01T00:00:00Z")
    assert node(world.look(after=60)).readings


def test_our_own_condition_is_no_sign_of_life() -> None:
    world = World()
    world.report()
    world.look(after=60)
    world._write("n1", HealthCondition("True", "Written", "by us"), 0)
    assert node(world.look(after=30)).readings is None


def test_the_round_is_told_when_the_next_report_is_overdue() -> None:
    world = World()
    world.all_report()
    world.look()
    assert world.heard.next_deadline() == 90
    world.beat(60)
    assert world.heard.next_deadline() == 30  # the earliest that can be; then it is looked at again
    world.beat(30)
    assert world.heard.next_deadline() == 90


def test_a_round_hears_of_news_and_not_of_readings() -> None:
    world = World()
    assert world.report()
    world.look()
    assert not world.report(gpus=[gpu_reading(index, temperatureCelsius=50) for index in range(8)], observed=1)
    assert world.report(gpus=LOST, observed=2)
    assert not world.report(gpus=LOST, observed=3)
    assert world.report(gpus=LOST, metadata=REPAIRED, observed=3)
    assert world.report(gpus=[gpu_reading(index, **BUSY) for index in range(8)], observed=4)
    assert world.report(error="no driver", gpus=[], observed=5)


def test_nodes_are_shown_anew_only_where_something_has_changed() -> None:
    world = World()
    world.all_report()
    before = world.look().snapshot.nodes
    assert world.look().snapshot.nodes is before
    world.report("n3", [gpu_reading(index, "n3", temperatureCelsius=60) for index in range(8)], observed=1)
    world.pods = [pod_object("a", "n5", gpus=2)]
    after = world.look().snapshot.nodes
    assert [new.name for new, old in zip(after, before, strict=True) if new is not old] == ["n3", "n5"]
    world.pods = []
    assert node(world.look(), "n5").free_gpus == 8


# --- health --------------------------------------------------------------------------------------------------------
def test_a_node_with_a_broken_gpu_takes_no_pods_and_says_why() -> None:
    world = World()
    world.report(gpus=LOST)
    seen = world.look()
    assert "n1" not in takes(seen)
    why = seen.snapshot.unavailable["n1"]
    assert why.startswith("its GPUs are unhealthy: GPU 3: XID 79, the GPU has fallen off the bus; restart")
    assert seen.reports.faulty == (("n1", names.REASON_XID_FATAL),)
    assert world.told["n1"] == (HealthCondition("False", names.REASON_XID_FATAL, world.told["n1"][0].message), 0)


def test_it_takes_them_again_when_it_was_well_for_long_enough() -> None:
    world = World()
    world.report(gpus=LOST)
    world.look()
    world.report(bootId="another", observed=1)
    assert "n1" not in takes(world.look(after=10))
    assert world.told["n1"][0].reason == names.REASON_RECOVERING
    assert "n1" not in takes(world.beat(290))
    assert "n1" in takes(world.beat(10))
    assert world.told["n1"][0].status == "True"


def test_so_it_does_after_a_repair_that_somebody_vouches_for() -> None:
    world = World()
    world.report(gpus=LOST)
    world.look()
    world.report(gpus=LOST, metadata=REPAIRED, observed=1)
    world.look()
    assert world.told["n1"][0].reason == names.REASON_RECOVERING
    assert "n1" in takes(world.beat(300))


def test_a_broken_node_that_falls_silent_stays_broken_for_ever() -> None:
    world = World()
    world.report(gpus=LOST)
    world.look()
    assert "n1" not in takes(world.look(after=100_000))
    assert world.told == {}
    world.heard.forget("n1")
    assert "n1" in takes(world.look())


def test_where_the_device_plugin_has_withdrawn_the_gpu_the_others_go_on() -> None:
    world = World()
    raw_status = {"allocatable": {names.NVIDIA_GPU: "7"}}
    world.nodes["n1"] = with_capacity(node_object("n1", **raw_status), 8)
    world.report(gpus=LOST)
    seen = world.look()
    assert node(seen).free_gpus == 7
    assert world.told["n1"][0].status == "False"
    world.nodes["n1"] = with_capacity(node_object("n1"), 8)
    assert "n1" not in takes(world.look())


def test_at_most_a_part_of_the_nodes_is_held_back_and_the_rest_is_told() -> None:
    world = World(nodes=12)
    for index, name in enumerate(world.nodes):
        world.report(name, [gpu_reading(0, name, faults=[fault(code=79)])], observed=index)
    seen = world.look()
    assert len(seen.reports.unavailable) == 3
    told = [reason for _, reason in problems(seen) if reason == names.REASON_TOO_MANY_UNHEALTHY]
    assert len(told) == 9
    world.start()  # a restart must not turn the nine into held ones
    assert world.look().reports.unavailable.keys() == seen.reports.unavailable.keys()


# --- a restart -----------------------------------------------------------------------------------------------------
def test_a_new_controller_goes_on_from_the_conditions() -> None:
    world = World()
    world.report(gpus=LOST)
    world.look()
    world.start()
    assert "n1" not in takes(world.look(after=10))
    assert world.told == {}
    world.report(bootId="another", observed=5)
    world.look()
    world.beat(200)
    world.start()
    assert "n1" not in takes(world.look())
    assert "n1" not in takes(world.beat(80))
    assert "n1" in takes(world.beat(20))


def test_a_node_that_was_stale_stays_so_until_its_agent_reports() -> None:
    world = World()
    world.report()
    world.look(after=90)
    world.start()
    assert node(world.look()).readings is None
    assert world.told == {}
    world.report(observed=1)
    assert node(world.look()).readings


# --- gangs ---------------------------------------------------------------------------------------------------------
def leaves(world: World, pod: str = "default/job-1-0", planned: float = -100.0) -> bool:
    return bool(world.heard.must_leave("n1", [pod], NOW + planned))


def test_a_gang_leaves_a_broken_gpu_after_the_grace() -> None:
    world = World()
    world.report(gpus=LOST)
    world.look()
    assert not leaves(world)
    assert world.heard.next_deadline() == 30
    world.look(after=30)
    assert leaves(world)
    assert world.heard.must_leave("n2", ["default/job-1-0"], NOW) == ""


def test_a_fault_that_passes_within_the_grace_moves_nobody() -> None:
    world = World()
    world.report(gpus=LOST)
    world.look()
    world.report(metadata=REPAIRED, gpus=LOST, observed=1)
    world.look(after=29)
    world.look(after=29)
    assert not leaves(world)


def test_only_the_gang_on_the_broken_gpu_leaves_where_the_kubelet_says_who_that_is() -> None:
    world = World()
    gpus = [
        gpu_reading(0, faults=[fault(code=79)], pods=["default/job-1-0"]),
        gpu_reading(1, pods=["default/other-1-0"]),
    ]
    world.report(gpus=gpus)
    world.look()
    world.look(after=30)
    assert leaves(world)
    assert not leaves(world, "default/other-1-0")


def test_a_gang_that_came_after_the_device_plugin_acted_has_other_gpus() -> None:
    world = World()
    world.nodes["n1"] = with_capacity(node_object("n1", allocatable={names.NVIDIA_GPU: "7"}), 8)
    world.report(gpus=LOST)
    world.look()
    world.look(after=30)
    assert leaves(world, planned=-1)
    assert not leaves(world, planned=1)


def test_the_condition_says_how_to_vouch_for_a_repair() -> None:
    world = World()
    world.report(gpus=LOST)
    world.look()
    command = "kubectl annotate --overwrite gpunode n1 trimtab.dev/repaired=$(date -u +%FT%TZ)"
    assert world.told["n1"][0].message.endswith(command)


def test_a_pod_that_dies_of_the_fault_is_known_though_the_kubelet_has_forgotten_it() -> None:
    world = World()
    world.report(gpus=[gpu_reading(0, pods=["default/job-1-0"]), gpu_reading(1, pods=["default/other-1-0"])])
    world.look()
    for number in (1, 2):
        broken = gpu_reading(0, pods=[], faults=[fault(code=79)])
        world.report(gpus=[broken, gpu_reading(1, pods=["default/other-1-0"])], observed=number)
    world.look()
    assert world.heard.must_leave("n1", ["default/job-1-0"], NOW, grace=False)
    assert not world.heard.must_leave("n1", ["default/other-1-0"], NOW, grace=False)


# --- garbage: F23 of the fault matrix ------------------------------------------------------------------------------
def test_gpus_that_two_nodes_report_are_told_of_and_hide_no_fault() -> None:
    world = World()
    world.report("n1")
    world.report("n2", [gpu_reading(0, "n1", faults=[fault(code=79)])])
    seen = world.look()
    assert "n2" not in takes(seen)
    assert [name for name, reason in problems(seen) if reason == "DuplicateGpus"] == ["n1", "n2"]
    assert seen.reports.telemetry["n1"].gpus[0].uuid == seen.reports.telemetry["n2"].gpus[0].uuid
    world.heard.forget("n2")
    assert problems(world.look()) == []


def test_a_report_about_no_node_is_kept_until_there_is_one() -> None:
    world = World()
    world.report("elsewhere", [gpu_reading(0, "elsewhere", faults=[fault(code=79)])])
    assert problems(world.look()) == []
    world.nodes["elsewhere"] = node_object("elsewhere")
    assert "elsewhere" not in takes(world.look())
    del world.nodes["elsewhere"]
    assert world.look().reports.unavailable == {}


def test_what_contradicts_the_node_is_told_and_nothing_else() -> None:
    world = World()
    world.report(gpus=[gpu_reading(0, product="NVIDIA H100 80GB HBM3")])
    seen = world.look()
    assert problems(seen) == [("n1", "GpuMismatch")] * 2
    assert node(seen).free_gpus == 8


def test_nonsense_that_is_another_one_each_time_is_told_once() -> None:
    world = World()
    told = set()
    for number, field in enumerate(("smClockMhz", "temperatureCelsius", "powerMilliwatts")):
        world.report(gpus=[gpu_reading(index, **{field: -999}) for index in range(8)], observed=number)
        told |= {problem.message for problem in world.look().problems}
    assert [message.split(";")[0] for message in told] == ["left out: GPU 0: smClockMhz is out of range"]


STATUSES = st.lists(st.tuples(st.sampled_from(["n1", "n2", "elsewhere"]), STATUS, st.floats(0, 200)), max_size=5)


@given(reports=STATUSES)
@example(reports=[("n1", {"gpus": [{"uuid": "a", "index": 0, "smUtilizationPercent": 1e9}]}, 1.0)])
@example(reports=[("n1", {"gpus": [{"uuid": "a", "index": 0, "faults": [{"kind": "Xid", "code": 79}]}]}, 1.0)])
def test_no_garbage_gives_a_node_more_or_takes_it_away(reports: Sequence[tuple[str, object, float]]) -> None:
    world = World(nodes=2)
    for number, (name, status, seconds) in enumerate(reports):
        report = raw(json.dumps(status).encode())
        meta = msgspec.structs.replace(report.metadata, name=name, resource_version=str(number))
        world.heard.take(msgspec.structs.replace(report, metadata=meta))
        seen = world.look_only(seconds)
        busy = {node.name: node.foreign_gpus for node in seen.snapshot.nodes}
        assert {node.name: node.free_gpus for node in seen.snapshot.nodes} == {
            "n1": 8 - busy["n1"],
            "n2": 8 - busy["n2"],
        }
        assert not any(busy.values()) or "smUtilizationPercent" in str(reports) or "memoryUsedBytes" in str(reports)
