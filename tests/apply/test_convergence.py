"""Whatever happens to a job, its nodes, its pods, the API server and the controller: it completes, once.

That no rule is broken on the way is checked by `simulation.Server` after every write.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.apply.server import FAULTS, Server
from tests.apply.simulation import Controller

from trimtab import names
from trimtab.api import conditions

SEEING = ["see pods", "see job", "kubelet", "kubelet"]
BINDING = ["scheduler", "scheduler"]
HAPPENING = ["wait", "suspend", "resume", "restart"]
HAPPENING_TO = ["delete", "delete at once", "fail", "cordon", "uncordon", "lose node", "new node"]
EVENTS = st.one_of(
    st.tuples(st.just("turn"), st.lists(st.sampled_from(FAULTS), max_size=4)),
    st.tuples(st.just("turn"), st.just([])),
    st.tuples(st.sampled_from(SEEING + HAPPENING), st.none()),
    st.tuples(st.sampled_from(HAPPENING_TO), st.integers(0, 5)),
)
EVENTS_AND_SCHEDULING = st.one_of(EVENTS, st.tuples(st.sampled_from(BINDING), st.integers(0, 1)))
STOPPING = st.one_of(
    st.tuples(st.sampled_from(["save", "answer", "withdraw", "wait", "kubelet", "settle", "settle"]), st.none()),
    st.tuples(st.sampled_from(["order", "order", "leave"]), st.integers(0, 1)),
)
WRITES_PER_PLAN = 25
"""Plan, Service, PodGroup, claim template, ComputeDomain, 2 pods, 2 bindings or releases, scheduled, running, asked to
stop, 2 annotations, these three again where a pod is told late, given up, 5 deletions, and 2 that change nothing any
more. Direct binding has neither PodGroup nor claim template nor ComputeDomain."""


async def happen(server: Server, controller: Controller, event: str, detail: Any) -> None:
    node = f"n{detail}"
    match event:
        case "turn":
            faults = iter(detail)
            server.fault = lambda: next(faults, "ok")
            await controller.turn()
            server.fault = lambda: "ok"
        case "settle":
            controller.sync_job()
            controller.sync_pods()
            while await controller.turn():
                pass
        case "see pods":
            controller.sync_pods()
        case "see job":
            controller.sync_job()
        case "kubelet":
            server.kubelet()
        case "scheduler":
            server.scheduler(detail)
        case "wait":
            controller.now += 10
        case "suspend" | "resume":
            server.edit(suspend=event == "suspend")
        case "restart":
            controller.restart()
        case "save" | "answer":
            getattr(server, event)()
        case "leave":
            server.leave(detail)
        case "order":
            controller.order(goes_on=bool(detail))
        case "withdraw":
            controller.withdraw()
        case "delete" | "delete at once":
            server.remove(detail, at_once=event == "delete at once")
        case "fail":
            server.fail(detail)
        case "cordon" if node in server.nodes:
            server.nodes[node] = "cordoned"
        case "uncordon" if node in server.nodes:
            server.nodes[node] = ""
        case "lose node":
            server.nodes.pop(node, None)
        case "new node":
            server.nodes[node] = ""


async def come_to_rest(server: Server, controller: Controller, turns: int = 60) -> None:
    """Nothing bad happens any more."""
    server.edit(suspend=False)
    server.nodes |= {"n8": "", "n9": ""}
    for _ in range(turns):
        controller.sync_job()
        controller.sync_pods()
        while await controller.turn():
            pass
        if controller.complete:
            return
        server.scheduler()
        server.kubelet()
        controller.now += 301


@given(st.lists(EVENTS, max_size=40), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
async def test_a_job_completes_whatever_happens(events: list[tuple[str, Any]], order: random.Random) -> None:
    await complete_whatever_happens(Server(), events, order)


@given(st.lists(EVENTS_AND_SCHEDULING, max_size=40), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
async def test_a_job_that_kube_scheduler_binds_completes_whatever_happens(
    events: list[tuple[str, Any]], order: random.Random
) -> None:
    server = Server(gated=True)
    await complete_whatever_happens(server, events, order)
    assert not server.groups


@given(st.lists(EVENTS_AND_SCHEDULING, max_size=40), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
async def test_a_job_whose_pods_claim_their_gpus_completes_whatever_happens_and_leaves_no_template(
    events: list[tuple[str, Any]], order: random.Random
) -> None:
    server = Server(gated=True, by_claim=True)
    await complete_whatever_happens(server, events, order)
    assert not server.templates


@given(st.lists(EVENTS_AND_SCHEDULING, max_size=40), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
async def test_a_job_whose_gang_has_a_compute_domain_completes_whatever_happens_and_leaves_none(
    events: list[tuple[str, Any]], by_claim: bool, order: random.Random
) -> None:
    server = Server(gated=True, by_claim=by_claim, linked=True)
    await complete_whatever_happens(server, events, order)
    assert not server.domains


@given(st.lists(st.one_of(EVENTS, STOPPING, STOPPING), max_size=50), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
async def test_a_job_that_is_stopped_again_and_again_completes_and_does_no_step_twice_that_it_had_saved(
    events: list[tuple[str, Any]], order: random.Random
) -> None:
    server = Server(steps=20)
    controller = Controller(server, order)
    for event in ("settle", "kubelet", "settle"):
        await happen(server, controller, event, None)
    assert conditions.holds(server.status.conditions, names.PODS_READY)
    for event, detail in events:
        await happen(server, controller, event, detail)
    await come_to_rest(server, controller)
    assert controller.complete
    assert_at_rest(server, controller)
    status = server.status
    assert status.stop is None
    assert not conditions.holds(status.conditions, names.CHECKPOINT_REQUESTED)
    assert status.restarts <= sum(event == "fail" for event, _ in events), "to be stopped costs no restart"
    assert len(status.stops) <= sum(event in ("order", "suspend") for event, _ in events)


async def complete_whatever_happens(server: Server, events: list[tuple[str, Any]], order: random.Random) -> None:
    controller = Controller(server, order)
    for event, detail in events:
        await happen(server, controller, event, detail)
    await come_to_rest(server, controller)
    assert controller.complete
    assert_at_rest(server, controller)
    while await controller.turn():
        controller.sync_pods()
    epochs = server.status.last_epoch or 0
    disturbances = sum(event in HAPPENING + HAPPENING_TO for event, _ in events)
    faults = sum(len(detail) for event, detail in events if event == "turn")
    assert epochs <= 1 + disturbances + faults
    assert server.writes <= WRITES_PER_PLAN * epochs + disturbances + faults


def assert_at_rest(server: Server, controller: Controller) -> None:
    controller.restart()
    assert server.status.plan
    ended = [pod["status"]["phase"] for pod in server.pods.values()]
    assert set(ended) <= {"Succeeded"}


async def test_without_trouble_a_job_takes_nine_writes() -> None:
    server = Server()
    controller = Controller(server, random.Random(0))
    await come_to_rest(server, controller)
    assert controller.complete
    assert server.status.last_epoch == 1
    assert server.writes == 9  # plan, Service, 2 pods, 2 bindings, scheduled, running, complete
    controller.restart()
    assert not await controller.turn()


@pytest.mark.parametrize(("gated", "writes"), [(False, 9), (True, 11)])
async def test_every_single_fault_at_every_write_ends_in_the_same_state(gated: bool, writes: int) -> None:
    for fault in FAULTS[1:]:
        for position in range(writes):
            server = Server(gated=gated)
            controller = Controller(server, random.Random(0))
            counter = iter(range(1000))
            server.fault = lambda fault=fault, at=position, n=counter: fault if next(n) == at else "ok"
            await come_to_rest(server, controller)
            assert controller.complete
            status = server.status
            assert (status.last_epoch, status.setbacks, status.restarts) == (1, 0, 0), (fault, position)
            assert len(server.pods) == 2
