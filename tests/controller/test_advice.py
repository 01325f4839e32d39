"""Advice on jobs of other kinds: what is asked, what is told, and when that is news."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast
from unittest.mock import patch

import msgspec
import pytest
import yaml
from msgspec.structs import replace
from tests.builders import NOW, node_object, placement
from tests.foreign.test_read import KINDS, manifest

from trimtab import names
from trimtab.apply.transitions import JobEvent
from trimtab.controller.advice import answer, question
from trimtab.controller.advice.advisor import Advisor
from trimtab.controller.advice.answer import Advice
from trimtab.controller.other_jobs import MOST_PER_NAMESPACE, OtherJob, OtherJobs
from trimtab.doctor import rbac
from trimtab.errors import Forbidden, PolicyError, UsageError
from trimtab.foreign.kinds import has_ended, row_of
from trimtab.foreign.tables import Kind, kinds
from trimtab.kube.metrics_hooks import Silent
from trimtab.observe.snapshot import Caches, ClusterObserver
from trimtab.settings import ReflectorSettings, Settings
from trimtab_local.checkout import checkout
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.types import Eta, Node, Pending, PendingReason, Snapshot

Json = dict[str, Any]
ADVISED = [kind for kind in KINDS if kind != "LeaderWorkerSet"]
RUNTIME = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "torch"},
}
STARTS = placement(nodes={"a": 8})


def other(kind: str, *, name: str = "", uid: str = "uid-a", **meta: Any) -> tuple[OtherJob, Kind]:
    """A job as its API server sends it, and the row of its kind."""
    document = yaml.safe_load(manifest(*KINDS[kind]))
    document["metadata"] |= {
        "namespace": "team",
        "uid": uid,
        "resourceVersion": "1",
        **({"name": name} if name else {}),
        **meta,
    }
    found = row_of(document)
    assert found
    return msgspec.json.decode(msgspec.json.encode(document), type=OtherJob), found[1]


def documents(kind: str, **meta: Any) -> list[Json]:
    job, row = other(kind, **meta)
    return [job.document(kind, row), *([RUNTIME] if row.runtime else [])]


# --- the question ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ADVISED)
def test_a_job_of_every_kind_becomes_the_facts_that_our_own_have(kind: str) -> None:
    facts, _ = question.facts_of(documents(kind))
    job = facts.as_job(created=NOW)
    assert (job.uid, job.namespace, job.name) == ("uid-a", "team", "llama-job")
    assert (job.requirements.gpus.low, job.requirements.gpus.high, job.model.layers) == (32, 32, 32)


def test_every_kind_that_is_no_mere_reader_can_be_advised() -> None:
    assert {name for name, row in kinds().items() if row.served and not row.members} == {
        name for name, row in kinds().items() if row.roles and not row.read_only
    }


def test_the_rights_are_those_of_the_kinds_that_can_be_advised() -> None:
    """In the manifest, in what `trimtab doctor` looks for, and in the policy that bounds them."""
    manifests = checkout() / "manifests"
    role, *_ = yaml.safe_load_all((manifests / "other-kinds.yaml").read_text())
    assert role["rules"] == [need.rule() for need in rbac.OF_ADVISOR]
    patched = {
        (g, r)
        for rule in role["rules"]
        if "patch" in rule["verbs"]
        for g in rule["apiGroups"]
        for r in rule["resources"]
    }
    served = {(row.groups[0], row.served.plural) for row in kinds().values() if row.served and row.roles}
    assert patched == served
    policies = yaml.safe_load_all((manifests / "admission.yaml").read_text())
    policy = next(each for each in policies if each["metadata"]["name"] == "trimtab-controller-other-kinds")
    assert set(policy["spec"]["matchConstraints"]["resourceRules"][0]["apiGroups"]) == {group for group, _ in served}


def test_queue_and_priority_are_those_that_the_job_names() -> None:
    job = documents("Job", annotations={names.ANNOTATION_QUEUE: "research"})
    job[0]["spec"]["template"]["spec"]["priorityClassName"] = "high"
    facts, _ = question.facts_of(job)
    assert facts.spec
    assert (facts.spec.queue, facts.spec.priority_class_name) == ("research", "high")


def test_what_is_missing_is_asked_for_by_name() -> None:
    job = documents("Job")
    job[0]["spec"]["template"]["spec"]["containers"][0]["command"] = ["python", "train_llm.py"]
    with pytest.raises(UsageError, match=r"trimtab.dev/global-batch-size"):
        question.facts_of(job)


def test_pods_of_several_priorities_are_refused_by_the_name_of_the_field() -> None:
    job = documents("PyTorchJob")
    for role, name in (("Master", "high"), ("Worker", "low")):
        job[0]["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]["priorityClassName"] = name
    with pytest.raises(UsageError, match="priorityClassName: high, low"):
        question.facts_of(job)


def test_what_users_annotate_besides_is_not_kept() -> None:
    job, row = other("Job", annotations={"notes": "x" * 1000, names.STATED["steps"]: "7"})
    assert job.metadata.annotations == {names.STATED["steps"]: "7"}
    assert job.document("Job", row)["metadata"]["annotations"] == {names.STATED["steps"]: "7"}


def test_our_own_advice_is_no_change_of_the_job() -> None:
    before, _ = other("Job")
    after, _ = other("Job", annotations={names.ADVICE["plan"]: "TP8"}, labels={"a": "b"})
    stated, _ = other("Job", annotations={names.STATED["steps"]: "7"})
    assert before.digest == after.digest != stated.digest


# --- whose turn it is -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("Job", {"conditions": [{"type": "Failed", "status": "True"}]}),
        ("JobSet", {"conditions": [{"type": "Completed", "status": "True"}]}),
        ("TrainJob", {"conditions": [{"type": "Complete", "status": "True"}]}),
        ("PyTorchJob", {"conditions": [{"type": "Succeeded", "status": "True"}]}),
        ("RayJob", {"jobDeploymentStatus": "Complete"}),
        ("Volcano Job", {"state": {"phase": "Failed"}}),
    ],
)
def test_a_job_that_is_over_is_known_by_its_own_status(kind: str, status: Json) -> None:
    row = kinds()[kind]
    assert has_ended({"status": status}, row)
    assert not has_ended({"status": {"conditions": [{"type": "Suspended", "status": "True"}]}}, row)
    assert not has_ended({"status": {"conditions": ["nonsense", {"type": "Complete", "status": "False"}]}}, row)
    assert not has_ended({}, row)


def test_namespaces_take_turns_and_none_has_more_than_its_part() -> None:
    known = OtherJobs(cast(Any, None), ReflectorSettings(), lambda: None, Silent(), names.LABEL_ADVISE)
    for index in range(MOST_PER_NAMESPACE + 5):
        job, _ = other("Job", name=f"many-{index}", uid=f"many-{index:04}", creationTimestamp="2026-01-01T00:00:00Z")
        known.apply_written("Job", msgspec.json.encode(job))
    few, _ = other("JobSet", name="few", uid="few", namespace="zoo", creationTimestamp="2026-02-01T00:00:00Z")
    known.apply_written("JobSet", msgspec.json.encode(few))
    line = [(kind, job.metadata.name) for kind, _, job in known.all()]
    assert ("JobSet", "few") in line[:2]
    assert len(line) == MOST_PER_NAMESPACE + 1


def test_who_is_made_by_a_job_that_can_be_advised_itself_is_not() -> None:
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set", "uid": "u", "controller": True}
    assert other("Job", ownerReferences=[owner])[0].follows == "JobSet set"
    assert other("Job", ownerReferences=[owner | {"kind": "CronJob", "apiVersion": "batch/v1"}])[0].follows == ""


def test_on_nodes_without_our_gangs_everything_but_what_is_foreign_is_free() -> None:
    facts, _ = question.facts_of(documents("Job"))
    asked = facts.as_job(created=NOW)
    runs = replace(asked, uid="runs", placement=placement("runs", {"a": 8}))
    node = Node("a", "A100-SXM4-80GB", 8, 0, 1000, 1000, 5, foreign_gpus=2)
    seen = Snapshot(time=NOW, nodes=(node,), jobs=(runs,), gpu_types={})
    freed = question.alone(seen, asked)
    assert [job.uid for job in freed.jobs] == ["uid-a"]
    assert (freed.nodes[0].free_gpus, freed.nodes[0].free_pods) == (6, 6)
    assert [job.uid for job in question.beside(seen, asked).jobs] == ["runs", "uid-a"]


# --- the answer -----------------------------------------------------------------------------------------------------
def pending(start: float | None = None, message: str = "all busy") -> Pending:
    eta = Eta(start - 60, start, start + 60) if start is not None else None
    return Pending("uid-a", PendingReason.INSUFFICIENT_GPUS, message, alternatives=("wait",), eta=eta)


def told(advice: Advice) -> dict[str, str]:
    return {name: value for name, value in answer.as_annotations(advice).items() if value is not None}


def test_an_advice_says_type_count_plan_start_end_and_why() -> None:
    said = told(answer.advised(NOW, "digest", STARTS))
    assert said[names.ADVICE["gpu_type"]] == STARTS.gpu_type
    assert said[names.ADVICE["gpus"]] == str(STARTS.gpus)
    assert said[names.ADVICE["plan"]] == STARTS.plan.describe()
    assert said[names.ADVICE["start"]] == said[names.ADVICE["at"]]
    assert said[names.ADVICE["end"]] > said[names.ADVICE["start"]]
    assert said[names.ADVICE["because"]] == STARTS.reason
    assert "at once" in answer.event(answer.advised(NOW, "digest", STARTS)).message


def test_who_waits_is_told_what_it_would_get_then() -> None:
    advice = answer.waits(NOW, "digest", pending(NOW + 7200), STARTS)
    said = told(advice)
    assert advice.end == NOW + 7200 + STARTS.prediction.run_seconds
    assert said[names.ADVICE["because"]] == "InsufficientGpus: all busy; wait"
    assert said[names.ADVICE["gpus"]] == "8"
    never = told(answer.waits(NOW, "digest", pending(), None))
    assert not {names.ADVICE["start"], names.ADVICE["end"], names.ADVICE["gpus"]} & never.keys()


def test_a_problem_takes_the_place_of_an_advice() -> None:
    wrong = Advice(NOW, "digest", "steps: nothing states it\x1b[31m", problem=True)
    said = answer.as_annotations(wrong)
    assert "\x1b" not in str(said[names.ADVICE["problem"]])
    assert said[names.ADVICE["because"]] is None
    assert said[names.ADVICE["plan"]] is None
    assert answer.event(wrong).type == "Warning"


LATER = replace(STARTS, prediction=replace(STARTS.prediction, run_seconds=STARTS.prediction.run_seconds * 2))
HOUR = answer.STANDS_SECONDS


@pytest.mark.parametrize(
    ("before", "after", "news"),
    [
        (answer.advised(NOW, "d", STARTS), answer.advised(NOW + 600, "d", STARTS), False),
        (answer.advised(NOW, "d", STARTS), answer.advised(NOW + HOUR, "d", STARTS), True),
        (answer.advised(NOW, "d", STARTS), answer.advised(NOW + 600, "e", STARTS), True),
        (answer.advised(NOW, "d", STARTS), answer.advised(NOW + 600, "d", LATER), True),
        (answer.advised(NOW, "d", STARTS), answer.waits(NOW + 60, "d", pending(NOW + 90), STARTS), True),
        (
            answer.waits(NOW, "d", pending(NOW + 9000), STARTS),
            answer.waits(NOW + 60, "d", pending(NOW + 9200), STARTS),
            False,
        ),
        (
            answer.waits(NOW, "d", pending(NOW + 9000), STARTS),
            answer.waits(NOW + 60, "d", pending(NOW + 19000), STARTS),
            True,
        ),
        (answer.waits(NOW, "d", pending(), None), answer.waits(NOW + 60, "d", pending(), None), False),
        (answer.waits(NOW, "d", pending(), None), answer.waits(NOW + 60, "d", pending(message="other"), None), True),
        (answer.waits(NOW, "d", pending(), None), Advice(NOW, "d", "wrong", problem=True), True),
        (Advice(NOW, "d", "wrong", problem=True), Advice(NOW, "d", "wrong", problem=True), False),
        (Advice(NOW, "d", "wrong", problem=True), Advice(NOW, "d", "worse", problem=True), True),
    ],
)
def test_what_is_news(before: Advice, after: Advice, news: bool) -> None:
    assert answer.is_news(after, told(before)) is news


def test_the_first_advice_is_news_and_so_is_one_over_nonsense() -> None:
    advice = answer.advised(NOW, "d", STARTS)
    assert answer.is_news(advice, {})
    assert answer.is_news(advice, told(advice) | {names.ADVICE["at"]: "yesterday"})
    assert answer.is_news(advice, told(advice) | {names.ADVICE["start"]: "9" * 99})


# --- the advisor ----------------------------------------------------------------------------------------------------
class Bench:
    """An advisor with the API server, the policies and the recorder played: it is that of all of them."""

    def __init__(self, failing: Mapping[str, str] = MappingProxyType({})) -> None:
        self.failing = failing
        self.asked: list[str] = []
        self.patches: dict[str, Json] = {}
        self.events: list[str] = []
        self.jobs = OtherJobs(cast(Any, self), ReflectorSettings(), lambda: None, Silent(), names.LABEL_ADVISE)
        observer = ClusterObserver(Settings().topology.levels)
        self.seen = observer.observe(Caches([node_object("a")], (), ()), NOW)
        parts = [cast(Any, self)] * 3
        self.advisor = Advisor(
            parts[0], self.jobs, parts[1], parts[2], Settings(), priority_classes=lambda: (), correct=lambda seen: seen
        )

    async def decide(self, policy: str, snapshot: Snapshot, seconds: float, rules: object) -> Outcome:
        self.asked.append(policy)
        if policy in self.failing:
            raise PolicyError(self.failing[policy], reason="error")
        (job,) = snapshot.jobs
        why = Pending(job.uid, PendingReason.INSUFFICIENT_GPUS, f"so says {policy}")
        return Outcome(policies={job.uid: policy}, placements=(), pending=(why,), refused=(), fallbacks=(), seconds={})

    async def merge_patch(self, path: str, patch: Json) -> bytes:
        if "refused" in path:
            raise Forbidden("an admission policy of somebody else")
        self.patches[path] = patch
        name = path.rpartition("/")[2]
        job, _ = other("Job", name=name, uid=patch["metadata"]["uid"], resourceVersion="2")
        return msgspec.json.encode(job)

    def other(self, regarding: dict[str, str], happening: JobEvent) -> None:
        self.events.append(happening.reason)

    async def look(self, *names_of: str) -> None:
        """One look at Jobs of these names."""
        for name in names_of:
            job, _ = other("Job", name=name, uid=f"uid-{name}")
            self.jobs.apply_written("Job", msgspec.json.encode(job))
        self.advisor.see(self.seen, Choice("best_fit", "fcfs"))
        with patch("trimtab.controller.advice.advisor.LOOK_SECONDS", 3600.0):
            task = asyncio.create_task(self.advisor.run())
            async with asyncio.timeout(60):
                while len(self.patches) < len([name for name in names_of if name != "refused"]):
                    assert not task.done(), task.result()
                    await asyncio.sleep(0.01)
            task.cancel()


async def test_only_annotations_are_written_and_the_uid_fences_them() -> None:
    bench = Bench()
    await bench.look("a")
    ((path, patched),) = bench.patches.items()
    assert path == "/apis/batch/v1/namespaces/team/jobs/a"
    assert patched.keys() == {"metadata"}
    assert patched["metadata"].keys() == {"uid", "annotations"}
    assert patched["metadata"]["annotations"].keys() == set(names.ADVICE.values())
    assert bench.events == [names.REASON_ADVICE]


async def test_where_the_policy_fails_its_fallback_is_asked() -> None:
    bench = Bench({"best_fit": "no weights"})
    await bench.look("a")
    assert bench.asked[:2] == ["best_fit", "fcfs"]
    (patched,) = bench.patches.values()
    assert "so says fcfs" in patched["metadata"]["annotations"][names.ADVICE["because"]]


async def test_a_job_that_may_not_be_written_keeps_nobody_else_from_advice() -> None:
    bench = Bench()
    await bench.look("refused", "z")
    assert [path.rpartition("/")[2] for path in bench.patches] == ["z"]


async def test_a_runtime_of_no_possible_name_is_asked_of_nobody() -> None:
    advisor, found = Bench().advisor, documents("TrainJob")[0]
    found["spec"]["runtimeRef"] = {"name": "../../../../api/v1/namespaces/kube-system/secrets/s"}
    with pytest.raises(UsageError, match=r"spec.runtimeRef: there is no ClusterTrainingRuntime"):
        await advisor._runtime(found)
