"""The thread that reads the driver: one that hangs, fails or comes late is told, and never ends the agent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

import pytest
from tests.live.harness import eventually

from trimtab.agent import sampler
from trimtab.agent.backend import BackendError, Gpu, NodeReading
from trimtab.agent.sampler import Sampler

WELL = NodeReading(gpus=(Gpu("GPU-0", 0),))


class Driver:
    """A backend whose behaviour is a function."""

    name: Literal["fake"] = "fake"

    def __init__(self, read: Callable[[], NodeReading], opened: Callable[[], None] = lambda: None) -> None:
        self.read, self.open = read, opened
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@asynccontextmanager
async def sampling(driver: Driver, seconds: float = 0.01) -> AsyncIterator[tuple[Sampler, list[NodeReading]]]:
    readings: list[NodeReading] = []
    running = Sampler(driver, seconds, lambda reading, took: readings.append(reading))
    running.start()
    try:
        yield running, readings
    finally:
        await asyncio.to_thread(running.stop)


async def test_readings_come_one_after_the_other_until_it_is_stopped() -> None:
    driver = Driver(lambda: WELL)
    async with sampling(driver) as (running, readings):
        await eventually(lambda: len(readings) >= 5)
        assert running.hung() == ""
    count = len(readings)
    await asyncio.sleep(0.05)
    assert (len(readings), driver.closed) == (count, 1)
    assert set(map(id, readings)) == {id(WELL)}


async def test_a_driver_that_comes_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "REOPEN_SECONDS", 0.01)
    attempts: list[int] = []

    def absent() -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise BackendError("no driver: install one")

    async with sampling(Driver(lambda: WELL, absent)) as (_, readings):
        await eventually(lambda: WELL in readings)
    assert [reading.error for reading in readings[:3]] == ["no driver: install one", "no driver: install one", ""]


async def test_a_bug_in_a_backend_is_reported_and_it_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "REOPEN_SECONDS", 0.01)
    outcomes = iter([ValueError("oops")])

    def read() -> NodeReading:
        for error in outcomes:
            raise error
        return WELL

    driver = Driver(read)
    async with sampling(driver) as (_, readings):
        await eventually(lambda: WELL in readings)
    assert "oops" in readings[0].error
    assert driver.closed == 2


async def test_a_driver_that_hangs_is_told_and_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "HUNG_SECONDS", 0.2)
    release = threading.Event()

    def read() -> NodeReading:
        release.wait(20)
        return WELL

    async with sampling(Driver(read)) as (running, readings):
        await eventually(lambda: bool(running.hung()))
        assert "does not answer" in running.hung()
        assert readings == []
        release.set()
        await eventually(lambda: not running.hung() and WELL in readings)


async def test_waiting_for_the_next_reading_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "HUNG_SECONDS", 0.01)
    async with sampling(Driver(lambda: WELL), seconds=1.5) as (running, readings):
        await eventually(lambda: len(readings) >= 1)
        await asyncio.sleep(1.2)
        assert running.silence() < 1.4
