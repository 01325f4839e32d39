"""What Kueue's answer means: how many GPUs where, what goes into the pods, and why a job waits."""

from __future__ import annotations

from typing import Any

import pytest
from tests.interop.tickets import TEMPLATE, admitted, condition, evicted, flavor, granted, ticket, waiting

from trimtab import names
from trimtab.interop.admission import Admission, admission, words

Json = dict[str, Any]

SPOT: Json = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}


def of(status: Json, flavors: Any = None, **changes: Any) -> Admission:
    found = admission(ticket(status, **changes), flavor() if flavors is None else flavors)
    assert isinstance(found, Admission), found
    return found


def test_as_many_gpus_as_were_admitted() -> None:
    assert (of(admitted(16)).gpus, of(admitted(8)).gpus, of(admitted(8)).resource) == (16, 8, names.NVIDIA_GPU)
    without = granted(16)
    del without["podSetAssignments"][0]["count"]  # of a Kueue that did not write it yet
    assert of(admitted() | {"admission": without}).gpus == 16


def test_what_was_given_back_is_gone() -> None:
    """Kueue counts the lesser of what was admitted and what was asked for less what was given back."""
    assert of(admitted(16, reclaimablePods=[{"name": "main", "count": 4}])).gpus == 12
    assert of(admitted(8, reclaimablePods=[{"name": "main", "count": 4}])).gpus == 8
    assert of(admitted(8, reclaimablePods=[{"name": "main", "count": 12}])).gpus == 4


def test_flavors_say_where_and_what_pods_tolerate() -> None:
    status = admitted() | {"admission": granted(flavors={names.NVIDIA_GPU: "a100", "cpu": "big"})}
    found = of(status, flavor("a100", {"gpu": "a100"}, SPOT) | flavor("big", {"host": "big"}, SPOT))
    assert found.node_selector == {"gpu": "a100", "host": "big"}
    assert found.tolerations == (SPOT,)
    assert found.covers({"gpu": "a100", "host": "big", "x": "y"})
    assert not found.covers({"gpu": "h100", "host": "big"})


def test_a_flavor_that_is_gone_admits_to_nothing() -> None:
    assert "ResourceFlavor a100, which does not exist" in str(admission(ticket(admitted()), {}))


def test_admission_checks_may_narrow_it_further() -> None:
    update = {
        "name": "main",
        "nodeSelector": {"nodes": "new"},
        "annotations": {"provisioned": "yes"},
        "labels": {"l": "1"},
    }
    checks = [{"name": "provision", "state": "Ready", "message": "", "podSetUpdates": [update]}]
    found = of(admitted(admissionChecks=checks))
    pod = found.on({"metadata": {"labels": {"own": "1"}}, **TEMPLATE})
    assert found.node_selector == {"nodes": "new"}
    assert pod["metadata"] == {"labels": {"own": "1", "l": "1"}, "annotations": {"provisioned": "yes"}}


def test_pods_get_what_the_quota_is_for_and_keep_their_own() -> None:
    own = {"key": "own", "operator": "Exists"}
    template = {"spec": TEMPLATE["spec"] | {"nodeSelector": {"pool": "train"}, "tolerations": [own, SPOT]}}
    pod = of(admitted(), flavor("a100", {"gpu": "a100"}, SPOT)).on(template)
    assert pod["spec"]["nodeSelector"] == {"pool": "train", "gpu": "a100"}
    assert pod["spec"]["tolerations"] == [own, SPOT]
    assert template["spec"]["nodeSelector"] == {"pool": "train"}


def host_domains(*hosts: str) -> Json:
    prefixed = {"prefix": "node-", "roots": [host.removeprefix("node-") for host in hosts]}
    part = {"domainCount": len(hosts), "valuesPerLevel": [{"individual": prefixed}], "podCounts": {"universal": 8}}
    return {"levels": [names.HOSTNAME], "slices": [part]}


def test_nodes_that_kueues_topology_scheduling_has_chosen_are_respected() -> None:
    chosen = admitted() | {"admission": granted(topologyAssignment=host_domains("node-1", "node-2"))}
    found = of(chosen)
    assert found.covers({names.HOSTNAME: "node-1"})
    assert not found.covers({names.HOSTNAME: "node-3"})
    required = found.on(TEMPLATE)["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    expression = {"key": names.HOSTNAME, "operator": "In", "values": ["node-1", "node-2"]}
    assert required == {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


def test_domains_of_several_levels_go_with_each_of_the_users_own_terms() -> None:
    racks = {"domainCount": 2, "valuesPerLevel": [{"universal": "b1"}, {"individual": {"roots": ["r1", "r2"]}}]}
    topology = {"levels": ["block", "rack"], "slices": [racks | {"podCounts": {"universal": 8}}]}
    found = of(admitted() | {"admission": granted(topologyAssignment=topology)})
    assert found.domains == {("b1", "r1"), ("b1", "r2")}
    own = {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}
    nothing: Json = {}  # matches no node, and must go on doing so
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [own, nothing]}}
    pod = found.on({"spec": TEMPLATE["spec"] | {"affinity": {"nodeAffinity": required}}})
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    keys = [[each["key"] for each in term["matchExpressions"]] for term in affinity["nodeSelectorTerms"]]
    assert keys == [["pool", "block", "rack"], ["pool", "block", "rack"]]


@pytest.mark.parametrize(
    ("status", "spec", "says"),
    [
        ({}, {}, "has not looked at"),
        (waiting(), {}, "Kueue (WaitingForQuota): no quota left"),
        (waiting("Misconfigured", "LocalQueue gpus doesn't exist"), {}, "LocalQueue gpus doesn't exist"),
        (evicted(), {}, "evicted by Kueue (Preempted): to make room"),
        (admitted(), {"active": False}, "is deactivated"),
        (admitted(16, condition("Finished", message="out of sync")), {}, "finished for Kueue: out of sync"),
        (
            {
                "conditions": [condition("QuotaReserved"), condition("Admitted", False)],
                "admission": granted(),
                "admissionChecks": [{"name": "budget", "state": "Pending", "message": "asked the boss"}],
            },
            {},
            "ClusterQueue research, admission checks are not through: budget is Pending asked the boss",
        ),
    ],
)
def test_why_a_job_waits_is_said_in_kueues_own_words(status: Json, spec: Json, says: str) -> None:
    workload = ticket(status, spec=spec)
    assert not workload.admitted
    assert says in words(workload)


def test_kueue_that_has_not_looked_yet_has_refused_nothing() -> None:
    assert not ticket().refused
    assert not ticket({"conditions": [condition("QuotaReserved")], "admission": granted()}).refused
    assert not ticket(admitted()).refused
    assert ticket(waiting()).refused
    assert ticket(evicted()).refused
    assert ticket(admitted(), spec={"active": False}).refused
    assert ticket(admitted(), deletionTimestamp="2026-01-02T03:04:05Z").refused
