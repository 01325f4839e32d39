"""What kube-scheduler is told, over HTTP, by an extender that watches an API server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.extender.desk import Desk, Object, desk, eventually, node, owner, planned, pod

from trimtab import names
from trimtab.telemetry.metrics import REGISTRY

NODES = ("gpu-1", "gpu-2", "gpu-3")


@pytest_asyncio.fixture
async def there(tmp_path: Path) -> AsyncIterator[Desk]:
    """Three nodes of 8 GPUs; another's pod holds 6 of gpu-3."""
    objects = [("nodes", node(name)) for name in NODES]
    async with desk(tmp_path, *objects, ("pods", pod("other", 6, bound="gpu-3")), bind=True) as made:
        yield made


def passed(*nodes: str) -> Object:
    return {
        "Nodes": None,
        "NodeNames": list(nodes),
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def refused(answer: Object) -> dict[str, str]:
    assert (answer["NodeNames"], answer["Error"]) == ([], "")
    assert answer["FailedNodes"] == {}  # preemption would look at those for pods to evict
    return dict(answer["FailedAndUnresolvableNodes"])


# --- filter ----------------------------------------------------------------------------------------------------------
async def test_a_pod_of_a_gang_goes_to_its_place_and_nowhere_else(there: Desk) -> None:
    assert await there.filter(planned("job7-1-0", "gpu-2"), *NODES) == passed("gpu-2")


async def test_where_its_place_is_not_on_offer_it_goes_nowhere_and_is_told_why(there: Desk) -> None:
    answer = await there.filter(planned("job7-1-0", "gpu-2"), "gpu-1", "gpu-3")
    assert set(refused(answer).values()) == {"gang team-a/job7 has its place on gpu-2"}


async def test_a_node_that_filled_up_after_the_plan_is_refused_whatever_kube_scheduler_counts(there: Desk) -> None:
    why = refused(await there.filter(planned("job7-1-0", "gpu-3", 4), "gpu-2", "gpu-3"))
    assert why == {
        "gpu-2": "gang team-a/job7 has its place on gpu-3",
        "gpu-3": "gpu-3, the place of gang team-a/job7, has 2 of 8 GPUs free, and 4 are needed",
    }
    assert await there.filter(planned("job7-1-0", "gpu-3", 2), "gpu-3") == passed("gpu-3")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"spec": {"unschedulable": True}}, "is cordoned"),
        ({"status": {**node("gpu-1")["status"], "conditions": [{"type": "Ready", "status": "False"}]}}, "is NotReady"),
        ({"metadata": {"name": "gpu-1", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, "is being deleted"),
    ],
)
async def test_a_node_that_takes_no_pods_is_refused(there: Desk, change: Object, why: str) -> None:
    there.store.update("nodes", "gpu-1", {**node("gpu-1"), **change})
    await eventually(lambda: bool(there.watch.index.nodes["gpu-1"].unavailable))
    answer = await there.filter(planned("job7-1-0", "gpu-1"), "gpu-1")
    assert refused(answer) == {"gpu-1": f"gpu-1, the place of gang team-a/job7, {why}"}


async def test_a_node_that_is_gone_is_refused(there: Desk) -> None:
    answer = await there.filter(planned("job7-1-0", "gpu-9"), "gpu-9")
    assert refused(answer) == {"gpu-9": "gpu-9, the place of gang team-a/job7, does not exist"}


async def test_pods_that_have_ended_hold_nothing_and_a_pod_never_stands_in_its_own_way(there: Desk) -> None:
    there.store.create("pods", pod("done", 8, bound="gpu-1", phase="Succeeded"))
    there.store.create("pods", planned("job7-1-0", "gpu-2", bound="gpu-2"))
    await eventually(lambda: there.watch.index.held("gpu-2") == 8)
    assert await there.filter(planned("job7-1-1", "gpu-1"), "gpu-1") == passed("gpu-1")
    assert await there.filter(planned("job7-1-0", "gpu-2"), "gpu-2") == passed("gpu-2")


async def test_asking_again_changes_neither_the_answer_nor_anything_else(there: Desk) -> None:
    writes = [request for request in there.server.requests if not request.startswith("GET")]
    answers = [await there.filter(planned("job7-1-0", "gpu-2"), *NODES) for _ in range(20)]
    assert all(answer == answers[0] for answer in answers)
    assert [request for request in there.server.requests if not request.startswith("GET")] == writes
    assert there.watch.index.held("gpu-2") == 0


async def test_a_job_s_pod_without_a_place_goes_nowhere(there: Desk) -> None:
    lost = pod("lost", ownerReferences=[owner()])
    assert set(refused(await there.filter(lost, *NODES)).values()) == {
        "a pod of gang team-a/job7 has no place in a plan"
    }


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"annotations": {names.ANNOTATION_NODE: "gpu-2"}, "labels": {names.LABEL_JOB: "job7"}},
        {"annotations": {names.ANNOTATION_NODE: "gpu-2"}, "ownerReferences": [owner(controller=False)]},
        {"annotations": {names.ANNOTATION_NODE: "gpu-2"}, "ownerReferences": [owner(kind="Job")]},
        {"annotations": {names.ANNOTATION_NODE: "gpu-2"}, "ownerReferences": [owner(apiVersion="trimtab.develop/v1")]},
    ],
)
async def test_a_pod_that_no_job_of_ours_controls_passes_untouched_whatever_it_calls_itself(
    there: Desk, meta: Object
) -> None:
    assert await there.filter(pod("stranger", **meta), *NODES) == passed(*NODES)


async def test_what_a_foreign_pod_gets_back_are_the_bytes_that_came(there: Desk) -> None:
    names_sent = '[ "b",\t"a" , "\\u0063", "unknown" ]'
    body = f'{{"Pod": {json.dumps(pod("stranger"))}, "NodeNames": {names_sent}}}'.encode()
    status, text = await there.post("/filter", body)
    assert status == 200
    assert f'"NodeNames":{names_sent}' in text


async def test_whole_nodes_are_answered_with_whole_nodes(there: Desk) -> None:
    whole = {"metadata": {}, "items": [node(name) for name in NODES]}
    asked: dict[str, Any] = {"Pod": planned("job7-1-0", "gpu-2"), "Nodes": whole, "NodeNames": None}
    answer = await there.ask("filter", asked)
    assert (answer["NodeNames"], answer["Nodes"]["items"]) == (None, [node("gpu-2")])
    answer = await there.ask("filter", asked | {"Pod": planned("job7-1-0", "gpu-9")})
    assert answer["Nodes"]["items"] == []
    assert set(answer["FailedAndUnresolvableNodes"]) == set(NODES)
    assert (await there.ask("filter", asked | {"Pod": pod("stranger")}))["Nodes"] == whole


@pytest.mark.parametrize("nodes", [[], None])
async def test_nothing_on_offer_is_nothing_in_return(there: Desk, nodes: list[str] | None) -> None:
    for of in (planned("job7-1-0", "gpu-2"), pod("stranger")):
        answer = await there.ask("filter", {"Pod": of, "NodeNames": nodes, "Nodes": None})
        assert not answer["NodeNames"]
        assert not (answer["Nodes"] or {}).get("items")


# --- our copy and kube-scheduler's -----------------------------------------------------------------------------------
async def test_a_refusal_waits_a_moment_for_news_that_kube_scheduler_had_before_us(there: Desk) -> None:
    there.store.create("pods", pod("old", 8, bound="gpu-1"))
    await eventually(lambda: there.watch.index.held("gpu-1") == 8)
    looks = REGISTRY.get_sample_value("trimtab_extender_second_looks_total", {"result": "refused"}) or 0
    await there.filter(planned("job7-1-0", "gpu-1"), "gpu-1")
    assert REGISTRY.get_sample_value("trimtab_extender_second_looks_total", {"result": "refused"}) == looks + 1
    there.store.delete("pods", "team-a/old")
    await eventually(lambda: there.watch.index.held("gpu-1") == 0)
    assert await there.filter(planned("job7-1-0", "gpu-1"), "gpu-1") == passed("gpu-1")


async def test_while_the_api_server_is_away_plans_are_checked_and_nothing_else(there: Desk) -> None:
    assert refused(await there.filter(planned("job7-1-0", "gpu-3"), "gpu-3"))
    await there.server.__aexit__(None, None, None)
    await eventually(lambda: bool(there.watch.trouble))
    assert await there.filter(planned("job7-1-0", "gpu-3"), "gpu-3") == passed("gpu-3")
    assert refused(await there.filter(planned("job7-1-0", "gpu-3"), "gpu-1"))
    assert (await there.get("/readyz"))[0] == 200


# --- prioritize and preempt ------------------------------------------------------------------------------------------
async def test_the_place_of_the_plan_scores_ten_and_all_others_nothing(there: Desk) -> None:
    asked = {"Pod": planned("job7-1-0", "gpu-2"), "NodeNames": list(NODES)}
    scores = await there.ask("prioritize", asked)
    assert scores == [{"Host": "gpu-1", "Score": 0}, {"Host": "gpu-2", "Score": 10}, {"Host": "gpu-3", "Score": 0}]
    scores = await there.ask("prioritize", asked | {"Pod": pod("stranger")})
    assert scores == [{"Host": name, "Score": 0} for name in NODES]


VICTIMS = {"gpu-1": {"Pods": [{"UID": "uid-other"}], "NumPDBViolations": 1}}


async def test_nobody_is_evicted_for_a_pod_of_a_gang(there: Desk) -> None:
    asked = {"Pod": planned("job7-1-0", "gpu-1"), "NodeNameToVictims": None, "NodeNameToMetaVictims": VICTIMS}
    assert await there.ask("preempt", asked) == {"NodeNameToMetaVictims": {}}


async def test_preemption_for_other_pods_goes_on_as_kube_scheduler_proposed(there: Desk) -> None:
    asked: Object = {"Pod": pod("stranger"), "NodeNameToVictims": None, "NodeNameToMetaVictims": VICTIMS}
    assert await there.ask("preempt", asked) == {"NodeNameToMetaVictims": VICTIMS}
    whole = {"gpu-1": {"Pods": [pod("other")], "NumPDBViolations": 1}}
    asked = {"Pod": pod("stranger"), "NodeNameToVictims": whole, "NodeNameToMetaVictims": None}
    assert await there.ask("preempt", asked) == {"NodeNameToMetaVictims": VICTIMS}


# --- bind ------------------------------------------------------------------------------------------------------------
def binding(name: str, place: str, uid: str = "") -> Object:
    return {"PodName": name, "PodNamespace": "team-a", "PodUID": uid or f"uid-{name}", "Node": place}


def bound_to(there: Desk, name: str) -> str | None:
    spec = there.store.get("pods", f"team-a/{name}")["spec"]
    return str(spec["nodeName"]) if "nodeName" in spec else None


async def test_a_pod_is_bound_to_its_place_once_however_often_it_is_asked(there: Desk) -> None:
    there.store.create("pods", planned("job7-1-0", "gpu-2"))
    for _ in range(3):
        assert await there.ask("bind", binding("job7-1-0", "gpu-2")) == {"Error": ""}
    assert bound_to(there, "job7-1-0") == "gpu-2"
    assert sum(request.endswith("/binding") for request in there.server.requests) == 1


async def test_a_pod_is_not_bound_to_where_its_plan_does_not_want_it(there: Desk) -> None:
    there.store.create("pods", planned("job7-1-0", "gpu-2"))
    answer = await there.ask("bind", binding("job7-1-0", "gpu-1"))
    assert answer == {"Error": "gang team-a/job7 has its place on gpu-2"}
    assert bound_to(there, "job7-1-0") is None


@pytest.mark.parametrize(
    ("place", "why"), [("gpu-3", "has 2 of 8 GPUs free, and 8 are needed"), ("gpu-9", "does not exist")]
)
async def test_full_and_missing_nodes_get_no_pod_though_the_api_server_would_take_it(
    there: Desk, place: str, why: str
) -> None:
    there.store.create("pods", planned("job7-1-0", place))
    assert why in (await there.ask("bind", binding("job7-1-0", place)))["Error"]
    assert bound_to(there, "job7-1-0") is None


async def test_a_cordoned_node_gets_no_pod_though_the_api_server_would_take_it(there: Desk) -> None:
    there.store.update("nodes", "gpu-2", node("gpu-2", unschedulable=True))
    there.store.create("pods", planned("job7-1-0", "gpu-2"))
    await eventually(lambda: bool(there.watch.index.nodes["gpu-2"].unavailable))
    assert "cordoned" in (await there.ask("bind", binding("job7-1-0", "gpu-2")))["Error"]
    assert bound_to(there, "job7-1-0") is None


async def test_a_foreign_pod_is_bound_as_asked_but_not_to_a_node_that_is_not_there(there: Desk) -> None:
    there.store.create("pods", pod("stranger", 1))
    assert await there.ask("bind", binding("stranger", "gpu-9")) == {"Error": "gpu-9 does not exist"}
    assert await there.ask("bind", binding("stranger", "gpu-1")) == {"Error": ""}
    assert bound_to(there, "stranger") == "gpu-1"


async def test_a_pod_that_is_another_one_by_now_or_already_elsewhere_is_not_bound(there: Desk) -> None:
    there.store.create("pods", planned("job7-1-0", "gpu-2"))
    assert "another one by now" in (await there.ask("bind", binding("job7-1-0", "gpu-2", uid="older")))["Error"]
    there.store.create("pods", pod("stranger", 1, bound="gpu-2"))
    assert "already assigned" in (await there.ask("bind", binding("stranger", "gpu-1")))["Error"]
    assert (await there.ask("bind", binding("nobody", "gpu-1")))["Error"]


async def test_binding_is_off_unless_it_was_asked_for(tmp_path: Path) -> None:
    async with desk(tmp_path, ("nodes", node("gpu-1")), ("pods", planned("job7-1-0", "gpu-1"))) as there:
        assert "extender.bind" in (await there.ask("bind", binding("job7-1-0", "gpu-1")))["Error"]
        assert bound_to(there, "job7-1-0") is None
