"""A job that waits because of its own past is told so, and what would help."""

from __future__ import annotations

import pytest
from tests.builders import job_object, placement, plan_of

from trimtab.api.base import LONG_TEXT, TEXT
from trimtab.api.status import MAX_ITEMS, JobStatus
from trimtab.controller.waiting import told
from trimtab.observe.jobs import JobFacts, facts
from trimtab_policy.types import Pending, PendingReason

SAVED = JobStatus(degrees=plan_of(placement(nodes={"n1": 8})).parallelism)
TOO_SMALL = Pending("uid-job", PendingReason.CLUSTER_TOO_SMALL, "needs 8 GPUs", alternatives=("add nodes",))
PIN = "its checkpoint was saved on 8 GPUs with dp=8 tp=1 pp=1 zero=1, and is loaded on the same only"


def waits(status: JobStatus = SAVED, **spec: object) -> JobFacts:
    return facts(job_object(spec=spec, status=status))


def test_a_job_whose_checkpoint_fixes_its_degrees_is_told_so() -> None:
    said = told(TOO_SMALL, waits(), ())
    assert said
    assert said.message == f"needs 8 GPUs; {PIN}"
    assert [hint.split(" if ")[0] for hint in said.alternatives] == [
        "set spec.elasticity.checkpoint.resharding",
        "add nodes",
    ]


@pytest.mark.parametrize(
    "job",
    [
        waits(JobStatus()),
        waits(**{"elasticity.checkpoint.resharding": True}),
        waits(**{"resources.gpus.max": 4}),
    ],
    ids=["it has saved nothing", "it can be resharded", "its owner has ruled these out since"],
)
def test_who_is_free_to_choose_is_not(job: JobFacts) -> None:
    said = told(TOO_SMALL, job, ())
    assert said
    assert (said.message, said.alternatives) == ("needs 8 GPUs", ("add nodes",))


def test_nor_is_one_whose_degrees_are_not_what_it_waits_for() -> None:
    said = told(Pending("uid-job", PendingReason.BEHIND_OTHERS, "others first"), waits(), ())
    assert said
    assert (said.message, said.alternatives) == ("others first", ())


def test_what_is_said_fits_into_a_status() -> None:
    talkative = Pending("uid-job", PendingReason.FRAGMENTED, "x" * 99_999, ("y" * 9999,) * 99, ("z" * 9999,) * 99)
    said = told(talkative, waits(), ("n1",))
    assert said
    assert len(said.message) <= LONG_TEXT
    assert PIN in said.message
    assert (len(said.blockers), len(said.alternatives)) == (MAX_ITEMS, MAX_ITEMS)
    assert said.blockers[0] == "node n1 is left out: kube-scheduler refused it"
    assert max(map(len, (*said.blockers, *said.alternatives))) == TEXT
    assert told(None, waits(), ()) is None
