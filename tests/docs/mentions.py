"""Commands within sentences: whether they exist as they are written, and what the complete ones do on a real cluster.

    python -m tests.docs.mentions       # runs them where the kubeconfig points to; exit code 1 when one fails

What is written in capitals (`trimtab explain JOB`) is filled in with what README's way has by its end. What reads is
run as it stands, what writes in kubectl with `--dry-run=server`; what writes in other programs is only understood.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import typer
import yaml
from tests.docs.pages import PAGES, ROOT, mentions
from typer.exceptions import TyperException
from typer.main import get_command

from trimtab.cli import app

END: Final = frozenset({"|", "||", "&&", ";", ">", "#"})
SAMPLE: Final = str(ROOT / "manifests" / "samples" / "llama3-8b.yaml")
MEANT: Final = {
    ("-f", "FILE"): SAMPLE,
    ("-f", "JOB"): SAMPLE,
    ("--snapshot", "DUMP"): "/tmp/now.json",
    ("--policy", "NAME"): "best_fit",
    ("--only", "NAME"): "rudder",
    ("train", "AGENT"): "q_learning",
    ("explain", "JOB"): "llama3-8b",
    ("--roles-for", "USER"): "ann",
    ("token", "NAME"): "default",
    ("node", "NAME"): "h100-0",
    ("gpunode", "NAME"): "h100-0",
}
"""What stands for the words in capitals, by the word before."""
READING: Final = frozenset(
    {"convert", "doctor", "explain", "get", "plan", "policies", "queue", "snapshot", "version", "whatif"}
)
"""Commands of `trimtab` that change nothing, and end by themselves but for --watch."""
WRITING: Final = frozenset({"annotate", "apply", "cordon", "delete", "drain", "label", "taint"})
"""Verbs of kubectl that know `--dry-run=server`."""
HACK_READING: Final = [["--help"], ["-h"], ["notes"]]
"""What programs of hack/ print, and do nothing else."""
PRELOADED: Final = (
    "trimtab.controller.app",
    "trimtab.commands.live",
    "trimtab.commands.planning",
    "trimtab.doctor.examine",
)
"""What these commands import late; forks have it from the beginning."""
NOT_RUN: Final = {
    "trimtab get jobs --watch": "runs until Ctrl-C; docs/tasks/terminal.md has it run",
    "kubectl -n trimtab-system logs deployment/trimtab-controller": "fake pods have no log; tests/kind reads real ones",
    "kubectl -n trimtab-system logs deployment/trimtab-controller --tail=50": "the same",
    "kubectl -n trimtab-system logs deployment/trimtab-extender": "the same",
    "kubectl -n trimtab-system logs trimtab-test-doctor": "the same",
    "kubectl -n trimtab-system delete configmap trimtab-calibration": "is there only once a job has taught something",
    "kubectl auth can-i watch pods -A --as system:serviceaccount:trimtab-system:trimtab-extender": "no extender there",
    "kubectl label pytorchjob pretrain trimtab.dev/advise=true": "Kubeflow is not there; tests/live has it",
    "kubectl label vcjob pretrain trimtab.dev/advise=true": "Volcano is not there",
    "kubectl get --watch": "named without its object",
    "kubectl describe pod": "named without its object",
    "kubectl apply -f": "named without its file",
    "kubectl apply -f -": "named without what is piped into it",
    "kubectl apply --server-side -f -": "named without what is piped into it",
}
"""Of mentions that are no bare name of a command, those that nothing runs, each with the reason."""


def words_of(command: str) -> list[str]:
    """The words up to a pipe, a remark or a redirection."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # a command that a sentence shortens within quotes
        words = command.split()
    stop = next((index for index, word in enumerate(words) if word in END or word.startswith((">", "2>"))), len(words))
    return words[:stop]


def filled(mention: str) -> str:
    """With what the words in capitals stand for."""
    for (before, word), meant in MEANT.items():
        mention = re.sub(rf"(?<!\S){before} {word}\b", f"{before} {meant}", mention)
    return mention


@cache
def root() -> Any:
    return get_command(app)


def parse(words: list[str]) -> tuple[str, bool]:
    """Why `trimtab` would not understand the words, empty where it would; and whether nothing is left out.

    A sentence may leave arguments out, and so name a command: `trimtab explain`, `trimtab submit ... -- COMMAND`."""
    shortened = "..." in words
    rest = [each for each in words[1:] if each != "..."]
    command, context = root(), typer.Context(root(), info_name="trimtab")
    try:
        while hasattr(command, "commands"):
            if not rest or rest[0].startswith("-"):
                return unknown(command, rest), False
            name, rest = rest[0], rest[1:]
            inner = command.get_command(context, name)
            if inner is None:
                return f"there is no `{context.command_path} {name}`", False
            command, context = inner, typer.Context(inner, parent=context, info_name=name)
        with redirect_stdout(io.StringIO()):
            command.make_context(context.info_name, list(rest), parent=context.parent)
    except typer.Exit:  # --help has been printed
        return "", True
    except typer.BadParameter as error:
        return (str(error), False) if error.message else (unknown(command, rest), False)  # one is missing
    except TyperException as error:
        return str(error), False
    return "", not shortened


def unknown(command: Any, words: list[str]) -> str:
    """Options that a command does not have."""
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    known |= {"--help", "-h", "--version", "--install-completion", "--show-completion"}
    until = words.index("--") if "--" in words else len(words)
    asked = {word.partition("=")[0] for word in words[:until] if re.match(r"--?[A-Za-z]", word)}
    return f"no such option: {', '.join(sorted(asked - known))}" if asked - known else ""


def values(words: list[str]) -> list[str]:
    """Keys of --set that the chart does not have; what stands below `settings` is the settings' own."""
    known = yaml.safe_load((ROOT / "charts/trimtab/values.yaml").read_text())
    wrong = []
    for before, word in pairwise(words):
        place: Any = known
        path = word.partition("=")[0].split(".") if before == "--set" else []
        for key in path if path[:1] != ["settings"] else []:
            if not isinstance(place, dict) or key not in place:
                wrong.append(word)
                break
            place = place[key]
    return wrong


def missing(words: list[str]) -> list[str]:
    """Files of the checkout that are not there."""
    named = [word for word in words if re.match(r"(?:\./)?(?:hack|manifests|charts)/[\w./-]+$", word)]
    return [word for word in named if not (ROOT / word).exists()]


def unheard(words: list[str]) -> list[str]:
    """Long options and subcommands that the text of a program of hack/ does not know; pytest's are not ours to know."""
    program = ROOT / words[0]
    if not program.is_file():
        return []
    text = program.read_text()
    if program.name == "slow":  # what follows is another command
        return unheard(words[2:])
    for module in re.findall(r"-m ((?:hack|tests)\.[\w.]+)", text):
        path = ROOT / module.replace(".", "/")
        files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
        text += "".join(file.read_text() for file in files)
    said = [word.partition("=")[0] for word in words[1:] if re.match(r"(--)?[a-z]", word)]
    if program.name == "test":
        said = [word for word in said if word.startswith("--")]
    return [word for word in said if word not in text]


def wrong(mention: str) -> Iterator[str]:
    """What does not exist of that which a command names."""
    words = words_of(filled(mention))
    yield from (f"there is no {name}" for name in missing(words))
    if words[0] == "trimtab" and (why := parse(words)[0]):
        yield why
    if words[0] == "helm":
        yield from (f"the chart has no {word}" for word in values(words))
    if words[0].removeprefix("./").startswith("hack/"):
        yield from (f"{words[0]} does not know {word}" for word in unheard(words))


def runnable(mention: str) -> str:
    """A mention that can be run as a command of its own and changes nothing, as a shell takes it; empty for others."""
    line = filled(mention)
    words = words_of(line)
    if mention in NOT_RUN:
        return ""
    if words[0] == "trimtab":
        return line if words[1] in READING and parse(words)[1] else ""
    if words[0] == "kubectl" and len(words) > 2:
        return f"{line} --dry-run=server" if WRITING & {*words} else line
    return line if words[1:] in HACK_READING else ""


def run(line: str) -> tuple[int, str]:
    """Exit code of a command, and what it printed; those of `trimtab` run in a fork of this process."""
    words = words_of(line)
    if words[0] != "trimtab":
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, cwd=ROOT)
        return done.returncode, done.stdout + done.stderr
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        sys.argv = words
        root()()
        os._exit(0)  # it never gets here
    os.close(writing)
    with open(reading, errors="replace") as said:
        text = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def main() -> None:
    """Run them all."""
    for module in PRELOADED:
        import_module(module)
    every = {line: mention for text in PAGES.values() for mention in mentions(text) if (line := runnable(mention))}
    failed = 0
    for line, mention in sorted(every.items()):
        code, said = run(line)
        failed += code != 0
        print(f"FAILED with {code}: {mention}\n{said[-1500:]}" if code else f"well: {mention}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
