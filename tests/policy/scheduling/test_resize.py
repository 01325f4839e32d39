"""Elastic jobs are resized where that pays for the restart, never at the cost of those who wait, and not back again."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from tests.builders import A100, H100, NOW, T4, job, node, snapshot
from tests.policy.scheduling.crowds import crowds
from tests.policy.scheduling.test_preemption import settled

from trimtab_policy.placement.candidates import candidates, placement
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.scheduling.accounts import Accounts, after
from trimtab_policy.scheduling.permissions import Permissions
from trimtab_policy.scheduling.resize import ResizeRules, resizes
from trimtab_policy.scheduling.shield import judge
from trimtab_policy.types import Decision, Job, Node, NodeShare, Placement, Quota, Snapshot

RULES = ResizeRules()
EVERYBODY = ResizeRules(at_once=1 << 10, looked_at=1 << 10)
LONG = 1_000_000


def elastic(name: str, nodes: dict[str, int], members: list[Node], **changes: Any) -> Job:
    """An elastic job with the fastest plan there is for what it holds, which has run for an hour."""
    defaults: dict[str, Any] = {"gpus": (1, 32), "model": "gpt3-1.3b", "steps": LONG, "preemptible": True}
    made = job(name, **(defaults | {"started": NOW - 3600, "restart_seconds": 60.0} | changes))
    kind = next(each.gpu_type for each in members if each.name in nodes)
    now = snapshot([replace(each, free_gpus=each.gpus) for each in members], [made])
    shape = len(nodes), max(nodes.values())
    known = candidates(now, Capacity(now), made)
    best = next(c for c in known if c.gpu.name == kind and (c.option.nodes, c.option.gpus_per_node) == shape)
    shares = tuple(NodeShare(name, gpus) for name, gpus in nodes.items())
    return replace(made, placement=placement(Capacity(now), made, best, shares, "because"))


def changes(now: Snapshot, rules: ResizeRules = RULES) -> dict[str, dict[str, int]]:
    found = resizes(now, rules)
    verdict, _ = judge(Accounts(now), Decision("resize", found), Permissions(at_once=rules.at_once, about=frozenset()))
    assert verdict.refused == ()
    return {each.job.removeprefix("uid-"): {s.node: s.gpus for s in each.shares} for each in found}


def half_free(**of_job: Any) -> Snapshot:
    """One node, half of it held by an elastic job."""
    nodes = [node("n0", free=4)]
    return snapshot(nodes, [elastic("e", {"n0": 4}, nodes, **of_job)])


def test_a_job_grows_into_what_is_free() -> None:
    assert changes(half_free()) == {"e": {"n0": 8}}


def test_the_reason_says_what_it_gains() -> None:
    [found] = resizes(half_free(), RULES)
    assert "min sooner" in found.reason


def test_the_batch_stays_what_the_user_asked() -> None:
    now = half_free()
    [found] = resizes(now, RULES)
    batch = now.jobs[0].training.global_batch_size
    assert batch % (found.plan.data * found.plan.micro_batch) == 0


def test_a_job_that_is_nearly_done_stays_as_it_is() -> None:
    assert changes(half_free(steps_done=LONG - 10)) == {}


def test_a_change_that_costs_more_than_it_saves_is_not_made() -> None:
    assert changes(half_free(restart_seconds=1e9)) == {}
    assert changes(half_free(lost_seconds=1e9)) == {}


@pytest.mark.parametrize("gain", [1.0, 1.5, 3.0])
def test_the_time_saved_is_so_many_times_the_cost(gain: float) -> None:
    now = half_free()
    [found] = resizes(now, ResizeRules(gain=gain))
    held = now.jobs[0].placement
    assert held
    saved = LONG * (held.prediction.step_seconds - found.prediction.step_seconds)
    dear = half_free(restart_seconds=saved / gain * 1.01)
    cheap = half_free(restart_seconds=saved / gain * 0.99)
    assert [resizes(each, ResizeRules(gain=gain)) != () for each in (dear, cheap)] == [False, True]


@pytest.mark.parametrize(
    "changed", [{"preemptible": False}, {"movable_from": NOW + 1}, {"movable_from": math.inf}, {"started": None}]
)
def test_only_jobs_that_may_be_moved_now_and_say_so_are_changed(changed: dict[str, Any]) -> None:
    assert changes(half_free(**changed)) == {}


def test_gpus_that_a_waiting_job_could_use_are_left_to_it() -> None:
    now = half_free()
    assert changes(replace(now, jobs=(*now.jobs, job("waits", gpus=(8, 8))))) == {}
    elsewhere = job("waits", gpus=(8, 8), gpu_types=(H100,))
    assert changes(replace(now, jobs=(*now.jobs, elsewhere))) == {"e": {"n0": 8}}


def test_gpus_that_free_ones_would_not_help_are_left_to_nobody() -> None:
    now = half_free()
    never, closed = job("never", gpus=(64, 64)), job("closed", gpus=(4, 4), queue="q")
    for waiting, quotas in ((never, ()), (closed, (Quota("q", "*", 0),))):
        assert changes(replace(now, jobs=(*now.jobs, waiting), quotas=quotas)) == {"e": {"n0": 8}}


def test_gpus_that_a_job_could_use_that_comes_back_in_a_moment_are_left_to_it() -> None:
    now = half_free()
    assert changes(replace(now, jobs=(*now.jobs, job("back", gpus=(4, 4), not_before=NOW + 1)))) == {}


def test_gpus_on_nodes_that_no_waiting_job_may_use_can_be_had() -> None:
    nodes = [node("n0", free=4), node("n1", free=0)]
    e, waiting = elastic("e", {"n0": 4}, nodes), job("waits", gpus=(8, 8), eligible=("n1",))
    assert changes(snapshot(nodes, [e, waiting])) == {"e": {"n0": 8}}


def test_a_job_moves_to_better_gpus() -> None:
    nodes = [node("t0", T4, free=4), node("h0", H100)]
    e = elastic("e", {"t0": 4}, nodes, gpus=(4, 4), model="gpt2", precision="FP16")
    assert changes(snapshot(nodes, [e])) == {"e": {"h0": 4}}


def test_more_gpus_than_bring_half_their_share_are_left_free() -> None:
    nodes = [node(f"n{i}", free=0 if i == 0 else 8) for i in range(4)]
    e = elastic("e", {"n0": 8}, nodes, model="gpt2", global_batch_size=8)
    now = snapshot(nodes, [e])
    for found in resizes(now, RULES):
        held = e.placement
        assert held
        faster = found.prediction.tokens_per_second / held.prediction.tokens_per_second - 1
        assert faster >= 0.5 * (found.gpus / held.gpus - 1)


def test_a_quota_holds_for_growth_too() -> None:
    now = replace(half_free(queue="q"), quotas=(Quota("q", A100, 6),))
    assert all(sum(shares.values()) <= 6 for shares in changes(now).values())


def test_no_more_are_changed_than_may_at_once() -> None:
    nodes = [node(f"n{i}", free=4) for i in range(6)]
    now = snapshot(nodes, [elastic(f"e{i}", {f"n{i}": 4}, nodes, gpus=(4, 8), max_nodes=1) for i in range(6)])
    assert len(changes(now, ResizeRules(at_once=2))) == 2
    assert len(changes(now, ResizeRules(at_once=16))) == 6
    assert changes(now, ResizeRules(at_once=0)) == {}


def test_who_gains_most_has_the_first_choice() -> None:
    nodes = [node("n0", free=4)]
    brief = elastic("brief", {"n0": 2}, nodes, gpus=(2, 8), steps=LONG // 20)
    long = elastic("long", {"n0": 2}, nodes, gpus=(2, 8))
    assert next(iter(changes(snapshot(nodes, [brief, long])))) == "long"


def test_a_prediction_that_has_changed_is_no_reason_to_move() -> None:
    """What the plan was predicted to do when it was made is not held against what others would do by today's model."""
    nodes = [node("n0", free=0)]
    e = elastic("e", {"n0": 8}, nodes, gpus=(8, 8))
    assert e.placement
    slower = replace(e.placement.prediction, step_seconds=10 * e.placement.prediction.step_seconds)
    assert changes(snapshot(nodes, [replace(e, placement=replace(e.placement, prediction=slower))])) == {}


# --- whatever is there -------------------------------------------------------------------------------------------
def grown(now: Snapshot, found: tuple[Placement, ...]) -> Snapshot:
    return settled(after(now, Decision("resize", found)))


@given(crowds())
@settings(max_examples=100, deadline=None)
def test_every_rule_of_the_shield_is_kept_whatever_the_cluster_looks_like(now: Snapshot) -> None:
    idle = replace(now, jobs=tuple(each for each in now.jobs if each.placement))
    for each in (now, idle):
        changes(each, EVERYBODY)


@given(crowds())
@settings(max_examples=100, deadline=None)
def test_nobody_goes_back_to_what_it_had(now: Snapshot) -> None:
    """Asked again for as long as anything changes, every job only ever becomes faster, and that ends soon."""
    state = replace(now, jobs=tuple(each for each in now.jobs if each.placement))
    rates: dict[str, float] = {}
    for _ in range(12):
        found = resizes(state, EVERYBODY)
        if not found:
            return
        for each in found:
            assert each.prediction.tokens_per_second > rates.get(each.job, 0.0)
            rates[each.job] = each.prediction.tokens_per_second
        state = grown(state, found)
    raise AssertionError("it never comes to rest")
