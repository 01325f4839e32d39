"""`hack/fuzz`: targets in turn, each in a process of its own, guided by coverage (atheris) where that can be had.

What it learns stays in `.fuzz/corpus/TARGET`, and the next run goes on from there. An input that fails is kept in
`.fuzz/crashes/TARGET`, and the run of that target ends with how to look at it and how to make a test of it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import random
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import target

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".fuzz"
ROUNDS = "rounds"
HUNG = 120
"""Seconds of the wall clock after which an input is held to run for ever."""
KEPT_INPUTS, KEPT_BYTES = 160, 24 << 10
"""Of a target at most, in the repository: what covers most in fewest bytes."""
_STATE = re.compile(r"^#(\d+)\s+(\S+)\s+cov: (\d+).*?exec/s: (\d+)", re.MULTILINE)
_LAST = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


class Outcome(NamedTuple):
    """What came of one target."""

    name: str
    executions: int
    seconds: float
    crash: str = ""
    """The file with the input; a text where there is none."""

    def line(self) -> str:
        """For people."""
        rate = self.executions / self.seconds if self.seconds else 0.0
        return f"{self.name:<12} {self.executions:>11,} executions  {rate:>8,.0f}/s  {self.crash or 'no crash'}"


def main() -> int:
    """Run what was asked for; 1 where something was found, 130 after Ctrl-C."""
    asked = _arguments()
    os.chdir(ROOT)
    if asked.child:
        return _child(asked)
    if asked.show:
        return _show(asked.targets[0], asked.show)
    if asked.keep:
        data = asked.keep.read_bytes()
        target.keep(asked.targets[0], [data], remark=asked.remark or "found by hack/fuzz")
        print(f"kept in {target.CORPUS.relative_to(ROOT)}/{asked.targets[0]}.txt: tests/fuzz runs it from now on")
        return 0
    outcomes: list[Outcome] = []
    try:
        for name in asked.targets or (*target.NAMES, ROUNDS):
            outcomes.append(_rounds(asked) if name == ROUNDS else _fuzz(name, asked))
    except KeyboardInterrupt:
        print("\nstopped; what was learned is kept", file=sys.stderr)
    for outcome in outcomes:
        print(outcome.line())
    if len(outcomes) < len(asked.targets or target.NAMES):
        return 130
    return int(any(outcome.crash for outcome in outcomes))


def _arguments() -> argparse.Namespace:
    about = "\n".join(f"  {name:<12} {target.load(name).about}" for name in target.NAMES) if "-h" in sys.argv else ""
    parser = argparse.ArgumentParser(
        prog="hack/fuzz", description=__doc__, epilog=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", choices=[*target.NAMES, ROUNDS, []], metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=0, help="of each target (one hour, if --runs is not given)")
    parser.add_argument("--runs", type=int, default=0, help="executions of each target at most")
    parser.add_argument("--unguided", action="store_true", help="without coverage: several times as many executions")
    parser.add_argument("--minimise", action="store_true", help="write what covers most into the kept corpus, too")
    parser.add_argument("--show", type=Path, metavar="FILE", help="feed this input to TARGET and show what fails")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="make this input of TARGET a test")
    parser.add_argument("--remark", help="with --keep: what it was")
    parser.add_argument("--child", choices=["fuzz", "merge", "inner"], help=argparse.SUPPRESS)
    asked, asked.inner = parser.parse_known_args()
    if asked.inner and asked.child != "inner":
        parser.error(f"unknown: {' '.join(asked.inner)}")
    asked.seconds = asked.seconds or (0 if asked.runs else 3600)
    if (asked.keep or asked.show) and len(asked.targets) != 1:
        parser.error("name the one TARGET that the file is an input of")
    return asked


# --- one target, from outside ----------------------------------------------------------------------------------------
def _fuzz(name: str, asked: argparse.Namespace) -> Outcome:
    corpus = WORK / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for data in (*target.kept(name), *_seeds(name)):
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    limits = ["--runs", str(asked.runs), "--seconds", str(asked.seconds), *(["--unguided"] if asked.unguided else [])]
    begun = time.monotonic()
    executions = 0
    with subprocess.Popen(_command(name, "fuzz", *limits), stderr=subprocess.PIPE, text=True) as child:
        said: list[str] = []
        try:
            executions = _follow(name, child, begun, said)
        except KeyboardInterrupt:
            child.send_signal(signal.SIGTERM)
            raise
    seconds = time.monotonic() - begun
    crash = _crash(name, said) if child.returncode else ""
    if not crash and _guided() and not asked.unguided:
        _minimise(name, corpus, kept=asked.minimise)
    return Outcome(name, executions, seconds, crash)


def _command(name: str, what: str, *more: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "tests.fuzz", name, "--child", what, *more]


def _follow(name: str, child: subprocess.Popen[str], begun: float, said: list[str]) -> int:
    """Show how far it is, in one line; returns the number of executions."""
    executions, shown = 0, 0.0
    for line in child.stderr or ():
        said.append(line)
        del said[:-400]
        if found := _STATE.search(line):
            executions = int(found[1])
            if time.monotonic() - shown > 1 and sys.stderr.isatty():
                shown = time.monotonic()
                told = f"{executions:,} executions, {int(found[4]):,}/s, coverage {found[3]}, {shown - begun:.0f} s"
                print(f"\r\x1b[K{name}: {told}", end="", file=sys.stderr, flush=True)
        elif found := _LAST.search(line):
            executions = int(found[1])
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return executions


def _crash(name: str, said: list[str]) -> str:
    """Say what has failed, and what to do; returns the input's file."""
    text = "".join(said)
    found = re.search(r"Test unit written to (\S+)", text)
    print("".join(said[-60:]), file=sys.stderr)
    if not found:
        return "failed without an input: see above"
    path = Path(found[1])
    print(
        f"{name} fails on {path}\n"
        f"  look at it     hack/fuzz {name} --show {path}\n"
        f"  make it a test hack/fuzz {name} --keep {path} --remark 'WHAT IT WAS'",
        file=sys.stderr,
    )
    return str(path)


def _minimise(name: str, corpus: Path, *, kept: bool) -> None:
    """Of the inputs leave those without which something would not be covered."""
    least = WORK / "least" / name
    least.mkdir(parents=True, exist_ok=True)
    for old in least.iterdir():
        old.unlink()
    merged = subprocess.run(_command(name, "merge"), capture_output=True, text=True, check=False)
    found = sorted((path.read_bytes() for path in least.iterdir()), key=len)
    if merged.returncode or not found:
        return
    for path in corpus.iterdir():
        path.unlink()
    for data in found:
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    if kept:
        target.keep(name, [*_fitting(found), *_seeds(name)[: max(0, 16 - len(found))]])


def _seeds(name: str) -> list[bytes]:
    """What to begin with: what libFuzzer would is short, and reaches little of what is drawn."""
    chance = random.Random(name)
    return [chance.randbytes(chance.choice((30, 200, 600))) for _ in range(64)]


def _fitting(found: list[bytes]) -> Iterator[bytes]:
    """As many as may be kept, from all sizes alike."""
    step = max(1, -(-len(found) // KEPT_INPUTS))
    size = 0
    for data in found[::step]:
        if (size := size + len(data)) > KEPT_BYTES:
            return
        yield data


def _show(name: str, path: Path) -> int:
    data = path.read_bytes()
    print(f"{name}: {len(data)} bytes, {data[:200]!r}")
    try:
        target.execute(target.load(name), data)
    except Exception:  # noqa: BLE001 - whatever it is, it is shown
        traceback.print_exc()
        return 1
    print("nothing fails")
    return 0


def _rounds(asked: argparse.Namespace) -> Outcome:
    """Histories of rounds, by hypothesis: each is an execution. With seconds only, one after another."""
    most, begun, done = asked.runs or 1 << 60, time.monotonic(), 0
    while done < most and (not asked.seconds or time.monotonic() - begun < asked.seconds):
        histories = min(1000, most - done)
        environment = os.environ | {"TRIMTAB_HISTORIES": str(histories)}
        path = "tests/controller/test_histories.py"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=0", path]
        if subprocess.run(command, env=environment, check=False, cwd=ROOT).returncode:
            return Outcome(ROUNDS, done, time.monotonic() - begun, "see above: hypothesis has it in .hypothesis")
        done += histories
    return Outcome(ROUNDS, done, time.monotonic() - begun)


# --- and from inside -------------------------------------------------------------------------------------------------
def _guided() -> bool:
    return importlib.util.find_spec("atheris") is not None


def _child(asked: argparse.Namespace) -> int:
    name = asked.targets[0]
    if asked.unguided or not _guided():
        return _unguided(name, asked)
    import atheris

    with atheris.instrument_imports(include=["trimtab", "trimtab_policy"], enable_loader_override=False):
        found = target.load(name)
    corpus, crashes, least = (WORK / part / name for part in ("corpus", "crashes", "least"))
    crashes.mkdir(parents=True, exist_ok=True)
    options = ["-print_final_stats=1", f"-timeout={HUNG}", f"-max_len={target.LONGEST}", f"-artifact_prefix={crashes}/"]
    options += ["-rss_limit_mb=4096", "-len_control=0"]
    if asked.child == "merge":
        options += ["-merge=1", str(least), str(corpus)]
    elif asked.child == "inner":
        options = asked.inner
    else:
        options += [f"-runs={asked.runs or -1}", f"-max_total_time={asked.seconds}", str(corpus)]
    atheris.Setup([str(_itself(name)), *options], lambda data: target.execute(found, data))
    atheris.Fuzz()
    return 0


def _itself(name: str) -> Path:
    """A program that takes libFuzzer's options: it starts itself anew to merge."""
    path = WORK / f"{name}.sh"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore -m tests.fuzz {name} --child inner "$@"\n')
    path.chmod(0o755)
    return path


def _unguided(name: str, asked: argparse.Namespace) -> int:
    """Inputs that are kept, mutated without knowing what they reach: without atheris, or as many as can be."""
    found, begun, done = target.load(name), time.monotonic(), 0
    inputs = [*target.kept(name), *(path.read_bytes() for path in sorted((WORK / "corpus" / name).glob("*")))]
    chance = random.Random()
    while not asked.runs or done < asked.runs:
        data = _mutated(inputs, chance)
        try:
            target.execute(found, data)
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            traceback.print_exc()
            print(f"Test unit written to {_written(name, data)}", file=sys.stderr)
            return 1
        done += 1
        if done % 1000 == 0 or done == asked.runs:
            seconds = time.monotonic() - begun
            print(f"#{done} pulse cov: 0 exec/s: {done / seconds:.0f}", file=sys.stderr, flush=True)
            if asked.seconds and seconds > asked.seconds:
                break
    return 0


def _mutated(inputs: list[bytes], chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return chance.randbytes(chance.choice((10, 60, 200, 600)))
    data = bytearray(chance.choice(inputs))
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 2:
                del data[at : at + chance.randrange(1, 9)]
            case 3:
                data[at:] = chance.choice(inputs)[at:]
    return bytes(data[: target.LONGEST])


def _written(name: str, data: bytes) -> Path:
    folder = WORK / "crashes" / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"crash-{hashlib.sha1(data).hexdigest()}"
    path.write_bytes(data)
    return path


if __name__ == "__main__":
    sys.exit(main())
