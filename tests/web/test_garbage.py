"""What is over is freed without holding anybody up, and no garbage is looked for while a look is made."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct

from trimtab.web import garbage
from trimtab.web.garbage import MANY, Collector, let_go


class Thing:
    """Something that can be waited for to be gone, and that may have itself in it."""

    itself: Thing


class Part(Struct):
    many: tuple[Any, ...]
    table: dict[str, Any]
    few: tuple[Any, ...]


class Whole(Struct):
    part: Part
    lists: list[Any]


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_all_of_a_value_is_freed_but_for_what_somebody_else_has() -> None:
    things = [Thing() for _ in range(2 * MANY + 8)]
    gone = [weakref.ref(thing) for thing in things]
    kept = things[3]
    many, table, few = things[: MANY + 2], things[MANY + 2 : -4], things[-4:]
    left: list[Any] = [
        Whole(Part(tuple(many), dict(zip(map(str, range(len(table))), table, strict=True)), tuple(few[:2])), few[2:]),
        None,
    ]
    del things, many, table, few
    let_go(left)
    assert left == []
    assert [ref() for ref in gone if ref() is not None] == [kept]


def test_what_was_made_aside_is_never_gone_through() -> None:
    collector = Collector()
    with collector.aside():
        assert not gc.isenabled()
        made = [[n] for n in range(1000)]
    assert gc.isenabled()
    assert not {id(each) for each in made} & {id(each) for each in gc.get_objects()}


def test_the_collector_is_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), Collector().aside():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_cycles_that_were_left_aside_are_found_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector()
    with collector.aside():
        one = Thing()
        one.itself = one
    left = weakref.ref(one)
    del one
    with collector.aside():
        assert left() is not None
    monkeypatch.setattr(garbage, "WHOLE_SECONDS", -1.0)
    with collector.aside():
        assert left() is None
