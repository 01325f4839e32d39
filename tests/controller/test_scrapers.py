"""Who may read metrics, by the API server's own word."""

from __future__ import annotations

import json

import aiohttp
import pytest
from tests.conftest import Kubectl

from trimtab.kube.client import KubeClient
from trimtab.settings import HttpSettings, KubeSettings
from trimtab.telemetry.scrapers import scrapers_of
from trimtab.telemetry.server import TelemetryServer
from trimtab_local.control_plane.cluster import LocalCluster

LOCAL = HttpSettings(host="127.0.0.1", port=0, authentication="Kubernetes")
READER = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "metrics-reader"},
    "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
}


@pytest.mark.cluster
async def test_the_account_that_is_bound_reads_metrics_and_others_do_not(
    cluster: LocalCluster, kubectl: Kubectl
) -> None:
    kubectl("create", "namespace", "monitoring")
    kubectl("apply", "-f", "-", stdin=json.dumps(READER))
    tokens = {"nobody": "rubbish"}
    for name in ("prometheus", "visitor"):
        kubectl("create", "serviceaccount", name, "-n", "monitoring")
        tokens[name] = kubectl("create", "token", name, "-n", "monitoring").strip()
    bound = ("--clusterrole", "metrics-reader", "--serviceaccount", "monitoring:prometheus")
    kubectl("create", "clusterrolebinding", "metrics-reader", *bound)
    async with await KubeClient.connect(KubeSettings(kubeconfig=cluster.kubeconfig)) as client:
        server = TelemetryServer(LOCAL, lambda: "", lambda: "", scrapers=scrapers_of(LOCAL, client))
        async with server, aiohttp.ClientSession(server.url) as session:
            found = {}
            for name, token in tokens.items():
                async with session.get("/metrics", headers={"Authorization": f"Bearer {token}"}) as answer:
                    found[name] = answer.status
    assert found == {"prometheus": 200, "visitor": 403, "nobody": 401}
    kubectl("delete", "namespace", "monitoring", "--wait=false")
    for kind in ("clusterrolebinding", "clusterrole"):
        kubectl("delete", kind, "metrics-reader")
