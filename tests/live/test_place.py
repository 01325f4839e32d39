"""Batch Jobs are placed: their real controller makes the pods, Trimtab decides where and when they run. The controller
has no more rights than manifests/other-kinds-place.yaml and the admission policies give."""

from __future__ import annotations

import asyncio
import json
import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.harness import ControllerProcess, Live, eventually, training_job, wait_until
from tests.live.theirs import (
    PLACE,
    finished,
    gone,
    gpus_of,
    handed_over,
    job,
    nodes,
    placed,
    pods,
    shape_is,
    shaped,
    stand_in,
    started,
    uids,
    until,
)

from trimtab import names
from trimtab.errors import LocalClusterError
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.kubeconfig import service_account_kubeconfig

pytestmark = pytest.mark.cluster

Json = dict[str, Any]


@pytest.fixture(scope="module")
def placing(live_cluster: Live) -> Iterator[Live]:
    with placed(live_cluster):
        yield live_cluster


async def test_a_job_starts_as_a_gang_in_rank_order_with_its_plan_and_ends_with_its_stand_in(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    first = job("first")
    first["spec"]["template"]["spec"]["subdomain"] = "ranks"
    handed_over(first["spec"]["template"])
    live.apply(first)
    await eventually(lambda: len(pods(live, "first")) == 2, what="the Job's own controller to make the pods")
    assert nodes(live, "first") == ["", ""]
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE, fake={"speedup": 20.0}):
        await until(live, "first", "PodsReady")
        status = live.status(stand_in(live, "first"))
        planned = [node["name"] for node in status["plan"]["nodes"]]
        here = pods(live, "first")
        assert nodes(live, "first") == planned, "rank by rank, as the Job counts its pods"
        assert [pod["metadata"]["labels"][names.LABEL_RANK] for pod in here] == ["0", "1"]
        assert {owner["kind"] for pod in here for owner in pod["metadata"]["ownerReferences"]} == {"Job"}
        assert all(pod["metadata"]["annotations"][names.ANNOTATION_PLAN] for pod in here)
        assert status["plan"]["gpus"] == 16
        assert live.holds(stand_in(live, "first"), "GangScheduled")
        for rank, pod in enumerate(here):
            env, words = started(pod, tmp_path)
            degrees = [int(env[f"TRIMTAB_{degree}"]) for degree in ("DP", "TP", "PP", "CP")]
            assert (math.prod(degrees), env["PET_NODE_RANK"], env["PET_NNODES"]) == (16, str(rank), "2")
            assert env["PET_MASTER_ADDR"] == "first-0.ranks"
            assert words[:2] == ["--tensor-model-parallel-size", env["TRIMTAB_TP"]]
            assert " ".join(words) == env["TRIMTAB_LAUNCH_FLAGS"]
    await gone(live, "first")


async def test_a_job_that_is_done_ends_its_stand_in(live: Live, placing: Live, tmp_path: Path) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE):
        live.apply(job("done"))
        await until(live, "done", "Complete")
        await eventually(finished(live, "done"), what="its own controller to say that it is complete")
        assert live.get("job.batch", "done")["status"]["succeeded"] == 2
        assert names.REASON_STAND_IN in live.events("done")
    await gone(live, "done")


async def test_of_two_that_do_not_both_fit_one_waits_whole_and_follows(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE, fake={"speedup": 20.0}):
        live.apply(job("early", nodes=4))
        await until(live, "early", "PodsReady")
        live.apply(job("late", nodes=2))
        await eventually(
            lambda: bool(it := stand_in(live, "late")) and "pending" in live.status(it),
            what=lambda: f"it to be told why it waits: {live.list('ltj')}",
        )
        waiting = pods(live, "late")
        assert len(waiting) == 2
        assert not any(nodes(live, "late")), "no part of it starts"
        assert all(pod["spec"]["schedulingGates"] == [{"name": names.SCHEDULING_GATE}] for pod in waiting)
        assert live.status(stand_in(live, "late"))["pending"]["reason"] == "InsufficientGpus"
        await gone(live, "early")
        await until(live, "late", "PodsReady")
        assert len(set(nodes(live, "late"))) == 2
    await gone(live, "late")


async def test_its_user_suspends_it_and_lets_it_go_on(live: Live, placing: Live, tmp_path: Path) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE, fake={"speedup": 20.0}):
        live.apply(job("paused", suspend=True))
        await until(live, "paused", "Suspended")
        assert not pods(live, "paused")
        live.patch("job.batch", "paused", {"spec": {"suspend": False}})
        await until(live, "paused", "PodsReady")
        live.patch("job.batch", "paused", {"spec": {"suspend": True}})
        await until(live, "paused", "Suspended")
        await eventually(lambda: not pods(live, "paused"), what="its pods to go")
        found = live.get("job.batch", "paused")
        assert names.ANNOTATION_SUSPENDED not in found["metadata"]["annotations"], "that was not us"
        live.patch("job.batch", "paused", {"spec": {"suspend": False}})
        await until(live, "paused", "PodsReady")
        assert live.status(stand_in(live, "paused"))["plan"]["epoch"] == 2
        assert live.get("job.batch", "paused")["status"].get("failed", 0) == 0
    await gone(live, "paused")


async def test_who_has_to_give_way_is_suspended_and_goes_on_later(live: Live, placing: Live, tmp_path: Path) -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "place-high"}}
    live.apply(high | {"value": 1000})
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE, fake={"speedup": 20.0}):
        live.apply(job("humble", nodes=4))
        await until(live, "humble", "PodsReady")
        first = [pod["metadata"]["uid"] for pod in pods(live, "humble")]
        live.patch("ltj", stand_in(live, "humble"), {"spec": {"elasticity": {"minRuntimeSeconds": 0}}})
        live.apply(training_job("proud", gpus=32, seconds=3600, priorityClassName="place-high"))
        await live.until("proud", "PodsReady", 60)
        found = live.get("job.batch", "humble")
        assert found["spec"]["suspend"] is True
        assert "proud" in found["metadata"]["annotations"][names.ANNOTATION_SUSPENDED]
        assert not found["status"].get("failed"), "that does not count as a failure"
        await live.gone("proud")
        await until(live, "humble", "PodsReady")
        found = live.get("job.batch", "humble")
        assert found["spec"]["suspend"] is False
        assert names.ANNOTATION_SUSPENDED not in found["metadata"]["annotations"]
        assert not {pod["metadata"]["uid"] for pod in pods(live, "humble")} & set(first)
    await gone(live, "humble")
    live.cluster.kubectl("delete", "priorityclass", "place-high")


async def test_a_rank_that_is_lost_ends_the_gang_which_begins_anew_as_a_whole(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE, fake={"speedup": 20.0}):
        live.apply(job("hurt"))
        await until(live, "hurt", "PodsReady")
        before = {pod["metadata"]["uid"] for pod in pods(live, "hurt")}
        live.delete("pod", pods(live, "hurt")[1]["metadata"]["name"], "--wait=false")
        await eventually(lambda: live.status(stand_in(live, "hurt")).get("lastEpoch") == 2, 60, what="another plan")
        await until(live, "hurt", "PodsReady")
        assert not {pod["metadata"]["uid"] for pod in pods(live, "hurt")} & before
        assert all(pod["metadata"]["labels"][names.LABEL_EPOCH] == "2" for pod in pods(live, "hurt"))
    await gone(live, "hurt")


async def test_without_its_stand_in_a_gang_goes_and_another_one_takes_its_place(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE, fake={"speedup": 20.0}):
        bare = job("bare")
        bare["metadata"]["labels"]["team"] = "a"  # with none left, a Job has those of its template again
        live.apply(bare)
        await until(live, "bare", "PodsReady")
        first, before = live.get("ltj", stand_in(live, "bare")), {pod["metadata"]["uid"] for pod in pods(live, "bare")}
        live.delete("ltj", stand_in(live, "bare"), "--wait=false")
        name, uid = first["metadata"]["name"], first["metadata"]["uid"]
        await eventually(lambda: live.get("ltj", name).get("metadata", {}).get("uid", uid) != uid, what="another one")
        await until(live, "bare", "PodsReady")
        assert not {pod["metadata"]["uid"] for pod in pods(live, "bare")} & before
        live.cluster.kubectl("label", "job.batch", "bare", f"{names.LABEL_MANAGED}-")
        await eventually(lambda: not live.list("ltj"), 60, what="nothing to stand in for it")
        await eventually(lambda: not any(nodes(live, "bare")), 60, what="its gang to go")
    await gone(live, "bare")


KEPT = {"metadata": {"finalizers": ["example.com/keep"]}}


async def test_what_keeps_a_job_that_is_being_deleted_keeps_no_gpus(live: Live, placing: Live, tmp_path: Path) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE, fake={"speedup": 20.0}):
        live.apply(job("kept"))
        await until(live, "kept", "PodsReady")
        live.patch("job.batch", "kept", KEPT)
        live.delete("job.batch", "kept", "--wait=false")
        await eventually(lambda: not live.list("ltj"), 60, what="nothing to stand in for it")
        await eventually(lambda: not any(nodes(live, "kept")), 60, what="its gang to go")
        assert live.get("job.batch", "kept"), "it is there still"
    live.patch("job.batch", "kept", {"metadata": {"finalizers": None}})
    await gone(live, "kept")


async def test_pods_whose_job_is_gone_or_is_not_theirs_any_more_keep_no_gpus(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    """Deleted without its pods; and suspended, when one of its pods is not its own any more."""
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE, fake={"speedup": 20.0}):
        live.apply(job("leaves"), job("loses"))
        for name in ("leaves", "loses"):
            await until(live, name, "PodsReady")
        left, lost = uids(live, "leaves"), pods(live, "loses")[0]["metadata"]
        live.delete("job.batch", "leaves", "--cascade=orphan", "--wait=false")
        # Its Job would take it back by its labels.
        labels = dict.fromkeys(("batch.kubernetes.io/controller-uid", "controller-uid"))
        live.patch("pod", lost["name"], {"metadata": {"ownerReferences": None, "labels": labels, "finalizers": None}})
        live.patch("job.batch", "loses", {"spec": {"suspend": True}})

        def here() -> set[str]:
            return {pod["metadata"]["uid"] for pod in live.list("pods") if "deletionTimestamp" not in pod["metadata"]}

        await eventually(lambda: not left & here(), 60, what=lambda: f"those without a job to go: {live.list('pods')}")
        assert lost["uid"] in here(), "its controller may be seen a moment later"
        async with live.excuse():  # half a gang, for as long as anybody might control it
            await eventually(lambda: lost["uid"] not in here(), 120, what=lambda: f"it to go: {live.list('pods')}")
        await until(live, "loses", "Suspended")
    await gone(live, "loses")


async def test_a_jobs_shape_is_chosen_within_its_range_and_given_back(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    """Its user states one pod; it is made suspended, with the note that it is for us to resume it."""
    made = shaped(job("shaped", nodes=1, suspend=True), gpus="16-32", steps="1000000", elasticity="Elastic")
    made["metadata"]["annotations"][names.ANNOTATION_SUSPENDED] = "until it is planned"
    live.apply(made)

    async def runs(count: int, gpus: int, note: dict[str, list[Any]]) -> None:
        await shape_is(live, "shaped", (count, gpus))
        assert len(here := pods(live, "shaped")) == count
        assert gpus_of(here) == [str(gpus)] * count
        planned = live.status(stand_in(live, "shaped"))["plan"]["nodes"]
        assert [(node["name"], node["gpus"]) for node in planned] == [(node, gpus) for node in nodes(live, "shaped")]
        found = live.get("job.batch", "shaped")
        assert found["spec"]["completions"] == count
        assert json.loads(found["metadata"]["annotations"].get(names.ANNOTATION_SHAPED, "{}")) == note
        assert not found["status"].get("failed")

    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE, fake={"speedup": 20.0}):
        await until(live, "shaped", "PodsReady")
        chosen = len(live.status(stand_in(live, "shaped"))["plan"]["nodes"])
        counts = {"/spec/parallelism": [1, chosen], "/spec/completions": [1, chosen]}
        assert chosen >= 2
        await runs(chosen, 8, counts)
        live.patch("ltj", stand_in(live, "shaped"), {"spec": {"elasticity": {"minRuntimeSeconds": 0}}})
        asked = {names.STATED["gpus"]: "8-8", names.STATED["gpus_per_node"]: "4-4"}
        live.patch("job.batch", "shaped", {"metadata": {"annotations": asked}})
        limit = "/spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu"
        counts = {"/spec/parallelism": [1, 2], "/spec/completions": [1, 2]}
        await runs(2, 4, counts | {limit: ["8", "4"]})
        live.patch("job.batch", "shaped", {"metadata": {"annotations": dict.fromkeys((*asked, ELASTICITY))}})
        await runs(1, 8, {})
    await gone(live, "shaped")


ELASTICITY = names.STATED["elasticity"]


@pytest.mark.parametrize("after", [0.3, 1.0, 1.8, 2.6])
async def test_a_controller_that_dies_in_the_middle_has_a_successor_that_goes_on(
    live: Live, placing: Live, tmp_path: Path, after: float
) -> None:
    name = f"resumed-{int(10 * after)}"
    kubeconfig = live.kubeconfig(tmp_path)
    async with ControllerProcess(kubeconfig, tmp_path, interop=PLACE, fake={"speedup": 20.0}) as dies:
        await eventually(lambda: "serving" in dies.tail(200) and dies.metric("trimtab_leader") == 1, what="a leader")
        live.apply(job(name, nodes=4))
        await asyncio.sleep(after)
        dies.signal(signal.SIGKILL)
        await dies.died()
    async with ControllerProcess(kubeconfig, tmp_path, interop=PLACE, fake={"speedup": 20.0}):
        await until(live, name, "PodsReady")
        assert len(set(nodes(live, name))) == 4
        assert len(live.list("ltj")) == 1
    await gone(live, name)


WRONG: list[tuple[str, Json, str]] = [
    ("unindexed", {"completionMode": "NonIndexed"}, "spec.completionMode has to be Indexed"),
    ("half", {"completions": 4}, "spec.completions has to be spec.parallelism"),
]


async def test_what_keeps_a_job_from_being_placed_is_told_and_it_is_left_alone(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    live.apply(*(job(name, suspend=True, **spec) for name, spec, _ in WRONG))
    vague = job("vague", suspend=True)
    vague["spec"]["template"]["spec"]["containers"][0]["command"] = ["python", "train_llm.py"]
    free = job("free", suspend=True)
    del free["spec"]["template"]["spec"]["schedulingGates"]
    live.apply(vague, free)
    told = [(name, why) for name, _, why in WRONG]
    told += [("vague", names.STATED["global_batch_size"]), ("free", "schedulingGates")]
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE):
        for name, why in told:
            await eventually(
                lambda name=name, why=why: (
                    why  # type: ignore[misc] - bound at once
                    in live.get("job.batch", name)["metadata"]
                    .get("annotations", {})
                    .get(names.ANNOTATION_PLACE_PROBLEM, "")
                ),
                what=lambda name=name: f"{name} to be told: {live.get('job.batch', name)}",  # type: ignore[misc] - the same
            )
        assert not live.list("ltj")
        assert live.events("vague").count(names.REASON_NOT_PLACED) == 1
        stated = {"model": "gpt2", "sequence_length": "1024", "global_batch_size": "16", "steps": "1000"}
        live.patch("job.batch", "vague", {"metadata": {"annotations": {names.STATED[k]: v for k, v in stated.items()}}})
        await until(live, "vague", "Suspended")
        annotations = live.get("job.batch", "vague")["metadata"]["annotations"]
        assert names.ANNOTATION_PLACE_PROBLEM not in annotations
    for name in (*(name for name, _, _ in WRONG), "vague", "free"):
        await gone(live, name)


# --- what nobody may --------------------------------------------------------------------------------------------------
class Somebody:
    """An account with a token of its own: what the API server says to what it tries."""

    def __init__(self, live: Live, directory: Path, namespace: str, name: str) -> None:
        self._live = live
        self._path = directory / f"{name}.kubeconfig"
        service_account_kubeconfig(live.cluster.kubeconfig, namespace, name, self._path)

    def tries(self, *arguments: str, stdin: Json | None = None) -> str:
        """What is said against it; empty where it would be done."""
        given = ["--kubeconfig", str(self._path), "-n", "default", *arguments, "--dry-run=server"]
        try:
            self._live.cluster.kubectl(*given, stdin=json.dumps(stdin) if stdin else "")
        except LocalClusterError as error:
            return str(error)
        return ""

    def patches(self, kind: str, name: str, patch: Json) -> str:
        return self.tries("patch", kind, name, "--type=merge", "-p", json.dumps(patch))

    def creates(self, obj: Json) -> str:
        return self.tries("create", "-f", "-", stdin=obj)


@pytest.fixture
def waits(placing: Live) -> Iterator[str]:
    """A Job whose pods wait at the gate, and one that asks for nothing; no controller runs."""
    free = job("free", suspend=True)
    free["metadata"]["labels"] = {"not": "ours"}  # with none, a Job has those of its template
    placing.apply(job("waits"), free)
    wait_until(lambda: len(pods(placing, "waits")) == 2, "the pods")
    yield pods(placing, "waits")[0]["metadata"]["name"]
    for name in ("waits", "free"):
        placing.delete("job.batch", name)
    wait_until(lambda: not placing.list("pods"), "the pods to be gone", 90)


def test_who_writes_jobs_and_pods_makes_no_stand_in_and_no_pod_of_a_gang(
    placing: Live, waits: str, tmp_path: Path
) -> None:
    author = "place-author"
    placing.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": author, "namespace": "default"}})
    for role in ("edit", "trimtab-editor"):
        binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding"}
        meta = {"name": f"{author}-{role}", "namespace": "default"}
        subject = {"kind": "ServiceAccount", "name": author, "namespace": "default"}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        placing.apply(binding | {"metadata": meta, "subjects": [subject], "roleRef": reference})
    placing.cluster.kubectl("apply", "--server-side", "-f", str(checkout() / "manifests" / "roles.yaml"))
    somebody = Somebody(placing, tmp_path, "default", author)
    own = training_job("own")
    wait_until(lambda: not somebody.creates(own), lambda: f"its rights: {somebody.creates(own)}")
    own["spec"]["managedBy"] = names.MANAGED_BY_STAND_IN
    wait_until(lambda: "trimtab-stand-ins" in somebody.creates(own), lambda: f"refused: {somebody.creates(own)}")
    assert somebody.creates(job("theirs")) == "", "to ask for it is everybody's right"
    template = job("theirs")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "forged", **template["metadata"]}}
    owners = placing.get("pod", waits)["metadata"]["ownerReferences"]
    pod["metadata"]["ownerReferences"] = owners
    assert "trimtab-" in somebody.creates(pod | {"spec": template["spec"]})
    assert "trimtab-pods" in somebody.patches("pod", waits, {"spec": {"schedulingGates": []}})
    assert "trimtab-marks" in somebody.patches("pod", waits, TAKEN_IN)


def test_a_job_that_asks_is_as_small_as_one_of_ours(placing: Live) -> None:
    def large(name: str, characters: int, **labels: str) -> Json:
        made = job(name, suspend=True)
        made["metadata"]["labels"] = labels
        made["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "X", "value": "x" * characters}]
        return made

    def tries(made: Json) -> str:
        try:
            placing.cluster.kubectl(
                *("create", "-f", "-", "--dry-run=server", "--as=system:serviceaccount:kube-system:job-controller"),
                *("--as-group=system:masters-of-jobs",),
                stdin=json.dumps(made),
            )
        except LocalClusterError as error:
            return str(error)
        return ""

    def await_refusal(made: Json) -> None:
        wait_until(lambda: "at most 73728" in tries(made), lambda: tries(made))

    role = ("jobs-of-all", "--verb=create,patch,get", "--resource=jobs.batch")
    placing.cluster.kubectl("create", "clusterrole", *role)
    placing.cluster.kubectl("create", "clusterrolebinding", "jobs-of-all", "--clusterrole=jobs-of-all", GROUP)
    try:
        for label in (names.LABEL_MANAGED, names.LABEL_ADVISE):
            await_refusal(large("big", 75_000, **{label: "true"}))
            assert tries(large("fits", 60_000, **{label: "true"})) == ""
        assert tries(large("free", 75_000, other="x")) == ""
    finally:
        placing.cluster.kubectl("delete", "clusterrolebinding/jobs-of-all", "clusterrole/jobs-of-all")


GROUP = "--group=system:masters-of-jobs"


def it_shapes_what_is_suspended_and_asks_for_it(placing: Live, controller: Somebody) -> None:
    """Counts, and GPUs of containers, and nothing else of its template."""
    plain, asks = job("plain-shape", suspend=True), shaped(job("asks-shape", suspend=True), gpus="8-64")
    runs = shaped(job("runs-shape"), gpus="8-64")
    placing.apply(plain, asks, runs)
    two = {"parallelism": 4, "completions": 4, "suspend": False}
    note = {"metadata": {"annotations": {names.ANNOTATION_SHAPED: "{}", names.ANNOTATION_SUSPENDED: None}}}
    [container] = asks["spec"]["template"]["spec"]["containers"]

    def with_container(**fields: Any) -> Json:
        return {"template": {"spec": {"containers": [container | fields]}}}

    fewer = {"resources": {"limits": {names.NVIDIA_GPU: 4}}}
    shape = note | {"spec": two | with_container(**fewer)}
    wait_until(  # the API server takes another template once the Job's own controller says that it is suspended
        lambda: controller.patches("job.batch", "asks-shape", shape) == "",
        lambda: controller.patches("job.batch", "asks-shape", shape),
    )
    refused = "spec.suspend and what it says of that"
    assert refused in controller.patches("job.batch", "plain-shape", {"spec": two})
    assert refused in controller.patches("job.batch", "runs-shape", {"spec": two})
    for resources in ({"limits": {names.NVIDIA_GPU: 4, "cpu": "8"}}, fewer["resources"] | {"requests": {"cpu": "1"}}):
        spec = two | with_container(resources=resources)
        assert refused in controller.patches("job.batch", "asks-shape", {"spec": spec}), resources
    assert "immutable" in controller.patches("job.batch", "asks-shape", {"spec": with_container(image="other:1")})
    elsewhere = {"template": {"spec": {"nodeSelector": {"a": "b"}}}}  # which the API server would take
    assert refused in controller.patches("job.batch", "asks-shape", {"spec": elsewhere})
    assert refused in controller.patches("job.batch", "asks-shape", {"spec": {"backoffLimit": 1}})
    placing.delete("job.batch", "plain-shape", "asks-shape", "runs-shape")


TAKEN_IN = {"metadata": {"labels": {names.LABEL_JOB: "others", names.LABEL_JOB_UID: "u"}}}


def test_the_controller_touches_only_jobs_that_ask_and_pods_that_wait_for_it(
    placing: Live, waits: str, tmp_path: Path
) -> None:
    controller = Somebody(placing, tmp_path, "trimtab-system", "trimtab-controller")
    placing.apply(training_job("others"))
    suspend = {"spec": {"suspend": True}}
    assert controller.patches("job.batch", "waits", suspend) == ""
    said = {"metadata": {"annotations": {names.ANNOTATION_SUSPENDED: "why"}}}
    assert controller.patches("job.batch", "waits", said) == ""
    assert "with the label" in controller.patches("job.batch", "free", {"spec": {"suspend": False}})
    for patch in ({"spec": {"parallelism": 1}}, {"metadata": {"annotations": {"other": "x"}}}):
        assert "spec.suspend and what it says of that" in controller.patches("job.batch", "waits", patch), patch
    it_shapes_what_is_suspended_and_asks_for_it(placing, controller)
    assert "stand in for jobs of other kinds" in controller.creates(training_job("more"))
    assert "stand in for jobs of other kinds" in controller.patches("ltj", "others", suspend)
    assert "stand in for jobs of other kinds" in controller.tries("delete", "ltj", "others")
    stray = training_job("stray")
    stray["spec"]["managedBy"] = names.MANAGED_BY_STAND_IN
    assert "controlled by the one job" in controller.creates(stray)
    owners = {"ownerReferences": []}
    assert controller.patches("pod", waits, TAKEN_IN) == ""
    stolen = {"metadata": TAKEN_IN["metadata"] | owners}
    assert "belongs to an LLMTrainingJob" in controller.patches("pod", waits, stolen)
    assert "belongs to an LLMTrainingJob" in controller.patches("pod", waits, {"spec": {"schedulingGates": []}})
    assert "belongs to an LLMTrainingJob" in controller.tries("delete", "pod", waits)
    free = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain", "namespace": "default"}}
    placing.apply(free | {"spec": {"schedulingGates": [{"name": "x"}], "containers": [{"name": "c", "image": "i"}]}})
    assert "belongs to an LLMTrainingJob" in controller.patches("pod", "plain", TAKEN_IN)
    placing.delete("pod", "plain")
    placing.delete("ltj", "others")
