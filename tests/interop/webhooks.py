"""What Kueue's validating webhook says to a Workload: the rules that its CRD does not have, in our words.

Read off `pkg/webhooks/workload_webhook.go` of Kueue 0.19 with its default feature gates; MultiKueue, elastic jobs and
topology updates are left out. The rules of the CRD itself are the API server's to check, in `tests/live/test_kueue.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


def problems(new: Json, old: Json | None = None) -> list[str]:
    """Why Kueue would refuse this object, or this change of it; empty where it would not."""
    return [*_alone(new), *(_change(new, old) if old else ())]


def _alone(workload: Json) -> Iterator[str]:
    podsets = {each["name"]: each for each in workload["spec"]["podSets"]}
    if sum("minCount" in each for each in podsets.values()) > 1:
        yield "at most one podSet can use minCount"
    for podset in podsets.values():
        spec = podset["template"]["spec"]
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            if "pods" in container.get("resources", {}).get("requests", {}):
                yield "pods: the key is reserved for internal kueue use"
    status = workload.get("status", {})
    if _reserved(workload):
        for assigned in status["admission"]["podSetAssignments"]:
            if assigned["name"] not in podsets:
                yield f"podSetAssignments: {assigned['name']} not found"
            for resource, used in assigned.get("resourceUsage", {}).items():
                if str(used).isdecimal() and assigned.get("count") and int(used) % assigned["count"]:
                    yield f"resourceUsage[{resource}]: {used} is not a multiple of {assigned['count']}"
    for given in status.get("reclaimablePods", ()):
        if given["name"] not in podsets:
            yield f"reclaimablePods: {given['name']} is no podset"
        elif given["count"] > podsets[given["name"]]["count"]:
            yield f"reclaimablePods: {given['count']} should be less or equal to {podsets[given['name']]['count']}"
    kinds = [each["type"] for each in status.get("conditions", ())]
    if len(kinds) != len(set(kinds)):
        yield "conditions: duplicate type"
    for each in status.get("conditions", ()):
        if not each.get("reason") or not each.get("lastTransitionTime") or each["status"] not in ("True", "False"):
            yield f"conditions[{each['type']}] lacks a field"


def _change(new: Json, old: Json) -> Iterator[str]:
    if _reserved(old) and new["spec"]["podSets"] != old["spec"]["podSets"]:
        yield "podSets: field is immutable while quota is reserved"
    if _reserved(old) and _reserved(new):
        now = {each["name"]: each["count"] for each in new["status"].get("reclaimablePods", ())}
        for before in old["status"].get("reclaimablePods", ()):
            if before["name"] not in now:
                yield f"reclaimablePods[{before['name']}]: cannot be removed"
            elif now[before["name"]] < before["count"]:
                yield f"reclaimablePods[{before['name']}]: cannot be less than {before['count']}"
    admissions = [each.get("status", {}).get("admission") for each in (old, new)]
    if all(admissions) and admissions[0] != admissions[1]:
        yield "admission: field is immutable"


def _reserved(workload: Json) -> bool:
    conditions = workload.get("status", {}).get("conditions", ())
    return any(each["type"] == "QuotaReserved" and each["status"] == "True" for each in conditions)
