"""Prometheus metrics of the scheduler extender, which shares the controller's registry but not its process."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from trimtab.telemetry.metrics import FAST, REGISTRY

EXTENDER_REQUESTS = Counter(
    "trimtab_extender_requests_total",
    "Requests of kube-scheduler, by verb and HTTP code",
    ["verb", "code"],
    registry=REGISTRY,
)
EXTENDER_SECONDS = Histogram(
    "trimtab_extender_duration_seconds",
    "Time of one request, from its headers to its answer",
    ["verb"],
    buckets=FAST,
    registry=REGISTRY,
)
EXTENDER_VERDICTS = Counter(
    "trimtab_extender_verdicts_total",
    "What kube-scheduler was told, by verb, whose pod it was (ours, foreign) and result"
    " (passed, bound, error, or why not: no_plan, elsewhere, unknown_node, unavailable, full)",
    ["verb", "pod", "result"],
    registry=REGISTRY,
)
EXTENDER_SECOND_LOOKS = Counter(
    "trimtab_extender_second_looks_total",
    "Refusals that waited for news of nodes and pods, by what came of it (passed, refused)",
    ["result"],
    registry=REGISTRY,
)
EXTENDER_BLIND = Gauge(
    "trimtab_extender_blind",
    "1 while nodes and pods cannot be followed, and only plans are checked",
    registry=REGISTRY,
)
