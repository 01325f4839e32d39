"""`trimtab demo --policy`: a name that nobody knows is refused, and so is a run that another policy had to decide."""

from __future__ import annotations

import pytest
from tests.builders import MOMENT, NOW, job_object, placement, plan_of
from typer.testing import CliRunner

from trimtab import names
from trimtab.api.status import Condition, JobStatus
from trimtab.cli import app
from trimtab.errors import TrimtabError
from trimtab.observe.jobs import facts
from trimtab_local.commands import demo
from trimtab_local.demo.history import History, Trail
from trimtab_local.demo.script import ARRIVALS

DONE = Condition(type=names.COMPLETE, status="True", reason=names.REASON_COMPLETED, last_transition_time=MOMENT)


def history(decided: dict[str, str]) -> History:
    """A run in which these jobs have completed, each as this policy decided."""
    plans = {name: plan_of(placement(), policy=policy) for name, policy in decided.items()}
    statuses = {name: JobStatus(conditions=(DONE,), plan=plan) for name, plan in plans.items()}
    return History({name: Trail(facts(job_object(name, status=status)), NOW) for name, status in statuses.items()})


COMPLETING = {arrival.job(): "q_learning" for arrival in ARRIVALS if arrival.completes and arrival.job()}


def test_an_unknown_policy_is_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(demo, "stage")
    result = CliRunner().invoke(app, ["demo", "--policy", "q_lerning"])
    assert result.exit_code == 1
    assert "unknown policy 'q_lerning'; did you mean q_learning? registered are: " in result.stderr


def test_a_run_that_the_policy_decided_is_as_it_should_be() -> None:
    demo.judge(history(COMPLETING), "q_learning")


def test_a_job_that_did_not_complete_is_told() -> None:
    with pytest.raises(TrimtabError, match=r"look at: gpt2-124m$"):
        demo.judge(history({name: policy for name, policy in COMPLETING.items() if name != "gpt2-124m"}), "q_learning")


def test_a_run_that_the_fallback_had_to_decide_is_not_passed_off_as_the_policys() -> None:
    with pytest.raises(TrimtabError, match=r"^q_learning failed, and another policy decided: fcfs for gpt2-124m$"):
        demo.judge(history(COMPLETING | {"gpt2-124m": "fcfs"}), "q_learning")
