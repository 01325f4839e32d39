"""Every Prometheus metric of Trimtab, in one place.

Names follow the Prometheus conventions (base units, `_total`, `_seconds`) and carry no job names: what is asked about a
single job is answered by its status and events. `KubeMetrics` counts what happens between us and the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

from trimtab import __version__

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
EARLIER_OR_LATER = (-86_400, -21_600, -3_600, -600, -60, -1, 1, 60, 600, 3_600, 21_600, 86_400)
SLOW = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)

# --- the round -------------------------------------------------------------------------------------------------------
ROUND_SECONDS = Histogram(
    "trimtab_round_duration_seconds",
    "Time of one round by stage (observe, decide, apply)",
    ["stage"],
    buckets=FAST,
    registry=REGISTRY,
)
DECISIONS = Counter(
    "trimtab_decisions_total",
    "Placements decided, by policy and outcome (placed, pending)",
    ["policy", "outcome"],
    registry=REGISTRY,
)
DECISION_SECONDS = Histogram(
    "trimtab_decision_duration_seconds",
    "Time that a policy took for one snapshot",
    ["policy"],
    buckets=FAST,
    registry=REGISTRY,
)
POLICY_FALLBACKS = Counter(
    "trimtab_policy_fallbacks_total",
    "Rounds that the fallback policy decided, by failed policy and reason"
    " (unloadable, deadline, busy, error, invalid, nan)",
    ["policy", "reason"],
    registry=REGISTRY,
)
SHIELD_REJECTIONS = Counter(
    "trimtab_shield_rejections_total", "Placements that a hard rule refused, by rule", ["rule"], registry=REGISTRY
)
POLICY_INFO = Gauge(
    "trimtab_policy_info",
    "1 for every policy in use, by role (policy, fallback, shadow)",
    ["policy", "role"],
    registry=REGISTRY,
)
POLICY_CHANGES = Counter(
    "trimtab_policy_changes_total",
    "Changes of the ConfigMap that chooses policies, by result (applied, refused)",
    ["result"],
    registry=REGISTRY,
)
JOBS = Gauge("trimtab_jobs", "Jobs by state", ["state"], registry=REGISTRY)
PENDING_JOBS = Gauge("trimtab_pending_jobs", "Waiting jobs by reason", ["reason"], registry=REGISTRY)
GPUS = Gauge("trimtab_gpus", "GPUs by type and state (used, free, unavailable)", ["type", "state"], registry=REGISTRY)
PROBLEMS = Gauge(
    "trimtab_problems",
    "Objects in the cluster that somebody should mend, by kind and reason",
    ["kind", "reason"],
    registry=REGISTRY,
)

# --- the shadow policy -----------------------------------------------------------------------------------------------
SHADOW_ANSWERS = Counter(
    "trimtab_shadow_answers_total",
    "Answers of the shadow policy, by how they differ from the one that counts"
    " (same, other_type, other_count, other_plan, would_wait, would_start)",
    ["policy", "agreement"],
    registry=REGISTRY,
)
SHADOW_DIFFERENCE = Histogram(
    "trimtab_shadow_difference_seconds",
    "Predicted run time by the shadow policy's plan less that by the real one, of jobs that both start",
    ["policy"],
    buckets=EARLIER_OR_LATER,
    registry=REGISTRY,
)
SHADOW_SECONDS = Histogram(
    "trimtab_shadow_duration_seconds",
    "Time that the shadow policy took for one snapshot",
    ["policy"],
    buckets=FAST,
    registry=REGISTRY,
)
SHADOW_FAILURES = Counter(
    "trimtab_shadow_failures_total",
    "Rounds without an answer of the shadow policy, by reason"
    " (unloadable, deadline, error, invalid, nan, crash, bug), and answers that a hard rule refused (refused)",
    ["policy", "reason"],
    registry=REGISTRY,
)
SHADOW_SKIPPED = Counter(
    "trimtab_shadow_skipped_total",
    "Rounds that the shadow policy was not asked about: it was busy, or had just failed",
    ["reason"],
    registry=REGISTRY,
)

# --- gangs -----------------------------------------------------------------------------------------------------------
GANG_BINDS = Counter(
    "trimtab_gang_binds_total",
    "Attempts to bind the pods of a gang, by result (bound, refused)",
    ["result"],
    registry=REGISTRY,
)
GANG_BIND_SECONDS = Histogram(
    "trimtab_gang_bind_duration_seconds",
    "From the first binding request of a gang to the last answer",
    buckets=SLOW,
    registry=REGISTRY,
)
ROLLBACKS = Counter("trimtab_rollbacks_total", "Gangs taken down again, by reason", ["reason"], registry=REGISTRY)
HAPPENINGS = Counter(
    "trimtab_happenings_total", "What was told about jobs, by event reason", ["reason"], registry=REGISTRY
)
DRIVER_ERRORS = Counter(
    "trimtab_driver_errors_total", "Unexpected errors while a job was carried forward: bugs", registry=REGISTRY
)
EVENTS_LOST = Counter("trimtab_events_lost_total", "Events that could not be posted", registry=REGISTRY)

# --- the API server --------------------------------------------------------------------------------------------------
API_REQUESTS = Counter(
    "trimtab_api_requests_total",
    "Requests to the API server; code 0 is no answer",
    ["verb", "resource", "code"],
    registry=REGISTRY,
)
API_SECONDS = Histogram(
    "trimtab_api_request_duration_seconds",
    "Time of one request to the API server, watches left out",
    ["verb", "resource"],
    buckets=FAST,
    registry=REGISTRY,
)
REFLECTOR_AGE = Gauge(
    "trimtab_reflector_age_seconds", "Time since the last news of a kind", ["resource"], registry=REGISTRY
)
REFLECTOR_RELISTS = Counter(
    "trimtab_reflector_relists_total", "Complete lists of a kind, by reason", ["resource", "reason"], registry=REGISTRY
)
REFLECTOR_ERRORS = Counter(
    "trimtab_reflector_errors_total",
    "Lists and watches that failed, by reason",
    ["resource", "reason"],
    registry=REGISTRY,
)
BAD_OBJECTS = Counter(
    "trimtab_bad_objects_total",
    "Objects that could not be understood, by kind and reason",
    ["kind", "reason"],
    registry=REGISTRY,
)

# --- the process -----------------------------------------------------------------------------------------------------
KOPF_RESTARTS = Counter(
    "trimtab_kopf_restarts_total",
    "Times that kopf's operator ended and was started again, by the error that ended it",
    ["reason"],
    registry=REGISTRY,
)
LEADER = Gauge("trimtab_leader", "1 while this controller leads", registry=REGISTRY)
LEADER_EPOCH = Gauge("trimtab_leader_epoch", "Fencing epoch of this controller's leadership", registry=REGISTRY)
BUILD = Info("trimtab_build", "Version of this controller", registry=REGISTRY)
BUILD.info({"version": __version__})


class KubeMetrics:
    """`trimtab.kube.observer.Observer` that counts."""

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        API_REQUESTS.labels(verb, resource, code).inc()
        if verb != "watch":
            API_SECONDS.labels(verb, resource).observe(seconds)

    def relist(self, resource: str, reason: str) -> None:
        REFLECTOR_RELISTS.labels(resource, reason).inc()

    def watch_error(self, resource: str, reason: str) -> None:
        REFLECTOR_ERRORS.labels(resource, reason).inc()

    def bad_object(self, kind: str, reason: str) -> None:
        BAD_OBJECTS.labels(kind, reason).inc()


def replace(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
    """Set a labelled gauge to exactly these values, so that a state that no longer occurs does not linger."""
    gauge.clear()
    for labels, value in values.items():
        gauge.labels(*labels).set(value)


def watch_age(resource: str, age_seconds: Callable[[], float]) -> None:
    """Show how old the newest news of a kind is, asked for at scrape time."""
    REFLECTOR_AGE.labels(resource).set_function(age_seconds)
