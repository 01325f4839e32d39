"""Which policies decide (`Choice`): the settings say it at the start, a ConfigMap while the controller runs.

A choice is read as a whole or not at all: a key or value that is not understood leaves the one before in force.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from msgspec import structs

from trimtab import names
from trimtab.errors import PolicyError
from trimtab_policy.inputs import durations
from trimtab_policy.policy import UnknownPolicy, entry
from trimtab_policy.scheduling.choice import LONGEST_DEADLINE, Choice, check_fallback

LONGEST_VALUE = 80
"""Characters of a value that are looked at: no name is as long, and what is told of a wrong one has to fit an event."""


def read_choice(data: Mapping[str, str], started: Choice) -> Choice:
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
    check_fallback(text)
    return text


def _registered_or_none(text: str) -> str:
    return _registered(text) if text else text


def _deadline(text: str) -> float:
    seconds = durations.seconds(text)
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
