"""The KubeSchedulerConfiguration under which a kube-scheduler asks the extender, safe by construction.

Most of its fields are there because of something that kube-scheduler 1.36 was seen to do without them:

    postFilter disabled '*'        a pod that a filter refuses makes DefaultPreemption kill running pods on nodes that
                                   failed for another reason; that dry run never asks the extender
    preemptVerb                    the same, should a profile bring preemption back: for our pods the answer is empty
    percentageOfNodesToScore 100   of our profile: otherwise an extender sees a moving sample of nodes, seldom the one
                                   of the plan. Other profiles keep the sample: 420 of 1,000 nodes
    nodeCacheCapable true          5,000 whole nodes are 65 MB of JSON for each pod, their names 85 kB
    ignorable false                with true, pods are placed without us whenever we do not answer
    ignoredByScheduler false       with true, kube-scheduler stops counting GPUs: three 8-GPU pods on one 8-GPU node
    managedResources               pods without GPUs cost no call
    httpTimeout                    calls are serial: one that hangs holds up all other pods for so long
    TLS with a CA                  enableHTTPS without one switches the check of our certificate off, silently

`prioritizeVerb` is left out unless asked for: the filter leaves one node to a pod of ours, and nothing to say about
others. So is `bindVerb`: a time-out after a binding that succeeded is only healed by kube-scheduler's informer, and its
own binder needs no call. Extenders hold for all profiles of a configuration; `beside` names profiles for other pods,
which go through untouched and keep their preemption.

Pods that are refused come back with every event in the cluster (8,600 calls in 8 s were seen), unless kube-scheduler
runs with `FEATURE_GATES`. Gated pods, which is what ours are until their whole gang exists, never come at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from trimtab import names
from trimtab.errors import SettingsError
from trimtab.serving.tls import loopback

FEATURE_GATES: Final[Mapping[str, bool]] = {"SchedulerPopFromBackoffQ": False}
"""Of the kube-scheduler that uses this: pods that were refused wait out their back-off."""
HTTP_TIMEOUT_SECONDS: Final = 1.0
QPS, BURST = 500, 1000
SCORE_WEIGHT: Final = 20
"""Our score of 10 counts 10 × 10 × this: more than all scores of kube-scheduler's default plugins together (1,200)."""


class ExtenderTls(Struct, frozen=True):
    """PEM files as kube-scheduler finds them. It reads them once, at its start."""

    ca: str
    """Authority of the extender's certificate."""
    certificate: str = ""
    """What kube-scheduler shows, where the extender asks for client certificates."""
    key: str = ""
    server_name: str = ""
    """Name in the extender's certificate, where it is not the host of the URL."""


def scheduler_configuration(
    url: str,
    *,
    tls: ExtenderTls | None = None,
    scheduler_name: str = names.SCHEDULER_NAME,
    beside: Sequence[str] = (),
    kubeconfig: str = "",
    lease: tuple[str, str] | None = None,
    prioritize: bool = False,
    bind: bool = False,
    timeout_seconds: float = HTTP_TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """A KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1) as a plain dict, to be written as YAML or JSON.

    `url` is where the extender listens, without a verb. `scheduler_name` is the profile of our pods, `beside` are
    stock profiles of the same process. `kubeconfig` is a path; empty in a pod. `lease` is namespace and name of the
    Lease by which replicas elect a leader; none for a single process.

    Raises SettingsError for what would not be safe: TLS without a CA, plain HTTP beyond this machine, a profile twice.
    """
    _check(url, tls, (scheduler_name, *beside), timeout_seconds)
    ours = {
        "schedulerName": scheduler_name,
        "percentageOfNodesToScore": 100,
        "plugins": {"postFilter": {"disabled": [{"name": "*"}]}},
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": _leader_election(lease),
        "clientConnection": {"qps": QPS, "burst": BURST} | ({"kubeconfig": kubeconfig} if kubeconfig else {}),
        "profiles": [ours, *({"schedulerName": name} for name in beside)],
        "extenders": [_extender(url, tls, timeout_seconds, prioritize=prioritize, bind=bind)],
    }


def _extender(
    url: str, tls: ExtenderTls | None, timeout_seconds: float, *, prioritize: bool, bind: bool
) -> dict[str, Any]:
    return {
        "urlPrefix": url.rstrip("/"),
        "filterVerb": "filter",
        "preemptVerb": "preempt",
        **({"prioritizeVerb": "prioritize", "weight": SCORE_WEIGHT} if prioritize else {}),
        **({"bindVerb": "bind"} if bind else {}),
        "enableHTTPS": tls is not None,
        **({"tlsConfig": _tls(tls)} if tls else {}),
        "httpTimeout": f"{round(timeout_seconds * 1000)}ms",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in names.GPU_RESOURCES],
    }


def _tls(tls: ExtenderTls) -> dict[str, Any]:
    fields = {
        "caFile": tls.ca,
        "certFile": tls.certificate,
        "keyFile": tls.key,
        "serverName": tls.server_name,
    }
    return {"insecure": False} | {name: value for name, value in fields.items() if value}


def _leader_election(lease: tuple[str, str] | None) -> dict[str, Any]:
    if lease is None:
        return {"leaderElect": False}
    namespace, name = lease
    return {"leaderElect": True, "resourceNamespace": namespace, "resourceName": name}


def _check(url: str, tls: ExtenderTls | None, profiles: Sequence[str], timeout_seconds: float) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"the extender's URL must be http://HOST or https://HOST, not {url!r}")
    if parts.scheme == "https" and not (tls and tls.ca):
        raise SettingsError(f"{url}: give the CA of the extender's certificate, or kube-scheduler checks none at all")
    if parts.scheme == "http" and tls:
        raise SettingsError(f"{url}: TLS files are for an https:// URL")
    if parts.scheme == "http" and not loopback(parts.hostname):
        raise SettingsError(f"{url}: anybody could answer in our place; use https:// beyond this machine")
    if tls and bool(tls.certificate) != bool(tls.key):
        raise SettingsError("a client certificate needs its key, and a key its certificate")
    if len(set(profiles)) < len(profiles) or not all(profiles):
        raise SettingsError(f"every profile needs a name of its own, not {', '.join(map(repr, profiles))}")
    if timeout_seconds < 0.001:
        raise SettingsError(f"a time-out of {timeout_seconds:g} s leaves no time to answer")
