"""Value decomposition: agents that see only themselves bid, and what they agree on is the best of all joint actions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.policy.agents.toy_rules import returns, right_size
from tests.policy.learned.random_offers import random_offers

from trimtab_lab.agents import fine_tuning, vdn
from trimtab_lab.agents.fine_tuning import Judged, TransitionLog, Trial, TuningBound, TuningVerdict, bet, distance
from trimtab_lab.agents.vdn import VALIDATION, VdnConfig
from trimtab_lab.agents.vdn_tasks import AdlroWorld, Hosts, OffersVdnWorld, VdnCluster, VdnWorld, clusters, toys
from trimtab_lab.environments.adlro import AdlroEnv
from trimtab_lab.environments.toy import toy
from trimtab_policy.learned import store
from trimtab_policy.learned.vdn import NAMES, VdnPolicy, answers, local, predicted
from trimtab_policy.observation.encode import SCHEMA, Floats, OfferBatch

torch.set_num_threads(1)

MEMORY = 7200.0
QUIET = VdnCluster(memory_seconds=MEMORY, load=0.35)
SOLVES_TOY = {
    "segments": 3, "steps": 300, "environments": 16, "updates": 2, "warm_up": 500, "epsilon_share": 0.4,
    "validation_episodes": 16,
}  # fmt: skip
SHORT = {"segments": 3, "steps": 40, "environments": 4, "warm_up": 60, "batch": 16, "replay": 300}


def config(task: str = "toy", environment: dict[str, Any] | None = None, **training: Any) -> VdnConfig:
    """A configuration as YAML files have it."""
    raw = {"task": task, "environment": environment or {}, "training": {**SHORT, "validation_episodes": 2, **training}}
    return msgspec.convert(raw, VdnConfig)


@pytest.fixture(scope="module")
def trained() -> vdn.Vdn:
    learner = vdn.make(config("toy", {"memory_seconds": MEMORY}, **SOLVES_TOY), seed=1)
    for segment in range(learner.segments):
        learner.learn(segment)
    return learner


def test_learns_in_seconds_what_is_right_on_the_toy_world(trained: vdn.Vdn) -> None:
    world = toy(16)
    best = returns(world, right_size, VALIDATION).mean()
    score = trained.validate()["score"]

    assert score > 1.05 * best  # returns are negative: at most 5 % worse than the rule that knows the world
    assert score == pytest.approx(returns(world, lambda offers: answers(trained.weights(), offers), VALIDATION).mean())


def test_a_host_does_not_see_the_others() -> None:
    world = AdlroWorld(Hosts(jobs=10), 2)
    seen = world.reset(0)
    before = world.local(seen.columns)
    changed = dict(seen.columns) | {"gpus": seen.columns["gpus"].copy()}
    changed["gpus"][:, :, 1:] = 0.5
    after = world.local(changed)

    np.testing.assert_array_equal(before.agents[:, 0], after.agents[:, 0])
    own = before.owner == 0
    np.testing.assert_array_equal(before.options[own], after.options[own])
    assert own.sum() == 2 * 8 * 4
    assert (before.agents[:, 1:] != after.agents[:, 1:]).any()


def test_all_hosts_share_one_network_and_order_does_not_matter() -> None:
    learner = vdn.make(config("adlro", {"jobs": 10}), 0)
    seen = learner.world.reset(0)
    told = learner.world.local(seen.columns)
    swapped = [1, 0, 2, 3]
    with torch.no_grad():
        bids, passing = learner.team(*map(torch.as_tensor, told))
        again = told._replace(agents=told.agents[:, swapped], owner=np.array(swapped)[told.owner])
        bids_again, passing_again = learner.team(*map(torch.as_tensor, again))

    torch.testing.assert_close(passing[:, swapped], passing_again)
    torch.testing.assert_close(bids, bids_again)


def played(world: VdnWorld, seed: int) -> tuple[Floats, Floats]:
    """(n,) what is learned from, discounted to the start, and reward of an episode of random actions."""
    random, seen = np.random.default_rng(seed), world.reset(7)
    running = np.ones(len(seen.mask), dtype=np.bool_)
    learned, earned, discount = np.zeros(len(running)), np.zeros(len(running)), running * 1.0
    while running.any():
        after = world.step((random.random(seen.mask.shape) * seen.mask).argmax(axis=1))
        learned += discount * after.rewards * running
        earned += after.earned * running
        discount = np.where(running, discount * after.discounts, discount)
        running &= ~after.over
        seen = after.seen
    return learned, earned


def test_what_is_learned_from_is_the_objective_of_the_environment() -> None:
    """Far ahead, memory * exp(-end / memory) is memory - end: what jobs earn differs by the sum of completion times."""
    memory = 1e8
    world = toys(VdnCluster(jobs=15, memory_seconds=memory), 3)
    (learned, earned), (learned_then, earned_then) = played(world, 0), played(world, 1)

    seconds = toy(1, jobs=15).reward_seconds * (earned - earned_then)
    assert (abs(seconds) > 60).all()
    np.testing.assert_allclose(memory * (learned - learned_then), seconds, rtol=0.01)


def test_what_hosts_learn_from_are_the_ends_of_jobs_and_the_starts_by_the_weight_of_idleness() -> None:
    given = Hosts(jobs=15, idle_weight=0.3, memory_seconds=40.0)
    learned, _ = played(AdlroWorld(given, 1), 0)

    env, random = AdlroEnv(jobs=15, idle_weight=0.3), np.random.default_rng(0)
    _, info = env.reset(seed=7)
    begun, starts = info["time"], []
    while "metrics" not in info:
        mask = info["action_mask"]
        action = int((random.random((1, len(mask))) * mask).argmax())
        starts += [info["time"]] if action != env.wait else []
        _, _, _, _, info = env.step(action)
    ends, starts_then = np.exp((begun - env.finished) / 40), np.exp((begun - np.array(starts)) / 40)
    assert learned[0] == pytest.approx(0.7 * ends.sum() + 0.3 * starts_then.sum())


@pytest.mark.parametrize("task", ["toy", "adlro"])
def test_segments_taken_up_again_are_those_of_an_uninterrupted_run_bit_for_bit(task: str) -> None:
    given = config(task, {"jobs": 12})
    whole, cut = vdn.make(given, seed=3), vdn.make(given, seed=3)
    figures = [whole.learn(segment) for segment in range(3)]
    cut.learn(0)
    saved = cut.arrays()
    cut.learn(1)  # what is lost when it is killed
    again = vdn.make(given, seed=3)
    again.restore(saved)
    told = [again.learn(segment) for segment in (1, 2)]

    np.testing.assert_equal(told, figures[1:])
    ours, theirs = again.arrays(), whole.arrays()
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    assert figures[2]["loss"] > 0


def test_seeds_decide_everything() -> None:
    first, same, other = (vdn.make(config(), seed) for seed in (5, 5, 6))
    for learner in (first, same, other):
        learner.learn(0)

    np.testing.assert_equal(first.arrays(), same.arrays())
    assert any((first.weights()[name] != other.weights()[name]).any() for name in NAMES)


def test_numpy_decides_as_torch_on_ten_thousand_random_offers(trained: vdn.Vdn) -> None:
    offers = random_offers(10_000, options=15)
    with torch.no_grad():
        joint = trained.team.joint(local(offers)).numpy()
    theirs = np.where(offers.mask, joint, -np.inf).argmax(axis=1)

    np.testing.assert_array_equal(answers(trained.weights(), offers), theirs)
    assert len(set(theirs.tolist())) > 10


def test_saved_and_loaded_weights_decide_the_same(trained: vdn.Vdn, tmp_path: Path) -> None:
    card = store.ModelCard(
        agent="vdn", task="toy", schema=SCHEMA, catalogue="", commit="", seeds=(1,), score=0.0, score_name="", config={}
    )
    store.save(tmp_path / "vdn.safetensors", trained.weights(), card)
    offers = random_offers(500)

    policy = VdnPolicy(tmp_path / "vdn.safetensors")
    np.testing.assert_array_equal(policy.choose(offers), answers(trained.weights(), offers))
    assert set(trained.weights()) == set(NAMES)


def test_wrong_configurations_are_told_by_field() -> None:
    with pytest.raises(ValueError, match=r"\$\.training\.learning_rate"):
        config(learning_rate="fast")
    with pytest.raises(ValueError, match=r"training\.batch must be at least 1"):
        config(batch=0)
    with pytest.raises(ValueError, match=r"environment: .*windows"):
        vdn.make(config("adlro", {"windows": 3}), 0)
    with pytest.raises(ValueError, match="load must be"):
        vdn.make(config(environment={"load": -1.0}), 0)


# --- fine-tuning --------------------------------------------------------------------------------------
def logged(world: OffersVdnWorld, learner: vdn.Vdn, steps: int, seed: int = 99) -> TransitionLog:
    """What one environment of the world went through under the learner's weights."""
    seen, before, after = world.reset(seed), [], []
    rows: list[tuple[int, float, float]] = []
    while len(rows) < steps:
        action = learner.greedy(world, seen)
        then = world.step(action)
        if then.happened[0]:
            before.append(seen.columns)
            after.append(then.seen.columns)
            rows.append((int(action[0]), float(then.rewards[0]), float(then.discounts[0])))
        seen = then.seen

    def stacked(columns: list[dict[str, NDArray[Any]]]) -> OfferBatch:
        return OfferBatch._make(np.concatenate([each[name] for each in columns]) for name in OfferBatch._fields)

    actions, rewards, discounts = (np.array(column) for column in zip(*rows, strict=True))
    return TransitionLog(stacked(before), actions, rewards, discounts, stacked(after))


def test_fine_tuning_keeps_its_bounds_and_leaves_the_learner_alone(trained: vdn.Vdn) -> None:
    log = logged(toys(VdnCluster(), 1), trained, 200)
    before = trained.arrays()
    bound = TuningBound(distance=0.05, changed=0.1, updates=100)
    tuned = trained.fine_tune(log, bound)

    assert 0 < distance(trained.weights(), tuned) <= bound.distance * (1 + 1e-5)
    changed = answers(tuned, log.offers) != answers(trained.weights(), log.offers)
    assert changed.mean() <= bound.changed
    np.testing.assert_equal(trained.arrays(), before)
    np.testing.assert_equal(trained.fine_tune(log, bound), tuned)


def judged(learner: vdn.Vdn, tuned: Mapping[str, NDArray[Any]]) -> Trial:
    """A trial of tuned weights against the learner's: errors of predicted values, decision by decision.

    Old and new are asked about the same decisions, of a run that neither was tuned on, and what really followed them.
    """
    trial = Trial()
    log = logged(toys(QUIET, 1), learner, 600, seed=123)
    truth = fine_tuning.returns(log.rewards, log.discounts)
    errors = [abs(predicted(weights, log.offers, log.answers) - truth) for weights in (tuned, learner.weights())]
    for new, old in zip(*(each.tolist() for each in errors), strict=True):
        if trial.verdict is TuningVerdict.OPEN:
            trial = bet(trial, Judged(new, old))
    return trial


def test_tuning_on_poisoned_logs_is_rolled_back_and_tuning_on_true_ones_is_not(trained: vdn.Vdn) -> None:
    """After training on a busy cluster half as much arrives. Poisoned: every decision of the log seems to have started
    and finished a job at once, to wait as well."""
    log = logged(toys(QUIET, 1), trained, 600)
    broken = log._replace(rewards=log.rewards + 1.0)
    honest = judged(trained, trained.fine_tune(log, TuningBound(updates=150)))
    poisoned = judged(trained, trained.fine_tune(broken, TuningBound(distance=0.5, changed=1.0, updates=150)))

    assert honest.verdict is TuningVerdict.KEPT
    assert poisoned.verdict is TuningVerdict.ROLLED_BACK
    assert poisoned.count < 100  # long before the trial would have ended


def test_hosts_are_not_tuned_on_offers(trained: vdn.Vdn) -> None:
    log = logged(toys(VdnCluster(), 1), trained, 5)
    with pytest.raises(ValueError, match="adlro"):
        vdn.make(config("adlro", {"jobs": 10}), 0).fine_tune(log, TuningBound())


def test_clusters_of_the_paper_run() -> None:
    world = clusters(VdnCluster(jobs=5, load=(0.5, 1.0)), 2)
    seen = world.reset(0)
    assert world.local(seen.columns).agents.shape == (2, 3, 23)
