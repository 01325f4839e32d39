"""Registered policies as a table, and what is to be known of the weights of the learned ones."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table

from trimtab.ui.terminal import Text
from trimtab_policy.listing import Listed, PackagedWeights


def table(found: Sequence[Listed]) -> Group:
    """One line a policy; below, what is wrong with weights."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("NAME", "KIND", "SOURCE", "WEIGHTS", "SCORE"):
        made.add_column(name, justify="right" if name == "SCORE" else "left", overflow="fold")
    for each in found:
        score = f"{each.weights.score:.3g}" if each.weights else ""
        made.add_row(each.name, str(each.kind), Text(each.source), _weights(each), score)
    return Group(made, *_notes(found))


def _weights(each: Listed) -> Text:
    if each.problem:
        return Text("not usable, see below", "red")
    if each.weights is None:
        return Text("")
    trained = each.weights
    told = Text(f"{trained.task}, {_seeds(trained)}, commit {trained.commit[:8]}")
    return told.append(", stale", "yellow") if trained.stale else told


def _seeds(trained: PackagedWeights) -> str:
    first, *others = trained.seeds
    return f"seed {first} of {len(others) + 1}" if others else f"seed {first}"


def _notes(found: Sequence[Listed]) -> list[Text]:
    names = dict.fromkeys(each.weights.score_name for each in found if each.weights)
    notes = [Text(f"{each.name}: {each.problem}", "red") for each in found if each.problem]
    if any(each.weights and each.weights.stale for each in found):
        notes.append(
            Text("Stale: the catalogue of GPUs and models has changed since they were trained; train anew.", "yellow")
        )
    return notes + [Text(f"Score: {name}; higher is better.", "dim") for name in names]
