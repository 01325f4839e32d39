"""What is deployed: the rights that the extender has, how its pods run, and how kube-scheduler finds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab import names
from trimtab.extender import tls
from trimtab.extender.config import FEATURE_GATES, ExtenderTls, scheduler_configuration
from trimtab.settings import load

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
EXTENDER = list(yaml.safe_load_all((MANIFESTS / "extender.yaml").read_text()))
SCHEDULER = list(yaml.safe_load_all((MANIFESTS / "scheduler.yaml").read_text()))
DEPLOYMENTS = [obj for obj in (*EXTENDER, *SCHEDULER) if obj["kind"] == "Deployment"]
EXTENDER_ACCOUNT = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:trimtab-extender"


def the(kind: str, objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (obj for obj in objects if obj["kind"] == kind)
    return found


def pod_of(deployment: dict[str, Any]) -> dict[str, Any]:
    return dict(deployment["spec"]["template"]["spec"])


def test_kube_scheduler_is_configured_as_the_generator_says() -> None:
    written = yaml.safe_load(the("ConfigMap", SCHEDULER)["data"]["scheduler.yaml"])
    service = the("Service", EXTENDER)["metadata"]
    directory = "/etc/trimtab/tls"
    assert written == scheduler_configuration(
        f"https://{service['name']}.{service['namespace']}.svc",
        tls=ExtenderTls(f"{directory}/ca.crt", f"{directory}/tls.crt", f"{directory}/tls.key"),
        lease=(names.SYSTEM_NAMESPACE, "trimtab-scheduler"),
    )
    (container,) = pod_of(the("Deployment", SCHEDULER))["containers"]
    gates = ",".join(f"{gate}={str(on).lower()}" for gate, on in FEATURE_GATES.items())
    assert f"--feature-gates={gates}" in container["command"]


def test_the_extender_may_look_at_nodes_and_pods_and_nothing_else() -> None:
    rules = [rule for obj in EXTENDER for rule in obj.get("rules", [])]
    assert rules == [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]}]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: str(deployment["metadata"]["name"]))
def test_pods_run_as_nobody_with_nothing_to_write_to_and_a_twin_elsewhere(deployment: dict[str, Any]) -> None:
    pod = pod_of(deployment)
    (container,) = pod["containers"]
    assert deployment["spec"]["replicas"] == 2
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} == container["resources"]["requests"].keys()
    assert {"readinessProbe", "livenessProbe"} <= container.keys()
    assert not set(names.GPU_RESOURCES) & container["resources"]["requests"].keys()
    (twin,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert twin["podAffinityTerm"]["labelSelector"]["matchLabels"] == deployment["spec"]["selector"]["matchLabels"]


def test_the_extender_asks_for_kube_schedulers_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = pod_of(the("Deployment", EXTENDER))["containers"]
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    settings = load().extender
    assert settings.client_ca == Path("/etc/trimtab/tls/client-ca.crt")
    assert settings.client_names == ("trimtab-scheduler",)
    assert settings.inspect_names == ("trimtab-inspect",)
    tls.check(settings)
    assert not settings.bind
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"https": settings.port, "metrics": load(process="extender").metrics.port}


@pytest.mark.cluster
def test_the_api_server_takes_the_manifests_and_grants_what_they_say(kubectl: Callable[..., str]) -> None:
    for name in ("extender.yaml", "scheduler.yaml"):
        kubectl("apply", "--server-side", "--dry-run=server", "-f", str(MANIFESTS / name))
    rights = [obj for obj in EXTENDER if obj["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")]
    kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(rights))
    granted = kubectl("auth", "can-i", "--list", f"--as={EXTENDER_ACCOUNT}", "--no-headers")
    lines = [line.split() for line in granted.splitlines()]
    ours = {
        words[0] for words in lines if words[0] in ("pods", "nodes", "pods/binding", "secrets", "*.*", "configmaps")
    }
    assert ours == {"pods", "nodes"}
