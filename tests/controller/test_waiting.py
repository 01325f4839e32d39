"""A job that waits because of its own past is told so, and what would help."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.builders import NOW, job_object, placement, plan_of

from trimtab.api.base import LONG_TEXT, TEXT
from trimtab.api.status import MAX_ITEMS, JobStatus
from trimtab.api.status import PendingStatus as Wire
from trimtab.apply import transitions
from trimtab.controller.jobs.pending_status import told
from trimtab.observe.jobs import JobFacts, facts
from trimtab.observe.queues import Queues
from trimtab_policy.placement.wording import TimedText, worded
from trimtab_policy.placement.wording import waits as waits_because
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


def told_of(
    message: TimedText, *blockers: TimedText | str, hint: str = "add nodes", refused: tuple[str, ...] = ()
) -> Wire:
    pending = waits_because("uid-job", PendingReason.INSUFFICIENT_GPUS, message, blockers, (hint,))
    said = told(pending, waits(), refused)
    assert said
    return said


def until(moment: float, gpus: int = 8) -> TimedText:
    return worded(NOW, f"a holds {gpus} until ", moment)


def test_times_are_told_beside_the_texts_and_all_else_has_one_hash() -> None:
    said = told_of(worded(NOW, "enough are expected ", NOW + 600), until(NOW + 600), until(NOW + 900))
    assert PIN in said.message
    assert [moment.timestamp() for moment in said.times] == [NOW + 600, NOW + 600, NOW + 900]
    later = told_of(worded(NOW, "enough are expected ", NOW + 660), until(NOW + 700), until(NOW + 960))
    assert (later.wording_hash, later.message == said.message) == (said.wording_hash, False)


@pytest.mark.parametrize(
    "other",
    [
        told_of(worded(NOW, "all are expected ", NOW + 600), until(NOW + 600)),
        told_of(worded(NOW, "enough are expected ", NOW + 600), until(NOW + 600, gpus=4)),
        told_of(worded(NOW, "enough are expected ", NOW + 600), until(NOW + 600), "b"),
        told_of(worded(NOW, "enough are expected ", NOW + 600), until(NOW + 600), hint="wait"),
        told_of(worded(NOW, "enough are expected ", NOW + 600), until(NOW + 600), refused=("n1",)),
    ],
)
def test_whatever_else_is_told_has_another_hash(other: Wire) -> None:
    said = told_of(worded(NOW, "enough are expected ", NOW + 600), until(NOW + 600))
    assert other.wording_hash != said.wording_hash


@pytest.mark.parametrize("moment", [float("nan"), float("inf"), 1e300, -1e300])
def test_a_time_that_no_calendar_has_can_be_told(moment: float) -> None:
    said = told_of(worded(NOW, "enough are expected ", moment))
    [told_time] = said.times
    assert told_time.year == (1970 if moment < 0 else 9999)


def test_what_jobs_are_told_comes_to_rest_however_many_no_time_helps() -> None:
    """Each is told by what was written of it before. Two at the ends of both lines once changed places for ever."""
    line, most = Queues([]), 3
    jobs = {f"job-{i:02}": JobStatus() for i in range(5 * most)}

    def round_at(now: float) -> int:
        """Consider as many as there are places for, and write what they are told; how often that is."""
        seen = {name: facts(job_object(name, status=status)) for name, status in jobs.items()}
        out, written = line.beyond([(each, 0) for each in seen.values()], now, most), 0
        for i, (name, each) in enumerate(seen.items()):
            too_large, waits = PendingReason.NO_FEASIBLE_PLAN, PendingReason.INSUFFICIENT_GPUS
            pending = out.get(each.meta.uid) or Pending(each.meta.uid, too_large if i < 7 else waits, "considered")
            said = told(pending, each, ())
            assert said
            status = transitions.waiting(each.status, each.meta, said, now)
            written += status != each.status
            jobs[name] = status
        return written

    until_all_are_known = 5 * most
    for _ in range(until_all_are_known):
        round_at(NOW)
    assert [round_at(NOW + seconds) for seconds in range(0, 600, 20)] == [0] * 30
    reasons = Counter(status.pending.reason for status in jobs.values() if status.pending)
    assert reasons == {"NoFeasiblePlan": 7, "InsufficientGpus": most, "NotConsidered": 8 - most}
