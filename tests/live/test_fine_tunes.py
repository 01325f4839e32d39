"""`trimtab submit` of the two usual fine-tunes: an 8B model by LoRA on one card of 80 GB, a 70B one by QLoRA on two.

Both are planned, and their pods get what the trainer needs to know of the plan and of the adapters.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.accounts import clear, controlling
from tests.live.harness import NAMESPACE, ControllerProcess, Live
from tests.live.test_room import plan
from tests.live.test_stops import variables
from typer.testing import CliRunner

from trimtab import names
from trimtab.cli import app

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture
def clean(live_cluster: Live) -> Iterator[None]:
    yield
    clear(live_cluster)


@pytest.fixture
async def controller(live: Live, clean: None, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    async with controlling(live, tmp_path) as process:
        yield process


async def started(live: Live, name: str, *words: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The plan and the pods of a job that was submitted with these options."""
    usual = ("--image", "example.test/sft:1", "--tokens", "2B", "--batch", "16", "--sequence-length", "2048")
    given = ("submit", *usual, "--gpu-type", "A100-80GB", "--name", name, "-n", NAMESPACE, *words)
    runner = CliRunner(env={"KUBECONFIG": str(live.cluster.kubeconfig)})
    found = await asyncio.to_thread(runner.invoke, app, given, prog_name="trimtab")
    assert found.exit_code == 0, found.output
    await live.until(name, names.PODS_READY)
    return plan(live, name), live.pods(name)


async def test_an_8b_lora_on_one_card(live: Live, controller: ControllerProcess) -> None:
    options = ("--model", "llama3-8b", "--lora", "--rank", "32", "--gpus", "1", "--launcher", "DeepSpeed")
    made, pods = await started(live, "lora", *options, "--", "torchrun", "sft.py")
    assert (made["gpuType"], made["gpus"]) == ("A100-SXM4-80GB", 1)
    [pod] = pods
    env = variables(pod)
    assert (env["TRIMTAB_LORA_RANK"], env["TRIMTAB_QUANTIZATION"], env["TRIMTAB_DP"]) == ("32", "None", "1")
    assert env["PET_NPROC_PER_NODE"] == "1"
    said = [*pod["spec"]["containers"][0]["command"], *pod["spec"]["containers"][0]["args"]]
    assert said == ["torchrun", "sft.py", "--deepspeed", "--deepspeed_config", "/etc/trimtab/deepspeed.json"]
    config = json.loads(pod["metadata"]["annotations"]["trimtab.dev/deepspeed-config"])
    assert config["train_batch_size"] == 16


async def test_a_70b_qlora_on_two_cards(live: Live, controller: ControllerProcess) -> None:
    options = ("--model", "llama3-70b", "--qlora", "--gpus", "2", "--offload-optimizer", "Paged")
    made, pods = await started(live, "qlora", *options, "--", "torchrun", "sft.py")
    assert (made["gpuType"], made["gpus"]) == ("A100-SXM4-80GB", 2)
    [pod] = pods
    env = variables(pod)
    assert (env["TRIMTAB_LORA_RANK"], env["TRIMTAB_QUANTIZATION"]) == ("16", "NF4Double")
    assert env["TRIMTAB_OFFLOAD_OPTIMIZER"] == "Paged"
    assert (env["PET_NPROC_PER_NODE"], env["TRIMTAB_DP"]) == ("2", "2")
    assert pod["spec"]["containers"][0]["resources"]["limits"][names.NVIDIA_GPU] == "2"
