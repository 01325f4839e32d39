"""`trimtab train`: agents learn in the simulator, seed by seed; the weights of the best seed are kept.

Everything lands in one folder: weights with their card, a picture of the learning curves, and for each seed its
checkpoint, figures and TensorBoard events. The same command goes on where it was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from trimtab.commands import simulation
from trimtab.commands.options import OutputOption, reported
from trimtab.errors import TrimtabError, UsageError
from trimtab.printable import say
from trimtab.ui import output
from trimtab.ui.form import Output
from trimtab.ui.interrupts import interruptible
from trimtab.ui.output import spaced
from trimtab.ui.terminal import Text
from trimtab_lab.agents import recipe
from trimtab_lab.commands.runs import EXIT_INTERRUPTED
from trimtab_lab.ui import training as ui

if TYPE_CHECKING:
    from trimtab_lab.agents.seeds import Work
    from trimtab_lab.agents.train import TrainedAgent, TrainingTask
    from trimtab_policy.learned.store import ModelCard


@reported()
def train(
    agent: Annotated[str, typer.Argument(help=f"Who learns: {', '.join(recipe.agents())}.", metavar="AGENT")],
    config: Annotated[
        str | None,
        typer.Option(
            help="Task whose configuration comes with Trimtab, or a YAML file; by default offers, where there is one.",
            metavar="TASK|FILE",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", "--seed", help="Seeds to train, with commas between.")] = "0",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for everything; by default trimtab-training/AGENT-TASK.", show_default=False),
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Train seeds at once on a Ray cluster: its address, or local.")
    ] = None,
    form: OutputOption = Output.TABLE,
) -> None:
    """Train an agent in the simulator; keep the weights of the seed with the best validation score.

    Stopped with Ctrl-C or killed, the same command goes on from the last checkpoint, to the same weights.

    Examples: trimtab train q_learning

    trimtab train dqn_cnn --config adlro --seeds 0,1,2 --out trained

    trimtab train sac_imitation --config mine.yaml --seeds 0,1,2,3 --ray local

    tensorboard --logdir trimtab-training
    """
    wanted, chosen = _seeds(seeds), config or recipe.default_task(agent)
    folder = out or Path("trimtab-training") / f"{agent}-{Path(chosen).stem}"
    with _packages(), _input_errors():
        tasks = _tasks(agent, chosen, wanted, folder)
        trained = _carried_out(tasks, _work(ray), folder)
        best = max(trained, key=lambda each: each.card.score)
        card = _write(trained, best, folder)
    _tell(form, trained, best, card, folder)


def _seeds(text: str) -> list[int]:
    """Raises UsageError."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise UsageError(f"--seeds: {text!r}: write whole numbers with commas between, such as 0,1,2")
    return list(dict.fromkeys(map(int, parts)))


def _tasks(agent: str, config: str, seeds: Sequence[int], folder: Path) -> list[TrainingTask]:
    """Whatever is wrong with what was typed is said here, before anything is trained."""
    from trimtab_lab.agents import train as training

    for package in ("matplotlib", "tensorboard"):  # better missed now than after hours of training
        import_module(package)

    return [training.task(agent, config, seed, folder / f"seed-{seed}") for seed in seeds]


def _work(ray: str | None) -> Work:
    from trimtab_lab.agents import seeds

    return seeds.ray_cluster(ray) if ray else seeds.one_by_one


def _carried_out(tasks: Sequence[TrainingTask], work: Work, folder: Path) -> list[TrainedAgent]:
    """In the order of the tasks. Ends the program with 130 when it is interrupted; checkpoints stay."""
    from trimtab_lab.agents.train import TrainedAgent

    found: dict[int, TrainedAgent] = {}
    try:
        with interruptible(), ui.watched([task.seed for task in tasks]) as show, closing(work(tasks)) as events:
            for event in events:
                if isinstance(event, TrainedAgent):
                    found[event.seed] = event
                else:
                    show(event)
    except KeyboardInterrupt:
        say(f"\ntrimtab: stopped; checkpoints are in {folder}: the same command goes on from there", error=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    return [found[task.seed] for task in tasks]


def _write(trained: Sequence[TrainedAgent], best: TrainedAgent, folder: Path) -> ModelCard:
    """The weights that were chosen, which say so, and the curves of all."""
    from trimtab_policy.learned import store

    others = tuple(each.seed for each in trained if each is not best)
    card = replace(best.card, seeds=(best.seed, *others))
    folder.mkdir(parents=True, exist_ok=True)  # where seeds were trained on other machines, it is not there yet
    card = store.save(folder / f"{card.agent}.safetensors", best.weights, card)
    runs = {each.seed: each.rows for each in trained}
    ui.curves(folder / "curves.png", f"{card.agent} learns {card.task}", runs, best.seed)
    return card


def _tell(form: Output, trained: Sequence[TrainedAgent], best: TrainedAgent, card: ModelCard, folder: Path) -> None:
    notes = [
        Text(f"Score: {card.score_name}; the weights of the best seed, {best.seed}, were kept.", "dim"),
        Text(f"In {folder}: {card.agent}.safetensors, {card.agent}.json, curves.png; seed-*/ holds the rest.", "dim"),
    ]
    seeds = [_as_json(each) for each in trained]
    told = {"card": card, "weights": str(folder / f"{card.agent}.safetensors"), "best": best.seed, "seeds": seeds}
    output.show(form, told, spaced([ui.table(trained, best), *notes]))


def _as_json(each: TrainedAgent) -> dict[str, Any]:
    figures = {"seed": each.seed, "score": each.card.score, "best_segment": each.best_segment}
    return figures | {"segments": len(each.rows), "last": each.rows[-1]}


@contextmanager
def _packages() -> Iterator[None]:
    """Say how to install what only training needs."""
    try:
        yield
    except ImportError as error:
        extras = "ray" if error.name == "ray" else "sim,train"
        raise UsageError(f"this needs {error.name}: pip install 'trimtab[{extras}]' ({error})") from error


@contextmanager
def _input_errors() -> Iterator[None]:
    """Raises TrimtabError for a training that went wrong, UsageError for anything wrong with what was typed."""
    with _packages():
        from trimtab_lab.agents.train import TrainingError

    try:
        yield
    except TrainingError as error:
        raise TrimtabError(simulation.cause(error)) from error
    except ConnectionError as error:
        raise UsageError(f"--ray: {error}") from error
    except OSError as error:
        raise UsageError(f"--out: {simulation.cause(error)}") from error
    except ValueError as error:
        raise UsageError(simulation.cause(error)) from error
