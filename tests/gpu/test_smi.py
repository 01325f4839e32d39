"""nvidia-smi's words, and the agent's readings held against them: without a GPU, by the tables that cards print."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hack.gpu import smi
from hack.gpu.smi import QUERY, check_agent, compare, compare_links, parse_query, parse_topology
from hack.gpu.verdicts import Comparison, Missing
from msgspec.structs import replace
from tests.agent.nvml.conftest import Boot, boot, build  # noqa: F401 - fixtures

from trimtab.agent.backend import NA, BackendError, Gpu, NodeReading

MIB = 2**20
VALUES = {
    "index": "0",
    "uuid": "GPU-0",
    "name": "NVIDIA H100 80GB HBM3",
    "pci.bus_id": "00000000:1B:00.0",
    "memory.total": "81559",
    "memory.used": "521",
    "utilization.gpu": "3",
    "utilization.memory": "0",
    "temperature.gpu": "34",
    "power.draw": "71.42",
    "enforced.power.limit": "700.00",
    "clocks.sm": "345",
    "clocks.mem": "2619",
    "clocks.max.sm": "1980",
    "pcie.link.gen.current": "5",
    "pcie.link.gen.max": "5",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "ecc.errors.corrected.volatile.total": "0",
    "ecc.errors.uncorrected.volatile.total": "0",
}
GPU = Gpu(
    uuid="GPU-0",
    index=0,
    product="NVIDIA H100 80GB HBM3",
    pci_bus="00000000:1B:00.0",
    memory_total=81559.0 * MIB,
    memory_used=521.25 * MIB,
    sm_utilization=0.03,
    memory_utilization=0.0,
    temperature=34.0,
    power=73.1,
    power_limit=700.0,
    sm_clock=345e6,
    memory_clock=2619e6,
    sm_clock_max=1980e6,
    pcie_generation=5.0,
    pcie_generation_max=5.0,
    pcie_width=16.0,
    pcie_width_max=16.0,
    ecc_corrected=0.0,
    ecc_uncorrected=0.0,
)
TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-55\t0
GPU1\tNV18\t X \tNODE\tSYS\t0-55\t0
GPU2\tSYS\tNODE\t X \tSYS\t56-111\t1
NIC0\tPIX\tSYS\tSYS\t X

Legend:

  X    = Self
"""


def line(**changes: str) -> str:
    return ", ".join((VALUES | {name.replace("__", "."): value for name, value in changes.items()})[q] for q in QUERY)


def missed(rows: Sequence[Comparison]) -> list[str]:
    return [row.what for row in rows if row.met is False]


def compared(gpu: Gpu = GPU, before: str = "", after: str = "") -> list[Comparison]:
    return compare(parse_query(before or line()), NodeReading(gpus=(gpu,)), parse_query(after or before or line()))


def test_a_reading_that_agrees_is_good_in_every_figure() -> None:
    rows = compared()
    assert missed(rows) == []
    assert len(rows) == 1 + 1 + 2 + len(smi.FIELDS)


@pytest.mark.parametrize("said", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", ""])
def test_what_a_card_does_not_have_is_no_number(said: str) -> None:
    [row] = parse_query(line(power__draw=said))
    assert row["power.draw"] is None


@pytest.mark.parametrize("changes", [{"power": NA, "power_limit": NA}, {}])
def test_figures_that_nvidia_smi_lacks_say_nothing_against_the_agent(changes: dict[str, float]) -> None:
    text = line(power__draw="[N/A]", enforced__power__limit="[N/A]")
    assert missed(compared(replace(GPU, **changes), text)) == []


def test_a_line_of_another_width_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_query(f"{line()}\n0, GPU-1\n")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"memory_total": 81559e6}, "memory.total"),  # megabytes for mebibytes
        ({"temperature": 90.0}, "temperature.gpu"),
        ({"power": 73.1e-3}, "power.draw"),
        ({"sm_clock": 345.0}, "clocks.sm"),
        ({"sm_utilization": 3.0}, "utilization.gpu"),
        ({"ecc_uncorrected": 1.0}, "ecc.errors.uncorrected.volatile.total"),
        ({"pcie_width": NA}, "pcie.link.width.current"),
        ({"product": "NVIDIA A100"}, "name"),
        ({"index": 3}, "index"),
    ],
)
def test_one_figure_that_differs_is_told_by_its_name(changes: dict[str, float], named: str) -> None:
    assert missed(compared(replace(GPU, **changes))) == [f"GPU 0 {named}"]


def test_what_moves_may_lie_anywhere_between_two_looks_of_nvidia_smi() -> None:
    before, after = line(clocks__sm="345", power__draw="70"), line(clocks__sm="1980", power__draw="650")
    assert missed(compared(replace(GPU, sm_clock=1500e6, power=400.0), before, after)) == []
    assert missed(compared(replace(GPU, sm_clock=2500e6, power=400.0), before, after)) == ["GPU 0 clocks.sm"]


def test_a_gpu_that_the_agent_lacks_is_told() -> None:
    rows = compare(parse_query(f"{line()}\n{line(index='1', uuid='GPU-1')}"), NodeReading(gpus=(GPU,)), [])
    assert missed(rows) == ["GPUs", "GPU 1 uuid"]


def test_links_are_those_of_the_topology_without_colours_and_adapters() -> None:
    told = parse_topology(TOPOLOGY)
    assert told == [["X", "NV18", "SYS"], ["NV18", "X", "NODE"], ["SYS", "NODE", "X"]]
    same = NodeReading(links=tuple(map(tuple, told)))
    other = NodeReading(links=(("X", "NV4", "SYS"), *same.links[1:]))
    assert missed(list(compare_links(told, same))) == []
    assert missed(list(compare_links(told, other))) == ["GPU 0 to GPU 1"]


def test_without_nvidia_smi_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Missing, match="driver"):
        smi.ask_nvidia_smi(["-L"])


def test_a_driver_that_nvml_cannot_use_is_missing_with_the_agents_own_words() -> None:
    class NoDriver(smi.NvmlBackend):
        def open(self) -> None:
            raise BackendError("the driver is not loaded: modprobe nvidia")

    with pytest.raises(Missing, match="modprobe nvidia"):
        check_agent(lambda arguments: line(), NoDriver)


def test_the_real_backend_is_read_between_two_looks(boot: Boot) -> None:  # noqa: F811 - the fixture
    """On a library that answers as NVML does for eight H100s; nvidia-smi is played by what the backend said before."""
    machine = boot("h100x8")
    gpus = machine.read().gpus
    asked: list[str] = []

    def ask(arguments: Sequence[str]) -> str:
        asked.append(arguments[0])
        if arguments[0] == "topo":
            links = machine.read().links
            return "\n".join(" ".join([f"GPU{i}", *row]) for i, row in enumerate(links))
        return "\n".join(printed(gpu) for gpu in gpus)

    rows = check_agent(ask, lambda: machine.backend)
    assert missed(rows) == []
    assert [each.partition("=")[0] for each in asked] == ["--query-gpu", "--query-gpu", "topo"]
    assert len([row for row in rows if " to GPU " in row.what]) == 28


def printed(gpu: Gpu) -> str:
    """A line of nvidia-smi for a reading."""
    told = {"index": str(gpu.index), "uuid": gpu.uuid, "name": gpu.product, "pci.bus_id": gpu.pci_bus}
    for field in smi.FIELDS:
        value = float(getattr(gpu, field.reading)) / field.scale
        told[field.query] = "[N/A]" if value != value else f"{value:.6g}"
    return ", ".join(told[name] for name in QUERY)
