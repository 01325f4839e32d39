"""What `sac_imitation` learns from: rewards of starts, masks and clocks."""

from __future__ import annotations

import numpy as np

from trimtab_lab.agents import sac_tasks
from trimtab_lab.agents.sac_tasks import CLOCK_SECONDS, OFFER_EXPERTS, Guided, SacEnvironment
from trimtab_lab.environments.rlalloc import RLAllocEnv
from trimtab_lab.environments.rlalloc_experts import EXPERTS
from trimtab_policy.learned.sac_imitation import ACTIONS, FEATURES

NOTHING = np.zeros(ACTIONS, dtype=np.float32)


def test_rewards_of_rlalloc_stay_as_they_are_and_the_clock_is_told() -> None:
    ours, theirs = Guided(RLAllocEnv(jobs=5)), RLAllocEnv(jobs=5)
    states = [each.reset(seed=2)[0] for each in (ours, theirs)]
    for _ in range(5):
        action = EXPERTS["round_robin"].get_demonstration(states[0])
        steps = [each.step(action) for each in (ours, theirs)]
        assert steps[0][1:4] == steps[1][1:4]
        assert steps[0][4]["steps"] * CLOCK_SECONDS == theirs.elapsed
        states = [step[0] for step in steps]


def test_where_nothing_else_will_happen_a_job_is_granted_what_it_runs_with() -> None:
    env = Guided(RLAllocEnv(jobs=1))
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [0, 1]
    _, _, terminated, _, info = env.step(NOTHING)
    assert terminated
    assert info["granted"]


def test_in_clusters_a_start_earns_by_its_run_time_and_waiting_nothing() -> None:
    envs = sac_tasks.make_environments("toy", SacEnvironment(), 4, learn=True)
    states, _ = envs.reset(seed=0)
    assert states.shape == (4, FEATURES)
    _, rewards, _, _, info = envs.step(np.ones((4, ACTIONS), dtype=np.float32))
    assert ((rewards > 0) & (rewards < 1)).all()
    may_wait = info["action_mask"][:, -1] == 1
    _, rewards, *_ = envs.step(np.zeros((4, ACTIONS), dtype=np.float32))
    np.testing.assert_array_equal(rewards == 0, may_wait)
    assert may_wait.any()


def test_to_be_judged_clusters_keep_their_own_rewards() -> None:
    returns, _ = sac_tasks.play(
        sac_tasks.make_environments("toy", SacEnvironment(), 4),
        lambda states: np.ones((len(states), ACTIONS), dtype=np.float32),
        0,
    )
    assert (returns < -1).all()


def test_experts_of_clusters_go_by_ranks_and_wait_for_their_turn() -> None:
    first, second = np.zeros(FEATURES, dtype=np.float32), np.full(FEATURES, 0.5, dtype=np.float32)
    for name in ("sjf", "fcfs"):
        assert OFFER_EXPERTS[name].get_demonstration(first).tolist() == [1, 1, 1]
        assert OFFER_EXPERTS[name].get_demonstration(second).tolist() == [0, 0, 0]
    assert OFFER_EXPERTS["round_robin"].get_demonstration(second).tolist() == [1, 1, 1]
