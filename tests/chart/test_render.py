"""What the chart renders: the same as manifests/, with values; only what is in use; as safe as it can be."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.chart.render import CHART, INSTALL, NAMED, helm, install
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from tests.chart.rendered import (
    EVERYTHING,
    FILES,
    MANIFESTS,
    Object,
    called,
    container_of,
    environment_of,
    manifest,
    objects,
    objects_of,
    pod_of,
    text_of,
    the,
    workloads,
)

from trimtab import names
from trimtab.doctor import rbac
from trimtab.extender import tls
from trimtab.extender.config import ExtenderTls, scheduler_configuration
from trimtab.settings import Process, load

pytestmark = pytest.mark.timeout(1800)  # the first test builds helm

EXTENDER = (
    "{binding: {mode: Extender}, extender: {enabled: true}, scheduler: {enabled: true},"
    " web: {enabled: true, tls: {secretName: trimtab-web-tls}}}"
)
ROOT = CHART.parents[1]
PROCESSES: dict[str, Process] = {
    "trimtab-extender": "extender",
    "trimtab-agent": "agent",
    "trimtab-fake-nodes": "agent",
    "trimtab-web": "web",
}
"""What runs in a workload, by its name; in all others that have settings it is the controller."""


class Manifests(SingleFileSnapshotExtension):
    """A snapshot that is a file of YAML."""

    _write_mode = WriteMode.TEXT
    file_extension = "yaml"


def rules_of(kind: str, name: str, among: list[Object]) -> list[Object]:
    """Rules of a role, in an order of their own."""
    return sorted(the(kind, name, among)["rules"], key=json.dumps)


# --- the whole -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FILES)
def test_helm_has_nothing_to_complain_of(name: str) -> None:
    said = helm("lint", "--strict", str(CHART), "--values", str(FILES[name]))
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert "[WARNING]" not in said
    assert "[ERROR]" not in said


def test_package_and_chart_have_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_the_manifest_for_installing_is_the_chart_with_its_defaults() -> None:
    assert INSTALL.read_text() == install(), "stale: run .venv/bin/python -m hack.chart render"


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("default", "generated")])
def test_a_render_is_the_one_that_was_looked_at(name: str, snapshot: SnapshotAssertion) -> None:
    """`default` is manifests/install.yaml, and `generated` differs with every render. Copies of files are left out."""
    left_out = "crds.install=false,rbac.userRoles=false,grafanaDashboard.enabled=false,admission.enabled=false"
    assert text_of(name, "--set", left_out) == snapshot(extension_class=Manifests)


@pytest.mark.parametrize("name", FILES)
def test_no_object_is_there_twice_and_each_says_whose_it_is(name: str) -> None:
    found = objects_of(name)
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in found]
    assert len(keys) == len(set(keys))
    for each in found:
        labels = each["metadata"].get("labels", {})
        if each["kind"] != "Namespace":
            assert labels["app.kubernetes.io/part-of"] == "trimtab", each["metadata"]["name"]
            assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_the_namespace_is_the_releases_everywhere() -> None:
    """But for what kube-system has to say, the Leases of nodes, and the agents' namespace."""
    text = yaml.safe_dump_all(objects(EVERYTHING, namespace="elsewhere"))
    assert names.SYSTEM_NAMESPACE not in text
    spread = {
        each["metadata"]["namespace"] for each in objects(EVERYTHING, "elsewhere") if "namespace" in each["metadata"]
    }
    assert spread == {"elsewhere", "kube-system", "kube-node-lease"}


def test_pods_of_a_new_version_of_the_chart_alone_are_the_same(tmp_path: Path) -> None:
    """An upgrade that changes nothing restarts nothing."""
    copy = shutil.copytree(CHART, tmp_path / "trimtab")
    (copy / "Chart.yaml").write_text((CHART / "Chart.yaml").read_text().replace("\nversion: ", "\nversion: 9"))
    told = ("--values", str(NAMED), "--set", "image.tag=same", "--kube-version", "v1.36.3")
    told += ("--namespace", names.SYSTEM_NAMESPACE)
    after = [each for each in yaml.safe_load_all(helm("template", "trimtab", str(copy), *told)) if each]
    before = [each for each in yaml.safe_load_all(helm("template", "trimtab", str(CHART), *told)) if each]
    assert before != after
    assert [pod_of(each) for each in workloads(before)] == [pod_of(each) for each in workloads(after)]
    assert [each["spec"].get("template", {}).get("metadata") for each in workloads(before)] == [
        each["spec"].get("template", {}).get("metadata") for each in workloads(after)
    ]


# --- what is in use --------------------------------------------------------------------------------------------------
def test_by_default_there_is_a_controller_and_its_agents() -> None:
    found = [(each["kind"], each["metadata"]["name"]) for each in workloads(objects())]
    assert sorted(found) == [
        ("DaemonSet", "trimtab-agent"),
        ("Deployment", "trimtab-controller"),
        ("Pod", "trimtab-test-doctor"),
        ("Pod", "trimtab-test-healthz"),
        ("Pod", "trimtab-test-metrics"),
    ]
    (policy,) = (each for each in objects() if each["metadata"]["name"] == names.POLICY_CONFIG_MAP)
    assert policy["data"] == {
        names.KEY_POLICY: "rudder", names.KEY_FALLBACK: "best_fit", names.KEY_SHADOW: "", names.KEY_DEADLINE: "2",
    }  # fmt: skip


def test_crds_are_those_of_the_manifests_and_stay_behind() -> None:
    for path in (ROOT / "manifests" / "crds").glob("*.yaml"):
        (wanted,) = yaml.safe_load_all(path.read_text())
        found = the("CustomResourceDefinition", path.stem, objects())
        assert found["spec"] == wanted["spec"]
        assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert (
            "annotations" not in the("CustomResourceDefinition", path.stem, objects("crds: {keep: false}"))["metadata"]
        )
    assert "CustomResourceDefinition" not in {each["kind"] for each in objects("crds: {install: false}")}


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ("agent: {enabled: false}", "DaemonSet"),
        ("networkPolicy: {enabled: false}", "NetworkPolicy"),
        ("rbac: {create: false}", "ClusterRole"),
        ("tests: {enabled: false}", "Pod"),
        ("{admission: {enabled: false}, agent: {enabled: false}}", "ValidatingAdmissionPolicy"),
    ],
)
def test_what_is_switched_off_is_not_there(values: str, gone: str) -> None:
    assert gone in {each["kind"] for each in objects()}
    assert gone not in {each["kind"] for each in objects(values)}


@pytest.mark.parametrize(
    ("weights", "volume"),
    [
        (
            "image: {reference: example.com/w:1, pullPolicy: Always}",
            {"image": {"reference": "example.com/w:1", "pullPolicy": "Always"}},
        ),
        ("configMap: {name: w}", {"configMap": {"name": "w", "defaultMode": 0o440}}),
        ("persistentVolumeClaim: {name: w}", {"persistentVolumeClaim": {"claimName": "w", "readOnly": True}}),
    ],
)
def test_weights_come_from_where_the_values_say(weights: str, volume: dict[str, Any]) -> None:
    controller = the("Deployment", "trimtab-controller", objects(f"policy: {{weights: {{{weights}}}}}"))
    assert {"name": "weights"} | volume in pod_of(controller)["volumes"]
    (mount,) = (each for each in container_of(controller)["volumeMounts"] if each["name"] == "weights")
    assert mount["readOnly"] is True
    assert environment_of(controller)["TRIMTAB_WEIGHTS"] == mount["mountPath"]
    assert "TRIMTAB_WEIGHTS" not in environment_of(the("Deployment", "trimtab-controller", objects()))


def test_images_come_from_the_registry_of_the_values() -> None:
    images = {container_of(each)["image"] for each in workloads(objects_of("guarded"))}
    digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    assert images == {
        f"registry.example.com/ml/trimtab-operator@{digest}",
        "registry.example.com/ml/trimtab-agent:0.1.0",
    }


def test_manifests_leave_the_registry_to_be_named_wherever_an_image_is_ours() -> None:
    """As the chart does: else nodes ask a registry of strangers for images that we have never published there."""
    texts = {path.name: path.read_text() for path in MANIFESTS.glob("*.yaml")}
    found = {
        (name, image) for name, text in texts.items() for image in re.findall(r"^ *(?:- )?image: (\S+)$", text, re.M)
    }
    ours = {(name, image) for name, image in found if "trimtab-" in image}
    assert {name for name, _ in ours} == {"agent.yaml", "extender.yaml", "web.yaml", "install.yaml"}
    assert {image.partition("/")[0] for _, image in ours} == {"REGISTRY"}
    for name, _ in ours:
        assert f'sed "s|REGISTRY/|$REGISTRY/|" manifests/{name} | kubectl apply' in texts[name]
    assert {image.split("/")[0] for _, image in found - ours} <= {"registry.k8s.io"}


# --- the same as in manifests/ ---------------------------------------------------------------------------------------
def test_the_controller_has_the_rights_of_the_manifests_and_only_those_in_use() -> None:
    ours = manifest("rbac.yaml")
    direct, extender = objects(), objects(EXTENDER)
    for kind in ("ClusterRole", "Role"):
        wanted = rules_of(kind, "trimtab-controller", ours)
        with_direct = rules_of(kind, "trimtab-controller", direct)
        with_extender = rules_of(kind, "trimtab-controller", extender)
        only_direct = [rule for rule in with_direct if rule not in with_extender]
        only_extender = [rule for rule in with_extender if rule not in with_direct]
        assert sorted([*with_direct, *only_extender], key=json.dumps) == wanted
        if kind == "ClusterRole":
            assert [rule["resources"] for rule in only_direct] == [["pods/binding"]]
            assert [rule["resources"] for rule in only_extender] == [
                ["resourceclaimtemplates"],
                ["computedomains"],
                ["podgroups"],
            ]
    least = objects("{reports: {enabled: false}, kueue: {enabled: false}}")
    said = json.dumps([each.get("rules") for each in least if each["metadata"]["name"] == "trimtab-controller"])
    assert not [word for word in ("kueue", "tokenreviews", "trimtab-calibration") if word in said]


def test_advice_brings_its_rights_and_only_with_the_policy_that_bounds_them() -> None:
    name = "trimtab-controller-other-kinds"
    assert ("ClusterRole", name) not in called(objects())
    found = objects("otherKinds: {advise: true}")
    assert rules_of("ClusterRole", name, found) == rules_of("ClusterRole", name, manifest("other-kinds.yaml"))
    environment = environment_of(the("Deployment", "trimtab-controller", found))
    assert environment["TRIMTAB_INTEROP__OTHER_KINDS"] == "Advise"


def test_placing_brings_its_rights_and_only_with_the_policies_that_bound_them() -> None:
    name = "trimtab-controller-place"
    assert ("ClusterRole", name) not in called(objects())
    found = objects("otherKinds: {place: true}")
    assert rules_of("ClusterRole", name, found) == rules_of("ClusterRole", name, manifest("other-kinds-place.yaml"))
    environment = environment_of(the("Deployment", "trimtab-controller", found))
    assert environment["TRIMTAB_INTEROP__PLACE"] == "Labelled"


@pytest.mark.parametrize(
    ("file", "kind", "name"),
    [
        ("agent.yaml", "ClusterRole", "trimtab-agent"),
        ("extender.yaml", "ClusterRole", "trimtab-extender"),
        ("web.yaml", "ClusterRole", "trimtab-web"),
        ("web.yaml", "Role", "trimtab-web"),
        ("scheduler.yaml", "Role", "trimtab-scheduler"),
        ("reports.yaml", "Role", "trimtab-calibration-reader"),
        ("roles.yaml", "ClusterRole", "trimtab-editor"),
        ("../hack/cluster/kwok-rbac.yaml", "ClusterRole", "trimtab:kwok"),
    ],
)
def test_rights_are_those_of_the_manifests(file: str, kind: str, name: str) -> None:
    rendered = rules_of(kind, name.replace(":", "-"), objects(EVERYTHING))
    assert rendered == rules_of(kind, name, manifest(file))


def test_bindings_lead_to_the_same_roles() -> None:
    def bound(among: list[Object]) -> set[tuple[str, ...]]:
        return {
            (each["kind"], each["metadata"].get("namespace", ""), each["roleRef"]["name"], each["subjects"][0]["name"])
            for each in among
            if each["kind"].endswith("Binding") and "roleRef" in each
        }

    written = [each for name in ("rbac", "agent", "extender", "scheduler", "web") for each in manifest(f"{name}.yaml")]
    unwritten = ("trimtab-kwok", "trimtab-fake-nodes", "trimtab-test-doctor")
    ours = {each for each in bound(objects(EVERYTHING)) if each[2] not in unwritten}
    assert ours == bound(written)


def test_nobody_may_do_everything_or_read_secrets() -> None:
    rules = [rule for each in objects(EVERYTHING) for rule in each.get("rules", [])]
    about_secrets = [rule for rule in rules if "secrets" in rule["resources"]]
    assert {tuple(rule["verbs"]) for rule in about_secrets} == {("create",)}, "in dry runs, as admission holds it to"
    said = {word for rule in rules for words in rule.values() for word in words}
    assert not {"*", "pods/exec", "impersonate", "escalate", "bind"} & said
    binding = [each for each in objects() if "pods/binding" in json.dumps(each.get("rules", []))]
    assert [each["metadata"]["name"] for each in binding] == ["trimtab-controller"]


def test_the_agents_rule_is_the_manifests() -> None:
    def spec(among: list[Object]) -> Object:
        return dict(the("ValidatingAdmissionPolicy", "trimtab-agent-own-node", among)["spec"])

    assert spec(objects()) == spec(manifest("agent.yaml"))
    moved = json.dumps(spec(objects("agent: {namespace: agents, serviceAccount: {name: reader}}")))
    assert "'system:serviceaccount:agents:reader'" in moved


def test_rules_for_authors_are_the_manifests() -> None:
    wanted, found = manifest("admission.yaml"), objects()
    assert called(wanted) <= called(found)
    for each in wanted:
        content = {key: the(each["kind"], each["metadata"]["name"], found).get(key) for key in ("spec", "data")}
        assert content == {key: each.get(key) for key in ("spec", "data")}
    changed = objects(
        '{fakeNodes: {enabled: true}, admission: {limits: {maxGpusPerJob: 8000000, openPriorityClasses: "low,normal"}}}'
    )
    policy = the("ValidatingAdmissionPolicy", "trimtab-job-limits", changed)["spec"]
    limits = {each["name"]: each["expression"] for each in policy["variables"]}
    assert (limits["maxGpusPerJob"], limits["fakeAnnotations"]) == ("8000000", "'Allow'")
    assert (limits["maxPodsPerJob"], limits["openPriorityClasses"]) == ("256", "'low,normal'")


def test_what_webhooks_add_is_known_to_both_rules_of_the_controllers_pods() -> None:
    changed = objects('{admission: {limits: {addedByWebhooks: "istio-proxy,istio-envoy"}}}')
    for name in ("trimtab-controller-pods", "trimtab-controller-templates"):
        variables = the("ValidatingAdmissionPolicy", name, changed)["spec"]["variables"]
        told = {each["name"]: each["expression"] for each in variables}
        assert told["addedByWebhooks"] == "'istio-proxy,istio-envoy'"


def test_no_gang_is_in_the_namespace_of_the_release() -> None:
    spec = the("ValidatingAdmissionPolicyBinding", "trimtab-controller-elsewhere", objects())["spec"]
    (where,) = spec["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert where["values"] == ["kube-system", "kube-public", "kube-node-lease", "trimtab-system"]


@pytest.mark.parametrize(
    ("values", "bytes_"),
    [
        ("{maxTemplateCharacters: 30000}", "30000"),
        ("{maxTemplateCharacters: 30000, maxJobBytes: 40000}", "40000"),
        ("{}", "73728"),
    ],
)
def test_a_limit_is_still_known_by_its_former_name(values: str, bytes_: str) -> None:
    policy = the("ValidatingAdmissionPolicy", "trimtab-job-limits", objects(f"admission: {{limits: {values}}}"))["spec"]
    assert {each["name"]: each["expression"] for each in policy["variables"]}["maxJobBytes"] == bytes_


@pytest.mark.parametrize(
    ("file", "kind", "name"),
    [
        ("agent.yaml", "DaemonSet", "trimtab-agent"),
        ("extender.yaml", "Deployment", "trimtab-extender"),
        ("web.yaml", "Deployment", "trimtab-web"),
        ("scheduler.yaml", "Deployment", "trimtab-scheduler"),
    ],
)
def test_pods_are_those_of_the_manifests(file: str, kind: str, name: str) -> None:
    wanted, found = the(kind, name, manifest(file)), the(kind, name, objects(EXTENDER))
    assert pod_of(found).pop("enableServiceLinks") is False
    for key in pod_of(wanted).keys() - {"containers"}:
        assert pod_of(found)[key] == pod_of(wanted)[key], key
    ours, theirs = container_of(found), container_of(wanted)
    for key in theirs.keys() - {"env", "command", "image"}:
        assert ours[key] == theirs[key], key
    set_there = {each["name"]: each for each in theirs.get("env", [])}
    set_here = {each["name"]: each for each in ours.get("env", [])}
    assert {key: set_here.get(key) for key in set_there} == set_there
    assert ours["image"].replace("registry.example.com/trimtab/", "REGISTRY/") == theirs["image"]
    same_command = [*ours["command"], *ours.get("args", [])]
    assert same_command[-len(theirs["command"]) + 1 :] == theirs["command"][1:]
    for key in wanted["spec"].keys() - {"template"}:
        assert found["spec"][key] == wanted["spec"][key], key


@pytest.mark.parametrize(
    ("file", "kind", "name"),
    [
        ("extender.yaml", "Service", "trimtab-extender"),
        ("web.yaml", "Service", "trimtab-web"),
        ("web.yaml", "NetworkPolicy", "trimtab-web"),
        ("reports.yaml", "Service", "trimtab-reports"),
        ("extender.yaml", "NetworkPolicy", "trimtab-extender"),
        ("reports.yaml", "NetworkPolicy", "trimtab-controller"),
        ("agent.yaml", "NetworkPolicy", "trimtab-agent"),
    ],
)
def test_what_is_reached_is_what_the_manifests_let_reach(file: str, kind: str, name: str) -> None:
    assert the(kind, name, objects(EXTENDER))["spec"] == the(kind, name, manifest(file))["spec"]


def test_kube_scheduler_is_configured_as_the_generator_says() -> None:
    values = "{schedulerName: gangs, mode: Extender}"
    values = (
        f"{{binding: {values}, extender: {{enabled: true}}, scheduler: {{enabled: true, beside: [default-scheduler]}}}}"
    )
    written = yaml.safe_load(the("ConfigMap", "trimtab-scheduler", objects(values, "gpus"))["data"]["scheduler.yaml"])
    directory = "/etc/trimtab/tls"
    assert written == scheduler_configuration(
        "https://trimtab-extender.gpus.svc",
        tls=ExtenderTls(f"{directory}/ca.crt", f"{directory}/tls.crt", f"{directory}/tls.key"),
        scheduler_name="gangs",
        beside=["default-scheduler"],
        lease=("gpus", "trimtab-scheduler"),
    )


# --- what processes are told -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FILES)
def test_settings_are_understood_by_the_processes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for workload in workloads(objects_of(name)):
        with monkeypatch.context() as patch:
            for key, value in environment_of(workload).items():
                if key != "TRIMTAB_CONFIG":  # a file of the pod
                    patch.setenv(key, value)
            settings = load(process=PROCESSES.get(workload["metadata"]["name"], "controller"))
            tls.check(settings.extender) if workload["metadata"]["name"] == "trimtab-extender" else None
            ports = {each["name"]: each["containerPort"] for each in container_of(workload).get("ports", [])}
            if "metrics" in ports:
                scraped = workload["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"]
                assert (ports["metrics"], scraped) == (settings.metrics.port, str(settings.metrics.port))
            assert ports.get("reports", settings.reports.port) == settings.reports.port


def test_the_controller_keeps_everything_in_its_own_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    values = "{reports: {port: 9999}, fakeNodes: {enabled: true, speedup: 60}}"
    controller = the("Deployment", "trimtab-controller", objects(values, "gpus"))
    for key, value in environment_of(controller).items():
        monkeypatch.setenv(key, value)
    settings = load()
    assert settings.leadership.namespace == "gpus"
    assert settings.policy.config_map.namespace == "gpus"
    assert settings.reports.namespace == "gpus"
    assert settings.reports.url == "http://trimtab-reports.gpus.svc:9999"
    assert settings.reports.listens
    assert (settings.fake.enabled, settings.fake.speedup) == (True, 60)


def test_the_controller_is_there_while_it_is_upgraded_and_nodes_are_drained() -> None:
    controller, budget = (the(kind, "trimtab-controller", objects()) for kind in ("Deployment", "PodDisruptionBudget"))
    assert controller["spec"]["replicas"] == 2
    assert controller["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    assert budget["spec"]["minAvailable"] == 1
    assert (
        budget["spec"]["selector"]["matchLabels"].items()
        <= controller["spec"]["template"]["metadata"]["labels"].items()
    )
    assert pod_of(controller)["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]


@pytest.mark.parametrize("name", FILES)
def test_every_process_of_ours_has_time_to_start(name: str) -> None:
    found = [each for each in workloads(objects_of(name)) if each["kind"] in ("Deployment", "DaemonSet")]
    ours = [
        container for each in found for container in pod_of(each)["containers"] if "/trimtab-" in container["image"]
    ]
    assert ours
    assert all({"startupProbe", "livenessProbe", "readinessProbe"} <= each.keys() for each in ours)


# --- how pods run ----------------------------------------------------------------------------------------------------
def restricted(workload: Object) -> Iterator[str]:
    """What Pod Security's level `restricted` would refuse."""
    pod, container = pod_of(workload), container_of(workload)
    around, inside = pod["securityContext"], container["securityContext"]
    yield from [] if around["runAsNonRoot"] is True and around["runAsUser"] > 0 else ["runs as root"]
    yield from [] if around["seccompProfile"]["type"] == "RuntimeDefault" else ["no seccomp profile"]
    yield from [] if inside["allowPrivilegeEscalation"] is False else ["may get privileges"]
    yield from [] if inside["capabilities"] == {"drop": ["ALL"]} else ["has capabilities"]
    yield from ["uses the host"] if {"hostNetwork", "hostPID", "hostIPC"} & pod.keys() else []
    allowed = {"configMap", "emptyDir", "image", "persistentVolumeClaim", "projected", "secret"}
    yield from [kind for volume in pod.get("volumes", []) for kind in volume.keys() - {"name"} if kind not in allowed]


@pytest.mark.parametrize("name", FILES)
def test_all_pods_are_restricted_but_agents_that_ask_the_kubelet(name: str) -> None:
    for workload in workloads(objects_of(name)):
        wanted = ["runs as root", "hostPath"] if workload["kind"] == "DaemonSet" and name != "guarded" else []
        assert list(restricted(workload)) == wanted, workload["metadata"]["name"]
        container = container_of(workload)
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "cpu" not in container["resources"]["limits"]
        assert pod_of(workload)["automountServiceAccountToken"] is False
        if workload["kind"] in ("Deployment", "DaemonSet"):
            assert {"livenessProbe", "readinessProbe"} <= container.keys()


@pytest.mark.parametrize("affinity", ["", "controller: {affinity: {nodeAffinity: %s}}"])
def test_nothing_of_ours_is_put_on_a_fake_node(affinity: str) -> None:
    """It would seem to run there, and do nothing."""
    required: Object = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}, {}]}
    }
    more = affinity % json.dumps(required) if affinity else ""
    found = objects(f"fakeNodes: {{enabled: true}}\nbinding: {{mode: Extender}}\nextender: {{enabled: true}}\n{more}")
    keep_off = {"key": "fake.trimtab.dev/profile", "operator": "DoesNotExist"}
    for workload in workloads(found):
        terms = pod_of(workload)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert all(keep_off in term["matchExpressions"] for term in terms["nodeSelectorTerms"])
    twins = pod_of(the("Deployment", "trimtab-extender", found))["affinity"]
    assert twins.keys() == {"nodeAffinity", "podAntiAffinity"}


def test_fake_nodes_come_last_and_go_first() -> None:
    hooks = {
        each["metadata"]["annotations"]["helm.sh/hook"]: container_of(each)["args"][:2]
        for each in objects_of("fake")
        if each["kind"] == "Job"
    }
    assert hooks == {"post-install,post-upgrade": ["fake-nodes", "apply"], "pre-delete": ["fake-nodes", "delete"]}


def test_the_doctor_of_helm_test_sees_what_it_looks_at_and_changes_nothing() -> None:
    name = "trimtab-test-doctor"
    hooks = [each for each in objects(EVERYTHING, "gpus") if each["metadata"]["name"] == name]
    assert {each["metadata"]["annotations"]["helm.sh/hook"] for each in hooks} == {"test"}
    weights = {each["kind"]: int(each["metadata"]["annotations"].get("helm.sh/hook-weight", 0)) for each in hooks}
    assert max(weight for kind, weight in weights.items() if kind != "Pod") < weights["Pod"]
    (told,) = {each["subjects"][0]["name"] for each in hooks if "subjects" in each}
    assert told == f"system:serviceaccount:gpus:{the('ServiceAccount', name, hooks)['metadata']['name']}"
    wanted, given = (
        sorted(json.dumps(each["rules"], sort_keys=True) for each in roles if "rules" in each)
        for roles in (rbac.roles_of_doctor("gpus", told), hooks)
    )
    assert given == wanted
    pod = the("Pod", name, hooks)
    assert pod_of(pod)["serviceAccountName"] == name
    assert container_of(pod)["command"] == ["python", "-m", "trimtab", "doctor"]
    assert environment_of(pod)["TRIMTAB_LEADERSHIP__NAMESPACE"] == "gpus"
    assert ("Pod", name) not in called(objects("rbac: {create: false}")), "roles are somebody else's, then"


@pytest.mark.parametrize("values", ["", EXTENDER, "kueue: {enabled: false}", "reports: {enabled: false}"])
def test_the_doctor_misses_no_right_that_the_chart_rightly_does_not_give(values: str) -> None:
    found = objects(values)
    environment = environment_of(the("Deployment", "trimtab-controller", found))
    used = [need for need in rbac.OF_CONTROLLER if need.used({environment.get(need.setting[0], "")} - {""})]
    for kind, own in (("ClusterRole", False), ("Role", True)):
        wanted = sorted((need.rule() for need in used if need.own is own), key=json.dumps)
        assert rules_of(kind, "trimtab-controller", found) == wanted


@pytest.mark.parametrize("name", FILES)
def test_every_pod_that_listens_has_a_policy_for_every_port(name: str) -> None:
    found = objects_of(name)
    policies = {
        each["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"]: each["spec"]
        for each in found
        if each["kind"] == "NetworkPolicy"
    }
    for workload in (each for each in workloads(found) if each["kind"] in ("Deployment", "DaemonSet")):
        spec = policies[workload["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"]]
        opened = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
        listens = {port["name"] for port in container_of(workload)["ports"]}
        probes_only = workload["metadata"]["name"] in ("trimtab-scheduler", "trimtab-kwok")
        assert opened == (set() if probes_only else listens)


@pytest.mark.parametrize("name", FILES)
def test_nobody_is_let_in_or_out_whom_no_rule_names(name: str) -> None:
    for each in (each for each in objects_of(name) if each["kind"] == "NetworkPolicy"):
        spec = each["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert all(rule["from"] for rule in spec["ingress"]), "a rule without peers lets everybody in"
        assert all(rule["ports"] for rule in spec["egress"])


def test_who_scrapes_from_elsewhere_is_let_in() -> None:
    def peers(values: str) -> object:
        return the("NetworkPolicy", "trimtab-controller", objects(values))["spec"]["ingress"][-1].get("from")

    own, other = (
        [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]
        for namespace in ("trimtab-system", "monitoring")
    )
    assert peers("{}") == own
    found = peers("networkPolicy: {metricsScraperNamespace: monitoring}")
    assert isinstance(found, list)
    assert found[:1] == other
    assert peers('networkPolicy: {metricsScraperNamespace: "*"}') is None


def test_notes_say_what_to_do_next_with_these_values() -> None:
    said = {name: notes(name) for name in FILES}
    assert all("kubectl" in text for text in said.values())
    assert "kubectl label namespace trimtab-system pod-security.kubernetes.io/enforce=privileged" in said["default"]
    assert "pod-security" not in said["guarded"]
    assert "will delete all jobs and queues" in said["guarded"]
    assert "create secret generic my-extender-tls" in said["extender"]
    assert "restart it when cert-manager has renewed" in said["cert-manager"]
    assert "rollout status deployment/trimtab-scheduler" in said["generated"]
    assert "kubectl get nodes -l fake.trimtab.dev/profile=small" in said["fake"]
    assert "kubectl apply -f manifests/samples/gpt2-124m.yaml" in said["default"]
    for path in re.findall(r"manifests/[\w/.-]+\w", "".join(said.values())):
        assert (ROOT / path).exists(), path


def notes(name: str) -> str:
    """What Helm prints after installing with these values; no cluster is asked."""
    told = helm(
        "install", "trimtab", str(CHART), "--dry-run=client", "--values", str(FILES[name]), "--namespace",
        names.SYSTEM_NAMESPACE, "--output", "json",
    )  # fmt: skip
    return str(json.loads(told)["info"]["notes"])
