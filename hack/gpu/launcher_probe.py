"""Whether the launchers of this Python take the flags on stdin: `python launcher_probe.py <cases.json >verdicts.json`.

It runs where torchtitan, DeepSpeed and the like are installed and Trimtab is not, so it knows nothing of Trimtab. No
GPU is needed: flags are parsed and held against one another, as each framework does before it touches a device.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any

Case = dict[str, Any]
SHAPE = (
    *(
        "--num-layers",
        "32",
        "--hidden-size",
        "4096",
        "--num-attention-heads",
        "32",
        "--max-position-embeddings",
        "4096",
    ),
    *("--tokenizer-type", "NullTokenizer", "--vocab-size", "32000", "--mock-data", "--lr", "1e-4"),
)
"""What a job of Megatron's says by itself."""


class Absent(Exception):
    """The launcher is not installed here."""


def torchrun(case: Case) -> str:
    """torchrun's parser reads its options from `PET_*`."""
    from torch.distributed.run import get_args_parser

    found = get_args_parser().parse_args(["train.py"])
    wanted = {
        name: case["env"][f"PET_{name.upper()}"] for name in ("nnodes", "nproc_per_node", "node_rank", "master_addr")
    }
    read = {name: str(getattr(found, name)) for name in wanted}
    return "" if read == wanted else f"it understood {read}"


def torchtitan(case: Case) -> str:
    """Its configuration manager, with the beginning of the command line that its version needs."""
    version = _version("torchtitan")
    from torchtitan.config import ConfigManager

    start = ["--module=llama3", "--config=llama3_debugmodel"] if version >= (0, 3) else ["--model.name=llama3"]
    ConfigManager().parse_args([*start, *case["args"]["module" if version >= (0, 3) else "plain"]])
    return ""


def megatron(case: Case) -> str:
    """Its argument parser and all of its rules, as for a Hopper GPU."""
    import typing

    import typing_extensions

    # Megatron-LM needs Python 3.12 for this one name alone.
    typing.override = typing_extensions.override  # type: ignore[attr-defined, unused-ignore]
    import torch

    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    torch.cuda.get_device_properties = lambda *_, **__: types.SimpleNamespace(name="H100", major=9, minor=0)
    try:
        from megatron.training.arguments import parse_args, validate_args
    except ModuleNotFoundError as error:
        raise Absent(f"Megatron-LM ({error}): it is no package, name a checkout with --megatron") from error
    os.environ |= {"WORLD_SIZE": str(case["gpus"]), "RANK": "0"}
    experts = ["--num-experts", "8"] if case["experts"] else []
    sys.argv = ["pretrain_gpt.py", *SHAPE, *experts, *case["args"]["plain"]]
    validate_args(parse_args())
    return ""


def deepspeed(case: Case) -> str:
    """Its options, and the rules of its JSON, for as many ranks as it will count."""
    _version("deepspeed")
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed as framework
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    framework.add_config_arguments(argparse.ArgumentParser()).parse_args(case["args"]["plain"])
    comm.get_rank, comm.get_world_size = (lambda *_, **__: 0), (lambda *_, **__: case["gpus"])
    # A PipelineModule, or whoever divides sequences, tells it the data ranks; else all ranks are taken for some.
    told = types.SimpleNamespace(get_data_parallel_world_size=lambda: case["data"])
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(case["deepspeed_config"])
        file.flush()
        found = DeepSpeedConfig(file.name, mpu=told if case["divided"] else None)
    batches = found.train_micro_batch_size_per_gpu * found.gradient_accumulation_steps * case["data"]
    return "" if batches == case["global_batch"] else f"it understood a global batch of {batches}"


LAUNCHERS: dict[str, Callable[[Case], str]] = {
    "Torchrun": torchrun,
    "Torchtitan": torchtitan,
    "Megatron": megatron,
    "DeepSpeed": deepspeed,
}


def _version(name: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in importlib.metadata.version(name).split(".")[:2])
    except importlib.metadata.PackageNotFoundError as error:
        raise Absent(f"{name} is not installed") from error


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before, arguments = dict(os.environ), sys.argv
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        sys.argv = arguments


def probe(case: Case) -> dict[str, Any]:
    """What the launcher of one case says to it."""
    said = io.StringIO()
    verdict: dict[str, Any] = {"launcher": case["launcher"], "name": case["name"], "absent": "", "refused": ""}
    try:
        with _environment(case["env"]), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            verdict["refused"] = LAUNCHERS[case["launcher"]](case)
    except Absent as absent:
        verdict["absent"] = str(absent)
    except SystemExit as ended:
        verdict["refused"] = " ".join(said.getvalue().split())[-600:] or f"it ended with {ended.code}"
    except Exception as error:  # noqa: BLE001 - whatever a launcher raises, it does not take the flags
        verdict["refused"] = f"{type(error).__name__}: {error}"
    return verdict


def versions() -> dict[str, str]:
    """Of what is installed here."""
    found = {}
    for name in ("torch", "torchtitan", "deepspeed"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    if asked := sys.modules.get("megatron.core.package_info"):
        found["Megatron-LM"] = asked.__version__
    return found


if __name__ == "__main__":
    cases = json.load(sys.stdin)
    verdicts = [probe(case) for case in cases]
    print(json.dumps({"versions": versions(), "verdicts": verdicts}))
