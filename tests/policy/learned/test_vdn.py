"""Pools that bid, without torch: what they agree on, what they see, and the policy that they make."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from tests.builders import A100, T4, job, node, running, snapshot
from tests.policy.learned.random_offers import random_offers
from tests.strategies import snapshots

from trimtab_policy.learned import store
from trimtab_policy.learned.offers import BadAnswer
from trimtab_policy.learned.store import Arrays, ModelCard
from trimtab_policy.learned.vdn import NAMES, VdnPolicy, answers, local, predicted, values
from trimtab_policy.observation.encode import OPTION, SCHEMA
from trimtab_policy.types import Snapshot

HIDDEN = 16
SHAPES = {
    "see": (HIDDEN, 23),
    "think": (HIDDEN, HIDDEN),
    "rest": (1, HIDDEN),
    "own": (HIDDEN, HIDDEN),
    "act": (1, HIDDEN),
}


def weights(seed: int = 0, bid: float = 0.0) -> Arrays:
    """Of a team that nobody has trained; `bid` is added to every bid."""
    random = np.random.default_rng(seed)
    found = {f"{name}.weight": np.float32(random.normal(size=shape) / 3) for name, shape in SHAPES.items()}
    found |= {f"{name}.bias": np.float32(random.normal(size=shape[0]) / 3) for name, shape in SHAPES.items()}
    found["act.bias"] = found["act.bias"] + np.float32(bid)
    return found | {"option.weight": np.float32(random.normal(size=(HIDDEN, OPTION)))}


def saved(folder: Path, arrays: Arrays, schema: str = SCHEMA) -> Path:
    path = folder / "mine.safetensors"
    facts = {"agent": "vdn", "task": "offers", "schema": schema, "catalogue": "", "commit": ""}
    store.save(path, arrays, ModelCard(**facts, seeds=(0,), score=0.0, score_name="", config={}))
    return path


def test_what_pools_bid_is_the_best_of_all_joint_actions() -> None:
    """Q_tot is the sum over pools of what each does: an option, or to pass. All joint actions are tried."""
    arrays, offers = weights(), random_offers(200)
    bids, passing = values(arrays, local(offers))
    q_option = bids + np.take_along_axis(passing, offers.kind, axis=1)
    said = answers(arrays, offers)

    for row in range(len(said)):
        best, best_value = None, -np.inf
        own = [[None, *np.flatnonzero(offers.mask[row, :-1] & (offers.kind[row] == pool))] for pool in range(3)]
        for does in product(*own):
            takes = [option for option in does if option is not None]
            if len(takes) > 1 or (not takes and not offers.mask[row, offers.wait]):
                continue  # the job goes to one pool at most, and may have to go
            total = sum(
                passing[row, pool] if option is None else q_option[row, option] for pool, option in enumerate(does)
            )
            if total > best_value:
                best, best_value = (int(takes[0]) if takes else offers.wait), total
        assert said[row] == best


def test_a_pool_does_not_see_the_others() -> None:
    arrays, offers, others = weights(), random_offers(50), random_offers(50, seed=1)
    mine = offers.kind == 0
    pools = offers.pools.copy()
    pools[:, 1:] = others.pools[:, 1:]
    elsewhere = offers._replace(
        pools=pools,
        options=np.where(mine[:, :, None], offers.options, others.options),
        cluster=np.concatenate([others.cluster[:, :1], offers.cluster[:, 1:2], others.cluster[:, 2:]], axis=1),
        job=np.concatenate([offers.job[:, :11], others.job[:, 11:]], axis=1),
    )
    bids, passing = values(arrays, local(offers))
    bids_then, passing_then = values(arrays, local(elsewhere))

    np.testing.assert_array_equal(passing[:, 0], passing_then[:, 0])
    np.testing.assert_array_equal(bids[mine], bids_then[mine])
    assert (bids[~mine] != bids_then[~mine]).all()


def test_the_value_of_an_answer_is_what_all_pools_think_of_what_they_do() -> None:
    arrays, offers = weights(), random_offers(40)
    bids, passing = values(arrays, local(offers))
    waits = predicted(arrays, offers, np.full(40, offers.wait))
    first = predicted(arrays, offers, np.zeros(40, dtype=np.int64))

    np.testing.assert_allclose(waits, passing.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(first - waits, bids[:, 0], atol=1e-4)


@pytest.mark.parametrize("bid", [-3.0, 0.0, 3.0])
@given(now=snapshots())
@settings(max_examples=30, deadline=None)
def test_whatever_was_learned_every_waiting_job_gets_an_answer(
    tmp_path_factory: pytest.TempPathFactory, bid: float, now: Snapshot
) -> None:
    policy = VdnPolicy(saved(tmp_path_factory.mktemp("weights"), weights(bid=bid)))
    decision = policy.decide(now)
    answered = [each.job for each in (*decision.placements, *decision.pending)]
    assert sorted(answered) == sorted(waiting.uid for waiting in now.waiting())


def test_pools_that_never_bid_start_a_job_only_where_nothing_runs(tmp_path: Path) -> None:
    policy = VdnPolicy(saved(tmp_path, weights(bid=-1000.0)))
    idle = snapshot([node("a"), node("t", T4)], [job("one"), job("two")])
    busy = snapshot([node("a", free=4), node("t", T4)], [job("one"), running("old", {"a": 4}, A100)])

    assert [placed.job for placed in policy.decide(idle).placements] == ["uid-one"]
    assert policy.decide(busy).placements == ()
    assert "waits for better ones" in policy.decide(busy).pending[0].message


def test_weights_that_are_not_this_agents_or_break_down_are_refused_with_the_reason(tmp_path: Path) -> None:
    now = snapshot([node("a")], [job("one")])
    huge = {name: np.float32(1e30) * of for name, of in weights().items()}
    with pytest.raises(store.WeightsError, match=r"lacks act\.bias"):
        VdnPolicy(saved(tmp_path, {name: of for name, of in weights().items() if name != "act.bias"})).decide(now)
    with pytest.raises(store.WeightsError, match="adlro/1"):
        VdnPolicy(saved(tmp_path, weights(), schema="adlro/1")).decide(now)
    with np.errstate(all="ignore"), pytest.raises(BadAnswer, match="no number"):
        VdnPolicy(saved(tmp_path, huge)).decide(now)
    assert set(weights()) == set(NAMES)
