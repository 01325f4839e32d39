"""Writes take turns: what completes goes before what reports, that before what begins, and last what only explains.

Namespaces take turns, too, and no turn is ever lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from trimtab.controller.loop.priority_semaphore import PrioritySemaphore, Urgency

URGENCIES = st.sampled_from(Urgency)


async def _served(
    turns: PrioritySemaphore, arrivals: Sequence[Urgency], cancelled: frozenset[int] = frozenset()
) -> list[int]:
    """Positions of the arrivals in the order in which they got their turn, while somebody else held the only one."""
    served: list[int] = []

    async def write(position: int) -> None:
        async with turns.turn(arrivals[position], "n"):
            served.append(position)
            await asyncio.sleep(0)

    async with turns.turn(Urgency.BEGIN, "n"):
        writers = [asyncio.create_task(write(position)) for position in range(len(arrivals))]
        await asyncio.sleep(0)
        assert not served
        for position in cancelled:
            writers[position].cancel()
    await asyncio.gather(*writers, return_exceptions=True)
    return served


@given(st.lists(URGENCIES, max_size=12))
def test_the_most_urgent_goes_first_and_among_equals_who_came_first(arrivals: list[Urgency]) -> None:
    served = asyncio.run(_served(PrioritySemaphore(1), arrivals))
    assert served == sorted(range(len(arrivals)), key=lambda position: (arrivals[position], position))


@given(st.lists(URGENCIES, min_size=1, max_size=12), st.data())
def test_who_stops_waiting_leaves_the_turn_to_the_others(arrivals: list[Urgency], data: st.DataObject) -> None:
    gone = data.draw(st.frozensets(st.integers(0, len(arrivals) - 1)))
    served = asyncio.run(_served(PrioritySemaphore(1), arrivals, gone))
    assert sorted(served) == [position for position in range(len(arrivals)) if position not in gone]


async def test_a_turn_given_to_somebody_who_was_cancelled_in_that_moment_is_passed_on() -> None:
    turns = PrioritySemaphore(1)
    holding = turns.turn(Urgency.BEGIN, "n")
    await holding.__aenter__()
    unlucky = asyncio.create_task(_served_one(turns))
    await asyncio.sleep(0)
    await holding.__aexit__(None, None, None)
    unlucky.cancel()
    await asyncio.wait([unlucky])
    async with asyncio.timeout(1):
        assert await _served_one(turns)


async def test_as_many_as_the_limit_are_in_flight_at_once() -> None:
    turns, inside, most = PrioritySemaphore(3), 0, 0

    async def write() -> None:
        nonlocal inside, most
        async with turns.turn(Urgency.BEGIN, "n"):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(write() for _ in range(10)))
    assert most == 3


@given(st.sampled_from([Urgency.REPORT, Urgency.BEGIN, Urgency.EXPLAIN]), st.integers(1, 60), st.integers(1, 6))
def test_many_of_one_namespace_are_not_in_the_way_of_few_of_another(urgency: Urgency, many: int, few: int) -> None:
    served: list[str] = []
    turns = PrioritySemaphore(1)

    async def write(namespace: str) -> None:
        async with turns.turn(urgency, namespace):
            served.append(namespace)

    async def all_at_once() -> None:
        async with turns.turn(Urgency.COMPLETE, "other"):
            crowd = [asyncio.create_task(write("crowd")) for _ in range(many)]
            await asyncio.sleep(0)
            others = [asyncio.create_task(write("few")) for _ in range(few)]
            await asyncio.sleep(0)
        await asyncio.gather(*crowd, *others)

    asyncio.run(all_at_once())
    assert len(served) == many + few
    assert all("few" in served[i : i + 2] for i in range(min(many, few)))


async def test_words_never_take_all_places() -> None:
    turns, inside, most = PrioritySemaphore(8), 0, 0
    told = asyncio.Event()

    async def explain() -> None:
        nonlocal inside, most
        async with turns.turn(Urgency.EXPLAIN, "crowd"):
            inside += 1
            most = max(most, inside)
            await told.wait()
            inside -= 1

    words = [asyncio.create_task(explain()) for _ in range(20)]
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        assert await _served_one(turns)
    told.set()
    await asyncio.gather(*words)
    assert most == 2


async def _served_one(turns: PrioritySemaphore) -> bool:
    async with turns.turn(Urgency.COMPLETE, "n"):
        return True
