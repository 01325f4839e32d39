"""What Kueue is asked for: quota in GPUs, by a Workload that is the same whoever makes it."""

from __future__ import annotations

import hashlib

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.interop.tickets import TEMPLATE, admitted, ask, ticket
from tests.interop.webhooks import problems

from trimtab import names
from trimtab.interop import request
from trimtab.kube.objects import Meta
from trimtab_policy.types import Bounds

RICH = {
    "metadata": {"labels": {"team": "a"}},
    "spec": {
        "nodeSelector": {"pool": "train"},
        "tolerations": [{"key": "reserved", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "volumes": [{"name": "data", "emptyDir": {}}],
        "initContainers": [{"name": "fetch", "image": "fetch:1", "resources": {"requests": {"cpu": "4"}}}],
        "containers": [
            {"name": "sidecar", "image": "log:1", "resources": {"requests": {"cpu": "1"}}},
            {"name": "trainer", "image": "trainer:1", "resources": {"requests": {"cpu": "8", "memory": "1Ti"}}},
        ],
    },
}


def test_workload(golden: SnapshotAssertion) -> None:
    asked = ask(template=RICH, cpu_milli_per_gpu=12_000, memory_per_gpu=96 << 30, priority_class="high", priority=1000)
    made = request.workload(asked)
    assert made == golden
    assert problems(made) == []


def test_workload_of_a_fixed_number_of_gpus(golden: SnapshotAssertion) -> None:
    assert request.workload(ask(gpus=Bounds(8, 8))) == golden


def test_the_name_is_what_kueues_own_integrations_would_give() -> None:
    said = b"LLMTrainingJob\ntrimtab.dev\njob\nuid-job"
    assert request.name_of(ask().job) == f"llmtrainingjob-job-{hashlib.sha1(said).hexdigest()[:5]}"
    longest = Meta("j" * names.MAX_NAME_LENGTH, "team", uid="u")
    assert len(request.name_of(longest)) <= 63


def test_a_job_of_the_same_name_created_anew_asks_by_another_name() -> None:
    assert request.name_of(Meta("job", "team", uid="1")) != request.name_of(Meta("job", "team", uid="2"))


@pytest.mark.parametrize(
    "edit",
    [
        {"queue": "others"},
        {"gpus": Bounds(4, 8)},
        {"gpus": Bounds(8, 16)},
        {"priority": 5},
        {"priority_class": "high"},
        {"resource": names.AMD_GPU},
        {"template": {"spec": TEMPLATE["spec"] | {"nodeSelector": {"pool": "x"}}}},
    ],
)
def test_an_edit_that_matters_to_kueue_is_noticed(edit: dict[str, object]) -> None:
    assert request.asks(ticket(), ask())
    assert not request.asks(ticket(), ask(**edit))


def test_what_kueue_does_not_look_at_is_no_edit() -> None:
    other = {
        "spec": TEMPLATE["spec"] | {"volumes": [{"name": "data", "emptyDir": {}}]},
        "metadata": {"labels": {"a": "b"}},
    }
    assert request.asks(ticket(), ask(template=other))


def test_fields_filled_in_or_taken_away_by_kueue_are_no_edit() -> None:
    podset = request.spec(ask())["podSets"][0]
    del podset["minCount"]  # its webhook, where partial admission is off
    assert request.asks(ticket(spec={"podSets": [podset], "active": True}), ask())


def test_a_reservation_serves_an_edited_job_while_it_is_enough() -> None:
    reserved = ticket(admitted(8))
    assert request.serves(reserved, ask(gpus=Bounds(2, 32)))
    assert not request.serves(reserved, ask(gpus=Bounds(9, 32)))
    assert not request.serves(reserved, ask(queue="others"))
    assert not request.serves(reserved, ask(resource=names.AMD_GPU))


def test_quota_is_asked_for_the_gpus_that_most_nodes_have_and_stays_with_them() -> None:
    both = {names.NVIDIA_GPU: 8, names.AMD_GPU: 64}
    assert request.gpu_resource(both, "") == names.AMD_GPU
    assert request.gpu_resource(both, names.NVIDIA_GPU) == names.NVIDIA_GPU
    assert request.gpu_resource({names.AMD_GPU: 8}, names.NVIDIA_GPU) == names.AMD_GPU
    assert request.gpu_resource({}, names.AMD_GPU) == names.AMD_GPU
    assert request.gpu_resource({}, "") == names.NVIDIA_GPU


def test_gpus_of_a_device_class_are_a_resource_of_their_own_which_is_read_back() -> None:
    asked = ask(resource="deviceclass.resource.kubernetes.io/gpu.amd.com")
    made = request.workload(asked)
    assert problems(made) == []
    pod = made["spec"]["podSets"][0]["template"]["spec"]
    assert pod["containers"][0]["resources"]["requests"] == {asked.resource: "1"}
    assert pod["tolerations"] == [{"key": names.AMD_GPU, "operator": "Exists"}]
    there = ticket(admitted(), asked)
    assert there.resource == asked.resource
    assert request.asks(there, asked)
    assert request.serves(there, asked)
