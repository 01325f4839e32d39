"""Who sees what: an audience are all users who may see the same. What is denied is taken away here, and nowhere else.

Texts are written for people who may see the cluster: a job's reason to wait names those in front of it. So every text
of an answer is looked through, and names of jobs and namespaces that are denied are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from trimtab.web.columns import EMPTY_JOB, HIDDEN, JOB_COLUMNS, UNKNOWN
from trimtab.web.deltas import Columns

SOMEBODY = "somebody else's job"
ELSEWHERE = "another namespace"
WORDS = frozenset({"queue", "gpuType", "gpu_type", "policy", "state", "kind"})
"""Fields of names that are no jobs and no namespaces, though they may be called the same."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?:/[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)?")
"""A name as Kubernetes has them, or two with a slash between."""
_OWNED = re.compile(r"(?:-\d+){1,2}$")
"""What a gang's objects have behind their job's name: its epoch, and a pod's rank."""


class Audience(Struct, frozen=True):
    """What somebody may see."""

    namespaces: frozenset[str] | None = None
    """Whose jobs; None for all."""
    nodes: bool = True
    queues: bool = True

    def sees(self, namespace: str) -> bool:
        """Whether jobs of the namespace are shown."""
        return self.namespaces is None or namespace in self.namespaces


EVERYTHING = Audience()


class Denied(Struct, frozen=True):
    """Names that must not be told."""

    namespaces: frozenset[str]
    jobs: frozenset[str]
    """Names (without a namespace) of jobs there; only those that no job has that is shown."""


def denied(audience: Audience, jobs: Iterable[str], namespaces: Iterable[str]) -> Denied:
    """Of all jobs (`namespace/name`), and of further namespaces, what the audience must not be told."""
    if audience.namespaces is None:
        return Denied(frozenset(), frozenset())
    shown, hidden, spaces = set[str](), set[str](), {each for each in namespaces if not audience.sees(each)}
    for key in jobs:
        namespace, _, name = key.partition("/")
        if audience.sees(namespace):
            shown.add(name)
        else:
            hidden.add(name)
            spaces.add(namespace)
    return Denied(frozenset(spaces), frozenset(hidden - shown))


def redacted(value: Any, names: Denied) -> Any:
    """A plain value (of JSON) with every name replaced that must not be told, keys included."""
    if not names.namespaces:
        return value
    if isinstance(value, str):
        return told(value, names)
    if isinstance(value, Mapping):
        return _redacted_table(value, names)
    return [redacted(each, names) for each in value] if isinstance(value, list | tuple) else value


def _redacted_table(table: Mapping[str, Any], names: Denied) -> dict[str, Any]:
    after: dict[str, Any] = {}
    for key, each in table.items():
        name, number = told(str(key), names), 2
        while name in after:  # several jobs of others
            name, number = f"{told(str(key), names)} ({number})", number + 1
        after[name] = each if key in WORDS and isinstance(each, str) else redacted(each, names)
    return after


def told(text: str, names: Denied) -> str:
    """A text without names that must not be told."""

    def instead(found: re.Match[str]) -> str:
        word = found.group()
        namespace, slash, name = word.partition("/")
        if namespace in names.namespaces:
            return SOMEBODY if slash else ELSEWHERE
        if {word, name, _OWNED.sub("", word), _OWNED.sub("", name)} & names.jobs:
            return SOMEBODY
        if any(part in names.namespaces or part in names.jobs for part in re.split(r"[./]", word)):
            return SOMEBODY  # a host name, or a file
        return word

    return _NAME.sub(instead, text)


def columns_for(audience: Audience, every: Columns, names: Denied) -> Columns:
    """The columns that an audience gets."""
    if audience == EVERYTHING:
        return every
    shown = dict(every)
    if not audience.nodes:
        shown |= {name: [] for name in every if name.startswith(("node.", "gpu.")) or name == "type"}
    if audience.namespaces is None:
        return shown
    hides = [bool(key) and not audience.sees(key.partition("/")[0]) for key in every["job.key"]]
    for name, empty in zip(JOB_COLUMNS, EMPTY_JOB, strict=True):
        column = every[f"job.{name}"]
        shown[f"job.{name}"] = [empty if hidden else value for value, hidden in zip(column, hides, strict=True)]
    if audience.nodes:
        shown["gpu.job"] = [HIDDEN if row >= 0 and hides[row] else row for row in every["gpu.job"]]
        shown["node.kept"] = [UNKNOWN if row >= 0 and hides[row] else row for row in every["node.kept"]]
        shown["node.why"] = [why and told(why, names) for why in every["node.why"]]
    return shown
