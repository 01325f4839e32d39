"""PodGroups of Kubernetes are placed: who makes the pods that name one, nobody has described to Trimtab. The controller
has no more rights than manifests/other-kinds-place.yaml and the admission policies give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.harness import ControllerProcess, Live, eventually, training_job, wait_until
from tests.live.test_place import Somebody
from tests.live.theirs import (
    GROUP,
    PLACE,
    Maker,
    annotations,
    gang,
    gone,
    group,
    job,
    may,
    nodes,
    placed,
    pods,
    stand_in,
    uids,
    until,
)

from trimtab import names

pytestmark = pytest.mark.cluster

SLOW: dict[str, dict[str, Any]] = {"interop": PLACE, "fake": {"speedup": 20.0}}


@pytest.fixture(scope="module")
def placing(live_cluster: Live) -> Iterator[Live]:
    with placed(live_cluster, Maker.USER):
        yield live_cluster


async def away(live: Live, maker: Maker, name: str) -> None:
    """Have the pods of a group taken away, and the group."""
    maker.forgets(name)
    await gone(live, name, GROUP)


async def told(live: Live, name: str, why: str) -> None:
    """Wait until a group says what keeps it from being placed."""
    await eventually(
        lambda: why in annotations(live, name, GROUP).get(names.ANNOTATION_PLACE_PROBLEM, ""),
        what=lambda: f"{name} to be told: {live.get(GROUP.plural, name)}",
    )


async def test_a_group_starts_as_a_gang_once_all_its_pods_are_there_and_stays_as_it_is(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **SLOW), Maker(live) as maker:
        live.apply(group("four", 4))
        maker.makes("four", 3)
        await until(live, "four", "Suspended", GROUP)
        assert annotations(live, "four", GROUP)[names.ANNOTATION_SUSPENDED].startswith("3 of its 4 pods wait")
        assert nodes(live, "four", GROUP) == [""] * 3, "no part of it starts"
        before = live.get(GROUP.plural, "four")
        maker.makes("four", 4)  # one of them comes late
        await until(live, "four", "PodsReady", GROUP)
        assert names.ANNOTATION_SUSPENDED not in annotations(live, "four", GROUP)
        here, status = pods(live, "four", GROUP), live.status(stand_in(live, "four", GROUP))
        assert nodes(live, "four", GROUP) == [node["name"] for node in status["plan"]["nodes"]]
        assert [pod["metadata"]["labels"][names.LABEL_RANK] for pod in here] == ["0", "1", "2", "3"]
        assert {owner["kind"] for pod in here for owner in pod["metadata"]["ownerReferences"]} == {"ConfigMap"}
        assert status["plan"]["gpus"] == 32
        live.delete("pod", "four-1", "--wait=false")
        second = await gang(live, "four", 2, GROUP)
        assert not second & {pod["metadata"]["uid"] for pod in here}, "all of them begin anew"
        assert live.get(GROUP.plural, "four")["spec"] == before["spec"], "the group stays as it is"
        await away(live, maker, "four")


async def test_a_group_whose_pods_have_succeeded_is_complete_and_of_two_that_do_not_both_fit_one_waits(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=PLACE), Maker(live) as maker:
        live.apply(group("done"))
        maker.makes("done", 2)
        await until(live, "done", "Complete", GROUP)
        assert {pod["status"]["phase"] for pod in pods(live, "done", GROUP)} == {"Succeeded"}
        await away(live, maker, "done")
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **SLOW), Maker(live) as maker:
        live.apply(group("early", 4))
        maker.makes("early", 4)
        await until(live, "early", "PodsReady", GROUP)
        live.apply(group("late"))
        maker.makes("late", 2)
        await eventually(
            lambda: bool(it := stand_in(live, "late", GROUP)) and "pending" in live.status(it),
            what=lambda: f"it to be told why it waits: {live.list('ltj')}",
        )
        assert nodes(live, "late", GROUP) == ["", ""], "no part of it starts"
        await away(live, maker, "early")
        await until(live, "late", "PodsReady", GROUP)
        ran = uids(live, "late", GROUP)
        live.delete(GROUP.plural, "late", "--wait=false")
        await eventually(
            lambda: not ran & uids(live, "late", GROUP) and not stand_in(live, "late", GROUP),
            what=lambda: f"the gang of a group that is gone to hold no GPUs: {pods(live, 'late', GROUP)}",
        )
        assert not any(nodes(live, "late", GROUP)), "what its maker makes anew has no group, and does not start"
        await away(live, maker, "late")


async def test_a_group_that_has_to_give_way_loses_its_pods_and_others_join_its_next_plan(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "groups-high"}}
    live.apply(high | {"value": 1000})
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **SLOW), Maker(live) as maker:
        live.apply(group("humble", 4))
        maker.makes("humble", 4)
        await until(live, "humble", "PodsReady", GROUP)
        first, it = uids(live, "humble", GROUP), stand_in(live, "humble", GROUP)
        live.patch("ltj", it, {"spec": {"elasticity": {"minRuntimeSeconds": 0}}})
        live.apply(training_job("proud", gpus=32, seconds=3600, priorityClassName="groups-high"))
        await live.until("proud", "PodsReady", 60)
        await eventually(lambda: len(pods(live, "humble", GROUP)) == 4, what="its maker to make others")
        waiting = pods(live, "humble", GROUP)
        assert not first & {pod["metadata"]["uid"] for pod in waiting}
        assert all(pod["spec"]["schedulingGates"] == [{"name": names.SCHEDULING_GATE}] for pod in waiting)
        await live.gone("proud")
        await gang(live, "humble", 2, GROUP)
        assert live.status(it).get("restarts", 0) == 0, "that is no failure of its own"
        await away(live, maker, "humble")
    live.cluster.kubectl("delete", "priorityclass", "groups-high")


async def test_what_keeps_a_group_from_being_placed_is_told_and_its_pods_are_left_alone(
    live: Live, placing: Live, tmp_path: Path
) -> None:
    wrong: dict[str, tuple[Any, dict[str, Any], str]] = {
        "loose": (group("loose", schedulingPolicy={"basic": {}}), {}, "spec.schedulingPolicy.basic has to be left out"),
        "unlabelled": (
            group("unlabelled"),
            {"labels": {}, "schedulerName": "other", "schedulingGates": []},
            "lacks the label",
        ),
        "many": (group("many", 1), {}, "minCount is 1, and 2 pods wait"),
        "again": (group("again"), {"restartPolicy": "OnFailure"}, "restartPolicy of its pods has to be Never"),
        "twice": (group("twice"), {}, "its pods are those of Job twice, which is placed already"),
    }
    live.apply(*(made for made, _, _ in wrong.values()))
    both = job("twice")
    both["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "twice"}
    live.apply(both)
    async with Maker(live) as maker:
        for name, (_, pod, _) in wrong.items():
            if name != "twice":
                maker.makes(name, 2, **pod)
        async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **SLOW):
            for name, (_, _, why) in wrong.items():
                await told(live, name, why)
            assert not [name for name in wrong if stand_in(live, name, GROUP)]
            assert not any(node for name in wrong for node in nodes(live, name, GROUP))
            await until(live, "twice", "PodsReady")
            await gone(live, "twice")
            for name in wrong:
                await away(live, maker, name)


def test_a_group_is_its_makers_and_the_controller_says_why_it_waits_and_no_more(placing: Live, tmp_path: Path) -> None:
    controller = Somebody(placing, tmp_path, "trimtab-system", "trimtab-controller")
    free = group("free")
    free["metadata"]["labels"] = {}
    placing.apply(group("asks"), free)
    told = {"metadata": {"annotations": {names.ANNOTATION_PLACE_PROBLEM: "why"}}}
    assert controller.patches(GROUP.plural, "asks", told) == ""
    assert "the controller may touch no" in controller.patches(GROUP.plural, "free", told)
    assert "annotations" in controller.patches(GROUP.plural, "asks", {"metadata": {"annotations": {"other": "x"}}})
    assert "annotations" in controller.patches(GROUP.plural, "asks", {"metadata": {"finalizers": []}})
    assert "belongs to an LLMTrainingJob" in controller.tries("delete", GROUP.plural, "asks")
    assert "belongs to an LLMTrainingJob" in controller.creates(group("more"))
    may(placing, "group-author", ["scheduling.k8s.io"], "podgroups")
    author = Somebody(placing, tmp_path, "default", "group-author")
    wait_until(lambda: author.creates(group("own")) == "", lambda: f"its rights: {author.creates(group('own'))}")
    stated = {"metadata": {"annotations": {names.STATED["steps"]: "10"}, "labels": {names.LABEL_MANAGED: "true"}}}
    assert author.patches(GROUP.plural, "free", stated) == "", "to ask for it is everybody's right"
    for label in (names.LABEL_JOB, names.LABEL_JOB_UID, names.LABEL_EPOCH):
        assert "trimtab-marks" in author.patches(GROUP.plural, "free", {"metadata": {"labels": {label: "x"}}})
    ours = group("ours")
    ours["metadata"]["ownerReferences"] = [
        {"apiVersion": names.API_VERSION, "kind": names.JOB_KIND, "name": "x", "uid": "u", "controller": True}
    ]
    assert "trimtab-marks" in author.creates(ours)
    for name in ("asks", "free"):
        placing.delete(GROUP.plural, name)
