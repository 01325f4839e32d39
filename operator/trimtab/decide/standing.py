"""What the monitor of policies has found, as a ConfigMap keeps it: text, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from trimtab.errors import PolicyError
from trimtab_policy.sim.monitor import Standing

KEY: Final = "standing.json"
LARGEST: Final = 200_000
"""Characters that are looked at."""


def read_standing(data: Mapping[str, str]) -> Standing:
    """Raises PolicyError naming the key, for what is not there, not understood, or no standing of anybody."""
    text = data.get(KEY, "")
    if not text or len(text) > LARGEST:
        raise PolicyError(f"{KEY}: has {len(text)} characters; must have 1 to {LARGEST}: delete the ConfigMap")
    try:
        found = msgspec.json.decode(text, type=Standing)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PolicyError(f"{KEY}: {error}; delete the ConfigMap, to start anew") from error
    if found.better < 0 or not all(math.isfinite(moment) for moment in (found.since, found.compared)):
        raise PolicyError(f"{KEY}: `better` must not be negative; delete the ConfigMap, to start anew")
    return found


def written(standing: Standing) -> dict[str, str]:
    """The data of the ConfigMap. Queues are left out should there be so many that it were too long."""
    text = msgspec.json.encode(standing).decode()
    if len(text) > LARGEST and standing.latest:
        latest = msgspec.structs.replace(standing.latest, queues={}, priorities={})
        text = msgspec.json.encode(msgspec.structs.replace(standing, latest=latest)).decode()
    return {KEY: text}
