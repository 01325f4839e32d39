"""Whatever a policy asks for: in whatever order gangs go and come then, no node ever holds more than it has."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import job, node, placement, running, snapshot

from trimtab_policy.scheduling.permissions import Permissions
from trimtab_policy.scheduling.shield import ShieldResult, check
from trimtab_policy.types import Decision, Job, Placement, Snapshot, Stop

NODES = ("a", "b", "c")
GPUS = 8
SHARES = st.dictionaries(st.sampled_from(NODES), st.just(4), min_size=1, max_size=2) | st.dictionaries(
    st.sampled_from(NODES), st.just(2), min_size=1, max_size=3
)


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    """Running gangs that fit, and jobs that wait."""
    free, jobs = dict.fromkeys(NODES, GPUS), list[Job]()
    for number in range(draw(st.integers(0, 4))):
        shares = draw(SHARES)
        if all(free[name] >= gpus for name, gpus in shares.items()):
            for name, gpus in shares.items():
                free[name] -= gpus
            elastic, urgency = draw(st.booleans()), draw(st.integers(0, 2))
            jobs.append(running(f"r{number}", shares, preemptible=elastic, priority=urgency))
    jobs += [job(f"w{number}", priority=draw(st.integers(0, 2))) for number in range(draw(st.integers(0, 3)))]
    return snapshot([node(name, free=left) for name, left in free.items()], jobs)


@st.composite
def decisions(draw: st.DrawFn, now: Snapshot) -> Decision:
    """Placements and stops of any jobs, sensible or not."""
    uids = st.sampled_from([each.uid for each in now.jobs])
    placed = draw(st.lists(st.tuples(uids, SHARES), max_size=5))
    stops = draw(st.lists(st.tuples(uids, uids | st.just("")), max_size=3))
    return Decision(
        "any",
        tuple(placement(uid, shares) for uid, shares in placed),
        stops=tuple(Stop(uid, "because", beneficiary=heir) for uid, heir in stops),
    )


@given(st.data(), st.booleans())
def test_no_order_of_events_takes_more_of_a_node_than_it_has(data: st.DataObject, room: bool) -> None:
    now = data.draw(clusters())
    if not now.jobs:
        return
    verdict = check(now, data.draw(decisions(now)), Permissions(for_others=room, at_once=3))
    held = {each.uid: each.placement for each in now.jobs if each.placement}
    leaves = {stop.job for stop in verdict.stops} | {placed.job for placed in verdict.accepted if placed.job in held}
    assert len(leaves) <= 3
    assert {uid for waits in verdict.waits.values() for uid in waits} <= leaves
    for order in permutations(leaves):
        play(now, verdict, held, order)


def play(now: Snapshot, verdict: ShieldResult, held: dict[str, Placement], order: tuple[str, ...]) -> None:
    """Gangs end in this order, and whoever need not wait any longer comes at once."""
    here, coming = dict(held), list(verdict.accepted)
    for gone in (None, *order):
        here.pop(gone or "", None)
        left = set(order[: order.index(gone) + 1]) if gone else set()
        for placed in list(coming):
            if left >= {*verdict.waits.get(placed.job, ()), *({placed.job} & held.keys())}:
                here[f"{placed.job} anew"] = placed
                coming.remove(placed)
        for name in NODES:
            used = sum(share.gpus for each in here.values() for share in each.shares if share.node == name)
            assert used <= GPUS, (name, gone, here)
    assert not coming, "everybody who was promised GPUs gets them in the end"


@given(st.data())
def test_nobody_is_touched_who_must_not_be(data: st.DataObject) -> None:
    now = data.draw(clusters())
    if not now.jobs:
        return
    later = replace(now, jobs=tuple(replace(each, movable_from=now.time + 1) for each in now.jobs))
    for permissions in (Permissions(), Permissions(for_others=True)):
        verdict = check(later, data.draw(decisions(later)), permissions)
        assert not verdict.stops
        assert not {placed.job for placed in verdict.accepted} & {each.uid for each in now.jobs if each.placement}
