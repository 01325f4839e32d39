"""Which GPUs are slow: below what others of their kind do at the same work, for long enough, until it is over.

Evidence is the SM clock of a card under load; an idle one clocks down, which says nothing. What a card should do is
what its peers do, not its data sheet: a power limit that all have is the norm, not a fault.

- Cards of the same gang compute the same at the same moment: the median of the others of its node is the measure, and
  so is the median node of a gang of three or more. Each node has one voice, however many cards its agent lists: agents
  speak for their own nodes, and one that lies or is broken moves no median of three. In a gang of two nobody knows who
  is right; there the other node counts only for a card below `SURE` of its own highest clock: under load, with
  nothing that holds it down, none is.
- So is the median node of the GPU type, for gangs whose nodes are slow as a whole.
- Who divides his work unevenly has one card draw more power than others, and the power limit clocks it down: a card
  that only the limit holds down is slow only beside cards that draw as much and yet are faster, and it is well by the
  measure of other nodes, whose work is another one.
- A card without any peers is one only if the hardware slows it down (heat, power brake): then by its own highest clock,
  or where that is unknown by half of the time throttled, since a hardware slowdown at least halves the clock (NVML,
  `nvmlClocksEventReasonHwSlowdown`).

From one look to the next (`step`): a card is slow when all evidence of `seconds` said so, at a rate in bands of 0.05;
another rate counts only when it leaves the band by as much again, and it is normal again above the limit plus a band.
Without load there is no evidence: the verdict stands for `recovery` seconds, twice as long for each time that the card
was found slow again. Readings that are missing or stale change nothing. Verdicts are kept in memory only; after a
restart the evidence has to come in anew.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from trimtab import names
from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.problems import Problem
from trimtab.observe.telemetry import GpuFacts, NodeTelemetry
from trimtab_policy.types import Placement

LOADED = 0.5
"""Part of the time in which a kernel runs from which a card is under load: one that waits for its peers inside a
collective is, too."""
BAND = 0.05
LOWEST = 0.1
SURE = 0.75
"""Part of its highest clock that a card under load exceeds unless something holds it down (base clocks of V100, A100,
H100 and H200 are 0.8 of it and more)."""
SAME_DRAW = 0.05
"""Parts of their power limits that cards may differ by and yet do the same work."""
FEWEST_VOICES = 3
"""Nodes of a gang, the card's own included, from which their median is nobody's word alone."""
FEWEST_NODES = 3
"""Other nodes of a type under load from which their median says what is usual."""
MOST_DOUBLINGS = 8
LOOK_SECONDS = 5.0
"""Evidence is weighed at most so often: rounds may follow each other within milliseconds."""
_POWER_LIMIT = frozenset({"SwPowerCap", "SyncBoost", "DisplayClockSetting"})
_HARDWARE = ("HwSlowdown", "Thermal", "PowerBrake")


class StragglerRules(Struct, frozen=True):
    """What counts, from the settings."""

    limit: float = 0.9
    """Part of its peers' rate below which a card is slow."""
    seconds: float = 120.0
    recovery: float = 300.0


class StragglerCandidate(Struct, frozen=True):
    """A node with fresh, plausible readings."""

    told: NodeTelemetry
    gpu_type: str
    gang: str = ""
    """UID of the only job that holds GPUs of it; empty for none, or several."""


class Evidence(Struct, frozen=True):
    """What one look at a card under load says."""

    rate: float
    """Over that of its peers."""
    why: str = ""


class Verdict(Struct, frozen=True):
    """What is thought of one card. Times are POSIX seconds."""

    node: str
    uuid: str
    gpu_type: str
    speed: float = 1.0
    since: float = 0.0
    """When the evidence began that it is slow."""
    why: str = ""
    contrary: float | None = None
    """Since when evidence has contradicted `speed`."""
    seen: float = -math.inf
    """When there was evidence last."""
    times: int = 0
    """How often it was found slow since it was last seen to be well."""


def step(known: Verdict, evidence: Evidence | None, now: float, rules: StragglerRules) -> Verdict:
    """The next verdict on a card. `evidence` None: it is not under load, or there is nothing to measure it by."""
    if evidence is None:
        return _without_evidence(known, now, rules)
    rate = _banded(known, evidence.rate, rules)
    if rate == known.speed:
        return replace(known, contrary=None, seen=now)
    since = now if known.contrary is None else known.contrary
    if now - since < rules.seconds:
        return replace(known, contrary=since, seen=now)
    if rate == 1:
        return Verdict(known.node, known.uuid, known.gpu_type, seen=now)
    fresh = known.speed == 1
    return replace(
        known,
        speed=rate,
        since=since if fresh else known.since,
        why=evidence.why,
        contrary=None,
        seen=now,
        times=known.times + fresh,
    )


def _without_evidence(known: Verdict, now: float, rules: StragglerRules) -> Verdict:
    silent = now - known.seen
    if known.speed < 1 and silent >= _stands(known, rules):
        return Verdict(known.node, known.uuid, known.gpu_type, seen=known.seen, times=known.times)
    if known.contrary is not None and silent >= rules.seconds:
        return replace(known, contrary=None)
    return known


def _stands(known: Verdict, rules: StragglerRules) -> float:
    """Seconds that a verdict of slowness stands without evidence."""
    return rules.recovery * (1 << min(max(0, known.times - 1), MOST_DOUBLINGS))


def _banded(known: Verdict, rate: float, rules: StragglerRules) -> float:
    """The rate as it would be told: 1 for one that is not slow, the known one where it is near."""
    usual = rules.limit if known.speed == 1 else min(1.0, rules.limit + BAND)
    if rate >= usual:
        return 1.0
    if abs(rate - known.speed) <= 1.5 * BAND and known.speed < 1:
        return known.speed
    return max(LOWEST, min(1 - BAND, round(round(rate / BAND) * BAND, 2)))


# --- evidence --------------------------------------------------------------------------------------------------------
class _Pulse(Struct, frozen=True):
    """What is to be known of a node before its cards are looked at one by one."""

    clocks: tuple[float, ...]
    """Of its cards under load, ascending, Hz."""
    clock: float
    """Their median; NaN where there are none."""
    draws: tuple[float, ...]
    """Power of the same cards over their limits, ascending; those that are known."""
    draw: float
    """Their median; NaN where there are none."""
    slowed: bool
    """Whether the hardware slows one of them down."""
    limited: bool
    """Whether it is the power limit alone that holds them down, all of them."""


def _pulse(told: NodeTelemetry) -> _Pulse:
    loaded = [gpu for gpu in told.gpus if gpu.utilization >= LOADED]
    clocks = sorted(gpu.sm_clock for gpu in loaded if gpu.sm_clock > 0)
    draws = sorted(draw for gpu in loaded if gpu.sm_clock > 0 and (draw := _draw(gpu)) == draw)
    slowed = any(_by_itself(gpu, "") for gpu in loaded if gpu.throttle_reasons)
    limited = all(_only_limited(gpu) for gpu in loaded)
    return _Pulse(tuple(clocks), _median(clocks), tuple(draws), _median(draws), slowed, limited)


class _Peers:
    """What cards are measured by."""

    def __init__(self, members: Sequence[StragglerCandidate], pulses: Sequence[_Pulse]) -> None:
        self._of_type: dict[str, list[float]] = {}
        self._nodes_of: dict[str, list[_Pulse]] = {}
        for member, pulse in zip(members, pulses, strict=True):
            if pulse.clocks:
                self._of_type.setdefault(member.gpu_type, []).append(pulse.clock)
                if member.gang:
                    self._nodes_of.setdefault(member.gang, []).append(pulse)
        for clocks in self._of_type.values():
            clocks.sort()
        self._top = {gang: max(pulse.clocks[-1] for pulse in pulses) for gang, pulses in self._nodes_of.items()}

    def suspect(self, member: StragglerCandidate, pulse: _Pulse, limit: float) -> bool:
        """Whether a card of the node may turn out to be slow: below the fastest card or node there is, at least.

        Most nodes are seen to be well by this alone, a whole cluster within a few milliseconds.
        """
        if pulse.slowed or not pulse.clocks:
            return pulse.slowed
        clocks = self._of_type[member.gpu_type]
        usual = 0.0 if pulse.limited else clocks[min(len(clocks) - 1, len(clocks) // 2 + 1)]
        return pulse.clocks[0] < limit * max(usual, self._top.get(member.gang, 0.0))

    def judge(self, member: StragglerCandidate, pulse: _Pulse, gpu: GpuFacts) -> Evidence | None:
        """What there is to say about a card now."""
        if not gpu.utilization >= LOADED:
            return None
        reasons = f" ({', '.join(gpu.throttle_reasons)})" if gpu.throttle_reasons else ""
        found: list[Evidence] = []
        if gpu.sm_clock > 0:
            for others, draw in self._gang(member, pulse, gpu):
                if not math.isnan(others) and not (_only_limited(gpu) and not _draw(gpu) <= draw + SAME_DRAW):
                    said = f"its clock is {_ghz(gpu.sm_clock)}, that of the others of its gang {_ghz(others)}{reasons}"
                    found.append(Evidence(gpu.sm_clock / others, said))
            others = self._usual(member.gpu_type, pulse.clock)
            if not math.isnan(others) and not _only_limited(gpu):
                said = f"its clock is {_ghz(gpu.sm_clock)}, on other nodes it is {_ghz(others)}{reasons}"
                found.append(Evidence(gpu.sm_clock / others, said))
        return min(found, key=lambda each: each.rate) if found else _by_itself(gpu, reasons)

    def _gang(self, member: StragglerCandidate, pulse: _Pulse, gpu: GpuFacts) -> Iterator[tuple[float, float]]:
        """What the others of its gang do that a card may be measured by: their clock, and the power that they draw."""
        if not member.gang:
            return
        yield _median_without(pulse.clocks, gpu.sm_clock), _median_without(pulse.draws, _draw(gpu))
        voices = self._nodes_of.get(member.gang, [])
        if len(voices) >= FEWEST_VOICES:
            draws = [each.draw for each in voices if each.draw == each.draw]
            yield median(each.clock for each in voices), _median(draws)
        elif len(voices) > 1 and gpu.sm_clock_max > 0 and not _only_limited(gpu):
            other = next(each for each in voices if each is not pulse)
            low = gpu.sm_clock < SURE * gpu.sm_clock_max
            yield min(other.clock, gpu.sm_clock_max) if low else gpu.sm_clock, math.nan

    def _usual(self, gpu_type: str, own: float) -> float:
        clocks = self._of_type.get(gpu_type, [])
        return _median_without(clocks, own) if len(clocks) > FEWEST_NODES else math.nan


def _draw(gpu: GpuFacts) -> float:
    """Power over the card's limit; NaN where that is not known."""
    return gpu.power / gpu.power_limit


def _median(values: Sequence[float]) -> float:
    return median(values) if values else math.nan


def _only_limited(gpu: GpuFacts) -> bool:
    """Whether nothing but the power limit keeps the clock down."""
    return bool(gpu.throttle_reasons) and _POWER_LIMIT.issuperset(gpu.throttle_reasons)


def _by_itself(gpu: GpuFacts, reasons: str) -> Evidence | None:
    """A card without peers: only what the hardware itself says against it."""
    if not any(word in reason for reason in gpu.throttle_reasons for word in _HARDWARE) or gpu.throttled < LOADED:
        return None
    if gpu.sm_clock > 0 and gpu.sm_clock_max > 0:
        said = f"its clock is {_ghz(gpu.sm_clock)} of {_ghz(gpu.sm_clock_max)}{reasons}"
        return Evidence(gpu.sm_clock / gpu.sm_clock_max, said)
    part = 1.0 if math.isnan(gpu.throttled) else gpu.throttled
    return Evidence(1 - part / 2, f"it is throttled for {part:.0%} of the time{reasons}")


def _median_without(ascending: Sequence[float], one: float) -> float:
    """Median of all others; NaN where there are none. `one` must be among them."""
    others = len(ascending) - 1
    if others < 1 or one != one:
        return math.nan
    place = bisect_left(ascending, one)

    def other(rank: int) -> float:
        return ascending[rank + (rank >= place)]

    return (other((others - 1) // 2) + other(others // 2)) / 2


def _ghz(hertz: float) -> str:
    return f"{hertz / 1e9:.2f} GHz"


# --- all cards -------------------------------------------------------------------------------------------------------
class Stragglers:
    """The verdicts on all cards, carried from look to look."""

    def __init__(self, rules: StragglerRules | None = None) -> None:
        self._rules = rules or StragglerRules()
        self._verdicts: dict[str, dict[str, Verdict]] = {}
        """Node -> UUID -> verdict, of cards that are slow, or of which there is contrary evidence."""
        self._pulses: dict[str, tuple[NodeTelemetry, _Pulse]] = {}
        self._looked = -math.inf

    def judge(self, members: Iterable[StragglerCandidate], present: Collection[str], now: float) -> dict[str, Verdict]:
        """`look`, `forget` and `slow` in one."""
        self.look(members, now)
        self.forget(present)
        return self.slow()

    def look(self, members: Iterable[StragglerCandidate], now: float) -> None:
        """Weigh the evidence of all nodes that there are readings of."""
        if 0 <= now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        seen = list(members)
        pulses = [self._pulse(member.told) for member in seen]
        self._pulses = {m.told.name: (m.told, pulse) for m, pulse in zip(seen, pulses, strict=True)}
        peers = _Peers(seen, pulses)
        for member, pulse in zip(seen, pulses, strict=True):
            if member.told.name in self._verdicts or peers.suspect(member, pulse, self._rules.limit):
                self._weigh(member, pulse, peers, now)
        for name in self._verdicts.keys() - self._pulses.keys():
            self._wait(name, now)

    def forget(self, present: Collection[str]) -> None:
        """Drop what is known of nodes that are gone."""
        for name in [name for name in self._verdicts if name not in present]:
            del self._verdicts[name]

    def next_deadline(self, now: float) -> float:
        """Seconds until the time of a verdict has come though nothing is reported; infinite when none is due."""
        rules, due = self._rules, []
        for cards in self._verdicts.values():
            for card in cards.values():
                if card.contrary is not None:
                    due.append(card.contrary + rules.seconds)
                elif card.speed < 1:
                    due.append(card.seen + _stands(card, rules))
        return min((max(at - now, LOOK_SECONDS) for at in due), default=math.inf)

    def slow(self) -> dict[str, Verdict]:
        """Node -> verdict on its slowest card, of nodes that have a slow one."""
        found: dict[str, Verdict] = {}
        for node, cards in self._verdicts.items():
            slowest = min(cards.values(), key=lambda card: card.speed)
            if slowest.speed < 1:
                found[node] = slowest
        return found

    def cards(self) -> list[Verdict]:
        """All slow cards."""
        return [card for cards in self._verdicts.values() for card in cards.values() if card.speed < 1]

    def _weigh(self, member: StragglerCandidate, pulse: _Pulse, peers: _Peers, now: float) -> None:
        """Cards that the agent no longer lists are forgotten, and so are those that nothing is to be said of."""
        node = member.told.name
        known, found = self._verdicts.pop(node, {}), {}
        for gpu in member.told.gpus:
            before = known.get(gpu.uuid) or Verdict(node, gpu.uuid, member.gpu_type)
            found[gpu.uuid] = step(before, peers.judge(member, pulse, gpu), now, self._rules)
        self._keep(node, found)

    def _wait(self, node: str, now: float) -> None:
        """A node without fresh readings: its verdicts stand as long as those on cards without load, and no longer."""
        known = self._verdicts.pop(node)
        self._keep(node, {uuid: step(card, None, now, self._rules) for uuid, card in known.items()})

    def _keep(self, node: str, cards: dict[str, Verdict]) -> None:
        telling = {uuid: c for uuid, c in cards.items() if c.speed < 1 or c.contrary is not None or c.times}
        if telling:
            self._verdicts[node] = telling

    def _pulse(self, told: NodeTelemetry) -> _Pulse:
        known = self._pulses.get(told.name)
        return known[1] if known and known[0] is told else _pulse(told)


def members(
    telemetry: Mapping[str, NodeTelemetry],
    nodes: Mapping[str, NodeFacts],
    placements: Mapping[str, Placement],
    requested: Callable[[str], int],
) -> Iterator[StragglerCandidate]:
    """Nodes with fresh readings, each with the job that alone has GPUs of it. Nothing is computed until it is asked.

    `placements` are those of jobs by UID, `requested` the GPUs that all pods request of a node.
    """
    sole: dict[str, str] = {}
    for uid, placement in placements.items():
        for share in placement.shares:
            sole[share.node] = uid if requested(share.node) == share.gpus else ""
    for name, told in telemetry.items():
        if (node := nodes.get(name)) and node.gpu:
            yield StragglerCandidate(told, node.gpu.name, sole.get(name, ""))


def problems(cards: Iterable[Verdict], nodes: Mapping[str, NodeFacts]) -> tuple[Problem, ...]:
    """What operators are told: one for each slow card."""
    return tuple(
        Problem(
            "Node",
            "",
            card.node,
            nodes[card.node].uid,
            names.REASON_SLOW_GPU,
            f"GPU {card.uuid} does {card.speed:.2f} of what it should: {card.why}; gangs on this node are predicted to "
            "be slowed to that, and others avoid it",
        )
        for card in cards
        if card.node in nodes
    )


def expected_finish(facts: JobFacts, slow: Mapping[str, Verdict]) -> float | None:
    """When the job's gang will have ended, its nodes being as slow as they are, as a POSIX time.

    Steps that it reports tell how slow it is by themselves.
    """
    said, plan = facts.expected_finish(), facts.status.plan
    if said is None or plan is None or said != plan.predicted.finish_time.timestamp():
        return said
    here = [slow[share.name] for share in plan.nodes if share.name in slow] if slow else []
    if not here:
        return said
    slowest = min(here, key=lambda card: card.speed)
    since = max(slowest.since, plan.created_time.timestamp())
    return finish(said, since, (plan.predicted.speed_permille or 1000) / 1000, slowest.speed)


def finish(said: float, since: float, then: float, now: float) -> float:
    """When a gang will end that was to end at `said` (POSIX seconds) at the speed of `then`, and has had `now` since
    `since`. It does not get faster than it was planned: what it has lost meanwhile is not known."""
    return said if now >= then or said <= since else since + (said - since) * then / now
