"""Jobs that will not get on, queues that contradict, and Kueue in a version that we do not know."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace
from tests.builders import MOMENT, job_object, placement, plan_of, queue_object
from tests.doctor.world import healthy, only, quota, time_at, wrong

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import JobStatus, PendingStatus, StopRequest
from trimtab.doctor.checks import jobs, kueue, queues
from trimtab.doctor.findings import Reason, Severity
from trimtab.doctor.inventory import Pod, Unknown
from trimtab.kube.objects import JobObject
from trimtab.settings import InteropSettings
from trimtab_policy.types import NEVER_STARTS, PendingReason, StopCause

SEEN = conditions.initial(1, MOMENT)


def waiting(reason: PendingReason, *alternatives: str, **changes: Any) -> JobObject:
    pending = PendingStatus(reason=reason, message="why", alternatives=alternatives)
    return job_object("waits", status=JobStatus(conditions=SEEN, pending=pending), **changes)


@pytest.mark.parametrize(
    ("reason", "forever"),
    [(reason, reason in NEVER_STARTS) for reason in PendingReason],
)
def test_reasons_to_wait_that_pass_are_no_fault(reason: PendingReason, forever: bool) -> None:
    found = wrong(jobs.stuck, healthy(jobs=(waiting(reason, "do this", "do that"),)))
    assert [each.reason for each in found] == ([Reason.JOB_NEVER_STARTS] if forever else [])
    if forever:
        assert found[0].fix == "do this; or do that"
        assert found[0].objects == ("LLMTrainingJob/default/waits",)


def test_the_list_of_reasons_that_never_pass_is_neither_empty_nor_all() -> None:
    assert 3 < len(NEVER_STARTS) < len(PendingReason)


def test_a_job_that_nobody_has_looked_at_is_an_error_after_a_minute() -> None:
    assert not wrong(jobs.stuck, healthy(jobs=(job_object(creation_timestamp=time_at(-59)),)))
    (finding,) = wrong(jobs.stuck, healthy(jobs=(job_object(creation_timestamp=time_at(-61)),)))
    assert (finding.level, finding.reason) == (Severity.ERROR, Reason.JOB_UNSEEN)
    others = job_object(spec={"managedBy": "kueue.x-k8s.io/multikueue"}, creation_timestamp=time_at(-61))
    assert not wrong(jobs.stuck, healthy(jobs=(others,)))


def left_pod(name: str, *, age: float = 120.0, owner: str = "", phase: str = "Running", **meta: Any) -> Pod:
    of = [{"apiVersion": names.API_VERSION, "kind": names.JOB_KIND, "name": "job", "uid": owner, "controller": True}]
    raw = {
        "metadata": {
            "name": name, "namespace": "default", "labels": {names.LABEL_JOB: "job"},
            "ownerReferences": of if owner else [], "creationTimestamp": time_at(-age), **meta,
        },
        "spec": {"nodeName": f"n{name[-1]}"},
        "status": {"phase": phase},
    }  # fmt: skip
    return msgspec.convert(raw, Pod)


def test_pods_that_a_job_left_behind_are_named_with_the_nodes_whose_gpus_they_hold() -> None:
    (mine,) = healthy().jobs if isinstance(healthy().jobs, tuple) else ()
    fine = (
        left_pod("of-its-job-1", owner=mine.metadata.uid),
        left_pod("young-1", age=5),
        left_pod("ended-1", phase="Succeeded"),
        left_pod("ends-1", deletionTimestamp=time_at(-1)),
    )
    assert not wrong(jobs.orphans, healthy(gang_pods=fine))
    (finding,) = wrong(jobs.orphans, healthy(gang_pods=(*fine, left_pod("a-0"), left_pod("a-1", owner="uid-gone"))))
    assert (finding.level, finding.reason) == (Severity.WARNING, Reason.PODS_ORPHANED)
    assert finding.message == "2 pods of job default/job are left without it, and hold their GPUs on n0, n1"
    assert finding.fix == f"kubectl -n default delete pods -l {names.LABEL_JOB}=job"
    assert finding.objects == ("Pod/default/a-0", "Pod/default/a-1")


@pytest.mark.parametrize(("late", "told"), [(30, False), (300, True)])
def test_a_stop_beyond_its_deadline(late: int, told: bool) -> None:
    stop = StopRequest(
        epoch=1,
        cause=StopCause.PREEMPTED,
        message="for another",
        requested_time=MOMENT - timedelta(seconds=late + 120),
        deadline_time=MOMENT - timedelta(seconds=late),
    )
    plan = plan_of(placement())
    job = job_object("stops", status=JobStatus(conditions=SEEN, plan=plan, last_epoch=1, stop=stop))
    found = wrong(jobs.stuck, healthy(jobs=(job,)))
    assert [each.reason for each in found] == ([Reason.STOP_OVERDUE] if told else [])
    if told:
        assert "5m00s ago (Preempted)" in found[0].message
        assert "-l trimtab.dev/job=stops" in found[0].fix


def test_a_status_that_cannot_be_read_is_an_error_and_left_out_of_everything_else() -> None:
    odd = replace(job_object("odd"), status=msgspec.Raw(json.dumps({"plan": {"epoch": "first"}}).encode()))
    (finding,) = wrong(jobs.readable, healthy(jobs=(odd,)))
    assert (finding.level, finding.reason) == (Severity.ERROR, Reason.JOB_UNREADABLE)
    assert "plan.epoch" in finding.message
    assert not wrong(jobs.stuck, healthy(jobs=(odd,)))


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        ({"pending": {"reason": "FromTheFuture", "message": ""}}, """-p '{"status": {"pending": null}}'"""),
        ({"stop": {"cause": "FromTheFuture"}}, "use the version that wrote it"),
        ({"pending": {"reason": "FromTheFuture", "message": ""}, "restarts": "many"}, "use the version that wrote it"),
    ],
)
def test_after_a_rollback_what_every_round_says_anew_can_be_taken_away(status: dict[str, Any], fix: str) -> None:
    odd = replace(job_object("odd"), status=msgspec.Raw(json.dumps(status).encode()))
    (finding,) = wrong(jobs.readable, healthy(jobs=(odd,)))
    assert finding.reason is Reason.JOB_UNREADABLE
    assert fix in finding.fix
    words = shlex.split(finding.fix)
    if words[0] == "kubectl":
        assert words[:6] == ["kubectl", "-n", "default", "patch", "ltj", "odd"]
        mended = {key: value for key, value in status.items() if key not in json.loads(words[-1])["status"]}
        again = replace(odd, status=msgspec.Raw(json.dumps(mended).encode()))
        assert not wrong(jobs.readable, healthy(jobs=(again,)))


def test_a_status_of_an_older_controller_is_understood() -> None:
    """What later versions added (setbacks, degrees, stops, failures) is simply not there."""
    plan = plan_of(placement()).to_wire()
    for later in ("stepMillisecondsLow", "stepMillisecondsHigh", "correctionPermille", "speedPermille"):
        plan["predicted"].pop(later, None)
    status = {"lastEpoch": 1, "leaderEpoch": 1, "plan": plan}
    old = replace(job_object("old"), status=msgspec.Raw(json.dumps(status).encode()))
    assert only(jobs.readable, healthy(jobs=(old,))).message == "1 job understood, spec and status"


def test_a_spec_that_is_not_understood_is_a_warning() -> None:
    odd = job_object("odd", {"resources.gpus.min": 0})
    (finding,) = wrong(jobs.readable, healthy(jobs=(odd,)))
    assert finding.level is Severity.WARNING
    assert "resources.gpus.min" in finding.message


def test_priority_classes_that_jobs_name_and_that_are_not_there() -> None:
    (finding,) = wrong(jobs.priorities, healthy(jobs=(job_object("p", {"priorityClassName": "urgent"}),)))
    assert finding.reason is Reason.PRIORITY_CLASS_MISSING
    assert "kubectl create priorityclass urgent" in finding.fix
    assert "high" in finding.fix
    assert not wrong(jobs.priorities, healthy(jobs=(job_object("p", {"priorityClassName": "high"}),)))


@pytest.mark.parametrize(
    ("others", "reason", "level"),
    [
        (
            [queue_object("a", namespaces=["team"]), queue_object("b", namespaces=["team"])],
            Reason.NAMESPACE_CLAIMED,
            Severity.WARNING,
        ),
        (
            [queue_object("a", {"gpuType": "A100-SXM4-80GB", "gpus": 64, "guaranteed": 16})],
            Reason.GUARANTEE_TOO_LARGE,
            Severity.WARNING,
        ),
        ([queue_object("a", {"gpuType": "A100-SXM4-80GB", "gpus": -1})], Reason.QUEUE_MALFORMED, Severity.ERROR),
    ],
)
def test_queues_that_contradict(others: list[Any], reason: Reason, level: Severity) -> None:
    (finding,) = wrong(queues.contradictions, healthy(queues=tuple(others)))
    assert (finding.reason, finding.level) == (reason, level)
    assert "kubectl edit ltq" in finding.fix


def asking() -> tuple[JobObject, ...]:
    return (job_object("asks", labels={names.LABEL_KUEUE_QUEUE: "users"}),)


@pytest.mark.parametrize(
    ("served", "jobs_there", "reason"),
    [
        (("v1beta1",), (), Reason.KUEUE_UNKNOWN),
        (("v1beta1", "v1beta2"), (), None),
        ((), (), None),
        ((), asking(), Reason.KUEUE_MISSING),
        (("v1",), asking(), Reason.KUEUE_UNKNOWN),
    ],
)
def test_kueue(served: tuple[str, ...], jobs_there: tuple[JobObject, ...], reason: Reason | None) -> None:
    finding = only(kueue.version, healthy(kueue=served, jobs=jobs_there))
    assert finding.reason is reason
    assert bool(finding.fix) == bool(reason)
    off = healthy().settings.model_copy(update={"interop": InteropSettings(kueue="Never")})
    assert only(kueue.version, healthy(kueue=served, jobs=jobs_there, settings=off)).level is Severity.OK


def test_without_a_right_to_jobs_kueue_is_judged_all_the_same() -> None:
    assert only(kueue.version, healthy(jobs=Unknown("this user may not"))).level is Severity.OK


def test_a_namespace_whose_jobs_nobody_bounds_is_a_warning() -> None:
    of_b = job_object("other", namespace="b")
    pods_only = (quota("default", queues.COUNTED), quota("b", "pods"))
    (finding,) = wrong(queues.bounds, healthy(jobs=(job_object(), of_b), quotas=pods_only))
    assert (finding.level, finding.reason) == (Severity.WARNING, Reason.JOBS_UNBOUNDED)
    assert finding.objects == ("Namespace/b",)
    assert finding.fix.startswith("kubectl -n b create quota jobs --hard=count/llmtrainingjobs.trimtab.dev=200;")
    both = (quota("default", queues.COUNTED), quota("b", "pods", queues.COUNTED))
    assert not wrong(queues.bounds, healthy(jobs=(job_object(), of_b), quotas=both))
    assert not wrong(queues.bounds, healthy(jobs=(), quotas=()))


def test_the_sample_of_a_tenants_namespace_has_that_bound() -> None:
    sample = Path(__file__).resolve().parents[2] / "manifests" / "samples" / "tenancy" / "team-a.yaml"
    hard = [each["spec"]["hard"] for each in yaml.safe_load_all(sample.read_text()) if each["kind"] == "ResourceQuota"]
    assert any(queues.COUNTED in each for each in hard)
