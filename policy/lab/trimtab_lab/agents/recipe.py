"""Who learns what: names of agents to their modules, and the configurations of their trainings.

A configuration is YAML in the shape of the agent's `Config`; those that come with the package are
`configs/AGENT-TASK.yaml`. Whatever is wrong is said in one line that names the file and the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct

from trimtab_lab.agents.learner import Learner
from trimtab_policy.inputs import documents

AGENTS = {
    name: f"trimtab_lab.agents.{name}" for name in ("dqn_cnn", "q_learning", "rudder", "sac_imitation", "sarsa", "vdn")
}
"""Name -> module."""
DEFAULT_TASK = "offers"
MEAN_RETURN = "mean return of greedy episodes on validation seeds"


class RecipeError(ValueError):
    """An agent or a configuration is not there or wrong: which one, why, and what to do, in one line."""


class AgentModule(Protocol):
    """The module of an agent."""

    Config: type[Struct]
    """Sections `environment` and `training`, and the `task`; unknown fields are forbidden."""

    def make(self, config: Any, seed: int) -> Learner:
        """A learner at the start of its training."""
        ...


def agents() -> tuple[str, ...]:
    """Names of all agents."""
    return tuple(AGENTS)


def module(agent: str) -> str:
    """Where an agent is. Raises RecipeError for an unknown one."""
    if agent not in AGENTS:
        raise RecipeError(f"unknown agent {agent!r}; there are: {', '.join(AGENTS)}")
    return AGENTS[agent]


def imported(where: str) -> AgentModule:
    """The module itself. Raises ImportError without the packages that it needs."""
    return cast(AgentModule, import_module(where))


def score_name(where: str, task: str) -> str:
    """What an agent's validation score is: a mean return, unless the `SCORES` of its module say another of the task."""
    scores: Mapping[str, str] = getattr(imported(where), "SCORES", {})
    return scores.get(task, MEAN_RETURN)


def tasks(agent: str) -> tuple[str, ...]:
    """Tasks that the agent has configurations for in the package."""
    return tuple(sorted(path.stem.removeprefix(f"{agent}-") for path in _folder().glob(f"{agent}-*.yaml")))


def default_task(agent: str) -> str:
    """The task that an agent is trained on unless another is named: `offers`, if it has a configuration for it."""
    found = tasks(agent)
    return DEFAULT_TASK if DEFAULT_TASK in found or not found else found[0]


def read_recipe(agent: str, source: str | Path = DEFAULT_TASK) -> Struct:
    """The configuration of an agent: that of a task (`offers`), or of a file (a Path, or a text that ends in .yaml).

    Raises RecipeError.
    """
    config, path = imported(module(agent)).Config, _path(agent, source)
    try:
        found = documents.parse(path.read_bytes())
        # PyYAML takes 1e-4 for a text, as YAML 1.1 did
        return msgspec.convert(found if found is not None else {}, config, strict=False)
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}; name another file") from error
    except ValueError as error:
        raise RecipeError(f"{path}: {' '.join(str(error).split())}") from error


def _path(agent: str, source: str | Path) -> Path:
    if isinstance(source, Path) or source.endswith((".yaml", ".yml")):
        return Path(source)
    if source not in tasks(agent):
        known = ", ".join(tasks(agent)) or "none"
        told = f"{agent} has no configuration {source!r}: there are {known}; or name a file (FILE.yaml)"
        raise RecipeError(told)
    return _folder() / f"{agent}-{source}.yaml"


def _folder() -> Path:
    return Path(str(files("trimtab_lab") / "configs"))
