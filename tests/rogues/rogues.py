"""Policies that do what a learned policy can do wrong.

This directory is a distribution as pip leaves it: whoever has it in PYTHONPATH has its policies registered.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from trimtab_policy.policy import Kind, load
from trimtab_policy.types import Decision, Snapshot

WEIGHTS = "ROGUE_WEIGHTS"
"""Environment variable with the file that `Missing` cannot do without."""


class Rogue:
    """As `fcfs`, if nothing goes wrong."""

    kind = Kind.LEARNED
    source = "tests"

    def __init__(self) -> None:
        self.name = f"rogue_{type(self).__name__.lower()}"
        self._sound = load("fcfs")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide soundly."""
        return self._sound.decide(snapshot)


class Crash(Rogue):
    """Takes the whole process with it, as a bug in compiled code does."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Never returns."""
        os._exit(139)


class Raise(Rogue):
    """Has a bug."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Raises ZeroDivisionError."""
        raise ZeroDivisionError("a mean over no jobs")


class Nan(Rogue):
    """Computes with weights that have diverged."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Every predicted step takes NaN seconds."""
        decision = super().decide(snapshot)
        nan = float(np.float32("inf") - np.float32("inf"))
        placements = tuple(
            replace(found, prediction=replace(found.prediction, step_seconds=nan)) for found in decision.placements
        )
        return replace(decision, placements=placements)


class Late(Rogue):
    """Never gets done, and never sleeps."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Never returns."""
        while True:
            sum(range(10_000))


class Frozen(Rogue):
    """Is stuck in compiled code that lets nothing else in its process run."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Does not return for a minute."""
        ctypes.PyDLL(None).sleep(60)
        return super().decide(snapshot)


class Slow(Rogue):
    """Is slow, but gets done."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decides soundly after a second."""
        time.sleep(1.0)
        return super().decide(snapshot)


class Greedy(Rogue):
    """Gives every job the same GPUs."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decides for each job as if it were alone."""
        alone = [replace(snapshot, jobs=(job,)) for job in snapshot.waiting()]
        decisions = [super(Greedy, self).decide(each) for each in alone]
        placements = tuple(found for each in decisions for found in each.placements)
        return Decision(self.name, placements, tuple(found for each in decisions for found in each.pending))


class Idle(Rogue):
    """Has learned to leave the cluster alone."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Lets everybody wait."""
        nodes = tuple(replace(node, free_gpus=0) for node in snapshot.nodes)
        return super().decide(replace(snapshot, nodes=nodes))


class Missing(Rogue):
    """Needs weights that may not be there."""

    def __init__(self) -> None:
        super().__init__()
        Path(os.environ[WEIGHTS]).read_bytes()


class Chatty(Rogue):
    """Prints to standard output, where its answers go."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decides soundly, and loudly."""
        print("deciding " * 100, flush=True)
        return super().decide(snapshot)
