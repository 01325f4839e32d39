"""Where a gang goes: the nearest domain that holds it, the fullest of those, neighbours next to each other in rank."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.builders import A100, H100, capacity, job, node, running

from trimtab_policy.capacity import Capacity
from trimtab_policy.types import Node, Quota


def names_of(room: Capacity, nodes: int, gpus: int = 8, **need: Any) -> list[str] | None:
    found = room.find(job(**need), A100, nodes, gpus)
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
        shares = room.find(job(), A100, 1, 8)
        assert shares
        room.take(job(), A100, shares)
    assert not room.fits(job(), A100, 1, 1)
    assert room.could_ever_fit(job(), A100, 2, 8)


def test_a_quota_counts_what_the_queue_holds_and_what_is_taken() -> None:
    held = running("other", {"a": 4}, queue="q")
    room = capacity(node("a", free=4), node("b"), jobs=[held], quotas=[Quota("q", A100, 10), Quota("q", "*", 9)])
    mine = job(queue="q")
    assert room.quota_left("q", A100) == 5
    assert room.find(mine, A100, 1, 8) is None
    shares = room.find(mine, A100, 1, 4)
    assert shares
    room.take(mine, A100, shares)
    assert room.quota_left("q", A100) == 1
    assert room.quota_left("another", A100) is None


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
    found = capacity(*nodes).find(job(), A100, count, gpus)
    assert (found is not None) == (sum(each.free_gpus >= gpus for each in nodes) >= count)
    free = {each.name: each.free_gpus for each in nodes}
    assert found is None or len({share.node for share in found}) == count
    assert all(share.gpus == gpus <= free[share.node] for share in found or ())


@given(nodes_st, st.integers(2, 4))
def test_no_domain_that_holds_the_gang_is_nearer_than_the_one_taken(described: list[Any], count: int) -> None:
    nodes = [node(f"n{i}", free=f, topology=t, link_domain=link) for i, (f, t, link) in enumerate(described)]
    found = capacity(*nodes).find(job(), A100, count, 2)
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
