"""Looking at a job changes nothing of what is remembered of it: that is brought up to date by itself."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import msgspec
from tests.builders import NOW, job_object, node_object, owned_by, placement, plan_of
from tests.controller.test_verdicts_on_failures import NODES, Stage

from trimtab import names
from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.apply.actions import DeleteComputeDomain
from trimtab.apply.steps import JobContext, next_step
from trimtab.controller.cluster import Cluster
from trimtab.controller.views import DriverState, Views
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.objects import NodeObject
from trimtab.observe.snapshot import ClusterObserver
from trimtab.settings import BindingSettings, ReflectorSettings, Settings


def test_looking_at_a_job_changes_nothing_of_what_is_remembered() -> None:
    """Neither twice nor of a job with everything to be brought up to date: a failed pod, refused nodes, old answers."""
    stage = Stage()
    stage.pod(0, "n1", phase="Failed")
    stage.gang.deleted, stage.gang.assumed = {"gone": False}, {"gone": "n1"}
    stage.gang.refused = {"n1": -1.0}
    before = deepcopy(stage.gang)
    sight = stage.views.sight("uid-job")
    assert sight
    first = stage.views.view(stage.gang, sight)
    assert stage.views.refused_nodes(stage.gang) == frozenset()
    assert stage.gang == before
    assert stage.views.view(stage.gang, sight) == first
    stage.views.remember(stage.gang, sight)
    assert (stage.gang.deleted, stage.gang.assumed, stage.gang.refused) == ({}, {}, {})
    assert stage.gang.failed_since is not None


def test_a_job_that_is_gone_is_remembered_as_one_without_anything_due() -> None:
    stage, gang = Stage(), DriverState(due=NOW, binding_since=1.0)
    assert stage.views.sight("uid-other") is None
    stage.views.remember(gang, None)
    assert gang == DriverState()


class Rack:
    """A planned gang without pods, on two nodes that share an NVLink domain, and kube-scheduler to bind it."""

    def __init__(self, resource: str = names.NVIDIA_GPU, **meta: Any) -> None:
        unused: Any = None
        self.cluster = Cluster(unused, ReflectorSettings(), lambda: None, Silent(), claim_templates=True)
        assert self.cluster.compute_domains
        self.domains = self.cluster.compute_domains.domains
        self.domains.synced.set()
        settings = Settings(binding=BindingSettings(mode="Extender"))
        self.views = Views(self.cluster, ClusterObserver(()), settings, lambda: NOW)
        self.gang = DriverState()
        plan = plan_of(placement(nodes=dict.fromkeys(NODES, 8)), resource=resource)
        status = transitions.planned(JobStatus(), job_object().metadata, plan, NOW)
        self.cluster.jobs.apply_written(msgspec.json.encode(job_object(status=status, **meta)))
        for name in NODES:
            self.cluster.nodes.apply_written(msgspec.json.encode(rack_node(name)))

    def view(self) -> JobContext:
        found = self.views.sight("uid-job")
        assert found
        self.views.remember(self.gang, found)
        return self.views.view(self.gang, found)


def rack_node(name: str) -> NodeObject:
    made = node_object(name, labels={"nvidia.com/gpu.clique": "fabric.1"})
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, resource_version="1"))


def test_a_gang_whose_compute_domain_was_refused_is_to_have_none_in_this_plan() -> None:
    rack = Rack()
    assert rack.view().linked
    rack.gang.unlinked = 7
    assert rack.view().linked, "that was another plan"
    rack.gang.unlinked = 1
    assert not rack.view().linked


def test_nodes_that_are_asked_for_their_gpus_in_another_way_by_now_take_no_pods_of_the_plan() -> None:
    assert Rack().view().unavailable == {}
    unavailable = Rack(names.CLASS_RESOURCES[0]).view().unavailable
    assert unavailable.keys() == set(NODES)
    assert f"asked for by {names.NVIDIA_GPU} now" in unavailable["n1"]


def test_a_job_that_is_kept_from_going_leaves_no_compute_domain_behind_and_deletes_it_once() -> None:
    rack = Rack(deletion_timestamp="2026-01-02T03:04:05Z")
    meta = {"name": "job-1", "namespace": "default", "uid": "d", "resourceVersion": "1"}
    labels = {names.LABEL_EPOCH: "1"}
    made = {"metadata": meta | {"labels": labels, "ownerReferences": [owned_by("job")]}}
    rack.domains.apply_written(json.dumps(made).encode())
    assert next_step(rack.view()) == (DeleteComputeDomain("job-1", "d"),)
    rack.gang.deleted["d"] = False
    assert next_step(rack.view()) == ()
