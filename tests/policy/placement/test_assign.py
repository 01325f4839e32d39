"""From wishes to nodes: what stays, what moves, what has to wait, and that no node is ever given away twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, T4, job, node, placement, snapshot
from tests.trace_jobs import traced

from trimtab_policy.placement.assign import realise
from trimtab_policy.placement.candidates import Candidate, candidates
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.types import Decision, Node, Pending, PendingReason, Placement, Quota, Snapshot


def wish(now: Snapshot, uid: str, gpus: int, gpu_type: str = A100) -> Candidate:
    [waiting] = [each for each in now.jobs if each.uid == uid]
    known = candidates(now, Capacity(now), waiting)
    return next(found for found in known if (found.gpu.name, found.option.gpus) == (gpu_type, gpus))


def wishes(now: Snapshot, **gpus: int) -> dict[str, Candidate]:
    return {f"uid-{name}": wish(now, f"uid-{name}", count) for name, count in gpus.items()}


def carry_out(now: Snapshot, decision: Decision) -> dict[str, Placement]:
    """Who holds what afterwards; fails when a node is over-allocated."""
    held = {each.uid: each.placement for each in now.jobs if each.placement}
    free = {each.name: each.free_gpus for each in now.nodes}
    for uid in [stop.job for stop in decision.stops] + [each.job for each in decision.placements]:
        for share in held[uid].shares if uid in held else ():
            free[share.node] += share.gpus
        held.pop(uid, None)
    for each in decision.placements:
        held[each.job] = each
        for share in each.shares:
            free[share.node] -= share.gpus
            assert share.gpus > 0
            assert free[share.node] >= 0, f"{share.node} is over-allocated"
    return held


def nodes_of(placed: Placement) -> dict[str, int]:
    return {share.node: share.gpus for share in placed.shares}


def quads(*free: int) -> list[Node]:
    return [node(f"n{i}", gpus=4, free=left) for i, left in enumerate(free)]


def test_a_wish_that_is_what_the_job_has_changes_nothing() -> None:
    now = snapshot(quads(0, 2), [traced("a", 4, {"n0": 4}), traced("b", 2, {"n1": 2})])
    assert realise("x", now, wishes(now, a=4, b=2)) == Decision("x")


def test_a_running_job_that_is_not_wished_for_is_stopped() -> None:
    now = snapshot(quads(0), [traced("a", 4, {"n0": 4}), traced("b", 4)])
    decision = realise("x", now, wishes(now, b=4))
    assert [(stop.job, stop.reason) for stop in decision.stops] == [("uid-a", "x gives its GPUs to other jobs")]
    assert {uid: nodes_of(held) for uid, held in carry_out(now, decision).items()} == {"uid-b": {"n0": 4}}


def test_a_job_that_must_not_be_preempted_goes_on_whatever_is_wished() -> None:
    fixed = replace(traced("a", 4, {"n0": 4}), preemptible=False)
    now = snapshot(quads(0), [fixed, traced("b", 4)])
    decision = realise("x", now, wishes(now, b=4))
    assert (decision.placements, decision.stops) == ((), ())
    assert [answer.reason for answer in decision.pending] == [PendingReason.INSUFFICIENT_GPUS]


def test_a_resize_frees_before_it_takes() -> None:
    now = snapshot(quads(2), [traced("a", (1, 2, 4), {"n0": 2})])
    decision = realise("x", now, wishes(now, a=4))
    assert nodes_of(carry_out(now, decision)["uid-a"]) == {"n0": 4}
    assert decision.stops == ()


def test_larger_gangs_are_placed_first_and_small_ones_fill_the_rest() -> None:
    now = snapshot(quads(4, 4, 4), [traced("a", 1), traced("b", 2), traced("c", 8)])
    held = carry_out(now, realise("x", now, wishes(now, a=1, b=2, c=8)))
    assert nodes_of(held["uid-c"]) == {"n0": 4, "n1": 4}
    assert nodes_of(held["uid-a"]).keys() == nodes_of(held["uid-b"]).keys() == {"n2"}


def test_a_gang_that_is_no_multiple_of_a_node_takes_whole_ones_and_the_best_fit() -> None:
    now = snapshot([*quads(4, 4), node("n2", gpus=4, free=2)], [traced("a", 6)])
    assert nodes_of(carry_out(now, realise("x", now, wishes(now, a=6)))["uid-a"]) == {"n0": 4, "n2": 2}


def test_scattered_gpus_are_gathered_by_moving_the_fewest_jobs() -> None:
    small = [traced("a", 1, {"n0": 1}), traced("b", 1, {"n0": 1}), traced("c", 1, {"n1": 1}), traced("d", 1, {"n2": 1})]
    now = snapshot(quads(2, 3, 3), [*small, traced("e", 4)])
    decision = realise("x", now, wishes(now, a=1, b=1, c=1, d=1, e=4))
    held = carry_out(now, decision)
    assert nodes_of(held["uid-e"]) == {"n1": 4}
    assert {placed.job for placed in decision.placements} == {"uid-c", "uid-e"}
    assert len(held) == 5


def test_jobs_that_are_as_fast_on_scattered_gpus_move_nobody() -> None:
    now = snapshot(quads(2, 3), [traced("a", 2, {"n0": 2}), traced("b", 1, {"n1": 1}), traced("c", 4)])
    decision = realise("x", now, wishes(now, a=2, b=1, c=4), scatter=True)
    assert [nodes_of(placed) for placed in decision.placements] == [{"n1": 3, "n0": 1}]


def test_what_cannot_be_gathered_is_spread_as_the_last_resort() -> None:
    fixed = [replace(traced(name, 2, {f"n{i}": 2}), preemptible=False) for i, name in enumerate("ab")]
    now = snapshot(quads(2, 2), [*fixed, traced("c", 4)])
    assert nodes_of(carry_out(now, realise("x", now, wishes(now, c=4)))["uid-c"]) == {"n0": 2, "n1": 2}


def test_a_running_job_whose_wish_has_no_room_is_stopped_and_says_so() -> None:
    fixed = replace(traced("a", 4, {"n0": 4}), preemptible=False)
    now = snapshot(quads(0, 2), [fixed, traced("b", (2, 8), {"n1": 2})])
    decision = realise("x", now, wishes(now, b=8))
    assert [stop.reason for stop in decision.stops] == [f"no room for the 8×{A100} that x has chosen"]


def test_a_quota_holds_for_wishes_too() -> None:
    waiting = [traced("a", 2, queue="q"), traced("b", 2, queue="q")]
    now = snapshot(quads(4), waiting, quotas=[Quota("q", "*", 3)])
    decision = realise("x", now, wishes(now, a=2, b=2))
    assert [placed.job for placed in decision.placements] == ["uid-a"]
    assert [answer.reason for answer in decision.pending] == [PendingReason.QUOTA_EXCEEDED]


def test_reasons_are_asked_only_about_jobs_that_nothing_is_wished_for() -> None:
    now = snapshot(quads(4), [traced("a", 4), traced("b", 4)])
    later = lambda waiting: Pending(waiting.uid, PendingReason.BEHIND_OTHERS, "later")  # noqa: E731
    assert realise("x", now, wishes(now, a=4), later).pending == (later(now.jobs[1]),)
    [said] = realise("x", now, wishes(now, a=4)).pending
    assert said.message == "x gives the GPUs to other jobs first"


def test_plans_of_the_performance_model_are_packed_and_repacked_too() -> None:
    held = placement("uid-small", {"a": 1})
    small = job("small", gpus=(1, 1), placement=held, preemptible=True)
    now = snapshot([node("a", gpus=8, free=7), node("b", gpus=8)], [small, job("large", gpus=(16, 16))])
    small = replace(small, placement=replace(held, plan=wish(now, "uid-small", 1).option.plan))
    now = replace(now, jobs=(small, now.jobs[1]))
    waiting = snapshot([*now.nodes, node("c", gpus=8, free=1)], now.jobs)
    decision = realise("x", waiting, wishes(waiting, small=1, large=16))
    after = carry_out(waiting, decision)
    assert nodes_of(after["uid-large"]) == {"a": 8, "b": 8}
    assert nodes_of(after["uid-small"]) == {"c": 1}


# --- whatever is wished ------------------------------------------------------------------------------------------
@st.composite
def clusters(draw: st.DrawFn, sizes: list[int], *, movable: bool = True) -> tuple[Snapshot, dict[str, Candidate]]:
    """Running and waiting jobs of given sizes on two types of node, and a wish for some of them."""
    kinds = [(A100, 4)] * draw(st.integers(1, 4)) + [(T4, 8)] * draw(st.integers(0, 2))
    free = {f"n{i}": count for i, (_, count) in enumerate(kinds)}
    jobs = []
    for i in range(draw(st.integers(1, 9))):
        gpus, at = draw(st.sampled_from(sizes)), draw(st.sampled_from([*free, ""]))
        runs = at and gpus <= free[at]
        gpu_type = dict(zip(free, [kind for kind, _ in kinds], strict=True)).get(at, A100)
        made = traced(f"j{i}", tuple(sizes), {at: gpus} if runs else None, gpu_type, types=(A100, T4))
        jobs.append(replace(made, preemptible=movable or draw(st.booleans())))
        if runs:
            free[at] -= gpus
    nodes = [node(name, kind, gpus=count, free=free[name]) for name, (kind, count) in zip(free, kinds, strict=True)]
    now = snapshot(nodes, jobs)
    wanted = {}
    for each in jobs:
        known = candidates(now, Capacity(now), each)
        if draw(st.integers(0, 3)):
            wanted[each.uid] = draw(st.sampled_from(known))
    return now, wanted


@given(clusters([1, 2, 3, 5, 6, 8], movable=False), st.booleans())
def test_no_wish_ever_overallocates_a_node_or_touches_a_job_that_must_go_on(
    case: tuple[Snapshot, dict[str, Candidate]], scatter: bool
) -> None:
    now, wanted = case
    decision = realise("x", now, wanted, scatter=scatter)
    held = carry_out(now, decision)
    by_uid = {each.uid: each for each in now.jobs}
    touched = [*(stop.job for stop in decision.stops), *(placed.job for placed in decision.placements)]
    assert len(touched) == len(set(touched))
    assert all(by_uid[uid].preemptible or by_uid[uid].placement is None for uid in touched)
    answered = [*(placed.job for placed in decision.placements), *(waits.job for waits in decision.pending)]
    assert {waiting.uid for waiting in now.waiting()} <= set(answered)
    types = {each.name: each.gpu_type for each in now.nodes}
    assert all(types[share.node] == placed.gpu_type for placed in held.values() for share in placed.shares)
    for placed in decision.placements:
        assert (placed.gpu_type, placed.gpus) == (wanted[placed.job].gpu.name, wanted[placed.job].option.gpus)
    assert realise("x", now, wanted, scatter=scatter) == decision


@given(clusters([1, 2, 4, 8]))
def test_gangs_of_powers_of_two_fit_whenever_their_gpus_do_and_on_as_few_nodes_as_can_be(
    case: tuple[Snapshot, dict[str, Candidate]],
) -> None:
    now, wanted = case
    sizes = {each.gpu_type: each.gpus for each in now.nodes}
    total = {kind: sum(each.gpus for each in now.nodes if each.gpu_type == kind) for kind in sizes}
    for uid, found in list(wanted.items()):
        total[found.gpu.name] -= found.option.gpus
        if total[found.gpu.name] < 0:
            total[found.gpu.name] += found.option.gpus
            del wanted[uid]
    held = carry_out(now, realise("x", now, wanted))
    assert held.keys() == wanted.keys()
    for uid, placed in held.items():
        assert len(placed.shares) == -(-wanted[uid].option.gpus // sizes[placed.gpu_type])


@given(clusters([1, 2, 3, 5, 6, 8]))
def test_what_has_been_carried_out_needs_no_further_change(case: tuple[Snapshot, dict[str, Candidate]]) -> None:
    now, wanted = case
    held = carry_out(now, realise("x", now, wanted))
    free = {each.name: each.gpus for each in now.nodes}
    for placed in held.values():
        for share in placed.shares:
            free[share.node] -= share.gpus
    after = replace(
        now,
        nodes=tuple(replace(each, free_gpus=free[each.name]) for each in now.nodes),
        jobs=tuple(replace(each, placement=held.get(each.uid)) for each in now.jobs),
    )
    again = realise("x", after, {uid: found for uid, found in wanted.items() if uid in held})
    assert (again.placements, again.stops) == ((), ())
