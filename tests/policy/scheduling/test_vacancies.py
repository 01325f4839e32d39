"""Free GPUs as a table: what a look into it says is what the nodes have."""

from __future__ import annotations

import pytest
from tests.builders import A100, H100, job, node, snapshot

from trimtab_policy.placement.candidates import Candidate
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.scheduling.shapes import possible, shortlist
from trimtab_policy.scheduling.vacancies import GangShape, Vacancies, needs

NODES = [node("a", free=8), node("b", free=4), node("c", free=2), node("h", H100, free=4)]


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("gpu_type", [A100, H100])
@pytest.mark.parametrize(("nodes", "per_node"), [(1, 8), (2, 4), (1, 4), (3, 2), (2, 2), (1, 1), (6, 0), (14, 0)])
def test_one_look_into_the_flat_table_says_whether_a_gang_fits(
    pinned: bool, gpu_type: str, nodes: int, per_node: int
) -> None:
    waiting = job(eligible=("b", "c", "h") if pinned else None)
    table = Vacancies(snapshot(NODES, [waiting]), [waiting])
    shape = GangShape(gpu_type, nodes * per_node or nodes, nodes, per_node, 1.0, 1.0)
    free = [each.free_gpus for each in NODES if each.gpu_type == gpu_type and not (pinned and each.name == "a")]
    fits = sum(gpus >= per_node for gpus in free) >= nodes if per_node else sum(free) >= nodes
    pool = table.pool_of(waiting)
    assert table.fits(pool, shape) == fits
    assert (table.counts.flat[table.cell(pool, shape)] >= needs(shape)) == fits


def test_of_many_shapes_a_few_are_looked_at_the_faster_of_equal_cost_first() -> None:
    now = snapshot([node("n0"), node("n1")], [waiting := job(model="llama3-8b", gpus=(8, 16))])
    free = Capacity(now)
    found = shortlist(now, free, waiting, possible(now, free, waiting))

    def order(wish: Candidate) -> tuple[float, float]:
        return wish.cost, -wish.tokens_per_second

    assert 1 < len(found) <= 4
    assert found == sorted(found, key=order)
    assert found[0] == min(possible(now, free, waiting), key=order)


@pytest.mark.parametrize("others", [0, 3])
def test_shapes_beyond_an_equal_share_of_the_cluster_are_left_out(others: int) -> None:
    everybody = [job(f"job-{i}", model="llama3-8b", gpus=(8, 32)) for i in range(1 + others)]
    now = snapshot([node(f"n{i}") for i in range(4)], everybody)
    free = Capacity(now)
    widest = max(wish.option.gpus for wish in shortlist(now, free, everybody[0], possible(now, free, everybody[0])))
    assert widest == 32 // len(everybody)
