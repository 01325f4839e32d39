"""What can go wrong, as a tree.

TrimtabError                    everything that Trimtab raises on purpose; its message says what to do
 ├─ UsageError                  the person at the command line asked for something that cannot be done
 ├─ SettingsError               a setting is missing or wrong
 ├─ SpecError                   a field of a job's spec holds what this Trimtab cannot work with
 ├─ QuantityError               a text is no Kubernetes quantity
 ├─ PolicyError                 a policy is unknown, late, or returned something that is no decision
 ├─ LocalClusterError           the local control plane could not be built, started or stopped
 ├─ LeadershipLost              another controller leads, or the lease could not be renewed in time
 └─ ApiError                    the API server answered with an error, or not at all
     ├─ Unreachable             no answer: connection refused or reset, time-out. A write may have happened.
     ├─ NotFound                404
     ├─ Conflict                409: stale resourceVersion, failed UID precondition, pod already bound
     │   └─ AlreadyExists       409 with reason AlreadyExists
     ├─ Gone                    410: the resourceVersion is too old, list again
     ├─ Invalid                 422 or 400: the API server refused the object
     ├─ Forbidden               401 or 403: missing permission, exhausted quota, admission policy
     └─ Overloaded              429, 500, 503, 504: try again after `retry_after`
"""

from __future__ import annotations

from trimtab_policy.policy import PolicyFailure


class TrimtabError(Exception):
    """Base of everything that Trimtab raises on purpose."""


class UsageError(TrimtabError):
    """The command line asked for something that cannot be done."""


class SettingsError(TrimtabError):
    """A setting is missing or wrong."""


class SpecError(TrimtabError):
    """A field of a job's spec holds what this Trimtab cannot work with; `field` is its path: `spec.model.preset`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class QuantityError(TrimtabError, ValueError):
    """A text is no Kubernetes quantity."""


class PolicyError(TrimtabError, PolicyFailure):
    """A policy is unknown, late, or returned something that is no decision."""


class LocalClusterError(TrimtabError):
    """The local control plane could not be built, started or stopped."""


class LeadershipLost(TrimtabError):
    """Another controller leads, or the lease could not be renewed in time."""


class ApiError(TrimtabError):
    """The API server answered with an error (`status`, `reason`), or not at all (`status` 0)."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class Unreachable(ApiError):
    """No answer. A write may have been carried out or not: read back before repeating it blindly."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: stale resourceVersion, failed UID precondition, or a pod that is already bound."""


class AlreadyExists(Conflict):
    """409 with reason AlreadyExists."""


class Gone(ApiError):
    """410: the resourceVersion is too old, list again."""


class Invalid(ApiError):
    """422 or 400: the API server refused the object."""


class Forbidden(ApiError):
    """401 or 403: missing permission, exhausted quota, or an admission policy."""


class Overloaded(ApiError):
    """429 or 5xx: try again after `retry_after` seconds."""
