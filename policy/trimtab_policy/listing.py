"""All registered policies as values: who described them, and what the weights of the learned ones are worth."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from trimtab_policy import policy
from trimtab_policy.learned import store
from trimtab_policy.learned.store import ModelCard, WeightsError
from trimtab_policy.observation import encode
from trimtab_policy.policy import Kind


class PackagedWeights(Struct, frozen=True):
    """Weights that come with the package."""

    file: str
    task: str
    commit: str
    seeds: tuple[int, ...]
    """The one that was kept comes first."""
    score: float
    """On seeds that were never trained on; higher is better."""
    score_name: str
    stale: bool
    """The catalogue of GPUs and models has changed since."""
    sha256: str


class Listed(Struct, frozen=True):
    """A registered policy."""

    name: str
    kind: Kind
    source: str
    weights: PackagedWeights | None = None
    """None for policies that need none, and where something is wrong with them."""
    problem: str = ""
    """What is wrong with the weights, in one line."""


def listed() -> tuple[Listed, ...]:
    """All of them, by name. Weights are read as the policy would read them: wrong ones are told here, not raised."""
    return tuple(_listed(name) for name in policy.names())


def _listed(name: str) -> Listed:
    entry = policy.entry(name)
    found = Listed(name, entry.kind, entry.source)
    if entry.kind is not Kind.LEARNED:
        return found
    try:
        path = store.named(name)
        card = store.load(path, entry.schema or encode.SCHEMA).card
        if card.agent != name:
            raise WeightsError(f"{path}: weights of {card.agent}, not of {name}; copy both files again, or train anew")
        return Listed(name, entry.kind, entry.source, _trained(path, card))
    except WeightsError as error:
        return Listed(name, entry.kind, entry.source, problem=str(error))


def _trained(path: Path, card: ModelCard) -> PackagedWeights:
    return PackagedWeights(
        file=str(path),
        task=card.task,
        commit=card.commit,
        seeds=card.seeds,
        score=card.score,
        score_name=card.score_name,
        stale=card.stale,
        sha256=card.sha256,
    )
