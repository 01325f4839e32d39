"""SARSA (Rummery and Niranjan 1994), the second algorithm of seed 000 (Dadizadeh Dargiry 2025), over tables."""

from __future__ import annotations

import numpy as np

from trimtab_lab.agents.table_tasks import Config, worlds
from trimtab_lab.agents.tables import SCORE, Tabular, epsilon_greedy

__all__ = ["SCORE", "Config", "Sarsa", "make"]


class Sarsa(Tabular):
    """Learns what its own actions are worth, those of exploration among them: it keeps away from what they risk."""

    def learn(self, segment: int) -> dict[str, float]:
        """As of `Learner`."""
        table, training = self.table, self.training
        seen, random, log = self.begin(segment)
        actions = epsilon_greedy(table, seen, self.epsilon, random)
        for _ in range(training.steps):
            after = self.world.step(actions)
            rows = after.happened
            self.steps += int(rows.sum())

            # Q(s, a) <- Q(s, a) + rate * (r + discount * Q(s', a') - Q(s, a)), without Q(s', a') at an end
            following = epsilon_greedy(table, after.seen, self.epsilon, random)
            own = np.where(after.ended, 0.0, table.q[after.seen.cells, following])
            loss = table.move(seen.cells[rows], actions[rows], (after.rewards + after.discounts * own)[rows], training)

            log.add(after, loss)
            seen, actions = after.seen, following
        return log.figures(self.steps, self.epsilon)


def make(config: Config, seed: int) -> Sarsa:
    """The learner that a configuration describes. Raises ValueError naming the field."""
    return Sarsa(*worlds(config), config.training, seed)
