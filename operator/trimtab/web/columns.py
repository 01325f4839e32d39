"""A look at the cluster as flat columns, by node, GPU and job: what the page draws 32,000 GPUs from.

A row stays where it is for as long as its node or job exists, and is given to another one afterwards: so what changes
between two looks is what has changed in the cluster, and deltas are small. `Layout` keeps the places; all else is made
anew, or kept where nothing that a node's row is made of is another object than before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.snapshot import Observation
from trimtab.observe.telemetry import GpuFacts, NodeTelemetry
from trimtab.ui import words
from trimtab.web.deltas import Columns
from trimtab_policy.types import Eta, Job

FREE, HIDDEN, FOREIGN, GONE = -1, -2, -3, -4
"""Of `gpu.job`, instead of a job's row: free, somebody else's job, busy without a gang of ours, gone."""
UNKNOWN, UNKNOWN_TEMPERATURE = -1, -300
WELL, THROTTLED, FAULT, LOST, SLOW = range(5)
WAITS, HOLDS, OVER, SUSPENDED = range(4)
THROTTLED_SHARE = 0.05
"""Of a period, from which on a GPU counts as throttled."""
JOB_COLUMNS = (
    "key", "state", "queue", "priority", "type", "gpus", "plan", "phase", "progress",
    "created", "end", "low", "start", "high", "place",
)  # fmt: skip
EMPTY_JOB: tuple[Any, ...] = ("", "", "", 0, "", 0, "", OVER, UNKNOWN, 0, 0, 0, 0, 0, 0)
NODE_COLUMNS = ("name", "type", "gpus", "at", "zone", "block", "rack", "link", "why", "speed", "kept")
GPU_COLUMNS = ("job", "use", "temp", "memory", "state")
EMPTY_GPU = (GONE, UNKNOWN, UNKNOWN_TEMPERATURE, UNKNOWN, WELL)


class Waits(Struct, frozen=True):
    """What is expected of those that wait."""

    places: Mapping[str, int] = {}
    """UID -> place in line, from 1."""
    starts: Mapping[str, Eta] = {}
    """UID -> when it is expected to start."""
    kept: Mapping[str, str] = {}
    """Node -> UID of the job that it is kept for."""


class Rows:
    """Which row each key has: it keeps it for as long as it is asked for, and the lowest free one is given next."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        self.size = 0
        self._free: list[int] = []

    def take(self, keys: Iterable[str]) -> None:
        """These exist now, and no others."""
        wanted = dict.fromkeys(keys)
        gone = [key for key in self.of if key not in wanted]
        self._free = sorted([*self._free, *(self.of.pop(key) for key in gone)], reverse=True)
        for key in wanted:
            if key in self.of:
                continue
            if self._free:
                self.of[key] = self._free.pop()
            else:
                self.of[key], self.size = self.size, self.size + 1


class _NodeRow(Struct):
    """What was made of a node, and of what."""

    made_of: tuple[Any, ...]
    gpus: tuple[tuple[int, ...], ...]
    """A tuple for each of `GPU_COLUMNS`."""


class Layout:
    """Places of nodes, GPUs and jobs; makes columns of what is seen."""

    def __init__(self, job_of_pod: Callable[[str], str] = lambda pod: "") -> None:
        """`job_of_pod` names the job (`namespace/name`) of a pod (the same), where it is one of ours."""
        self._job_of_pod = job_of_pod
        self._jobs, self._nodes = Rows(), Rows()
        self._at: list[tuple[int, int]] = []
        """By row of a node: its first GPU, and how many there is room for."""
        self._gpus = 0
        self._types: dict[str, int] = {}
        self._made: dict[str, _NodeRow] = {}

    def columns(self, seen: Observation, waits: Waits) -> Columns:
        """All columns of this moment."""
        facts = {found.meta.key: found for found in seen.jobs.values()}
        self._jobs.take(facts)
        jobs = self._job_columns(seen, facts, waits)
        return {**self._node_columns(seen, waits), **jobs}

    # --- jobs -------------------------------------------------------------------------------------------------------
    def _job_columns(self, seen: Observation, facts: Mapping[str, JobFacts], waits: Waits) -> Columns:
        shown = {job.uid: job for job in seen.snapshot.jobs}
        rows: list[Sequence[Any]] = [EMPTY_JOB] * self._jobs.size
        for key, found in facts.items():
            rows[self._jobs.of[key]] = _job_row(found, shown.get(found.meta.uid), seen, waits)
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(JOB_COLUMNS)
        return {f"job.{name}": list(values) for name, values in zip(JOB_COLUMNS, columns, strict=True)}

    # --- nodes and GPUs ---------------------------------------------------------------------------------------------
    def _node_columns(self, seen: Observation, waits: Waits) -> Columns:
        sizes = {f"{name} {_size(seen, facts)}": facts for name, facts in seen.nodes.items()}
        self._nodes.take(sizes)
        self._made = {name: row for name, row in self._made.items() if name in seen.nodes}
        keys = {found.meta.uid: self._jobs.of[found.meta.key] for found in seen.jobs.values()}
        held, speeds = _held(seen, keys), {node.name: node for node in seen.snapshot.nodes}
        slow: defaultdict[str, set[str]] = defaultdict(set)
        for card in seen.stragglers:
            if card.speed < 1:
                slow[card.node].add(card.uuid)
        self._make_room(sizes)
        nodes: list[tuple[Any, ...]] = [("", UNKNOWN, 0, at, "", "", "", "", "", 100, UNKNOWN) for at, _ in self._at]
        gpus: list[list[int]] = [[empty] * self._gpus for empty in EMPTY_GPU]
        for key, facts in sizes.items():
            row, name = self._nodes.of[key], facts.name
            at, count = self._at[row]
            node, kept = speeds.get(name), waits.kept.get(name, "")
            zone, block, rack = _levels(facts.topology)
            why, speed = seen.snapshot.unavailable.get(name, ""), round(100 * node.speed) if node else 100
            nodes[row] = (
                name, self._type(facts), count, at, zone, block, rack, facts.link_domain, why, speed,
                keys.get(kept, UNKNOWN),
            )  # fmt: skip
            taken = facts.gpus - node.free_gpus if node else 0
            cards = self._gpu_row(seen, facts, count, held.get(name, ()), taken, frozenset(slow.get(name, ())))
            for column, values in zip(gpus, cards, strict=True):
                column[at : at + count] = values
        told: list[Sequence[Any]] = list(zip(*nodes, strict=True)) or [()] * len(NODE_COLUMNS)
        return {
            "type": list(self._types),
            **{f"node.{name}": list(values) for name, values in zip(NODE_COLUMNS, told, strict=True)},
            **{f"gpu.{name}": values for name, values in zip(GPU_COLUMNS, gpus, strict=True)},
        }

    def _make_room(self, sizes: Iterable[str]) -> None:
        """A row has as many GPUs as its first node; a node with more of them gets others at the end."""
        for key in sizes:
            row, count = self._nodes.of[key], int(key.rpartition(" ")[2])
            if row == len(self._at):
                self._at.append((self._gpus, count))
                self._gpus += count
            elif self._at[row][1] < count:
                self._at[row] = self._gpus, count
                self._gpus += count
            elif self._at[row][1] > count:
                self._at[row] = self._at[row][0], count

    def _type(self, facts: NodeFacts) -> int:
        return self._types.setdefault(facts.gpu.name, len(self._types)) if facts.gpu else UNKNOWN

    def _gpu_row(
        self, seen: Observation, facts: NodeFacts, count: int, held: tuple[tuple[int, int], ...], taken: int,
        slow: frozenset[str],
    ) -> tuple[tuple[int, ...], ...]:  # fmt: skip
        told = seen.reports.telemetry.get(facts.name)
        foreign = seen.reports.foreign.get(facts.name, 0)
        made_of = (told, facts.gpus, count, held, taken, foreign, slow)
        known = self._made.get(facts.name)
        if known and known.made_of[0] is told and known.made_of[1:] == made_of[1:]:
            return known.gpus
        cards = {gpu.index: gpu for gpu in told.gpus} if told else {}
        who = self._holders(told, facts.gpus, count, held, max(taken, foreign))
        rows = [_gpu(cards.get(index), who[index], slow) for index in range(count)]
        gpus = tuple(zip(*rows, strict=True)) or ((),) * len(GPU_COLUMNS)
        self._made[facts.name] = _NodeRow(made_of, gpus)
        return gpus

    def _holders(
        self, told: NodeTelemetry | None, whole: int, count: int, held: Iterable[tuple[int, int]], taken: int
    ) -> list[int]:
        """By GPU: the row of the job that has it. What agents say of pods comes first, then the first free ones."""
        who = [FREE] * count
        left = dict(held)
        others = max(0, taken - sum(left.values()))
        for gpu in told.gpus if told else ():
            rows = [self._jobs.of.get(self._job_of_pod(pod), FOREIGN) for pod in gpu.pods or ()]
            for row in rows[:1] if gpu.index < count else ():
                if left.get(row, 0) > 0:
                    who[gpu.index], left[row] = row, left[row] - 1
                elif row == FOREIGN and others:
                    who[gpu.index], others = FOREIGN, others - 1
        lost = [gpu.index for gpu in told.gpus if any(each.kind == "Lost" for each in gpu.faults)] if told else []
        for index in lost[: count - whole]:
            who[index] = GONE if index < count and who[index] == FREE else who[index]
        rest = iter([index for index in range(count) if who[index] == FREE])
        for row, gpus in [*left.items(), (FOREIGN, others)]:
            for _, index in zip(range(gpus), rest, strict=False):
                who[index] = row
        return who


def _size(seen: Observation, facts: NodeFacts) -> int:
    """GPUs to draw: also those that an agent sees and nobody may have."""
    told = seen.reports.telemetry.get(facts.name)
    return max(facts.gpus, min(64, max((gpu.index + 1 for gpu in told.gpus), default=0)) if told else 0)


def _held(seen: Observation, rows: Mapping[str, int]) -> dict[str, tuple[tuple[int, int], ...]]:
    """Node -> rows of the jobs that have GPUs there, and how many; a gang of no job that is seen is hidden."""
    found: dict[str, dict[int, int]] = {}
    for job in seen.snapshot.jobs:
        for share in job.placement.shares if job.placement else ():
            row, on = rows.get(job.uid, HIDDEN), found.setdefault(share.node, {})
            on[row] = on.get(row, 0) + share.gpus
    return {node: tuple(on.items()) for node, on in found.items()}


def _levels(topology: Sequence[str]) -> tuple[str, str, str]:
    """Zone, block and rack: the last three levels that are configured."""
    zone, block, rack = ("", "", "", *topology)[-3:]
    return zone, block, rack


def _percent(value: float) -> int:
    return round(100 * value) if math.isfinite(value) else UNKNOWN


def _gpu(card: GpuFacts | None, job: int, slow: frozenset[str]) -> tuple[int, ...]:
    if card is None:
        return job, UNKNOWN, UNKNOWN_TEMPERATURE, UNKNOWN, WELL
    kinds = {fault.kind for fault in card.faults}
    state = LOST if "Lost" in kinds else FAULT if kinds else SLOW if card.uuid in slow else WELL
    if state == WELL and card.throttled > THROTTLED_SHARE:  # NaN is not
        state = THROTTLED
    heat = round(card.temperature) if math.isfinite(card.temperature) else UNKNOWN_TEMPERATURE
    return job, _percent(card.utilization), heat, _percent(card.memory_used / card.memory_total), state


def _job_row(facts: JobFacts, job: Job | None, seen: Observation, waits: Waits) -> tuple[Any, ...]:
    status, uid, now = facts.status, facts.meta.uid, seen.snapshot.time
    plan = status.plan
    phase = OVER if facts.finished else HOLDS if facts.holds_gpus else SUSPENDED if facts.suspended else WAITS
    done = words.progress(facts, now)
    end = job.expected_finish if job and job.expected_finish and phase == HOLDS else 0.0
    if facts.finished and status.completion_time:
        end = status.completion_time.timestamp()
    eta = waits.starts.get(uid)
    queue = job.queue if job else (facts.spec.queue if facts.spec else None) or ""
    return (
        facts.meta.key, words.state(facts), queue, job.priority if job else 0,
        plan.gpu_type if plan else "", plan.gpus if plan else 0, words.parallelism(plan) if plan else "", phase,
        UNKNOWN if done is None else round(1000 * done), round(facts.created), round(end),
        *((round(eta.low), round(eta.expected), round(eta.high)) if eta else (0, 0, 0)), waits.places.get(uid, 0),
    )  # fmt: skip
