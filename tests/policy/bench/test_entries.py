"""`bench.yaml` says how every published number is made, and what it says can be carried out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab_lab import bench
from trimtab_lab.agents import recipe
from trimtab_lab.bench import BenchEntry, BenchError
from trimtab_policy.learned import store

ENTRIES = bench.entries()
SOUND = "fine: {about: Some numbers., module: cluster, seeds: [1], arguments: {ARGUMENTS}}"
ARGUMENTS = "cluster: c, loads: [1], windows: 3, window_jobs: 5, agents: [], baselines: [fcfs], references: [fcfs]"


def checked(text: str) -> dict[str, BenchEntry]:
    """Entries of that text, whose modules take their arguments. Raises BenchError."""
    found = bench.entries(text)
    for name, entry in found.items():
        bench.check(name, entry)
    return found


def parses(command: str) -> bool:
    """Whether the command line knows the command and all of its options."""
    program, *words = shlex.split(command)
    return program == "trimtab" and CliRunner().invoke(app, [*words, "--help"]).exit_code == 0


@pytest.mark.parametrize("name", ENTRIES)
def test_commands_that_trained_the_weights_can_be_carried_out(name: str) -> None:
    for command in ENTRIES[name].trained_by:
        assert parses(command)
        _, train, agent, *options = shlex.split(command)
        config = options[options.index("--config") + 1] if "--config" in options else recipe.DEFAULT_TASK
        assert train == "train"
        assert config in recipe.tasks(agent)


@pytest.mark.parametrize("agent", recipe.agents())
def test_the_weights_of_the_package_are_what_the_commands_on_record_make(agent: str) -> None:
    """The same configuration and seeds; another commit may learn something else from them."""
    card = store.read_card(agent)
    told = {command for entry in ENTRIES.values() for command in entry.trained_by}
    [command] = [each for each in told if f"train {agent} " in each and f"--config {card.task} " in each]
    assert command == f"trimtab train {agent} --config {card.task} --seeds {','.join(map(str, sorted(card.seeds)))}"
    assert card.config == msgspec.json.decode(msgspec.json.encode(recipe.read_recipe(agent, card.task)))


@pytest.mark.parametrize("name", ENTRIES)
def test_modules_take_the_arguments_of_entries(name: str) -> None:
    bench.check(name, ENTRIES[name])
    bench.check(name, ENTRIES[name].quickly)


@pytest.mark.parametrize("command", ["trimtab trian sarsa", "trimtab evaluate --sedes 1", "rm -r x"])
def test_a_command_that_is_none_would_be_noticed(command: str) -> None:
    assert not parses(command)


def test_there_is_an_entry_for_every_module() -> None:
    here = Path(bench.__file__).parent
    modules = {path.stem for path in here.glob("*.py")} - {"__init__", "report", "results", "page"}
    assert {entry.module for entry in ENTRIES.values()} == modules


def test_the_file_is_read_as_it_stands() -> None:
    found = checked(SOUND.replace("ARGUMENTS", ARGUMENTS))
    assert found["fine"].arguments["windows"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("module: cluster", "module: clutser"), "Invalid enum value 'clutser'.*fine|`\\$\\[...\\].module`"),
        (("seeds: [1]", "seeds: [1, 1]"), "seeds must be different numbers"),
        (("seeds: [1]", "seeds: one"), r"Expected `array`.*seeds"),
        (("about: Some numbers.", "about: ' '"), "about must say"),
        (("windows: 3", "widnows: 3"), r"bench.yaml: fine.arguments: trimtab_lab.bench.cluster has .*'?win?d"),
        (("seeds: [1]", "seeds: [1], colour: red"), "colour"),
        (("{about", "{{about"), "bench.yaml: while "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(change: tuple[str, str], message: str) -> None:
    text = SOUND.replace("ARGUMENTS", ARGUMENTS).replace(*change)
    with pytest.raises(BenchError) as error:
        checked(text)
    assert re.search(message, str(error.value))
    assert "\n" not in str(error.value)


def test_a_quick_entry_has_other_arguments_and_seeds_and_is_else_the_same() -> None:
    entry = BenchEntry(
        "Numbers.", "cluster", (1, 2), {"a": 1, "b": 2}, ("trimtab train x",), bench.Quick((3,), {"b": 0})
    )  # fmt: skip
    assert entry.quickly == BenchEntry("Numbers.", "cluster", (3,), {"a": 1, "b": 0}, ("trimtab train x",))
