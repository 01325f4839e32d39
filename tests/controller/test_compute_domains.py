"""Which gangs get a ComputeDomain, and whose one is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.builders import job_object, node_object, owned_by, placement, plan_of

from trimtab.controller.cluster import Cluster
from trimtab.controller.compute_domains import spans_domain
from trimtab.kube.metrics_hooks import Silent
from trimtab.observe import nodes
from trimtab.observe.nodes import NodeFacts
from trimtab.settings import ReflectorSettings

JOB = job_object("job").metadata.identity


def facts(**cliques: str) -> dict[str, NodeFacts | None]:
    """Nodes with eight GPUs by name -> their clique."""
    labels = {name: {"nvidia.com/gpu.clique": clique} if clique else {} for name, clique in cliques.items()}
    return {name: nodes.facts(node_object(name, labels=labels[name]), ()) for name in cliques}


@pytest.mark.parametrize(
    ("cliques", "gpus", "spans"),
    [
        ({"n1": "a", "n2": "a"}, 8, True),
        ({"n1": "a", "n2": "a", "n3": "b", "n4": "b"}, 8, True),
        ({"n1": "a", "n2": "a", "n3": ""}, 8, True),
        ({"n1": "a", "n2": "b"}, 8, False),
        ({"n1": "", "n2": ""}, 8, False),
        ({"n1": "a"}, 8, False),
        ({"n1": "a", "n2": "a"}, 4, False),
    ],
)
def test_gangs_that_have_whole_nodes_of_one_domain_get_one(cliques: dict[str, str], gpus: int, spans: bool) -> None:
    plan = plan_of(placement(nodes=dict.fromkeys(cliques, gpus)))
    assert spans_domain(plan, facts(**cliques)) is spans


def test_not_while_a_node_of_the_plan_is_gone() -> None:
    plan = plan_of(placement(nodes={"n1": 8, "n2": 8, "n3": 8}))
    assert not spans_domain(plan, facts(n1="a", n2="a") | {"n3": None})


async def test_a_compute_domain_is_the_jobs_that_controls_it_once_all_are_listed() -> None:
    unused: Any = None
    cluster = Cluster(unused, ReflectorSettings(), lambda: None, Silent(), claim_templates=True)
    assert cluster.compute_domains
    assert cluster.compute_domains_of(JOB) is None
    cluster.compute_domains.domains.synced.set()
    for name, controller in (("job-1", True), ("forged", False)):
        meta = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}
        owners = [owned_by("job", controller=controller)]
        cluster.compute_domains.domains.apply_written(
            json.dumps({"metadata": meta | {"ownerReferences": owners}}).encode()
        )
    assert [domain.name for domain in cluster.compute_domains_of(JOB) or ()] == ["job-1"]
    nobody = Cluster(unused, ReflectorSettings(), lambda: None, Silent())
    assert nobody.compute_domains_of(JOB) is None
