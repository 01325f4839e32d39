"""The index: what is held and free on a node follows from the objects that are there, by whatever way they came."""

from __future__ import annotations

import asyncio

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.extender.desk import Object, node, planned, pod

from trimtab import names
from trimtab.extender.pod_index import PodIndex
from trimtab.kube.objects import NodeObject, PodObject

NODES = ("gpu-1", "gpu-2")


def a_node(raw: Object) -> NodeObject:
    return msgspec.convert(raw, NodeObject)


def a_pod(raw: Object) -> PodObject:
    return msgspec.convert(raw, PodObject)


def index_of(*pods: Object) -> PodIndex:
    index = PodIndex()
    for name in NODES:
        index.node_changed(None, a_node(node(name)))
    for each in pods:
        index.pod_changed(None, a_pod(each))
    return index


def asked_for(raw: Object) -> int:
    (container,) = raw["spec"]["containers"]
    return int(container["resources"]["requests"][names.NVIDIA_GPU])


@st.composite
def pods(draw: st.DrawFn) -> Object:
    """One of four pods in some state of its life."""
    name = draw(st.sampled_from(["a-0", "a-1", "b-0", "b-1"]))
    gpus = draw(st.integers(0, 8))
    bound = draw(st.sampled_from(["", *NODES, "gpu-9"]))
    made = planned(name, draw(st.sampled_from(NODES)), gpus, bound) if name[0] == "a" else pod(name, gpus, bound)
    made["status"]["phase"] = draw(st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]))
    if draw(st.booleans()):
        made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return made


@given(st.lists(st.tuples(st.booleans(), pods()), max_size=12))
def test_accounts_are_those_of_what_is_there_now(news: list[tuple[bool, Object]]) -> None:
    index, there = index_of(), dict[str, Object]()
    for stays, raw in news:
        name = raw["metadata"]["name"]
        old = a_pod(there[name]) if name in there else None
        if stays:
            there[name] = raw
            index.pod_changed(old, a_pod(raw))
        elif old:
            del there[name]
            index.pod_changed(old, None)
    anew = index_of(*there.values())
    assert (index.members, index.gangs, index.on_node) == (anew.members, anew.gangs, anew.on_node)
    for grouped in (index.gangs, index.on_node):
        assert {uid: member for pods in grouped.values() for uid, member in pods.items()} == index.members
    assert index.members.keys() == {
        p["metadata"]["uid"]
        for p in there.values()
        if p["metadata"].get("ownerReferences") and p["status"]["phase"] not in ("Succeeded", "Failed")
    }
    for name in (*NODES, "gpu-9"):
        running = [p for p in there.values() if p["status"]["phase"] in ("Pending", "Running")]
        held = [p for p in running if p["spec"].get("nodeName") == name]
        gpus = {p["metadata"]["uid"]: asked_for(p) for p in held}
        assert index.held(name) == anew.held(name) == sum(gpus.values())
        for uid in (*gpus, "nobody"):
            found = index.availability(name, uid)
            free = max(8 - sum(gpus.values()) + gpus.get(uid, 0), 0)
            assert (found.free if found else None) == (free if name in NODES else None)


def test_a_pod_that_is_being_deleted_holds_its_gpus_until_it_has_ended() -> None:
    dying = pod("dying", 8, bound="gpu-1", deletionTimestamp="2026-01-01T00:00:00Z")
    assert index_of(dying).held("gpu-1") == 8
    assert index_of(dying | {"status": {"phase": "Failed"}}).held("gpu-1") == 0


def test_members_tell_how_far_they_are() -> None:
    states = {
        "Gated": planned("a-0", "gpu-1", gated=True),
        "Waiting": planned("a-0", "gpu-1"),
        "Bound": planned("a-0", "gpu-1", bound="gpu-1"),
        "Running": planned("a-0", "gpu-1", bound="gpu-1") | {"status": {"phase": "Running"}},
    }
    for state, raw in states.items():
        assert [member.state for member in index_of(raw).members.values()] == [state]
    dying = planned("a-0", "gpu-1")
    dying["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert [member.state for member in index_of(dying).members.values()] == ["Deleting"]


def test_pods_of_others_are_in_the_accounts_but_no_members() -> None:
    index = index_of(pod("stranger", 3, bound="gpu-1"))
    assert index.members == {}
    assert index.held("gpu-1") == 3


def test_of_a_node_that_offers_no_gpus_kube_scheduler_alone_knows_how_many_are_free() -> None:
    index = index_of()
    index.node_changed(None, a_node(node("cpu", 0)))
    found = index.availability("cpu", "x")
    assert found is not None
    assert (found.gpus, found.free) == (0, None)


async def test_news_wake_who_waits_for_them_and_silence_does_not() -> None:
    index = index_of()
    assert not await index.news(0.01)
    waiting = [asyncio.create_task(index.news(20)) for _ in range(3)]
    await asyncio.sleep(0)
    index.pod_changed(None, a_pod(pod("x", 1)))
    assert await asyncio.gather(*waiting) == [True, True, True]
