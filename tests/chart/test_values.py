"""Values: each is explained and checked; what cannot work is refused with words that help."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from hack.chart.render import RenderError, render
from tests.chart.rendered import chart_file, environment_of, manifest, objects, objects_of, the, workloads

from trimtab.doctor.checks.admission import LIMITS, OPEN
from trimtab.settings import Settings
from trimtab_policy import policy

pytestmark = pytest.mark.timeout(1800)  # the first test builds helm

VALUES = yaml.safe_load(chart_file("values.yaml").read_text())
SCHEMA = json.loads(chart_file("values.schema.json").read_text())
FREE = {"global", "settings"}
"""`global` is a parent chart's; `settings` is checked against the settings' own models."""


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with what it refers to."""
    reference = schema.get("$ref", "").removeprefix("#/$defs/")
    return SCHEMA["$defs"][reference] | schema if reference else schema


def paths(schema: dict[str, Any], values: object, at: str = "") -> list[tuple[str, bool, bool]]:
    """Path of every value or property: whether the schema has it, and whether values.yaml has."""
    properties = resolved(schema).get("properties", {})
    if not properties or not isinstance(values, dict) or not values:
        return []
    found = []
    for key in properties.keys() | values.keys():
        path = f"{at}.{key}".removeprefix(".")
        if path not in FREE:
            found.append((path, key in properties, key in values))
            found += paths(properties.get(key, {}), values.get(key), path)
    return found


def test_schema_and_values_know_the_same() -> None:
    exempt = re.compile(r"(fakeNodes\.profile|.*\.resources)\.")  # objects of others, of which few keys are needed
    assert [each for each in paths(SCHEMA, VALUES) if not (each[1] and each[2]) and not exempt.match(each[0])] == []


def test_nothing_unknown_is_taken_and_everything_is_described() -> None:
    def walk(schema: dict[str, Any], at: str) -> list[str]:
        faults = []
        for key, each in schema.get("properties", {}).items():
            faults += [f"{at}.{key}: no description"] if not each.get("description") else []
            full = resolved(each)
            closed = full.get("additionalProperties") is not None or full.get("type") != "object"
            faults += [] if closed or "properties" not in full else [f"{at}.{key}: open"]
            faults += walk(full, f"{at}.{key}") if f"{at}.{key}" != ".settings" else []
        return faults

    assert SCHEMA["additionalProperties"] is False
    assert walk(SCHEMA, "") == []


def test_every_value_has_a_comment() -> None:
    key = re.compile(r"^( *)([A-Za-z]+):(.*)$")
    lines = chart_file("values.yaml").read_text().splitlines()
    bare, explained = [], False
    for line in lines:
        if line.strip().startswith("#"):
            explained = explained or line.strip().startswith("# --")
        elif found := key.match(line):
            is_group = not found[3].strip() or (found[2] in ("requests", "limits") and len(found[1]) == 4)
            inside = len(found[1]) > 2 and found[2] in ("name", "description", "racksPerBlock", "pools")
            if not (explained or is_group or inside):
                bare.append(line)
            explained = False
    assert bare == []


def test_policies_are_those_that_there_are() -> None:
    known = SCHEMA["properties"]["policy"]["properties"]
    names = list(policy.names())
    assert known["name"]["enum"] == names
    assert known["shadow"]["enum"] == ["", *names]
    assert known["fallback"]["enum"] == [name for name in names if policy.entry(name).kind is not policy.Kind.LEARNED]


def test_the_fake_cluster_is_the_one_of_the_manifests() -> None:
    assert [VALUES["fakeNodes"]["profile"]] == manifest("fake/heterogeneous.yaml")


FORMER_LIMIT = "maxTemplateCharacters"


def test_limits_are_those_of_the_admission_rules() -> None:
    limits = SCHEMA["properties"]["admission"]["properties"]["limits"]["properties"]
    assert tuple(limits) == (*LIMITS, FORMER_LIMIT, *OPEN, "openFinalizers", "addedByWebhooks", "podMakers")


WRONG = {
    "colour: red": "colour",
    "controller: {replica: 2}": "replica",
    "controller: {replicas: many}": "/controller/replicas",
    "controller: {replicas: 5}": "maximum",
    "image: {pullPolicy: Sometimes}": "IfNotPresent",
    "policy: {name: best-fit}": "best_fit",
    "policy: {fallback: q_learning}": "/policy/fallback",
    "policy: {deadlineSeconds: 0}": "/policy/deadlineSeconds",
    "policy: {deadlineSeconds: 31}": "30",
    "settings: {queue: {reservations: 2}}": "queue",
    "settings: {queues: {reservation: 2}}": "reservation",
    "settings: {queues: {reservations: -1}}": "/settings/queues/reservations",
    "controller: {resources: {limits: {memory: 1 GB}}}": "/controller/resources/limits/memory",
    "controller: {extraEnv: [{name: A, value: 1}]}": "/controller/extraEnv/0/value",
    "binding: {schedulerName: default-scheduler}": "/binding/schedulerName",
    "reports: {port: 8080}": "/reports/port",
    "agent: {dcgmUrl: localhost:9400}": "/agent/dcgmUrl",
    "fakeNodes: {profile: {name: none, pools: []}}": "/fakeNodes/profile/pools",
    "extender: {tls: {mode: Self}}": "CertManager",
    "networkPolicy: {extenderFrom: [{ipBlock: {}}]}": "cidr",
    "binding: {mode: Extender}": "set extender.enabled, or binding.mode to Direct",
    "{binding: {mode: Extender}, scheduler: {enabled: true}}": "asks the extender, which is off",
    "{extender: {enabled: true}, scheduler: {enabled: true}}": "with binding.mode Direct the controller binds",
    "{binding: {mode: Extender}, extender: {enabled: true}, scheduler: {enabled: true, beside: [trimtab]}}": (
        "trimtab is binding.schedulerName already"
    ),
    "extender: {enabled: true, tls: {mode: Secret}}": "tls.crt, tls.key and client-ca.crt in extender.tls.secretName",
    "{binding: {mode: Extender}, extender: {enabled: true, tls: {mode: Secret, secretName: a}}, "
    "scheduler: {enabled: true}}": "of kube-scheduler in scheduler.tls.secretName",
    "extender: {enabled: true, tls: {secretName: mine}}": "or set extender.tls.mode to Secret",
    "extender: {enabled: true, tls: {certManager: {issuerRef: {name: a, kind: Issuer}}}}": "mode to CertManager",
    "extender: {enabled: true, inspectNames: [trimtab-scheduler]}": "among extender.clientNames, too",
    "extender: {enabled: true, replicas: 1}": "minAvailable is 1 of 1 replicas: nodes with them could never be drained",
    "controller: {replicas: 1}": "controller.podDisruptionBudget.minAvailable is 1 of 1 replicas",
    "image: {registry: ''}": "name the registry that trimtab-operator, trimtab-agent come from",
    "{image: {registry: ''}, agent: {enabled: false}}": "name the registry that trimtab-operator come from",
    "controller: {serviceAccount: {create: false}}": "name the account to use in controller.serviceAccount.name",
    "policy: {weights: {configMap: {name: a}, persistentVolumeClaim: {name: b}}}": "one source, not 2",
    "policy: {weights: {subPath: a}}": "of what? Name an image",
    "policy: {shadow: rudder}": "rudder decides already",
    "agent: {backend: fake}": "needs agent.profile",
    "agent: {profile: {gpus: 8}}": "agent.profile is for agent.backend fake, not nvml",
    "agent: {backend: amd, runtimeClassName: nvidia}": "is for agent.backend nvml, not amd",
    "{fakeNodes: {enabled: true}, controller: {replicas: 0}}": "nobody would decide anything",
    "networkPolicy: {enabled: false, metricsScraperNamespace: monitoring}": "would limit nobody",
    "networkPolicy: {extenderFrom: [{podSelector: {}}]}": "the extender is off",
    "networkPolicy: {webFrom: [{podSelector: {}}]}": "the console is off",
    "web: {enabled: true}": "web.tls.secretName",
    "web: {ingress: {enabled: true, host: a.example}}": "set web.enabled",
    "web: {enabled: true, insecure: true, ingress: {enabled: true}}": "web.ingress.host",
    "{reports: {enabled: false}, networkPolicy: {reportsFrom: [{podSelector: {}}]}}": "nobody listens for reports",
    "metrics: {authentication: Basic}": "Kubernetes",
    "metrics: {authentication: Kubernetes}": "name the Secret of a certificate in metrics.tls.secretName",
    "metrics: {tls: {agentSecretName: a}}": "what Prometheus trusts",
    "metrics: {tls: {secretName: a, agentSecretName: a}}": "could pass for the controller",
    "metrics: {tls: {secretName: a, verifyClients: true}}": "name both Secrets",
    "serviceMonitor: {clientSecretName: a}": "nobody asks for a certificate",
    "{metrics: {tls: {secretName: a, agentSecretName: b, verifyClients: true}}, serviceMonitor: {enabled: true}}": (
        "every scrape would be refused"
    ),
    "serviceMonitor: {tokenSecretName: a}": "nobody asks for a token",
    'reports: {tls: {secretName: a, ca: "-----BEGIN PRIVATE KEY-----"}}': "/reports/tls/ca",
    'reports: {tls: {ca: "-----BEGIN CERTIFICATE-----"}}': "in reports.tls.secretName",
    "reports: {enabled: false, tls: {secretName: a}}": "nobody listens for reports",
    "settings: {metrics: {tls: {certificate: a, key: b}}}": "settings.metrics.tls: use metrics.tls instead",
    "settings: {binding: {mode: Extender}}": "settings.binding.mode: use binding.mode instead",
    "settings: {interop: {other_kinds: Advise}}": "settings.interop.other_kinds: use otherKinds.advise instead",
    "{otherKinds: {advise: true}, admission: {enabled: false}}": "otherKinds.advise needs admission.enabled",
    "settings: {interop: {place: Labelled}}": "settings.interop.place: use otherKinds.place instead",
    "{otherKinds: {place: true}, admission: {enabled: false}}": "otherKinds.place needs admission.enabled",
    "controller: {extraEnv: [{name: TRIMTAB_BINDING__MODE, value: Direct}]}": "sets TRIMTAB_BINDING__MODE, which the",
}
"""Values, and what has to be in the words by which they are refused."""


@pytest.mark.parametrize("values", WRONG)
def test_what_cannot_work_is_refused_with_words_that_help(values: str) -> None:
    with pytest.raises(RenderError) as refusal:
        render(values=values)
    assert WRONG[values] in str(refusal.value)


@pytest.mark.parametrize(
    "values",
    [
        "image: {registry: '', pullPolicy: Never}",
        "{image: {registry: ''}, agent: {enabled: false}, controller: {image: {repository: example.com/own/trimtab}}}",
    ],
)
def test_a_registry_is_not_needed_where_nothing_is_pulled_or_repositories_name_theirs(values: str) -> None:
    assert "image: " in render(values=values)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(RenderError) as refusal:
        render(values="{binding: {mode: Extender}, agent: {backend: fake}, policy: {shadow: rudder}}")
    assert str(refusal.value).count("\n  - ") == 3


def test_weights_in_a_folder_of_an_image_need_a_kubernetes_that_can() -> None:
    values = "policy: {weights: {image: {reference: example.com/weights:1}, subPath: a}}"
    assert "subPath: a" in render(values=values)
    with pytest.raises(RenderError, match=r"from Kubernetes 1\.33 on"):
        render("--kube-version", "v1.32.0", values=values)


def test_an_older_kubernetes_is_refused() -> None:
    with pytest.raises(RenderError, match=r">=1\.32"):
        render("--kube-version", "v1.31.9")


@pytest.mark.parametrize("name", ["extender", "fake", "guarded"])
def test_what_the_chart_sets_may_not_be_set_in_the_settings(name: str) -> None:
    """Every variable of ours that has a setting: it would win over the file without a word."""
    variables = {each for workload in workloads(objects_of(name)) for each in environment_of(workload)}
    nested = sorted(each for each in variables if each.startswith("TRIMTAB_") and "__" in each)
    assert nested
    for variable in nested:
        section, field = variable.removeprefix("TRIMTAB_").lower().split("__")[:2]
        default = getattr(getattr(Settings(), section), field)
        if default is None or not isinstance(default, str | int | float | bool):
            continue  # a path or a list: what is refused is the key, and the schema wants a fitting value
        with pytest.raises(RenderError, match=f"settings.{section}.{field}: use "):
            render(values=json.dumps({"settings": {section: {field: default}}}))


def test_more_settings_reach_every_process_as_a_file() -> None:
    given = {"queues": {"reservations": 2}, "failures": {"spares": "Auto"}}
    rendered = objects(json.dumps({"settings": given, "agent": {"namespace": "agents"}}))
    files = [
        each for each in rendered if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "trimtab-settings"
    ]
    assert {each["metadata"]["namespace"] for each in files} == {"trimtab-system", "agents"}
    assert all(yaml.safe_load(each["data"]["settings.yaml"]) == given for each in files)
    for kind, name in (("Deployment", "trimtab-controller"), ("DaemonSet", "trimtab-agent")):
        assert environment_of(the(kind, name, rendered))["TRIMTAB_CONFIG"] == "/etc/trimtab/settings/settings.yaml"
