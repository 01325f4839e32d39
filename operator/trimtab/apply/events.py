"""Kubernetes events (events.k8s.io/v1), told once each.

An event's name is derived from what it says, so that telling it again (after a restart, by a second attempt) finds it
there and changes nothing. Events are news for people; nothing depends on them, so a failure to post one is logged and
counted, never retried for ever.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from trimtab import names
from trimtab.apply.transitions import JobEvent
from trimtab.errors import AlreadyExists
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import EVENTS
from trimtab.printable import printable

NOTE_LIMIT = 1024
"""Longest note that the API server takes, in bytes."""
CLUSTER_SCOPED_NAMESPACE = "default"


def event(regarding: dict[str, str], happening: JobEvent, *, action: str, instance: str, now: float) -> dict[str, Any]:
    """The event object. `regarding` has apiVersion, kind, name, uid and, for namespaced kinds, namespace."""
    namespace = regarding.get("namespace") or CLUSTER_SCOPED_NAMESPACE
    message = printable(happening.message, lines=True)
    said = "/".join((regarding["uid"], str(happening.epoch), happening.reason, message))
    return {
        "apiVersion": EVENTS.api_version,
        "kind": "Event",
        "metadata": {
            "name": f"{regarding['name'][:230].rstrip('-.')}.{hashlib.sha256(said.encode()).hexdigest()[:16]}",
            "namespace": namespace,
        },
        "eventTime": datetime.fromtimestamp(now, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": names.FIELD_MANAGER,
        "reportingInstance": instance[:128],
        "action": action,
        "reason": happening.reason,
        "note": _cut(message),
        "type": happening.type,
        "regarding": regarding,
    }


async def post(client: KubeClient, obj: dict[str, Any]) -> None:
    """Post an event unless it is there already."""
    try:
        await client.create(EVENTS.path(obj["metadata"]["namespace"]), obj)
    except AlreadyExists:
        return


def _cut(note: str) -> str:
    raw = note.encode()
    return note if len(raw) <= NOTE_LIMIT else raw[: NOTE_LIMIT - 3].decode(errors="ignore") + "..."
