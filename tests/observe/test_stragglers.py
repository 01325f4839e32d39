"""Slow GPUs: what is evidence and what is not, and how a verdict comes, stays and goes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import A100, H100, node_object

from trimtab.observe.nodes import facts
from trimtab.observe.stragglers import (
    BAND,
    LOOK_SECONDS,
    LOWEST,
    Evidence,
    StragglerCandidate,
    StragglerRules,
    Stragglers,
    Verdict,
    finish,
    problems,
    step,
)
from trimtab.observe.telemetry import GpuFacts, NodeTelemetry

RULES = StragglerRules(limit=0.9, seconds=120.0, recovery=300.0)
FULL = 1.98e9


def gpu(index: int = 0, clock: float = FULL, **changes: Any) -> GpuFacts:
    """A card under load."""
    defaults: dict[str, Any] = {"utilization": 1.0, "sm_clock": clock, "sm_clock_max": FULL}
    return GpuFacts(changes.pop("uuid", f"GPU-{index}"), index, **(defaults | changes))


def member(name: str, *gpus: GpuFacts, gang: str = "", gpu_type: str = H100) -> StragglerCandidate:
    return StragglerCandidate(NodeTelemetry(name, f"uid-{name}", gpus=gpus), gpu_type, gang)


def node(name: str, clock: float = FULL, gang: str = "", **changes: Any) -> StragglerCandidate:
    """Eight cards at this clock."""
    return member(name, *(gpu(number, clock, uuid=f"{name}-{number}", **changes) for number in range(8)), gang=gang)


def speeds(
    *members: StragglerCandidate, seconds: float = RULES.seconds, rules: StragglerRules = RULES
) -> dict[str, float]:
    """Node -> speed after these have been so for a while."""
    looked = after(Stragglers(rules), members, 0.0, seconds)
    return {name: verdict.speed for name, verdict in looked.slow().items()}


def after(stragglers: Stragglers, members: Any, begin: float, seconds: float) -> Stragglers:
    """One look every 10 s for so long."""
    for number in range(int(seconds / 10) + 1):
        stragglers.look(members, begin + 10 * number)
    return stragglers


# --- evidence --------------------------------------------------------------------------------------------------------
def test_a_card_that_is_clocked_below_the_others_of_its_gang_slows_its_node() -> None:
    slow = member("a", *(gpu(number, 1.2e9 if number == 3 else FULL) for number in range(8)), gang="j")
    assert speeds(slow, node("b", gang="j")) == {"a": 0.6}


def test_it_takes_a_while_to_be_believed() -> None:
    cards = [node("a", 1.0e9, gang="j"), node("b", gang="j"), node("c", gang="j")]
    assert speeds(*cards, seconds=RULES.seconds - 10) == {}
    assert speeds(*cards) == {"a": 0.5}


@pytest.mark.parametrize("clock", [0.9 * FULL, 0.95 * FULL, FULL, 1.1 * FULL])
def test_a_little_less_or_more_is_nothing(clock: float) -> None:
    assert speeds(node("a", clock, gang="j"), node("b", gang="j")) == {}


def test_cards_that_are_all_clocked_alike_are_no_stragglers_whatever_their_data_sheet_says() -> None:
    assert speeds(*(node(name, 1.2e9, gang="j", throttle_reasons=("SwPowerCap",)) for name in "abcd")) == {}
    assert speeds(*(node(name, 1.2e9, throttle_reasons=("HwThermalSlowdown",)) for name in "abcd")) == {}


def test_an_idle_card_clocks_down_and_that_is_no_evidence() -> None:
    idle = node("a", 0.3e9, gang="j", utilization=0.0)
    assert speeds(idle, node("b", gang="j"), node("c", gang="j")) == {}
    assert speeds(node("a", 0.3e9, gang="j", utilization=math.nan), node("b", gang="j")) == {}


def test_of_two_cards_of_a_gang_the_slower_one_is_slow() -> None:
    assert speeds(member("a", gpu(0, 1.0e9), gang="j"), member("b", gpu(1), gang="j")) == {"a": 0.5}


def test_one_bad_peer_makes_nobody_slow() -> None:
    assert speeds(node("a", gang="j"), node("b", gang="j"), node("c", 9e9, gang="j")) == {}


def test_a_card_without_a_gang_is_measured_by_the_other_nodes_of_its_type() -> None:
    lonely = member("a", gpu(clock=1.2e9))
    others = [node("b"), node("c"), node("d")]
    assert speeds(lonely, *others) == {"a": 0.6}
    assert speeds(lonely, *others[:2]) == {}
    assert speeds(member("a", gpu(clock=1.2e9), gpu_type=A100), *others) == {}


def test_a_gang_that_is_slow_as_a_whole_is_measured_by_the_other_nodes_too() -> None:
    others = [node("b"), node("c", gang="k"), node("d")]
    assert speeds(node("a", 1.2e9, gang="j"), *others) == {"a": 0.6}
    assert speeds(node("a", 1.2e9, gang="j", throttle_reasons=("SwPowerCap",)), *others) == {}
    assert speeds(node("a", 1.2e9, gang="j"), *others[:2]) == {}


def test_what_only_the_power_limit_holds_down_draws_more_power_than_the_others_and_is_not_slow() -> None:
    others = [node("b"), node("c"), node("d")]
    assert speeds(member("a", gpu(clock=1.2e9, throttle_reasons=("SwPowerCap",))), *others) == {}
    hot = gpu(clock=1.2e9, throttle_reasons=("SwPowerCap", "HwThermalSlowdown"))
    assert speeds(member("a", hot), *others) == {"a": 0.6}


LIMITED: dict[str, Any] = {"throttle_reasons": ("SwPowerCap",), "power": 700.0, "power_limit": 700.0}


def test_who_divides_his_work_unevenly_makes_no_card_slow() -> None:
    """One rank computes and is held down by the power limit, the others wait for it inside a collective."""
    capped, waiting = gpu(0, 1.2e9, **LIMITED), [gpu(n, power=350.0, power_limit=700.0) for n in range(1, 8)]
    assert speeds(member("a", capped, *waiting, gang="j")) == {}
    nodes = [node(name, gang="j", power=350.0, power_limit=700.0) for name in "bcd"]
    assert speeds(node("a", 1.2e9, gang="j", **LIMITED), *nodes) == {}
    assert speeds(node("a", 1.2e9, gang="j", **LIMITED), nodes[0]) == {}
    assert speeds(member("a", gpu(0, 1.2e9, throttle_reasons=("SwPowerCap",)), gpu(1), gpu(2), gang="j")) == {}


def test_a_card_that_draws_what_the_others_draw_and_is_slower_is_slow() -> None:
    capped, busy = gpu(0, 1.2e9, **LIMITED), [gpu(n, power=680.0, power_limit=700.0) for n in range(1, 8)]
    assert speeds(member("a", capped, *busy, gang="j")) == {"a": 0.6}
    nodes = [node(name, gang="j", power=680.0, power_limit=700.0) for name in "bcd"]
    assert speeds(node("a", 1.2e9, gang="j", **LIMITED), *nodes) == {"a": 0.6}


# --- agents that lie -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lie", [0.01e9, 1.0e9, FULL, 3.5e9, 9e9, 1e12])
@pytest.mark.parametrize("cards", [1, 8, 64])
@pytest.mark.parametrize("honest", [1, 2, 3, 7])
def test_an_agent_that_lies_makes_no_other_node_slow(lie: float, cards: int, honest: int) -> None:
    liar = member("liar", *(gpu(n, lie, uuid=f"liar-{n}", sm_clock_max=lie) for n in range(cards)), gang="j")
    for clock in (0.8 * FULL, FULL):
        gang = [node(f"n{number}", clock, gang="j") for number in range(honest)]
        assert set(speeds(liar, *gang)) <= {"liar"}
        limited = [node(f"n{number}", 0.6 * FULL, gang="j", **LIMITED) for number in range(honest)]
        assert set(speeds(liar, *limited)) <= {"liar"}


def test_of_two_nodes_the_one_that_is_far_below_its_own_highest_clock_is_slow() -> None:
    assert speeds(node("a", 0.7 * FULL, gang="j"), node("b", gang="j")) == {"a": 0.7}
    assert speeds(node("a", 0.8 * FULL, gang="j"), node("b", gang="j")) == {}
    assert speeds(node("a", 0.8 * FULL, gang="j"), node("b", gang="j"), node("c", gang="j")) == {"a": 0.8}
    unknown = node("a", 0.5 * FULL, gang="j", sm_clock_max=math.nan)
    assert speeds(unknown, node("b", gang="j")) == {}


def test_of_two_nodes_one_that_is_at_full_speed_again_is_well_again() -> None:
    stragglers = after(Stragglers(RULES), [node("a", 1.0e9, gang="j"), node("b", gang="j")], 0, 120)
    assert set(stragglers.slow()) == {"a"}
    after(stragglers, [member("a", gpu(uuid="a-0"), gang="j"), node("b", gang="j")], 130, 120)
    assert stragglers.slow() == {}


@pytest.mark.parametrize("reason", ["HwThermalSlowdown", "HwPowerBrakeSlowdown", "HwSlowdown", "SwThermalSlowdown"])
def test_a_card_alone_is_slow_if_the_hardware_says_so(reason: str) -> None:
    assert speeds(member("a", gpu(clock=0.99e9, throttle_reasons=(reason,), throttled=0.9))) == {"a": 0.5}
    assert speeds(member("a", gpu(clock=0.99e9, throttle_reasons=(reason,), throttled=0.2))) == {}
    assert speeds(member("a", gpu(clock=0.99e9))) == {}
    unknown = gpu(clock=math.nan, throttle_reasons=(reason,), throttled=0.8)
    assert speeds(member("a", unknown)) == {"a": 0.6}


def test_a_node_is_as_slow_as_its_slowest_card_and_every_slow_card_is_told() -> None:
    cards = [gpu(number, {0: 1.0e9, 1: 1.5e9}.get(number, FULL)) for number in range(8)]
    looked = after(Stragglers(RULES), [member("a", *cards, gang="j")], 0.0, 120.0)
    assert looked.slow()["a"].speed == 0.5
    assert sorted(card.speed for card in looked.cards()) == [0.5, 0.75]
    there = facts(node_object("a"), ())
    assert there
    told = problems(looked.cards(), {"a": there})
    assert {each.uid for each in told} == {"node-a"}
    assert {each.reason for each in told} == {"SlowGpu"}
    assert told[0].message == (
        "GPU GPU-0 does 0.50 of what it should: its clock is 1.00 GHz, that of the others of its gang 1.98 GHz; gangs "
        "on this node are predicted to be slowed to that, and others avoid it"
    )


# --- from look to look -----------------------------------------------------------------------------------------------
def verdict(rates: list[float | None], known: Verdict | None = None, begin: float = 0.0) -> Verdict:
    """One look every 60 s; None: no load."""
    found = known or Verdict("a", "GPU-0", H100)
    for number, rate in enumerate(rates):
        found = step(found, None if rate is None else Evidence(rate, "said"), begin + 60.0 * number, RULES)
    return found


def test_a_verdict_begins_when_the_evidence_did() -> None:
    found = verdict([1.0, 0.6, 0.6, 0.6])
    assert (found.speed, found.since, found.why) == (0.6, 60.0, "said")


def test_a_moment_at_full_speed_begins_the_wait_anew() -> None:
    assert verdict([0.6, 0.6, 1.0, 0.6, 0.6]).speed == 1
    assert verdict([0.6, 0.6, 1.0, 0.6, 0.6, 0.6]).speed == 0.6


def test_a_pause_shorter_than_the_wait_does_not() -> None:
    assert verdict([0.6, None, 0.6]).speed == 0.6
    assert verdict([0.6, None, None, None, 0.6]).speed == 1


def test_small_changes_leave_a_verdict_as_it_is_and_large_ones_do_not() -> None:
    slow = verdict([0.6] * 3)
    for rate in (0.53, 0.57, 0.63, 0.67):
        assert verdict([rate] * 9, slow, 1000.0).speed == 0.6
    assert verdict([0.5] * 3, slow, 1000.0).speed == 0.5
    assert verdict([0.7] * 3, slow, 1000.0).speed == 0.7
    assert verdict([0.7] * 3, slow, 1000.0).since == slow.since


def test_a_card_recovers_under_load_and_a_little_above_the_limit_only() -> None:
    slow = verdict([0.85] * 3)
    assert slow.speed == 0.85
    assert verdict([0.92] * 9, slow, 1000.0).speed < 1
    assert verdict([0.96] * 3, slow, 1000.0).speed == 1
    assert verdict([0.96] * 3, slow, 1000.0).times == 0


def test_without_load_a_verdict_stands_for_a_while_and_longer_every_time() -> None:
    slow = verdict([0.6] * 3)
    assert verdict([None] * 4, slow, 180.0).speed == 0.6
    free = verdict([None] * 5, slow, 180.0)
    assert (free.speed, free.times) == (1.0, 1)
    again = verdict([0.6] * 3, free, 1000.0)
    assert (again.speed, again.times) == (0.6, 2)
    assert verdict([None] * 9, again, 1180.0).speed == 0.6
    assert verdict([None] * 10, again, 1180.0).speed == 1


def test_readings_that_do_not_come_end_a_verdict_no_sooner_and_no_later_than_a_card_without_load_would() -> None:
    stragglers = after(
        Stragglers(RULES), [node("a", 1.0e9, gang="j"), node("b", gang="j"), node("c", gang="j")], 0, 120
    )
    after(stragglers, [node("b", gang="j")], 130.0, RULES.recovery - 20.0)
    assert set(stragglers.slow()) == {"a"}
    after(stragglers, [node("b", gang="j")], 120.0 + RULES.recovery, 10.0)
    assert stragglers.slow() == {}
    assert stragglers.next_deadline(10_000.0) == math.inf


def test_what_is_known_of_a_node_goes_with_it() -> None:
    stragglers = after(Stragglers(RULES), [node("a", 1.0e9, gang="j"), node("b", gang="j")], 0, 120)
    stragglers.forget(["b"])
    assert stragglers.slow() == {}


def test_cards_that_are_no_longer_reported_are_forgotten() -> None:
    stragglers = after(Stragglers(RULES), [member("a", gpu(0, 1.0e9), gpu(1), gpu(2), gang="j")], 0, 120)
    assert stragglers.slow()
    stragglers.look([member("a", gpu(1), gpu(2), gang="j")], 200.0)
    assert stragglers.slow() == {}


def test_looks_that_follow_each_other_at_once_are_one() -> None:
    stragglers = Stragglers(RULES)
    stragglers.look([member("a", gpu(0, 1.0e9), gpu(1), gang="j")], 0.0)
    stragglers.look([], LOOK_SECONDS / 2)
    stragglers.look([member("a", gpu(0, 1.0e9), gpu(1), gang="j")], 120.0)
    assert set(stragglers.slow()) == {"a"}


def test_when_something_is_to_be_looked_at_is_known() -> None:
    stragglers = Stragglers(RULES)
    stragglers.look([node("a", gang="j"), node("b", gang="j")], 0.0)
    assert stragglers.next_deadline(0.0) == math.inf
    stragglers.look([node("a", 1e9, gang="j"), node("b", gang="j"), node("c", gang="j")], 100.0)
    assert stragglers.next_deadline(130.0) == 90.0
    after(stragglers, [node("a", 1e9, gang="j"), node("b", gang="j"), node("c", gang="j")], 110.0, 120.0)
    assert stragglers.next_deadline(230.0) == RULES.recovery


@given(st.lists(st.one_of(st.none(), st.floats(0.0, 3.0)), max_size=40))
def test_a_speed_is_always_within_its_bounds_and_in_its_bands(rates: list[float | None]) -> None:
    known = Verdict("a", "GPU-0", H100)
    for number, rate in enumerate(rates):
        known = step(known, None if rate is None else Evidence(rate, ""), 60.0 * number, RULES)
        assert known.speed == 1 or LOWEST <= known.speed <= 1 - BAND
        assert known.speed == pytest.approx(round(known.speed / BAND) * BAND)
        assert known.since <= 60.0 * number


# --- the end of a gang that is slowed --------------------------------------------------------------------------------
def test_a_gang_on_a_node_that_has_become_slow_ends_later() -> None:
    assert finish(1000.0, 400.0, 1.0, 0.5) == 1600.0
    assert finish(1000.0, 400.0, 0.5, 0.25) == 1600.0


def test_what_was_planned_for_a_slow_node_is_not_slowed_again() -> None:
    assert finish(1000.0, 400.0, 0.5, 0.5) == 1000.0
    assert finish(1000.0, 400.0, 0.5, 1.0) == 1000.0
    assert finish(1000.0, 1400.0, 1.0, 0.5) == 1000.0
