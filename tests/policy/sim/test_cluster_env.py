"""`trimtab/Cluster-v0`: its books balance, its mask is the truth, and its reward is the sum of completion times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from trimtab_lab.environments.cluster import ClusterEnv, ClusterVectorEnv
from trimtab_lab.environments.cluster_jobs import Families, Mix, draw, llm, machines, saturation
from trimtab_lab.environments.cluster_kernel import NONE, KernelState
from trimtab_lab.workloads import clusters

SIA = "sia-heterogeneous"


def one_family(speed: list[float], **changes: Any) -> Families:
    """Jobs of exactly one GPU-hour that start in 10 s and restart in 60 s."""
    defaults: dict[str, Any] = {
        "names": ("only",),
        "share": np.ones(1),
        "speed": np.array([speed]),
        "gpu_hours": np.ones((1, 2)),
        "start_seconds": np.array([10.0]),
        "restart_seconds": np.full((1, len(speed)), 60.0),
    }
    return Families(**(defaults | changes))


def small(**changes: Any) -> ClusterEnv:
    """Four T4 on one node, gangs of 1, 2 and 4, perfect scaling, one job."""
    defaults: dict[str, Any] = {"cluster": "T4=4x4", "families": one_family([1, 2, 4]), "jobs": 1, "slots": 2}
    return ClusterEnv(**(defaults | {"largest_gang": 4, "heartbeat": 1000.0, "deadline_share": 0.0} | changes))


def allowed(info: dict[str, Any], random: np.random.Generator) -> int:
    return int(random.choice(np.flatnonzero(info["action_mask"])))


def advance(env: ClusterEnv) -> np.int64:
    return np.int64(env.action_space.n - 1)


def state_of(env: ClusterEnv) -> KernelState:
    return env.vector.state


def play(env: ClusterEnv, seed: int) -> tuple[float, float, dict[str, Any]]:
    """Return of random allowed actions, the sum of completion times by their ends, and the last info."""
    random = np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    total, ends, finished, over = 0.0, 0.0, 0, False
    while not over:
        _, reward, terminated, truncated, info = env.step(np.int64(allowed(info, random)))
        total += reward
        ends += (info["finished"] - finished) * info["time"]
        finished, over = info["finished"], terminated or truncated
    return total, ends - state_of(env).submitted[0].sum(), info


def test_gymnasium_finds_nothing_wrong() -> None:
    check_env(ClusterEnv(jobs=5), skip_render_check=True)


@pytest.mark.parametrize("seed", range(3))
def test_the_return_of_an_episode_is_minus_the_sum_of_completion_times(seed: int) -> None:
    env = ClusterEnv(jobs=30, slots=8, estimate_sigma=1.0)  # fewer slots than jobs at times: some wait in the backlog
    total, completion, info = play(env, seed)
    assert info["finished"] == 30
    assert -total * env.reward_seconds == pytest.approx(completion, rel=1e-9)
    assert info["sum_jct"] == pytest.approx(completion, rel=1e-9)


def test_at_the_horizon_everybody_has_stayed_until_then() -> None:
    env = ClusterEnv(jobs=40, horizon=3600.0, load=5.0)
    env.reset(seed=0)
    total, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        _, reward, terminated, truncated, info = env.step(advance(env))
        total += reward
    submitted = state_of(env).submitted[0]
    assert truncated
    assert not terminated
    assert info["time"] == 3600.0
    assert -total * env.reward_seconds == pytest.approx(np.maximum(0, 3600 - submitted).sum())


def test_a_gang_computes_after_its_start_and_pays_for_every_change() -> None:
    env = small()
    _, info = env.reset(seed=0)
    env.step(np.int64(1))  # two GPUs: 10 s to start, then 1800 s
    _, reward, _, _, info = env.step(advance(env))
    assert (reward * env.reward_seconds, info["time"]) == (-1000.0, 1000.0)  # the heartbeat
    env.step(np.int64(2))  # four GPUs: 3600 - 990 * 2 GPU-seconds are left, after 60 s
    _, _, terminated, _, info = env.step(advance(env))
    assert terminated
    assert info["time"] == pytest.approx(1000 + 60 + (3600 - 990 * 2) / 4)
    assert info["restarts"] == 1


def test_a_stopped_job_keeps_its_work_and_waits() -> None:
    env = small()
    _, info = env.reset(seed=0)
    assert np.flatnonzero(info["action_mask"]).tolist() == [0, 1, 2, 8]  # it cannot be stopped: it does not run
    _, _, _, _, info = env.step(np.int64(0))
    assert info["time"] == 0
    assert np.flatnonzero(info["action_mask"]).tolist() == [8]  # changed at this moment already
    _, _, _, _, info = env.step(advance(env))
    assert np.flatnonzero(info["action_mask"]).tolist() == [1, 2, 3, 8]  # it holds option 0
    env.step(np.int64(3))
    seen, *_ = env.step(advance(env))
    assert seen["jobs"][0, 1] == 0  # holds nothing
    assert seen["jobs"][0, 4] == pytest.approx((1000 - 10) / 3600)  # ran once, 10 s of it to start
    assert state_of(env).left[0, 0] == pytest.approx(3600 - 990)


def test_what_is_not_allowed_lets_time_run() -> None:
    env = small()
    _, info = env.reset(seed=0)
    _, _, _, _, info = env.step(np.int64(3))  # stop a job that does not run
    assert info["time"] == 1000.0


def test_gpus_are_neither_lost_nor_invented_and_the_mask_is_the_truth() -> None:
    env = ClusterEnv(jobs=40, load=2.0, slots=12)
    random = np.random.default_rng(7)
    _, info = env.reset(seed=7)
    for _ in range(600):
        state, gangs = state_of(env), env.machines
        held = np.zeros(len(gangs.node_gpus), dtype=np.int64)
        for slot in np.flatnonzero(state.option[0] != NONE):
            option = state.option[0, slot]
            nodes = state.share[0, slot, : gangs.option_nodes[option]]
            assert len(set(nodes.tolist())) == len(nodes)
            assert (gangs.node_type[nodes] == gangs.option_type[option]).all()
            np.add.at(held, nodes, gangs.option_width[option])
        assert (state.free[0] + held == gangs.node_gpus).all()
        assert (state.free[0] >= 0).all()
        assert info["action_mask"].tolist() == expected_mask(env).tolist()
        seen, _, terminated, truncated, info = env.step(np.int64(allowed(info, random)))
        assert env.observation_space.contains(seen)
        if terminated or truncated:
            _, info = env.reset()


def expected_mask(env: ClusterEnv) -> np.ndarray[Any, Any]:
    """What is allowed, found by giving back what a job holds and counting nodes."""
    state, gangs, speed = state_of(env), env.machines, env.families.speed
    options = len(gangs.option_type)
    mask = np.zeros((state.job.shape[1], options + 1), dtype=np.int8)
    for slot, job in enumerate(state.job[0]):
        if job == NONE or state.touched[0, slot]:
            continue
        free, held = state.free[0].copy(), state.option[0, slot]
        if held != NONE:
            free[state.share[0, slot, : gangs.option_nodes[held]]] += gangs.option_width[held]
            mask[slot, options] = 1
        for option in range(options):
            room = (gangs.node_type == gangs.option_type[option]) & (free >= gangs.option_width[option])
            fits = room.sum() >= gangs.option_nodes[option]
            mask[slot, option] = fits and option != held and speed[state.family[0, job], option] > 0
    return np.append(mask, 1)


def test_a_cluster_of_a_vector_is_a_cluster_by_itself() -> None:
    vector = ClusterVectorEnv(3, jobs=8)
    alone = [ClusterEnv(jobs=8) for _ in range(3)]
    seen, info = vector.reset(seed=5)
    singles = [env.reset(seed=5 + i) for i, env in enumerate(alone)]
    random = np.random.default_rng(0)
    over = np.zeros(3, dtype=np.bool_)
    for _ in range(400):
        for i, (one_seen, one_info) in enumerate(singles):
            for name in one_seen:
                np.testing.assert_array_equal(seen[name][i], one_seen[name])
            np.testing.assert_array_equal(info["action_mask"][i], one_info["action_mask"])
        actions = np.array([random.choice(np.flatnonzero(mask)) for mask in info["action_mask"]])
        seen, rewards, terminated, truncated, info = vector.step(actions)
        singles = []
        for i, env in enumerate(alone):
            if over[i]:  # the step after an end begins the next episode
                assert rewards[i] == 0
                assert not terminated[i]
                singles.append(env.reset())
                continue
            one_seen, reward, ended, _, one_info = env.step(np.int64(actions[i]))
            assert (reward, ended) == (rewards[i], terminated[i])
            singles.append((one_seen, one_info))
        over = terminated | truncated
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


def test_the_seed_decides_everything() -> None:
    env = ClusterEnv(jobs=10)
    assert play(env, 3)[:2] == play(env, 3)[:2]
    assert play(env, 3)[0] != play(env, 4)[0]


def test_observations_are_copies() -> None:
    env = ClusterVectorEnv(2, jobs=5)
    seen, info = env.reset(seed=0)
    before = {name: values.copy() for name, values in seen.items()}, info["action_mask"].copy()
    for _ in range(5):
        env.step(np.full(2, env.single_action_space.n - 1))
    for name, values in seen.items():
        np.testing.assert_array_equal(values, before[0][name])
    np.testing.assert_array_equal(info["action_mask"], before[1])


def test_load_one_is_what_the_cluster_can_carry() -> None:
    """Four GPUs, jobs of one GPU-hour at perfect scaling: four jobs an hour. Half as fast on two GPUs each: two."""
    gangs = machines(clusters.cluster("T4=4x4"), 4)
    assert saturation(gangs, one_family([1, 2, 4])) == pytest.approx(4 / 3600)
    assert saturation(gangs, one_family([0, 1, 0])) == pytest.approx(2 / 3600)
    # of two types each family takes the one that it is better on
    both = machines(clusters.cluster("T4=1x1,V100-SXM2-16GB=1x1"), 1)
    families = Families(
        ("a", "b"), np.array([0.5, 0.5]), np.array([[1, 0.5], [0.1, 1]]), np.ones((2, 2)), np.zeros(2), np.zeros((2, 2))
    )  # fmt: skip
    assert saturation(both, families) == pytest.approx(2 / 3600)


def test_jobs_are_drawn_as_stated() -> None:
    empty = clusters.cluster(SIA)
    gangs = machines(empty)
    families = llm(empty, gangs)
    mix = Mix(20_000, 0.01, estimate_sigma=0.5, deadline_share=0.25)
    jobs = draw(families, mix, np.random.default_rng(0))
    assert np.diff(jobs.submitted).mean() == pytest.approx(100, rel=0.03)
    assert np.bincount(jobs.family) / len(jobs.family) == pytest.approx(families.share, abs=0.02)
    assert jobs.work.mean() == pytest.approx(families.share @ families.mean_work, rel=0.05)
    assert np.log(jobs.told / jobs.work).std() == pytest.approx(0.5, rel=0.05)
    assert np.isfinite(jobs.deadline).mean() == pytest.approx(0.25, abs=0.02)
    assert (jobs.deadline > jobs.submitted).all()


def test_the_default_families_know_what_fits_a_card() -> None:
    empty = clusters.cluster(SIA)
    gangs = machines(empty)
    families = llm(empty, gangs)
    large = families.speed[families.names.index("llama2-7b")]
    assert (large[gangs.option_gpus < 4] == 0).all()  # 7B with optimizer states needs several cards of any type
    per_gpu = families.speed / gangs.option_gpus
    assert per_gpu.max(axis=1) == pytest.approx(1)  # work is counted in GPU-seconds of the most efficient option
    a100 = gangs.option_type == gangs.types.index("A100-SXM4-40GB")
    assert (per_gpu[:, a100].max(axis=1) == 1).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"load": 0.0}, "load"),
        ({"jobs": 0}, "jobs"),
        ({"slots": 2.5}, "slots"),
        ({"deadline_share": 2.0}, "deadline_share"),
        ({"horizon": float("nan")}, "horizon"),
        ({"cluster": "nowhere"}, "nowhere"),
    ],
)
def test_arguments_that_make_no_sense_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClusterEnv(**wrong)


def test_families_that_make_no_sense_are_named() -> None:
    with pytest.raises(ValueError, match="without an option that runs: only"):
        one_family([0, 0])
    with pytest.raises(ValueError, match="share"):
        one_family([1], share=np.array([0.5]))
    with pytest.raises(ValueError, match="gpu_hours"):
        one_family([1], gpu_hours=np.array([[2.0, 1.0]]))
    with pytest.raises(ValueError, match="one size"):
        machines(clusters.cluster("T4=12x8"))
    with pytest.raises(ValueError, match=r"actions must be \(2,\)"):
        ClusterVectorEnv(2, jobs=1).step(np.zeros(3, dtype=np.int64))
