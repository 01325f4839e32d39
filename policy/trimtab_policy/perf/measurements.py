"""One row of a table of measurements in the model's terms: what its words mean, and what it leaves unsaid.

Tables name GPUs, number formats, sharding and frameworks in many ways; here is the one place that knows them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from math import isfinite
from typing import NamedTuple, TypeVar

import msgspec

from trimtab_policy import catalog
from trimtab_policy.perf import model_flops, plan_arrays
from trimtab_policy.perf.plan_arrays import FULL, NONE, SELECTIVE, Format, Tuning, Work
from trimtab_policy.specs import (
    OTHER,
    Adapters,
    AdapterTargets,
    GpuSpec,
    ModelSpec,
    Offload,
    Optimizer,
    OptimizerOffload,
    Precision,
    Quantization,
)

UNSTATED = -1
"""Of a plan: to be filled in by `measured`, which knows what fits."""


class MeasurementError(ValueError):
    """A table that cannot be read, with file, row and column."""


class Unusable(Exception):
    """Why a row is left out."""


class MeasuredRow(NamedTuple):
    """One run in the model's terms."""

    name: str
    source: str
    group: str
    job: str
    gpu: GpuSpec
    gpus_per_node: float
    precision: Precision
    recipe: str
    software: str
    captured: float
    age: float
    work: Work
    plan: tuple[float, ...]
    seconds: float
    memory: float
    reading: str
    noise: float


class Cells:
    """The cells of one row, by name and as numbers."""

    def __init__(self, cells: Mapping[str, str], where: str) -> None:
        self._cells, self._where = cells, where

    def text(self, name: str) -> str:
        return (self._cells.get(name) or "").strip()

    def word(self, name: str) -> str:
        """In small letters: tables do not agree on them."""
        return self.text(name).casefold()

    def flag(self, name: str, default: bool) -> bool:
        """1, 1.0, true, yes or the opposite. Raises MeasurementError naming row and column."""
        said = self.word(name)
        if said in ("1", "1.0", "true", "yes"):
            return True
        if said in ("0", "0.0", "false", "no"):
            return False
        if said:
            raise MeasurementError(f"{self._where}, column {name}: {said!r} is neither yes nor no")
        return default

    def number(self, name: str, default: float) -> float:
        """A finite number. Raises MeasurementError naming row and column."""
        text = self.text(name)
        try:
            value = float(text) if text else default
        except ValueError:
            value = float("nan")
        if not isfinite(value) or value < 0:
            raise MeasurementError(f"{self._where}, column {name}: {text!r} is no number from 0 on")
        return value

    def noted(self, name: str) -> int:
        """A whole number of a column of its own, or of the notes, which hold `arch: name=4 other=2`; 0 for none.

        Raises MeasurementError naming row and column.
        """
        if self.text(name):
            return int(self.number(name, 0))
        _, _, noted = self.text("notes").rpartition("arch:")
        found = re.search(rf"(?:^|\s){name}=(\d+)", noted)
        return int(found[1]) if found else 0

    def bad(self, name: str, why: str) -> MeasurementError:
        """An error that names row and column."""
        return MeasurementError(f"{self._where}, column {name}: {self.text(name)!r} {why}")

    def count(self, name: str, default: float | None = None) -> int:
        """A whole number from 1 on. Raises Unusable when it is absent and has no default."""
        if not self.text(name) and default is None:
            raise Unusable(f"{name} is not stated")
        value = self.number(name, default or 1)
        if value != int(value) or value < 1:
            raise MeasurementError(f"{self._where}, column {name}: {self.text(name)!r} is no whole number from 1 on")
        return int(value)


def read_rows(name: str, cells: Cells, *, timed: bool = True) -> MeasuredRow:
    """The run that a row tells of. Raises Unusable where it tells too little, MeasurementError for a bad cell.

    `timed`: a row without a step time tells too little; else its step time is NaN.
    """
    if not cells.flag("usable_dense", default=True):
        raise Unusable(cells.text("exclude_reason") or "marked as not usable")
    gpu, precision, recipe = _gpu(cells), _precision(cells), _recipe(cells.text("precision").lower())
    if recipe == "nvfp4":
        gpu = _in_fp4(gpu)
    if precision not in gpu.peak_flops:
        precision = _nearest(gpu, precision)
    model = _model(cells)
    sequence, batch = cells.count("seq_len"), cells.count("global_batch")
    total = cells.count("n_gpus")
    plan = _plan(cells, total, batch)
    software = software_of(cells.text("framework"), cells.text("notes"), cells.text("precision"))
    form = _format(cells, precision, software)
    tuning = _tuning(cells, form, software)
    work = Work(model_flops.of(model), sequence, batch, form, tuning)
    seconds, date = _seconds(cells, sequence * batch, total, timed), _year(cells.text("date"))
    shaped = (model.layers, model.hidden_size, model.attention_heads, model.kv_heads, model.ffn_hidden_size)
    job: tuple[object, ...] = (gpu.name, *shaped, model.vocab_size, sequence, batch, total, precision, recipe, software)
    job += tuning if tuning.unusual else ()
    return MeasuredRow(
        name=name,
        source=cells.text("source_kind"),
        group=cells.text("group") or f"{model.hidden_size}|{model.layers}|{gpu.architecture}",
        job="|".join(map(str, (cells.text("source_kind"), *job))),
        gpu=gpu,
        gpus_per_node=min(cells.count("gpus_per_node", 8), total),
        precision=precision,
        recipe=recipe,
        software=software,
        captured=float(cells.flag("cuda_graphs", default=_captures(cells, date))),
        age=date - _announced(gpu.architecture),
        work=work,
        plan=plan,
        seconds=seconds,
        memory=cells.number("mem_gb_per_gpu", 0) * 1e9 or float("nan"),
        reading=cells.word("mem_reading") or "process",
        noise=cells.number("noise_pct", 0) / 100,
    )


_DATES = (  # a month, a release named after one, a year
    (re.compile(r"(20\d\d)-(0[1-9]|1[0-2])"), 0),
    (re.compile(r"(?:v|rel )(\d\d)\.(\d\d)"), 2000),
    (re.compile(r"(20\d\d)()"), 0),
)


def _year(date: str) -> float:
    """A date as tables state it, in years; NaN where there is none."""
    for pattern, century in _DATES:
        if found := pattern.match(date):
            return century + int(found[1]) + (int(found[2] or 6) - 0.5) / 12
    return float("nan")


_GRAPHS_SINCE = _year("rel 26.06")
"""When Megatron-Bridge's recipes began to capture whole layers, experts included."""


def _captures(cells: Cells, date: float) -> bool:
    """Whether CUDA graphs launch whole layers, where the row does not say: in MLPerf's submissions, which are tuned to
    the limit, and in Megatron-Bridge's recipes since its release 26.06.
    """
    recipe = cells.text("framework").startswith("Megatron-Bridge") and date >= _GRAPHS_SINCE
    return recipe or (cells.text("source_kind") == "mlperf" and "NeMo" in cells.text("framework"))


def _seconds(cells: Cells, tokens: int, gpus: int, timed: bool) -> float:
    """Measured step time, as stated or from the throughput."""
    for column in ("d_step_time_s", "step_time_s"):
        if stated := cells.number(column, 0):
            return stated
    if rate := cells.number("tokens_per_s_per_gpu", 0):
        return tokens / (rate * gpus)
    if not timed:
        return float("nan")
    raise Unusable("neither step time nor tokens per second")


# --- GPUs -----------------------------------------------------------------------------------------------------------
_GPUS = {
    "H100-SXM-96GB-HBM2E-500W": "H100-SXM5-96GB-500W",
    "RTX2080TI-11GB": "RTX-2080-Ti",
    "RTX3090-24GB": "RTX-3090",
    "TITANRTX-24GB": "TITAN-RTX",
}
"""Names that tables of measurements use -> those of the catalogue, where `_alike` would not find them."""

_CLUSTERS = {  # source -> GB/s per GPU and direction (link, network), where the table is silent and the source is not
    "bigscience-A100": (100.0, 6.25),  # Jean Zay: 4 NVLinks a GPU, 4 x Omni-Path 100 Gb/s for 8 GPUs
}


def _gpu(cells: Cells) -> GpuSpec:
    """The GPU of a row; of a mixture the one that everybody waits for, figure by figure."""
    if not cells.text("gpu_type"):
        raise Unusable("gpu_type is not stated")
    parts = [_one_gpu(part) for part in cells.text("gpu_type").split("+") if part.strip()]
    gpu = parts[0] if len(parts) == 1 else _slowest(parts)
    link, network = _CLUSTERS.get(cells.text("source_kind"), (0.0, 0.0))
    link = link * 1e9 or gpu.link_bandwidth
    network = cells.number("inter_bw_GBps", network) * 1e9 or gpu.network_bandwidth
    return msgspec.structs.replace(gpu, link_bandwidth=link, network_bandwidth=network)


@lru_cache(maxsize=256)
def _one_gpu(name: str) -> GpuSpec:
    known = _GPUS.get(name.strip().upper(), name.strip())
    try:
        return catalog.gpu(known)
    except catalog.UnknownGpu as error:
        if found := catalog.by_product(known) or _alike(known):
            return found
        raise Unusable(str(error)) from None


def _alike(name: str) -> GpuSpec | None:
    """The product of the same model, form and memory, more or less: `A100-SXM-80GB`, `B200-SXM`, `MI300X-192GB`."""
    model, *rest = name.upper().split("-")
    family = [gpu for gpu in catalog.all_gpus() if gpu.name.upper().split("-")[0] == model]
    for form in ("SXM", "PCIE", "NVL"):
        if any(part.startswith(form) for part in rest):
            family = [gpu for gpu in family if form in gpu.name.upper()] or family
    stated = next((float(part[:-2]) for part in rest if re.fullmatch(r"\d+GB", part)), None)
    # A table that names no form means the one that clusters are built of.
    family.sort(key=lambda gpu: (abs(gpu.memory_bytes / 1e9 - stated) // 8 if stated else 0.0, "SXM" not in gpu.name))
    return family[0] if family else None


def _slowest(gpus: Sequence[GpuSpec]) -> GpuSpec:
    formats = set.intersection(*(set(gpu.peak_flops) for gpu in gpus))
    slowest = min(gpus, key=lambda gpu: gpu.peak_flops.get(Precision.FP16, 0.0))
    return msgspec.structs.replace(
        slowest,
        name="+".join(gpu.name for gpu in gpus),
        memory_bytes=min(gpu.memory_bytes for gpu in gpus),
        memory_bandwidth=min(gpu.memory_bandwidth for gpu in gpus),
        peak_flops={form: min(gpu.peak_flops[form] for gpu in gpus) for form in formats},
        link_bandwidth=min(gpu.link_bandwidth for gpu in gpus),
        network_bandwidth=min(gpu.network_bandwidth for gpu in gpus),
    )


@cache
def _announced(architecture: str) -> float:
    """When the first GPU of a generation was announced, in years; NaN when it is not known."""
    months = [gpu.released for gpu in catalog.all_gpus() if gpu.architecture == architecture and gpu.released]
    return _year(min(months)) if months else float("nan")


# --- formats --------------------------------------------------------------------------------------------------------
def _precision(cells: Cells) -> Precision:
    text = cells.text("precision").lower()
    if "fp8" in text or "fp4" in text:
        return Precision.FP8
    if text.startswith("fp32"):
        return Precision.FP32
    return Precision.FP16 if text.startswith("fp16") else Precision.BF16


def _recipe(precision: str) -> str:
    for word in ("nvfp4", "mxfp8", "rowwise", "fp8"):
        if word in precision:
            return "fp8-rowwise" if word == "rowwise" else word
    return ""


_FP4_OVER_FP8 = {"GB300-288GB": 3.0, "B300-SXM-288GB": 3.0}
"""Dense peak of FP4 over that of FP8 (NVIDIA Blackwell Ultra datasheet); 2 on other Blackwells."""


def _in_fp4(gpu: GpuSpec) -> GpuSpec:
    """The GPU with the FP4 peak in place of FP8's: FP4 is no precision that jobs can ask for yet."""
    if Precision.FP8 not in gpu.peak_flops or gpu.architecture != "Blackwell":
        raise Unusable(f"{gpu.name} has no FP4")
    peak = gpu.peak_flops[Precision.FP8] * _FP4_OVER_FP8.get(gpu.name, 2.0)
    return msgspec.structs.replace(gpu, peak_flops={**gpu.peak_flops, Precision.FP8: peak})


def _nearest(gpu: GpuSpec, precision: Precision) -> Precision:
    """What a card without the format would run."""
    if precision is Precision.BF16 and Precision.FP16 in gpu.peak_flops:
        return Precision.FP16
    raise Unusable(f"{gpu.name} has no {precision}")


def _format(cells: Cells, precision: Precision, software: str) -> plan_arrays.Format:
    """Bytes per number as the framework holds them, where it differs from Megatron-LM's usual mixed precision."""
    form = plan_arrays.format_of(precision, _named(cells, "optimizer", Optimizer, Optimizer.ADAMW))
    if software in _ALL_IN_16_BIT:
        return form._replace(
            gradient=2, master=0, moments=min(4, form.moments), table_moments=min(4, form.moments), wire=2
        )
    if software in ("peft", "qwen"):  # adapters in fp32 beside a model in 16 bit
        return form._replace(weight=4, gradient=4, master=0)
    if "PURE" in cells.text("precision"):  # Composer: reductions in 16 bit as well
        return form._replace(wire=2)
    if precision in (Precision.BF16, Precision.FP8):
        if software.startswith("megatron-deepspeed"):  # a 16-bit gradient next to the fp32 sum
            return form._replace(gradient=6)
        if software.startswith("fsdp"):  # fms-fsdp: reductions in bf16
            return form._replace(wire=2)
        if software == "internevo":
            return form._replace(gradient=2, master=8, wire=2)
        if software == "megatron-core":  # NeMo: gradients kept and reduced in 16 bit
            return form._replace(gradient=2, wire=2, weight=2)
    return form


_ALL_IN_16_BIT = frozenset({"torchtune", "litgpt", "fsdp-qlora", "qlora"})
"""Frameworks that keep weights, gradients and moments of AdamW in 16 bit, without a master copy."""

Name = TypeVar("Name", bound=StrEnum)


def _named(cells: Cells, column: str, kind: type[Name], default: Name) -> Name:
    """A cell that holds one of these names, in small or capital letters. Raises MeasurementError for any other."""
    known = {name.value.casefold(): name for name in kind}
    word = cells.word(column)
    if word and word not in known:
        raise cells.bad(column, f"is none of {', '.join(name.value for name in kind)}")
    return known[word] if word else default


def _tuning(cells: Cells, form: Format, software: str) -> Tuning:
    """What is trained and what the host keeps: all weights, and nothing, unless the row says otherwise."""
    rank = int(cells.number("lora_rank", 0))
    places = cells.word("offload").split()
    if unknown := set(places) - {"optimizer", "paged", "weights", "activations"}:
        raise cells.bad("offload", f"has {', '.join(sorted(unknown))}: use optimizer, paged, weights, activations")
    optimizer = OptimizerOffload.HOST if "optimizer" in places else OptimizerOffload.NONE
    offload = Offload(
        OptimizerOffload.PAGED if "paged" in places else optimizer, "weights" in places, "activations" in places
    )
    if not rank:
        return plan_arrays.tuning_of(form, offload=offload)
    adapters = Adapters(
        rank,
        _named(cells, "lora_targets", AdapterTargets, AdapterTargets.ALL_LINEAR),
        _named(cells, "quantization", Quantization, Quantization.NONE),
    )
    found = plan_arrays.tuning_of(form, adapters, offload)
    # prepare_model_for_kbit_training of PEFT brings all that is not quantized into fp32, but for models from GPTQ.
    if software == "peft" and found.quantized:
        return found._replace(outside=4.0)
    # torchao's tensors are sharded with their scales.
    return found._replace(scales=0.0) if software == "torchtune" else found


# --- model and plan -------------------------------------------------------------------------------------------------
ARCHITECTURE = (
    *("head_dim", "shared_experts", "dense_layers", "dense_ffn_hidden"),
    *("query_rank", "kv_rank", "rope_head_dim", "value_head_dim"),
)
"""Columns for what the others cannot say of a model; a row may have them in its notes instead (`Cells.noted`)."""


def _model(cells: Cells) -> ModelSpec:
    hidden, heads = cells.count("hidden"), cells.count("heads")
    head, shared, dense, dense_ffn, *latent = (cells.noted(name) for name in ARCHITECTURE)
    query_rank, kv_rank, rope_head, value_head = latent
    return ModelSpec(
        name=cells.text("model"),
        layers=cells.count("layers"),
        hidden_size=hidden,
        attention_heads=heads,
        kv_heads=cells.count("kv_heads", heads),
        head_dim=head or max(1, hidden // heads),
        ffn_hidden_size=cells.count("ffn_hidden", 4 * hidden),
        vocab_size=cells.count("vocab", 51200),
        gated_ffn=cells.flag("glu", default=False),
        tied_embeddings=cells.flag("tied_emb", default=False),
        experts=cells.count("n_experts") if cells.text("n_experts") else 0,
        experts_per_token=cells.count("topk") if cells.text("n_experts") else 0,
        shared_experts=shared,
        dense_layers=dense,
        dense_ffn_hidden_size=dense_ffn,
        query_rank=query_rank,
        kv_rank=kv_rank,
        rope_head_dim=rope_head,
        value_head_dim=value_head,
    )


_RECOMPUTE = (("selective", SELECTIVE), ("full", FULL), ("none", NONE))


def _plan(cells: Cells, total: int, batch: int) -> tuple[float, ...]:
    """Columns of `Plans`, with what is not stated filled in as the framework would."""
    t, p, c, e = (cells.count(name, 1) for name in ("tp", "pp", "cp", "ep"))
    if total % (t * p * c):
        raise Unusable(f"tp x pp x cp = {t * p * c} does not divide {total} GPUs")
    data = cells.count("dp", total // (t * p * c))
    if data * t * p * c != total:
        raise Unusable(f"dp x tp x pp x cp = {data * t * p * c}, but {total} GPUs")
    micro = cells.count("micro_batch", 1) if cells.text("micro_batch") else UNSTATED
    if micro * data > batch:
        raise Unusable(f"micro_batch {micro} on dp = {data} ranks is more than the global batch of {batch}")
    stage, shard = _sharding(cells.word("zero_or_fsdp"), data * c)
    again = next((code for word, code in _RECOMPUTE if cells.word("act_recompute").startswith(word)), UNSTATED)
    sequence_parallel = cells.flag("sp", default=True)
    interleaves = software_of(cells.text("framework")) == "megatron-core" and p > 1
    chunks = cells.count("vpp", max(1, -(-cells.count("layers") // p)) if interleaves else 1)
    return tuple(map(float, (data, t, p, chunks, c, e, micro, stage, shard, again, sequence_parallel)))


_STAGES = (  # the first pattern that a name matches
    (r"zero-?2|grad_op", 2),
    (r"full_shard|fsdp|hsdp|zero-?3", 3),
    (r"zero-?1|dist\w*[- ]optim|not stated", 1),
    (r"^ddp|^none$|^$|zero-?0", 0),
)


def _sharding(name: str, copies: int) -> tuple[int, int]:
    """ZeRO stage and the ranks that share one copy (0: all) behind the many names of it, in small letters."""
    stage = next((stage for pattern, stage in _STAGES if re.search(pattern, name)), None)
    if stage is None:
        raise Unusable(f"zero_or_fsdp {name!r} is no way of sharding that is known")
    inner = re.search(r"hsdp-(\d+)|intra-node (\d+)", name)
    shard = int(next(filter(None, inner.groups()))) if inner else (8 if name == "hsdp" else 0)
    return stage, 0 if shard >= copies else shard


# --- software -------------------------------------------------------------------------------------------------------
_SOFTWARE = (  # the first pattern that framework, notes and precision match
    (r"DeepSpeed ZeRO-3", "deepspeed-zero3"),
    (r"Sailor", "sailor"),
    (r"nanotron", "nanotron"),
    (r"Paddle", "paddlenlp"),
    (r"Habana", "megatron-habana"),
    (r"DeepSpeed \(HF", "deepspeed-hf"),
    (r"Megatron-DeepSpeed \(flash", "megatron-deepspeed-flash"),
    (r"FlagScale|Pai-Megatron", "megatron-core-fork"),
    (r"torchtune", "torchtune"),
    (r"^lit-?gpt", "litgpt"),
    (r"fsdp_qlora", "fsdp-qlora"),
    (r"^PEFT.*Qwen", "qwen"),
    (r"^PEFT \(QLoRA", "qlora"),
    (r"^PEFT", "peft"),
    (r"Megatron-DeepSpeed 1F1B", "megatron-deepspeed-1f1b"),
    (r"Megatron-DeepSpeed|^see notes", "megatron-deepspeed"),
    (r"^Megatron-LM", "megatron-lm"),
    (r"^NeMo-Megatron", "nemo-megatron"),
    (r"Megatron-Core|Megatron-Bridge|^NeMo|Meta production", "megatron-core"),
    (r"Composer", "composer"),
    (r"^PyTorch FSDP.*torch\.compile", "fsdp-compiled"),
    (r"PyTorch FSDP", "fsdp"),
    (r"torchtitan\|eager", "torchtitan-eager"),
    (r"torchtitan\|.*async ?TP", "torchtitan-async"),
    (r"torchtitan", "torchtitan"),
    (r"InternEvo", "internevo"),
    (r"MaxText", "maxtext"),
    (r"(JAX|Paxml).*\(TE\)", "paxml-te"),
    (r"JAX|Paxml", "paxml"),
)


def software_of(framework: str, notes: str = "", precision: str = "") -> str:
    """The generation of training software that a framework's name belongs to."""
    said = f"{framework}|{notes}|{precision}"
    return next((name for pattern, name in _SOFTWARE if re.search(pattern, said, re.IGNORECASE)), OTHER)
