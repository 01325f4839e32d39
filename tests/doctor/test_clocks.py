"""Clocks are wrong only where no delay can explain what was seen."""

from __future__ import annotations

import pytest
from tests.builders import node_object
from tests.doctor.world import healthy, lease, only, wrong

from trimtab.doctor.checks import clocks
from trimtab.doctor.findings import Reason, Severity


@pytest.mark.parametrize(("ahead", "way"), [(70.0, "1m10s ahead of"), (-70.0, "1m10s behind")])
def test_this_machine(ahead: float, way: str) -> None:
    (finding,) = wrong(clocks.here, healthy(ahead=ahead))
    assert finding.reason is Reason.CLOCK_HERE
    assert way in finding.message
    assert only(clocks.here, healthy(ahead=ahead / 20)).level is Severity.OK


@pytest.mark.parametrize(("renewed", "way"), [(-90.0, "behind"), (90.0, "ahead of")])
def test_the_controllers_is_judged_by_a_renewal_that_was_seen(renewed: float, way: str) -> None:
    looks = (lease(renewed=renewed - 2), lease(renewed=renewed, version=2))
    (finding,) = wrong(clocks.controller, healthy(lease=looks))
    assert finding.reason is Reason.CLOCK_OF_CONTROLLER
    assert way in finding.message
    assert only(clocks.controller, healthy(lease=looks[:1])).level is Severity.NOT_CHECKED


@pytest.mark.parametrize(
    ("renewed", "reason"),
    [(20.0, Reason.CLOCK_AHEAD), (3.0, None), (-39.0, None), (-44.0, None), (-60.0, Reason.CLOCK_BEHIND)],
)
def test_kubelets_by_their_leases(renewed: float, reason: Reason | None) -> None:
    seen = healthy(node_leases=(lease("n1", renewed, name="n1", leaseDurationSeconds=40),))
    assert only(clocks.nodes, seen).reason is reason


def test_a_node_that_is_not_ready_has_an_old_lease_for_another_reason() -> None:
    old = (lease("n1", -600.0, name="n1", leaseDurationSeconds=40),)
    assert not wrong(clocks.nodes, healthy(node_leases=old, nodes=(node_object("n1", ready="False"),)))


def test_many_nodes_are_told_in_one_line_and_all_named_for_programs() -> None:
    names = [f"n{index}" for index in range(100)]
    seen = healthy(
        nodes=tuple(node_object(name) for name in names),
        node_leases=tuple(lease(name, 60.0, name=name, leaseDurationSeconds=40) for name in names),
    )
    (finding,) = wrong(clocks.nodes, seen)
    assert finding.message.endswith("100 nodes are ahead of the API server's, by 1m00s at most: n[0-99]")
    assert len(finding.objects) == 100
