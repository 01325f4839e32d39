"""At most one controller leads, whatever the network and the schedulers of their machines do. Virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import looptime
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.fakeserver import Refused, Store

from trimtab import errors
from trimtab.controller.leadership import Leadership, default_identity
from trimtab.kube.responses import error_from
from trimtab.settings import LeadershipSettings

KEY = "trimtab-system/trimtab-controller"


class Api:
    """What an elector needs of `KubeClient`, straight on a store, with an outage or a lost answer on request."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.down = False
        self.lose_answers = 0
        self.hang_seconds = 0.0

    async def request(self, method: str, path: str) -> bytes:
        return await self._call(lambda: self.store.get("leases", KEY))

    async def create(self, path: str, lease: msgspec.Struct) -> bytes:
        return await self._call(lambda: self.store.create("leases", msgspec.to_builtins(lease)))

    async def replace(self, path: str, lease: msgspec.Struct) -> bytes:
        return await self._call(lambda: self.store.update("leases", KEY, msgspec.to_builtins(lease)))

    async def _call(self, act: Callable[[], dict[str, Any]]) -> bytes:
        await asyncio.sleep(0.01 + self.hang_seconds)
        if self.down:
            raise errors.Unreachable("down")
        try:
            answer = json.dumps(act()).encode()
        except Refused as refused:
            raise error_from("", "", refused.code, None, json.dumps(refused.body).encode()) from refused
        if self.lose_answers:
            self.lose_answers -= 1
            raise errors.Unreachable("answer lost")
        return answer


class Candidate:
    """A controller process: it campaigns, leads, and campaigns again after it lost, as a restarted process would."""

    def __init__(self, store: Store, identity: str) -> None:
        self.api = Api(store)
        self.identity = identity
        self.epochs: list[int] = []
        self.leadership = self._process()

    def _process(self) -> Leadership:
        settings = LeadershipSettings(identity=self.identity)
        return Leadership(self.api, settings, asyncio.get_running_loop().time)  # type: ignore[arg-type]  # an imitation

    async def run(self) -> None:
        while True:
            self.leadership = self._process()
            self.epochs.append(await self.leadership.acquire())
            await self.leadership.hold()

    def may_act(self) -> bool:
        try:
            self.leadership.check()
        except errors.LeadershipLost:
            return False
        return True


def virtually(scenario: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
    """Run in virtual time, on a loop that is not pytest-asyncio's."""
    loop = looptime.new_event_loop()
    try:
        loop.run_until_complete(scenario(Store()))
        for task in asyncio.all_tasks(loop):
            task.cancel()
            loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    finally:
        loop.close()


def holder(store: Store) -> str:
    return str(store.get("leases", KEY)["spec"].get("holderIdentity", ""))


ACTIONS = st.tuples(
    st.integers(0, 1),
    st.sampled_from(["down", "up", "lose-answer", "hang", "kill", "wait"]),
    st.sampled_from([0.5, 3.0, 8.0, 12.0, 20.0]),
)


@given(st.lists(ACTIONS, max_size=20))
def test_never_do_two_lead_and_every_leadership_has_a_higher_epoch(actions: list[tuple[int, str, float]]) -> None:
    async def scenario(store: Store) -> None:
        candidates = [Candidate(store, "one"), Candidate(store, "two")]
        running = [asyncio.create_task(c.run()) for c in candidates]
        acting: list[int] = []
        for who, action, seconds in actions:
            candidate = candidates[who]
            match action:
                case "down" | "up":
                    candidate.api.down = action == "down"
                case "lose-answer":
                    candidate.api.lose_answers += 1
                case "hang":
                    candidate.api.hang_seconds = seconds
                case "kill":
                    running[who].cancel()
                    candidate.leadership = candidate._process()
                    running[who] = asyncio.create_task(candidate.run())
            for _ in range(int(seconds / 0.5)):
                leaders = [c for c in candidates if c.may_act()]
                assert len(leaders) <= 1
                acting += [c.leadership.epoch for c in leaders]
                await asyncio.sleep(0.5)
        assert acting == sorted(acting), "an older epoch never acts after a younger one"
        epochs = [epoch for c in candidates for epoch in c.epochs]
        assert len(set(epochs)) == len(epochs), "no epoch is given twice"

    virtually(scenario)


def test_who_waits_for_the_lease_of_another_says_so_once_and_for_how_long_at_most() -> None:
    async def scenario(store: Store) -> None:
        first, second = Candidate(store, "first"), Candidate(store, "second")
        leads = asyncio.create_task(first.run())
        await asyncio.sleep(1)
        with capture_logs() as told:
            waits = asyncio.create_task(second.run())
            await asyncio.sleep(10)
            leads.cancel()
            await asyncio.sleep(30)
        waits.cancel()
        assert [each["event"] for each in told] == ["waits for the lease: it has another holder", "leading"]
        assert (told[0]["holder"], told[0]["seconds"]) == ("first", LeadershipSettings().lease_seconds)

    virtually(scenario)


def test_one_of_two_leads_and_the_other_takes_over_when_it_is_killed() -> None:
    async def scenario(store: Store) -> None:
        first, second = Candidate(store, "first"), Candidate(store, "second")
        killed = asyncio.create_task(first.run())
        await asyncio.sleep(1)
        successor = asyncio.create_task(second.run())
        await asyncio.sleep(60)
        assert (first.may_act(), second.may_act()) == (True, False)
        killed.cancel()
        await asyncio.sleep(20)
        assert second.may_act()
        assert (first.epochs, second.epochs) == ([1], [2])
        successor.cancel()

    virtually(scenario)


def test_a_paused_leader_finds_out_before_it_writes() -> None:
    """SIGSTOP between deciding and writing: nothing of the process runs, and time goes on."""

    async def scenario(store: Store) -> None:
        first, second = Candidate(store, "first"), Candidate(store, "second")
        await first.leadership.acquire()
        first.leadership.check()
        successor = asyncio.create_task(second.run())
        await asyncio.sleep(30)  # `first` does not renew: it is stopped
        assert second.may_act()
        with pytest.raises(errors.LeadershipLost, match="should have renewed its lease"):
            first.leadership.check()
        holding = asyncio.create_task(first.leadership.hold())
        await asyncio.sleep(5)
        assert holding.done()
        with pytest.raises(errors.LeadershipLost, match="does not lead"):
            first.leadership.check()
        successor.cancel()

    virtually(scenario)


def test_a_leader_without_api_server_stops_before_its_lease_may_be_taken() -> None:
    async def scenario(store: Store) -> None:
        leader = Candidate(store, "leader")
        await leader.leadership.acquire()
        leader.api.down = True
        lost = asyncio.create_task(leader.leadership.hold())
        await asyncio.sleep(9)
        assert leader.may_act()
        await asyncio.sleep(1.5)
        assert not leader.may_act()
        await asyncio.sleep(10)
        assert lost.done()

    virtually(scenario)


def test_a_short_outage_costs_nothing() -> None:
    async def scenario(store: Store) -> None:
        leader = Candidate(store, "leader")
        running = asyncio.create_task(leader.run())
        await asyncio.sleep(1)
        leader.api.down = True
        await asyncio.sleep(7)
        leader.api.down = False
        leader.api.lose_answers = 1
        await asyncio.sleep(60)
        assert leader.may_act()
        assert leader.epochs == [1]
        running.cancel()

    virtually(scenario)


def test_a_released_lease_is_taken_at_once_with_the_next_epoch() -> None:
    async def scenario(store: Store) -> None:
        first, second = Candidate(store, "first"), Candidate(store, "second")
        await first.leadership.acquire()
        await first.leadership.release()
        assert holder(store) == ""
        assert not first.may_act()
        async with asyncio.timeout(1):
            assert await second.leadership.acquire() == 2

    virtually(scenario)


def test_a_lease_is_given_back_though_a_renewal_was_interrupted_that_arrived() -> None:
    async def scenario(store: Store) -> None:
        leader = Candidate(store, "leader")
        await leader.leadership.acquire()
        holding = asyncio.create_task(leader.leadership.hold())
        leader.api.lose_answers = 1
        await asyncio.sleep(3)
        holding.cancel()
        await leader.leadership.release()
        assert holder(store) == ""
        assert not leader.may_act()

    virtually(scenario)


def test_a_lease_of_somebody_else_is_not_given_back() -> None:
    async def scenario(store: Store) -> None:
        first, second = Candidate(store, "pod-1"), Candidate(store, "pod-1")
        await first.leadership.acquire()
        await second.leadership.acquire()
        await first.leadership.release()
        assert holder(store) == "pod-1"

    virtually(scenario)


def test_a_restarted_process_of_the_same_name_takes_over_at_once_with_a_higher_epoch() -> None:
    async def scenario(store: Store) -> None:
        killed, restarted = Candidate(store, "pod-1"), Candidate(store, "pod-1")
        assert await killed.leadership.acquire() == 1
        async with asyncio.timeout(1):
            assert await restarted.leadership.acquire() == 2
        holding = asyncio.create_task(killed.leadership.hold())  # it was alive after all
        await asyncio.sleep(3)
        assert holding.done()
        assert not killed.may_act()

    virtually(scenario)


def test_times_in_the_lease_are_not_believed() -> None:
    """The clock of the other machine is two hours behind."""

    async def scenario(store: Store) -> None:
        spec = {"holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 4}
        lease = {"metadata": {"name": "trimtab-controller", "namespace": "trimtab-system"}}
        store.create("leases", {**lease, "spec": {**spec, "renewTime": "2020-01-01T00:00:00.000000Z"}})
        candidate = Candidate(store, "us")
        campaign = asyncio.create_task(candidate.run())
        await asyncio.sleep(14)
        assert not candidate.may_act()
        await asyncio.sleep(4)
        assert candidate.may_act()
        assert candidate.epochs == [5]
        campaign.cancel()

    virtually(scenario)


def test_two_processes_on_one_host_have_different_names() -> None:
    assert default_identity() != default_identity()
