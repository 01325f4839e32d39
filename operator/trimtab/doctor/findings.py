"""What a check says. Reasons are stable words that tools may rely on; messages are for people and may change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from trimtab.ui import words


class Severity(StrEnum):
    """How bad it is, from good to bad."""

    OK = "ok"
    NOT_CHECKED = "notChecked"
    """It could not be looked at: no right to, or no way. Says nothing about the installation."""
    WARNING = "warning"
    """Something works less well than it could, or will not work for somebody."""
    ERROR = "error"
    """Trimtab cannot do its work, or part of it."""


class CheckGroup(StrEnum):
    """What checks are about; the headings of the table."""

    API_SERVER = "API server"
    RIGHTS = "Rights"
    CONTROLLER = "Controller"
    CLOCKS = "Clocks"
    NODES = "GPU nodes"
    AGENTS = "Agents"
    SCHEDULER = "Scheduler"
    JOBS = "Jobs and queues"
    KUEUE = "Kueue"


class Reason(StrEnum):
    """What is wrong, in one word."""

    # the API server
    UNREACHABLE = "Unreachable"
    SERVER_TOO_OLD = "ServerTooOld"
    SERVER_UNTESTED = "ServerUntested"
    CRD_MISSING = "CrdMissing"
    CRD_NOT_ESTABLISHED = "CrdNotEstablished"
    CRD_NOT_SERVED = "CrdNotServed"
    CRD_PRUNES_FIELDS = "CrdPrunesFields"
    CRD_DIFFERS = "CrdDiffers"
    # rights
    RIGHT_MISSING = "RightMissing"
    ACCOUNT_MISSING = "AccountMissing"
    ADMISSION_ABSENT = "AdmissionPoliciesAbsent"
    ADMISSION_NOT_IN_FORCE = "AdmissionPolicyNotInForce"
    ADMISSION_NOT_UNDERSTOOD = "AdmissionPolicyNotUnderstood"
    # the controller
    NO_LEADER = "NoLeader"
    LEADERS_ALTERNATE = "LeadersAlternate"
    LEADER_ELSEWHERE = "LeaderElsewhere"
    EPOCH_BEHIND = "EpochBehind"
    NOT_READY = "NotReady"
    VERSION_DIFFERS = "VersionDiffers"
    POLICY_REFUSED = "PolicyRefused"
    POLICY_REPLACED = "PolicyReplaced"
    STANDING_REFUSED = "StandingRefused"
    # clocks
    CLOCK_HERE = "ClockHere"
    CLOCK_OF_CONTROLLER = "ClockOfController"
    CLOCK_AHEAD = "ClockAhead"
    CLOCK_BEHIND = "ClockBehind"
    # nodes and agents
    NO_GPU_NODES = "NoGpuNodes"
    NO_USABLE_NODES = "NoUsableNodes"
    UNLABELLED = "UnlabelledGpuNode"
    UNKNOWN_PRODUCT = "UnknownGpuProduct"
    NO_DEVICE_PLUGIN = "DevicePluginMissing"
    GPUS_WITHDRAWN = "GpusWithdrawn"
    COUNTS_DISAGREE = "CountsDisagree"
    BAD_LABEL = "BadLabel"
    UNUSABLE = "UnusableGpus"
    NO_DEVICE_CLASS = "DeviceClassMissing"
    DEVICE_CLASS_CHOOSES = "DeviceClassChooses"
    DEVICES_NOT_ALLOCATED = "DevicesNotAllocated"
    RESOURCES_MIXED = "ResourcesMixed"
    STATIC_IMEX = "StaticImexBesideDriver"
    IMEX_DAEMON_NOT_READY = "ImexDaemonNotReady"
    AGENT_MISSING = "AgentMissing"
    AGENT_STALE = "AgentStale"
    AGENT_BLIND = "AgentBlind"
    # the scheduler and its extender
    EXTENDER_ABSENT = "ExtenderAbsent"
    SCHEDULER_ABSENT = "SchedulerAbsent"
    EXTENDER_UNANSWERED = "ExtenderUnanswered"
    SCHEDULER_MISCONFIGURED = "SchedulerMisconfigured"
    CERTIFICATE_ENDS = "CertificateEnds"
    CERTIFICATE_ENDED = "CertificateEnded"
    # jobs and queues
    QUEUE_MALFORMED = "MalformedQueue"
    NAMESPACE_CLAIMED = "NamespaceClaimed"
    GUARANTEE_TOO_LARGE = "GuaranteeTooLarge"
    JOBS_UNBOUNDED = "JobsUnbounded"
    JOB_UNREADABLE = "JobUnreadable"
    JOB_UNSEEN = "JobUnseen"
    JOB_NEVER_STARTS = "JobNeverStarts"
    STOP_OVERDUE = "StopOverdue"
    PODS_ORPHANED = "PodsOrphaned"
    PRIORITY_CLASS_MISSING = "PriorityClassMissing"
    # Kueue
    KUEUE_UNKNOWN = "KueueVersionUnknown"
    KUEUE_MISSING = "KueueNotInstalled"


class Finding(Struct, frozen=True):
    """One thing that a check has to say."""

    level: Severity
    message: str
    """What is so, in a sentence."""
    reason: Reason | None = None
    """None where nothing is wrong."""
    fix: str = ""
    """What to do about it; a command where one does. Of a check that was not made: the right that it needs."""
    objects: tuple[str, ...] = ()
    """`Kind/name` or `Kind/namespace/name` of all that it is about, where it is about single ones."""


class CheckResult(Struct, frozen=True):
    """What one check said."""

    group: CheckGroup
    check: str
    """A few words: what was looked at."""
    findings: tuple[Finding, ...]


WITH_IMAGES = frozenset(("agent.yaml", "extender.yaml", "web.yaml"))
"""Manifests that name images of ours, whose registry has to be said."""


def applied(manifest: str) -> str:
    """The command that applies a file of manifests/."""
    apply, path = "kubectl apply --server-side --force-conflicts -f", f"manifests/{manifest}"
    return f'sed "s|REGISTRY/|$REGISTRY/|" {path} | {apply} -' if manifest in WITH_IMAGES else f"{apply} {path}"


def well(message: str) -> Finding:
    """Nothing is wrong."""
    return Finding(Severity.OK, message)


def warning(reason: Reason, message: str, fix: str, objects: Iterable[str] = ()) -> Finding:
    """Something to mend, at leisure."""
    return Finding(Severity.WARNING, message, reason, fix, tuple(objects))


def error(reason: Reason, message: str, fix: str, objects: Iterable[str] = ()) -> Finding:
    """Something to mend now."""
    return Finding(Severity.ERROR, message, reason, fix, tuple(objects))


def not_checked(message: str, fix: str) -> Finding:
    """It could not be looked at."""
    return Finding(Severity.NOT_CHECKED, message, None, fix)


def count(number: int, noun: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Sequence[str], limit: int = 4) -> str:
    """Names of many nodes in little room: `gpu-[0-17], old-3 +2`."""
    return words.nodes(sorted(names), limit)


def some(names: Sequence[str], limit: int = 3) -> str:
    """The first few of many names: `a, b, c and 4 more`."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
