"""NVLink domains of several nodes (NVL72): how gangs are divided over them, and what that makes of their speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import capacity, job, node, placement, snapshot

from trimtab_policy import catalog, policy
from trimtab_policy.perf import plans
from trimtab_policy.perf.plan_space import ANYHOW, Linkage, link_shares, linkage
from trimtab_policy.placement.candidates import candidates, has_room
from trimtab_policy.placement.capacity import Capacity, GangDemand
from trimtab_policy.placement.topology import holds, link_domains, linked_gpus, tightest
from trimtab_policy.scheduling.shield import check
from trimtab_policy.sim import llm
from trimtab_policy.specs import ParallelPlan
from trimtab_policy.types import Bounds, Decision, Job, Node, NodeShare, PendingReason, Placement

GB200 = "GB200-186GB"
LLAMA: dict[str, Any] = {
    "model": "llama3-70b", "gpus": (32, 32), "sequence_length": 8192, "global_batch_size": 128, "precision": "BF16",
}  # fmt: skip


def domains(*sizes: int, **changes: Any) -> list[Node]:
    """Nodes with 4 GPUs each in NVLink domains with so many of them free, each domain a rack."""
    return [
        node(f"r{rack}-n{i}", GB200, gpus=4, link_domain=f"r{rack}", topology=("z", f"r{rack}"), **changes)
        for rack, size in enumerate(sizes)
        for i in range(size)
    ]


def divided(sizes: Sequence[int], count: int, lies: Linkage = ANYHOW) -> list[int]:
    """Nodes that a gang takes of each domain, in rank order."""
    link = np.repeat(np.arange(len(sizes)), sizes)
    chosen = tightest(np.zeros_like(link), [np.zeros_like(link), link], count, lies)
    assert len(set(chosen.tolist())) == count
    return [len(list(group)) for _, group in groupby(link[chosen].tolist())]


def placed(nodes: list[Node], name: str = "best_fit", **of_job: Any) -> Placement:
    [found] = policy.load(name).decide(snapshot(nodes, [job(**(LLAMA | of_job))])).placements
    return found


def seconds(found: Placement) -> float:
    return round(found.prediction.step_seconds, 2)


# --- which nodes -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("free", "count", "shares"),
    [
        ([17, 17, 17], 36, [12, 12, 12]),
        ([18] * 8, 128, [16] * 8),
        ([18, 18], 32, [16, 16]),
        ([18, 18, 18], 18, [18]),
        ([3, 3, 2], 8, [3, 3, 2]),
        ([1] * 8, 8, [1] * 8),
    ],
)
def test_a_gang_lies_in_as_few_domains_as_hold_it_in_equal_shares(
    free: list[int], count: int, shares: list[int]
) -> None:
    assert divided(free, count) == shares


def test_of_domains_that_are_large_enough_the_fullest_are_taken() -> None:
    assert divided([18, 10, 12, 10], 20) == [10, 10]
    link = np.repeat(np.arange(4), [18, 10, 12, 10])
    chosen = tightest(np.zeros_like(link), [np.zeros_like(link), link], 20)
    assert set(link[chosen].tolist()) == {1, 3}


def test_where_equal_shares_cannot_be_had_they_are_as_equal_as_can_be() -> None:
    assert sorted(divided([18, 5, 5], 20)) == [5, 15]
    assert sorted(divided([18, 18, 4], 38)) == [4, 17, 17]


def test_domains_give_whole_segments() -> None:
    assert divided([3, 3, 2], 6, Linkage(segment=2, share=2)) == [2, 2, 2]
    assert sorted(divided([18, 18], 20, Linkage(segment=4, share=4))) == [8, 12]


def test_a_nearer_block_of_small_domains_loses_to_domains_with_room_for_the_shares() -> None:
    blocks = [
        node(f"{block}{rack}-{i}", GB200, gpus=4, link_domain=f"{block}{rack}", topology=("z", block, f"{block}{rack}"))
        for block, sizes in (("a", [2] * 4), ("b", [4]), ("c", [4]))
        for rack, size in enumerate(sizes)
        for i in range(size)
    ]
    room = capacity(*blocks)
    assert room.find(job(), GangDemand(GB200, 32, 8)) == room.find(
        job(), GangDemand(GB200, 32, 8, linkage=Linkage(2, 2))
    )
    found = room.find(job(), GangDemand(GB200, 32, 8, linkage=Linkage(4, 4)))
    assert found
    assert Counter(share.node[:2] for share in found) == {"b0": 4, "c0": 4}


def test_a_domain_that_lies_across_racks_stays_in_one_piece_of_the_ranks() -> None:
    nodes = [node(f"n{i}", GB200, gpus=4, link_domain=f"d{i // 4}", topology=("z", f"r{i % 2}")) for i in range(8)]
    found = capacity(*nodes).find(job(), GangDemand(GB200, 24, 6))
    assert found
    names = link_domains(catalog.gpu(GB200), found, {each.name: each for each in nodes})
    assert [len(list(group)) for _, group in groupby(names)] == [3, 3]


def test_linked_nodes_that_are_slow_are_taken_where_only_they_are_linked_so() -> None:
    fast, slow = domains(2, 2), [replace(each, speed=0.5) for each in domains(1, 1, 4)[2:]]
    room = capacity(*fast, *slow)
    close, anyhow = (room.find(job(), GangDemand(GB200, 16, 4, linkage=lies)) for lies in (Linkage(4, 4), ANYHOW))
    assert close
    assert anyhow
    assert (room.speed_of(close), room.speed_of(anyhow)) == (0.5, 1.0)
    assert not room.fits(job(), GangDemand(GB200, 16, 4, least_speed=1.0, linkage=Linkage(4, 4)))


sizes_st = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@given(sizes_st, st.integers(1, 24), st.sampled_from([1, 2, 3, 4]), st.integers(1, 3))
def test_fewest_domains_and_shares_that_differ_only_where_room_or_segments_force_them(
    free: list[int], segments: int, segment: int, least: int
) -> None:
    count, lies = segments * segment, Linkage(segment, least * segment)
    room = sorted((size // segment for size in free if size // segment >= least), reverse=True)
    fewest = next((k for k in range(1, len(room) + 1) if sum(room[:k]) >= segments), 0)
    possible = 0 < fewest * least <= segments
    assert holds(sorted(free, reverse=True), count, lies) == possible
    if not possible:
        return
    shares = divided(free, count, lies)
    assert len(shares) == fewest
    assert all(share % segment == 0 and share >= lies.share for share in shares)
    level = -(-segments // fewest)
    enough = sum(size >= level for size in room) >= (segments % fewest or fewest)
    even = enough and sum(size >= segments // fewest for size in room) >= fewest
    assert not even or max(shares) - min(shares) <= segment
    # Where no equal shares can be had the smallest is still as large as the largest domains allow.
    assert min(shares) == segment * min(segments // fewest, room[fewest - 1])


@given(sizes_st, st.integers(1, 12), st.sampled_from([1, 2, 4]))
def test_capacity_finds_nodes_exactly_where_it_says_that_they_fit(free: list[int], segments: int, segment: int) -> None:
    room, lies = capacity(*domains(*free)), Linkage(segment, segment)
    asked = GangDemand(GB200, 4 * segments * segment, segments * segment, linkage=lies)
    found = room.find(job(), asked)
    assert (found is not None) == room.fits(job(), asked)
    assert room.could_ever_fit(job(), asked) == (found is not None)
    names = [share.node.partition("-")[0] for share in found or ()]
    assert all(len(set(names[first : first + segment])) == 1 for first in range(0, len(names), segment))


# --- how fast ----------------------------------------------------------------------------------------------------
def test_the_policy_compares_plans_for_the_nodes_that_the_gang_would_get() -> None:
    together, halves, scattered = placed(domains(8)), placed(domains(4, 4)), placed(domains(*[1] * 8))
    assert seconds(together) == 11.29
    assert seconds(together) < seconds(halves) < seconds(placed(domains(3, 3, 2))) < seconds(scattered)
    assert seconds(scattered) == 13.24
    assert (scattered.plan.tensor, scattered.plan.pipeline) == (4, 2)


def test_the_plan_for_one_domain_would_take_three_times_as_long_where_links_end_at_the_node() -> None:
    waiting, together = job(**LLAMA), placed(domains(8))
    alone = plans.predict(waiting.model, waiting.training, together.plan, catalog.gpu(GB200), 4, linked=4)
    assert round(alone.step_seconds, 2) == 32.92


def test_nodes_without_a_clique_share_no_links() -> None:
    bare = [replace(each, link_domain="", topology=()) for each in domains(8)]
    assert seconds(placed(bare)) == 13.24


def test_the_reason_says_how_the_nodes_are_linked() -> None:
    assert "NVLink" not in placed(domains(18)).reason
    assert placed(domains(4, 4)).reason.endswith(", 4 nodes in each of 2 NVLink domains")
    assert placed(domains(3, 3, 2)).reason.endswith(", in 3 NVLink domains of 3, 3, 2 nodes")
    assert placed(domains(*[1] * 8)).reason.endswith(", on nodes that share no NVLink")


@pytest.mark.parametrize("sizes", [(8,), (5, 3), (3, 3, 2), (2, 2, 2, 2), (6, 1, 1)])
def test_a_placement_is_predicted_for_the_smallest_share(sizes: tuple[int, ...]) -> None:
    nodes, waiting = domains(*sizes), job(**LLAMA)
    found = placed(nodes)
    names = link_domains(catalog.gpu(GB200), found.shares, {each.name: each for each in nodes})
    linked = linked_gpus(found.shares, names)
    width = found.shares[0].gpus
    said = plans.predict(waiting.model, waiting.training, found.plan, catalog.gpu(GB200), width, linked=linked)
    assert linked == width * min(Counter(names).values())
    assert found.prediction.step_seconds == pytest.approx(said.step_seconds)
    assert found.prediction.uncertainty == said.uncertainty


@pytest.mark.parametrize("name", ["best_fit", "fcfs"])
def test_the_reason_says_the_rate_on_these_nodes(name: str) -> None:
    """5+3 nodes are faster than what the option promises of any shares of at least 2."""
    [found] = policy.load(name).decide(snapshot(domains(5, 3), [job(**LLAMA)])).placements
    rate = found.prediction.tokens_per_second
    said = f"{rate / 1000:.1f}k tokens/s" if name == "best_fit" else f"{rate:,.0f} tokens/s"
    assert said in found.reason


def test_the_simulator_runs_a_gang_as_fast_as_its_nodes_are_linked() -> None:
    nodes = domains(8, *[1] * 8)
    now = replace(snapshot(nodes, [job(**LLAMA, created=0.0)]), time=0.0)
    [together] = policy.load("best_fit").decide(now).placements
    apart = tuple(NodeShare(each.name, 4) for each in nodes[8:])
    [simulated] = llm.jobs(now.jobs, now)
    assert 1 / simulated.rate(together) == pytest.approx(together.prediction.step_seconds)
    assert 1 / simulated.rate(replace(together, shares=apart)) == pytest.approx(32.92, abs=0.005)


# --- which plans -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("nodes", "domain", "shares"),
    [(8, 18, [8, 4, 2, 1]), (36, 18, [18, 12, 9, 7, 6, 5, 4, 3, 2, 1]), (1, 18, [1]), (8, 1, [1]), (8, 0, [1])],
)
def test_a_gang_is_offered_with_each_share_that_equal_parts_have(nodes: int, domain: int, shares: list[int]) -> None:
    assert link_shares(nodes, domain) == shares


def test_segments_are_the_largest_groups_that_the_prediction_takes_to_share_a_link() -> None:
    plan = ParallelPlan(data=4, tensor=8, pipeline=2)
    assert linkage(plan, 4, 4) is ANYHOW
    assert linkage(plan, 4, 8) == Linkage(segment=2, share=2)
    assert linkage(plan, 4, 20) == Linkage(segment=2, share=6)
    assert linkage(plan, 4, 32) == Linkage(segment=8, share=8)


@pytest.mark.parametrize(("free", "fits"), [([8], True), ([4, 4], True), ([3, 3, 2], False), ([1] * 8, False)])
def test_a_tensor_degree_above_the_node_runs_where_a_domain_holds_its_groups(free: list[int], fits: bool) -> None:
    nodes, waiting = domains(*free), job(**(LLAMA | {"gpus": (32, 32)}), tensor=Bounds(8, 8))
    now = snapshot(nodes, [waiting])
    decision = policy.load("best_fit").decide(now)
    assert len(decision.placements) == fits
    assert check(now, decision).refused == ()
    assert all(found.plan.tensor == 8 for found in decision.placements)
    room = Capacity(now)
    assert any(has_room(room, waiting, found) for found in candidates(now, room, waiting)) == fits


def test_a_job_whose_groups_no_domain_can_hold_now_is_told_so() -> None:
    busy = [replace(each, free_gpus=each.gpus if each.name in ("r0-n0", "r1-n0") else 0) for each in domains(2, 2)]
    waiting = job(**(LLAMA | {"model": "llama3-8b", "gpus": (8, 8)}), tensor=Bounds(8, 8))
    [told] = policy.load("best_fit").decide(snapshot(busy, [waiting])).pending
    assert told.reason is PendingReason.FRAGMENTED
    assert f"8 {GB200} are free, but not groups of 2 nodes that lie in one NVLink domain each" in told.message


def test_types_whose_links_end_at_the_node_are_offered_and_placed_as_ever() -> None:
    nodes = [node(f"n{i}", link_domain="clique") for i in range(4)]
    now = snapshot(nodes, [job(model="llama3-8b", gpus=(32, 32))])
    room = Capacity(now)
    found = candidates(now, room, now.jobs[0])
    assert found
    assert all(each.option.linked == 0 and each.option.linkage is ANYHOW for each in found)
    [decided] = policy.load("best_fit").decide(now).placements
    assert "NVLink" not in decided.reason


# --- rules and other policies ------------------------------------------------------------------------------------
def tensor_gang(*names: str) -> tuple[Placement, Job]:
    plan = ParallelPlan(data=len(names) // 2, tensor=8, zero_stage=1)
    waiting = job(**(LLAMA | {"model": "llama3-8b", "gpus": (8, 32)}))
    return placement(nodes=dict.fromkeys(names, 4), gpu_type=GB200, plan=plan), waiting


@pytest.mark.parametrize(
    ("names", "rules"),
    [
        (("r0-n0", "r0-n1"), []),
        (("r0-n0", "r0-n1", "r1-n0", "r1-n1"), []),
        (("r0-n0", "r1-n0"), ["tensor_across_nodes"]),
        (("r0-n0", "r1-n0", "r0-n1", "r1-n1"), ["tensor_across_nodes"]),
    ],
)
def test_the_shield_wants_each_tensor_group_within_one_domain(names: tuple[str, ...], rules: list[str]) -> None:
    given_, waiting = tensor_gang(*names)
    verdict = check(snapshot(domains(2, 2), [waiting]), Decision("any", (given_,)))
    assert [refusal.rule for refusal in verdict.refused] == rules


@pytest.mark.parametrize("name", ["best_fit", "fcfs", "sjf", "easy_backfill", "fgd", "sia", "gavel", "pollux", "srtf"])
def test_every_policy_decides_what_the_shield_accepts_and_predicts_for_the_nodes(name: str) -> None:
    nodes = domains(5, 4, 3, 2)
    waiting = [
        job(f"j{i}", model=model, gpus=(8, 24), precision="BF16", preemptible=True)
        for i, model in enumerate(["llama3-8b", "gpt3-13b", "mixtral-8x7b"])
    ]
    now = snapshot(nodes, waiting)
    decision = policy.load(name).decide(now)
    assert decision.placements
    assert check(now, decision).refused == ()
    by_uid = {each.uid: each for each in waiting}
    for found in decision.placements:
        of = by_uid[found.job]
        names = link_domains(catalog.gpu(GB200), found.shares, {each.name: each for each in nodes})
        linked, width = linked_gpus(found.shares, names), found.shares[0].gpus
        said = plans.predict(of.model, of.training, found.plan, catalog.gpu(GB200), width, linked=linked)
        assert found.prediction.step_seconds == pytest.approx(said.step_seconds)
