"""Every metric of Trimtab. Base units, low-cardinality labels, never a job's name.

Counters and histograms are used where things happen; gauges that describe the whole cluster are replaced as a whole
once a round, so that a state that no longer occurs does not linger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from trimtab import __version__

REGISTRY = CollectorRegistry()
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"trimtab_{name}", text, labels, registry=REGISTRY)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"trimtab_{name}", text, labels, registry=REGISTRY)


def _histogram(name: str, text: str, *labels: str) -> Histogram:
    return Histogram(f"trimtab_{name}", text, labels, registry=REGISTRY, buckets=SECONDS)


# --- the round ---------------------------------------------------------------------------------------------------------
ROUND_SECONDS = _histogram("round_duration_seconds", "Time of one stage of a round.", "stage")
DECISIONS = _counter("decisions_total", "Jobs decided about.", "policy", "outcome")
DECISION_SECONDS = _histogram("decision_duration_seconds", "Time a policy took for all waiting jobs.", "policy")
POLICY_FALLBACKS = _counter("policy_fallbacks_total", "Decisions made by the fallback policy.", "policy", "reason")
SHIELD_REJECTIONS = _counter("shield_rejections_total", "Placements that broke a hard rule.", "rule")

# --- gangs -------------------------------------------------------------------------------------------------------------
GANG_BINDS = _counter("gang_binds_total", "Attempts to bind the pods of a gang.", "result")
GANG_BIND_SECONDS = _histogram("gang_bind_duration_seconds", "From the first binding request of a gang to the last answer.")
ROLLBACKS = _counter("rollbacks_total", "Plans that were given up.", "reason")
HAPPENINGS = _counter("happenings_total", "Things told about jobs, as in their events.", "reason")
EVENTS_LOST = _counter("events_lost_total", "Events that could not be posted.")

# --- the cluster -------------------------------------------------------------------------------------------------------
JOBS = _gauge("jobs", "Jobs by the condition that tells their state.", "state")
PENDING_JOBS = _gauge("pending_jobs", "Jobs that wait, by reason.", "reason")
GPUS = _gauge("gpus", "GPUs by type and whether they are free, used or unavailable.", "type", "state")
PROBLEMS = _gauge("problems", "Objects that Trimtab cannot make sense of.", "kind", "reason")

# --- talking to the API server ------------------------------------------------------------------------------------------
API_REQUESTS = _counter("api_requests_total", "Requests to the API server; code 0: no answer.", "verb", "resource", "code")
API_SECONDS = _histogram("api_request_duration_seconds", "Time to the last byte of an answer.", "verb", "resource")
RELISTS = _counter("reflector_relists_total", "Complete lists of a kind.", "resource", "reason")
WATCH_ERRORS = _counter("reflector_errors_total", "Lists and watches that failed.", "resource", "reason")
REFLECTOR_AGE = _gauge("reflector_age_seconds", "Since the API server last told anything about a kind.", "resource")
BAD_OBJECTS = _counter("bad_objects_total", "Objects that could not be decoded.", "kind", "reason")

# --- the process --------------------------------------------------------------------------------------------------------
LEADER = _gauge("leader", "1 while this controller leads.")
LEADER_EPOCH = _gauge("leader_epoch", "Fencing epoch of this controller's leadership.")
KOPF_RESTARTS = _counter("kopf_restarts_total", "Times kopf ended and was started again.", "reason")
BUILD = Info("trimtab_build", "Version of the running code.", registry=REGISTRY)
BUILD.info({"version": __version__})


class ApiObserver:
    """Counts what happens between us and the API server (`trimtab.kube.observer.Observer`)."""

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        API_REQUESTS.labels(verb, resource, str(code)).inc()
        if verb != "watch":
            API_SECONDS.labels(verb, resource).observe(seconds)

    def relist(self, resource: str, reason: str) -> None:
        RELISTS.labels(resource, reason).inc()

    def watch_error(self, resource: str, reason: str) -> None:
        WATCH_ERRORS.labels(resource, reason).inc()

    def bad_object(self, kind: str, reason: str) -> None:
        BAD_OBJECTS.labels(kind, reason).inc()


def replace(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
    """Set a labelled gauge to exactly these values; label sets that do not occur any more disappear."""
    gauge.clear()
    for labels, value in values.items():
        gauge.labels(*labels).set(value)


def track_age(resource: str, age: Callable[[], float]) -> None:
    """Report a reflector's age whenever metrics are read."""
    REFLECTOR_AGE.labels(resource).set_function(age)
