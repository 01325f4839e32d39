"""How a trainer hears that it is to save its state, and from where it goes on: files and variables of its pod."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.plan.test_objects import gang, trainer

from trimtab import names
from trimtab.plan import objects


def env(pod: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in trainer(pod)["env"]}


def test_every_rank_reads_the_request_from_a_file_that_mirrors_its_pods_annotation() -> None:
    for rank in range(2):
        pod = objects.pod(gang(), rank)
        [volume] = [volume for volume in pod["spec"]["volumes"] if "downwardAPI" in volume]
        [item] = volume["downwardAPI"]["items"]
        [mount] = [mount for mount in trainer(pod)["volumeMounts"] if mount["name"] == volume["name"]]
        assert f"{mount['mountPath']}/{item['path']}" == env(pod)["TRIMTAB_CHECKPOINT_FILE"]
        assert item["fieldRef"]["fieldPath"] == f"metadata.annotations['{names.ANNOTATION_CHECKPOINT}']"
        assert mount["readOnly"] is True


def test_only_the_trainer_is_asked() -> None:
    containers = [{"name": "side", "image": "b"}, {"name": "trainer", "image": "a"}]
    side, _ = objects.pod(gang({"spec.template.spec.containers": containers}), 0)["spec"]["containers"]
    assert side == containers[0]


def test_a_mount_of_the_users_own_wins() -> None:
    mounts = [{"name": "own", "mountPath": names.REQUEST_DIRECTORY}]
    spec = {"spec.template.spec.volumes": [{"name": "own", "emptyDir": {}}]}
    pod = objects.pod(gang(spec | {"spec.template.spec.containers.0.volumeMounts": mounts}), 0)
    assert "trimtab-request" not in str(pod)


def test_no_template_says_that_its_gang_has_been_asked() -> None:
    annotations = {names.ANNOTATION_CHECKPOINT: "2026-01-01T00:00:00Z", "team": "nlp"}
    pod = objects.pod(gang({"spec.template.metadata": {"annotations": annotations}}), 0)
    assert names.ANNOTATION_CHECKPOINT not in pod["metadata"]["annotations"]
    assert pod["metadata"]["annotations"]["team"] == "nlp"


def test_the_step_of_the_last_checkpoint_is_told_where_there_is_one() -> None:
    assert "TRIMTAB_RESUME_STEP" not in env(objects.pod(gang(), 0))
    assert env(objects.pod(replace(gang(), resume_step=1200), 0))["TRIMTAB_RESUME_STEP"] == "1200"


def test_how_long_a_pod_may_take_to_end_is_the_users_matter() -> None:
    assert "terminationGracePeriodSeconds" not in objects.pod(gang(), 0)["spec"]
    spec = gang({"spec.template.spec.terminationGracePeriodSeconds": 300})
    assert objects.pod(spec, 0)["spec"]["terminationGracePeriodSeconds"] == 300
