"""Which policies decide, as one value: the settings say it at the start, a ConfigMap while the controller runs.

A choice is read as a whole or not at all: a key or value that is not understood leaves the one before in force.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from msgspec import Struct, structs

from trimtab import names
from trimtab.errors import PolicyError
from trimtab_policy.policy import Kind, UnknownPolicy, entry

LONGEST_DEADLINE = 30.0
"""Seconds. A round in which two new policies are loaded, and are late, ends before it counts as stuck (180 s). Jobs
that name policies of their own, for tests, add a deadline each."""

LONGEST_VALUE = 80
"""Characters of a value that are looked at: no name is as long, and what is told of a wrong one has to fit an event."""


class Choice(Struct, frozen=True):
    """Who decides, and how long they may take."""

    policy: str
    fallback: str
    """Answers when the policy fails or is late."""
    shadow: str = ""
    """Is asked, too, and only watched; empty for none."""
    deadline_seconds: float = 2.0

    def roles(self) -> dict[str, str]:
        """Role -> name of the policy that has it."""
        named = {"policy": self.policy, "fallback": self.fallback, "shadow": self.shadow}
        return {role: name for role, name in named.items() if name}

    def check(self) -> None:
        """Raise UnknownPolicy unless all names are registered, and the fallback one that can be relied on."""
        for name in self.roles().values():
            entry(name)
        _reliable(self.fallback)

    def describe(self) -> str:
        """`best_fit decides within 2 s, else fcfs; shadow: sia`."""
        shadow = f"; shadow: {self.shadow}" if self.shadow else ""
        return f"{self.policy} decides within {self.deadline_seconds:g} s, else {self.fallback}{shadow}"


def read(data: Mapping[str, str], started: Choice) -> Choice:
    """What a ConfigMap's `data` says; keys that it leaves out are as the controller was `started` with.

    Raises PolicyError naming the key, its value and what is known.
    """
    changes: dict[str, str | float] = {}
    for key, value in data.items():
        text = value.strip()[:LONGEST_VALUE]
        if key not in _KEYS:
            raise PolicyError(f"unknown key {key!r} (value {text!r}); known keys are: {', '.join(_KEYS)}")
        field, understood = _KEYS[key]
        try:
            changes[field] = understood(text)
        except (UnknownPolicy, ValueError) as error:
            raise PolicyError(f"{key}: {text!r} is not understood: {error}") from error
    return structs.replace(started, **changes)


def _registered(text: str) -> str:
    entry(text)
    return text


def _reliable(text: str) -> str:
    """Who has to answer when a policy fails must not be able to fail for want of weights."""
    if entry(text).kind is Kind.LEARNED:
        raise UnknownPolicy(f"{text} is learned and may fail itself; fall back on a rule such as fcfs or best_fit")
    return text


def _registered_or_none(text: str) -> str:
    return _registered(text) if text else text


def _deadline(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and 0 < seconds <= LONGEST_DEADLINE):
        raise ValueError(f"must be more than 0 and at most {LONGEST_DEADLINE:g} seconds")
    return seconds


_KEYS: dict[str, tuple[str, Callable[[str], str | float]]] = {
    names.KEY_POLICY: ("policy", _registered),
    names.KEY_FALLBACK: ("fallback", _reliable),
    names.KEY_SHADOW: ("shadow", _registered_or_none),
    names.KEY_DEADLINE: ("deadline_seconds", _deadline),
}
"""Key -> field of `Choice`, and how its text is understood."""
