"""What a pod takes of its node: effective requests as kube-scheduler counts them, and of templates the same."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import job_object, pod_object

from trimtab import names
from trimtab.observe.jobs import facts
from trimtab.observe.pods import PodUse, from_template, holds_resources, use


def asks(name: str = "c", restart: str = "", kind: str = "requests", **amounts: str) -> dict[str, Any]:
    return {"name": name, "restartPolicy": restart, "resources": {kind: amounts}}


def cpu(*containers: dict[str, Any], **spec: Any) -> int:
    return use(pod_object("p", spec={"containers": list(containers)} | spec)).cpu_milli


def test_containers_add_up() -> None:
    assert cpu(asks(cpu="1"), asks(cpu="500m")) == 1500


def test_limits_stand_in_for_requests_that_are_missing() -> None:
    assert cpu(asks(kind="limits", cpu="2")) == 2000
    assert cpu({"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}) == 1000


def test_init_containers_run_one_after_the_other_and_before_all_others() -> None:
    assert cpu(asks(cpu="2"), initContainers=[asks(cpu="3"), asks(cpu="1")]) == 3000
    assert cpu(asks(cpu="4"), initContainers=[asks(cpu="3"), asks(cpu="1")]) == 4000


def test_sidecars_run_along_with_what_starts_after_them() -> None:
    sidecar = asks(restart="Always", cpu="1")
    assert cpu(asks(cpu="2"), initContainers=[sidecar]) == 3000
    assert cpu(asks(cpu="2"), initContainers=[sidecar, asks(cpu="5")]) == 6000
    assert cpu(asks(cpu="2"), initContainers=[asks(cpu="5"), sidecar]) == 5000


def test_overhead_comes_on_top() -> None:
    assert cpu(asks(cpu="1"), overhead={"cpu": "250m"}) == 1250


def test_pod_level_requests_replace_those_of_the_containers() -> None:
    assert cpu(asks(cpu="9"), resources={"requests": {"cpu": "4"}}, overhead={"cpu": "1"}) == 5000


def test_gpus_of_every_vendor_count() -> None:
    pod = pod_object("p", spec={"containers": [asks(**{resource: "1"}) for resource in names.GPU_RESOURCES]})
    assert use(pod).gpus == len(names.GPU_RESOURCES)


def test_what_cannot_be_read_counts_as_nothing() -> None:
    assert use(pod_object("p", spec={"containers": [asks(cpu="lots", memory="1Gi")]})) == PodUse(0, 0, 1 << 30)


@pytest.mark.parametrize(
    ("node", "phase", "holds"),
    [
        ("n", "Running", True),
        ("n", "Pending", True),
        ("", "Pending", False),
        ("n", "Succeeded", False),
        ("n", "Failed", False),
    ],
)
def test_a_pod_holds_what_it_asks_for_while_it_is_on_a_node_and_has_not_ended(
    node: str, phase: str, holds: bool
) -> None:
    assert holds_resources(pod_object("p", node, phase=phase)) is holds


# --- templates -------------------------------------------------------------------------------------------------------
def test_a_template_is_read_like_a_pod_whatever_form_its_quantities_have() -> None:
    template = {"containers": [{"name": "c", "resources": {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": None}}]}
    assert use(from_template(template | {"overhead": {"cpu": 1}, "nodeSelector": {"limits": "x"}})) == PodUse(
        0, 3000, 1 << 30
    )


def per_pod(pod_spec: dict[str, Any], **resources: Any) -> tuple[int, int, int]:
    """CPU of a pod with one GPU and with four, and its memory with one."""
    spec = {"template.spec": {"containers": [{"name": "trainer", "image": "x"}]} | pod_spec}
    known = facts(job_object(spec=spec | {f"resources.{name}": amount for name, amount in resources.items()}))
    assert known.requirements, known.error
    return known.requirements.cpu_milli(1), known.requirements.cpu_milli(4), known.requirements.memory(1)


def test_amounts_per_gpu_replace_those_of_the_trainer_but_not_of_its_sidecars() -> None:
    trainer = {"name": "trainer", "image": "x", "resources": {"requests": {"cpu": "9", "memory": "9Gi"}}}
    helper = {"name": "helper", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    sidecar = {"name": "proxy", "image": "x", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}}
    both = {"containers": [helper, trainer], "initContainers": [sidecar]}
    assert per_pod(both) == (10_500, 10_500, 9 << 30)
    assert per_pod(both, cpusPerGpu=2) == (3500, 9500, 9 << 30)
    assert per_pod(both, memoryPerGpu="4Gi") == (10_500, 10_500, 4 << 30)


def test_a_pod_needs_at_least_what_its_init_containers_need() -> None:
    fetch = {"initContainers": [{"name": "fetch", "image": "x", "resources": {"requests": {"cpu": "6"}}}]}
    one, four, _ = per_pod(fetch, cpusPerGpu=2)
    assert one == 6000
    assert four >= 8000


def test_a_template_of_wrong_types_is_an_error_of_the_spec() -> None:
    wrong = {"template.spec.tolerations": [{"operator": "Exists", "tolerationSeconds": "soon"}]}
    known = facts(job_object(spec=wrong))
    assert known.spec is None
    assert known.error.startswith("spec.template.spec: Expected `int")
