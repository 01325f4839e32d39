"""What is known beforehand: datasheet facts of GPU products and shapes of well-known models.

The facts are data (`data/gpus.yaml`, `data/models.yaml`, a source with every entry), read once, on first use. A product
that the catalogue lacks is not an error: `estimate` answers with the slowest member of its class, or from the clocks
where they are known, and says so in `GpuSpec.source`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from trimtab_policy.inputs.nearest import nearest
from trimtab_policy.specs import GpuSpec, ModelSpec, Precision

__all__ = [
    "ESTIMATED",
    "Clocks",
    "Product",
    "UnknownGpu",
    "UnknownModel",
    "active_parameters",
    "all_gpus",
    "by_product",
    "estimate",
    "gpu",
    "meant",
    "model",
    "model_names",
    "named",
    "one_of",
    "parameters",
    "parse_product",
    "published_active_parameters",
    "published_parameters",
]

ESTIMATED = "estimated from node labels"
_ESTIMATED_NETWORK = 1.25e9  # 10 Gb/s Ethernet: what any server has
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml takes 30 ms for what takes 300 in Python
_MEMORY_TOLERANCE = 0.1  # labels give what the driver reports or what stands on the box


class UnknownGpu(KeyError):
    """No GPU type of this name in the catalogue."""

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownModel(KeyError):
    """No model preset of this name."""

    def __str__(self) -> str:
        return str(self.args[0])


class Product(Struct, frozen=True):
    """A product label taken apart: GPU Feature Discovery appends how a GPU is shared or cut to its name."""

    name: str
    shared: bool = False
    """Time-sliced or under MPS (`-SHARED`)."""
    mig_profile: str = ""
    """`1g.5gb` and the like where the node's GPUs are cut into equal MIG instances; `INVALID` as GFD writes it."""


class Clocks(Struct, frozen=True):
    """What the driver tells of a GPU besides its memory; 0 where it is not known."""

    units: int = 0
    """Multiprocessors (NVIDIA), compute units (AMD), Xe cores (Intel)."""
    core_hz: float = 0.0
    """Highest clock of the units."""
    memory_hz: float = 0.0
    """Highest clock of the memory as NVML and ROCm SMI report it: two transfers per cycle."""
    bus_bits: int = 0
    """Width of the memory bus."""

    @property
    def unit_hz(self) -> float:
        return self.units * self.core_hz

    @property
    def bandwidth(self) -> float:
        """Of the memory, bytes/s."""
        return 2 * self.memory_hz * self.bus_bits / 8


_NO_CLOCKS = Clocks()


class _GpuEntry(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    vendor: str
    architecture: str
    released: str
    memory_mib: int
    memory_gbps: float
    tflops: dict[Precision, float]
    link_gbps: float
    network_gbps: float
    watts: float
    source: str
    products: tuple[str, ...]
    ambiguous: tuple[str, ...] = ()
    link_domain: int = 0

    def spec(self) -> GpuSpec:
        return GpuSpec(
            name=self.name,
            vendor=self.vendor,
            architecture=self.architecture,
            memory_bytes=self.memory_mib << 20,
            memory_bandwidth=self.memory_gbps * 1e9,
            peak_flops=_flops(self.tflops),
            link_bandwidth=self.link_gbps * 1e9,
            network_bandwidth=self.network_gbps * 1e9,
            power_watts=self.watts,
            link_domain=self.link_domain,
            released=self.released,
            source=self.source,
        )


class _Estimate(Struct, frozen=True, forbid_unknown_fields=True):
    vendor: str
    capability: tuple[int, int]
    architecture: str
    memory_gbps: float
    tflops: dict[Precision, float]
    link_gbps: float
    watts: float
    per_clock: dict[Precision, float]
    geforce: float = 1.0

    def spec(self, name: str, memory_bytes: int, clocks: Clocks) -> GpuSpec:
        known = [ESTIMATED]
        known += ["number and clock of its units"] if clocks.unit_hz else []
        known += ["memory clock and bus width"] if clocks.bandwidth else []
        return GpuSpec(
            name=name,
            vendor=self.vendor,
            architecture=self.architecture,
            memory_bytes=memory_bytes,
            memory_bandwidth=clocks.bandwidth or self.memory_gbps * 1e9,
            peak_flops=self._clocked(name, clocks.unit_hz) if clocks.unit_hz else _flops(self.tflops),
            link_bandwidth=self.link_gbps * 1e9,
            network_bandwidth=_ESTIMATED_NETWORK,
            power_watts=self.watts,
            source=", ".join(known),
        )

    def _clocked(self, name: str, unit_hz: float) -> dict[Precision, float]:
        tensor = self.geforce if "geforce" in name.casefold() else 1.0
        return {
            precision: per_clock * unit_hz * (1.0 if precision is Precision.FP32 else tensor)
            for precision, per_clock in self.per_clock.items()
        }


class _GpuFile(Struct, frozen=True, forbid_unknown_fields=True):
    gpus: tuple[_GpuEntry, ...]
    estimates: tuple[_Estimate, ...]


class _Preset(Struct, frozen=True):
    model: ModelSpec
    published: int
    published_active: int = 0


def all_gpus() -> tuple[GpuSpec, ...]:
    """Every GPU type of the catalogue, in the order of the file."""
    return tuple(_by_name().values())


def is_known(name: str) -> bool:
    """Whether `gpu` knows the name."""
    return _normal(name) in _by_name()


def gpu(name: str) -> GpuSpec:
    """The GPU type of this canonical name (case is ignored).

    Raises UnknownGpu with the nearest names when there is none.
    """
    found = _by_name().get(_normal(name))
    if found is None:
        raise UnknownGpu(_unknown("GPU type", name, (spec.name for spec in all_gpus())))
    return found


def named(name: str) -> tuple[GpuSpec, ...]:
    """The GPU types that a name means (`meant`). Empty where there is none."""
    return tuple(_by_name()[_normal(each)] for each in meant(name, (spec.name for spec in all_gpus())))


def meant(name: str, types: Iterable[str]) -> tuple[str, ...]:
    """Which of these GPU types a name means: the one that is called so (case is ignored), or all of a short name.

    `H100` is every H100, `A100-80GB` those of 80 GB. Empty where there is none.
    """
    by_name = {_normal(each): each for each in types}
    if found := by_name.get(_normal(name)):
        return (found,)
    first, *others = _normal(name).split("-")
    parts = [(each, normal.split("-")) for normal, each in by_name.items()]
    return tuple(each for each, (begins, *more) in parts if begins == first and set(others) <= set(more))


def one_of(name: str, present: Mapping[str, GpuSpec]) -> GpuSpec:
    """The GPU type that a name means: of those of a cluster, else of the catalogue.

    Raises UnknownGpu where it means none, naming the nearest, or several, naming them.
    """
    specs = {spec.name: spec for spec in all_gpus()} | dict(present)
    found = meant(name, specs) or (gpu(name).name,)
    if len(found) > 1:
        found = meant(name, present) or found
    if len(found) > 1:
        raise UnknownGpu(f"{name!r} may be {' or '.join(found)}: name one")
    return specs[found[0]]


def by_product(product: str, memory_bytes: int | None = None) -> GpuSpec | None:
    """The GPU type behind a product name as node labels carry it, sharing and MIG suffixes ignored.

    A name that several products share (`a100`) is resolved by the memory of one GPU, where that leaves just one.
    """
    name = _normal(parse_product(product).name)
    if found := _by_product().get(name):
        return found
    near = [spec for spec in _by_ambiguous().get(name, ()) if _about(memory_bytes, spec.memory_bytes)]
    return near[0] if len(near) == 1 else None


def _about(memory_bytes: int | None, expected: int) -> bool:
    return memory_bytes is not None and abs(memory_bytes / expected - 1) <= _MEMORY_TOLERANCE


def parse_product(label: str) -> Product:
    """Take `NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED` apart into product, MIG profile and sharing.

    Suffixes as written by GPU Feature Discovery (internal/lm/resource.go): `-MIG-<profile>`, then `-SHARED`.
    """
    base, shared = re.subn(r"-SHARED$", "", label.strip(), flags=re.IGNORECASE)
    name, _, profile = base.partition("-MIG-")
    return Product(name=name, shared=bool(shared), mig_profile=profile)


def estimate(
    product: str,
    memory_bytes: int,
    compute_capability: tuple[int, int] | None = None,
    vendor: str = "NVIDIA",
    clocks: Clocks = _NO_CLOCKS,
) -> GpuSpec:
    """A cautious guess at a product that the catalogue lacks, under the product's own name.

    `memory_bytes` comes from the node's label; rates are those of the slowest member of the class, i.e. of the CUDA
    compute capability (major, minor), or of the vendor where that is not known. Known clocks say more: the peak is then
    units x clock x FLOPs per clock and unit of the class, the bandwidth memory clock x bus width. `GpuSpec.source`
    names what was used. Raises ValueError without memory: no fit can be judged then.
    """
    if memory_bytes <= 0:
        raise ValueError(f"GPU product {product!r}: memory must be known and positive, got {memory_bytes} bytes")
    known = [row for row in _gpu_file().estimates if row.vendor.casefold() == vendor.casefold()]
    if not known:
        vendors = sorted({row.vendor for row in _gpu_file().estimates})
        raise ValueError(f"GPU product {product!r}: unknown vendor {vendor!r}, expected one of {', '.join(vendors)}")
    capability = compute_capability or (0, 0)
    row = max((row for row in known if row.capability <= capability), key=lambda row: row.capability)
    return row.spec(product, memory_bytes, clocks)


def model(name: str) -> ModelSpec:
    """The preset of this name (case is ignored). Raises UnknownModel with the nearest names when there is none."""
    found = _models().get(name.casefold())
    if found is None:
        raise UnknownModel(_unknown("model preset", name, _models()))
    return found


def parameters(model: ModelSpec) -> int:
    """Number of parameters."""
    from trimtab_policy.perf import model_flops  # arrays, which agents do without: they look up GPUs only

    return round(float(model_flops.parameters(model_flops.of(model))))


def active_parameters(model: ModelSpec) -> int:
    """Number of parameters that one token passes through: all of a dense model."""
    from trimtab_policy.perf import model_flops  # as above

    return round(float(model_flops.active_parameters(model_flops.of(model))))


def model_names() -> tuple[str, ...]:
    """Names of all presets, in the order of the file."""
    return tuple(_models())


def _flops(tflops: dict[Precision, float]) -> dict[Precision, float]:
    return {precision: rate * 1e12 for precision, rate in tflops.items()}


def _normal(name: str) -> str:
    """Labels differ in case and in how blanks and brackets were replaced; the names themselves do not."""
    return re.sub(r"[\s_/()-]+", "-", name).strip("-").casefold()


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = nearest(name, names, _normal)
    hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(names)}"
    return f"unknown {kind} {name!r}: {hint}"


def _load(file: str) -> Any:
    text = (files("trimtab_policy") / "data" / file).read_text(encoding="utf-8")
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - safe: see _LOADER


@cache
def _gpu_file() -> _GpuFile:
    return msgspec.convert(_load("gpus.yaml"), _GpuFile)


@cache
def _by_name() -> dict[str, GpuSpec]:
    return {_normal(entry.name): entry.spec() for entry in _gpu_file().gpus}


@cache
def _by_product() -> dict[str, GpuSpec]:
    specs = _by_name()
    return {_normal(product): specs[_normal(row.name)] for row in _gpu_file().gpus for product in row.products}


@cache
def _by_ambiguous() -> dict[str, tuple[GpuSpec, ...]]:
    sharing: dict[str, tuple[GpuSpec, ...]] = {}
    for row in _gpu_file().gpus:
        for name in map(_normal, row.ambiguous):
            sharing[name] = (*sharing.get(name, ()), gpu(row.name))
    return sharing


@cache
def published_parameters() -> dict[str, int]:
    """Parameter count of every preset as its authors state it; tests hold `parameters` to it."""
    return {name: row.published for name, row in _presets().items()}


@cache
def published_active_parameters() -> dict[str, int]:
    """Of mixture-of-experts presets whose authors state it, the parameters that serve one token."""
    return {name: row.published_active for name, row in _presets().items() if row.published_active}


@cache
def _models() -> dict[str, ModelSpec]:
    return {name: row.model for name, row in _presets().items()}


@cache
def _presets() -> dict[str, _Preset]:
    return {name: _preset(name, row) for name, row in _load("models.yaml").items()}


def _preset(name: str, row: dict[str, Any]) -> _Preset:
    heads = row["attention_heads"]
    defaults = {"name": name, "kv_heads": heads, "head_dim": row["hidden_size"] // heads}
    published = {key: int(row[key]) for key in ("published", "published_active") if key in row}
    shape_of_it = {key: value for key, value in row.items() if key not in published}
    return _Preset(model=msgspec.convert(defaults | shape_of_it, ModelSpec), **published)
