"""API objects <-> the values that policies work with (`trimtab_policy.types`).

Pure. What only the catalogue can tell, and cross-field rules that matter where no API server has checked them
(`trimtab plan -f job.yaml`), end in a `SpecError` that names the field.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import UNSET, structs

from trimtab.api.base import LONG_TEXT, TEXT
from trimtab.api.status import (
    MAX_LOST,
    Leaving,
    Plan,
    PlanAlternative,
    PlanGrant,
    PlanNode,
    PlanParallelism,
    PlanTerms,
    Predicted,
    Shadow,
    StartTime,
)
from trimtab.api.v1alpha1 import (
    AdaptersSpec,
    Architecture,
    ElasticPolicy,
    JobSpec,
    Launcher,
    Model,
    OffloadSpec,
    Parallelism,
    ParallelMode,
    QueueSpec,
    Resources,
    Training,
    Width,
)
from trimtab.errors import SpecError
from trimtab.kube.quantity import to_int, to_milli
from trimtab_policy import catalog
from trimtab_policy.specs import (
    OTHER,
    Adapters,
    Mode,
    ModelSpec,
    Offload,
    Optimizer,
    OptimizerOffload,
    ParallelPlan,
    Prediction,
    TrainingSpec,
)
from trimtab_policy.types import (
    MOST_LEAVING,
    Alternative,
    Bounds,
    Eta,
    Grant,
    NodeShare,
    PendingReason,
    Placement,
    Quota,
    Requirements,
)

UNLIMITED = 1 << 20
"""GPUs of a quota without a limit."""
_ONE = Bounds(1, 1)
_END_OF_TIME = datetime(9999, 12, 31, tzinfo=UTC)


def to_model_spec(model: Model) -> ModelSpec:
    """Return the shape of the model. Raises `SpecError` for an unknown preset, or where not exactly one is given."""
    if (model.preset is None) == (model.architecture is None):
        raise SpecError("spec.model", "give exactly one of preset and architecture")
    if model.architecture is not None:
        return _from_architecture(model.architecture)
    try:
        return catalog.model(model.preset or "")
    except catalog.UnknownModel as unknown:
        raise SpecError("spec.model.preset", str(unknown)) from unknown


def _from_architecture(shape: Architecture) -> ModelSpec:
    if shape.head_dim is None and shape.hidden_size % shape.attention_heads:
        raise SpecError("spec.model.architecture.hiddenSize", "must be a multiple of attentionHeads, or give headDim")
    return ModelSpec(
        name="custom",
        layers=shape.layers,
        hidden_size=shape.hidden_size,
        attention_heads=shape.attention_heads,
        kv_heads=shape.kv_heads or shape.attention_heads,
        head_dim=shape.head_dim or shape.hidden_size // shape.attention_heads,
        ffn_hidden_size=shape.ffn_hidden_size,
        vocab_size=shape.vocab_size,
        gated_ffn=shape.gated_ffn,
        tied_embeddings=shape.tied_embeddings,
        learned_positions=shape.learned_positions,
        biases=shape.biases,
        experts=shape.experts or 0,
        experts_per_token=shape.experts_per_token or 0,
    )


def to_training(training: Training) -> TrainingSpec:
    """Return what is to be trained, tokens as whole steps. Raises `SpecError` unless exactly one of both is given."""
    if (training.steps is None) == (training.tokens is None):
        raise SpecError("spec.training", "give exactly one of steps and tokens")
    tokens_per_step = training.sequence_length * training.global_batch_size
    return TrainingSpec(
        sequence_length=training.sequence_length,
        global_batch_size=training.global_batch_size,
        steps=training.steps or -(-(training.tokens or 0) // tokens_per_step),
        precision=training.precision,
        optimizer=training.optimizer,
        adapters=_adapters(training.adapters) if training.adapters else UNSET,
        offload=_offload(training.offload) if training.offload else UNSET,
    )


def _adapters(asked: AdaptersSpec) -> Adapters:
    return Adapters(asked.rank, asked.targets, asked.quantization)


def _offload(asked: OffloadSpec) -> Offload:
    return Offload(asked.optimizer, asked.weights, asked.activations)


def to_requirements(spec: JobSpec) -> Requirements:
    """Return the part of the plan space that the job allows.

    GPU types are brought to the catalogue's spelling, and short names to all types that they mean; one that it does not
    know is kept, because nodes may offer products that nobody has listed. What the pods ask for besides (`*_per_pod`)
    is for the reader of the template.
    Raises `SpecError` when no number of GPUs is allowed, and for a fine-tune that the launcher has no flags for.
    """
    limits, asked = spec.resources, spec.parallelism
    _has_flags(spec.launcher, spec.training)
    anyhow = Requirements(
        gpus=_gpus(spec),
        gpu_types=tuple(dict.fromkeys(name for each in limits.gpu_types or () for name in _meant(each))),
        max_nodes=limits.max_nodes,
        gpus_per_node=Bounds(limits.gpus_per_node.min or 1, limits.gpus_per_node.max or Bounds().high),
        cpu_milli_per_gpu=_cpu_milli(limits),
        memory_per_gpu=_memory(limits),
        software=_SOFTWARE.get(spec.launcher, OTHER),
    )
    requirements = divided_as(anyhow, asked)
    if spec.launcher is Launcher.MEGATRON and spec.elasticity.checkpoint.resharding:
        # From ZeRO 2 on Megatron-FSDP writes checkpoints of its own format, which nothing with ZeRO 0 or 1 can load.
        return structs.replace(requirements, zero_stages=Bounds(0, 1))
    if spec.launcher in (Launcher.MEGATRON, Launcher.TORCHTITAN):
        return requirements
    # No other launcher has an interleaved schedule or hybrid sharding that a flag or the environment would turn on.
    plain = structs.replace(requirements, virtual=_ONE, hybrid_sharding=False)
    return _deepspeed(plain, asked) if spec.launcher is Launcher.DEEPSPEED else plain


def divided_as(need: Requirements, asked: Parallelism) -> Requirements:
    """The same with these limits on how the work is divided, beside those of the launcher."""
    return structs.replace(
        need,
        modes=tuple(Mode) if asked.mode is ParallelMode.AUTO else (Mode(asked.mode.value),),
        tensor=_bounds(asked.tensor),
        pipeline=_bounds(asked.pipeline),
        context=_bounds(asked.context),
        expert=_bounds(asked.expert),
        zero_stage=asked.zero_stage,
        recompute=asked.recompute,
    )


_SOFTWARE = {Launcher.MEGATRON: "megatron-core", Launcher.TORCHTITAN: "torchtitan"}
"""What the performance model takes a launcher to start; nothing is known of the others."""


def _has_flags(launcher: Launcher, training: Training) -> None:
    """Raise `SpecError` for what the framework's own flags cannot say: its run would be another one than was planned.

    Torchrun, Custom and DeepSpeed start a script of the user's, which reads the environment.
    """
    offload = training.offload or OffloadSpec()
    if launcher is Launcher.TORCHTITAN:
        whole = offload.weights == (offload.optimizer is not OptimizerOffload.NONE)
        wrong = {
            "adapters": training.adapters is not None,
            "optimizer": training.optimizer is Optimizer.ADAMW_8BIT,
            "offload.optimizer": not whole or offload.optimizer is OptimizerOffload.PAGED,
            "offload.activations": offload.activations,
        }
    elif launcher is Launcher.MEGATRON:
        wrong = {
            "adapters": training.adapters is not None,
            "optimizer": training.optimizer is Optimizer.ADAMW_8BIT,
            "offload.optimizer": offload.optimizer is OptimizerOffload.PAGED,
            "offload.weights": offload.weights,
            "offload.activations": offload.activations,
        }
    else:
        return
    for field, lacks in wrong.items():
        if lacks:
            together = ", or offloads weights and optimizer together" if launcher is Launcher.TORCHTITAN else ""
            raise SpecError(
                f"spec.training.{field}",
                f"{launcher.value} has no flag for this{together}: use the launcher Torchrun, DeepSpeed or Custom with"
                " a script that reads TRIMTAB_*",
            )


def _gpus(spec: JobSpec) -> Bounds:
    gpus = spec.resources.gpus
    low = gpus.max if spec.elasticity.policy is ElasticPolicy.FIXED else gpus.min or 1
    if low > gpus.max:
        raise SpecError("spec.resources.gpus.min", f"{low} exceeds max, which is {gpus.max}")
    return Bounds(low, gpus.max)


def _meant(gpu_type: str) -> tuple[str, ...]:
    return tuple(spec.name for spec in catalog.named(gpu_type)) or (gpu_type,)


def _canonical(gpu_type: str) -> str:
    try:
        return catalog.gpu(gpu_type).name
    except catalog.UnknownGpu:
        return gpu_type


def _bounds(width: Width | None) -> Bounds:
    if width is None:
        return Bounds()
    if width.fixed is not None:
        return Bounds(width.fixed, width.fixed)
    return Bounds() if width.max is None else Bounds(1, width.max)


def _cpu_milli(limits: Resources) -> int:
    return 0 if limits.cpus_per_gpu is None else to_milli(limits.cpus_per_gpu)


def _memory(limits: Resources) -> int:
    return 0 if limits.memory_per_gpu is None else to_int(limits.memory_per_gpu)


def _deepspeed(free: Requirements, asked: Parallelism) -> Requirements:
    """Take away what DeepSpeed cannot do.

    Its pipeline needs a model written as PipelineModule and works with ZeRO 0 and 1 (runtime/pipe/engine.py), its
    AutoTP with ZeRO 0 to 2: they are used only where the user asks for them, and then with ZeRO 1 (mode Model: 0)
    unless told otherwise.
    """
    divides = asked.mode in (ParallelMode.MODEL, ParallelMode.HYBRID)
    tensor = free.tensor if asked.tensor or divides else _ONE
    pipeline = free.pipeline if asked.pipeline or divides else _ONE
    zero_stage = free.zero_stage
    if zero_stage is None and (tensor.high > 1 or pipeline.high > 1):
        zero_stage = 0 if asked.mode is ParallelMode.MODEL else 1
    return structs.replace(
        free,
        tensor=_ONE if zero_stage == 3 else tensor,
        pipeline=_ONE if zero_stage in (2, 3) else pipeline,
        context=free.context if asked.context else _ONE,
        zero_stage=zero_stage,
    )


def to_quotas(name: str, queue: QueueSpec) -> tuple[Quota, ...]:
    """Return the limits of a queue, GPU types in the catalogue's spelling.

    Of one type that is spelt in two ways the lower limit and the lower guarantee count.
    """
    found: dict[str, Quota] = {}
    for quota in queue.quotas:
        kind = quota.gpu_type if quota.gpu_type == "*" else _canonical(quota.gpu_type)
        said = Quota(name, kind, UNLIMITED if quota.gpus is None else quota.gpus, quota.guaranteed)
        also = found.get(kind, said)
        found[kind] = Quota(name, kind, min(said.gpus, also.gpus), min(said.guaranteed, also.guaranteed))
    return tuple(found.values())


def to_start_time(eta: Eta) -> StartTime:
    """Return the expected start in whole minutes, the interval rounded outward."""
    minutes = math.floor(eta.low / 60), round(eta.expected / 60), math.ceil(eta.high / 60)
    earliest, expected, latest = (to_time(60 * minute) for minute in minutes)
    return StartTime(earliest=earliest, expected=expected, latest=latest)


def to_eta(told: StartTime | None, now: float) -> Eta | None:
    """When a job is expected to start, as its status says; None where it says nothing, or what has passed by now."""
    if told is None or told.latest.timestamp() <= now:
        return None
    low, expected, high = (max(now, each.timestamp()) for each in (told.earliest, told.expected, told.latest))
    return Eta(low, expected, high)


def to_time(moment: float) -> datetime:
    """A point in time, in POSIX seconds, to the second, within what the API can tell: years 1970 to 9999. What is no
    number is as late as can be."""
    if moment != moment:
        return _END_OF_TIME
    return datetime.fromtimestamp(int(max(0.0, min(moment, _END_OF_TIME.timestamp()))), UTC)


def to_plan(
    placement: Placement,
    *,
    epoch: int,
    policy: str,
    resource: str,
    generation: int,
    now: datetime,
    speedup: float = 1,
    left: float = 1,
    waits_for: tuple[Leaving, ...] = (),
    terms: PlanTerms | None = None,
) -> Plan:
    """Return the placement as `status.plan`.

    `resource` is the extended resource of its nodes, `generation` that of the spec it was decided for, `now` in UTC,
    `speedup` divides the run time of fake pods, `left` is the part of the steps that an earlier gang has not done,
    `waits_for` are the gangs that hold some of its GPUs still, `terms` what holds for its gang besides.
    """
    predicted, degrees = placement.prediction, placement.plan
    return Plan(
        epoch=epoch,
        observed_generation=generation,
        created_time=now,
        policy=policy,
        reason=placement.reason[:LONG_TEXT],
        gpu_type=placement.gpu_type,
        gpu_resource=resource,
        gpus=placement.gpus,
        mode=degrees.mode,
        summary=degrees.describe(),
        parallelism=_to_parallelism(degrees),
        node_count=len(placement.shares),
        nodes=_to_nodes(placement),
        predicted=Predicted(
            step_milliseconds=_milliseconds(predicted.step_seconds),
            step_milliseconds_low=_milliseconds(predicted.step_seconds_low),
            step_milliseconds_high=_milliseconds(predicted.step_seconds_high),
            tokens_per_second=round(predicted.tokens_per_second),
            memory_bytes_per_gpu=predicted.memory_bytes,
            run_seconds=math.ceil(predicted.run_seconds),
            finish_time=_later(now, left * predicted.run_seconds / speedup),
            correction_permille=_permille(predicted.correction),
            speed_permille=_permille(placement.speed),
            speedup_permille=_permille(speedup),
        ),
        waits_for=waits_for[:MOST_LEAVING] or None,
        terms=terms,
        alternatives=tuple(map(_to_alternative, placement.alternatives[:MAX_LOST])) or None,
    )


def _to_alternative(lost: Alternative) -> PlanAlternative:
    predicted = lost.prediction
    return PlanAlternative(
        gpu_type=lost.gpu_type,
        gpus=lost.gpus,
        summary=lost.plan.describe(),
        step_milliseconds=_milliseconds(predicted.step_seconds),
        tokens_per_second=round(predicted.tokens_per_second),
        run_seconds=math.ceil(predicted.run_seconds),
        worth_permille=_thousandths(lost.worth),
        price_permille=_thousandths(lost.price),
        why_not=lost.why_not[:TEXT],
    )


def _thousandths(value: float | None) -> int | None:
    """In [0, 10⁹]: of what one GPU hour is worth to a job that is nearly done others may pay any multiple."""
    return None if value is None or value != value else round(1000 * min(max(value, 0.0), 1e6))


def to_shadow(
    policy: str,
    answer: Placement | PendingReason,
    *,
    now: datetime,
    difference_seconds: float | None = None,
    speedup: float = 1,
) -> Shadow:
    """Return what a shadow policy would do as `status.shadow`; `now` and `speedup` as of `to_plan`.

    `difference_seconds` are predicted ones, before the speed-up.
    """
    if isinstance(answer, PendingReason):
        return Shadow(policy=policy, summary=f"waits: {answer.value}", pending_reason=answer)
    return Shadow(
        policy=policy,
        summary=f"{answer.gpus}×{answer.gpu_type} {answer.plan.describe()}",
        gpu_type=answer.gpu_type,
        gpus=answer.gpus,
        mode=answer.plan.mode,
        nodes=_to_nodes(answer),
        predicted_finish_time=_later(now, answer.prediction.run_seconds / speedup),
        difference_seconds=None if difference_seconds is None else round(difference_seconds / speedup),
    )


def _to_nodes(placement: Placement) -> tuple[PlanNode, ...]:
    return tuple(PlanNode(name=share.node, gpus=share.gpus) for share in placement.shares)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _permille(factor: float) -> int | None:
    """Written only where it says something."""
    return None if factor == 1 else max(1, round(factor * 1000))


def _to_parallelism(degrees: ParallelPlan) -> PlanParallelism:
    """Interleaving and hybrid sharding are written only where there is any."""
    fields = structs.asdict(degrees)
    chunks, shard = fields.pop("virtual"), fields.pop("shard")
    return PlanParallelism(**fields, virtual_pipeline=chunks if chunks > 1 else None, shard=shard or None)


def to_degrees(found: PlanParallelism) -> ParallelPlan:
    """Return the degrees of a plan in the status."""
    fields = found.model_dump(exclude={"virtual_pipeline", "shard"})
    return ParallelPlan(**fields, virtual=found.virtual_pipeline or 1, shard=found.shard or 0)


def _later(now: datetime, seconds: float) -> datetime:
    """A billion slow steps take longer than the calendar lasts."""
    return now + timedelta(seconds=min(math.ceil(seconds), int((_END_OF_TIME - now).total_seconds())))


def to_placement(uid: str, plan: Plan) -> Placement:
    """Return the placement that a plan in the status stands for: the way back from `to_plan`, to the millisecond."""
    predicted = plan.predicted
    return Placement(
        job=uid,
        gpu_type=plan.gpu_type,
        shares=tuple(NodeShare(node=node.name, gpus=node.gpus) for node in plan.nodes),
        plan=to_degrees(plan.parallelism),
        prediction=Prediction(
            step_seconds=predicted.step_milliseconds / 1000,
            tokens_per_second=float(predicted.tokens_per_second),
            memory_bytes=predicted.memory_bytes_per_gpu,
            run_seconds=float(predicted.run_seconds),
            uncertainty=(predicted.step_milliseconds_high or predicted.step_milliseconds) / predicted.step_milliseconds,
            correction=(predicted.correction_permille or 1000) / 1000,
        ),
        reason=plan.reason,
        speed=(predicted.speed_permille or 1000) / 1000,
    )


def from_grants(grants: Sequence[Grant]) -> tuple[PlanGrant, ...]:
    """Return in which order a gang was given its GPUs, as its plan tells it."""
    return tuple(PlanGrant(gpus=one.gpus, order=one.order, type_order=one.type_order) for one in grants)


def to_grants(terms: PlanTerms | None) -> tuple[Grant, ...]:
    """Return the same as policies see it; empty where the plan does not tell."""
    return tuple(Grant(one.gpus, one.order, one.type_order) for one in terms.grants) if terms else ()
