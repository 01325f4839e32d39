"""The objects of a gang: one headless Service, one pod per node, everything else as the user wrote it."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.builders import job_object, placement, plan_of

from trimtab import launch, names
from trimtab.kube.resources import POD_GROUPS, POD_GROUPS_BETA
from trimtab.observe.jobs import facts
from trimtab.plan import objects
from trimtab.plan.claim_template import claim_template
from trimtab.plan.compute_domain import compute_domain
from trimtab.plan.gang import gang_plan
from trimtab.plan.launch import DEEPSPEED_CONFIG_PATH
from trimtab.plan.objects import GangPlan
from trimtab.plan.pod_group import pod_group
from trimtab_policy.specs import ParallelPlan

RICH = {
    "spec.launcher": "DeepSpeed",
    "spec.priorityClassName": "high",
    "spec.resources.cpusPerGpu": "7500m",
    "spec.resources.memoryPerGpu": "64Gi",
    "spec.template.metadata": {"labels": {"team": "a"}, "annotations": {"note": "hello"}},
    "spec.template.spec": {
        "serviceAccountName": "trainer",
        "initContainers": [{"name": "fetch", "image": "fetch:1"}],
        "containers": [
            {"name": "logger", "image": "logger:1", "resources": {"requests": {"cpu": "100m"}}},
            {
                "name": "trainer",
                "image": "trainer:1",
                "command": ["torchrun"],
                "args": ["train.py"],
                "env": [{"name": "NCCL_DEBUG", "value": "WARN"}, {"name": "PET_MASTER_PORT", "value": "1234"}],
                "resources": {"limits": {"rdma/hca": 1}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
        ],
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    },
}


def gang(
    spec: dict[str, Any] | None = None, *, name: str = "llama", epoch: int = 3, domained: bool = False, **changes: Any
) -> GangPlan:
    placed = placement(nodes={"n1": 8, "n2": 8}, plan=ParallelPlan(data=4, tensor=4, zero_stage=1))
    known = facts(job_object(name, {path.removeprefix("spec."): value for path, value in (spec or {}).items()}))
    assert known.spec, known.error
    assert known.training
    plan = plan_of(placed, epoch, **changes)
    return gang_plan(known.meta, known.spec, known.template, known.training, plan, domained=domained)


def trainer(pod: dict[str, Any]) -> dict[str, Any]:
    return next(container for container in pod["spec"]["containers"] if container["name"] == "trainer")


def test_service(golden: SnapshotAssertion) -> None:
    assert objects.service(gang()) == golden


@pytest.mark.parametrize("spec", [{}, RICH], ids=["plain", "rich"])
def test_pod(spec: dict[str, Any], golden: SnapshotAssertion) -> None:
    assert objects.pod(gang(spec), 1) == golden


# --- pods that another controller has made --------------------------------------------------------------------------
FAST = {"key": "disk", "operator": "In", "values": ["fast"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def theirs(**spec: Any) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "pretrain", "uid": "uid-j", "controller": True}
    meta = {"uid": "uid-p", "resourceVersion": "5", "labels": {"team": "a"}, "ownerReferences": [owner]}
    containers = [{"name": "main", "command": ["torchrun", "-m", "torchtitan.train", "--module", "llama3"]}]
    return {"metadata": meta, "spec": {"containers": containers, **spec}}


def test_a_pod_of_theirs_gets_what_a_pod_of_ours_has_and_keeps_what_it_had() -> None:
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [FAST]}]}}}
    made = theirs(affinity=affinity, tolerations=[{"key": "spot", "operator": "Exists"}])
    before = copy.deepcopy(made)
    patch = objects.adopted(gang(), 1, "pretrain-0.ranks", made)
    assert made == before
    meta, spec, ours = patch["metadata"], patch["spec"], objects.pod(gang(), 1)
    assert (meta["uid"], meta["resourceVersion"]) == ("uid-p", "5"), "it fails on another pod, and on one that changed"
    assert meta["labels"] == ours["metadata"]["labels"] | {names.LABEL_JOB_UID: gang().uid}
    carried = meta["annotations"].pop(names.ANNOTATION_LAUNCH)
    assert meta["annotations"] == ours["metadata"]["annotations"]
    its = {each["name"]: each["value"] for each in trainer(ours)["env"]}
    env = launch.read(carried.encode(), "it").environment
    assert env["PET_MASTER_ADDR"] == "pretrain-0.ranks"
    assert {name: its[name] for name in env} == env | {"PET_MASTER_ADDR": "llama-3-0.llama"}
    assert "ownerReferences" not in meta, "it stays its controller's"
    [term] = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [FAST]
    assert term["matchFields"][0]["values"] == ["n2"]
    assert [each["key"] for each in spec["tolerations"]] == ["spot", names.NVIDIA_GPU]
    assert spec["schedulingGates"] is None, "nobody binds it but us"


def test_a_pod_of_theirs_is_marked_for_kube_scheduler_where_that_binds() -> None:
    plan = msgspec.structs.replace(gang(), scheduler="trimtab", annotations={"llama-3-0": {"fake": "1"}})
    patch = objects.adopted(plan, 0, "", theirs())
    annotations = patch["metadata"]["annotations"]
    assert "schedulingGates" not in patch["spec"], "not before all are adopted"
    assert annotations[names.ANNOTATION_BINDING] == "Extender"
    assert annotations["fake"] == "1"


def test_the_words_of_their_own_container_say_which_flags_it_takes() -> None:
    """Its stand-in has none: torchtitan 0.3 has other flags than 0.2, and is known by its command."""
    plan = msgspec.structs.replace(gang(), launcher="Torchtitan")
    annotations = objects.adopted(plan, 0, "", theirs())["metadata"]["annotations"]
    found = launch.read(annotations[names.ANNOTATION_LAUNCH].encode(), "it")
    assert found.arguments[-1].startswith("activation-checkpoint:")
    assert "PET_MASTER_ADDR" not in found.environment, "nobody knows it"


def test_the_same_plan_always_makes_the_same_objects() -> None:
    assert [objects.pod(gang(RICH), rank) for rank in range(2)] == [objects.pod(gang(RICH), rank) for rank in range(2)]


def test_the_template_of_the_job_is_left_alone() -> None:
    plan = gang(RICH)
    before = copy.deepcopy(plan.template)
    objects.pod(plan, 0)
    assert plan.template == before


def test_pods_ask_for_the_gpus_of_their_share_as_requests_and_limits() -> None:
    resources = trainer(objects.pod(gang(RICH), 0))["resources"]
    asked = {names.NVIDIA_GPU: "8", "cpu": "60000m", "memory": str(8 * 64 << 30)}
    assert resources == {"requests": asked, "limits": {"rdma/hca": 1} | asked}


def test_amd_pods_ask_for_amd_gpus_and_tolerate_their_taint() -> None:
    pod = objects.pod(gang(resource=names.AMD_GPU), 0)
    assert trainer(pod)["resources"]["limits"] == {names.AMD_GPU: "8"}
    assert {"key": names.AMD_GPU, "operator": "Exists"} in pod["spec"]["tolerations"]


def test_pods_stay_on_a_node_that_is_not_ready_until_the_controller_gives_their_gang_up() -> None:
    tolerated = {each["key"]: each for each in objects.pod(gang(RICH), 0)["spec"]["tolerations"]}
    for taint in ("not-ready", "unreachable"):
        wanted = {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute"}
        assert tolerated[wanted["key"]] == wanted


def test_the_users_environment_wins_and_may_refer_to_the_plans() -> None:
    env = trainer(objects.pod(gang(RICH), 0))["env"]
    given = [entry["name"] for entry in env]
    assert len(given) == len(set(given))
    assert given[-2:] == ["NCCL_DEBUG", "PET_MASTER_PORT"]
    assert {entry["name"]: entry["value"] for entry in env}["PET_MASTER_PORT"] == "1234"


def test_the_launchers_flags_follow_the_users_arguments() -> None:
    args = trainer(objects.pod(gang(RICH), 0))["args"]
    assert args == ["train.py", "--deepspeed", "--deepspeed_config", DEEPSPEED_CONFIG_PATH]


def test_a_trainer_without_arguments_and_flags_keeps_those_of_its_image() -> None:
    assert "args" not in trainer(objects.pod(gang(), 0))


def test_the_first_container_is_the_trainer_where_none_has_the_name() -> None:
    containers = [{"name": "main", "image": "a"}, {"name": "side", "image": "b"}]
    main, side = objects.pod(gang({"spec.template.spec.containers": containers}), 0)["spec"]["containers"]
    assert main["resources"]["limits"] == {names.NVIDIA_GPU: "8"}
    assert side == containers[1]


def test_the_deepspeed_file_comes_from_the_pods_own_annotation() -> None:
    pod = objects.pod(gang(RICH), 0)
    assert names.ANNOTATION_DEEPSPEED in pod["metadata"]["annotations"]
    [volume] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "trimtab-launch"]
    [item] = volume["downwardAPI"]["items"]
    [mount] = [mount for mount in trainer(pod)["volumeMounts"] if mount["name"] == volume["name"]]
    assert f"{mount['mountPath']}/{item['path']}" == DEEPSPEED_CONFIG_PATH
    assert item["fieldRef"]["fieldPath"] == f"metadata.annotations['{names.ANNOTATION_DEEPSPEED}']"


def test_shared_memory_is_mounted_unless_the_user_has_done_so() -> None:
    own = {
        "spec.template.spec.volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}],
        "spec.template.spec.containers.0.volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    given, left = objects.pod(gang(), 0), objects.pod(gang(own), 0)
    assert given["spec"]["volumes"][:1] == [{"name": "trimtab-shm", "emptyDir": {"medium": "Memory"}}]
    assert trainer(given)["volumeMounts"][:1] == [{"name": "trimtab-shm", "mountPath": "/dev/shm"}]
    assert left["spec"]["volumes"][:-1] == own["spec.template.spec.volumes"]
    assert trainer(left)["volumeMounts"][:-1] == own["spec.template.spec.containers.0.volumeMounts"]


def test_the_ranks_find_the_first_one_through_the_service() -> None:
    plan = gang()
    first, service = objects.pod(plan, 0), objects.service(plan)
    env = {entry["name"]: entry["value"] for entry in trainer(objects.pod(plan, 1))["env"]}
    assert env["PET_MASTER_ADDR"] == f"{first['spec']['hostname']}.{first['spec']['subdomain']}"
    assert first["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= first["metadata"]["labels"].items()
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_trimtabs_labels_win_over_those_of_the_template() -> None:
    pod = objects.pod(gang({"spec.template.metadata": {"labels": {names.LABEL_RANK: "9", "team": "a"}}}), 1)
    assert pod["metadata"]["labels"] == {
        "team": "a",
        names.LABEL_JOB: "llama",
        names.LABEL_EPOCH: "3",
        names.LABEL_RANK: "1",
    }


def test_names_stay_dns_labels_for_the_longest_job_name_and_the_highest_epoch() -> None:
    plan = gang(name="j" * names.MAX_NAME_LENGTH, epoch=10**12)
    assert len(plan.pod_name(16384)) <= 63
    assert objects.pod(plan, 0)["spec"]["hostname"] == plan.pod_name(0)


# --- for kube-scheduler to bind --------------------------------------------------------------------------------------
def for_scheduler(spec: dict[str, Any] | None = None, *, grouped: bool = False) -> GangPlan:
    return msgspec.structs.replace(gang(spec), scheduler="trimtab", grouped=grouped)


def test_pod_for_kube_scheduler(golden: SnapshotAssertion) -> None:
    assert objects.pod(for_scheduler(RICH, grouped=True), 1) == golden


def test_pod_group(golden: SnapshotAssertion) -> None:
    assert pod_group(for_scheduler(grouped=True), POD_GROUPS) == golden


def test_pod_group_of_kubernetes_1_37(golden: SnapshotAssertion) -> None:
    """Held against the types of k8s.io/api 0.37 by eye: no API server of that release is at hand."""
    assert pod_group(for_scheduler(grouped=True), POD_GROUPS_BETA) == golden


def test_only_the_gate_the_pin_and_a_mark_set_a_pod_for_kube_scheduler_apart() -> None:
    direct, other = objects.pod(gang(), 1), objects.pod(for_scheduler(), 1)
    assert other["spec"].pop("schedulingGates") == [{"name": names.SCHEDULING_GATE}]
    terms = other["spec"].pop("affinity")["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    pin = {"key": "metadata.name", "operator": "In", "values": ["n2"]}
    assert terms == {"nodeSelectorTerms": [{"matchFields": [pin]}]}
    assert other["metadata"]["annotations"].pop(names.ANNOTATION_BINDING) == "Extender"
    assert other == direct


def test_a_gang_without_a_pod_group_names_none() -> None:
    assert "schedulingGroup" not in objects.pod(for_scheduler(), 0)["spec"]
    grouped = for_scheduler(grouped=True)
    named = pod_group(grouped, POD_GROUPS)["metadata"]["name"]
    assert objects.pod(grouped, 0)["spec"]["schedulingGroup"]["podGroupName"] == named


# --- dynamic resource allocation -----------------------------------------------------------------------------------
def test_pods_of_a_class_without_extended_resource_claim_their_gpus(golden: SnapshotAssertion) -> None:
    plan = gang(RICH, resource="deviceclass.resource.kubernetes.io/gpu.amd.com")
    pod = objects.pod(plan, 1)
    asked = trainer(pod)["resources"]
    assert asked["claims"] == [{"name": names.GPU_CLAIM}]
    assert not any("gpu" in name for table in ("requests", "limits") for name in asked[table])
    assert {"key": names.AMD_GPU, "operator": "Exists"} in pod["spec"]["tolerations"]
    assert pod["spec"]["resourceClaims"] == [{"name": names.GPU_CLAIM, "resourceClaimTemplateName": "llama-3"}]
    assert claim_template(plan) == golden


def test_claims_of_the_template_stay_beside_that_for_gpus() -> None:
    spec = copy.deepcopy(RICH)
    network = {"name": "nic", "resourceClaimTemplateName": "nic"}
    spec["spec.template.spec"]["resourceClaims"] = [network]  # type: ignore[index]
    spec["spec.template.spec"]["containers"][1]["resources"]["claims"] = [{"name": "nic"}]  # type: ignore[index]
    pod = objects.pod(gang(spec, resource="deviceclass.resource.kubernetes.io/gpu.nvidia.com"), 0)
    assert [claim["name"] for claim in pod["spec"]["resourceClaims"]] == ["nic", names.GPU_CLAIM]
    assert [claim["name"] for claim in trainer(pod)["resources"]["claims"]] == ["nic", names.GPU_CLAIM]


def test_pods_that_ask_by_an_extended_resource_have_no_claim() -> None:
    pod = objects.pod(gang(RICH), 0)
    assert gang(RICH).device_class == ""
    assert "resourceClaims" not in pod["spec"]
    assert "claims" not in trainer(pod)["resources"]


def test_pods_of_a_gang_with_a_compute_domain_claim_a_channel_beside_their_gpus(golden: SnapshotAssertion) -> None:
    plan = gang(RICH, domained=True)
    pod = objects.pod(plan, 1)
    channel = {"name": names.CHANNEL_CLAIM, "resourceClaimTemplateName": "llama-3-channel"}
    assert pod["spec"]["resourceClaims"] == [channel]
    assert trainer(pod)["resources"]["claims"] == [{"name": names.CHANNEL_CLAIM}]
    assert trainer(pod)["resources"]["limits"][names.NVIDIA_GPU] == "8"
    assert compute_domain(plan) == golden
    both = objects.pod(gang(RICH, domained=True, resource="deviceclass.resource.kubernetes.io/gpu.nvidia.com"), 1)
    assert [claim["name"] for claim in both["spec"]["resourceClaims"]] == [names.GPU_CLAIM, names.CHANNEL_CLAIM]
