"""`trimtab/Offers-v0`: the clusters of `trimtab/Cluster-v0`, one waiting job on offer at a time.

It is what the learned policies of the controller do (`learned.offers`), as an environment: at every event the waiting
jobs are offered in the order of their submission, those that something has room for; the answer is one of the options
(GPU type, count), or to let the job wait until the next event. Running jobs go on. Where nothing runs, nothing can be
waited for, and one option must be taken.

Observation (Dict): the arrays of `encode.OfferBatch` but its mask, which is `info["action_mask"]`; they are made by the
same code as in the controller. Action: the index of an option, or the number of options to wait; one that
is masked waits. Reward: minus the integral of the jobs in the system until the next offer, in units of
`reward_seconds`, as in Cluster-v0. Most steps take no time, so discounting by steps makes no sense: `info["discount"]`
(n,) is what a step discounts the future by, exp(-seconds / memory_seconds).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from trimtab_lab.environments import arguments, cluster_kernel
from trimtab_lab.environments.cluster import ClusterVectorEnv
from trimtab_lab.environments.cluster_jobs import draw, saturation
from trimtab_lab.environments.cluster_kernel import NONE, ClusterWorld, KernelState, advance, change
from trimtab_lab.numba_cache import jit
from trimtab_policy.observation.encode import CLUSTER, JOB, MODES, OPTION, POOL, Floats, Ints, OfferFacts, encode

Observation = dict[str, NDArray[Any]]
Info = dict[str, Any]


class OffersVectorEnv(VectorEnv[Observation, Ints, NDArray[Any]]):
    """n clusters side by side. Resets itself at the next step."""

    def __init__(
        self,
        num_envs: int = 1,
        *,
        load: float | tuple[float, float] | Sequence[float] = 1.0,
        memory_seconds: float | None = None,
        **given: Any,
    ) -> None:
        """Arguments as of `ClusterVectorEnv`; of two loads every episode draws one between them.

        `memory_seconds` is how far ahead answers are judged, by default ten times the mean of the jobs' fastest run
        times. There is no heartbeat: it asks again only when something has changed. (The controller and the engine also
        ask every five minutes, when hardly anything is different: that would make episodes longer for nothing.) Raises
        ValueError naming the argument.
        """
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.loads = (load, load) if isinstance(load, int | float) else (load[0], load[1])
        for each in self.loads:
            arguments.positive("load", each)
        self._cluster = ClusterVectorEnv(num_envs, load=self.loads[0], **given)
        self.num_envs = num_envs
        self.machines, self.families = self._cluster.machines, self._cluster.families
        self.reward_seconds = self._cluster.reward_seconds
        far = 10 * self.families.fastest_seconds if memory_seconds is None else memory_seconds
        self.memory_seconds = arguments.positive("memory_seconds", far)
        self._saturation = saturation(self.machines, self.families)
        self._world = self._cluster.world._replace(heartbeat=self._cluster.world.horizon)
        self._facts = _Facts(self._cluster.state, self._world, self._modes())
        self._random: list[np.random.Generator] = []
        self._over = np.zeros(num_envs, dtype=np.bool_)
        self._turn = np.zeros(num_envs, dtype=np.int64)
        self._slot = np.zeros(num_envs, dtype=np.int64)
        options, types = len(self._world.option_type), len(self.machines.types)
        self.single_observation_space = gym.spaces.Dict(
            {
                "job": gym.spaces.Box(0.0, 1.0, (JOB,), np.float32),
                "cluster": gym.spaces.Box(0.0, 1.0, (CLUSTER,), np.float32),
                "pools": gym.spaces.Box(0.0, 1.0, (types, POOL), np.float32),
                "options": gym.spaces.Box(0.0, 1.0, (options, OPTION), np.float32),
                "kind": gym.spaces.Box(0, types - 1, (options,), np.int64),
                "gpus": gym.spaces.Box(1, 1 << 20, (options,), np.int64),
                "mode": gym.spaces.Box(0, len(MODES) - 1, (options,), np.int64),
            }
        )
        self.single_action_space = gym.spaces.Discrete(options + 1)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def _modes(self) -> Ints:
        mode = self.families.mode
        return np.zeros(self.families.speed.shape, dtype=np.int64) if mode is None else mode

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode in every cluster; cluster i is seeded with `seed` + i, or with the i-th of a list."""
        self._random = self._cluster.seeded(seed)
        for number in range(self.num_envs):
            self._begin(number)
        self._over[:] = False
        return self._seen(), self._info(np.zeros(self.num_envs))

    def step(self, actions: Ints) -> tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], Info]:
        """One answer in every cluster; those whose episode was over begin a new one instead."""
        chosen = np.asarray(actions, dtype=np.int64)
        if chosen.shape != (self.num_envs,):
            raise ValueError(f"actions must be ({self.num_envs},), one for each cluster, got shape {chosen.shape}")
        allowed = np.append(self.offers.mask[:, :-1], np.zeros((self.num_envs, 1), dtype=np.bool_), axis=1)
        taken = np.where(np.take_along_axis(allowed, chosen[:, None], axis=1)[:, 0], chosen, NONE)
        begun = self._over.copy()
        for number in np.flatnonzero(begun):
            self._begin(int(number))
        before = self._cluster.state.now.copy()
        area = np.zeros(self.num_envs)
        state, world = self._cluster.state, self._world
        _answer_all(state, world, taken, begun, self._slot, self._turn, area)
        finished = state.finished == state.submitted.shape[1]
        terminated = finished & ~begun
        truncated = ~finished & ~begun & (state.now >= world.horizon)
        self._over = terminated | truncated
        seconds = np.where(begun, 0.0, state.now - before)
        return self._seen(), -area / self.reward_seconds, terminated, truncated, self._info(seconds)

    def _begin(self, number: int) -> None:
        random = self._random[number]
        rate = self._saturation * random.uniform(*self.loads)
        episode = draw(self.families, self._cluster.mix._replace(rate=rate), random)
        cluster_kernel.install(self._cluster.state, number, episode, self._world, 1 / rate)
        self._turn[number] = 0
        self._slot[number] = _next_offer(self._cluster.state, self._world, number, 0)

    def _seen(self) -> Observation:
        self.offers = encode(self._facts.gather(self._slot))
        return {name: values for name, values in self.offers._asdict().items() if name != "mask"}

    def _info(self, seconds: Floats) -> Info:
        """Figures of the episodes so far, one of each per cluster."""
        state = self._cluster.state
        figures: dict[str, NDArray[Any]] = {
            "action_mask": self.offers.mask.astype(np.int8),
            "discount": np.exp(-seconds / self.memory_seconds),
            "time": state.now.copy(),
            "finished": state.finished.copy(),
            "sum_jct": state.stay.copy(),
        }
        every = np.ones(self.num_envs, dtype=np.bool_)
        return figures | {f"_{name}": every for name in figures}


class _Facts:
    """Gathers the raw figures of the jobs on offer. Between episodes, when there is none, those of a job of no length
    that nothing has room for."""

    def __init__(self, state: KernelState, world: ClusterWorld, modes: Ints) -> None:
        self._state, self._world, self._modes = state, world, modes
        clusters, types = len(state.now), int(world.node_type.max()) + 1
        self._best = world.speed.max(axis=1)
        sizes = [world.node_gpus[world.node_type == kind] for kind in range(types)]
        self._total = np.tile([size.sum() for size in sizes], (clusters, 1))
        self._node_gpus = np.tile([size.max() for size in sizes], (clusters, 1))
        self._gpus = np.tile(world.option_nodes * world.option_width, (clusters, 1))
        self._kind = np.tile(world.option_type, (clusters, 1))
        self._by_free = np.zeros((clusters, types, 1 + int(world.node_gpus.max())), dtype=np.int64)
        self._room = np.zeros(self._kind.shape, dtype=np.bool_)
        self._queue = np.zeros((clusters, 3), dtype=np.int64)

    def gather(self, slot: Ints) -> OfferFacts:
        """The facts of the jobs in these slots, one of each cluster."""
        state, rows = self._state, np.arange(len(slot))
        _count_all(state, self._world, self._best, slot, self._by_free, self._room, self._queue)
        here = slot != NONE
        job = np.where(here, state.job[rows, slot], 0)
        family = state.family[rows, job]
        told = np.where(here, state.told[rows, job], 0.0)
        return OfferFacts(
            fastest_seconds=told / self._best[family],
            age=np.where(here, state.now - state.submitted[rows, job], 0.0),
            slack=state.deadline[rows, job] - state.now,
            shorter=self._queue[:, 0],
            older=self._queue[:, 1],
            waiting=self._queue[:, 2],
            present=state.arrived - state.finished,
            speed=self._world.speed[family],
            kind=self._kind,
            gpus=self._gpus,
            mode=self._modes[family],
            room=self._room,
            total=self._total,
            node_gpus=self._node_gpus,
            by_free=self._by_free,
        )


@jit
def _answer_all(
    state: KernelState, world: ClusterWorld, taken: Ints, begun: NDArray[np.bool_], slot: Ints, turn: Ints, area: Floats
) -> None:
    """Give the jobs on offer what was taken for them (NONE: let them wait), and go to the next offers."""
    jobs = state.submitted.shape[1]
    for c in range(len(taken)):
        if begun[c]:
            continue
        turn[c] = state.job[c, slot[c]] + 1
        if taken[c] != NONE:
            change(state, world, c, slot[c], taken[c])
        slot[c] = _next_offer(state, world, c, turn[c])
        while slot[c] == NONE and state.finished[c] < jobs and state.now[c] < world.horizon:
            area[c] += advance(state, world, c)
            turn[c] = 0
            slot[c] = _next_offer(state, world, c, turn[c])


@jit
def _next_offer(state: KernelState, world: ClusterWorld, c: int, turn: int) -> int:
    """Slot of the first waiting job from number `turn` on that something has room for; NONE if there is none."""
    found, first = NONE, state.submitted.shape[1]
    for slot in range(state.job.shape[1]):
        job = state.job[c, slot]
        if job != NONE and state.option[c, slot] == NONE and turn <= job < first:
            family = state.family[c, job]
            for option in range(len(world.option_type)):
                if world.speed[family, option] > 0 and _has_room(state, world, c, option):
                    found, first = slot, job
                    break
    return found


@jit
def _has_room(state: KernelState, world: ClusterWorld, c: int, option: int) -> bool:
    nodes = 0
    for node in range(len(world.node_type)):
        nodes += (
            world.node_type[node] == world.option_type[option] and state.free[c, node] >= world.option_width[option]
        )
    return bool(nodes >= world.option_nodes[option])


@jit
def _count_all(
    state: KernelState,
    world: ClusterWorld,
    best: Floats,
    slot: Ints,
    by_free: Ints,
    room: NDArray[np.bool_],
    queue: Ints,
) -> None:
    """Nodes by free GPUs, options that have room, and of the waiting jobs the shorter and older ones, and all."""
    by_free[:] = 0
    queue[:] = 0
    for c in range(len(slot)):
        for node in range(len(world.node_type)):
            by_free[c, world.node_type[node], state.free[c, node]] += 1
        for option in range(len(world.option_type)):
            room[c, option] = slot[c] != NONE and _has_room(state, world, c, option)
        queue[c, 2] = state.arrived[c] - state.entered[c]
        for other in range(state.job.shape[1]):
            job = state.job[c, other]
            if job == NONE or state.option[c, other] != NONE:
                continue
            queue[c, 2] += 1
            if slot[c] != NONE:
                mine = state.job[c, slot[c]]
                length = state.told[c, mine] / best[state.family[c, mine]]
                queue[c, 0] += state.told[c, job] / best[state.family[c, job]] < length
                queue[c, 1] += job < mine
