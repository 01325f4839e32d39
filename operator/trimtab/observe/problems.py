"""Things in the cluster that Trimtab cannot make sense of: each becomes an event and a count in a metric."""

from __future__ import annotations

from msgspec import Struct


class Problem(Struct, frozen=True):
    """An object that is wrong in a way that somebody should mend."""

    kind: str
    """Node, LLMTrainingJob or Queue."""
    namespace: str
    name: str
    uid: str
    reason: str
    """CamelCase, low cardinality: event reason and metric label."""
    message: str
    """What is wrong, naming the label or field, and what Trimtab does about it."""
