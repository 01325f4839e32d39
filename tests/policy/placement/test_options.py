"""What may be decided: the menus of jobs, and which of their options they hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.builders import NOW, job, node, snapshot
from tests.trace_jobs import traced

from trimtab_policy.heuristics.sia import Sia
from trimtab_policy.heuristics.themis import Themis
from trimtab_policy.placement.assign import keeps, realise
from trimtab_policy.placement.candidates import Candidate
from trimtab_policy.placement.options import OptionMenu, market
from trimtab_policy.policy import Policy
from trimtab_policy.types import Decision, Job, NodeShare, Placement, Snapshot


def menu_of(now: Snapshot) -> OptionMenu:
    [menu] = market(now).menus
    return menu


def on(job: Job, chosen: Candidate) -> Job:
    """The job, running what was chosen on the node n0."""
    option = chosen.option
    held = Placement(
        job.uid, chosen.gpu.name, (NodeShare("n0", option.gpus),), option.plan, option.prediction, "because"
    )
    return replace(job, placement=held, started=NOW - 600, preemptible=True, restart_seconds=60.0)


def test_a_job_holds_the_option_of_its_type_count_and_plan() -> None:
    now = snapshot([node("n0", gpus=4, free=2)], [traced("a", (1, 2, 4), {"n0": 2})])
    menu = menu_of(now)
    assert menu.gpus.tolist() == [1, 2, 4]
    assert menu.current == 1


def test_a_job_that_waits_or_holds_what_it_would_not_be_offered_has_no_current_option() -> None:
    assert menu_of(snapshot([node("n0", gpus=4)], [traced("a", (1, 2))])).current == -1
    shrunk = replace(traced("a", (1, 2, 4), {"n0": 4}), speeds=traced("a", (1, 2)).speeds)
    assert menu_of(snapshot([node("n0", gpus=4, free=0)], [shrunk])).current == -1


def slower(fastest: Candidate, times: float) -> Candidate:
    """The same GPUs by another plan, with which a step takes so many times as long."""
    option = fastest.option
    plan = replace(option.plan, micro_batch=option.plan.micro_batch * 2)
    prediction = replace(option.prediction, step_seconds=option.prediction.step_seconds * times)
    return replace(fastest, option=replace(option, plan=plan, prediction=prediction))


def test_a_job_that_runs_by_a_slower_plan_has_that_as_one_more_option() -> None:
    waits = job("a", gpus=(4, 4))
    [fastest] = menu_of(snapshot([node("n0")], [waits])).options
    runs = on(waits, slower(fastest, times=1.5))
    now = snapshot([node("n0", free=4)], [runs])
    menu = menu_of(now)
    assert runs.placement
    assert menu.options[0] == fastest
    assert keeps(runs.placement, menu.options[1])
    assert menu.current == 1
    assert menu.rate[1] * 1.5 == pytest.approx(menu.rate[0])
    assert realise("test", now, {runs.uid: menu.options[1]}) == Decision("test")
    assert menu_of(snapshot([node("n0", free=4)], [on(waits, fastest)])).current == 0


@pytest.mark.parametrize("policy", [Sia, Themis])
def test_a_job_changes_its_plan_only_where_that_is_worth_a_restart(policy: Callable[[], Policy]) -> None:
    waits = job("a", gpus=(4, 4), steps=1_000_000, created=NOW - 3600)
    [fastest] = menu_of(snapshot([node("n0")], [waits])).options
    for times, changes in ((1.001, False), (2.0, True)):
        runs = on(waits, slower(fastest, times))
        decision = policy().decide(snapshot([node("n0", free=4)], [runs]))
        assert [placed.plan for placed in decision.placements] == ([fastest.option.plan] if changes else [])
        assert not decision.stops
