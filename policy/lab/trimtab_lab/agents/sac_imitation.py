"""Soft actor-critic with expert imitation and prioritised replay: seed 001 (RLAlloc4LM), as its README names the parts.

The seed's own code is a deterministic actor with added noise, priorities by reward, and no imitation loss. This is what
the names mean in the literature:

- SAC (Haarnoja et al. 2018, arXiv 1812.05905): actions tanh(u), u ~ N(mean(s), std(s)), with the density corrected for
  the tanh (appendix C); two critics, of which the lower one counts; targets that follow them by Polyak averaging; a
  temperature that is learned so that the entropy is minus the number of action dimensions (section 5).
- Imitation: for every episode an expert is drawn, and what it would do in each state is kept beside the transition. The
  actor minimises (1 - w) SAC + w mean|Q| (tanh(mean(s)) - expert(s))^2; mean|Q| brings both to one scale (Fujimoto and
  Gu 2021). With `q_filter` nothing is imitated where the critics prefer the actor's own action. The expert also acts
  itself, in a share w of the decisions (DAgger's mixture, Ross et al. 2011). w goes linearly from `imitation` to
  `imitation_floor` in `imitation_episodes`: the seed's schedule for mixing. w = 0 is SAC.
- Where most decisions take no time (`SacTask.instant`) values count no entropy: an agent would refuse job after job to
  collect it. It stays in the actor's loss, as in SAC without entropy backup (Ball et al. 2023, RLPD).
- Prioritised replay (Schaul et al. 2016) with |TD error|, mean of the two critics, and importance weights in
  all losses.

With two or more environments side by side an episode may run into the end of its segment, and is cut there: what was
seen of it stays in the replay.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from msgspec import Meta, Struct, field
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import relu, softplus

from trimtab_lab.agents import sac_tasks
from trimtab_lab.agents.buffers import PrioritisedReplay, ReplayBuffer
from trimtab_lab.agents.learner import segment_seed
from trimtab_lab.agents.sac_tasks import VALIDATION_SEED, SacEnvironment, SacTask, Vector
from trimtab_lab.environments.rlalloc_experts import Expert
from trimtab_policy.learned.sac_imitation import NAMES, mean_action

Arrays = dict[str, NDArray[Any]]
Single = NDArray[np.float32]
Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]

_LOG_STD = (-20.0, 2.0)


class SacTraining(Struct, frozen=True, forbid_unknown_fields=True):
    """The section `training:`."""

    total_episodes: Count = 200
    """The first five are the keys of the seed's README, with its values."""
    learning_rate: Positive = 0.003
    batch_size: Count = 64
    buffer_size: Count = 1_000_000
    gamma: Share = 0.99
    """Of a step; `rlalloc` counts ten seconds as one, because most of its decisions take no time; the other tasks
    discount by `environment.memory_seconds`."""
    experts: tuple[str, ...] = ("sjf", "fcfs", "round_robin")
    imitation: Share = 1.0
    imitation_floor: Share = 0.1
    imitation_episodes: Count = 100
    q_filter: bool = False
    """Imitate only where the critics prefer the expert (Nair et al. 2018): several experts contradict each other."""
    prioritised: bool = True
    priority_exponent: Share = 0.6
    importance_exponent: Share = 0.4
    """At the beginning; 1 at the end."""
    environments: Count = 4
    episodes_per_segment: Count = 20
    warm_up_steps: int = 500
    """Before the first update; actions that no expert takes are drawn evenly until then."""
    steps_per_update: Count = 1
    hidden: Count = 64
    """Units of each of the two layers of every network."""
    temperature: Positive = 0.05
    """At the beginning: as large as the differences between returns that matter, `reward_scale` included."""
    target_entropy: float = -1.0
    """Of one action dimension in [-1, 1]."""
    target_rate: Positive = 0.005
    """Of the Polyak average."""
    reward_scale: Positive = 1.0
    validation_episodes: Count = 20


class SacConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What a YAML file says; the one in the seed's README is one."""

    task: Literal["rlalloc", "offers", "toy"] = "rlalloc"
    environment: SacEnvironment = field(default_factory=SacEnvironment)
    training: SacTraining = field(default_factory=SacTraining)


Config = SacConfig  # what every agent's module has (`recipe.AgentModule`)


def make(config: SacConfig, seed: int) -> SacImitation:
    """The learner that a configuration describes. Raises ValueError naming the field."""
    task, training = sac_tasks.TASKS[config.task], config.training
    envs = sac_tasks.make_environments(config.task, config.environment, training.environments, learn=True)
    trials = sac_tasks.make_environments(config.task, config.environment, training.validation_episodes)
    return SacImitation(envs, trials, task, sac_tasks.experts(config.task, training.experts), training, seed)


class Actor(nn.Module):
    """A squashed Gaussian over actions in [-1, 1], given the state."""

    def __init__(self, features: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.mean = nn.Linear(hidden, actions)
        self.log_std = nn.Linear(hidden, actions)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """(n, actions) means and logarithms of the standard deviations, before the tanh."""
        hidden = relu(self.second(relu(self.first(states))))
        return self.mean(hidden), self.log_std(hidden).clamp(*_LOG_STD)

    def sample(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Actions (n, actions), the logarithm of their density (n,), and tanh of the means."""
        mean, log_std = self(states)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        return torch.tanh(raw), log_density(raw, noise, log_std), torch.tanh(mean)


def log_density(raw: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """(n,) ln of the density of tanh(raw), raw = mean + std * noise.

    ln(1 - tanh(u)^2) = 2 (ln 2 - u - softplus(-2 u)) does not vanish in rounding where the tanh is saturated.
    """
    normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
    squash = 2 * (math.log(2) - raw - softplus(-2 * raw))
    return (normal - squash).sum(dim=-1)


class Critics(nn.Module):
    """Two networks for Q(state, action), evaluated in one go."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        sizes = [(inputs, hidden), (hidden, hidden), (hidden, 1)]
        self.weights = nn.ParameterList([_uniform(size[0], 2, *size) for size in sizes])
        self.biases = nn.ParameterList([_uniform(size[0], 2, 1, size[1]) for size in sizes])

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        """(2, n)"""
        values = torch.cat([states, actions], dim=1).expand(2, -1, -1)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = torch.baddbmm(bias, values if index == 0 else relu(values), weight)
        return values.squeeze(2)


def _uniform(inputs: int, *shape: int) -> nn.Parameter:
    """As nn.Linear begins."""
    bound = 1 / math.sqrt(inputs)
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class Temperature(nn.Module):
    """What entropy is worth, as its logarithm."""

    def __init__(self, first: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(first)))


class Losses(NamedTuple):
    """Of one update; means over the batch."""

    critic: float
    actor: float
    imitation: float
    temperature: float
    entropy: float


class SacImitation:
    """A `Learner`."""

    def __init__(
        self, envs: Vector, trials: Vector, task: SacTask, experts: tuple[Expert, ...], training: SacTraining, seed: int
    ) -> None:
        """`trials` are for validation. Without experts nothing is imitated."""
        self.schema = task.schema
        self.segments = math.ceil(training.total_episodes / training.episodes_per_segment)
        self._envs, self._trials, self._task, self._experts = envs, trials, task, experts
        self._training, self._seed = training, seed
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(segment_seed(seed, 0, stream=3))
        states, self._box = sac_tasks.box(envs.single_observation_space), sac_tasks.box(envs.single_action_space)
        features, actions = states.shape[0], self._box.shape[0]
        self._actor = Actor(features, actions, training.hidden).to(self._device)
        self._critics = Critics(features + actions, training.hidden).to(self._device)
        self._targets = copy.deepcopy(self._critics).requires_grad_(False)
        self._temperature = Temperature(training.temperature).to(self._device)
        self._modules: dict[str, nn.Module] = {
            "actor": self._actor,
            "critics": self._critics,
            "targets": self._targets,
            "temperature": self._temperature,
        }
        self._optimisers = {
            name: torch.optim.Adam(self._modules[name].parameters(), lr=training.learning_rate, fused=True)
            for name in ("actor", "critics", "temperature")
        }
        fields = {"state": (features,), "after": (features,), "action": (actions,), "expert": (actions,)}
        self._replay = _replay(training, fields | {"reward": (), "discount": ()})
        self._steps = self._episodes = self._updates = 0

    def learn(self, segment: int) -> dict[str, float]:
        """As of `Learner`: act, remember and update until enough episodes have ended."""
        torch.manual_seed(segment_seed(self._seed, segment))
        random = np.random.default_rng(segment_seed(self._seed, segment, stream=1))
        states, _ = self._envs.reset(seed=segment_seed(self._seed, segment, stream=2))
        count, until = self._envs.num_envs, self._episodes + self._training.episodes_per_segment
        experts = self._drawn(random, count)
        earned, over = np.zeros(count), np.zeros(count, dtype=np.bool_)
        returns: list[float] = []
        losses: list[Losses] = []
        while self._episodes < until:
            shown = self._demonstrations(states, experts)
            actions = self._behave(states, shown, random)
            after, rewards, terminated, truncated, infos = self._envs.step(self._scaled(actions))
            discount = self._discount(infos) * ~terminated
            seen = {"state": states, "action": actions, "expert": shown, "after": after, "discount": discount}
            self._remember(seen | {"reward": rewards * self._training.reward_scale}, ~over)
            # where an episode was over, this step has only begun another
            experts = np.where(over, self._drawn(random, count), experts)
            earned, states, over = earned + rewards, after, terminated | truncated
            returns.extend(earned[over])
            earned[over] = 0.0
            self._episodes += int(over.sum())
            losses.extend(self._update(random) for _ in range(self._due()))
        return self._figures(returns, losses)

    def validate(self) -> dict[str, float]:
        """Figures of `SacTask.score`, of the mean actions."""
        weights = self.weights()
        returns, infos = sac_tasks.play(
            self._trials, lambda states: self._scaled(2 * mean_action(weights, states) - 1), VALIDATION_SEED
        )
        return self._task.score(returns, infos)

    def weights(self) -> Arrays:
        """The actor's, as `learned.sac_imitation.mean_action` takes them."""
        return {name: value.cpu().numpy().copy() for name, value in self._actor.state_dict().items() if name in NAMES}

    def arrays(self) -> Arrays:
        """As of `Learner`."""
        found = _prefixed("replay", self._replay.arrays())
        for name, module in self._modules.items():
            found |= _prefixed(name, {key: value.cpu().numpy().copy() for key, value in module.state_dict().items()})
        for name, optimiser in self._optimisers.items():
            for index, moments in optimiser.state_dict()["state"].items():
                found |= _prefixed(
                    f"adam/{name}/{index}", {key: value.cpu().numpy().copy() for key, value in moments.items()}
                )
        return found | {"counts": np.array([self._steps, self._episodes, self._updates])}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """As of `Learner`. Raises ValueError or KeyError for arrays of another configuration."""
        self._replay.restore(_below("replay", arrays))
        for name, module in self._modules.items():
            module.load_state_dict({key: torch.tensor(value) for key, value in _below(name, arrays).items()})
        for name, optimiser in self._optimisers.items():
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in _below(f"adam/{name}", arrays).items():
                index, _, moment = key.partition("/")
                state.setdefault(int(index), {})[moment] = torch.tensor(value)
            optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
        self._steps, self._episodes, self._updates = arrays["counts"].tolist()

    def _update(self, random: np.random.Generator) -> Losses:
        """One step of each optimiser on a batch of the replay."""
        given, alpha = self._training, self._temperature.log.detach().exp()
        batch = self._replay.sample(random, given.batch_size, self._beta())
        on = {name: torch.from_numpy(values).to(self._device) for name, values in batch.fields.items()}
        weights = torch.from_numpy(batch.weights).to(self._device)
        with torch.no_grad():
            action, density, _ = self._actor.sample(on["after"])
            value = self._targets(on["after"], action).amin(dim=0)
            bonus = 0.0 if self._task.instant else -alpha * density
            target = on["reward"] + on["discount"] * (value + bonus)
        errors = self._critics(on["state"], on["action"]) - target
        critic = 0.5 * (weights * errors**2).mean(dim=1).sum()
        _descend(self._optimisers["critics"], critic)
        self._replay.update(batch.places, errors.detach().abs().mean(dim=0).cpu().numpy())
        action, density, mean = self._actor.sample(on["state"])
        tried = torch.cat([action, mean.detach(), on["expert"]])
        value, own, shown = self._critics(on["state"].repeat(3, 1), tried).amin(dim=0).chunk(3)
        heeded = weights * (shown > own) if given.q_filter else weights
        imitation = (heeded * ((mean - on["expert"]) ** 2).sum(dim=1)).mean()
        reinforced = (weights * (alpha * density - value)).mean()
        share = self._share()
        actor = (1 - share) * reinforced + share * value.detach().abs().mean() * imitation
        _descend(self._optimisers["actor"], actor)
        # how far the entropy lies below its target; imitation alone has no use for a temperature
        lacking = (1 - share) * weights * (density.detach() + given.target_entropy * action.shape[1])
        _descend(self._optimisers["temperature"], -(self._temperature.log * lacking).mean())
        with torch.no_grad():
            for theirs, ours in zip(self._targets.parameters(), self._critics.parameters(), strict=True):
                theirs.lerp_(ours, given.target_rate)
        self._updates += 1
        return Losses(*(each.item() for each in (critic, actor, imitation, alpha, -density.mean())))

    def _discount(self, infos: Mapping[str, Any]) -> Any:
        """Of each step, a number or (n,): what the environment says, or gamma for as many steps as it says."""
        return infos.get("discount", self._training.gamma ** infos.get("steps", 1.0))

    def _due(self) -> int:
        """Updates that are owed for the steps so far."""
        given = self._training
        return max(0, (self._steps - given.warm_up_steps) // given.steps_per_update - self._updates)

    def _share(self) -> float:
        """What imitation counts now, w of the module."""
        given = self._training
        left = max(0.0, 1 - self._episodes / given.imitation_episodes)
        return given.imitation_floor + (given.imitation - given.imitation_floor) * left if self._experts else 0.0

    def _beta(self) -> float:
        """How much of the bias of prioritised replay is corrected now."""
        given = self._training
        done = min(1.0, self._episodes / given.total_episodes)
        return given.importance_exponent + (1 - given.importance_exponent) * done

    def _drawn(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        """(count,) experts, by number."""
        return random.integers(max(1, len(self._experts)), size=count)

    def _demonstrations(self, states: Single, experts: NDArray[np.int64]) -> Single:
        """(n, actions) in [-1, 1]: what each environment's expert would do; zeros where there are no experts."""
        if not self._experts:
            return np.zeros((len(states), *self._box.shape), dtype=np.float32)
        rows = zip(experts.tolist(), states, strict=True)
        shown = [sac_tasks.demonstration(self._experts[expert], state, self._box) for expert, state in rows]
        found: Single = 2 * (np.stack(shown) - self._box.low) / (self._box.high - self._box.low) - 1
        return found

    def _behave(self, states: Single, shown: Single, random: np.random.Generator) -> Single:
        """(n, actions) in [-1, 1]: the expert's in some decisions, else the actor's; anything while it warms up."""
        if self._steps < self._training.warm_up_steps:
            own = random.uniform(-1, 1, shown.shape).astype(np.float32)
        else:
            with torch.no_grad():
                own = self._actor.sample(torch.from_numpy(states).to(self._device))[0].cpu().numpy()
        imitates = random.random(len(shown)) < self._share()
        return np.where(imitates[:, None], shown, own)

    def _scaled(self, actions: Single) -> Single:
        """Actions in [-1, 1] as the environment has them."""
        low, high = self._box.low, self._box.high
        found: Single = np.clip(low + (actions + 1) / 2 * (high - low), low, high)
        return found

    def _remember(self, seen: Mapping[str, NDArray[Any]], real: NDArray[np.bool_]) -> None:
        if real.any():
            self._replay.add({name: values[real] for name, values in seen.items()})
        self._steps += int(real.sum())

    def _figures(self, returns: list[float], losses: list[Losses]) -> dict[str, float]:
        mean = Losses(*np.mean(losses, axis=0).tolist()) if losses else Losses(*[math.nan] * 5)
        return {
            "steps": float(self._steps),
            "return": float(np.mean(returns)),
            "loss": mean.critic,
            "actor_loss": mean.actor,
            "imitation_loss": mean.imitation,
            "imitation_share": self._share(),
            "temperature": mean.temperature,
            "entropy": mean.entropy,
        }


def _replay(training: SacTraining, fields: Mapping[str, tuple[int, ...]]) -> ReplayBuffer:
    if training.prioritised:
        return PrioritisedReplay(training.buffer_size, fields, training.priority_exponent)
    return ReplayBuffer(training.buffer_size, fields)


def _descend(optimiser: torch.optim.Adam, loss: Tensor) -> None:
    """One step on the gradient for the optimiser's own parameters alone."""
    parameters = optimiser.param_groups[0]["params"]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimiser.step()


def _prefixed(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def _below(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    return {name.removeprefix(f"{prefix}/"): array for name, array in arrays.items() if name.startswith(f"{prefix}/")}
