"""A training that is killed with SIGKILL again and again, each time in a process of its own, until it is done.

    python -m tests.kill_loop FOLDER steps     killed before every step of a checkpoint on the disk, one after another
    python -m tests.kill_loop FOLDER any       killed after times that are random python -m tests.kill_loop FOLDER last
    killed before every step on the disk from the last segment on, each time in a copy of its own, FOLDER/1, FOLDER/2
    and so on, where it then goes on

Prints how often it was killed. Processes are forked, so that hundreds of them take seconds.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import tensorboard.summary.writer.event_file_writer  # noqa: F401 - once, and not in every process that is forked
from tests import stub_learner

from trimtab_lab.agents.train import TrainingTask, learn

SIZE = 20_000
"""Numbers that are learned: writing a checkpoint takes most of the time."""
CONFIG = stub_learner.Config(training=stub_learner.Training(segments=12, size=SIZE))


def task(folder: Path) -> TrainingTask:
    return TrainingTask("stub", "tests.stub_learner", CONFIG, 5, folder)


def train(folder: Path) -> None:
    for _ in learn(task(folder)):
        pass


def before_step(number: int) -> Callable[[], None]:
    """Lets this process be killed before the step of this number, of all that change what is on the disk."""
    steps = count(1)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            if next(steps) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return step

    def prepare() -> None:
        os.fsync = counted(os.fsync)
        for name in ("replace", "unlink", "open"):
            setattr(Path, name, counted(getattr(Path, name)))

    return prepare


def at_every_step() -> Iterator[tuple[Callable[[], None], float | None]]:
    """The n-th process dies before its n-th step: later ones come further, and all steps of a segment are met."""
    return ((before_step(number), None) for number in count(1))


def at_random() -> Iterator[tuple[Callable[[], None], float | None]]:
    """Later ones have more time, so that it ends on a busy machine, too."""
    rng = random.Random()
    return ((lambda: None, rng.uniform(0.0, 0.1 * 1.05**number)) for number in count())


def killed(folder: Path, prepare: Callable[[], None], after: float | None) -> bool:
    """Train in a process of its own; whether that was killed before it was done."""
    child = os.fork()
    if not child:
        prepare()
        train(folder)
        os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise SystemExit(f"the training ended with {status}")
    return status != 0


def again_and_again(folder: Path, how: Iterator[tuple[Callable[[], None], float | None]]) -> int:
    """Kill one training until it is done; how often that was."""
    times = 0
    for prepare, after in how:
        if not killed(folder, prepare, after):
            break
        times += 1
    return times


def from_the_last_segment_on(folder: Path) -> int:
    """Kill one training after another once, near its end, and let it end; how many that were."""
    events = learn(task(folder / "begun"))
    for _ in range(CONFIG.training.segments):
        next(events)
    events.close()
    for number in count(1):
        copy = folder / str(number)
        shutil.copytree(folder / "begun", copy)
        if not killed(copy, before_step(number), None):
            shutil.rmtree(copy)
            shutil.rmtree(folder / "begun")
            return number - 1
        assert not killed(copy, lambda: None, None)
    raise AssertionError("a training takes no endless number of steps")


def main() -> None:
    folder = Path(sys.argv[1])
    if sys.argv[2] == "last":
        print(from_the_last_segment_on(folder))
    else:
        print(again_and_again(folder, {"steps": at_every_step, "any": at_random}[sys.argv[2]]()))


if __name__ == "__main__":
    main()
