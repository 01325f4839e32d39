"""`hack/faults --all`: the sweep of every workload in every mode, again and again with larger gangs, until enough
controllers have died. Each life is a line in a record, from which an interrupted campaign goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec
from tests.faults.sweep import EACH, MODES, Life, reference, sweep
from tests.faults.testbed import Stand
from tests.faults.workloads import FOUR_NODES, Workload, workloads

GANGS = (2, 1, 4)
"""Nodes of a gang, round by round; the cluster has four."""


class Verdict(msgspec.Struct, frozen=True):
    """One life, as the record keeps it."""

    workload: str
    nodes: int
    mode: str
    write: int
    what: str
    crashes: int
    seconds: float
    problems: tuple[str, ...]
    round: int = 0


class Record:
    """A file with a line of JSON for each life; without a file, memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.verdicts: list[Verdict] = []
        if path and path.exists():
            decoder = msgspec.json.Decoder(Verdict)
            self.verdicts = [decoder.decode(line) for line in path.read_bytes().splitlines() if line]

    def add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        if self._path:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(verdict) + b"\n")

    def last(self, workload: str, nodes: int, mode: str, number: int) -> int:
        """The last write of this sweep that was tried; 0 for none."""
        key = (workload, nodes, mode, number)
        return max((each.write for each in self.verdicts if key == _sweep(each)), default=0)

    @property
    def crashes(self) -> int:
        return sum(each.crashes for each in self.verdicts)


def _sweep(verdict: Verdict) -> tuple[str, int, str, int]:
    return verdict.workload, verdict.nodes, verdict.mode, verdict.round


async def campaign(stand: Stand, record: Record, crashes: int, only: Sequence[str] = ()) -> AsyncIterator[Verdict]:
    """Rounds of all sweeps until so many crashes were injected, those in the record included."""
    for number, workload in _rounds(only):
        if number and record.crashes >= crashes:
            return
        calm: Life | None = None
        for mode in (*MODES, EACH):
            done = record.last(workload.name, workload.nodes, mode, number)
            if done and mode == EACH:
                continue
            calm = calm or await reference(stand, workload)
            async for life in sweep(stand, workload, mode, calm, done + 1):
                verdict = Verdict(
                    life.workload, workload.nodes, life.mode, life.write, life.what, life.crashes,
                    round(life.seconds, 3), tuple(life.problems), number,
                )  # fmt: skip
                record.add(verdict)
                yield verdict


def _rounds(only: Sequence[str]) -> Iterator[tuple[int, Workload]]:
    """At least one round of all gang sizes; then for as long as is asked."""
    number = 0
    while True:
        for nodes in GANGS:
            for workload in workloads(nodes):
                if (not only or workload.name in only) and workload.fits(len(FOUR_NODES)):
                    yield number, workload
        number += 1


def summary(verdicts: Sequence[Verdict]) -> list[dict[str, object]]:
    """Workload by mode: lives, crashes, problems, and seconds from crash to end."""
    rows = []
    for (workload, nodes, mode), lives in Counter((v.workload, v.nodes, v.mode) for v in verdicts).items():
        mine = [v for v in verdicts if (v.workload, v.nodes, v.mode) == (workload, nodes, mode)]
        times = sorted(v.seconds for v in mine)
        rows.append({
            "workload": workload, "nodes": nodes, "mode": mode, "fault": MODES.get(mode, "F2 each"),
            "writes": len({v.write for v in mine}), "lives": lives, "crashes": sum(v.crashes for v in mine),
            "violations": sum(bool(v.problems) for v in mine),
            "median_seconds": times[len(times) // 2], "worst_seconds": times[-1],
        })  # fmt: skip
    return rows
