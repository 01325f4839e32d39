"""Looking at a job changes nothing of what is remembered of it: that is brought up to date by itself."""

from __future__ import annotations

from copy import deepcopy

from tests.builders import NOW
from tests.controller.test_verdicts_on_failures import Stage

from trimtab.controller.views import DriverState


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
