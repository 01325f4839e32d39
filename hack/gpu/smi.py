"""The agent's backend for NVIDIA's GPUs against `nvidia-smi`, the tool that people believe.

Both read the same driver through one library, so what never changes has to be equal. What moves is read before and
after the agent's reading: that has to lie between the two, give or take what moves in a second.
"""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence

from hack.gpu.verdicts import Comparison, Missing
from msgspec import Struct

from trimtab.agent.backend import BackendError, Gpu, NodeReading, known
from trimtab.agent.nvml import NvmlBackend

MIB, MHZ = 2.0**20, 1e6
SECONDS = 60
"""nvidia-smi may take long on a machine whose driver is not kept loaded, but not this long."""

Row = Mapping[str, str | None]
Ask = Callable[[Sequence[str]], str]
"""Runs nvidia-smi with these arguments; what it prints."""


class FieldCheck(Struct, frozen=True):
    """A figure that both know."""

    query: str
    """Its name in `nvidia-smi --help-query-gpu`."""
    reading: str
    """Its name in `backend.Gpu`."""
    unit: str = ""
    scale: float = 1.0
    """Of what nvidia-smi prints, to the agent's unit."""
    slack: float = 0.0
    """What it may move by, in the agent's unit; 0 for what never changes."""


FIELDS = (
    FieldCheck("memory.total", "memory_total", "bytes", MIB, MIB),
    FieldCheck("memory.used", "memory_used", "bytes", MIB, 64 * MIB),
    FieldCheck("utilization.gpu", "sm_utilization", "share", 0.01, 0.1),
    FieldCheck("utilization.memory", "memory_utilization", "share", 0.01, 0.1),
    FieldCheck("temperature.gpu", "temperature", "°C", 1.0, 2.0),
    FieldCheck("power.draw", "power", "W", 1.0, 25.0),
    FieldCheck("enforced.power.limit", "power_limit", "W", 1.0, 0.5),
    FieldCheck("clocks.sm", "sm_clock", "Hz", MHZ, 60 * MHZ),
    FieldCheck("clocks.mem", "memory_clock", "Hz", MHZ, 60 * MHZ),
    FieldCheck("clocks.max.sm", "sm_clock_max", "Hz", MHZ),
    FieldCheck("pcie.link.gen.current", "pcie_generation", slack=1.0),
    FieldCheck("pcie.link.gen.max", "pcie_generation_max"),
    FieldCheck("pcie.link.width.current", "pcie_width"),
    FieldCheck("pcie.link.width.max", "pcie_width_max"),
    FieldCheck("ecc.errors.corrected.volatile.total", "ecc_corrected"),
    FieldCheck("ecc.errors.uncorrected.volatile.total", "ecc_uncorrected"),
)
WORDS = (("name", "product"), ("pci.bus_id", "pci_bus"))
"""Texts of nvidia-smi -> those of the agent."""
QUERY = ("index", "uuid", *(name for name, _ in WORDS), *(field.query for field in FIELDS))
NONE_SUCH = re.compile(r"\[?(N/A|Not Supported|Not Found|Unknown Error|GPU requires reset|Insufficient Permissions)\]?")


def ask_nvidia_smi(arguments: Sequence[str]) -> str:
    """What nvidia-smi prints. Raises Missing where there is none, or it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Missing("there is no nvidia-smi: install NVIDIA's driver (it comes with it), or run this on a GPU node")
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Missing(f"nvidia-smi did not answer in {SECONDS} s: the driver hangs, reboot the node") from error
    if done.returncode:
        told = (done.stdout + done.stderr).strip().partition("\n")[0]
        raise Missing(f"nvidia-smi failed ({done.returncode}): {told}")
    return done.stdout


def parse_query(text: str, query: Sequence[str] = QUERY) -> list[dict[str, str | None]]:
    """Rows of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; None for what a card does not have.

    Raises ValueError for a line of another width.
    """
    rows = []
    for number, cells in enumerate(csv.reader(io.StringIO(text), skipinitialspace=True), start=1):
        if not cells:
            continue
        if len(cells) != len(query):
            raise ValueError(f"nvidia-smi, line {number}: {len(cells)} values, and {len(query)} were asked for")
        rows.append({name: _value(cell) for name, cell in zip(query, cells, strict=True)})
    return rows


def _value(cell: str) -> str | None:
    text = cell.strip()
    return None if not text or NONE_SUCH.fullmatch(text) else text


def parse_topology(text: str) -> list[list[str]]:
    """How GPU i reaches GPU j, of `nvidia-smi topo -m`; empty where it says nothing of GPUs."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    rows = [cells for cells in lines if cells and re.fullmatch(r"GPU\d+", cells[0]) and "X" in cells]
    return [cells[1 : len(rows) + 1] for cells in rows]


def compare(before: Sequence[Row], reading: NodeReading, after: Sequence[Row]) -> list[Comparison]:
    """Every figure of every GPU. `before` and `after` are nvidia-smi's at either side of the agent's reading."""
    found = [Comparison("GPUs", float(len(reading.gpus)), float(len(before)), met=len(reading.gpus) == len(before))]
    agents = {gpu.uuid: gpu for gpu in reading.gpus}
    later = {row["uuid"]: row for row in after}
    for row in before:
        gpu = agents.get(row["uuid"] or "")
        if gpu is None:
            found.append(
                Comparison(f"GPU {row['index']} uuid", None, row["uuid"], met=False, note="the agent lacks it")
            )
            continue
        found += _compare_gpu(f"GPU {row['index']}", row, gpu, later.get(row["uuid"], row))
    return found


def _compare_gpu(name: str, before: Row, gpu: Gpu, after: Row) -> Iterator[Comparison]:
    yield Comparison(f"{name} index", str(gpu.index), before["index"], met=str(gpu.index) == before["index"])
    for query, reading in WORDS:
        said, read = before[query], str(getattr(gpu, reading))
        yield Comparison(f"{name} {query}", read, said, met=read.casefold() == (said or "").casefold())
    for field in FIELDS:
        yield _compare_field(name, field, before[field.query], float(getattr(gpu, field.reading)), after[field.query])


def _compare_field(name: str, field: FieldCheck, before: str | None, read: float, after: str | None) -> Comparison:
    what, measured = f"{name} {field.query}", read if known(read) else None
    said = [number for text in (before, after) if (number := _number(text)) is not None]
    if not said or measured is None:
        agree = not said and measured is None
        note = "neither can read it" if agree else "only the agent reads it" if not said else "the agent cannot read it"
        # What nvidia-smi does not tell says nothing against the agent.
        return Comparison(what, measured, said[0] * field.scale if said else None, field.unit, met=not said, note=note)
    ends = [field.scale * number for number in said]
    rounding = 1e-6 * max(map(abs, ends))
    low, high = min(ends) - field.slack - rounding, max(ends) + field.slack + rounding
    return Comparison(what, measured, ends[0], field.unit, low, high, low <= measured <= high)


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def compare_links(told: Sequence[Sequence[str]], reading: NodeReading) -> Iterator[Comparison]:
    """How GPUs reach one another, in the words of `nvidia-smi topo -m`."""
    for i, row in enumerate(reading.links):
        for j in range(i + 1, len(row)):
            said = told[i][j] if i < len(told) and j < len(told[i]) else None
            yield Comparison(f"GPU {i} to GPU {j}", row[j], said, met=said is None or row[j] == said)


def check_agent(ask: Ask = ask_nvidia_smi, make: Callable[[], NvmlBackend] = NvmlBackend) -> list[Comparison]:
    """The agent's reading of this machine beside nvidia-smi's. Raises Missing without a driver that works."""
    query = (f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits")
    backend = make()
    before = parse_query(ask(query))
    try:
        backend.open()
        reading = backend.read()
    except BackendError as error:
        raise Missing(str(error)) from error
    finally:
        backend.close()
    if reading.error:
        raise Missing(reading.error)
    after = parse_query(ask(query))
    links = parse_topology(ask(("topo", "-m"))) if len(before) > 1 else []
    return [*compare(before, reading, after), *compare_links(links, reading)]
