"""What learned policies see: the same in a cluster as in the environment that they were trained in."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from tests.builders import job, node, running, snapshot
from tests.policy.agents.toy_rules import Rule, largest, returns, right_size, smallest
from tests.strategies import snapshots

from trimtab_lab.environments import toy
from trimtab_lab.environments.cluster_kernel import NONE
from trimtab_lab.environments.offers import OffersVectorEnv
from trimtab_lab.workloads import clusters
from trimtab_policy.observation.encode import CLUSTER, JOB, OCCUPANCY, OPTION, POOL, OfferBatch, OfferScene
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import fastest
from trimtab_policy.specs import ParallelPlan, Prediction
from trimtab_policy.types import Job, NodeShare, Placement, Snapshot, Speed

CLUSTER_TEXT = "sia-heterogeneous"
STEPS_PER_WORK = 10_000_000  # so many that whole steps tell the work exactly enough


def as_snapshot(env: OffersVectorEnv, number: int) -> tuple[Snapshot, str]:
    """A cluster of the environment as the operator would see it, and the UID of the job on offer."""
    state, empty = env._cluster.state, clusters.cluster(CLUSTER_TEXT)
    nodes = tuple(
        msgspec.structs.replace(each, free_gpus=int(free))
        for each, free in zip(empty.nodes, state.free[number], strict=True)
    )
    slots = np.flatnonzero(state.job[number] != NONE)
    present = [as_job(env, number, slot) for slot in slots.tolist()]
    assert state.entered[number] == state.arrived[number], "a backlog cannot be seen"
    now = Snapshot(float(state.now[number]), nodes, tuple(present), empty.gpu_types)
    return now, str(state.job[number, env._slot[number]])


def as_job(env: OffersVectorEnv, number: int, slot: int) -> Job:
    state, machines = env._cluster.state, env.machines
    at = int(state.job[number, slot])
    family = int(state.family[number, at])
    rates = STEPS_PER_WORK * env.families.speed[family] / 3600
    speeds = tuple(
        Speed(
            machines.types[machines.option_type[o]], int(machines.option_gpus[o]), int(machines.option_nodes[o]), rate
        )
        for o, rate in enumerate(rates.tolist())
        if rate > 0
    )
    steps = round(state.told[number, at] * STEPS_PER_WORK / 3600)
    deadline = float(state.deadline[number, at])
    plain = job(str(at), created=float(state.submitted[number, at]), gpus=(1, 16))
    held = int(state.option[number, slot])
    return msgspec.structs.replace(
        plain,
        uid=str(at),
        speeds=speeds,
        training=msgspec.structs.replace(plain.training, steps=steps),
        deadline=deadline if np.isfinite(deadline) else None,
        placement=None if held == NONE else somewhere(env, number, slot, held),
    )


def somewhere(env: OffersVectorEnv, number: int, slot: int, held: int) -> Placement:
    machines, state = env.machines, env._cluster.state
    names = [each.name for each in clusters.cluster(CLUSTER_TEXT).nodes]
    width = int(machines.option_width[held])
    where = state.share[number, slot, : machines.option_nodes[held]].tolist()
    shares = tuple(NodeShare(names[row], width) for row in where)
    gpus = width * len(shares)
    prediction = Prediction(1.0, 1.0, 1, 1.0)
    return Placement("", machines.types[machines.option_type[held]], shares, ParallelPlan(data=gpus), prediction, "")


def test_a_cluster_looks_the_same_to_the_operator_and_in_training() -> None:
    env, random = OffersVectorEnv(4, load=1.2, jobs=40), np.random.default_rng(3)
    _, info = env.reset(seed=11)
    compared = 0
    for _ in range(150):
        scores = random.random(info["action_mask"].shape) * info["action_mask"]
        for number in np.flatnonzero(env._slot != NONE).tolist():
            compared += same(env.offers, number, *as_snapshot(env, number))
        _, _, _, _, info = env.step(scores.argmax(axis=1))
    assert compared > 300


def same(trained: OfferBatch, number: int, now: Snapshot, uid: str) -> bool:
    """Whether rooms agree as well: the operator also spreads gangs unevenly, where the environment cannot."""
    found = OfferScene(now, Capacity(now)).offer(next(each for each in now.jobs if each.uid == uid))
    assert found is not None
    live, _ = found
    able = trained.options[number, :, 0] > 0
    close = {"rtol": 0.0, "atol": 2e-5}
    np.testing.assert_allclose(live.job[0, :-1], trained.job[number, :-1], **close)
    np.testing.assert_allclose(live.cluster[0], trained.cluster[number], **close)
    np.testing.assert_allclose(live.pools[0], trained.pools[number], **close)
    np.testing.assert_array_equal(live.kind[0], trained.kind[number, able])
    np.testing.assert_array_equal(live.gpus[0], trained.gpus[number, able])
    usable = np.append(able, True)
    assert (live.mask[0] >= trained.mask[number, usable]).all()
    assert live.mask[0, -1] == trained.mask[number, -1]
    if (live.mask[0] != trained.mask[number, usable]).any():
        return False
    # a job of the trace kind brings no parallelism: its options are all data parallel
    np.testing.assert_allclose(live.options[0, :, :5], trained.options[number, able, :5], **close)
    np.testing.assert_allclose(live.job[0, -1], trained.job[number, -1], **close)
    return True


@given(snapshots())
@settings(max_examples=60, deadline=None)
def test_features_are_numbers_from_0_to_1_whatever_the_cluster_looks_like(now: Snapshot) -> None:
    scene = OfferScene(now, Capacity(now))
    for waiting in now.waiting():
        found = scene.offer(waiting)
        if found is None:
            assert fastest(now, Capacity(now), waiting) is None
            continue
        offers, options = found
        assert offers.job.shape == (1, JOB)
        assert offers.cluster.shape == (1, CLUSTER)
        assert offers.pools.shape[2] == POOL
        assert offers.options.shape == (1, len(options), OPTION)
        for features in (offers.job, offers.cluster, offers.pools, offers.options):
            assert features.dtype == np.float32
            assert ((features >= 0) & (features <= 1)).all()
        assert offers.mask[0, :-1].any()


def test_only_what_has_room_is_on_offer_and_waiting_needs_something_to_wait_for() -> None:
    alone = snapshot([node("a", free=2)], [job("new", gpus=(1, 8))])
    offers, options = offered(alone, "new")
    assert {each.option.gpus for each, open_ in zip(options, offers.mask[0], strict=False) if open_} == {1, 2}
    assert not offers.mask[0, offers.wait]
    busy = snapshot([node("a", free=2)], [job("new", gpus=(1, 8)), running("old", {"a": 6})])
    assert offered(busy, "new")[0].mask[0, -1]


def test_a_job_that_nothing_has_room_for_is_not_offered() -> None:
    full = snapshot([node("a", free=0)], [job("new", gpus=(1, 8))])
    assert OfferScene(full, Capacity(full)).offer(full.jobs[0]) is None


def test_of_the_splits_of_a_gang_the_fastest_that_has_room_is_on_offer() -> None:
    scattered = snapshot([node("a", free=2), node("b", free=2)], [job("new", gpus=(4, 4))])
    offers, options = offered(scattered, "new")
    (chosen,) = (each for each, open_ in zip(options, offers.mask[0], strict=False) if open_)
    assert (chosen.option.nodes, chosen.option.gpus_per_node) == (2, 2)


def test_jobs_that_were_started_no_longer_wait_for_those_behind_them() -> None:
    now = snapshot([node("a")], [job("first", gpus=(1, 1)), job("second", gpus=(1, 1))])
    scene = OfferScene(now, Capacity(now))
    before = scene.offer(now.jobs[1])
    scene.started(now.jobs[0])
    after = scene.offer(now.jobs[1])
    assert before
    assert after
    assert after[0].cluster[0, 1] < before[0].cluster[0, 1]


def test_nodes_are_counted_by_their_free_gpus() -> None:
    now = snapshot([node(name, free=free) for name, free in zip("abcde", (0, 1, 3, 4, 8), strict=True)], [job("new")])
    np.testing.assert_allclose(offered(now, "new")[0].pools[0, 0, OCCUPANCY], [0.2] * 5)


@pytest.mark.parametrize(("rule", "worse"), [(right_size, smallest), (smallest, largest)])
def test_the_toy_world_tells_good_rules_from_bad_ones(rule: Rule, worse: Rule) -> None:
    env = toy.toy(32)
    assert returns(env, rule, seed=1).mean() > 1.15 * returns(env, worse, seed=1).mean()
    assert (returns(env, rule, seed=1) > returns(env, worse, seed=1)).mean() > 0.9


def offered(now: Snapshot, name: str) -> tuple[OfferBatch, tuple]:
    found = OfferScene(now, Capacity(now)).offer(next(each for each in now.jobs if each.name == name))
    assert found
    return found


def test_run_times_are_those_of_what_is_on_offer() -> None:
    """Where the fastest split of a gang has no room, another one is shown in its place, with its own run time."""
    scattered = snapshot([node("a", free=2), node("b", free=2)], [job("new", gpus=(4, 4))])
    offers, options = offered(scattered, "new")
    (run_seconds,) = {each.option.prediction.step_seconds * 1000 for each in options}
    assert offers.options[0, 0, 4] == pytest.approx(np.log1p(run_seconds) / np.log1p(30 * 86400), rel=1e-5)
    assert offers.job[0, 0] == offers.options[0, 0, 4]
