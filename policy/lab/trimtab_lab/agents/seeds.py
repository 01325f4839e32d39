"""Where seeds are trained: on this machine one after the other, or on the machines of a Ray cluster, one thread each.

A training is a function of its task: weights are the same bit for bit on all machines of one kind. What it tells comes
as it goes; who takes it can stop at any time, and the last checkpoint stays.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from threading import Thread

from trimtab_lab.agents.train import Events, TrainedAgent, TrainingError, TrainingStep, TrainingTask, learn
from trimtab_lab.processes import connected, one_thread

Work = Callable[[Sequence[TrainingTask]], Events]
"""Carries out trainings and yields what `learn` does; those of several seeds may be mixed. Closed, it stops them."""


def one_by_one(tasks: Sequence[TrainingTask]) -> Events:
    """Each in a process of its own, which ends with this one, or when nobody takes what it tells any more.

    Raises as `learn` does, and TrainingError when a process dies.
    """
    context = multiprocessing.get_context("spawn")
    for task in tasks:
        told, tell = context.Pipe(duplex=False)
        process = context.Process(target=_tell, args=(task, tell), daemon=True)
        with one_thread():
            process.start()
        tell.close()  # now only the process holds it: its end is the end of what can be read
        try:
            yield from _read(told)
            process.join()
        finally:
            process.terminate()
            process.join()
        if process.exitcode:
            raise TrainingError(f"the process that trained seed {task.seed} died ({process.exitcode}); see above")


def ray_cluster(address: str) -> Work:
    """All at once on a Ray cluster: `local` starts one on this machine, for as long as the work takes.

    Folders of tasks are on the machine that trains; a training goes on from its checkpoint where they are shared.
    Raises ImportError without Ray.
    """
    import ray  # a quarter of a gigabyte: only for those who ask for it

    def work(tasks: Sequence[TrainingTask]) -> Events:
        with connected(ray, address):
            remote = ray.remote(learn)
            remote = remote.options(num_returns="streaming", num_gpus=_gpus(ray.cluster_resources()))
            running = [remote.remote(task) for task in tasks]
            while running:
                [ready], running = ray.wait(running, fetch_local=False)
                try:
                    yield ray.get(next(ready))
                except StopIteration:
                    continue
                running.append(ready)

    return work


def _gpus(resources: Mapping[str, float]) -> int:
    """What each training asks for: Ray hides GPUs from those that ask for none, and learners use one where they can."""
    return int(resources.get("GPU", 0) >= 1)


def _read(told: Connection) -> Iterator[TrainingStep | TrainedAgent]:
    with told:
        while True:
            try:
                event = told.recv()
            except EOFError:
                return
            if isinstance(event, Exception):
                raise event
            yield event


def _tell(task: TrainingTask, tell: Connection) -> None:
    """Train in a process of its own. Errors that are expected travel; others are printed, and end the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one, and ends it
    Thread(target=_end_with_parent, daemon=True).start()
    with tell:
        try:
            for event in learn(task):
                tell.send(event)
        except (ValueError, OSError, ImportError) as error:
            tell.send(error)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
