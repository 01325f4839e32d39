"""ADLRO's agent (seed 002): a deep Q-network with a convolution over the GPU matrix.

The paper names DQN, a CNN with two fully connected layers, Adam at 1e-4, epsilon-greedy exploration and a million
episodes; nothing else. What it leaves out is as in the literature: a target network and uniform replay (Mnih et al.
2015), the double-Q target (van Hasselt et al. 2016), the Huber loss, gradients cut at norm 10. The network is that of
`learned.dqn_cnn`, the worlds are in `dqn_worlds`.

Masks hold everywhere: in what is done, at random or not, and in the maximum of the target. The algorithm takes any
world and any network that gives minus infinity for what is masked; it knows nothing of GPUs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from msgspec import Meta, Struct, field
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from trimtab_lab.agents import dqn_worlds
from trimtab_lab.agents.buffers import ReplayBuffer
from trimtab_lab.agents.dqn_worlds import VALIDATION, Arrays, DqnEnvironment, DqnObservation, DqnStep, DqnWorld, Ints
from trimtab_lab.agents.learner import segment_seed
from trimtab_policy.learned.dqn_cnn import cells
from trimtab_policy.learned.hyperdimensional import Hypervectors

Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]

_DICE, _WEIGHTS = 1, 2
"""Streams of `segment_seed`: exploration and replay, first weights. Environments have stream 0."""
_NORM = 10.0


class DqnTraining(Struct, frozen=True, forbid_unknown_fields=True):
    """The section `training:`. Steps are those of all environments together."""

    segments: Count
    steps: Count
    """Of a segment."""
    environments: Count = 8
    """Of every cluster."""
    learning_rate: Positive = 1e-4
    """That of the paper."""
    last_learning_rate: Positive | None = None
    """To which it falls linearly over the training; None: it stays."""
    batch: Count = 64
    replay: Count = 20_000
    warm_up: int = 1_000
    """Steps before the first update, by chance alone."""
    steps_per_update: Positive = 8
    """Below 1 for several updates a step."""
    target_every: Count = 500
    """Updates after which the target network becomes the present one."""
    first_epsilon: Share = 1.0
    last_epsilon: Share = 0.05
    epsilon_share: Share = 0.3
    """Part of the training over which epsilon falls from the first to the last."""
    validation_episodes: Count = 16
    """Of every cluster."""

    def epsilon(self, steps: int) -> float:
        """Part of the actions that are random after so many steps."""
        whole = max(1.0, self.segments * self.steps * self.epsilon_share)
        return _between(self.first_epsilon, self.last_epsilon, steps / whole)

    def rate(self, steps: int) -> float:
        """Learning rate after so many steps."""
        last = self.learning_rate if self.last_learning_rate is None else self.last_learning_rate
        return _between(self.learning_rate, last, steps / (self.segments * self.steps))


def _between(first: float, last: float, part: float) -> float:
    return first + min(1.0, part) * (last - first)


class Sizes(Struct, frozen=True, forbid_unknown_fields=True):
    """The section `network:`."""

    channels: Count = 16
    """Of both convolutions."""
    hidden: Count = 64
    """Units of the first fully connected layer."""
    hypervectors: int = 64
    """Their dimension; 0 leaves them out."""
    first_value: float = 0.0
    """Bias of the output at first: values that are far from it take long to climb there."""


class DqnConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What a YAML file says."""

    task: Literal["adlro", "offers", "toy"]
    training: DqnTraining
    environment: DqnEnvironment = field(default_factory=DqnEnvironment)
    network: Sizes = field(default_factory=Sizes)


Config = DqnConfig  # what every agent's module has (`recipe.AgentModule`)


def make(config: DqnConfig, seed: int) -> DoubleDqn:
    """The learner that a configuration describes. Raises ValueError naming the field."""
    task, training = dqn_worlds.TASKS[config.task], config.training
    world = dqn_worlds.make_world(config.task, config.environment, training.environments)
    trial = dqn_worlds.make_world(config.task, config.environment, training.validation_episodes)
    torch.manual_seed(segment_seed(seed, 0, _WEIGHTS))
    wide = config.network.hypervectors
    example = world.inputs(world.reset(0).observation)
    network = CnnQNetwork(
        example, config.network, task.kernel, task.whole_rows, task.hypervectors(wide) if wide else None
    )
    return DoubleDqn(world, trial, network, training, seed)


class CnnQNetwork(nn.Module):
    """The network of `learned.dqn_cnn`, to be trained; names of weights are the same there."""

    def __init__(
        self,
        example: Arrays,
        sizes: Sizes,
        kernel: tuple[int, int],
        whole_rows: bool,
        hypervectors: Hypervectors | None,
    ) -> None:
        """`example` are inputs from which the numbers of features are taken."""
        super().__init__()
        grid, hidden, self._whole_rows = example["grid"], sizes.hidden, whole_rows
        cell = sizes.channels * (grid.shape[3] if whole_rows else 1)
        job, context = example["jobs"].shape[2], cell + example["cluster"].shape[1]
        self.conv1 = nn.Conv2d(grid.shape[1], sizes.channels, kernel, padding="same")
        self.conv2 = nn.Conv2d(sizes.channels, sizes.channels, kernel, padding="same")
        self.place = nn.Linear(cell, hidden)
        self.job = nn.Linear(job, hidden, bias=False)
        self.option = nn.Linear(example["options"].shape[2], hidden, bias=False)
        self.context = nn.Linear(context, hidden, bias=False)
        self.value = nn.Linear(hidden, 1)
        nn.init.constant_(self.value.bias, sizes.first_value)
        self.nowhere = nn.Parameter(torch.zeros(hidden))
        self.code = None
        if hypervectors is not None:
            self.register_buffer("codes", torch.from_numpy(hypervectors.astype(np.float32)), persistent=False)
            self.code = nn.Linear(hypervectors.shape[1], hidden, bias=False)

    def forward(self, inputs: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """(n, a + 1) values, the last one that of waiting; minus infinity where the mask is False."""
        convolved = torch.relu(self.conv2(torch.relu(self.conv1(inputs["grid"]))))
        at: Tensor = cells(convolved, self._whole_rows)
        context = torch.cat([torch.einsum("npf,np->nf", at, inputs["weight"]), inputs["cluster"]], dim=1)
        row, option = mask[:, :-1].nonzero(as_tuple=True)
        waits = mask[:, -1].nonzero()[:, 0]
        places, jobs, around = self.place(at), self.job(inputs["jobs"]), self.context(context)
        hidden = places[row, inputs["place"][row, option]] + jobs[row, inputs["job"][row, option]] + around[row]
        hidden = hidden + self.option(inputs["options"][row, option])
        if self.code is not None:
            hidden = hidden + self.code(self.codes)[inputs["code"][row, option]]
        hidden = torch.cat([hidden, self.nowhere + jobs.mean(dim=1)[waits] + around[waits]])
        found = torch.full(mask.shape, -torch.inf, device=mask.device)
        allowed = torch.cat([row, waits]), torch.cat([option, torch.full_like(waits, mask.shape[1] - 1)])
        found[allowed] = self.value(torch.relu(hidden))[:, 0]
        return found


def double_q(reward: Tensor, discount: Tensor, online: Tensor, target: Tensor) -> Tensor:
    """(n,) r + discount * target(s', argmax online(s', .)), van Hasselt et al. 2016, equation 4.

    `online`, `target` (n, actions) are the values of the two networks in the next state, minus infinity where masked.
    Where nothing follows, with discount 0, it is r.
    """
    future = target.gather(1, online.argmax(dim=1, keepdim=True))[:, 0]
    return torch.where(discount > 0, reward + discount * future, reward)


class DoubleDqn:
    """A `Learner`: DQN with double-Q targets on any world, for any network (inputs, mask) -> (n, actions)."""

    def __init__(self, world: DqnWorld, trial: DqnWorld, network: nn.Module, training: DqnTraining, seed: int) -> None:
        """`trial` are the environments for validation: each plays one episode."""
        self.schema, self.segments = world.schema, training.segments
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = network.to(self._device)
        self.target = copy.deepcopy(self.network)
        self._world, self._trial, self._training, self._seed = world, trial, training, seed
        self._optimizer = torch.optim.Adam(network.parameters(), lr=training.learning_rate)
        seen = world.reset(0)
        shapes = {"mask": seen.mask.shape[1:], **{name: of.shape[1:] for name, of in seen.observation.items()}}
        self._names, self._types = tuple(seen.observation), {name: of.dtype for name, of in seen.observation.items()}
        pairs = {f"{when}/{name}": shape for name, shape in shapes.items() for when in ("now", "next")}
        self._replay = ReplayBuffer(training.replay, {**pairs, "action": (), "reward": (), "discount": ()})
        self._steps = self._updates = 0

    def learn(self, segment: int) -> dict[str, float]:
        """As of `Learner`."""
        training, log = self._training, _Log(self._world.environments)
        dice = np.random.default_rng(segment_seed(self._seed, segment, _DICE))
        seen = self._world.reset(segment_seed(self._seed, segment))
        until = (segment + 1) * training.steps
        while self._steps < until:
            actions = self._explore(seen, dice)
            after = self._world.step(actions)
            self._remember(seen, actions, after)
            self._steps += int(after.happened.sum())
            log.add(after)
            while (self._updates + 1) * training.steps_per_update <= self._steps - training.warm_up:
                log.losses.append(self._update(dice))
            seen = after.seen
        return {"steps": float(self._steps), **log.figures(), "epsilon": training.epsilon(self._steps)}

    def act(self, seen: DqnObservation) -> Ints:
        """(n,) the actions of the highest value; 0 where none is allowed."""
        with torch.no_grad():
            values = self.network(*self._tensors(seen.observation, seen.mask))
        best: Ints = values.argmax(dim=1).cpu().numpy()
        return best

    def _explore(self, seen: DqnObservation, dice: np.random.Generator) -> Ints:
        """Epsilon-greedy among what is allowed."""
        anything: Ints = (dice.random(seen.mask.shape) * seen.mask).argmax(axis=1)
        if self._steps < self._training.warm_up:
            return anything
        at_random = dice.random(len(anything)) < self._training.epsilon(self._steps)
        return np.where(at_random, anything, self.act(seen))

    def _remember(self, seen: DqnObservation, actions: Ints, after: DqnStep) -> None:
        fields: Arrays = {"action": actions, "reward": after.reward, "discount": after.discount}
        for when, what in (("now", seen), ("next", after.seen)):
            fields |= {f"{when}/mask": what.mask, **{f"{when}/{name}": of for name, of in what.observation.items()}}
        self._replay.add({name: of[after.happened] for name, of in fields.items()})

    def _update(self, dice: np.random.Generator) -> float:
        """One step of Adam on a batch; returns its loss."""
        fields = self._replay.sample(dice, self._training.batch).fields
        now, following = self._drawn(fields, "now"), self._drawn(fields, "next")
        taken = self._tensor(fields["action"].astype(np.int64))[:, None]
        with torch.no_grad():
            online, target = self.network(*following), self.target(*following)
            reward, discount = (self._tensor(fields[name]) for name in ("reward", "discount"))
            aim = double_q(reward, discount, online, target)
        only = torch.zeros_like(now[1]).scatter_(1, taken, True)
        loss = smooth_l1_loss(self.network(now[0], only).gather(1, taken)[:, 0], aim)
        self._optimizer.param_groups[0]["lr"] = self._training.rate(self._steps)
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.network.parameters(), _NORM)
        self._optimizer.step()
        self._updates += 1
        if self._updates % self._training.target_every == 0:
            self.target.load_state_dict(self.network.state_dict())
        return float(loss.detach())

    def _drawn(self, fields: Mapping[str, NDArray[Any]], when: str) -> tuple[dict[str, Tensor], Tensor]:
        """Inputs of the network and the mask."""
        observation = {name: fields[f"{when}/{name}"].astype(self._types[name], copy=False) for name in self._names}
        return self._tensors(observation, fields[f"{when}/mask"] > 0)

    def _tensors(self, observation: Arrays, mask: NDArray[np.bool_]) -> tuple[dict[str, Tensor], Tensor]:
        return {name: self._tensor(of) for name, of in self._world.inputs(observation).items()}, self._tensor(mask)

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def arrays(self) -> Arrays:
        """As of `Learner`."""
        counters = {"steps": np.array(self._steps), "updates": np.array(self._updates)}
        found = {f"counter/{name}": of for name, of in counters.items()}
        found |= {f"online/{name}": of for name, of in _arrays(self.network).items()}
        found |= {f"target/{name}": of for name, of in _arrays(self.target).items()}
        found |= {f"replay/{name}": of for name, of in self._replay.arrays().items()}
        for number, moments in self._optimizer.state_dict()["state"].items():
            found |= {f"adam/{number}/{key}": of.cpu().numpy().copy() for key, of in moments.items()}
        return found

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """As of `Learner`. Raises ValueError for arrays of another network or a larger replay."""
        _load(self.network, _below("online/", arrays))
        _load(self.target, _below("target/", arrays))
        self._replay.restore(_below("replay/", arrays))
        self._steps, self._updates = int(arrays["counter/steps"]), int(arrays["counter/updates"])
        state: dict[int, dict[str, Tensor]] = {}
        for name, of in _below("adam/", arrays).items():
            number, _, key = name.partition("/")
            state.setdefault(int(number), {})[key] = torch.from_numpy(of.copy())
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})  # moves them to the device

    def weights(self) -> Arrays:
        """As of `Learner`."""
        return _arrays(self.network)

    def validate(self) -> dict[str, float]:
        """One greedy episode of every environment: the mean return as `score`, and means of the world's figures."""
        means = _means(dqn_worlds.play(self._trial, VALIDATION, self.act))
        return {"score": means.pop("return"), **means}


class _Log:
    """Figures of a segment."""

    def __init__(self, environments: int) -> None:
        self._running = np.zeros(environments)
        self._episodes: list[dict[str, float]] = []
        self.losses: list[float] = []

    def add(self, after: DqnStep) -> None:
        """Count a step of every environment."""
        self._running += after.earned
        for number in np.flatnonzero(after.over).tolist():
            self._episodes.append({"return": float(self._running[number]), **after.figures[number]})
            self._running[number] = 0.0

    def figures(self) -> dict[str, float]:
        """Means over the episodes that ended (NaN when none has) and over the updates."""
        found = {"return": float("nan"), **_means(self._episodes)}
        return found | ({"loss": float(np.mean(self.losses))} if self.losses else {})


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]} if rows else {}


def _arrays(module: nn.Module) -> Arrays:
    return {name: of.detach().cpu().numpy().copy() for name, of in module.state_dict().items()}


def _load(module: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    module.load_state_dict({name: torch.from_numpy(np.array(of)) for name, of in arrays.items()})


def _below(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    return {name.removeprefix(prefix): of for name, of in arrays.items() if name.startswith(prefix)}
