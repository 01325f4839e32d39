"""Which policies decide by how long jobs will take.

A policy that is told the run times of all jobs plays another game than one that does without, even if both stand in
one table since both could have known the same; so tables mark who uses them. Decisions of the others do not change
whatever run times they are told, which a test asserts of all that are registered.
"""

from __future__ import annotations

_LEARNED = frozenset({"dqn_cnn", "sac_imitation", "vdn"})
_USE_SIZES = _LEARNED | {"easy_backfill", "gavel_ftf", "gavel_min_jct", "sjf", "srsf", "srtf", "themis"}


def uses_sizes(policy: str) -> bool:
    """Whether the policy, named as in a scenario, decides by the work that jobs have or have left."""
    return policy.partition("@")[0] in _USE_SIZES
