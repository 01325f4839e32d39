"""The cluster's time as a client learns it: bounded by every answer, and deaf to whatever happens to our own clock."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakeserver import FakeApiServer

from trimtab.kube.client import KubeClient
from trimtab.kube.clock import ClusterClock
from trimtab.kube.resources import NODES
from trimtab.settings import KubeSettings

TRUE = 1_790_000_000.0
"""The API server's time when everything begins."""


class Machine:
    """One whose wall clock is wrong, and may be set; its monotonic clock is right."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead
        self.passed = 0.0
        self.clock = ClusterClock(lambda: self.true + self.ahead, lambda: 77.0 + self.passed)

    @property
    def true(self) -> float:
        return TRUE + self.passed

    @property
    def error(self) -> float:
        """Of what is taken for the cluster's time."""
        return self.clock.now() - self.true

    def ask(self, there: float = 0.01, back: float = 0.01, *, server_ahead: float = 0.0) -> None:
        """A request that takes so many seconds to the API server, and its answer so many from there."""
        asked = 77.0 + self.passed
        self.passed += there
        date = formatdate(int(self.true + server_ahead), usegmt=True)
        self.passed += back
        self.clock.hear(date, asked)


@pytest.mark.parametrize("ahead", [-600.0, -0.4, 0.0, 0.9, 600.0, 1e8])
def test_before_the_first_answer_the_machine_is_believed_and_then_the_api_server(ahead: float) -> None:
    machine = Machine(ahead)
    assert machine.error == pytest.approx(ahead, abs=1e-6)
    machine.ask()
    assert abs(machine.error) <= 1.02
    assert machine.clock.ahead() == pytest.approx(ahead - machine.error, abs=1e-6)


def test_a_machine_whose_clock_is_right_goes_by_its_own() -> None:
    machine = Machine(0.0)
    for _ in range(100):
        machine.passed += 0.37
        machine.ask()
    assert machine.error == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("ahead", [-600.0, 600.0])
def test_many_answers_leave_an_error_of_milliseconds(ahead: float) -> None:
    machine, random_ = Machine(ahead), random.Random(1)
    for _ in range(200):
        machine.passed += random_.random()
        machine.ask(there=0.002, back=0.002)
    assert abs(machine.error) < 0.03


@given(
    ahead=st.floats(-1e6, 1e6),
    trips=st.lists(st.tuples(st.floats(0, 30), st.floats(0, 30), st.floats(0, 100)), min_size=1, max_size=20),
)
def test_no_delay_of_answers_makes_it_wrong_by_more_than_a_second_and_the_shortest_trip(
    ahead: float, trips: list[tuple[float, float, float]]
) -> None:
    machine = Machine(ahead)
    for there, back, pause in trips:
        machine.ask(there, back)
        machine.passed += pause
    assert abs(machine.error) <= 1.0 + min(there + back for there, back, _ in trips) + 1e-3


def test_a_clock_that_is_set_while_we_run_moves_nothing() -> None:
    machine = Machine(0.0)
    machine.ask()
    before = machine.clock.now()
    machine.ahead = 600.0
    assert machine.clock.now() == before
    assert machine.clock.ahead() == pytest.approx(600.0, abs=1e-6)
    machine.passed += 5
    assert machine.clock.now() == pytest.approx(before + 5, abs=1e-6)


def test_an_api_server_whose_clock_is_set_is_followed() -> None:
    machine = Machine(0.0)
    machine.ask()
    machine.ask(server_ahead=-300.0)
    assert machine.error == pytest.approx(-300.0, abs=1.1)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Sun, 22 Nov 2026 11:36:30", "Sun, 99 Nov 2026 11:36:30 GMT"])
def test_what_is_no_date_says_nothing(date: str | None) -> None:
    machine = Machine(600.0)
    machine.clock.hear(date, 77.0)
    assert machine.error == pytest.approx(600.0, abs=1e-6)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.mark.parametrize("ahead", [-600.0, 600.0])
async def test_every_request_and_every_watch_of_a_client_tells_it(
    server: FakeApiServer, tmp_path: Path, ahead: float
) -> None:
    def wrong() -> float:
        return time.time() + ahead

    settings = KubeSettings(kubeconfig=server.kubeconfig(tmp_path))
    for kind in ("request", "watch"):
        async with await KubeClient.connect(settings, clock=ClusterClock(wrong)) as client:
            assert client.clock.now() == pytest.approx(wrong(), abs=0.5)
            if kind == "request":
                await client.get(NODES.path())
            else:
                stream = client.watch(NODES.path(), {"timeoutSeconds": "1"})
                assert await anext(stream) == []
                await stream.aclose()
            assert client.clock.now() == pytest.approx(time.time(), abs=2.5)
