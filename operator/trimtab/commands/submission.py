"""The manifest of a job from what somebody typed, and how it gets to the API server: the work of `trimtab submit`."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from trimtab.api.v1alpha1 import Launcher, ParallelMode
from trimtab.errors import UsageError
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import JobObject, Meta
from trimtab.kube.resources import JOBS
from trimtab.names import API_VERSION, JOB_KIND, JOB_PLURAL, TRAINER_CONTAINER
from trimtab.observe.jobs import facts
from trimtab.printable import say
from trimtab.settings import KubeSettings
from trimtab.ui import output
from trimtab.ui.form import Output
from trimtab_policy import catalog
from trimtab_policy.inputs.nearest import did_you_mean

LONGEST_NAME = 40
"""Bytes of the name of a job: its pods and Services have longer ones."""
UNITS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKMBT]?)", re.ASCII)
_RANGE = re.compile(r"(\d{1,6})(?:(?:-|\.\.)(\d{1,6}))?", re.ASCII)
_BY_COMMAND = {
    "torchtitan": Launcher.TORCHTITAN,
    "megatron": Launcher.MEGATRON,
    "pretrain_gpt": Launcher.MEGATRON,
    "deepspeed": Launcher.DEEPSPEED,
}
"""What a word of the command says about the framework."""
_BARE = (Launcher.TORCHRUN, Launcher.CUSTOM)
"""Launchers that hand over degrees by the environment alone: a script that does not read it divides data only."""


E = TypeVar("E", bound=StrEnum)


class Asked(Struct, frozen=True, kw_only=True):
    """The options, as they were typed; empty for what was not."""

    model: str
    image: str
    words: tuple[str, ...]
    gpus: str
    tokens: str
    steps: str
    sequence_length: int
    batch: int
    gpu_types: tuple[str, ...]
    launcher: str
    mode: str
    elastic: bool
    cpus_per_gpu: str
    memory_per_gpu: str
    env: tuple[str, ...]
    mounts: tuple[str, ...]
    queue: str
    priority_class: str
    name: str
    namespace: str


def manifest(asked: Asked) -> dict[str, Any]:
    """The job. Raises UsageError naming the option that is wrong."""
    low, high = gpu_range("--gpus", asked.gpus)
    if asked.elastic and low == high:
        raise UsageError(f"--elastic needs a range of --gpus such as 8-64, not {asked.gpus}")
    launcher = _launcher(asked)
    mode = _choice("--mode", asked.mode, ParallelMode) if asked.mode else None
    if mode is None and launcher in _BARE:
        mode = ParallelMode.DATA
    policy = "Elastic" if asked.elastic else "Fixed" if low == high else ""
    name = asked.name or _name(asked.model)
    spec = _given(
        model={"preset": _preset(asked.model)},
        training={"sequenceLength": asked.sequence_length, "globalBatchSize": asked.batch, **_length(asked)},
        resources=_given(
            gpus={"max": high} if low == high else {"min": low, "max": high},
            gpuTypes=[_gpu_type(each) for each in asked.gpu_types],
            cpusPerGpu=asked.cpus_per_gpu,
            memoryPerGpu=asked.memory_per_gpu,
        ),
        parallelism=_given(mode=mode.value if mode else ""),
        elasticity=_given(policy=policy),
        queue=asked.queue,
        priorityClassName=asked.priority_class,
        launcher=launcher.value,
        template={"spec": _pod(asked)},
    )
    if error := facts(JobObject(Meta(name=name, uid="new"), msgspec.Raw(msgspec.json.encode(spec)))).error:
        raise UsageError(f"the job cannot be: {error}")
    metadata = {"name": name, "namespace": asked.namespace}
    return {"apiVersion": API_VERSION, "kind": JOB_KIND, "metadata": metadata, "spec": spec}


def show(made: Mapping[str, Any], form: Output) -> None:
    """Print the manifest."""
    output.show(Output.JSON if form is Output.JSON else Output.YAML, made, "")


async def create(kube: KubeSettings, made: Mapping[str, Any]) -> None:
    """Create the job; no field is dropped in silence. Raises ApiError."""
    meta = made["metadata"]
    async with await KubeClient.connect(kube) as client:
        await client.create(JOBS.path(meta["namespace"]), made, strict=True, field_manager="trimtab-submit")
    say(f"{JOB_PLURAL.removesuffix('s')}.{API_VERSION.partition('/')[0]}/{meta['name']} created")
    say(f"trimtab explain {meta['namespace']}/{meta['name']} says what becomes of it", error=True)


def gpu_range(option: str, text: str) -> tuple[int, int]:
    """Read `8`, `8-64` or `8..64`. Raises UsageError naming the option."""
    found = _RANGE.fullmatch(text.strip())
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= low <= high:
        raise UsageError(f"{option} {text!r}: write a number of GPUs such as 8, or fewest and most, such as 8-64")
    return low, high


def count(option: str, text: str) -> int:
    """Read `300M`, `2B`, `1.5T`, `1000`. Raises UsageError naming the option."""
    found = _COUNT.fullmatch(text.strip())
    exact = float(found[1]) * UNITS[found[2].replace("K", "k")] if found else 0.0
    if exact < 1:
        raise UsageError(f"{option} {text!r}: write a number of 1 or more such as 1000, 300M, 2B or 1.5T")
    return round(exact)


def _length(asked: Asked) -> dict[str, int]:
    if bool(asked.tokens) == bool(asked.steps):
        raise UsageError("say how long to train: give one of --tokens and --steps")
    return {"tokens": count("--tokens", asked.tokens)} if asked.tokens else {"steps": count("--steps", asked.steps)}


def _preset(model: str) -> str:
    try:
        return catalog.model(model).name
    except catalog.UnknownModel as error:
        raise UsageError(f"--model: {error}") from error


def _gpu_type(name: str) -> str:
    if not catalog.named(name):
        near = did_you_mean(name, [gpu.name for gpu in catalog.all_gpus()])
        raise UsageError(f"--gpu-type: {name!r} is no GPU type that Trimtab knows{near}")
    return name


def _launcher(asked: Asked) -> Launcher:
    if asked.launcher:
        return _choice("--launcher", asked.launcher, Launcher)
    said = " ".join(asked.words).casefold()
    return next((launcher for word, launcher in _BY_COMMAND.items() if word in said), Launcher.TORCHRUN)


def _choice(option: str, text: str, known: type[E]) -> E:
    """A member of an enumeration by its name, in any case."""
    names = {each.value.casefold(): each for each in known}
    if text.casefold() not in names:
        raise UsageError(f"{option} {text!r}: choose one of {', '.join(each.value for each in known)}")
    return names[text.casefold()]


def _name(model: str) -> str:
    """`llama3-8b-3f9a`: of the model, cut and cleaned, with what no other job has."""
    stem = re.sub(r"[^a-z0-9]+", "-", model.lower())[: LONGEST_NAME - 5].strip("-")
    return f"{stem}-{secrets.token_hex(2)}"


def _pod(asked: Asked) -> dict[str, Any]:
    mounts = [_mount(text) for text in asked.mounts]
    claims = list(dict.fromkeys(claim for claim, _ in mounts))
    trainer = _given(
        name=TRAINER_CONTAINER,
        image=asked.image,
        command=list(asked.words),
        env=[_variable(text) for text in asked.env],
        volumeMounts=[{"name": claim, "mountPath": path} for claim, path in mounts],
    )
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    return _given(containers=[trainer], volumes=volumes)


def _mount(text: str) -> tuple[str, str]:
    claim, colon, path = text.partition(":")
    if not (colon and claim and path.startswith("/")):
        raise UsageError(f"--mount {text!r}: write CLAIM:/PATH, such as checkpoints:/checkpoints")
    return claim, path


def _variable(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise UsageError(f"--env {text!r}: write NAME=VALUE")
    return {"name": name, "value": value}


def _given(**fields: Any) -> dict[str, Any]:
    """Those that hold anything."""
    return {name: value for name, value in fields.items() if value not in ("", None, [], {})}
