"""What real machines and frameworks reach: the fitted constants of the time model, each with meaning and confidence.

`KINDS` says which constants there are, in what unit, what is believed of each before any measurement, and by what it
varies: by GPU generation, by training software, by low-precision recipe, or not at all. A constant that varies has a
value for the middle of all and a factor (for shares: a shift of log-odds) for each member that was measured. A member
that never was measured thus gets the value of the middle, moved by what is known of it otherwise (`KNOWN`): that is
the rule for GPUs and frameworks without data.

`data/speed.yaml` holds the values that `fit` found, with 80 % intervals; `trimtab perf calibrate` writes such a file
from one's own measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from math import inf, isfinite, log
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from trimtab_policy.inputs import documents
from trimtab_policy.perf.model_flops import Array, Number
from trimtab_policy.specs import GpuSpec

Axis = Literal["generation", "software", "recipe"]
Lookup = Callable[[str], Number]
"""Name of a constant -> its value, or a column of them."""


class ConstantsError(ValueError):
    """A file of constants that cannot be used; the message names file and field."""


class ConstantKind(NamedTuple):
    """One constant: what it is, and what is believed of it beforehand."""

    meaning: str
    prior: float
    spread: float
    """Standard deviation of the belief, of the logarithm (of the log-odds where it is a share)."""
    axis: Axis | None = None
    deviation: float = 0.0
    """Standard deviation of one member around the middle, on the same scale."""
    share: bool = False
    """Between 0 and 1, so that its log-odds are fitted; else its logarithm."""

    def inward(self, value: Number) -> Number:
        """From the scale that is fitted to the constant itself."""
        return 1 / (1 + np.exp(-value)) if self.share else np.exp(value)

    def outward(self, value: float) -> float:
        """From the constant to the scale that is fitted."""
        return log(value / (1 - value)) if self.share else log(value)


KINDS: dict[str, ConstantKind] = {
    "gemm": ConstantKind(
        "share of the matrix peak that large products reach over a step", 0.70, 0.2, "generation", 0.12
    ),
    "power": ConstantKind("exponent of that share in watts per FLOP/s, within a generation", 0.6, 0.3),
    "skill": ConstantKind(
        "speed of the framework's products and attention, 1 the middle of all", 1.0, 0.01, "software", 0.08
    ),
    "fp32": ConstantKind("the same share in FP32, relative to 16 bit (no matrix units: easier to fill)", 1.35, 0.1),
    "low": ConstantKind(
        "the same share in FP8 and FP4, relative to 16 bit, with casts and scaling", 0.9, 0.1, "recipe", 0.15
    ),
    "low_skill": ConstantKind("the framework's part in that, 1 the middle of all", 1.0, 0.01, "software", 0.1),
    "half_width": ConstantKind("smallest dimension at which a product runs at half rate, on an A100", 100.0, 0.7),
    "misalignment": ConstantKind("time a product loses per halving its widths lack to multiples of 128", 0.06, 1.0),
    "grouped": ConstantKind("rate of products that are grouped by expert relative to large ones", 0.8, 0.2),
    "all_to_all": ConstantKind("bandwidth of an all-to-all relative to that of a ring", 0.6, 0.3),
    "odd_heads": ConstantKind("time that unfused scores lose when the width of a head is no multiple of 8", 0.5, 0.7),
    "attention": ConstantKind("rate of fused attention relative to large products", 0.5, 0.4, "generation", 0.2),
    "routing_bytes": ConstantKind(
        "bytes that cross memory per number of a token sent to an expert, there and back, forward and backward",
        30.0,
        0.5,
    ),
    "exponential": ConstantKind("head width whose products take as long as the exponentials of its scores", 40.0, 0.5),
    "score_bytes": ConstantKind(
        "bytes that cross memory per unfused score, forward and backward", 40.0, 0.5, "software", 0.2
    ),
    "logit_bytes": ConstantKind("bytes that cross memory per logit, forward and backward", 24.0, 0.5, "software", 0.3),
    "memory": ConstantKind("share of the memory bandwidth that streaming kernels reach", 0.85, 0.1),
    "passes": ConstantKind("times that stored activations cross memory in a forward pass", 2.0, 0.5, "software", 0.3),
    "launch": ConstantKind("seconds to launch one layer's kernels, forward and backward", 2.0e-3, 0.4, "software", 0.4),
    "tensor_launch": ConstantKind("what tensor parallelism adds to that, as a fraction", 0.1, 0.7, "software", 0.5),
    "captured": ConstantKind("share of that which is left where CUDA graphs launch whole layers", 0.3, 0.7, share=True),
    "expert_launch": ConstantKind(
        "what routing to experts adds to it, as a fraction: sorting, counting, many small products", 0.7, 0.5
    ),
    "contention": ConstantKind(
        "seconds that a layer waits for each rank of its tensor group where stages of a pipeline meet over the network",
        2e-4,
        0.7,
        "software",
        1.5,
    ),
    "far_wait": ConstantKind(
        "seconds that an exchange waits where all paths leave their unit of 256 GPUs",
        3e-3,
        0.7,
        "software",
        2.5,
    ),
    "edge": ConstantKind("how sharply the slower of host and GPU sets the pace of a layer (exponent)", 6.0, 0.5),
    "link": ConstantKind("share of NVLink or xGMI bandwidth that collectives reach", 0.75, 0.15),
    "pcie": ConstantKind("the same share where GPUs meet over PCIe", 0.3, 0.3, "generation", 0.8),
    "network": ConstantKind("share of the network's bandwidth that collectives reach", 0.7, 0.25, "software", 0.15),
    "latency": ConstantKind("seconds to start a collective", 15e-6, 0.5),
    "hop": ConstantKind(
        "seconds that a collective takes more for each further rank of its ring", 2e-6, 0.3, "software", 1.0
    ),
    "link_hop": ConstantKind("the same where all ranks share the link", 2e-6, 0.5),
    "messages": ConstantKind(
        "collectives per layer: 1 where parameters travel layer by layer", 1.0, 0.01, "software", 0.7
    ),
    "tensor_overlap": ConstantKind(
        "share of tensor-parallel traffic hidden behind products", 0.3, 1.0, "software", 1.0, True
    ),
    "data_overlap": ConstantKind(
        "share of the compute time that can hide data traffic", 0.4, 1.0, "software", 1.0, True
    ),
    "gather_overlap": ConstantKind(
        "share of the compute time that can hide gathering of renewed weights", 0.3, 1.0, "software", 1.0, True
    ),
    "unflatten": ConstantKind(
        "seconds to copy one rank's part of a parameter tensor out of the flat buffer that was gathered",
        8e-6,
        0.5,
    ),
    "accumulation_bytes": ConstantKind(
        "bytes that a micro-batch's gradients move per parameter of a GPU", 8.0, 0.5, "software", 0.7
    ),
    "optimizer_bytes": ConstantKind(
        "bytes that the optimizer moves per parameter of its share", 30.0, 0.3, "software", 0.2
    ),
    "step": ConstantKind("seconds of fixed cost a step: data, gradient norm, logging", 0.015, 0.7, "software", 0.5),
    "straggling": ConstantKind("share of the step that each doubling of nodes adds", 0.01, 0.7, "software", 0.3),
    "unfused_experts": ConstantKind(
        "time that routing and grouped products take more where they are not fused and captured, as a fraction",
        0.3,
        0.5,
    ),
    "dequantization": ConstantKind(
        "bytes that cross memory per number of a quantized weight that is brought into the precision of its product",
        10.0,
        0.6,
    ),
    "adapter_launch": ConstantKind(
        "what the adapter of one matrix adds to a layer's launch, as a fraction: dropout, two products, scaling, sum",
        0.05,
        0.5,
    ),
    "host_link": ConstantKind("share of the bandwidth between GPU and host that copies reach", 0.7, 0.7, share=True),
    "host_step": ConstantKind("seconds in which a host steps an AdamW of 1e9 parameters", 0.25, 0.5),
    "youth": ConstantKind("time that software loses on a GPU generation of age 0; fades with the years", 0.3, 0.5),
}

KNOWN: dict[str, dict[str, float]] = {
    # 0.9 x the best product ever measured (MAMF, stas00/ml-engineering), where there is one; else the nearest relative
    "gemm": {
        "Volta": 0.80,
        "Turing": 0.71,
        "Ampere": 1.11,
        "Ada": 0.86,
        "Hopper": 1.03,
        "Blackwell": 0.97,
        "CDNA1": 0.62,
        "CDNA2": 0.66,
        "CDNA3": 0.70,
        "CDNA4": 0.74,
        "Gaudi2": 0.85,
        "Gaudi3": 0.64,
    },
    "launch": {"paxml": 0.2, "paxml-te": 0.2, "maxtext": 0.2},  # one compiled program a step
    # Ten collectives, each from Python, and six products more a layer: 0.9 ms of 2 (`_ColumnLinearAsyncCommunication`).
    "tensor_launch": {"nanotron": 4.5},
    "messages": {"deepspeed-zero3": 12.0, "internevo": 12.0},  # a parameter at a time
}
"""What is known of a member before any measurement: factors of the middle's value."""

CARDS = frozenset({"RTX", "A2", "A10", "A10G", "A16", "A40"})
"""First words of products with graphics memory, which share little but the name with the generation's large GPU."""


class Constant(Struct, frozen=True, forbid_unknown_fields=True):
    """A value with its 80 % interval."""

    value: float
    low: float
    high: float


class Family(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of constant: the middle, and the members that were measured."""

    value: float
    low: float
    high: float
    each: dict[str, Constant] = {}


class StepTimeInterval(Struct, frozen=True, forbid_unknown_fields=True):
    """Half width of the 80 % interval of the logarithm of a step time: what `forecast` adds up."""

    base: float = 0.1
    overhead: float = 0.1
    """Times the share of the step that is not computing."""
    nodes: float = 0.0
    """Times the number of doublings of nodes."""
    experts: float = 0.1
    """Where tokens are routed to experts."""
    unmeasured_generation: float = 0.25
    unmeasured_software: float = 0.15
    """Where the software has no run on this generation."""
    unmeasured_training: float = 0.3
    """Where adapters are trained, or something is kept on the host: no constant was fitted on such runs."""
    scatter: dict[str, float] = {}
    """Software -> what the first four are multiplied by: how much its runs scatter, compared to all; 1 for others."""


class Constants(Struct, frozen=True, eq=False, forbid_unknown_fields=True):
    """All fitted constants. One is equal to itself only, so that what was computed with it can be remembered."""

    families: dict[str, Family]
    interval: StepTimeInterval = StepTimeInterval()
    seen: frozenset[tuple[str, str]] = frozenset()
    """(GPU generation, software) of the runs that they were fitted on."""
    source: str = ""
    """What they were fitted on."""

    def lookup(self, generation: str, software: str, recipe: str) -> Lookup:
        """Values for one GPU generation, software and recipe."""
        keys = {"generation": generation, "software": software, "recipe": recipe}

        def value(name: str) -> float:
            axis = KINDS[name].axis
            return self._value(name, keys[axis] if axis else None)

        return value

    def columns(self, generations: Sequence[str], software: Sequence[str], recipes: Sequence[str]) -> Lookup:
        """Columns of values, one row a run."""
        keys = {"generation": generations, "software": software, "recipe": recipes}

        def column(name: str) -> Array:
            axis = KINDS[name].axis
            if axis is None:
                return np.full(len(generations), self._value(name, None))
            table = {key: self._value(name, key) for key in set(keys[axis])}
            return np.array([table[key] for key in keys[axis]])

        return column

    def measured(self, generation: str) -> bool:
        """Whether the constants were fitted on any run on this GPU generation."""
        return any(generation == known for known, _ in self.seen)

    def _value(self, name: str, member: str | None) -> float:
        family = self.families[name]
        if member is None:
            return family.value
        if member in family.each:
            return family.each[member].value
        return family.value * KNOWN.get(name, {}).get(member, 1.0)

    def save(self, path: Path) -> None:
        """Write the file that `load` reads, with the meaning of every constant beside it."""
        path.write_text(render(self), encoding="utf-8")


def generation(gpu: GpuSpec) -> str:
    """What constants of a GPU vary by: its architecture, and whether it is one of the cards with graphics memory."""
    card = gpu.architecture in ("Ampere", "Blackwell") and gpu.name.split("-")[0] in CARDS
    return f"{gpu.architecture} card" if card else gpu.architecture


def load(path: Path | None = None) -> Constants:
    """Constants of a file; by default those that come with the package.

    Raises ConstantsError when the file cannot be read, lacks a constant or holds an impossible value.
    """
    return _packaged() if path is None else _parse(_read(path), str(path))


def active() -> Constants:
    """The constants that predictions of this process use: the package's, or those of `use`."""
    return _ACTIVE[0] if _ACTIVE else load()


def use(constants: Constants) -> None:
    """Let all predictions of this process use these constants, e.g. of one's own calibration."""
    _ACTIVE[:] = [constants]


_ACTIVE: list[Constants] = []


def beliefs() -> Constants:
    """The constants before any measurement: what a fit starts from."""
    return Constants({name: Family(kind.prior, *_around(kind)) for name, kind in KINDS.items()}, source="beliefs")


def render(constants: Constants) -> str:
    """The YAML text of a file of constants."""
    lines = [f"# {constants.source}", "# [value, 10 %, 90 %]; one line a constant, its members below", "families:"]
    for name, family in constants.families.items():
        lines += [f"  # {KINDS[name].meaning}", f"  {name}:", f"    middle: {_triple(family)}"]
        lines += [f"    {member}: {_triple(one)}" for member, one in sorted(family.each.items())]
    lines += ["# half width of the 80 % interval of log step time", "interval:"]
    *widths, scatter = StepTimeInterval.__struct_fields__
    lines += [f"  {field}: {_number(getattr(constants.interval, field))}" for field in widths]
    scattered = sorted(constants.interval.scatter.items())
    lines += [f"  {scatter}:{'' if scattered else ' {}'}", *(f"    {name}: {_number(by)}" for name, by in scattered)]
    lines += ["# which software was measured on which generation", "seen:"]
    for software in sorted({name for _, name in constants.seen}):
        generations = sorted(generation for generation, name in constants.seen if name == software)
        lines.append(f"  {software}: [{', '.join(generations)}]")
    return "\n".join([*(lines if constants.seen else [*lines[:-1], "seen: {}"]), f"source: {constants.source!r}", ""])


def _triple(one: Constant | Family) -> str:
    return f"[{_number(one.value)}, {_number(one.low)}, {_number(one.high)}]"


def _number(value: float) -> str:
    """Four digits, as YAML 1.1 reads numbers: it takes `2e-06` for a text."""
    digits, e, power = f"{value:.4g}".partition("e")
    return f"{digits}{'' if '.' in digits or not e else '.0'}{e}{power}"


def _around(kind: ConstantKind) -> tuple[float, float]:
    """The 80 % interval of a belief."""
    middle, wide = kind.outward(kind.prior), 1.2816 * kind.spread
    return float(kind.inward(middle - wide)), float(kind.inward(middle + wide))


@cache
def _packaged() -> Constants:
    text = (files("trimtab_policy") / "data" / "speed.yaml").read_text(encoding="utf-8")
    return _parse(text, "data/speed.yaml")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConstantsError(f"{path}: {error}") from error


class _ConstantsFile(Struct, forbid_unknown_fields=True):
    families: dict[str, dict[str, tuple[float, float, float]]]
    interval: StepTimeInterval
    seen: dict[str, list[str]]
    source: str = ""


def _parse(text: str, where: str) -> Constants:
    try:
        file = msgspec.convert(documents.parse(text), _ConstantsFile)
    except ValueError as error:
        raise ConstantsError(f"{where}: {error}") from error
    if missing := sorted(set(KINDS) - set(file.families)):
        raise ConstantsError(f"{where}: no constant {', '.join(missing)}")
    if unknown := sorted(set(file.families) - set(KINDS)):
        raise ConstantsError(f"{where}: unknown constant {', '.join(unknown)}")
    families = {name: _family(name, file.families[name], where) for name in KINDS}
    seen = frozenset((generation, software) for software, known in file.seen.items() for generation in known)
    return Constants(families, file.interval, seen, file.source)


def _family(name: str, members: dict[str, tuple[float, float, float]], where: str) -> Family:
    most = 1.0 if KINDS[name].share else inf
    for member, triple in members.items():
        if not all(isfinite(value) and 0 < value <= most for value in triple):
            raise ConstantsError(f"{where}: families.{name}.{member} must be above 0 and at most {most}: {triple}")
    if "middle" not in members:
        raise ConstantsError(f"{where}: families.{name} has no middle")
    each = {member: Constant(*triple) for member, triple in members.items() if member != "middle"}
    return Family(*members["middle"], each)


def log_factor(name: str, member: str) -> float:
    """What is known of a member beforehand, on the scale that is fitted."""
    factor = KNOWN.get(name, {}).get(member, 1.0)
    return log(factor) if factor != 1.0 else 0.0


def fading(age: Number) -> Number:
    """How much of a generation's youth is left after so many years: e^(-age/1 a), NaN (unknown) for none."""
    return np.nan_to_num(np.exp(-np.maximum(age, 0.0) / YOUTH_YEARS), nan=0.0)


YOUTH_YEARS = 1.0
"""Kernels for Hopper and Blackwell took about two years to come to their best; e-fold of what is missing."""
