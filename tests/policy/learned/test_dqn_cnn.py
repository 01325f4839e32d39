"""ADLRO's network in numpy: it answers as torch does, and schedules clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.builders import job, node, snapshot
from tests.strategies import snapshots

from trimtab_lab.agents import dqn_worlds
from trimtab_lab.agents.dqn_cnn import CnnQNetwork, Sizes
from trimtab_lab.environments.adlro import AdlroEnv
from trimtab_policy.learned import dqn_cnn, store
from trimtab_policy.learned.dqn_cnn import DqnCnn, Network
from trimtab_policy.learned.offers import BadAnswer
from trimtab_policy.learned.store import Arrays, ModelCard
from trimtab_policy.observation.encode import CLUSTER, JOB, OPTION, POOL, SCHEMA, OfferBatch
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.types import Snapshot

SIZES = Sizes(channels=8, hidden=16, hypervectors=32)
AS_GOOD = 1e-4
"""Values that are nearer are a tie, which rounding decides."""


def offers(count: int, seed: int = 0, types: int = 4, options: int = 20) -> OfferBatch:
    """Offers of any kind, with at least one answer to each."""
    random = np.random.default_rng(seed)

    def features(*shape: int) -> NDArray[np.float32]:
        return random.random((count, *shape), dtype=np.float32)

    mask = random.random((count, options + 1)) < 0.6
    mask[np.arange(count), random.integers(options + 1, size=count)] = True
    return OfferBatch(
        job=features(JOB),
        cluster=features(CLUSTER),
        pools=features(types, POOL),
        options=features(options, OPTION),
        kind=random.integers(types, size=(count, options)),
        gpus=random.integers(1, 17, size=(count, options)),
        mode=random.integers(3, size=(count, options)),
        mask=mask,
    )


def untrained(sizes: Sizes = SIZES) -> CnnQNetwork:
    torch.manual_seed(0)
    table = dqn_cnn.codebook(sizes.hypervectors) if sizes.hypervectors else None
    network = CnnQNetwork(dqn_cnn.inputs(offers(1)), sizes, (1, 3), True, table)
    with torch.no_grad():  # as those of trained ones, these are not 0
        network.nowhere.normal_()
    return network


def arrays(network: CnnQNetwork) -> Arrays:
    return {name: values.numpy().copy() for name, values in network.state_dict().items()}


def tensors(inputs: dict[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(values)) for name, values in inputs.items()}


def saved(folder: Path, weights: Arrays, schema: str = SCHEMA) -> Path:
    path = folder / "mine.safetensors"
    facts = {"agent": "dqn_cnn", "task": "offers", "schema": schema, "catalogue": "", "commit": ""}
    store.save(path, weights, ModelCard(**facts, seeds=(0,), score=0.0, score_name="", config={}))
    return path


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> DqnCnn:
    return DqnCnn(saved(tmp_path_factory.mktemp("weights"), arrays(untrained())))


def assert_alike(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    """Equal values, and equal actions but where the best two are a tie."""
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
    finite = np.isfinite(ours)
    np.testing.assert_allclose(ours[finite], theirs[finite], atol=AS_GOOD)
    best = np.sort(theirs, axis=1)
    clear = best[:, -1] - best[:, -2] > AS_GOOD
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(ours.argmax(axis=1)[clear], theirs.argmax(axis=1)[clear])


@pytest.mark.parametrize("hypervectors", [0, 32])
def test_it_answers_ten_thousand_random_offers_as_torch_does(hypervectors: int) -> None:
    network = untrained(Sizes(channels=8, hidden=16, hypervectors=hypervectors))
    seen = offers(10_000)
    with torch.no_grad():
        theirs = network(tensors(dqn_cnn.inputs(seen)), torch.from_numpy(seen.mask)).numpy()
    assert_alike(Network(arrays(network), dqn_cnn.codebook).values(dqn_cnn.inputs(seen), seen.mask), theirs)


def test_it_answers_in_the_world_of_the_seed_as_torch_does() -> None:
    world = dqn_worlds.Adlro([AdlroEnv(window=3) for _ in range(32)], memory_seconds=30.0)
    seen = world.reset(0)
    inputs = world.inputs(seen.observation)
    torch.manual_seed(0)
    network = CnnQNetwork(inputs, SIZES, (3, 3), False, dqn_worlds.codebook(SIZES.hypervectors))
    with torch.no_grad():
        theirs = network(tensors(inputs), torch.from_numpy(seen.mask)).numpy()
    ours = Network(arrays(network), dqn_worlds.codebook, whole_rows=False).values(inputs, seen.mask)
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(finite, seen.mask)
    np.testing.assert_allclose(ours[finite], theirs[finite], atol=AS_GOOD)


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**31))
def test_what_it_chooses_is_allowed_on_menus_of_any_size(
    policy: DqnCnn, count: int, types: int, options: int, seed: int
) -> None:
    seen = offers(count, seed, types, options)
    chosen = policy.choose(seen)
    assert seen.mask[np.arange(count), chosen].all()


def test_the_order_of_the_pools_does_not_matter(policy: DqnCnn) -> None:
    seen = offers(200)
    order = np.array([2, 0, 3, 1])
    other = seen._replace(pools=seen.pools[:, order], kind=order.argsort()[seen.kind])
    network = Network(arrays(untrained()), dqn_cnn.codebook)
    values = (network.values(dqn_cnn.inputs(each), each.mask) for each in (seen, other))
    assert_alike(*values)


@settings(max_examples=30)
@given(snapshots())
def test_it_decides_about_any_snapshot(policy: DqnCnn, given_: Snapshot) -> None:
    decision = policy.decide(given_)
    answered = [each.job for each in (*decision.placements, *decision.pending)]
    assert sorted(answered) == sorted(each.uid for each in given_.waiting())


def test_it_fills_a_cluster_and_lets_the_rest_wait(policy: DqnCnn) -> None:
    nodes = (node("a", "T4", 4), node("b", "A100-SXM4-80GB", 8))
    jobs = tuple(job(f"job-{number}") for number in range(30))
    given_ = snapshot(nodes, jobs)
    decision = policy.decide(given_)
    held = sum(share.gpus for placement in decision.placements for share in placement.shares)
    assert decision.placements
    assert held <= sum(Capacity(given_).total)


def test_hypervectors_tell_speed_utilisation_and_priority_apart() -> None:
    codes = dqn_cnn.codebook(1024)
    assert len(np.unique(codes, axis=0)) == len(codes)
    base = offers(1, types=1, options=1)

    def code(speed: float, free: float, priority: float) -> int:
        pools, job_ = base.pools.copy(), base.job.copy()
        pools[..., 0], pools[..., 3], job_[..., 3] = speed, free, priority
        return int(dqn_cnn.inputs(base._replace(pools=pools, job=job_))["code"][0, 0])

    assert len({code(speed, free, priority) for speed in (0, 1) for free in (0, 1) for priority in (0, 1)}) == 8
    slow, fast = codes[code(0.0, 1.0, 0.0)], codes[code(1.0, 1.0, 0.0)]
    slower = codes[code(0.15, 1.0, 0.0)]
    assert (slow == slower).mean() > (slow == fast).mean()


def test_weights_of_another_agent_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, {"q": np.zeros((2, 2), dtype=np.float32)})
    with pytest.raises(store.WeightsError, match=r"not weights of dqn_cnn: they lack context.weight, .*"):
        DqnCnn(path).choose(offers(1))


def test_weights_for_other_observations_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, arrays(untrained()), schema="adlro/1")
    with pytest.raises(store.WeightsError, match="adlro/1"):
        DqnCnn(path).choose(offers(1))


def test_values_that_are_no_numbers_are_refused() -> None:
    class Broken(DqnCnn):
        _network = Network(arrays(untrained()) | {"value.bias": np.full(1, np.nan, np.float32)}, dqn_cnn.codebook)

    with pytest.raises(BadAnswer, match="no number"):
        Broken().choose(offers(1))


def test_the_weights_that_come_with_the_package_were_made_for_these_offers() -> None:
    seen = offers(20)
    chosen = DqnCnn().choose(seen)
    assert seen.mask[np.arange(20), chosen].all()
    card = store.read_card("dqn_cnn")
    assert (card.agent, card.schema, card.task) == ("dqn_cnn", SCHEMA, "offers")
