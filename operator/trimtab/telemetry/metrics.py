"""Every Prometheus metric of the controller, in one place; the agent and the extender have files of their own.

Names follow the Prometheus conventions (base units, `_total`, `_seconds`) and carry no job names: what is asked about a
single job is answered by its status and events. `KubeMetrics` counts what happens between us and the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

from trimtab import __version__
from trimtab.telemetry.ports import PortMetrics

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
EARLIER_OR_LATER = (-86_400, -21_600, -3_600, -600, -60, -1, 1, 60, 600, 3_600, 21_600, 86_400)
SLOW = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
DAYS = (1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 43_200, 86_400, 3 * 86_400, 7 * 86_400, 30 * 86_400)
MOST_VALUES = 1000
"""Of a label that namespaces or queues give their names to."""
OTHERS = "(others)"
"""Value of such a label for those that came later; nothing in Kubernetes is called so."""

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
POLICY_DOUBTS = Counter(
    "trimtab_policy_doubts_total",
    "Decisions about single jobs in which a learned policy did without what it has learned, by reason"
    " (out_of_training, cluster_out_of_training, not_finite)",
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
QUEUE_GPUS = Gauge(
    "trimtab_queue_gpus", "GPUs that the jobs of a queue hold, by type", ["queue", "gpu_type"], registry=REGISTRY
)
QUEUE_SHARE = Gauge(
    "trimtab_queue_share",
    "Part of the cluster's throughput that the jobs of a queue hold, over its weight",
    ["queue"],
    registry=REGISTRY,
)
QUEUE_PENDING_JOBS = Gauge("trimtab_queue_pending_jobs", "Jobs that wait in a queue", ["queue"], registry=REGISTRY)
GPUS = Gauge(
    "trimtab_gpus", "GPUs by type and state (used, free, foreign, unavailable)", ["type", "state"], registry=REGISTRY
)
UNHEALTHY_GPUS = Gauge(
    "trimtab_unhealthy_gpus", "GPUs with a fault, by type and reason", ["type", "reason"], registry=REGISTRY
)
FOREIGN_GPUS = Gauge(
    "trimtab_foreign_gpus", "GPUs in use by processes that belong to no pod", ["type"], registry=REGISTRY
)
STALE_GPUNODES = Gauge("trimtab_stale_gpunodes", "Nodes whose agent has stopped reporting", registry=REGISTRY)
PROBLEMS = Gauge(
    "trimtab_problems",
    "Objects in the cluster that have to be corrected, by kind and reason",
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

MONITOR_RATIO = Gauge(
    "trimtab_policy_jct_ratio",
    "Average completion time of the last day's jobs under the policy over that under its fallback, when both were"
    " simulated last, and the ends of its interval (bound: ratio, low, high)",
    ["policy", "fallback", "bound"],
    registry=REGISTRY,
)
MONITOR_JOBS = Gauge("trimtab_policy_compared_jobs", "Jobs of that comparison", registry=REGISTRY)
MONITOR_FALLEN = Gauge(
    "trimtab_policy_replaced",
    "1 while the fallback decides because the policy was found to be worse than it on this cluster",
    ["policy", "fallback"],
    registry=REGISTRY,
)
MONITOR_COMPARISONS = Counter(
    "trimtab_policy_comparisons_total",
    "Attempts to compare the policy with its fallback, by result (compared, too_few_jobs, out_of_time, or why it"
    " failed: deadline, crash, unreadable, unwritable, bug)",
    ["result"],
    registry=REGISTRY,
)

# --- what is used, and waited for ------------------------------------------------------------------------------------
GPU_SECONDS = Counter(
    "trimtab_gpu_seconds_total",
    "Time for which GPUs were held by gangs, by queue, namespace of the job and GPU type, and what agents said of them"
    " meanwhile (use: used, idle, unknown)",
    ["queue", "tenant", "gpu_type", "use"],
    registry=REGISTRY,
)
WAIT_SECONDS = Histogram(
    "trimtab_wait_seconds",
    "From a job's creation, or since it was resumed or had lost its last gang, until all pods of the next were bound;"
    " of gangs that went on elsewhere at once there is none",
    ["queue"],
    buckets=DAYS,
    registry=REGISTRY,
)
COMPLETION_SECONDS = Histogram(
    "trimtab_completion_seconds",
    "From a job's creation until it was complete, waiting included",
    ["queue"],
    buckets=DAYS,
    registry=REGISTRY,
)
IDLE_GPUS = Gauge(
    "trimtab_idle_gpus",
    "GPUs of jobs that do nothing and have the condition Idle, by queue and GPU type",
    ["queue", "gpu_type"],
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
GANG_SCHEDULE_SECONDS = Histogram(
    "trimtab_gang_schedule_duration_seconds",
    "From a gang's first binding or release to the moment that all its pods are seen bound",
    buckets=SLOW,
    registry=REGISTRY,
)
STARTS_FORETOLD = Counter(
    "trimtab_starts_foretold_total",
    "Jobs that got a plan after their status had predicted when, by when that was: early, within the interval, late",
    ["when"],
    registry=REGISTRY,
)
START_ERROR_SECONDS = Histogram(
    "trimtab_start_error_seconds",
    "Between a job's start as status.pending.startTime expected it and its plan",
    buckets=(30, 60, 120, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 24 * 3600),
    registry=REGISTRY,
)
POD_GROUPS_REFUSED = Counter(
    "trimtab_pod_groups_refused_total", "Gangs that went on without a PodGroup: it was refused", registry=REGISTRY
)
COMPUTE_DOMAINS_REFUSED = Counter(
    "trimtab_compute_domains_refused_total",
    "Gangs that went on without a ComputeDomain: it was refused",
    registry=REGISTRY,
)
BRAKE = Gauge(
    "trimtab_brake",
    "1 while so many nodes are lost at once that no gang is stopped because of it (circuit breaker)",
    registry=REGISTRY,
)
BAD_NODES = Gauge("trimtab_bad_nodes", "Nodes on which the gangs of several jobs have failed lately", registry=REGISTRY)
SPARE_NODES = Gauge(
    "trimtab_spare_nodes",
    "Free nodes that are kept for gangs that have lost one, by GPU type",
    ["type"],
    registry=REGISTRY,
)
FAILURES = Counter(
    "trimtab_failures_total",
    "Gangs that came to an unwanted end, by the namespace of the job and by cause"
    " (UserError, Program, OutOfMemory, Node, Gpu, Other)",
    ["tenant", "cause"],
    registry=REGISTRY,
)
STRAGGLERS = Gauge("trimtab_stragglers", "GPUs that are slower than their peers, by type", ["type"], registry=REGISTRY)
MOVES = Counter(
    "trimtab_moves_total", "Running gangs that were moved to other nodes, by cause", ["cause"], registry=REGISTRY
)
PREEMPTIONS = Counter(
    "trimtab_preemptions_total",
    "Running gangs that were preempted for other jobs, or stopped for their own good, by cause",
    ["cause"],
    registry=REGISTRY,
)
REPEATED_PREEMPTIONS = Counter(
    "trimtab_repeated_preemptions_total",
    "Of those preempted for other jobs, gangs whose job had been preempted within the hour before",
    registry=REGISTRY,
)
DECISION_STAGE_SECONDS = Histogram(
    "trimtab_decision_stage_seconds",
    "Time of one stage of a decision besides the policies",
    ["stage"],
    buckets=FAST,
    registry=REGISTRY,
)
STOPS = Counter(
    "trimtab_stops_total",
    "Requests to running gangs to save their state and stop, by cause and result"
    " (acknowledged, deadline, ended, withdrawn, unready)",
    ["cause", "result"],
    registry=REGISTRY,
)
STOP_SECONDS = Histogram(
    "trimtab_stop_seconds",
    "From such a request until it was met or taken back, by cause",
    ["cause"],
    buckets=SLOW,
    registry=REGISTRY,
)
LOST_GPU_SECONDS = Counter(
    "trimtab_lost_gpu_seconds_total",
    "Work of stopped gangs since their last checkpoint, by cause of the stop",
    ["cause"],
    registry=REGISTRY,
)
ROLLBACKS = Counter(
    "trimtab_rollbacks_total",
    "Gangs taken down again, by the namespace of the job and by reason",
    ["tenant", "reason"],
    registry=REGISTRY,
)
HAPPENINGS = Counter(
    "trimtab_happenings_total", "Kubernetes events about jobs, by reason", ["reason"], registry=REGISTRY
)
DRIVER_ERRORS = Counter(
    "trimtab_driver_errors_total", "Unexpected errors while a job was reconciled: bugs", registry=REGISTRY
)
ISOLATED_ERRORS = Counter(
    "trimtab_isolated_errors_total",
    "Unexpected errors that cost one object or one part of a round, by part: bugs",
    ["part"],
    registry=REGISTRY,
)
ISOLATED_JOBS = Gauge(
    "trimtab_isolated_jobs",
    "Jobs that decisions are made without, because they fail with them, by the part that fails: bugs",
    ["part"],
    registry=REGISTRY,
)
EVENTS_LOST = Counter("trimtab_events_lost_total", "Events that could not be posted", registry=REGISTRY)

# --- reports of trainings, and what predictions learn from them ------------------------------------------------------
REPORTS = Counter(
    "trimtab_reports_total",
    "Reports of trainings, by result (accepted, ignored) or by the HTTP status that refused them",
    ["result"],
    registry=REGISTRY,
)
PREDICTION_FACTOR = Gauge(
    "trimtab_prediction_factor",
    "By how much steps take longer than the performance model says, as learned, by model, GPU type and class of plan",
    ["model", "type", "plan"],
    registry=REGISTRY,
)
PREDICTION_DRIFT = Gauge(
    "trimtab_prediction_drift",
    "By how much steps on a GPU type came to take longer than those of earlier jobs of their kind, at the last change"
    " that was noticed; 1 before any",
    ["type"],
    registry=REGISTRY,
)
PREDICTION_DRIFT_ALARMS = Counter(
    "trimtab_prediction_drift_alarms_total",
    "Changes of how long steps on a GPU type take, against earlier jobs of their kind",
    ["type"],
    registry=REGISTRY,
)
DRIFTED_JOBS = Gauge(
    "trimtab_drifted_jobs", "Running jobs whose steps take much longer or shorter than predicted", registry=REGISTRY
)
CALIBRATION_PROBLEM = Gauge(
    "trimtab_calibration_problem",
    "1 while what was learned cannot be kept, by reason (unreadable, unwritable)",
    ["reason"],
    registry=REGISTRY,
)

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
CLOCK_AHEAD = Gauge(
    "trimtab_clock_ahead_seconds",
    "By how much this machine's clock is ahead of the API server's, which is the one that counts",
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
LEADER_EPOCH = Gauge(
    "trimtab_leader_epoch", "Fencing epoch of this controller's leadership; 0 while it does not lead", registry=REGISTRY
)
BUILD = Info("trimtab_build", "Version of this controller", registry=REGISTRY)
BUILD.info({"version": __version__})
PORTS = PortMetrics(REGISTRY)


# --- Kueue -----------------------------------------------------------------------------------------------------------
KUEUE_JOBS = Gauge(
    "trimtab_kueue_jobs",
    "Jobs that Kueue admits, by the state of their Workload (unasked, waiting, reserved, admitted)",
    ["state"],
    registry=REGISTRY,
)
KUEUE_WRITES = Counter(
    "trimtab_kueue_writes_total",
    "Writes to Workloads of Kueue, by kind (create, amend, tell, withdraw)",
    ["kind"],
    registry=REGISTRY,
)
KUEUE_REFUSED = Counter(
    "trimtab_kueue_refused_total",
    "Writes to Workloads of Kueue that were refused for a reason that Trimtab cannot correct",
    registry=REGISTRY,
)


class KubeMetrics:
    """`trimtab.kube.metrics_hooks.FactsObserver` that counts."""

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


class LabelValues:
    """Names of namespaces, or of queues, that have had a label value of their own: whoever may create such objects must
    not fill Prometheus with them. What is counted under a name stays there until the process ends."""

    def __init__(self, most: int = MOST_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        """The value for this name: itself, or that of all others."""
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHERS
            self._known.add(name)
        return name


QUEUE_VALUES, TENANT_VALUES = LabelValues(), LabelValues()
"""Those of this process, as its registry."""


def replace(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
    """Set a labelled gauge to exactly these values, so that a state that no longer occurs does not linger."""
    gauge.clear()
    for labels, value in values.items():
        gauge.labels(*labels).set(value)


def stand_back() -> None:
    """This controller does not lead any more: what the cluster is like is for its successor to say, or twice as many
    GPUs would seem to be there."""
    for labelled in _TOLD_BY_LEADERS:
        labelled.clear()
    for plain in (LEADER, LEADER_EPOCH, MONITOR_JOBS, STALE_GPUNODES, BRAKE, BAD_NODES, DRIFTED_JOBS):
        plain.set(0)


_TOLD_BY_LEADERS = (
    POLICY_INFO,
    MONITOR_RATIO,
    MONITOR_FALLEN,
    JOBS,
    PENDING_JOBS,
    QUEUE_GPUS,
    QUEUE_SHARE,
    QUEUE_PENDING_JOBS,
    GPUS,
    UNHEALTHY_GPUS,
    FOREIGN_GPUS,
    PROBLEMS,
    SPARE_NODES,
    STRAGGLERS,
    IDLE_GPUS,
    PREDICTION_FACTOR,
    PREDICTION_DRIFT,
    CALIBRATION_PROBLEM,
    KUEUE_JOBS,
    ISOLATED_JOBS,
)
"""Gauges of what a leader sees, or has learned."""


def watch_age(resource: str, age_seconds: Callable[[], float]) -> None:
    """Show how old the newest news of a kind is, asked for at scrape time."""
    REFLECTOR_AGE.labels(resource).set_function(age_seconds)
