"""Where a gang goes: the nearest domain that holds it, the fullest of those, neighbours next to each other in rank."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.builders import A100, H100, capacity, job, node, running

from trimtab_policy.placement.capacity import Capacity, GangDemand
from trimtab_policy.placement.node_columns import GangColumns
from trimtab_policy.types import Node, NodeShare, Quota


def names_of(room: Capacity, nodes: int, gpus: int = 8, **need: Any) -> list[str] | None:
    found = room.find(job(**need), GangDemand(A100, nodes * gpus, nodes))
    return [share.node for share in found] if found else None


def rack(name: str, *free: int, block: str = "b1") -> list[Node]:
    return [node(f"{name}-n{i}", free=gpus, topology=("z", block, name)) for i, gpus in enumerate(free)]


def test_one_pod_goes_to_the_node_that_it_fills_best() -> None:
    assert names_of(capacity(node("a", free=8), node("b", free=3), node("c", free=4)), 1, 3) == ["b"]


def test_between_equal_nodes_one_in_the_fuller_rack_is_taken() -> None:
    assert names_of(capacity(*rack("r1", 8, 8, 8), *rack("r2", 8, 8)), 1) == ["r2-n0"]


def test_a_gang_goes_into_one_rack_where_one_holds_it() -> None:
    assert names_of(capacity(*rack("r1", 8), *rack("r2", 8, 8), *rack("r3", 8)), 2) == ["r2-n0", "r2-n1"]


def test_of_several_racks_that_hold_it_the_one_with_least_to_spare_is_taken() -> None:
    assert names_of(capacity(*rack("r1", 8, 8, 8), *rack("r2", 8, 8), *rack("r3", 8, 8, 8, 8)), 2) == ["r2-n0", "r2-n1"]


def test_without_a_rack_that_holds_it_the_block_does() -> None:
    room = capacity(*rack("r1", 8, block="b1"), *rack("r2", 8, block="b2"), *rack("r3", 8, block="b2"))
    assert names_of(room, 2) == ["r2-n0", "r3-n0"]


def test_a_gang_that_no_rack_holds_is_spread_over_as_few_as_possible() -> None:
    room = capacity(*rack("r1", 8), *rack("r2", 8), *rack("r3", 8), *rack("r4", 8, 8, 8))
    assert names_of(room, 4) == ["r1-n0", "r4-n0", "r4-n1", "r4-n2"]


def test_an_nvlink_domain_is_nearer_than_a_rack() -> None:
    nodes = [node(f"n{i}", topology=("z", "b", "r"), link_domain=f"clique-{i % 2}") for i in range(4)]
    assert names_of(capacity(*nodes), 2) == ["n0", "n2"]


def test_nodes_without_topology_labels_are_no_neighbours() -> None:
    room = capacity(node("a"), node("b"), *rack("r1", 8, 8))
    assert names_of(room, 2) == ["r1-n0", "r1-n1"]


def test_ranks_follow_the_network_not_the_order_of_the_nodes() -> None:
    nodes = [node(f"n{i}", topology=("z", "b", f"r{i % 2}")) for i in range(4)]
    assert names_of(capacity(*nodes), 4) == ["n0", "n2", "n1", "n3"]


def test_nodes_that_lack_cpu_memory_or_pod_slots_are_passed_over() -> None:
    room = capacity(
        node("cpu", free_cpu_milli=7_999),
        node("memory", free_memory=8 << 30),
        node("pods", free_pods=0),
        node("good", free_cpu_milli=8_000, free_memory=9 << 30, free_pods=1),
    )
    need = {"cpu_milli_per_gpu": 1000, "memory_per_gpu": 1 << 30, "memory_per_pod": 1 << 30}
    assert names_of(room, 1, **need) == ["good"]
    assert names_of(room, 2, **need) is None


def test_only_eligible_nodes_of_the_type_are_taken() -> None:
    room = capacity(node("a"), node("b"), node("c", H100))
    assert names_of(room, 1, eligible=("b", "gone")) == ["b"]
    assert names_of(room, 2, eligible=("b", "c")) is None


def test_an_overallocated_node_has_nothing_free() -> None:
    room = capacity(node("a", free=-3), node("b", free=0), node("c", free=1))
    assert room.gpus(job(), A100) == 1
    assert room.gpus(job(), A100, free=False) == 24
    assert names_of(room, 1, 1) == ["c"]


def test_what_is_taken_is_gone_for_the_next() -> None:
    room = capacity(node("a"), node("b"))
    for _ in range(2):
        shares = room.find(job(), GangDemand(A100, 8, 1))
        assert shares
        room.take(job(), A100, shares)
    assert not room.fits(job(), GangDemand(A100, 1, 1))
    assert room.could_ever_fit(job(), GangDemand(A100, 16, 2))


def test_a_quota_counts_what_the_queue_holds_and_what_is_taken() -> None:
    held = running("other", {"a": 4}, queue="q")
    room = capacity(node("a", free=4), node("b"), jobs=[held], quotas=[Quota("q", A100, 10), Quota("q", "*", 9)])
    mine = job(queue="q")
    assert room.quota_left("q", A100) == 5
    assert room.find(mine, GangDemand(A100, 8, 1)) is None
    shares = room.find(mine, GangDemand(A100, 4, 1))
    assert shares
    room.take(mine, A100, shares)
    assert room.quota_left("q", A100) == 1
    assert room.quota_left("another", A100) is None


def test_gpus_of_pods_that_are_just_ending_count_once() -> None:
    """Node b has two GPUs too few until pods with three have ended; four of the six that a gang holds on c are back."""
    room = capacity(node("a", free=2), node("b", free=-2), node("c", free=6, foreign_gpus=1))
    held = [(job(), A100, [NodeShare("c", 6), NodeShare("gone", 8)])]
    room.expect({"a": 3, "b": 3, "gone": 8}, GangColumns.of(held, room.index))
    assert dict(zip(room.names, room.free.tolist(), strict=True)) == {"a": 5, "b": 1, "c": 1}
    assert room.free_gpus(A100) == 7
    room.give(job(), A100, (NodeShare("b", 2), NodeShare("c", 6)))
    assert room.free.tolist() == [5, 3, 7]
    assert not any(map(room.owed, range(3)))


nodes_st = st.lists(
    st.builds(
        lambda free, rack, block, link: (free, (f"b{block}", f"r{rack}") if rack else (), f"l{link}" if link else ""),
        st.integers(-2, 8),
        st.integers(0, 3),
        st.integers(0, 1),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


@given(nodes_st, st.integers(1, 6), st.sampled_from([1, 2, 4, 8]))
def test_a_gang_is_found_exactly_when_enough_nodes_have_room(described: list[Any], count: int, gpus: int) -> None:
    nodes = [node(f"n{i}", free=f, topology=t, link_domain=link) for i, (f, t, link) in enumerate(described)]
    found = capacity(*nodes).find(job(), GangDemand(A100, count * gpus, count))
    assert (found is not None) == (sum(each.free_gpus >= gpus for each in nodes) >= count)
    free = {each.name: each.free_gpus for each in nodes}
    assert found is None or len({share.node for share in found}) == count
    assert all(share.gpus == gpus <= free[share.node] for share in found or ())


@given(nodes_st, st.integers(2, 4))
def test_no_domain_that_holds_the_gang_is_nearer_than_the_one_taken(described: list[Any], count: int) -> None:
    nodes = [node(f"n{i}", free=f, topology=t, link_domain=link) for i, (f, t, link) in enumerate(described)]
    found = capacity(*nodes).find(job(), GangDemand(A100, 2 * count, count))
    if found is None:
        return
    by_name = {each.name: each for each in nodes}
    for domain in (lambda n: n.link_domain, lambda n: n.topology, lambda n: n.topology[:1]):
        chosen = {domain(by_name[share.node]) or share.node for share in found}
        sizes: dict[object, int] = {}
        for each in nodes:
            if each.free_gpus >= 2 and domain(each):
                sizes[domain(each)] = sizes.get(domain(each), 0) + 1
        if max(sizes.values(), default=0) >= count:
            assert len(chosen) == 1
            return


# --- gangs that may be uneven ------------------------------------------------------------------------------------
def parts_of(room: Capacity, gpus: int, nodes: int = 1, spread: int = 99, **need: Any) -> dict[str, int] | None:
    found = room.find(job(**need), GangDemand(A100, gpus, nodes, spread))
    assert room.fits(job(**need), GangDemand(A100, gpus, nodes, spread)) == (found is not None)
    return {share.node: share.gpus for share in found} if found else None


def quads(*free: int) -> list[Node]:
    return [node(f"n{i}", gpus=4, free=left) for i, left in enumerate(free)]


def test_a_gang_that_one_node_holds_goes_where_least_is_left_over() -> None:
    assert parts_of(capacity(*quads(4, 3, 2)), 3) == {"n1": 3}


def test_six_gpus_on_nodes_of_four_are_a_whole_node_and_the_best_fit_for_the_rest() -> None:
    assert parts_of(capacity(*quads(3, 4, 2, 4)), 6, 2) == {"n1": 4, "n2": 2}


def test_scattered_gpus_are_gathered_from_as_few_nodes_as_can_be_up_to_a_limit() -> None:
    assert parts_of(capacity(*quads(1, 2, 1, 3)), 6) == {"n3": 3, "n1": 2, "n0": 1}
    assert parts_of(capacity(*quads(1, 2, 1, 3)), 6, spread=2) is None


def test_a_gang_that_shall_lie_on_more_nodes_than_it_must_is_divided_evenly() -> None:
    assert parts_of(capacity(*quads(4, 4, 3)), 4, 2) == {"n2": 2, "n0": 2}
    assert parts_of(capacity(*quads(4, 1)), 4, 2) == {"n0": 4}


def test_uneven_parts_keep_to_eligible_nodes_and_to_what_else_the_nodes_have() -> None:
    nodes = [node("a", free=8, free_cpu_milli=3500), node("b", free=8), node("c", free=8, free_pods=0), node("d", H100)]
    assert parts_of(capacity(*nodes), 11, cpu_milli_per_gpu=1000) == {"b": 8, "a": 3}
    assert parts_of(capacity(*nodes), 12, cpu_milli_per_gpu=1000) is None
    assert parts_of(capacity(*nodes), 9, eligible=("a", "gone")) is None
    assert parts_of(capacity(*nodes), 1, cpu_milli_per_pod=5000, eligible=("a",)) is None


def test_what_is_given_back_is_free_again_once_debts_are_paid() -> None:
    held = running("held", {"a": 4, "b": 4, "gone": 2}, queue="q")
    assert held.placement
    room = capacity(node("a", free=-3), node("b", free=0), jobs=[held], quotas=[Quota("q", "*", 12)])
    room.give(held, A100, held.placement.shares)
    assert room.free.tolist() == [1, 4]
    assert (room.free_gpus(A100), room.quota_left("q", A100)) == (5, 12)
    room.take(held, A100, room.find(held, GangDemand(A100, 5, 1, 9)) or ())
    assert (room.free.tolist(), room.quota_left("q", A100)) == ([0, 0], 7)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8), st.integers(1, 40), st.integers(1, 4), st.integers(1, 9))
def test_an_uneven_gang_is_found_exactly_when_some_nodes_within_the_limit_hold_it(
    free: list[int], gpus: int, nodes: int, spread: int
) -> None:
    found = parts_of(capacity(*(node(f"n{i}", free=left) for i, left in enumerate(free))), gpus, nodes, spread)
    most = sorted(free, reverse=True)
    fewest = next((n for n in range(1, len(free) + 1) if sum(most[:n]) >= gpus), None)
    assert (found is not None) == (fewest is not None and fewest <= spread)
    if found and fewest:
        assert sum(found.values()) == gpus
        assert all(0 < part <= free[int(name[1:])] for name, part in found.items())
        assert len(found) in (fewest, nodes)
