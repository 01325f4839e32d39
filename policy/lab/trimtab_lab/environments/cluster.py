"""`trimtab/Cluster-v0`: schedule LLM training jobs on a heterogeneous GPU cluster, one choice at a time.

At every event (a job arrives or ends, at the latest every `heartbeat`) time stands still, and the agent gives gangs to
jobs: action `slot x (options + 1) + option` gives the job in that slot this (GPU type, count), whether it waits or
runs on something else; the last option of a slot stops it. The last action of all lets time run to the next event. A
job may be changed once at a time. `info["action_mask"]` says what is allowed; an action that is not lets time run.

The reward of a step is minus the integral of the number of jobs in the system over the time that it took, in units of
`reward_seconds`; by Little's law an episode's sum, times `reward_seconds`, is minus the sum of all completion times.
The unit is the number of jobs times their mean run time on their fastest options, so that a return of -1 says that
nobody waits or runs slower. An episode ends when all its jobs are done, and is truncated at `horizon`.

`ClusterVectorEnv` runs many clusters in one call of machine code; `ClusterEnv` is one of them. Cluster i of a vector
that is reset with seed s sees what `ClusterEnv` sees when it is reset with seed s + i.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from trimtab_lab.environments import arguments, cluster_kernel, cluster_view
from trimtab_lab.environments.cluster_jobs import Families, Mix, draw, llm, machines, saturation
from trimtab_lab.environments.cluster_kernel import NONE, ClusterWorld, KernelState, advance, change
from trimtab_lab.environments.cluster_view import HIGH, LOW, ClusterView, Sight, look
from trimtab_lab.numba_cache import jit
from trimtab_lab.workloads import clusters
from trimtab_policy.types import Snapshot

Observation = dict[str, NDArray[np.float32]]
Info = dict[str, Any]


class ClusterVectorEnv(VectorEnv[Observation, NDArray[np.int64], NDArray[Any]]):
    """Many clusters side by side, with equal parameters and jobs of their own. Resets itself at the next step."""

    def __init__(
        self,
        num_envs: int = 1,
        *,
        cluster: str | Snapshot = "sia-heterogeneous",
        families: Families | None = None,
        jobs: int = 100,
        load: float = 1.0,
        slots: int = 64,
        largest_gang: int = 16,
        heartbeat: float = 300.0,
        horizon: float = 30 * 86400.0,
        estimate_sigma: float = 0.0,
        deadline_share: float = 0.2,
    ) -> None:
        """`cluster` is a snapshot or what `workloads.clusters.cluster` reads; the others as in the modules named above.

        `load` is relative to what the cluster could carry at best (`cluster_jobs.saturation`). Raises ValueError naming
        the argument.
        """
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}
        arguments.positive("load", load)
        self.num_envs = arguments.whole("num_envs", num_envs, 1)
        slots = arguments.whole("slots", slots, 1)
        empty = clusters.cluster(cluster) if isinstance(cluster, str) else cluster
        self.machines = machines(empty, arguments.whole("largest_gang", largest_gang, 1))
        self.families = llm(empty, self.machines) if families is None else families
        rate = load * saturation(self.machines, self.families)
        deadlines = arguments.between("deadline_share", deadline_share, 0, 1)
        sigma = arguments.between("estimate_sigma", estimate_sigma, 0, 10)
        self.mix = Mix(arguments.whole("jobs", jobs, 1), rate, sigma, deadlines)
        self.reward_seconds = jobs * self.families.fastest_seconds
        self.world = cluster_kernel.constants(
            self.machines,
            self.families,
            arguments.positive("heartbeat", heartbeat),
            arguments.positive("horizon", horizon),
            self.reward_seconds,
        )
        self._sight = cluster_view.sight(self.machines, self.families)
        self.state = cluster_kernel.new_state(self.num_envs, slots, jobs, self.world)
        self._view = cluster_view.view(self.num_envs, slots, self.world, len(self.machines.types))
        self._random: list[np.random.Generator] = []
        self._over = np.zeros(self.num_envs, dtype=np.bool_)
        self.single_observation_space = gym.spaces.Dict(
            {
                name: gym.spaces.Box(LOW, HIGH, getattr(self._view, name).shape[1:], np.float32)
                for name in ("jobs", "options", "pools", "cluster")
            }
        )
        self.single_action_space = gym.spaces.Discrete(self._view.mask.shape[1])
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode in every cluster; cluster i is seeded with `seed` + i, or with the i-th of a list."""
        self.seeded(seed)
        for number in range(self.num_envs):
            self._begin(number)
        self._over[:] = False
        return self._seen(), self._info()

    def seeded(self, seed: int | list[int | None] | None) -> list[np.random.Generator]:
        """What is random in each cluster from now on, seeded as of `reset`; without a seed it goes on."""
        if isinstance(seed, int):
            super().reset(seed=seed)
            self._random = [np.random.default_rng(seed + number) for number in range(self.num_envs)]
        elif seed is not None:
            self._random = [np.random.default_rng(each) for each in seed]
        elif not self._random:
            self._random = [
                np.random.default_rng(each) for each in self.np_random.integers(1 << 31, size=self.num_envs)
            ]
        return self._random

    def step(self, actions: NDArray[np.int64]) -> tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], Info]:
        """One choice in every cluster; those whose episode was over begin a new one instead."""
        chosen = np.asarray(actions, dtype=np.int64)
        if chosen.shape != (self.num_envs,):
            raise ValueError(f"actions must be ({self.num_envs},), one for each cluster, got shape {chosen.shape}")
        begun = self._over.copy()
        for number in np.flatnonzero(begun):
            self._begin(int(number))
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), dtype=np.bool_)
        _step_all(self.state, self.world, self._sight, self._view, chosen, begun, rewards, terminated, truncated)
        self._over = terminated | truncated
        return self._seen(), rewards, terminated, truncated, self._info()

    def _begin(self, number: int) -> None:
        episode = draw(self.families, self.mix, self._random[number])
        cluster_kernel.install(self.state, number, episode, self.world, 1 / self.mix.rate)
        look(self.state, self.world, self._sight, self._view, number)

    def _seen(self) -> Observation:
        return {name: getattr(self._view, name).copy() for name in ("jobs", "options", "pools", "cluster")}

    def _info(self) -> Info:
        """Figures of the episodes so far, one of each per cluster."""
        state = self.state
        figures: dict[str, NDArray[Any]] = {
            "action_mask": self._view.mask,
            "time": state.now,
            "finished": state.finished,
            "sum_jct": state.stay,
            "restarts": state.restarts,
            "deadlines_met": state.met,
        }
        every = np.ones(self.num_envs, dtype=np.bool_)
        return {name: figure.copy() for name, figure in figures.items()} | {f"_{name}": every for name in figures}


class ClusterEnv(gym.Env[Observation, np.int64]):
    """One cluster; parameters as of `ClusterVectorEnv`."""

    def __init__(self, **parameters: Any) -> None:
        """Raise ValueError naming the argument."""
        self.vector = ClusterVectorEnv(1, **parameters)
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space
        self.machines, self.families = self.vector.machines, self.vector.families
        self.reward_seconds = self.vector.reward_seconds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin an episode."""
        super().reset(seed=seed)
        seen, info = self.vector.reset(seed=seed)
        return _only(seen), _only(info)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, Info]:
        """One choice."""
        seen, reward, terminated, truncated, info = self.vector.step(np.array([action]))
        return _only(seen), float(reward[0]), bool(terminated[0]), bool(truncated[0]), _only(info)


def _only(batch: dict[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: values[0] for name, values in batch.items() if not name.startswith("_")}


@jit
def _step_all(
    state: KernelState,
    world: ClusterWorld,
    sight: Sight,
    view: ClusterView,
    actions: NDArray[np.int64],
    begun: NDArray[np.bool_],
    rewards: NDArray[np.float64],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
) -> None:
    """Do the actions in all clusters but those that have just begun."""
    choices, jobs = len(world.option_type) + 1, state.submitted.shape[1]
    for c in range(len(actions)):
        if begun[c]:
            continue
        action = actions[c]
        if 0 <= action < view.mask.shape[1] - 1 and view.mask[c, action]:
            option = action % choices
            change(state, world, c, action // choices, option if option < choices - 1 else NONE)
        else:
            rewards[c] = -advance(state, world, c) / world.reward_seconds
            terminated[c] = state.finished[c] == jobs
            truncated[c] = not terminated[c] and state.now[c] >= world.horizon
        look(state, world, sight, view, c)
