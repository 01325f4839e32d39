"""What watches Trimtab: alerts with a runbook, a dashboard of metrics that there are, scrapes that find them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from prometheus_client.core import CollectorRegistry
from tests.chart.rendered import Object, chart_file, container_of, environment_of, manifest, objects, pod_of, the

from trimtab.doctor import rbac
from trimtab.telemetry import agent_metrics, metrics
from trimtab.telemetry.extender_metrics import EXTENDER_REQUESTS
from trimtab_policy.types import NEVER_STARTS, PendingReason

pytestmark = pytest.mark.timeout(1800)  # the first test builds helm

ON = "{prometheusRule: {enabled: true}, grafanaDashboard: {enabled: true}, serviceMonitor: {enabled: true}}"
DASHBOARD = json.loads(chart_file("files/dashboard.json").read_text())
PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
EXPRESSIONS = [(each["title"], target["expr"]) for each in PANELS for target in each["targets"]]
OF_PROMETHEUS = {"le", "namespace", "instance", "pod"}
"""Labels that come with a scrape, and of histograms."""


def series(registries: Iterable[CollectorRegistry]) -> dict[str, set[str]]:
    """Name of every sample that is served, and its labels."""
    found: dict[str, set[str]] = {}
    for registry in registries:
        for collector in list(registry._collector_to_names):  # the registry shows samples only, and these have none yet
            labels = set(getattr(collector, "_labelnames", ()))
            found |= dict.fromkeys(registry._collector_to_names[collector], labels)
    for name, _ in agent_metrics.GPU_GAUGES.values():
        found[name] = set(agent_metrics.GPU_LABELS)
    found["trimtab_gpu_xid_errors_total"] = {"gpu", "uuid", "xid"}
    return found


SERIES = series([metrics.REGISTRY, agent_metrics.REGISTRY])
assert EXTENDER_REQUESTS in metrics.REGISTRY._collector_to_names  # its module has added the extender's


def rules(rule: Object) -> list[Object]:
    return [each for group in rule["spec"]["groups"] for each in group["rules"]]


def alerts(values: str) -> Iterator[tuple[Object, dict[str, str]]]:
    """Alerts as they are rendered, each as that of the manifest, and what its annotations have beyond that."""
    (wanted,) = manifest("alerts.yaml")
    found = the("PrometheusRule", "trimtab", objects(values))
    for group, rendered in zip(wanted["spec"]["groups"], found["spec"]["groups"], strict=True):
        assert group["name"] == rendered["name"]
        for alert, ours in zip(group["rules"], rendered["rules"], strict=True):
            more = {key: ours["annotations"][key] for key in ours["annotations"].keys() - alert["annotations"].keys()}
            told = {key: ours["annotations"][key] for key in alert["annotations"]}
            assert ours | {"annotations": told} == alert
            yield alert, more


def test_alerts_are_the_manifests_each_with_its_section_of_the_runbook() -> None:
    for alert, more in alerts(ON):
        assert more == {"runbook": section(alert["alert"])}


def test_or_with_a_link_where_the_runbook_is_served() -> None:
    for alert, more in alerts("prometheusRule: {enabled: true, runbookUrl: https://wiki.example.com/trimtab}"):
        assert more == {"runbook_url": f"https://wiki.example.com/trimtab#{alert['alert'].lower()}"}


def section(alert: str) -> str:
    """Of the runbook, without its heading; nothing that Prometheus would take for a template."""
    text = chart_file("RUNBOOK.md").read_text().partition(f"\n## {alert}\n")[2].partition("\n## ")[0].strip()
    assert "{{" not in text
    return text


def test_the_runbook_has_a_section_for_every_alert_and_no_other() -> None:
    sections = re.findall(r"^## (\w+)$", chart_file("RUNBOOK.md").read_text(), re.MULTILINE)
    (alerts,) = manifest("alerts.yaml")
    assert sorted(sections) == sorted(each["alert"] for each in rules(alerts))


def test_the_runbook_is_as_grave_as_the_alert() -> None:
    (alerts,) = manifest("alerts.yaml")
    for each in rules(alerts):
        assert section(each["alert"]).lower().startswith(f"*{each['labels']['severity']}.*"), each["alert"]


def test_jobs_that_never_start_are_those_that_the_doctor_names() -> None:
    (alerts,) = manifest("alerts.yaml")
    asked = {each["alert"]: set(re.findall(r"\b[A-Z]\w+", each["expr"])) for each in rules(alerts)}
    assert asked["TrimtabJobNeverStarts"] == {reason.value for reason in NEVER_STARTS}
    assert asked["TrimtabJobWaitingTooLong"] <= {reason.value for reason in PendingReason} - {*NEVER_STARTS}


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS, ids=lambda text: text[:30])
def test_panels_show_metrics_that_there_are_by_labels_that_they_have(title: str, expression: str) -> None:
    asked = set(re.findall(r"\b(?:trimtab|process)_\w+", expression))
    assert asked, title
    assert asked <= SERIES.keys() | {"process_resident_memory_bytes"}
    known = set.union(*(SERIES.get(name, set()) for name in asked)) | OF_PROMETHEUS
    used = {word.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for word in group.split(",")}
    used |= set(re.findall(r"[{,]\s*(\w+)\s*[=!]~?", expression))
    assert used <= known


def test_the_dashboard_asks_for_namespace_and_policy() -> None:
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "namespace", "policy"}
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r"\$\{?(\w+)\}?", text)) - {"__all", "__rate_interval"} == variables


def test_panels_neither_overlap_nor_share_a_number() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        return {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}

    taken = [cell for panel in DASHBOARD["panels"] for cell in cells(panel)]
    assert len(taken) == len(set(taken))
    numbers = [each["id"] for each in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))


def test_the_dashboard_arrives_as_it_is() -> None:
    arrived = the("ConfigMap", "trimtab-dashboard", objects(ON))
    assert json.loads(arrived["data"]["trimtab.json"]) == DASHBOARD
    assert arrived["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_scrapes_find_every_process() -> None:
    found = objects(f"{{agent: {{namespace: agents}}, extender: {{enabled: true}}, {ON[1:]}")
    monitor = the("ServiceMonitor", "trimtab", found)["spec"]
    (label,) = monitor["selector"]["matchLabels"].items()
    services = [each for each in found if each["kind"] == "Service" and label in each["metadata"]["labels"].items()]
    assert {each["spec"]["selector"]["app.kubernetes.io/name"] for each in services} == {
        "trimtab-controller", "trimtab-extender", "trimtab-agent",
    }  # fmt: skip
    assert {each["metadata"]["namespace"] for each in services} == set(monitor["namespaceSelector"]["matchNames"])
    assert {port["name"] for each in services for port in each["spec"]["ports"]} == {monitor["endpoints"][0]["port"]}


def test_who_verifies_clients_has_their_authority_and_prometheus_shows_a_certificate() -> None:
    found = objects("""
    extender: {enabled: true}
    metrics: {tls: {secretName: ours, agentSecretName: theirs, verifyClients: true}}
    serviceMonitor: {enabled: true, clientSecretName: shown}
    """)
    for name in ("trimtab", "trimtab-agent"):
        (endpoint,) = the("ServiceMonitor", name, found)["spec"]["endpoints"]
        assert endpoint["tlsConfig"]["cert"] == {"secret": {"name": "shown", "key": "tls.crt"}}
        assert endpoint["tlsConfig"]["keySecret"] == {"name": "shown", "key": "tls.key"}
    for kind, name in (
        ("Deployment", "trimtab-controller"),
        ("Deployment", "trimtab-extender"),
        ("DaemonSet", "trimtab-agent"),
    ):
        asked = environment_of(the(kind, name, found))["TRIMTAB_METRICS__TLS__CLIENT_CA"]
        assert asked == "/etc/trimtab/metrics-tls/client-ca.crt"


def test_over_tls_agents_have_a_key_of_their_own_and_do_not_see_prometheus_token() -> None:
    secure = """
    agent: {namespace: agents}
    extender: {enabled: true}
    metrics: {tls: {secretName: ours, agentSecretName: theirs}, authentication: Kubernetes}
    serviceMonitor: {enabled: true, tokenSecretName: shown}
    """
    found = objects(secure)
    ca = {"secret": {"name": "ours", "key": "ca.crt"}}
    for name, operator, server in (
        ("trimtab", "NotIn", "trimtab-controller-metrics.trimtab-system.svc"),
        ("trimtab-agent", "In", "trimtab-agent-metrics.agents.svc"),
    ):
        spec = the("ServiceMonitor", name, found)["spec"]
        (which,) = spec["selector"]["matchExpressions"]
        assert (which["operator"], which["values"]) == (operator, ["agent"])
        (endpoint,) = spec["endpoints"]
        assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", {"serverName": server, "ca": ca})
        token = {"credentials": {"name": "shown", "key": "token"}} if name == "trimtab" else None
        assert endpoint.get("authorization") == token
        assert "bearerTokenFile" not in endpoint
    for kind, name, secret, asks in (
        ("Deployment", "trimtab-controller", "ours", "Kubernetes"),
        ("Deployment", "trimtab-extender", "ours", "Kubernetes"),
        ("DaemonSet", "trimtab-agent", "theirs", None),
    ):
        workload = the(kind, name, found)
        assert environment_of(workload).get("TRIMTAB_METRICS__AUTHENTICATION") == asks
        (volume,) = (each for each in pod_of(workload)["volumes"] if each["name"] == "metrics-tls")
        assert volume["secret"]["secretName"] == secret
        (mount,) = (each for each in container_of(workload)["volumeMounts"] if each["name"] == "metrics-tls")
        assert environment_of(workload)["TRIMTAB_METRICS__TLS__KEY"] == f"{mount['mountPath']}/tls.key"


def test_who_asks_about_scrapers_may_and_by_default_nobody_does() -> None:
    found = objects("metrics: {tls: {secretName: ours}, authentication: Kubernetes}")
    rules = the("ClusterRole", "trimtab-metrics-reviewer", found)["rules"]
    assert rules == [need.rule() for need in rbac.OF_REVIEWER], "what `trimtab doctor` misses otherwise"
    bound = the("ClusterRoleBinding", "trimtab-controller-metrics", found)
    assert bound["roleRef"]["name"] == "trimtab-metrics-reviewer"
    reader = the("ClusterRole", "trimtab-metrics-reader", found)
    assert reader["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    assert "subjectaccessreviews" not in str(
        [each.get("rules") for each in objects() if each["metadata"]["name"] != "trimtab-test-doctor"]
    )
