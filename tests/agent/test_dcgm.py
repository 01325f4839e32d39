"""The DCGM exporter's text, blanks included, and an exporter that is not there."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from tests.live.harness import eventually

from trimtab.agent.backend import Gpu, NodeReading
from trimtab.agent.dcgm import Exporter, parse, share
from trimtab.telemetry import agent_metrics as metrics

TEXT = """\
# HELP DCGM_FI_PROF_PIPE_TENSOR_ACTIVE Ratio of cycles the tensor (HMMA) pipe is active.
# TYPE DCGM_FI_PROF_PIPE_TENSOR_ACTIVE gauge
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-a",pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA \
H100 80GB HBM3",Hostname="n",container="trainer",namespace="team-a",pod="train-0"} 0.412345
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="1",UUID="GPU-b",device="nvidia1"} 9223372036854775794
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="2",UUID="GPU-c",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"} 0.9
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-a"} 0.300000
DCGM_FI_PROF_DRAM_ACTIVE{gpu="1",UUID="GPU-b"} 1.000001
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 61
"""


def test_counters_are_found_by_uuid_and_blanks_are_not_known() -> None:
    counters, blanks = parse(TEXT)
    assert counters["GPU-a"] == {"tensor_active": 0.412345, "dram_active": 0.3}
    assert math.isnan(counters["GPU-b"]["tensor_active"])
    assert counters["GPU-b"]["dram_active"] == 1.0
    assert "GPU-c" not in counters, "a part of a GPU says nothing about the whole"
    assert blanks == 1


@pytest.mark.parametrize(
    "blank",
    [
        *range(2147483632, 2147483637),
        *range(9223372036854775792, 9223372036854775797),
        *(140737488355328.0 + offset for offset in range(4)),
        "9.223372036854775794e+18", "NaN", "+Inf", "-0.2", "nonsense", "",
    ],
)  # fmt: skip
def test_a_blank_is_not_known(blank: object) -> None:
    assert math.isnan(share(str(blank)))


@pytest.mark.parametrize("line", ["", "{", "DCGM_FI_PROF_DRAM_ACTIVE", 'DCGM_FI_PROF_DRAM_ACTIVE{UUID="x"', "\x00\xff"])
def test_text_that_is_none_of_it_is_no_error(line: str) -> None:
    assert parse(line) == ({}, 0)


@pytest.fixture
async def exporter() -> AsyncIterator[tuple[str, dict[str, object]]]:
    """An exporter whose answer can be changed: its URL, and `status`, `text`."""
    answer: dict[str, object] = {"status": 200, "text": TEXT}

    async def metrics_page(request: web.Request) -> web.Response:
        return web.Response(status=int(str(answer["status"])), text=str(answer["text"]))

    app = web.Application()
    app.router.add_get("/metrics", metrics_page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics", answer
    await runner.cleanup()


READING = NodeReading(gpus=(Gpu("GPU-a", 0), Gpu("GPU-z", 1)))


def scrapes(result: str) -> float:
    return metrics.REGISTRY.get_sample_value("trimtab_agent_dcgm_scrapes_total", {"result": result}) or 0.0


async def test_readings_get_the_exporters_counters(exporter: tuple[str, dict[str, object]]) -> None:
    source, before = Exporter(exporter[0]), scrapes("read")
    task = asyncio.create_task(source.run())
    await eventually(lambda: scrapes("read") > before)
    merged = source.merge(READING)
    assert (merged.gpus[0].tensor_active, merged.gpus[0].dram_active) == (0.412345, 0.3)
    assert math.isnan(merged.gpus[1].tensor_active)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/metrics", "http://no-such-host.invalid/", "nonsense"])
async def test_without_an_exporter_nothing_is_known_and_nothing_breaks(url: str) -> None:
    source, before = Exporter(url), scrapes("failed")
    task = asyncio.create_task(source.run())
    await eventually(lambda: scrapes("failed") > before)
    assert math.isnan(source.merge(READING).gpus[0].tensor_active)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_exporter_in_trouble_is_counted(exporter: tuple[str, dict[str, object]]) -> None:
    url, answer = exporter
    answer["status"] = 500
    source, before = Exporter(url), scrapes("failed")
    task = asyncio.create_task(source.run())
    await eventually(lambda: scrapes("failed") > before)
    assert math.isnan(source.merge(READING).gpus[0].tensor_active)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
