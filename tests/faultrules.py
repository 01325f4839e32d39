"""What the fault proxy remembers and when its rules strike; `faultproxy` explains the actions."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MUTATING = {"POST", "PUT", "PATCH", "DELETE"}
WRITE_ACTIONS = {"kill-before", "kill-after", "drop-reply"}
WATCH_ACTIONS = {"gone", "werr", "mute", "drop-event"}
LIST_ACTIONS = {"stale-list"}
ACTIONS = WRITE_ACTIONS | WATCH_ACTIONS | LIST_ACTIONS | {"status", "hang", "delay", "reset"}
REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 503: "ServiceUnavailable", 504: "Timeout"}


@dataclass
class Rule:
    """When to do what; `seen` and `struck` count matching calls and hits."""

    action: str
    method: str = ".*"
    path: str = ""
    nth: int = 1
    count: int = 1
    seen: int = 0
    struck: int = 0

    def __post_init__(self) -> None:
        if self.verb not in ACTIONS:
            raise ValueError(f"action must be one of {sorted(ACTIONS)}, not {self.verb!r}")

    @property
    def verb(self) -> str:
        return self.action.partition(":")[0]

    @property
    def argument(self) -> str:
        return self.action.partition(":")[2]

    def strikes(self, method: str, path: str, kind: str) -> bool:
        """Count the call; whether the rule applies to it. `kind` is write, list, watch or read."""
        needed = {
            **dict.fromkeys(WRITE_ACTIONS, "write"),
            **dict.fromkeys(WATCH_ACTIONS, "watch"),
            "stale-list": "list",
        }
        if (
            needed.get(self.verb, kind) != kind
            or not re.fullmatch(self.method, method)
            or not re.search(self.path, path)
        ):
            return False
        self.seen += 1
        hit = self.nth <= self.seen < self.nth + self.count
        self.struck += hit
        return hit


@dataclass
class Call:
    """One write that the controller asked for. `status` is the API server's answer; None if it was never asked."""

    number: int
    time: float
    method: str
    path: str
    kind: str
    name: str
    fault: str | None = None
    status: int | None = None


@dataclass
class State:
    """All that the proxy remembers."""

    rules: list[Rule] = field(default_factory=list)
    trace: list[Call] = field(default_factory=list)
    first_lists: dict[str, bytes] = field(default_factory=dict)
    open_watches: set[asyncio.Task[Any]] = field(default_factory=set)
    victim: int = 0

    def strike(self, method: str, path: str, kind: str) -> Rule | None:
        """The first rule that applies; all rules count the call."""
        return next((rule for rule in [r for r in self.rules if r.strikes(method, path, kind)]), None)


def kind_of(request: web.Request) -> str:
    if request.method in MUTATING:
        return "read" if "dryRun" in request.query else "write"  # a dry run changes nothing, wherever it is cut
    if request.query.get("watch") in ("1", "true"):
        return "watch"
    return "list" if is_collection(request.path) else "read"


def is_collection(path: str) -> bool:
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    return len(parts) == 1 or (len(parts) == 3 and parts[0] == "namespaces")


def summary(path: str, body: bytes) -> tuple[str, str]:
    """Kind and name of what is written, as far as body and path tell."""
    try:
        sent = json.loads(body) if body else {}
    except ValueError:
        sent = {}
    meta = sent.get("metadata", {}) if isinstance(sent, dict) else {}
    kind = sent.get("kind", "") if isinstance(sent, dict) else ""
    return str(kind), str(meta.get("name") or ("" if is_collection(path) else path.rsplit("/", 1)[-1]))


def status(code: int) -> dict[str, Any]:
    reason = REASONS.get(code, "InternalError")
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": f"injected {reason}",
    }
