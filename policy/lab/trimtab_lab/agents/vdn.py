"""Value-decomposition networks (Sunehag et al., AAMAS 2018): one agent a GPU pool or host, trained as a team.

The "multi-agent RL approach to enable decentralized resource management" that seed 002 (ADLRO) leaves to future work,
without saying which: this is the plainest one with a common reward. Every agent sees only itself and the jobs on offer,
and all share one network (section 3.2 there). Their sum

    Q_tot(joint action) = sum over agents i of Q_i(what i does)

learns by double Q-learning (van Hasselt et al. 2016) from the reward of the cluster; each Q_i learns through the sum.
An environment's action is a joint one: one agent takes a job with one of its options and the others pass, or all pass.
So max Q_tot needs no centre that knows all: each agent bids A_i = max_o Q_i(o) - Q_i(pass) for its best option, and
the highest bid above 0 wins (`learned.vdn.values`); where waiting is not allowed the highest bid, whatever its sign.

One replay of uniform samples (Mnih et al. 2015), epsilon-greedy over joint actions, Adam, and a target network that
follows slowly (Lillicrap et al. 2016). The discount of a step comes from the time that it took.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from trimtab_lab.agents import vdn_tasks
from trimtab_lab.agents.buffers import ReplayBuffer
from trimtab_lab.agents.fine_tuning import TransitionLog, TuningBound, bounded
from trimtab_lab.agents.learner import Arrays, segment_seed
from trimtab_lab.agents.vdn_tasks import Columns, Hosts, VdnCluster, VdnObservation, VdnStep, VdnWorld
from trimtab_policy.learned.vdn import Local, answers, local
from trimtab_policy.observation.encode import Bools, Floats, Ints, OfferBatch

EXPLORATION, NETWORK = 1, 2
"""Streams of `segment_seed`; that of the environments is 0."""
VALIDATION = 1 << 32
"""First seed of validation episodes. Those of training are below 2^31 plus the number of environments."""


class VdnTraining(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Hyperparameters."""

    segments: int
    steps: int
    """Of every environment, in a segment."""
    environments: int = 8
    learning_rate: float = 1e-3
    """At first; it falls linearly to a twentieth."""
    batch: int = 128
    updates: int = 1
    """After every step of all environments."""
    replay: int = 20_000
    """Transitions that are remembered."""
    warm_up: int = 1_000
    """Transitions before the first update."""
    hidden: int = 64
    first_value: float = 0.0
    """What Q_tot begins with everywhere, shared alike by the agents: jobs that get done in the time looked ahead."""
    target_rate: float = 0.02
    """Part of the way that the target network goes towards the network at every update."""
    first_epsilon: float = 1.0
    last_epsilon: float = 0.02
    epsilon_share: float = 0.5
    """Part of the training over which epsilon falls from the first to the last."""
    largest_gradient: float = 10.0
    """Norm that gradients are cut to."""
    validation_episodes: int = 16

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in ("segments", "steps", "environments", "batch", "updates", "replay", "warm_up", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"training.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("first_epsilon", "last_epsilon", "epsilon_share", "target_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"training.{name} must lie between 0 and 1, got {getattr(self, name)}")
        for name in ("learning_rate", "largest_gradient", "validation_episodes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"training.{name} must be above 0, got {getattr(self, name)}")

    def done(self, steps: int) -> float:
        """Part of the training that so many transitions are."""
        return min(1.0, steps / (self.segments * self.steps * self.environments))

    def epsilon(self, steps: int) -> float:
        """Part of the joint actions that are random after so many transitions."""
        way = min(1.0, self.done(steps) / self.epsilon_share) if self.epsilon_share else 1.0
        return self.first_epsilon + way * (self.last_epsilon - self.first_epsilon)

    def rate(self, steps: int) -> float:
        """Learning rate after so many transitions."""
        return self.learning_rate * (1 - 0.95 * self.done(steps))


class VdnConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training run."""

    task: Literal["offers", "adlro", "toy"]
    training: VdnTraining
    environment: dict[str, Any] = {}
    """Of the task: fields of `vdn_tasks.VdnCluster`, or for `adlro` of `vdn_tasks.Hosts`."""

    def world(self, number: int) -> VdnWorld:
        """So many environments of the task. Raises ValueError naming the field."""
        try:
            if self.task == "adlro":
                return vdn_tasks.AdlroWorld(msgspec.convert(self.environment, Hosts), number)
            make_world = vdn_tasks.clusters if self.task == "offers" else vdn_tasks.toys
            return make_world(msgspec.convert(self.environment, VdnCluster), number)
        except msgspec.ValidationError as error:
            raise ValueError(f"environment: {error}") from error


class Team(nn.Module):
    """The network that all agents share. Names of its layers are those of `learned.vdn.NAMES`."""

    def __init__(self, agent: int, option: int, hidden: int) -> None:
        super().__init__()
        self.see = nn.Linear(agent, hidden)
        self.think = nn.Linear(hidden, hidden)
        self.rest = nn.Linear(hidden, 1)
        self.own = nn.Linear(hidden, hidden)
        self.option = nn.Linear(option, hidden, bias=False)
        self.act = nn.Linear(hidden, 1)

    def forward(self, agents: Tensor, options: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """Bids (n, m) and Q of passing (n, k), as of `learned.vdn.values`."""
        hidden = functional.relu(self.think(functional.relu(self.see(agents))))
        passing = self.rest(hidden)[..., 0]
        rows = torch.arange(len(owner), device=owner.device)[:, None]
        bids = self.act(functional.relu(self.own(hidden)[rows, owner] + self.option(options)))[..., 0]
        return bids, passing

    def joint(self, seen: Local) -> Tensor:
        """(n, m + 1) Q_tot of every joint action, the last that all pass."""
        device = self.rest.weight.device
        bids, passing = self(*(torch.as_tensor(values, device=device) for values in seen))
        found: Tensor = passing.sum(dim=1, keepdim=True) + functional.pad(bids, (0, 1))
        return found


class VdnBatch(NamedTuple):
    """Transitions to learn from."""

    seen: Local
    actions: Ints
    rewards: Floats
    discounts: Floats
    following: Local
    mask: Bools
    """(n, m + 1) what is allowed then."""


class Vdn:
    """One training run; a `Learner`, and `Tunable` where the agents are pools."""

    def __init__(self, config: VdnConfig, seed: int) -> None:
        training = config.training
        self.task, self.training, self.seed, self.segments = config.task, training, seed, training.segments
        self.world, self._trial = config.world(training.environments), config.world(training.validation_episodes)
        self.schema, self.steps = self.world.schema, 0
        seen = self.world.reset(0)
        shapes = self.world.local(seen.columns)
        with torch.random.fork_rng():
            torch.manual_seed(segment_seed(seed, 0, NETWORK))
            team = Team(shapes.agents.shape[2], shapes.options.shape[2], training.hidden)
        nn.init.constant_(team.rest.bias, training.first_value / shapes.agents.shape[1])
        self.team = team.to("cuda" if torch.cuda.is_available() else "cpu")
        self.target = deepcopy(self.team)
        self.optimizer = torch.optim.Adam(self.team.parameters(), lr=training.learning_rate)
        none = np.zeros(len(seen.mask))
        fields = transitions(seen, none.astype(np.int64), VdnStep(seen, none, none, none, none == 0, none > 0))
        self.replay = ReplayBuffer(training.replay, {name: values.shape[1:] for name, values in fields.items()})
        self._types = {name: values.dtype for name, values in fields.items()}

    def learn(self, segment: int) -> dict[str, float]:
        """As of `Learner`; `epsilon`, too."""
        training, log = self.training, _Figures(self.training.environments)
        random = np.random.default_rng(segment_seed(self.seed, segment, EXPLORATION))
        seen = self.world.reset(segment_seed(self.seed, segment))
        for _ in range(training.steps):
            actions = epsilon_greedy(self.greedy(self.world, seen), seen.mask, training.epsilon(self.steps), random)
            after = self.world.step(actions)
            self.replay.add(transitions(seen, actions, after))
            self.steps += int(after.happened.sum())
            seen = after.seen
            log.step(after)
            if self.steps >= training.warm_up:
                self.optimizer.param_groups[0]["lr"] = training.rate(self.steps)
                log.losses += [self.update(random) for _ in range(training.updates)]
        return log.figures(self.steps) | {"epsilon": training.epsilon(self.steps)}

    def update(self, random: np.random.Generator) -> float:
        """One step of the optimizer on a sample; the target network follows. Returns the loss."""
        fields = self.replay.sample(random, self.training.batch).fields
        batch = remembered({name: values.astype(self._types[name]) for name, values in fields.items()}, self.world)
        loss = descend(self.team, self.target, self.optimizer, batch, self.training.largest_gradient)
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.team.parameters(), strict=True):
                slow.lerp_(fast, self.training.target_rate)
        return loss

    def greedy(self, world: VdnWorld, seen: VdnObservation) -> Ints:
        """(n,) the best joint actions that are allowed."""
        with torch.no_grad():
            values = self.team.joint(world.local(seen.columns)).cpu().numpy()
        found: Ints = np.where(seen.mask, values, -np.inf).argmax(axis=1)
        return found

    def fine_tune(self, log: TransitionLog, bound: TuningBound) -> dict[str, NDArray[Any]]:
        """The tuned weights, within the bound (`fine_tuning.bounded`); the learner itself stays as it is.

        It takes its usual update on batches of the log instead of its replay, from its present weights on. Raises
        ValueError for the task `adlro`, whose decisions are no offers.
        """
        if self.task == "adlro":
            raise ValueError("only agents of offers can be tuned on logged offers; these are hosts of the task adlro")
        team, target = deepcopy(self.team), deepcopy(self.team)
        optimizer = torch.optim.Adam(team.parameters(), lr=self.training.learning_rate)
        random = np.random.default_rng(segment_seed(self.seed, self.segments, EXPLORATION))
        for _ in range(bound.updates):
            rows = random.integers(len(log.answers), size=self.training.batch)
            descend(team, target, optimizer, logged(log, rows), self.training.largest_gradient)
        return bounded(self.weights(), _numpy(team), answers, log.offers, bound)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As of `Learner`."""
        found = {f"team.{name}": values for name, values in _numpy(self.team).items()}
        found |= {f"target.{name}": values for name, values in _numpy(self.target).items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            found |= {f"adam.{number}.{name}": values.cpu().numpy().copy() for name, values in moments.items()}
        found |= {f"replay.{name}": values for name, values in self.replay.arrays().items()}
        return found | {"steps": np.array(self.steps)}

    def restore(self, arrays: Arrays) -> None:
        """As of `Learner`."""
        for name, network in (("team", self.team), ("target", self.target)):
            network.load_state_dict(_tensors(arrays, name))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, values in _tensors(arrays, "adam").items():
            number, _, moment = name.partition(".")
            moments.setdefault(int(number), {})[moment] = values
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        self.replay.restore(_below("replay", arrays))
        self.steps = int(arrays["steps"])

    def weights(self) -> dict[str, NDArray[Any]]:
        """As of `Learner`."""
        return _numpy(self.team)

    def validate(self) -> dict[str, float]:
        """Mean return of greedy episodes, as `score`."""
        seen = self._trial.reset(VALIDATION)
        running = np.ones(len(seen.mask), dtype=np.bool_)
        earned = np.zeros(len(running))
        while running.any():
            after = self._trial.step(self.greedy(self._trial, seen))
            earned += after.earned * running
            running &= ~after.over
            seen = after.seen
        return {"score": float(earned.mean())}


Config = VdnConfig  # what every agent's module has (`recipe.AgentModule`)


def make(config: VdnConfig, seed: int) -> Vdn:
    """A training run from its beginning. Raises ValueError naming the field that is wrong."""
    return Vdn(config, seed)


def epsilon_greedy(greedy: Ints, mask: Bools, epsilon: float, random: np.random.Generator) -> Ints:
    """(n,) the greedy joint actions, or with probability epsilon any that is allowed."""
    anything = (random.random(mask.shape) * mask).argmax(axis=1)
    chosen: Ints = np.where(random.random(len(greedy)) < epsilon, anything, greedy)
    return chosen


def descend(
    team: Team, target: Team, optimizer: torch.optim.Optimizer, batch: VdnBatch, largest_gradient: float
) -> float:
    """One step towards r + discount * Q_tot(s', a') of the target network, a' being best for the network itself."""
    device = team.rest.weight.device
    rewards, discounts, actions, mask = (
        torch.as_tensor(values, device=device) for values in (batch.rewards, batch.discounts, batch.actions, batch.mask)
    )
    with torch.no_grad():
        best = team.joint(batch.following).masked_fill(~mask, -torch.inf).argmax(dim=1, keepdim=True)
        ahead = target.joint(batch.following).gather(1, best)[:, 0]
        goal = (rewards + discounts * ahead).float()
    told = team.joint(batch.seen).gather(1, actions[:, None])[:, 0]
    loss = functional.smooth_l1_loss(told, goal)
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(team.parameters(), largest_gradient)
    optimizer.step()
    return float(loss.detach())


def transitions(before: VdnObservation, actions: NDArray[Any], after: VdnStep) -> Columns:
    """What has happened, as fields of the replay."""
    fields: Columns = {"action": actions, "reward": after.rewards, "discount": after.discounts, "mask": after.seen.mask}
    fields |= {f"before.{name}": values for name, values in before.columns.items()}
    fields |= {f"after.{name}": values for name, values in after.seen.columns.items()}
    return {name: values[after.happened] for name, values in fields.items()}


def remembered(fields: Columns, world: VdnWorld) -> VdnBatch:
    """Fields of the replay as a batch."""
    before, after = (world.local(_below(when, fields)) for when in ("before", "after"))
    return VdnBatch(before, fields["action"], fields["reward"], fields["discount"], after, fields["mask"])


def logged(log: TransitionLog, rows: Ints) -> VdnBatch:
    """These rows of a log."""
    before, after = (OfferBatch._make(values[rows] for values in offers) for offers in (log.offers, log.following))
    return VdnBatch(local(before), log.answers[rows], log.rewards[rows], log.discounts[rows], local(after), after.mask)


def _numpy(network: nn.Module) -> dict[str, NDArray[Any]]:
    return {name: values.cpu().numpy().copy() for name, values in network.state_dict().items()}


def _below(prefix: str, arrays: Arrays) -> Columns:
    start = f"{prefix}."
    return {name.removeprefix(start): values for name, values in arrays.items() if name.startswith(start)}


def _tensors(arrays: Arrays, prefix: str) -> dict[str, Tensor]:
    return {name: torch.from_numpy(values.copy()) for name, values in _below(prefix, arrays).items()}


class _Figures:
    """Figures of one segment."""

    def __init__(self, environments: int) -> None:
        self._running = np.zeros(environments)
        self._returns: list[float] = []
        self.losses: list[float] = []

    def step(self, after: VdnStep) -> None:
        """Count a step of all environments."""
        self._running += after.earned
        self._returns += self._running[after.over].tolist()
        self._running[after.over] = 0.0

    def figures(self, steps: int) -> dict[str, float]:
        """The return is NaN when no episode has ended, the loss while none was computed."""
        ended, loss = (float(np.mean(each)) if each else float("nan") for each in (self._returns, self.losses))
        return {"steps": float(steps), "return": ended, "loss": loss}
