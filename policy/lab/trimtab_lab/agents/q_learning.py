"""Q-learning (Watkins 1989), the main algorithm of seed 000 (Dadizadeh Dargiry 2025), over tables."""

from __future__ import annotations

import numpy as np

from trimtab_lab.agents.table_tasks import Config, worlds
from trimtab_lab.agents.tables import SCORE, Tabular, epsilon_greedy

__all__ = ["SCORE", "Config", "QLearning", "make"]


class QLearning(Tabular):
    """Learns what the best actions are worth while it does others to explore."""

    def learn(self, segment: int) -> dict[str, float]:
        """As of `Learner`."""
        table, training = self.table, self.training
        seen, random, log = self.begin(segment)
        for _ in range(training.steps):
            actions = epsilon_greedy(table, seen, self.epsilon, random)
            after = self.world.step(actions)

            # Q(s, a) <- Q(s, a) + rate * (r + discount * max Q(s', .) - Q(s, a)), without the max at an end
            best = np.where(after.ended, 0.0, table.values(after.seen).max(axis=1))
            rows = after.happened
            loss = table.move(seen.cells[rows], actions[rows], (after.rewards + after.discounts * best)[rows], training)

            log.add(after, loss)
            self.steps += int(rows.sum())
            seen = after.seen
        return log.figures(self.steps, self.epsilon)


def make(config: Config, seed: int) -> QLearning:
    """The learner that a configuration describes. Raises ValueError naming the field."""
    return QLearning(*worlds(config), config.training, seed)
