"""JobSets and TrainJobs are placed: their real controllers make Jobs, those make the pods, and Trimtab decides where
and when they run.

Their webhooks are real, too (`tests.live.their_controllers`), and no controller has more rights than its manifests say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live import their_controllers, theirs
from tests.live.harness import ControllerProcess, Live, eventually, training_job
from tests.live.test_place import Somebody
from tests.live.theirs import (
    JOBSET,
    PLACE,
    TRAINJOB,
    Words,
    fail,
    finished,
    gone,
    jobset,
    nodes,
    placed,
    pods,
    replicated,
    runtime,
    template,
    trainjob,
    uids,
)

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

Json = dict[str, Any]
SLOW: dict[str, dict[str, Any]] = {"interop": PLACE, "fake": {"speedup": 20.0}}


@pytest.fixture(scope="module")
def placing(live_cluster: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    directory, both = tmp_path_factory.mktemp("theirs"), (their_controllers.JOBSET, their_controllers.TRAINER)
    with their_controllers.running(live_cluster.cluster, directory, *both), placed(live_cluster):
        yield live_cluster


def stand_in(live: Live, name: str) -> str:
    return theirs.stand_in(live, name, JOBSET)


async def until(live: Live, name: str, condition: str) -> None:
    await theirs.until(live, name, condition, JOBSET)


async def again(live: Live, stands_in: str, name: str) -> None:
    """Wait for another gang of the same stand-in."""
    await eventually(
        lambda: live.status(stands_in).get("plan", {}).get("epoch", 0) > 1 and live.holds(stands_in, "PodsReady"),
        60,
        lambda: f"another gang: {live.list('ltj')} {live.get(JOBSET.plural, name)}",
    )


def restarts(live: Live, name: str) -> int:
    return int(live.get(JOBSET.plural, name).get("status", {}).get("restarts", 0))


async def test_its_jobs_are_one_gang_in_rank_order_which_outlives_a_failed_rank_and_its_stand_in(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    live.apply(jobset("wide", replicated("driver"), jobs=2, pods=2))
    await eventually(lambda: len(pods(live, "wide", JOBSET)) == 4, what="the pods of its Jobs")
    assert not any(nodes(live, "wide", JOBSET))
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **SLOW):
        await until(live, "wide", "PodsReady")
        first, before = stand_in(live, "wide"), uids(live, "wide", JOBSET)
        planned = [node["name"] for node in live.status(first)["plan"]["nodes"]]
        here = pods(live, "wide", JOBSET)
        assert nodes(live, "wide", JOBSET) == planned, "the pods of the first Job come first"
        assert [pod["metadata"]["labels"][names.LABEL_RANK] for pod in here] == ["0", "1", "2", "3"]
        assert {owner["kind"] for pod in here for owner in pod["metadata"]["ownerReferences"]} == {"Job"}
        [driver] = live.list("pods", "jobset.sigs.k8s.io/replicatedjob-name=driver")
        assert not [label for label in driver["metadata"]["labels"] if label.startswith(names.GROUP)]

        fail(live, here[2])
        await eventually(
            lambda: restarts(live, "wide") == 1, 60, lambda: f"a restart: {live.get(JOBSET.plural, 'wide')}"
        )
        await again(live, first, "wide")
        again_here = uids(live, "wide", JOBSET)
        assert len(again_here) == 4
        assert not again_here & before
        assert stand_in(live, "wide") == first
        assert restarts(live, "wide") == 1, "the gang that begins anew costs no other restart"

        uid = live.get("ltj", first)["metadata"]["uid"]
        live.delete("ltj", first, "--wait=false")
        await eventually(lambda: live.get("ltj", first).get("metadata", {}).get("uid", uid) != uid, what="another one")
        await until(live, "wide", "PodsReady")
        assert not uids(live, "wide", JOBSET) & again_here
    await gone(live, "wide", JOBSET)


async def test_of_two_that_do_not_both_fit_one_waits_whole_and_follows_and_ends_with_its_stand_in(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE):
        early, late = jobset("early", jobs=2, pods=2), jobset("late")
        for each, steps in (early, "1000000"), (late, "50"):
            each["metadata"]["annotations"] = {names.STATED["steps"]: steps}
        live.apply(early)
        await until(live, "early", "PodsReady")
        live.apply(late)
        await eventually(
            lambda: bool(it := stand_in(live, "late")) and "pending" in live.status(it),
            what=lambda: f"it to be told why it waits: {live.list('ltj')}",
        )
        assert not any(nodes(live, "late", JOBSET)), "no part of it starts"
        assert live.status(stand_in(live, "late"))["pending"]["reason"] == "InsufficientGpus"
        await gone(live, "early", JOBSET)
        await until(live, "late", "Complete")
        assert len(set(nodes(live, "late", JOBSET))) == 2
        await eventually(finished(live, "late", JOBSET), what="its own controller to say that it is complete")
    await gone(live, "late", JOBSET)


async def test_it_is_suspended_by_its_user_or_by_us_and_neither_overrules_the_other(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "jobset-high"}}
    live.apply(high | {"value": 1000})
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **SLOW):
        live.apply(jobset("humble", suspend=True))
        await until(live, "humble", "Suspended")
        assert not pods(live, "humble", JOBSET)
        live.patch(JOBSET.plural, "humble", {"spec": {"suspend": False}})
        await until(live, "humble", "PodsReady")
        first = uids(live, "humble", JOBSET)
        live.patch("ltj", stand_in(live, "humble"), {"spec": {"elasticity": {"minRuntimeSeconds": 0}}})
        live.apply(training_job("proud", gpus=32, seconds=3600, priorityClassName="jobset-high"))
        await live.until("proud", "PodsReady", 60)
        found = live.get(JOBSET.plural, "humble")
        assert found["spec"]["suspend"] is True
        assert "proud" in found["metadata"]["annotations"][names.ANNOTATION_SUSPENDED]
        assert not found["status"].get("restarts"), "that does not count as a failure"
        await live.gone("proud")
        await until(live, "humble", "PodsReady")
        assert names.ANNOTATION_SUSPENDED not in theirs.annotations(live, "humble", JOBSET)
        assert not uids(live, "humble", JOBSET) & first
        live.patch(JOBSET.plural, "humble", {"spec": {"suspend": True}})
        await until(live, "humble", "Suspended")
        await eventually(lambda: not pods(live, "humble", JOBSET), what="its pods to go")
        assert names.ANNOTATION_SUSPENDED not in theirs.annotations(live, "humble", JOBSET), "that was not us"
    await gone(live, "humble", JOBSET)
    live.cluster.kubectl("delete", "priorityclass", "jobset-high")


def _wrong() -> list[tuple[Json, str]]:
    two = jobset("two", replicated("other", template=template()))
    after = jobset("after", replicated("first"))
    after["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "first", "status": "Complete"}]
    half = jobset("half", pods=2)
    half["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] = 4
    free = jobset("free")
    del free["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["schedulingGates"]
    stuck = jobset("stuck", replicated("driver"))
    driver = stuck["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    driver["spec"]["schedulingGates"] = [{"name": names.SCHEDULING_GATE}]
    return [
        (two, "2 of its roles ask for GPUs (other, worker)"),
        (after, "spec.replicatedJobs[1].dependsOn has to be left out"),
        (half, "spec.replicatedJobs[0].template.spec.completions has to be"),
        (free, "schedulingGates of its pods"),
        (stuck, "the pods of driver ask for no GPUs"),
    ]


async def test_what_keeps_one_from_being_placed_is_told_and_it_is_left_alone(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    wrong = [
        (each["metadata"]["name"], each | {"spec": each["spec"] | {"suspend": True}}, why) for each, why in _wrong()
    ]
    live.apply(*(each for _, each, _ in wrong))
    kept = {name: live.get(JOBSET.plural, name)["spec"] for name, *_ in wrong}

    def told(name: str) -> str:
        return theirs.annotations(live, name, JOBSET).get(names.ANNOTATION_PLACE_PROBLEM, "")

    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE):
        await eventually(lambda: all(map(told, kept)), what=lambda: f"all to be told: {list(map(told, kept))}")
        for name, _, why in wrong:
            assert why in told(name)
        assert not live.list("ltj")
    assert {name: live.get(JOBSET.plural, name)["spec"] for name in kept} == kept
    for name in kept:
        await gone(live, name, JOBSET)


def test_the_controller_touches_only_jobsets_that_ask_and_no_job_of_theirs(placing: Live, tmp_path: Path) -> None:
    controller = Somebody(placing, tmp_path, "trimtab-system", "trimtab-controller")
    free = jobset("plain", suspend=True)
    del free["metadata"]["labels"]
    placing.apply(jobset("asks", suspend=True), free)
    resume = {"spec": {"suspend": False}}
    assert controller.patches(JOBSET.plural, "asks", resume) == ""
    assert (
        controller.patches(JOBSET.plural, "asks", {"metadata": {"annotations": {names.ANNOTATION_SUSPENDED: "w"}}})
        == ""
    )
    assert "with the label" in controller.patches(JOBSET.plural, "plain", resume)
    for patch in ({"spec": {"ttlSecondsAfterFinished": 1}}, {"metadata": {"annotations": {"other": "x"}}}):
        assert "spec.suspend and what it says of that" in controller.patches(JOBSET.plural, "asks", patch), patch
    placing.delete(JOBSET.plural, "asks")
    placing.delete(JOBSET.plural, "plain")


# --- TrainJobs --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def runtimes(placing: Live) -> Iterator[Live]:
    """With a runtime whose pods wait for Trimtab, and one whose pods do not."""
    placing.apply(runtime("placed"), runtime("plain", schedulingGates=None))
    yield placing
    for name in ("placed", "plain"):  # while Trainer runs, whose finalizer they have
        placing.delete("trainingruntime", name)


async def test_a_trainjob_starts_as_its_runtime_says_outlives_a_failed_rank_and_is_suspended_by_either_side(
    live: Live, runtimes: Live, tmp_path: Path
) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **SLOW):
        live.apply(trainjob("fine", "placed", nodes=4))
        await theirs.until(live, "fine", "PodsReady", TRAINJOB)
        stands_in = theirs.stand_in(live, "fine", TRAINJOB)
        planned = [node["name"] for node in live.status(stands_in)["plan"]["nodes"]]
        assert nodes(live, "fine", TRAINJOB) == planned
        assert len(set(planned)) == 4
        owner = live.get("ltj", stands_in)["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"]) == ("TrainJob", "fine")
        first = uids(live, "fine", TRAINJOB)
        fail(live, pods(live, "fine", TRAINJOB)[0])
        await again(live, stands_in, "fine")
        assert restarts(live, "fine") == 1, "by its JobSet"
        before = uids(live, "fine", TRAINJOB)
        assert not before & first
        live.patch("ltj", stands_in, {"spec": {"elasticity": {"minRuntimeSeconds": 0}}})
        high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "trainjob-high"}}
        live.apply(high | {"value": 1000})
        live.apply(training_job("before", gpus=32, seconds=3600, priorityClassName="trainjob-high"))
        await live.until("before", "PodsReady", 60)
        assert live.get(TRAINJOB.plural, "fine")["spec"]["suspend"] is True
        assert "before" in theirs.annotations(live, "fine", TRAINJOB)[names.ANNOTATION_SUSPENDED]
        await live.gone("before")
        await theirs.until(live, "fine", "PodsReady", TRAINJOB)
        assert names.ANNOTATION_SUSPENDED not in theirs.annotations(live, "fine", TRAINJOB)
        assert not uids(live, "fine", TRAINJOB) & before
        live.patch(TRAINJOB.plural, "fine", {"spec": {"suspend": True}})
        await theirs.until(live, "fine", "Suspended", TRAINJOB)
        await eventually(lambda: not pods(live, "fine", TRAINJOB), what="its pods to go")
        assert names.ANNOTATION_SUSPENDED not in theirs.annotations(live, "fine", TRAINJOB), "that was not us"
    await gone(live, "fine", TRAINJOB)
    live.cluster.kubectl("delete", "priorityclass", "trainjob-high")


async def test_a_trainjob_is_told_what_its_runtime_lacks_and_ends_with_its_stand_in(
    live: Live, runtimes: Live, tmp_path: Path
) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE):
        bald = trainjob("bald", "plain", suspend=True)
        bald["metadata"]["annotations"] = {names.STATED["steps"]: "50"}
        live.apply(bald)

        def told(kind: Words = TRAINJOB) -> str:
            return theirs.annotations(live, "bald", kind).get(names.ANNOTATION_PLACE_PROBLEM, "")

        await eventually(lambda: bool(told()), what="it to be told")
        for words in ("schedulingGates of its pods", "in its JobSet", "spec.runtimeRef"):
            assert words in told()
        live.cluster.kubectl("label", JOBSET.plural, "bald", f"{names.LABEL_MANAGED}=true")
        await eventually(
            lambda: "TrainJob bald controls it" in told(JOBSET), what="its JobSet to be told whom to label"
        )
        live.cluster.kubectl("label", JOBSET.plural, "bald", f"{names.LABEL_MANAGED}-")
        gates = [{"name": names.SCHEDULING_GATE}]
        pod = {"template": {"spec": {"template": {"spec": {"schedulingGates": gates}}}}}
        template = {"spec": {"replicatedJobs": [{"name": "node", **pod}]}}
        patch = {"manager": "test.trimtab.dev/user", "trainingRuntimeSpec": {"template": template}}
        live.patch(TRAINJOB.plural, "bald", {"spec": {"runtimePatches": [patch], "suspend": False}})
        await theirs.until(live, "bald", "Complete", TRAINJOB)
        await eventually(finished(live, "bald", TRAINJOB), what="its own controller to say that it is complete")
        assert not told()
    await gone(live, "bald", TRAINJOB)
