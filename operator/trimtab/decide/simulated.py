"""The controller's way to decide, as a policy for the simulator, so that what would be is decided as it would be.

All stages of a decision, from the line to resizes, by the rules that the settings say; only when jobs are expected to
start nobody asks here. Stops need no time: the simulator charges a restart for them.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from trimtab.decide.engine import Engine
from trimtab_policy.scheduling.arranged import Memory
from trimtab_policy.scheduling.choice import LONGEST_DEADLINE, Choice
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.types import Decision, Snapshot


class Simulated:
    """One controller, for one run: it remembers who gave way, and when jobs were resized last."""

    def __init__(self, choice: Choice, rules: Rules, memory: Memory, interval_seconds: float) -> None:
        """Resizes are considered every `interval_seconds`."""
        self.name = choice.policy
        self._choice, self._memory = replace(choice, deadline_seconds=LONGEST_DEADLINE), memory
        self._rules, self._interval = replace(rules, times=False), interval_seconds
        self._engine, self._resized = Engine(), -math.inf

    def decide(self, snapshot: Snapshot) -> Decision:
        """What the controller would do at this moment."""
        due = snapshot.time >= self._resized + self._interval
        if due:
            self._resized = snapshot.time
        rules = self._rules if due else replace(self._rules, resize=None)
        outcome = self._engine.decide(self._memory.seen(snapshot), self._choice, rules)
        moves = tuple(move.placement for move in outcome.moves)
        decided = Decision(self.name, (*outcome.placements, *moves), outcome.pending, outcome.stops)
        self._memory.remember(snapshot, decided)
        return decided
