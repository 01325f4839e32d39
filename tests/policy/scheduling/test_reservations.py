"""Reservations: who gets one, where and from when; what is kept for a gang that comes back, or within a limit."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.builders import A100, NOW, job, node, snapshot
from tests.policy.scheduling.rigid_jobs import (
    AHEAD,
    HOUR,
    LARGE,
    LATER,
    busy,
    cluster,
    delayed_by,
    no_room,
    reserved,
    rigid,
    started,
)

from trimtab_policy.scheduling import reservations
from trimtab_policy.scheduling.reservations import Reservation, hidden, refusal, reserve
from trimtab_policy.types import Job, NodeShare, PendingReason, Quota, Snapshot

FULL = [busy("a", {"n0": 8}, 1 * HOUR), busy("b", {"n1": 8}, 3 * HOUR), busy("c", {"n2": 8}, 2 * HOUR)]


# --- where and when --------------------------------------------------------------------------------------------------
def test_the_first_in_line_gets_the_nodes_that_are_free_first() -> None:
    large = rigid("large", 2)
    [kept] = reserved(cluster(3, [*FULL, large]), large)
    assert (kept.start, kept.earliest) == (NOW + 2 * HOUR, NOW + 2 * HOUR)
    assert {share.node for share in kept.shares} == {"n0", "n2"}
    assert kept.describe() in ("16×A100-SXM4-80GB on n0, n2", "16×A100-SXM4-80GB on n2, n0")


def test_whole_nodes_are_waited_for_though_enough_gpus_are_free_before() -> None:
    halves = [busy(f"h{i}", {f"n{i}": 4}, (3 + i) * HOUR) for i in range(4)]
    large = rigid("large", 2)
    [kept] = reserved(cluster(4, [*halves, large]), large)
    assert kept.start == NOW + 4 * HOUR
    assert {share.node for share in kept.shares} == {"n0", "n1"}


def test_only_nodes_that_its_template_admits_count() -> None:
    large = rigid("large", 1, eligible=("n1",))
    [kept] = reserved(cluster(3, [*FULL, large]), large)
    assert (kept.start, kept.shares) == (NOW + 3 * HOUR, (NodeShare("n1", 8),))


def test_host_memory_has_to_be_free_too() -> None:
    hog = replace(busy("hog", {"n0": 1}, 5 * HOUR), requirements=job(memory_per_gpu=1 << 40).requirements)
    large = rigid("large", 1, memory_per_gpu=1 << 34)
    nodes = [node("n0", free=7, free_memory=0), node("n1", free=0)]
    seen = snapshot(nodes, [hog, busy("b", {"n1": 8}, 6 * HOUR), large])
    [kept] = reserved(seen, large)
    assert (kept.start, kept.shares[0].node) == (NOW + 5 * HOUR, "n0")


def test_a_queue_at_its_limit_waits_for_its_own_jobs() -> None:
    own = replace(busy("own", {"n0": 8}, 4 * HOUR), queue="q")
    large = rigid("large", 1, queue="q")
    [kept] = reserved(cluster(3, [own, busy("b", {"n1": 8}, 1 * HOUR), large], quotas=[Quota("q", A100, 8)]), large)
    assert kept.start == NOW + 4 * HOUR


def test_who_could_not_start_though_all_had_ended_gets_none() -> None:
    large = rigid("large", 4)
    assert reserved(cluster(3, [*FULL, large]), large) == ()


@pytest.mark.parametrize("reason", [each for each in PendingReason if each not in reservations.IN_LINE])
def test_reasons_that_time_does_not_cure_get_none(reason: PendingReason) -> None:
    large = rigid("large", 2)
    assert reserve(cluster(3, [*FULL, large]), no_room(large, reason=reason), 1, 1e9) == ()


def test_only_so_many_get_one_in_the_order_of_the_line() -> None:
    jobs = [rigid(f"j{i}", 1, created=NOW - i) for i in range(4)]
    seen = cluster(3, [*FULL, *jobs])
    assert [kept.name for kept in reserved(seen, *jobs, count=2)] == ["default/j3", "default/j2"]
    assert reserved(seen, *jobs, count=0) == ()


def test_a_second_reservation_counts_on_the_first_one() -> None:
    first, second = rigid("first", 2, created=NOW - 100), rigid("second", 1)
    kept = reserved(cluster(3, [*FULL, first, second]), first, second, count=2)
    assert [(each.start - NOW) / HOUR for each in kept] == [2, 3]
    last = rigid("last", 3, created=NOW)
    kept = reserved(cluster(3, [*FULL, first, second, last]), first, second, last, count=3)
    assert [(each.start - NOW) / HOUR for each in kept] == [2, 3, 4]


def test_who_has_waited_too_long_gets_one_whoever_is_before() -> None:
    urgent, old = rigid("urgent", 1, priority=5), rigid("old", 2, created=NOW - 9 * HOUR)
    kept = reserved(cluster(3, [*FULL, urgent, old]), urgent, old, starvation=8 * HOUR)
    assert [(each.name, each.starving) for each in kept] == [("default/urgent", False), ("default/old", True)]


def test_who_a_policy_with_a_line_of_its_own_leaves_out_gets_none_however_long_it_waits() -> None:
    """It can be moved later, and the policy lets it come first by its own rule."""
    fixed, movable = rigid("fixed", 1, created=NOW - HOUR), rigid("movable", 2, created=NOW - 9 * HOUR)
    seen, waiting = cluster(3, [*FULL, fixed, movable]), no_room(fixed, movable)
    kept = reserve(seen, waiting, 1, 8 * HOUR, order=[fixed.uid])
    assert [each.name for each in kept] == ["default/fixed"]
    again = reserve(seen, waiting, 1, 8 * HOUR, order=[fixed.uid, movable.uid])
    assert [each.name for each in again] == ["default/fixed", "default/movable"]


def test_gangs_may_end_early_by_their_interval() -> None:
    seen = cluster(1, [busy("a", {"n0": 8}, 2 * HOUR, uncertainty=2.0), waits := rigid("waits", 1)])
    [kept] = reserved(seen, waits)
    assert (kept.start, kept.earliest) == (NOW + 2 * HOUR, NOW + HOUR)


def test_a_gang_whose_gpus_another_one_will_have_gives_nothing_back() -> None:
    leaving = replace(busy("a", {"n0": 8}, 0), expected_finish=None, movable_from=float("inf"))
    waits = rigid("waits", 1)
    seen = cluster(1, [leaving, waits])
    assert reserved(seen, waits) == ()


def test_gpus_of_pods_that_are_just_ending_are_as_good_as_free() -> None:
    """Else there would be no start in sight for a moment, and whoever comes in that moment would pass."""
    waits = rigid("waits", 2)
    seen = replace(cluster(2, [busy("a", {"n0": 8}, HOUR), waits]), ending={"n1": 8})
    seen = replace(seen, nodes=(seen.nodes[0], replace(seen.nodes[1], free_gpus=0)))
    assert reserved(replace(seen, ending={}), waits) == ()
    assert [kept.start for kept in reserved(seen, waits)] == [NOW + HOUR]


def test_a_gang_whose_pods_have_ended_gives_its_gpus_back_once() -> None:
    """Its pods are over, and its job does not know yet: its node looks free."""
    over, waits, small = busy("over", {"n0": 8}, 0), rigid("waits", 2, created=NOW - 100), rigid("small", 1)
    seen = cluster(2, [over, busy("a", {"n1": 8}, HOUR), waits, small])
    seen = replace(seen, nodes=(replace(seen.nodes[0], free_gpus=8), seen.nodes[1]))
    kept = reserved(seen, waits)
    assert [each.start for each in kept] == [NOW + HOUR]
    assert delayed_by(seen, kept, started(small, {"n0": 8}, 2 * HOUR))


# --- a gang that comes back -------------------------------------------------------------------------------------------
def test_nobody_takes_the_nodes_of_a_gang_that_has_lost_one_of_them() -> None:
    back = rigid("back", 2, created=NOW - 9 * HOUR, not_before=NOW + 30)
    seen = cluster(3, [AHEAD[0], back, LATER])
    assert [each.name for each in seen.waiting()] == ["later"], "it is not to be decided about yet"
    [kept] = reserve(seen, (), 1, 1e9)
    assert (kept.name, kept.start, kept.earliest) == ("default/back", NOW + 30, NOW + 30)
    assert delayed_by(seen, [kept], started(LATER, {"n2": 4}, HOUR))
    assert delayed_by(seen, [kept], started(LATER, {"n2": 4}, 29)) is None, "who ends before it comes does no harm"
    assert delayed_by(cluster(4, [AHEAD[0], back, LATER]), [kept], started(LATER, {"n2": 4}, HOUR)) is None


def test_who_comes_back_takes_no_reservation_from_those_in_line_and_passes_none_that_were_before() -> None:
    back = rigid("back", 1, created=NOW - 9 * HOUR, not_before=NOW + 30)
    first = rigid("first", 1, priority=1)
    seen = cluster(3, [*AHEAD, back, LARGE, first])
    assert [kept.name for kept in reserved(seen, LARGE, count=1)] == ["default/back", "default/large"]
    kept = reserved(seen, LARGE, count=1)
    assert delayed_by(seen, kept, started(first, {"n2": 8}, 9 * HOUR)) is None


# --- a gang that its queue's limit stops ------------------------------------------------------------------------------
OWN = [replace(busy(f"own{i}", {f"n{i}": 8}, (i + 1) * HOUR), queue="q") for i in range(2)]
GANG = rigid("wide", 2, queue="q", created=NOW - 100)
LIMIT = [Quota("q", A100, 24)]


def limited(*more: Job) -> tuple[Snapshot, tuple[Reservation, ...]]:
    """Queue q may have three of five nodes, and has two of them."""
    seen = cluster(5, [*OWN, GANG, *more], quotas=LIMIT)
    return seen, reserve(seen, no_room(GANG, reason=PendingReason.QUOTA_EXCEEDED), 1, 1e9)


def test_small_jobs_of_a_queue_at_its_limit_do_not_pass_a_large_one_for_ever() -> None:
    small, other = rigid("small", 1, queue="q"), rigid("other", 1)
    seen, kept = limited(small, other)
    assert [(each.name, each.start, each.queue) for each in kept] == [("default/wide", NOW + HOUR, "q")]
    assert delayed_by(seen, kept, started(small, {"n4": 8}, 2 * HOUR))
    assert delayed_by(seen, kept, started(small, {"n4": 8}, 0.5 * HOUR)) is None
    said = refusal(seen, kept[0], started(small, {"n4": 8}, 2 * HOUR))
    assert "but what queue q is allowed is kept for default/wide" in said.message


def test_what_a_queue_s_limit_holds_up_holds_up_no_other_queue() -> None:
    other = rigid("other", 1)
    seen, kept = limited(other)
    for name in ("n2", "n3", "n4"):
        assert delayed_by(seen, kept, started(other, {name: 8}, 9 * HOUR)) is None
    assert hidden(seen, kept).nodes == seen.nodes
    large = rigid("large", 4, created=NOW - 50)
    both = no_room(GANG, reason=PendingReason.QUOTA_EXCEEDED) + no_room(large)
    crowd = cluster(5, [*OWN, GANG, large], quotas=LIMIT)
    assert [each.name for each in reserve(crowd, both, 1, 1e9)] == ["default/wide", "default/large"]
