"""Plans for a job: what fits a GPU type, what is fastest on a gang, and what no other plan beats in every respect.

`plan_space` lists the ways to divide the job, `search` finds the fastest of them; here they become values. A plan fits
when `Memory.required` is at most the memory that the driver reports for the card. Required is what the formulas say is
allocated plus `memory.RESERVE` against fragmentation plus `memory.FRAMEWORK_BYTES`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, Struct

from trimtab_policy.perf import constants, hardware, memory, pareto, plan_space, search, speed, uncertainty
from trimtab_policy.perf.constants import Constants
from trimtab_policy.perf.memo import BoundedMemo
from trimtab_policy.perf.plan_arrays import columns, work
from trimtab_policy.perf.plan_space import ANYHOW, Gang, Linkage
from trimtab_policy.perf.search import PlanChoice, PlanTable
from trimtab_policy.specs import GpuSpec, ModelSpec, ParallelPlan, Prediction, Recompute, TrainingSpec
from trimtab_policy.types import Bounds, Requirements

_GIB = float(1 << 30)
MOST_TRIED_GPUS = 4096
"""For a job that fits on none of what it allows: how many would hold it is not sought beyond this."""
MOST_OPTIONS = 200_000
"""That each of two memories keeps, of all jobs together: some 100 MB."""


MOST_REASONS = 1 << 20
"""Characters of sentences that are remembered."""


class InvalidPlan(ValueError):
    """A plan that no launcher would start for this job: the message names the rule."""


class Option(Struct, frozen=True):
    """One shape of gang with a plan for it."""

    gpus: int
    nodes: int
    gpus_per_node: int
    plan: ParallelPlan
    prediction: Prediction
    linked: int = 0
    """GPUs of the gang that share a link at least, where link domains span nodes: what it is predicted for. 0: it is
    all the same how nodes are linked."""
    linkage: Linkage = ANYHOW
    """How it has to lie for that (`plan_space.linkage`)."""


class Offer(NamedTuple):
    """A GPU type, and how many of them its nodes have."""

    gpu: GpuSpec
    node_gpus: int


Found = tuple[tuple[Option, ...], ...]
"""The options of each of the offers."""
_Key = tuple[ModelSpec, TrainingSpec, Requirements, tuple[Offer, ...], Constants]
"""All that a search depends on; the last is what times follow from."""


def options_by_type(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, offers: tuple[Offer, ...]
) -> Found:
    """For each offer, and every gang shape that the requirements allow on it, the fastest plan that fits.

    By GPUs, then by speed, of equally fast ones that on fewer nodes first; `plan_space.gangs` says which shapes there
    are. Where link domains of a type span nodes a shape is there once for each share of it that may lie in one
    (`plan_space.link_shares`), if that makes it faster. Empty where nothing fits: `why_none` says why. Raises
    ValueError for a node without GPUs. Searches are remembered; `forget` ends that.
    """
    used = constants.active()
    key = model, training, requirements, offers, used
    return _of_jobs.get(key, lambda: _for_job(model, training, requirements, offers, used))


def is_known(model: ModelSpec, training: TrainingSpec, requirements: Requirements, offers: tuple[Offer, ...]) -> bool:
    """Whether `options_by_type` would remember the answer: a search takes up to a tenth of a second."""
    used = constants.active()
    if (model, training, requirements, offers, used) in _of_jobs:
        return True
    return (model, _once(training), _relevant(training, requirements), offers, used) in _searches


def forget() -> None:
    """Forget all searches, e.g. to measure how long one takes."""
    _of_jobs.clear()
    _searches.clear()
    _reasons.clear()
    _fitting.clear()
    _broken.clear()
    _predicted.clear()


def options(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, node_gpus: int
) -> tuple[Option, ...]:
    """`options_by_type` of one type. Several types are searched faster together."""
    return options_by_type(model, training, requirements, (Offer(gpu, node_gpus),))[0]


def best(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, nodes: int, gpus_per_node: int
) -> Option | None:
    """The fastest plan for one given gang, or None when none fits or the requirements exclude the gang.

    It lies in as few link domains as can hold it.
    """
    if not plan_space.admits_gang(requirements, nodes, gpus_per_node):
        return None
    gang = nodes, gpus_per_node
    [found] = _fastest(model, training, requirements, [gpu], [gang], _together([gang], gpu, gpus_per_node))
    return found[0] if found else None


def front(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, node_gpus: int
) -> tuple[Option, ...]:
    """Every plan that no other beats in step time, number of GPUs and memory left at once, by GPUs, then by speed.

    Of plans that are equal in all three the one with the smaller degrees. Each gang lies in as few link domains as can
    hold it. Raises ValueError for a node without GPUs.
    """
    gangs = plan_space.gangs(requirements, node_gpus)
    if training.precision not in gpu.peak_flops or not gangs:
        return ()
    found = search.table(model, training, requirements, gangs, gpu.memory_bytes, _together(gangs, gpu, node_gpus))
    machine = hardware.machine(gpu, training.precision, software=requirements.software)
    fitting = search.fitting(found, [machine], np.array([gpu.memory_bytes]))
    plan = found.plan[fitting.pair]
    optimal = pareto.front(found.plans.gpus[plan], fitting.seconds, found.required[plan])
    return tuple(_options(training, found, fitting.take(optimal), gpu, requirements.software))


def predict(
    model: ModelSpec,
    training: TrainingSpec,
    plan: ParallelPlan,
    gpu: GpuSpec,
    gpus_per_node: int,
    *,
    spread: float = 1.0,
    software: str = hardware.CURRENT,
    linked: int = 0,
) -> Prediction:
    """What to expect of one given plan, whether it fits or not.

    `spread` >= 1 divides the network's bandwidth, for placements across an oversubscribed level of it.
    `linked`: GPUs of the gang that share a link, on the nodes that it has; by default as many as the type allows.
    Raises InvalidPlan for a plan that breaks a rule of divisibility, ValueError when the GPU lacks the precision. What
    is predicted is remembered, as `fits` is: gangs are asked about again in every round.
    """
    linked = linked or hardware.linked(gpu, gpus_per_node)
    once, used = _once(training), constants.active()
    found = _predicted.get(
        (model, once, plan, gpu, gpus_per_node, spread, software, linked, used),
        lambda: _predict(model, once, plan, gpu, gpus_per_node, spread, software, linked),
    )
    return msgspec.structs.replace(found, run_seconds=found.step_seconds * training.steps)


def _predict(
    model: ModelSpec,
    training: TrainingSpec,
    plan: ParallelPlan,
    gpu: GpuSpec,
    gpus_per_node: int,
    spread: float,
    software: str,
    linked: int,
) -> Prediction:
    check(model, training, plan, gpus_per_node, linked)
    row = columns([plan])
    run = work(model, training)
    machine = hardware.machine(gpu, training.precision, spread=spread, software=software)
    time = speed.step_time(run, row, machine, linked, hardware.software(software))
    unsure = uncertainty.factor(
        time.computing,
        gpu,
        plan.gpus,
        linked,
        software,
        routed=model.experts > 0,
        tuned=bool(run.tuning.unusual),
    )
    required = memory.footprint(run, row, **hardware.kernels(software)).required
    return _prediction(training, float(time.total[0]), float(required[0]), float(unsure[0]))


def fits(
    model: ModelSpec, training: TrainingSpec, plan: ParallelPlan, gpu: GpuSpec, software: str = hardware.CURRENT
) -> bool:
    """Whether the fullest GPU of the plan has enough memory, reserve included."""
    once = _once(training)
    required = _fitting.get(
        (model, once, plan, software, constants.active()),
        lambda: float(memory.footprint(work(model, once), columns([plan]), **hardware.kernels(software)).required[0]),
    )
    return required <= gpu.memory_bytes


def check(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan, gpus_per_node: int, linked: int = 0) -> None:
    """Raise InvalidPlan with the first rule that the plan breaks for this job on so many GPUs per node.

    `linked`: GPUs of the gang that share a link, where these are more than a node's.
    """
    once = _once(training)
    if broken := _broken.get(
        (model, once, plan, gpus_per_node, linked), lambda: _broken_rule(model, once, plan, gpus_per_node, linked)
    ):
        raise InvalidPlan(broken)


def _broken_rule(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan, gpus_per_node: int, linked: int) -> str:
    """The first rule that the plan breaks, in words; empty where it breaks none."""
    for name in ("data", "tensor", "pipeline", "virtual", "context", "expert", "micro_batch"):
        if getattr(plan, name) < 1:
            return f"plan.{name} must be at least 1, got {getattr(plan, name)}"
    if plan.zero_stage not in range(4):
        return f"plan.zero_stage must be 0, 1, 2 or 3, got {plan.zero_stage}"
    if gpus_per_node < 1 or plan.gpus % gpus_per_node or not _holds_tensor_groups(plan, gpus_per_node, linked):
        return (
            f"{gpus_per_node} GPUs per node: must divide the plan's {plan.gpus} GPUs and be a multiple of its tensor"
            f" degree {plan.tensor}"
            + (f", or divide it where at most {linked} GPUs share a link" if linked > gpus_per_node else "")
        )
    for holds, rule in plan_space.rules(model, training, columns([plan])):
        if not holds.all():
            return f"{plan.describe()} micro-batch {plan.micro_batch} for {model.name}: {rule}"
    return ""


def _holds_tensor_groups(plan: ParallelPlan, gpus_per_node: int, linked: int) -> bool:
    """Whether whole groups fit on a node, or whole nodes of one link domain make up a group."""
    across = plan.tensor <= linked and plan.tensor % gpus_per_node == 0
    return gpus_per_node % plan.tensor == 0 or across


def why_none(model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, node_gpus: int) -> str:
    """A sentence for people: what keeps every plan of this job off this GPU type, with the nearest miss in numbers.

    It takes as long as a search of one type, and is remembered like one.
    """
    key = model, _once(training), _relevant(training, requirements), gpu, node_gpus, constants.active()
    return _reasons.get(key, lambda: _why_none(model, training, requirements, gpu, node_gpus))


def _why_none(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, node_gpus: int
) -> str:
    if training.precision not in gpu.peak_flops:
        return f"{gpu.name} does not support {training.precision}, only {', '.join(sorted(gpu.peak_flops))}"
    gangs = plan_space.gangs(requirements, node_gpus)
    if not gangs:
        most = f" on at most {requirements.max_nodes} of them" if requirements.max_nodes is not None else ""
        asked = requirements.gpus_per_node
        each = "" if asked == Bounds() else f", {_range(asked)} on each"
        return (
            f"no gang of {_range(requirements.gpus)} GPUs can be made of nodes with {node_gpus} {gpu.name}{most}{each}"
        )
    found = search.table(model, training, requirements, gangs, linked=_together(gangs, gpu, node_gpus))
    if not len(found.plan):
        if crowded := _why_no_host_memory(model, training, requirements, gangs):
            return crowded
        return (
            f"no plan for {_range(requirements.gpus)} GPUs divides {model.name} evenly: {model.layers} layers,"
            f" {model.attention_heads} heads, {model.kv_heads} key/value heads,"
            f" spec.training.globalBatchSize {training.global_batch_size}, within modes"
            f" {', '.join(requirements.modes)} and the degrees asked for"
            f"{_at_fault(model, training, requirements, gpu, node_gpus)}"
        )
    row = found.plan[np.argmin(found.required[found.plan])]
    plan, need = found.plans.plan(row), found.required[row]
    again = "no" if plan.recompute is Recompute.NONE else plan.recompute.lower()
    digits = 1 if abs(need - gpu.memory_bytes) < _GIB else 0
    verdict = "which fits"
    if need > gpu.memory_bytes:
        verdict = f"but {gpu.name} has {gpu.memory_bytes / _GIB:.{digits}f} GiB"
        verdict += _would_hold(model, training, requirements, gpu, node_gpus)
    return (
        f"{model.name} needs at least {need / _GIB:.{digits}f} GiB per GPU (reserve included), with {plan.describe()},"
        f" micro-batch {plan.micro_batch} and {again} recomputation on {plan.gpus} GPU{'s' * (plan.gpus != 1)},"
        f" {verdict}"
    )


def _would_hold(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, node_gpus: int
) -> str:
    """How many of the GPUs would hold the job, were it allowed more, and with what plan: the next power of two that
    does. What one GPU would need helps nobody. Empty where none of those tried does."""
    gpus = 1 << requirements.gpus.high.bit_length()
    while gpus <= MOST_TRIED_GPUS:
        more = msgspec.structs.replace(requirements, gpus=Bounds(gpus, gpus), max_nodes=None)
        gangs = plan_space.gangs(more, node_gpus)
        found = search.table(model, training, more, gangs, linked=_together(gangs, gpu, node_gpus))
        if len(found.plan):
            row = found.plan[np.argmin(found.required[found.plan])]
            if (need := found.required[row]) <= gpu.memory_bytes:
                plan = found.plans.plan(row)
                each = f"{plan.describe()} and {need / _GIB:.0f} GiB each"
                return f"; {gpus} of them (spec.resources.gpus) would hold it, with {each}"
        gpus *= 2
    return ""


def _at_fault(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, node_gpus: int
) -> str:
    """The degrees each of which alone keeps every plan away, in the words of the spec; empty where there is no such."""
    free, told = Requirements(gpus=requirements.gpus), []
    for field in ("tensor", "pipeline", "context", "expert"):
        asked: Bounds = getattr(requirements, field)
        if asked == getattr(free, field):
            continue
        without = msgspec.structs.replace(requirements, **{field: getattr(free, field)})
        gangs = plan_space.gangs(without, node_gpus)
        if len(search.table(model, training, without, gangs, linked=_together(gangs, gpu, node_gpus)).plan):
            told.append(f"spec.parallelism.{field} ({_range(asked)})")
    return f"; without {' or '.join(told)} there is one" if told else ""


def _why_no_host_memory(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, gangs: Sequence[Gang]
) -> str:
    """A sentence where plans exist, but what they keep on the host finds no room there; else empty."""
    if training.offload is UNSET or not requirements.memory_per_gpu:
        return ""
    free = msgspec.structs.replace(requirements, memory_per_gpu=0)
    rows = search.table(model, training, free, gangs)
    if not len(rows.plan):
        return ""
    need = memory.host_bytes(rows.run, rows.plans.take(rows.plan))
    return (
        f"{model.name} keeps at least {need.min() / _GIB:.0f} GiB per GPU in the host's memory because of"
        f" training.offload, but pods ask for {requirements.memory_per_gpu / _GIB:.0f} GiB"
        " (resources.memoryPerGpu)"
    )


def _for_job(
    model: ModelSpec,
    training: TrainingSpec,
    requirements: Requirements,
    offers: tuple[Offer, ...],
    used: Constants,
) -> Found:
    once, need = _once(training), _relevant(training, requirements)
    found = _searches.get((model, once, need, offers, used), lambda: _search(model, once, need, offers))
    return tuple(tuple(_for_steps(option, training.steps) for option in of_type) for of_type in found)


def _search(model: ModelSpec, training: TrainingSpec, requirements: Requirements, offers: tuple[Offer, ...]) -> Found:
    """Types with nodes and link domains of one size are searched together."""
    found: dict[Offer, list[Option]] = {}
    for size, domain in {(offer.node_gpus, _domain_nodes(offer)) for offer in offers}:
        alike = [offer for offer in offers if (offer.node_gpus, _domain_nodes(offer)) == (size, domain)]
        gangs = plan_space.gangs(requirements, size)
        linked = [width for _, width in gangs]
        if domain > 1:
            placed = [(gang, share) for gang in gangs for share in plan_space.link_shares(gang[0], domain)]
            gangs, linked = [gang for gang, _ in placed], [share * width for (_, width), share in placed]
        options = _fastest(model, training, requirements, [offer.gpu for offer in alike], gangs, linked)
        found |= zip(alike, options if domain == 1 else map(_worth_their_links, options), strict=True)
    return tuple(tuple(sorted(found[offer], key=_order)) for offer in offers)


def _order(option: Option) -> tuple[int, float, int]:
    return option.gpus, option.prediction.step_seconds, option.nodes


def _domain_nodes(offer: Offer) -> int:
    """Nodes of a link domain."""
    return max(1, offer.gpu.link_domain // max(1, offer.node_gpus))


def _together(gangs: Sequence[Gang], gpu: GpuSpec, node_gpus: int) -> list[int]:
    """GPUs of each gang that share a link where it lies in as few link domains as can hold it, in equal shares."""
    domain = _domain_nodes(Offer(gpu, node_gpus))
    return [width * plan_space.link_shares(nodes, domain)[0] for nodes, width in gangs]


LINKS_GAIN = 0.01
"""Of its time an option saves at least, or it is not worth asking for nodes that are linked better."""


def _worth_their_links(options: Sequence[Option]) -> list[Option]:
    """Of each gang shape only those that are faster than all that ask less of the links, by `LINKS_GAIN`."""
    best: dict[Gang, float] = {}
    found = []
    for option in sorted(options, key=lambda each: each.linked):
        shape = option.nodes, option.gpus_per_node
        if option.prediction.step_seconds < (1 - LINKS_GAIN) * best.get(shape, math.inf):
            best[shape] = option.prediction.step_seconds
            found.append(option)
    return found


def _weight(found: Found) -> int:
    return sum(map(len, found))


_searches: BoundedMemo[_Key, Found] = BoundedMemo(MOST_OPTIONS, _weight)
_of_jobs: BoundedMemo[_Key, Found] = BoundedMemo(MOST_OPTIONS, _weight)
"""Jobs that differ only in their number of steps share one search, and of each the run times are kept, too."""
_reasons: BoundedMemo[tuple[ModelSpec, TrainingSpec, Requirements, GpuSpec, int, Constants], str] = BoundedMemo(
    MOST_REASONS, len
)


MOST_PLANS = 1 << 16
"""Single plans whose memory, time or broken rule is remembered, of each so many."""
_fitting: BoundedMemo[tuple[ModelSpec, TrainingSpec, ParallelPlan, str, Constants], float] = BoundedMemo(
    MOST_PLANS, lambda _: 1
)
_broken: BoundedMemo[tuple[ModelSpec, TrainingSpec, ParallelPlan, int, int], str] = BoundedMemo(MOST_PLANS, lambda _: 1)
_predicted: BoundedMemo[
    tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec, int, float, str, int, Constants], Prediction
] = BoundedMemo(MOST_PLANS, lambda _: 1)


def _fastest(
    model: ModelSpec,
    training: TrainingSpec,
    requirements: Requirements,
    gpus: Sequence[GpuSpec],
    gangs: Sequence[Gang],
    linked: Sequence[int],
) -> list[list[Option]]:
    """For each GPU type the fastest fitting plan of each gang that has one; so many GPUs of each share a link."""
    able = [gpu for gpu in gpus if training.precision in gpu.peak_flops]
    if not able or not gangs:
        return [[] for _ in gpus]
    room = np.array([gpu.memory_bytes for gpu in able], dtype=np.float64)
    found = search.table(model, training, requirements, gangs, room.max(), linked)
    machines = [hardware.machine(gpu, training.precision, software=requirements.software) for gpu in able]
    chosen = search.fastest(found, machines, room)
    ends = np.searchsorted(chosen.machine, np.arange(len(able) + 1))
    of_type = {
        gpu: _options(training, found, chosen.take(np.arange(first, end)), gpu, requirements.software)
        for gpu, first, end in zip(able, ends, ends[1:], strict=False)
    }
    return [of_type.get(gpu, []) for gpu in gpus]


def _options(training: TrainingSpec, found: PlanTable, chosen: PlanChoice, gpu: GpuSpec, software: str) -> list[Option]:
    rows, gangs = found.plan[chosen.pair], found.gang[chosen.pair]
    nodes, widths, linked = found.nodes[gangs], found.widths[gangs], found.linked[gangs]
    unsure = uncertainty.factor(
        chosen.computing,
        gpu,
        nodes * widths,
        linked,
        software,
        routed=bool(np.any(found.run.shape.experts)),
        tuned=bool(found.run.tuning.unusual),
    )
    figures = (chosen.seconds, found.required[rows], unsure)
    shapes = (nodes * widths, nodes, widths, linked if gpu.link_domain else np.zeros_like(linked))
    return [
        Option(
            gpus=int(gpus),
            nodes=int(count),
            gpus_per_node=int(width),
            plan=plan,
            prediction=_prediction(training, seconds, required, factor),
            linked=int(together),
            linkage=plan_space.linkage(plan, int(width), int(together)) if together else ANYHOW,
        )
        for gpus, count, width, together, plan, seconds, required, factor in zip(
            *(column.tolist() for column in shapes),
            found.plans.take(rows).values(),
            *(column.tolist() for column in figures),
            strict=True,
        )
    ]


def _prediction(training: TrainingSpec, seconds: float, required: float, unsure: float) -> Prediction:
    return Prediction(
        step_seconds=seconds,
        tokens_per_second=training.tokens_per_step / seconds,
        memory_bytes=round(required),
        run_seconds=seconds * training.steps,
        uncertainty=unsure,
    )


def _once(training: TrainingSpec) -> TrainingSpec:
    """Jobs that differ only in their number of steps share one search."""
    return msgspec.structs.replace(training, steps=1)


def _for_steps(option: Option, steps: int) -> Option:
    run_seconds = option.prediction.step_seconds * steps
    prediction = msgspec.structs.replace(option.prediction, run_seconds=run_seconds)
    return msgspec.structs.replace(option, prediction=prediction)


def _relevant(training: TrainingSpec, requirements: Requirements) -> Requirements:
    """Only what the search depends on: jobs that differ in host resources or in allowed types share one search.

    Where something is kept on the host, its memory counts.
    """
    return Requirements(
        gpus=requirements.gpus,
        max_nodes=requirements.max_nodes,
        gpus_per_node=requirements.gpus_per_node,
        modes=requirements.modes,
        tensor=requirements.tensor,
        pipeline=requirements.pipeline,
        virtual=requirements.virtual,
        context=requirements.context,
        expert=requirements.expert,
        zero_stage=requirements.zero_stage,
        zero_stages=requirements.zero_stages,
        hybrid_sharding=requirements.hybrid_sharding,
        recompute=requirements.recompute,
        software=requirements.software,
        memory_per_gpu=0 if training.offload is UNSET else requirements.memory_per_gpu,
    )


def _range(bounds: Bounds) -> str:
    return str(bounds.low) if bounds.low == bounds.high else f"{bounds.low} to {bounds.high}"
