"""Nodes that kube-scheduler refused for a job are no choice for that job, unless nothing else is."""

from __future__ import annotations

from collections.abc import Set

import pytest
from tests.builders import NOW, job_object, node_object

from trimtab.observe.snapshot import Caches, ClusterObserver

NODES = [node_object(name, labels={"pool": "a" if name != "n3" else "b"}) for name in ("n1", "n2", "n3")]


def eligible(avoided: Set[str], selector: dict[str, str] | None = None) -> tuple[str, ...] | None:
    spec = {"template.spec.nodeSelector": selector} if selector else None
    jobs = [job_object("job", spec), job_object("other")]
    snapshot = (
        ClusterObserver(()).observe(Caches(nodes=NODES, pods=(), jobs=jobs), NOW, (), {"uid-job": avoided}).snapshot
    )
    found = {job.name: job.eligible for job in snapshot.jobs}
    assert found["other"] is None
    return found["job"]


@pytest.mark.parametrize(
    ("avoided", "selector", "left"),
    [
        (set(), None, None),
        ({"n2"}, None, ("n1", "n3")),
        ({"n2"}, {"pool": "a"}, ("n1",)),
        ({"n1", "n2"}, {"pool": "a"}, ("n1", "n2")),
        ({"n1", "n2", "n3"}, None, None),
        ({"gone"}, None, ("n1", "n2", "n3")),
    ],
)
def test_refused_nodes_are_left_out_while_others_are_left(
    avoided: Set[str], selector: dict[str, str] | None, left: tuple[str, ...] | None
) -> None:
    assert eligible(avoided, selector) == left
