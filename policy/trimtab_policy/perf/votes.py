"""What several tenants say, so that none of them alone decides it: a namespace has one vote, whatever its jobs."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median


def consensus(votes: Iterable[float], neutral: float = 0.0) -> float:
    """The median of these votes and one more for `neutral`; where two are in the middle, the value between them that is
    nearest to `neutral`.

    So one voter alone moves nothing, two that agree do, and while liars are fewer than all others together, the answer
    lies within what the others say, or between that and `neutral`. NaN is no vote.
    """
    voters = sorted([*(vote for vote in votes if vote == vote), neutral])
    low, high = voters[(len(voters) - 1) // 2], voters[len(voters) // 2]
    return min(max(neutral, low), high)


def by_namespace(said: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Namespace -> the median of what its jobs say."""
    of: dict[str, list[float]] = {}
    for namespace, value in said:
        of.setdefault(namespace, []).append(value)
    return {namespace: median(values) for namespace, values in of.items()}
