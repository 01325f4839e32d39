"""What a job may be made of whose author may not create pods: on the real API server, with every field that pods have.

The fields come from the API server's own description of itself: one that a later Kubernetes adds is tried, too, and has
to be refused until somebody has thought about it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from tests.live.harness import Live
from tests.live.tenants import (
    AUTHOR,
    JOBS_ONLY,
    MANIFESTS,
    A,
    Object,
    Tenants,
    annotated,
    job,
    pod,
    tenancy,
    trainer,
    with_pod,
)

from trimtab import names
from trimtab.doctor.checks import queues
from trimtab.errors import LocalClusterError
from trimtab.kube.resources import JOBS, PODS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CORE = "io.k8s.api.core.v1."
LISTED = "trimtab-job-pods lists"
REFUSALS = (
    LISTED,
    "may not be set",
    "resourceClaims: GPUs that are claimed",
    "tolerationSeconds would let a gang begin",
)
"""What says that a field is not open, and not that its value is wrong."""

OPEN = {
    "PodSpec": {
        *("containers", "initContainers", "volumes", "securityContext", "resources", "nodeSelector", "affinity"),
        *("tolerations", "terminationGracePeriodSeconds", "activeDeadlineSeconds", "restartPolicy"),
        *("automountServiceAccountToken", "enableServiceLinks", "dnsPolicy", "dnsConfig", "hostAliases", "hostUsers"),
        *("shareProcessNamespace", "setHostnameAsFQDN"),
    },
    "Container": {
        *("name", "image", "imagePullPolicy", "command", "args", "workingDir", "env", "envFrom", "ports", "resources"),
        *("resizePolicy", "volumeMounts", "securityContext", "livenessProbe", "readinessProbe", "startupProbe"),
        *("lifecycle", "restartPolicy", "stdin", "stdinOnce", "tty", "terminationMessagePath"),
        "terminationMessagePolicy",
    },
    "PodSecurityContext": {
        *("runAsUser", "runAsGroup", "runAsNonRoot", "fsGroup", "fsGroupChangePolicy", "supplementalGroups"),
        "supplementalGroupsPolicy",
    },
    "SecurityContext": {
        *("runAsUser", "runAsGroup", "runAsNonRoot", "capabilities", "allowPrivilegeEscalation"),
        "readOnlyRootFilesystem",
    },
    "Capabilities": {"drop"},
    "ResourceRequirements": {"limits", "requests"},
    "ContainerPort": {"name", "containerPort", "protocol"},
    "EnvVarSource": {"fieldRef", "resourceFieldRef", "configMapKeyRef"},
    "EnvFromSource": {"prefix", "configMapRef"},
    "VolumeMount": {"name", "mountPath", "subPath", "subPathExpr", "readOnly", "recursiveReadOnly"},
    "Lifecycle": {"postStart", "preStop", "stopSignal"},
    "LifecycleHandler": {"exec", "httpGet", "sleep", "tcpSocket"},
    "Probe": {
        *("exec", "httpGet", "tcpSocket", "grpc", "initialDelaySeconds", "timeoutSeconds", "periodSeconds"),
        *("successThreshold", "failureThreshold", "terminationGracePeriodSeconds"),
    },
    "HTTPGetAction": {"path", "port", "scheme", "httpHeaders"},
    "TCPSocketAction": {"port"},
    "Volume": {"name", "emptyDir", "persistentVolumeClaim", "configMap", "downwardAPI", "image", "ephemeral"},
    "PersistentVolumeClaimSpec": {"accessModes", "resources", "storageClassName", "volumeMode"},
    "Toleration": {"key", "operator", "value", "effect"},
}
"""Kind of the API -> its fields that are open to all with a plain value."""


def part(**fields: Any) -> Object:
    """A job whose trainer has these."""
    return with_pod(containers=trainer(**fields))


def volume(**source: Any) -> Object:
    return with_pod(volumes=[{"name": "v", **source}])


PLACES = {
    "PodSpec": lambda it: with_pod(**it),
    "Container": lambda it: with_pod(containers=[{"name": "trainer", "image": "example.test/trainer:1", **it}]),
    "PodSecurityContext": lambda it: with_pod(securityContext=it),
    "SecurityContext": lambda it: part(securityContext=it),
    "Capabilities": lambda it: part(securityContext={"capabilities": it}),
    "ResourceRequirements": lambda it: part(resources=it),
    "ContainerPort": lambda it: part(ports=[{"containerPort": 80, **it}]),
    "EnvVarSource": lambda it: part(env=[{"name": "X", "valueFrom": it}]),
    "EnvFromSource": lambda it: part(envFrom=[it]),
    "VolumeMount": lambda it: part(volumeMounts=[{"name": "v", "mountPath": "/v", **it}]),
    "Lifecycle": lambda it: part(lifecycle=it),
    "LifecycleHandler": lambda it: part(lifecycle={"preStop": it}),
    "Probe": lambda it: part(readinessProbe=it),
    "HTTPGetAction": lambda it: part(lifecycle={"postStart": {"httpGet": it}}),
    "TCPSocketAction": lambda it: part(startupProbe={"tcpSocket": it}),
    "Volume": lambda it: with_pod(volumes=[{"name": "v", **it}]),
    "PersistentVolumeClaimSpec": lambda it: volume(ephemeral={"volumeClaimTemplate": {"spec": it}}),
    "Toleration": lambda it: with_pod(tolerations=[{"key": "team", **it}]),
}

REFUSED: dict[str, Object] = {
    "root": part(securityContext={"runAsUser": 0}),
    "root of all": with_pod(securityContext={"runAsUser": 0}),
    "port of the host": part(ports=[{"containerPort": 22, "hostPort": 22}]),
    "host process": with_pod(securityContext={"windowsOptions": {"hostProcess": True}}),
    "host process of a sidecar": with_pod(
        initContainers=[{"name": "i", "image": "i:1", "securityContext": {"windowsOptions": {"hostProcess": True}}}]
    ),
    "unmasked": part(securityContext={"procMount": "Unmasked"}),
    "seccomp": with_pod(securityContext={"seccompProfile": {"type": "Unconfined"}}),
    "seccomp of the node": part(
        securityContext={"seccompProfile": {"type": "Localhost", "localhostProfile": "lax.json"}}
    ),
    "apparmor": part(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
    "apparmor as of old": job(
        template={
            "metadata": annotated(**{"container.apparmor.security.beta.kubernetes.io/trainer": "unconfined"}),
            "spec": {"containers": trainer()},
        }
    ),
    "devices by an annotation": job(
        template={
            "metadata": annotated(**{"io.kubernetes.cri-o.Devices": "/dev/sda"}),
            "spec": {"containers": trainer()},
        }
    ),
    "capabilities": part(securityContext={"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}),
    "propagation": part(volumeMounts=[{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]),
    "probe of another host": part(livenessProbe={"httpGet": {"port": 80, "host": "169.254.169.254"}}),
    "hook of another host": part(lifecycle={"postStart": {"tcpSocket": {"port": 80, "host": "10.0.0.1"}}}),
    "all taints": with_pod(tolerations=[{"operator": "Exists"}]),
    "a drained node": with_pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]),
    "the control plane": with_pod(tolerations=[{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]),
    "a silent node for ever": with_pod(
        tolerations=[{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}]
    ),
    "somebody's volume": volume(ephemeral={"volumeClaimTemplate": {"spec": {"volumeName": "theirs"}}}),
    "token": volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}),
    "unknown device": part(resources={"limits": {"example.test/accelerator": "1"}}),
    "in other letters": with_pod(HostNetwork=True),
    "of a later Kubernetes": with_pod(hostDevices=["all"]),
    "of a later container": part(hostDevices=["all"]),
    "no object": with_pod(securityContext="none"),
}


@pytest.fixture(scope="module")
def tenants(live_cluster: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    with tenancy(live_cluster, tmp_path_factory.mktemp("authors")) as tenants:
        yield tenants


@pytest.fixture(autouse=True)
async def in_force(tenants: Tenants) -> None:
    """Policies and roles take a moment to be in force."""
    if not tenants.ready:
        await tenants.told(tenants.person(JOBS_ONLY), with_pod(hostNetwork=True), LISTED)
        await tenants.told(tenants.person(AUTHOR), with_pod(hostNetwork=True), "")
        tenants.ready = True


def plain(schemas: Mapping[str, Any], schema: Mapping[str, Any], name: str = "") -> Any:
    """A value of this schema, with what it requires and nothing else."""
    if "allOf" in schema:
        return plain(schemas, schema["allOf"][0], name)
    if "$ref" in schema:
        return plain(schemas, schemas[schema["$ref"].rpartition("/")[2]], name)
    if "oneOf" in schema:  # a quantity, or the port of a probe
        return 1
    match schema.get("type"):
        case "array":
            return [plain(schemas, schema["items"], name)]
        case "object":
            required = {key: plain(schemas, schema["properties"][key], key) for key in schema.get("required", ())}
            return required or ({} if schema.get("properties") is not None else {"x": "1"})
        case "boolean":
            return True
        case "integer" | "number":
            return 1
        case _:
            return WORDS.get(name, "x")


WORDS = {
    "restartPolicy": "Never",
    "operator": "Exists",
    "effect": "NoSchedule",
    "mountPath": "/v",
    "serviceAccountName": "x",
}
SHAPES: dict[tuple[str, str], Any] = {
    ("PodSpec", "containers"): trainer(),
    ("PodSpec", "initContainers"): [{"name": "i", "image": "i:1"}],
    ("PodSpec", "affinity"): {"nodeAffinity": {}},
    ("PodSpec", "tolerations"): [{"key": "team", "operator": "Exists"}],
    ("PodSpec", "resources"): {"limits": {"cpu": "1"}},
    ("Container", "resources"): {"limits": {"cpu": "1"}},
    ("ResourceRequirements", "limits"): {"rdma/hca": "1"},
    ("ResourceRequirements", "requests"): {"hugepages-2Mi": "2Mi"},
}
"""What a plain value would not do for: it says nothing about whether the field is open."""


@pytest.mark.parametrize("kind", PLACES)
async def test_a_field_is_open_to_all_only_if_somebody_has_thought_about_it(tenants: Tenants, kind: str) -> None:
    schemas = json.loads(tenants.kubectl("get", "--raw", "/openapi/v3/api/v1"))["components"]["schemas"]
    fields = schemas[CORE + kind]["properties"]
    assert OPEN[kind] <= fields.keys()
    me, mine = tenants.person(JOBS_ONLY), set[str]()
    for field, schema in fields.items():
        value = SHAPES.get((kind, field), plain(schemas, schema, field))
        said = await me.creates(JOBS, PLACES[kind]({field: value}))
        assert not said or any(each in said for each in REFUSALS), (field, value, said)
        if not said:
            mine.add(field)
    assert mine == OPEN[kind]


@pytest.mark.parametrize("what", REFUSED)
async def test_nothing_of_the_host_and_no_privileges_by_a_job(tenants: Tenants, what: str) -> None:
    said = await tenants.person(JOBS_ONLY).creates(JOBS, REFUSED[what])
    assert said.startswith("4" if what == "no object" else "403"), said


async def test_a_template_is_held_to_the_same_when_it_is_changed_and_let_alone_when_it_is_not(tenants: Tenants) -> None:
    there = with_pod(hostNetwork=True)
    there["spec"]["suspend"] = True
    tenants.live.apply(there)
    me, own = tenants.person(JOBS_ONLY), JOBS.path(A, "tried")
    assert await me.patches(own, {"spec": {"suspend": False}}) == ""
    assert "hostNetwork: who" in await me.patches(own, {"spec": {"template": {"spec": {"enableServiceLinks": False}}}})
    assert await me.patches(own, {"spec": {"template": {"spec": {"hostNetwork": None}}}}) == ""
    tenants.kubectl("delete", "ltj", "tried", "-n", A)


async def test_honest_jobs_pass(tenants: Tenants) -> None:
    me = tenants.person(JOBS_ONLY)
    files = [*(MANIFESTS / "samples").glob("*.yaml"), MANIFESTS / "samples" / "trainjob" / "llmtrainingjob.yaml"]
    jobs = [each for file in files for each in yaml.safe_load_all(file.read_text()) if each["kind"] == names.JOB_KIND]
    assert len(jobs) >= 9
    for each in jobs:
        each["metadata"]["namespace"] = A
        each["spec"].pop("queue", None)
        for mounted in each["spec"]["template"]["spec"].get("volumes", []):
            if mounted.pop("hostPath", None):  # of the machine: for who may create pods
                mounted["persistentVolumeClaim"] = {"claimName": "checkpoints"}
        assert await me.creates(JOBS, each) == "", each["metadata"]["name"]
    thorough = with_pod(
        securityContext={"runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        hostNetwork=False,
        tolerations=[
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {
                "key": "node.kubernetes.io/unreachable",
                "effect": "NoExecute",
                "operator": "Exists",
                "tolerationSeconds": 60,
            },
        ],
        volumes=[
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "code", "configMap": {"name": "code"}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
        ],
        containers=trainer(
            resources={"limits": {"rdma/hca_shared_devices_a": 1, "memory": "64Gi", "hugepages-2Mi": "64Mi"}},
            env=[{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            envFrom=[{"configMapRef": {"name": "settings"}}],
            ports=[{"name": "metrics", "containerPort": 9400}],
            volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
            securityContext={"privileged": False, "capabilities": {"drop": ["ALL"], "add": []}, "procMount": "Default"},
            readinessProbe={"httpGet": {"port": "metrics", "path": "/"}, "periodSeconds": 10},
            lifecycle={"preStop": {"exec": {"command": ["sync"]}}, "postStart": {"sleep": {"seconds": 1}}},
        ),
        initContainers=[{"name": "side", "image": "s:1", "restartPolicy": "Always"}],
    )
    thorough["spec"]["template"]["metadata"] = {"labels": {"team": "a"}} | annotated(
        **{"sidecar.istio.io/inject": "false", "prometheus.io/scrape": "true", "note": "x"}
    )
    assert await me.creates(JOBS, thorough) == ""


async def test_gpus_by_another_name_are_refused_whoever_asks(tenants: Tenants) -> None:
    me = tenants.person(AUTHOR)
    for name in (f"{beginning}x1" for beginning in names.ACCELERATORS):
        said = await me.creates(JOBS, part(resources={"limits": {name: "1"}, "requests": {name: "1"}}))
        assert "GPUs may not be requested in the template" in said, name
        assert "container of all asks for GPUs" in await me.creates(JOBS, with_pod(resources={"limits": {name: "1"}}))
    amount = {"requests": {"habana.ai/gaudi": "1"}}
    for elsewhere in ("containers", "initContainers"):
        others = [*trainer(), {"name": "s", "image": "i:1", "resources": amount}]
        assert "GPUs may not be requested in the template" in await me.creates(JOBS, with_pod(**{elsewhere: others}))


async def test_gpus_without_a_resource_are_refused_as_well(tenants: Tenants) -> None:
    me, device = tenants.person(AUTHOR), annotated(**{"cdi.k8s.io/all": "nvidia.com/gpu=all"})
    everything = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    refused = {
        "annotation cdi.k8s.io/all": job(template={"metadata": device, "spec": {"containers": trainer()}}),
        "container trainer": part(env=[everything]),
        "container s": with_pod(initContainers=[{"name": "s", "image": "s:1", "env": [everything]}]),
    }
    for said, asked in refused.items():
        assert f"spec.template: {said} asks for GPUs by another name" in await me.creates(JOBS, asked)
    assert await me.creates(JOBS, part(env=[everything | {"value": "none"}])) == ""
    unknown = pod(gpus=1, gpu="example.test/accelerator", nodeName="live-0")
    assert "past every scheduler" in await me.creates(PODS, unknown)
    for gpu in ("habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuroncore", "nvidia.com/GH100_H100_SXM5_80GB"):
        assert "past every scheduler" in await me.creates(PODS, pod(gpus=1, gpu=gpu, nodeName="live-0")), gpu
    claims = pod(nodeName="live-0", resourceClaims=[{"name": "g", "resourceClaimName": "g"}])
    assert "past every scheduler" in await me.creates(PODS, claims)


async def test_no_controller_takes_devices_past_the_scheduler_for_whoever_wrote_its_template(tenants: Tenants) -> None:
    for controller in ("daemon-set", "replicaset", "job"):
        account = f"--as=system:serviceaccount:kube-system:{controller}-controller"
        create = ["create", "-f", "-", "--dry-run=server", account]
        with pytest.raises(LocalClusterError, match="past every scheduler"):
            tenants.kubectl(*create, stdin=json.dumps(pod(gpus=1, nodeName="live-0")))
        tenants.kubectl(*create, stdin=json.dumps(pod(gpus=1)))


async def test_a_gang_does_not_begin_where_it_has_to_leave(tenants: Tenants) -> None:
    leaves = {"key": "team", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    silent = leaves | {"key": "node.kubernetes.io/not-ready"}
    said = await tenants.person(AUTHOR).creates(JOBS, with_pod(tolerations=[leaves, silent]))
    assert "spec.template.spec.tolerations: team: tolerationSeconds would let a gang begin" in said
    assert await tenants.person(AUTHOR).creates(JOBS, with_pod(tolerations=[silent])) == ""


async def test_what_is_for_all_is_for_templates_as_well(tenants: Tenants) -> None:
    me, fakes = tenants.person(AUTHOR), annotated(**{names.ANNOTATION_FAKE_FAIL: "0@0.5"})
    refused = {
        f"spec.template.metadata.annotations: {names.ANNOTATION_FAKE_FAIL}": job(
            template={"metadata": fakes, "spec": {"containers": trainer()}}
        ),
        "probes of container trainer: terminationGracePeriodSeconds: at most 600 here": part(
            livenessProbe={"exec": {"command": ["false"]}, "terminationGracePeriodSeconds": 86400}
        ),
        "resourceClaims set to Allow in": with_pod(resourceClaims=[{"name": "g", "resourceClaimTemplateName": "gpu"}]),
        "resourceClaims: GPUs that": part(resources={"claims": [{"name": "g"}]}),
    }
    for said, asked in refused.items():
        assert said in await me.creates(JOBS, asked)


def with_text(text: str, note: str = "") -> Object:
    """A job with one text in its template, and another one in an annotation."""
    made = part(env=[{"name": f"V{at}", "value": text[at : at + 16000]} for at in range(0, len(text), 16000)])
    made["metadata"] |= annotated(**{"example.test/note": note})
    return made


async def test_a_job_is_as_large_as_it_is_sent_and_not_as_it_is_spelt(tenants: Tenants) -> None:
    me, k = tenants.person(AUTHOR), 1024
    most = with_text("x" * 60 * k, "y" * 4 * k)
    assert await me.creates(JOBS, most) == ""
    refused = {
        "characters of four bytes": with_text("\N{GRINNING FACE}" * 19 * k),
        "characters of six as JSON": with_text("<" * 13 * k),
        "characters of six, too": with_text("\x01" * 13 * k),
        "annotations": with_text("", "y" * 73 * k),
        "both": with_text("x" * 40 * k, "y" * 40 * k),
    }
    for what, asked in refused.items():
        said = await me.creates(JOBS, asked)
        assert "bytes as it is sent, at most 73728 are taken here" in said, what
        assert "spec.template: " in said
        assert " bytes, metadata.annotations: " in said
    assert await me.tries("POST", JOBS.path(A), most, dry=False) == ""
    larger = await me.patches(JOBS.path(A, "tried"), {"metadata": annotated(**{"example.test/more": "x" * 16 * k})})
    assert "at most 73728" in larger
    assert await me.patches(JOBS.path(A, "tried"), {"metadata": annotated(**{"example.test/note": ""})}) == ""
    tenants.kubectl("delete", "ltj", "tried", "-n", A)


async def test_the_sample_of_a_tenants_namespace_is_taken_and_keeps_pods_from_urgency(tenants: Tenants) -> None:
    sample = str(MANIFESTS / "samples" / "tenancy" / "team-a.yaml")
    urgent = pod("urgent", "team-a", priorityClassName="urgent")
    tenants.kubectl("create", "priorityclass", "urgent", "--value=1000")
    try:
        tenants.kubectl("apply", "-f", sample)
        assert tenants.get("quota", "jobs", "team-a")["spec"]["hard"][queues.COUNTED] == "200"
        with pytest.raises(LocalClusterError, match="quota: no-urgent-pods"):
            tenants.live.apply(urgent)
    finally:
        tenants.kubectl("delete", "--ignore-not-found", "-f", sample, "--wait=false")
        tenants.kubectl("delete", "priorityclass", "urgent")


async def test_rules_can_afford_the_most_complicated_job_that_is_small_enough(tenants: Tenants) -> None:
    """The API server ends expressions that cost too much, which refuses what they look at."""

    def containers(kind: str) -> list[Object]:
        env = [{"name": f"V{number}", "value": ""} for number in range(122)]
        mounts = [{"name": f"v{number}", "mountPath": f"/{number}"} for number in range(20)]
        return [
            {
                "name": f"{kind}{number}",
                "image": "i",
                "env": env,
                "volumeMounts": mounts,
                "securityContext": {"runAsUser": 1},
            }
            for number in range(8)
        ]

    tolerations = [{"key": f"team-{number}", "operator": "Exists"} for number in range(32)]
    volumes = [{"name": f"v{number}", "emptyDir": {}} for number in range(64)]
    most = with_pod(
        containers=containers("c"), initContainers=containers("i"), tolerations=tolerations, volumes=volumes
    )
    most["spec"]["template"]["metadata"] = annotated(**{f"prometheus.io/{number}": "" for number in range(64)})
    assert len(json.dumps(most, separators=(",", ":"))) > 65536
    assert await tenants.person(JOBS_ONLY).creates(JOBS, most) == ""
