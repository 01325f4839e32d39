"""Profiles of the fake backend: a node's GPUs, what they do, and what goes wrong, in a few lines of YAML.

    product: NVIDIA-H100-80GB-HBM3     # as the vendor's label names it; memory, power and links are the catalogue's
    gpus: 8
    seed: 1
    load: {utilization: 0.95, memory: 0.8, noise: 0.03, correlation: 0.6}
    running:                           # what runs here, as far as nobody else says so
      - {pod: team-a/train-0, gpus: 4}
    faults:                            # `at` and `seconds` count from when the agent first saw the line
      - {kind: xid, gpu: 3, code: 79, at: 20}
      - {kind: thermalThrottle, gpu: [4, 5], seconds: 60}

    kind               what the GPU does then
    nan                numbers cannot be read (`fields`; all by default)
    garbage            numbers are nonsense (`fields`, `value`)
    stuck              numbers stay as they were (`fields`)
    xid                the driver logs the XID `code`; 48, 94, 95 count as ECC errors, 63 remaps a row, 79 loses the GPU
    lost               it has fallen off the bus
    uncorrectableEcc   memory errors that could not be corrected
    rowRemapFailure    a row could not be remapped
    thermalThrottle    it is too hot: the clock falls, the driver says why
    slow               the clock is `factor` of what it should be, and the driver says nothing
    foreignLoad        somebody computes on it without a pod
    driverError        (whole node) no GPU can be read
    hang               (whole node) the driver does not answer

Mistakes are errors that name file and field. A file that changes is read again while the agent runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from trimtab.agent.backend import BackendError
from trimtab.agent.plausible import BOUNDS
from trimtab_policy import catalog
from trimtab_policy.inputs import documents
from trimtab_policy.inputs.documents import NotYaml
from trimtab_policy.specs import GpuSpec

Share = Annotated[float, Meta(ge=0, le=1)]
Number = Annotated[int, Meta(ge=0, le=63)]
Seconds = Annotated[float, Meta(ge=0)]

FaultName = Literal[
    "nan", "garbage", "stuck", "xid", "lost", "uncorrectableEcc", "rowRemapFailure", "thermalThrottle", "slow",
    "foreignLoad", "driverError", "hang",
]  # fmt: skip


class FakeLoad(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What a GPU does while something runs on it."""

    utilization: Share = 0.95
    """Mean of the SM utilisation."""
    memory: Share = 0.8
    """Part of the memory in use."""
    noise: Share = 0.03
    """Standard deviation of the utilisation."""
    correlation: Share = 0.6
    """Of the noise between the GPUs of a node: they wait for one another."""
    noise_seconds: Annotated[float, Meta(gt=0)] = 15.0
    """Time constant of the noise."""


class RunningPod(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A pod (`namespace/name`), and how many GPUs it has."""

    pod: Annotated[str, Meta(pattern="^[^/]+/[^/]+$")]
    gpus: Annotated[int, Meta(ge=1, le=64)]


class Injected(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Something that goes wrong; see the module's docstring."""

    kind: FaultName
    gpu: Number | tuple[Number, ...] = 0
    at: Seconds = 0.0
    seconds: Annotated[float, Meta(gt=0)] | None = None
    """How long; without end by default."""
    code: Annotated[int, Meta(ge=0, le=100_000)] = 79
    factor: Annotated[float, Meta(gt=0, le=1)] = 0.5
    fields: tuple[str, ...] = ()
    """In the words of `backend.Gpu`, e.g. sm_utilization."""
    value: float = 1e9

    @property
    def gpus(self) -> tuple[int, ...]:
        """Numbers of the GPUs that it happens to."""
        return (self.gpu,) if isinstance(self.gpu, int) else self.gpu


class FakeNode(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The GPUs of one node."""

    product: str
    gpus: Annotated[int, Meta(ge=1, le=64)] = 8
    seed: int = 0
    driver: str = "580.95.05"
    ambient: Annotated[float, Meta(ge=-40, le=60)] = 27.0
    """Temperature of the air, in degrees Celsius."""
    clock_mhz: Annotated[float, Meta(gt=0)] = 1980.0
    """Highest clock of the SMs."""
    memory_clock_mhz: Annotated[float, Meta(gt=0)] = 2619.0
    nvlinks: Annotated[int, Meta(ge=0, le=64)] = 0
    load: FakeLoad = FakeLoad()
    running: tuple[RunningPod, ...] = ()
    faults: tuple[Injected, ...] = ()

    @property
    def spec(self) -> GpuSpec:
        """The product's entry in the catalogue. Raises BackendError when there is none."""
        if (found := catalog.by_product(self.product)) is None:
            where = "take the value of a product label from policy/trimtab_policy/data/gpus.yaml"
            raise BackendError(f"unknown GPU product {self.product!r}: {where}")
        return found


def load_profile(path: Path) -> FakeNode:
    """Read and check a profile. Raises BackendError that names file and field."""
    try:
        profile = msgspec.convert(documents.parse(path.read_bytes()), FakeNode)
    except (OSError, NotYaml) as error:
        raise BackendError(f"cannot read the profile {path}: {error}") from error
    except msgspec.ValidationError as error:
        raise BackendError(f"{path}: {_explain(str(error))}") from error
    for problem in (*_unknown_product(profile), *_problems(profile.faults, profile.gpus)):
        raise BackendError(f"{path}: {problem}")
    return profile


def parse_faults(text: str, gpus: int) -> tuple[Injected, ...]:
    """A YAML list of faults, as in a profile. Raises ValueError that names the field."""
    try:
        faults = msgspec.convert(documents.parse(text) or [], tuple[Injected, ...])
    except NotYaml as error:
        raise ValueError(f"no YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise ValueError(_explain(str(error))) from error
    for problem in _problems(faults, gpus):
        raise ValueError(problem)
    return faults


def _unknown_product(profile: FakeNode) -> list[str]:
    try:
        _ = profile.spec
    except BackendError as error:
        return [f"field product: {error}"]
    return []


def _problems(faults: tuple[Injected, ...], gpus: int) -> list[str]:
    beyond = [
        f"field faults[{i}].gpu: there is no GPU {gpu}: they are numbered from 0 to {gpus - 1}"
        for i, fault in enumerate(faults)
        for gpu in fault.gpus
        if gpu >= gpus
    ]
    unknown = [
        f"field faults[{i}].fields: unknown reading {field!r}; known are {', '.join(BOUNDS)}"
        for i, fault in enumerate(faults)
        for field in fault.fields
        if field not in BOUNDS
    ]
    return beyond + unknown


def _explain(message: str) -> str:
    """msgspec says `Expected ... - at `$.faults[1].kind``."""
    what, _, where = message.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    return f"field {path}: {what}" if path else what
