"""Lost nodes, one and many: what is given up, and when a mass failure takes nothing down."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import NOW, job_object, node_object, placement, plan_of

from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.controller.loop.mass_failure import GONE, GONE_SECONDS, LONG_SECONDS, MOST_GRACE, MassFailureGuard
from trimtab.observe import jobs, nodes
from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.settings import FailureSettings, GangSettings
from trimtab.telemetry import metrics

GRACE = 60.0
NAMES = tuple(f"n{index}" for index in range(10))
FIVE = NAMES[:5]


def gang(node: str) -> JobFacts:
    job = job_object(f"on-{node}")
    status = transitions.planned(JobStatus(), job.metadata, plan_of(placement(nodes={node: 8})), NOW)
    return jobs.facts(job_object(f"on-{node}", status=status))


class Cluster:
    """Ten nodes, a gang on each of the first eight, and a clock."""

    def __init__(self, running: Iterable[str] = NAMES[:8], **rules: Any) -> None:
        self.now = 0.0
        self.nodes = {name: _node(name) for name in NAMES}
        self.jobs = [gang(name) for name in running]
        self.rules = FailureSettings(**({"brake": 0.5, "brake_nodes": 4} | rules))
        self.start()

    def start(self) -> None:
        """A controller that knows nothing but what the API server has."""
        settings = GangSettings(node_grace_seconds=GRACE)
        self.guard = MassFailureGuard(settings, self.rules, clock=lambda: self.now, wall=lambda: NOW + self.now)

    def turn(self, names: Iterable[str], *, ready: bool) -> None:
        self.nodes |= {
            name: replace(self.nodes.get(name, _node(name)), ready=ready, silent=False, turned=NOW + self.now)
            for name in names
        }

    def silence(self, names: Iterable[str]) -> None:
        """Their heartbeats are missing: what kube-controller-manager makes of that."""
        self.nodes |= {
            name: replace(self.nodes[name], ready=False, silent=True, turned=NOW + self.now) for name in names
        }

    def delete(self, *names: str) -> None:
        for name in names:
            del self.nodes[name]

    def look(self, after: float = 0.0) -> float:
        """A round, so long after the last one."""
        self.now += after
        return self.guard.watch(dict(self.nodes), {facts.meta.uid: facts for facts in self.jobs})

    def spared(self, names: Iterable[str]) -> str:
        """What is said to a gang on these nodes."""
        return self.guard.spared({name: self.nodes.get(name) for name in names})

    def lost(self) -> tuple[str, ...]:
        """Nodes whose gangs are given up now."""
        return tuple(name for name in NAMES if self.guard.lost(name, self.nodes.get(name)))


def _node(name: str) -> NodeFacts:
    facts = nodes.facts(node_object(name), ())
    assert facts
    return facts


def test_a_node_is_lost_when_it_has_been_not_ready_for_a_grace() -> None:
    cluster = Cluster()
    cluster.turn(["n1"], ready=False)
    assert cluster.look() == GRACE
    assert cluster.lost() == ()
    assert cluster.look(GRACE - 1) == 1
    assert cluster.lost() == ()
    cluster.look(1)
    assert cluster.lost() == ("n1",)
    assert cluster.guard.lost("n1", cluster.nodes["n1"]) == "NotReady for 60 s"
    cluster.turn(["n1"], ready=True)
    assert cluster.lost() == (), "it is back, though no round has seen it"


def test_a_node_whose_object_is_gone_is_lost_a_moment_later() -> None:
    cluster = Cluster()
    cluster.delete("n1")
    assert cluster.look() == GONE_SECONDS
    assert cluster.lost() == ()
    cluster.look(GONE_SECONDS)
    assert (cluster.lost(), cluster.guard.lost("n1", None)) == (("n1",), GONE)


def test_where_half_the_nodes_are_lost_at_once_nothing_is_given_up() -> None:
    cluster = Cluster()
    cluster.turn(FIVE, ready=False)
    cluster.look()
    cluster.look(GRACE)
    assert cluster.lost() == ()
    assert metrics.BRAKE._value.get() == 1
    why = cluster.spared(["n1", "n8"])
    assert why.startswith("5 of 10 GPU nodes are lost at once, of this gang n1; nothing is taken down")
    assert cluster.spared(["n8", "n9"]) == "", "a gang elsewhere is not affected"
    cluster.look(86_400)
    assert cluster.lost() == (), "however long it takes"


def test_nothing_is_said_before_anything_would_have_been_given_up() -> None:
    cluster = Cluster()
    cluster.turn(FIVE, ready=False)
    cluster.look()
    cluster.look(GRACE - 1)
    assert cluster.spared(FIVE) == ""


def test_nodes_that_are_lost_one_after_the_other_are_seen_by_the_brake_before_the_first_is_given_up() -> None:
    cluster = Cluster()
    for name in FIVE:
        cluster.turn([name], ready=False)
        cluster.look(GRACE / 10)
    cluster.look(GRACE)
    assert cluster.lost() == ()


def test_objects_that_are_deleted_en_masse_are_mistrusted_just_the_same() -> None:
    cluster = Cluster()
    for name in FIVE:
        cluster.delete(name)
        cluster.look(GONE_SECONDS / 10)
    cluster.look(GRACE)
    assert cluster.lost() == ()
    assert "5 of 10 GPU nodes are lost at once" in cluster.spared(FIVE)


def test_when_nodes_return_those_that_are_still_lost_have_their_grace_anew() -> None:
    cluster = Cluster()
    cluster.turn(FIVE, ready=False)
    cluster.look()
    cluster.look(GRACE * 10)
    cluster.turn(["n0"], ready=True)
    assert cluster.look() == GRACE
    assert (cluster.lost(), cluster.spared(FIVE)) == ((), "")
    assert metrics.BRAKE._value.get() == 0
    cluster.turn(["n1", "n2"], ready=True)
    cluster.look(GRACE)
    assert cluster.lost() == ("n3", "n4")


def test_another_controller_brakes_as_well() -> None:
    cluster = Cluster()
    cluster.turn(FIVE, ready=False)
    cluster.look()
    cluster.look(GRACE * 10)
    cluster.start()
    cluster.look()
    cluster.look(GRACE)
    assert cluster.lost() == ()


@pytest.mark.parametrize(("down", "brakes"), [(3, False), (4, False), (5, True)])
def test_a_few_broken_nodes_do_not_hold_the_brake(down: int, brakes: bool) -> None:
    cluster = Cluster()
    cluster.turn(NAMES[:down], ready=False)
    cluster.look()
    cluster.look(GRACE)
    assert len(cluster.lost()) == (0 if brakes else down)


def test_in_a_small_cluster_half_is_one_broken_node() -> None:
    cluster = Cluster(running=["n1"], brake_nodes=4)
    cluster.delete(*NAMES[2:])
    cluster.turn(["n1"], ready=False)
    cluster.look()
    cluster.look(GRACE)
    assert cluster.lost() == ("n1",)


def test_nodes_that_were_switched_off_long_ago_and_hold_no_gangs_do_not_count() -> None:
    cluster = Cluster(running=["n9"])
    cluster.turn(NAMES[:8], ready=False)
    cluster.look(LONG_SECONDS + 1)
    cluster.turn(["n9"], ready=False)
    cluster.look()
    cluster.look(GRACE)
    assert cluster.lost() == (*NAMES[:8], "n9")


def test_a_gang_that_has_ended_says_nothing_of_nodes_that_are_gone() -> None:
    cluster = Cluster(running=())
    cluster.delete("n1")
    assert cluster.look() == float("inf")


@given(st.lists(st.tuples(st.sets(st.sampled_from(NAMES)), st.floats(0, 100)), max_size=12))
def test_no_half_of_the_cluster_is_ever_given_up_at_once(history: list[tuple[set[str], float]]) -> None:
    cluster = Cluster(running=NAMES)
    for down, after in history:
        changed = {name for name in NAMES if cluster.nodes[name].ready is (name in down)}
        cluster.turn(changed & down, ready=False)
        cluster.turn(changed - down, ready=True)
        cluster.look(after)
        assert len(cluster.lost()) < 5
        assert not set(cluster.lost()) - down


def test_a_gang_that_starts_waits_for_a_node_whose_heartbeats_are_late_and_for_no_other() -> None:
    cluster = Cluster()
    cluster.silence(["n1"])
    cluster.turn(["n2"], ready=False)
    late = {name: cluster.guard.late(name, cluster.nodes[name]) for name in ("n0", "n1", "n2")}
    assert late == {"n0": False, "n1": True, "n2": False}, "before any round has seen it"
    cluster.look()
    cluster.look(GRACE - 1)
    assert cluster.guard.late("n1", cluster.nodes["n1"])
    cluster.look(1)
    assert not cluster.guard.late("n1", cluster.nodes["n1"])
    assert cluster.lost() == ("n1", "n2")


def test_the_more_nodes_are_silent_the_longer_is_their_grace_and_a_kubelets_word_counts_as_ever() -> None:
    cluster = Cluster()
    cluster.silence(NAMES[:4])
    cluster.turn(["n4"], ready=False)
    cluster.look()
    cluster.look(GRACE)
    assert cluster.guard.holds, "half of them"
    cluster.turn(["n4"], ready=True)
    longer = GRACE * (1 + (MOST_GRACE - 1) * 4 / 5)
    cluster.look()
    assert cluster.look(longer - 1) == 1
    assert cluster.lost() == ()
    cluster.look(1)
    assert cluster.lost() == NAMES[:4]
    assert cluster.guard.lost("n0", cluster.nodes["n0"]) == f"NotReady for {longer:g} s"


def test_a_fifth_of_5000_nodes_that_flickers_for_ten_minutes_costs_no_gang() -> None:
    """As a control plane that is overloaded does it: silences of half a minute to three, by turns."""
    turns, names = random.Random(20), [f"n{number}" for number in range(5000)]
    cluster = Cluster()
    cluster.nodes = {name: replace(_node("n0"), name=name) for name in names}
    cluster.jobs = [gang(name) for name in names[::50]]
    flickering = turns.sample(names, 1000)
    silent: dict[str, float] = {}
    longest = 0
    while cluster.now < 600:
        well = [name for name in flickering if name not in silent]
        silent |= {name: cluster.now + turns.uniform(30, 180) for name in turns.sample(well, min(len(well), 120))}
        back = {name for name, end in silent.items() if end <= cluster.now}
        silent = {name: end for name, end in silent.items() if name not in back}
        cluster.turn(back, ready=True)
        cluster.silence(name for name in silent if cluster.nodes[name].ready)
        cluster.look(10)
        longest = max(longest, sum(cluster.nodes[name].ready is False for name in names))
        assert not [name for name in names if cluster.guard.lost(name, cluster.nodes[name])]
    assert 500 < longest < 2500, "the brake itself never held"
