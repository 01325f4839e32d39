"""Writes take turns: what completes goes before what reports, that before what begins, and no turn is ever lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from trimtab.controller.turns import Turns, Urgency

URGENCIES = st.sampled_from(Urgency)


async def _served(turns: Turns, arrivals: Sequence[Urgency], cancelled: frozenset[int] = frozenset()) -> list[int]:
    """Positions of the arrivals in the order in which they got their turn, while somebody else held the only one."""
    served: list[int] = []

    async def write(position: int) -> None:
        async with turns.turn(arrivals[position]):
            served.append(position)
            await asyncio.sleep(0)

    async with turns.turn(Urgency.BEGIN):
        writers = [asyncio.create_task(write(position)) for position in range(len(arrivals))]
        await asyncio.sleep(0)
        assert not served
        for position in cancelled:
            writers[position].cancel()
    await asyncio.gather(*writers, return_exceptions=True)
    return served


@given(st.lists(URGENCIES, max_size=12))
def test_the_most_urgent_goes_first_and_among_equals_who_came_first(arrivals: list[Urgency]) -> None:
    served = asyncio.run(_served(Turns(1), arrivals))
    assert served == sorted(range(len(arrivals)), key=lambda position: (arrivals[position], position))


@given(st.lists(URGENCIES, min_size=1, max_size=12), st.data())
def test_who_stops_waiting_leaves_the_turn_to_the_others(arrivals: list[Urgency], data: st.DataObject) -> None:
    gone = data.draw(st.frozensets(st.integers(0, len(arrivals) - 1)))
    served = asyncio.run(_served(Turns(1), arrivals, gone))
    assert sorted(served) == [position for position in range(len(arrivals)) if position not in gone]


async def test_a_turn_given_to_somebody_who_was_cancelled_in_that_moment_is_passed_on() -> None:
    turns = Turns(1)
    holding = turns.turn(Urgency.BEGIN)
    await holding.__aenter__()
    unlucky = asyncio.create_task(_served_one(turns))
    await asyncio.sleep(0)
    await holding.__aexit__(None, None, None)
    unlucky.cancel()
    await asyncio.wait([unlucky])
    async with asyncio.timeout(1):
        assert await _served_one(turns)


async def test_as_many_as_the_limit_are_in_flight_at_once() -> None:
    turns, inside, most = Turns(3), 0, 0

    async def write() -> None:
        nonlocal inside, most
        async with turns.turn(Urgency.BEGIN):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(write() for _ in range(10)))
    assert most == 3


async def _served_one(turns: Turns) -> bool:
    async with turns.turn(Urgency.COMPLETE):
        return True
