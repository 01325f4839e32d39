"""Start a training as Trimtab has planned it, in a pod of a job of another kind. Standard library only; Python 3.8 and
later; one file to copy.

    python -m trimtab.launch [--file FILE] [--wait SECONDS] [--optional] -- torchrun train.py ...

The controller writes what a pod's plan says to its launcher into the annotation `trimtab.dev/launch`, a downward API
volume of the pod's template makes a file of that, and here it becomes environment and arguments of the command, which
takes the place of this process:

- `TRIMTAB_*` and torchrun's `PET_*` variables. Whatever is set already stays, but for `TRIMTAB_*`: a kind's own
  controller knows best where rank 0 is. Counts that contradict the plan end it.
- the flags of torchtitan, Megatron-LM or DeepSpeed, behind the last word. A command in which `TRIMTAB_LAUNCH_FLAGS`
  occurs puts them where it wants them: `sh -c 'exec torchrun train.py $TRIMTAB_LAUNCH_FLAGS'`.

Whatever is missing or wrong is told on stderr, and ends the container with 78: trying again would not help. In the pod
of an LLMTrainingJob, which has all that from the beginning, the command is started as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

FILE = "/etc/trimtab/launch.json"
ANNOTATION = "trimtab.dev/launch"
FORMAT = 1
"""Of what the annotation says; the controller writes it, too."""
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.2
LARGEST = 1 << 20
"""Bytes of a file: more than all annotations of an object may have."""
WRONG = 78
"""Exit code (EX_CONFIG of sysexits.h): below 128, so that no controller takes it for a passing failure."""
FLAGS = "TRIMTAB_LAUNCH_FLAGS"
_OURS = re.compile(r"TRIMTAB_[A-Z0-9_]+")
_SETTABLE = re.compile(r"(TRIMTAB|PET)_[A-Z0-9_]+|CUDA_DEVICE_MAX_CONNECTIONS")
"""Who may write annotations must not choose what is loaded into the process (LD_PRELOAD, PYTHONPATH)."""
_COUNTS = {"PET_NNODES": "nodes", "PET_NPROC_PER_NODE": "GPUs of a pod"}
_TORCHRUN = re.compile(r"(.*/)?torchrun|torch\.distributed\.(run|launch)")
_PLACE_OF_RANK_0 = re.compile(r"--(master[-_]addr|rdzv[-_]|standalone)")


class LaunchError(Exception):
    """Why the training cannot be started as it was planned; the message names what is missing."""


class Launch(NamedTuple):
    """What the plan says to the launcher of this pod."""

    environment: Mapping[str, str]
    arguments: Sequence[str]
    files: Mapping[str, str]
    """Files that the arguments name -> the annotation that each has to show."""


# --- the plan ---------------------------------------------------------------------------------------------------------
def await_text(path: str, annotation: str, until: float, clock: Callable[[], float] = time.monotonic) -> bytes:
    """What the file says, once it says something. Raises LaunchError when it does not at `until`, by the clock."""
    shown = f"{path}, which shows the annotation {annotation} of the pod,"
    while True:
        try:
            with open(path, "rb") as file:
                text = file.read(LARGEST + 1)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(path) or "."):
                raise LaunchError(f"{shown} is not there: its directory is no volume of the container") from None
            problem = f"{shown} is not there: the downwardAPI volume has to have an item of that path"
        except OSError as error:
            raise LaunchError(f"{shown} cannot be read: {error.strerror}") from error
        else:
            if len(text) > LARGEST:
                raise LaunchError(f"{shown} has more than {LARGEST} bytes")
            if text.strip():
                return text
            problem = f"{shown} is empty: Trimtab has no plan for this pod"
        if clock() >= until:
            raise LaunchError(problem)
        time.sleep(POLL_SECONDS)


def read(text: bytes, path: str) -> Launch:
    """What a file says. Raises LaunchError naming the field that is not as it has to be."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LaunchError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise LaunchError(f"{path} has to be an object, and is {_shown(found)}")
    if found.get("format") != FORMAT:
        said = f"format is {_shown(found.get('format'))}, and this trimtab.launch reads {FORMAT}"
        raise LaunchError(f"{path}: {said}: copy the one of the controller's version into the image")
    environment = _texts(found, "environment", path)
    for name in environment:
        if not _SETTABLE.fullmatch(name):
            raise LaunchError(f"{path}: environment.{name} is none of the variables that a plan sets")
    arguments = found.get("arguments")
    if not isinstance(arguments, list):
        raise LaunchError(f"{path}: arguments has to be a list, and is {_shown(arguments)}")
    words = [_text(word, f"{path}: arguments[{index}]") for index, word in enumerate(arguments)]
    return Launch(environment, words, _texts(found, "files", path))


def _texts(found: Mapping[str, Any], field: str, path: str) -> dict[str, str]:
    values = found.get(field)
    if not isinstance(values, dict):
        raise LaunchError(f"{path}: {field} has to be an object, and is {_shown(values)}")
    return {_text(key, f"{path}: {field}"): _text(value, f"{path}: {field}.{key}") for key, value in values.items()}


def _text(value: object, where: str) -> str:
    """What can be handed to a process."""
    if isinstance(value, str) and "\0" not in value:
        try:
            os.fsencode(value)
        except ValueError:
            pass
        else:
            return value
    raise LaunchError(f"{where} has to be a text, and is {_shown(value)}")


def _shown(value: object) -> str:
    return "missing" if value is None else ascii(value)[:80]


# --- the command ------------------------------------------------------------------------------------------------------
def environment(plan: Launch, around: Mapping[str, str]) -> dict[str, str]:
    """The environment of the training; `around` is that of the container.

    Raises LaunchError where the container says other counts than the plan.
    """
    for name, what in _COUNTS.items():
        planned, there = plan.environment.get(name, ""), around.get(name, "")
        if planned and there.isdecimal() and int(there) != int(planned or 0):
            raise LaunchError(f"{name} of the container is {there}, and the plan is for {planned} {what}")
    found = dict(around)
    for part in ("ADDR", "PORT"):  # what some controllers say to their pods, and torchrun does not read
        if around.get(f"MASTER_{part}"):
            found.setdefault(f"PET_MASTER_{part}", around[f"MASTER_{part}"])
    for name, value in plan.environment.items():
        if _OURS.fullmatch(name):
            found[name] = value
        else:
            found.setdefault(name, value)
    return found


def command(plan: Launch, words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The words of the training. Raises LaunchError where torchrun would not find rank 0, and wait for it in vain."""
    several = env.get("PET_NNODES", "1") != "1"
    by_torchrun = any(_TORCHRUN.fullmatch(word) for word in words)
    if several and by_torchrun and "PET_MASTER_ADDR" not in env and not any(map(_PLACE_OF_RANK_0.match, words)):
        raise LaunchError(
            f"the gang has {env['PET_NNODES']} nodes, and nothing says where its rank 0 can be reached: "
            "name a headless Service in subdomain of the pods' template, or set PET_MASTER_ADDR"
        )
    placed = any(FLAGS in word for word in words)
    return [*words, *(() if placed else plan.arguments)]


def planned(path: str, wait: float) -> Launch:
    """The plan of this pod, and its files are there. Raises LaunchError."""
    until = time.monotonic() + wait
    plan = read(await_text(path, ANNOTATION, until), path)
    for file, annotation in plan.files.items():
        await_text(file, annotation, until)
    return plan


# --- the process ------------------------------------------------------------------------------------------------------
def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Become the command that is given behind `--`."""
    given = list(sys.argv[1:] if argv is None else argv)
    at = given.index("--") if "--" in given else len(given)
    options, words = _options(given[:at]), given[at + 1 :]
    env: Mapping[str, str] = os.environ
    try:
        if not words:
            raise LaunchError("the command is missing: python -m trimtab.launch -- torchrun train.py")
        if FLAGS not in env or os.path.exists(options.file):
            words, env = _prepared(options, words, env)
    except LaunchError as error:
        _say(str(error))
        sys.exit(WRONG)
    sys.stdout.flush()
    try:
        os.execvpe(words[0], words, env)  # noqa: S606 - the user's own command, as the container would have started it
    except OSError as error:
        _say(f"{words[0]} cannot be started: {error.strerror}")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def _prepared(
    options: argparse.Namespace, words: list[str], around: Mapping[str, str]
) -> tuple[list[str], Mapping[str, str]]:
    """Command and environment."""
    try:
        plan = planned(options.file, options.wait)
    except LaunchError as error:
        if not options.optional:
            raise
        _say(f"started without a plan: {error}")
        return words, around
    env = environment(plan, around)
    found = command(plan, words, env)
    told = {name: env.get(f"PET_{name}", "?") for name in ("NODE_RANK", "NNODES", "NPROC_PER_NODE")}
    _say("rank {NODE_RANK} of {NNODES}, with {NPROC_PER_NODE} GPUs".format(**told), *plan.arguments)
    return found, env


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m trimtab.launch", usage="%(prog)s [options] -- COMMAND ...")
    parser.add_argument("--file", default=FILE, help=f"what shows the annotation {ANNOTATION} [%(default)s]")
    parser.add_argument("--wait", type=float, default=WAIT_SECONDS, help="seconds until it has to say something")
    parser.add_argument("--optional", action="store_true", help="start the command as it is where there is no plan")
    return parser.parse_args(words)


def _say(*words: str) -> None:
    said = " ".join(words)
    print("trimtab.launch:", "".join(each if each.isprintable() else "?" for each in said), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
