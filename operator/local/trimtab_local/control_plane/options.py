"""What one cluster has besides the usual: feature gates, further APIs and controllers, a kube-scheduler of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct


class SecondScheduler(Struct, frozen=True):
    """A kube-scheduler beside the stock one. Extenders hold for all profiles of a scheduler: hence a process more."""

    configuration: dict[str, Any]
    """KubeSchedulerConfiguration; how it reaches the API server is filled in."""
    feature_gates: dict[str, bool] = {}
    """Of this scheduler alone."""


class ClusterOptions(Struct, frozen=True):
    """All that can differ between two clusters of the same version."""

    feature_gates: dict[str, bool] = {}
    """Of all Kubernetes components."""
    apis: tuple[str, ...] = ()
    """API versions that are off by default, e.g. `scheduling.k8s.io/v1alpha2`."""
    controllers: tuple[str, ...] = ()
    """Controllers that run besides `components.CONTROLLERS`, e.g. `persistentvolume-binder-controller`."""
    second_scheduler: SecondScheduler | None = None
    restarted: tuple[str, ...] = ()
    """Components that are started again when they end; the end of any other one is the end of the cluster."""
    node_grace: str = ""
    """How long a node may be silent before it is NotReady, e.g. `1h`; empty for the controller manager's own 50 s."""


DEFAULTS = ClusterOptions()


class ExtenderFiles(Struct, frozen=True):
    """PEM files by which a second scheduler and an extender prove to one another who they are."""

    ca: Path
    certificate: Path
    """Of the extender; good for 127.0.0.1 and localhost."""
    key: Path
    client_certificate: Path
    """Of the scheduler."""
    client_key: Path


def gates_flag(*gates: Mapping[str, bool]) -> dict[str, object]:
    """The flag --feature-gates, if any is set; later ones go before earlier ones.

    >>> gates_flag({"A": True}, {"B": False})
    {'feature-gates': 'A=true,B=false'}
    """
    merged = {name: value for table in gates for name, value in table.items()}
    if not merged:
        return {}
    return {"feature-gates": ",".join(f"{name}={str(value).lower()}" for name, value in merged.items())}
