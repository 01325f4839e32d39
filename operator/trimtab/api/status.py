"""What Trimtab reports about a job: conditions, the plan, progress, and why a job waits.

The plan is the controller's memory: it is written before the first pod exists, never changes, and is replaced only by
one of a higher epoch. The rules below let the API server itself refuse a controller that has lost its leadership
(`leaderEpoch`) or that would use an epoch twice.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from trimtab.api.base import ApiModel, Degree, GpuType, Int32, Int64, LongText, Text, Time, extra, rule, rules
from trimtab.api.history import FailureRecord, StopRecord
from trimtab_policy.specs import Mode, Recompute
from trimtab_policy.types import MOST_LEAVING, PendingReason, StopCause

MAX_ITEMS: Final = 32
"""Blockers, alternatives, or times, of a waiting job."""
MAX_LOST: Final = 5
"""Alternatives of a plan."""
WORDING_HASH: Final = 16
"""Hexadecimal digits."""


def _never_decreases(field: str) -> dict[str, str]:
    return rule(
        f"!has(oldSelf.{field}) || (has(self.{field}) && self.{field} >= oldSelf.{field})",
        f"{field} may never decrease: the writer is behind the status that it overwrites",
        f".{field}",
    )


class Condition(ApiModel):
    """One aspect of the job's state (metav1.Condition)."""

    type: Annotated[
        str, StringConstraints(min_length=1, max_length=316, pattern=r"^[A-Za-z]([-A-Za-z0-9_./]*[A-Za-z0-9])?$")
    ]
    """Planned, GangScheduled, PodsReady, CheckpointRequested, Suspended, Complete or Failed; further ones that do not
    tell the state: Preempted, Degraded, Drifted, Idle; others may add theirs."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[
        str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    """One word for machines. The reason of the last condition is the STATE column of `kubectl get ltj`."""
    message: LongText = ""
    """The same for people."""
    observed_generation: Annotated[Int64, Field(ge=0)] | None = None
    """metadata.generation that the condition was judged by."""
    last_transition_time: Time
    """When `status` last changed."""


class PlanParallelism(ApiModel):
    """Degrees of the plan; data x tensor x pipeline x context is the number of GPUs."""

    model_config = rules(
        rule(
            "!has(self.virtualPipeline) || self.pipeline > 1",
            "virtualPipeline needs a pipeline degree above 1",
            ".virtualPipeline",
        ),
        rule(
            "!has(self.shard) || (self.zeroStage == 3 && self.data * self.context % self.shard == 0)",
            "shard needs zeroStage 3, and must divide data x context",
            ".shard",
        ),
    )
    data: Degree
    """Copies of the model that divide the batch."""
    tensor: Degree
    """GPUs that divide each matrix."""
    pipeline: Degree
    """Stages that divide the layers."""
    virtual_pipeline: Annotated[Degree, Field(ge=2)] | None = None
    """Chunks of layers on each stage that the interleaved schedule takes in turn. Left out: one, plain 1F1B."""
    context: Degree
    """GPUs that divide each sequence."""
    expert: Degree
    """Data ranks that divide the experts; divides `data`."""
    micro_batch: Degree
    """Sequences that one data rank computes at a time. Gradient accumulation makes up the global batch."""
    zero_stage: Annotated[Int32, Field(ge=0, le=3)]
    """What is sharded over data ranks: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters."""
    shard: Annotated[Degree, Field(ge=2)] | None = None
    """Ranks that share one copy of what is sharded, where a node or another group keeps a copy of its own (hybrid
    sharding). Left out: all of them."""
    recompute: Recompute
    """Which activations are computed again in the backward pass instead of stored."""


class PlanNode(ApiModel):
    """One pod of the gang."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    """Node the pod is bound to."""
    gpus: Degree
    """GPUs the pod gets; the same on every node."""


class Predicted(ApiModel):
    """What the performance model expects of the plan."""

    step_milliseconds: Annotated[Int64, Field(ge=1)]
    """Duration of one optimizer step."""
    step_milliseconds_low: Annotated[Int64, Field(ge=1)] | None = None
    """Four of five such runs take at least this and at most `stepMillisecondsHigh`."""
    step_milliseconds_high: Annotated[Int64, Field(ge=1)] | None = None
    """Upper end of that 80 % interval."""
    tokens_per_second: Annotated[Int64, Field(ge=0)]
    """Throughput of the whole gang."""
    memory_bytes_per_gpu: Annotated[Int64, Field(ge=0)]
    """Peak memory of the fullest GPU."""
    run_seconds: Annotated[Int64, Field(ge=0)]
    """From the first step to the last."""
    finish_time: Time
    """When the job would complete, had it started at `createdTime`."""
    correction_permille: Annotated[Int32, Field(ge=1)] | None = None
    """By how much the times above were stretched, in thousandths, because of what was observed of other jobs: 1000 is
    not at all. Left out: they are the performance model's own."""
    speed_permille: Annotated[Int32, Field(ge=1, le=1000)] | None = None
    """Rate of the slowest GPU of the gang that they were made for, in thousandths of what its type does. Left out: none
    was known to be slow."""
    speedup_permille: Annotated[Int64, Field(ge=1)] | None = None
    """Pods are fake, and run so many thousandths as fast as this says, which `finishTime` counts on. Left out: they are
    real."""


class Leaving(ApiModel):
    """A gang that was asked to stop, and whose GPUs a plan waits for."""

    job: Text
    """Its job: namespace/name."""
    digest: Text | None = None
    """Digest of that and of the job's UID: which of all jobs of that name it is, without telling its UID to others.
    Absent in plans of earlier versions: then nobody is waited for."""
    epoch: Annotated[Int64, Field(ge=1)]
    """Plan of that job whose pods must be gone; pods of earlier ones, too."""
    cause: StopCause
    """Why it was asked to stop."""


class PlanGrant(ApiModel):
    """GPUs that the gang was given at one time."""

    gpus: Degree
    """How many."""
    order: Annotated[Int64, Field(ge=0)]
    """Their place in the order in which GPUs were given to gangs: given later, higher. No clock has a part in it."""
    type_order: Annotated[Int64, Field(ge=0)]
    """The same for those of this type: a gang that went on with another type was given these later."""


class PlanTerms(ApiModel):
    """What the spec and the cluster said when the plan was decided: it holds for all of the gang, until its end."""

    queue: Text = ""
    """Queue that its GPUs count against, whatever `spec.queue` says by then; empty for none."""
    priority_class: Text = ""
    """PriorityClass of its pods; empty for the cluster's default."""
    priority: Int32 = 0
    """Value of that class: as for pods, it outlives the class."""
    cpu_millis_per_gpu: Annotated[Int64, Field(ge=0)] = 0
    """CPU millicores that a pod requests for each of its GPUs."""
    memory_bytes_per_gpu: Annotated[Int64, Field(ge=0)] = 0
    """Host memory that a pod requests for each of its GPUs."""
    grants: Annotated[tuple[PlanGrant, ...], Field(max_length=MAX_ITEMS), extra(list_type="atomic")] = ()
    """Its GPUs in the order in which it was given them. What a queue has borrowed are those that were given last."""


class PlanAlternative(ApiModel):
    """A choice that lost when the plan was decided."""

    gpu_type: GpuType
    """GPU type."""
    gpus: Degree
    """Number of GPUs."""
    summary: Text
    """The degrees in short, e.g. `dp=2 tp=4 pp=1`."""
    step_milliseconds: Annotated[Int64, Field(ge=1)]
    """Predicted duration of one optimizer step."""
    tokens_per_second: Annotated[Int64, Field(ge=0)]
    """Predicted throughput of the whole gang."""
    run_seconds: Annotated[Int64, Field(ge=0)]
    """Predicted, from the first step to the last."""
    worth_permille: Annotated[Int64, Field(ge=0)] | None = None
    """What it was worth to the job beside the chosen one, in thousandths: 1000 is as much. Absent where the policy does
    not say."""
    price_permille: Annotated[Int64, Field(ge=0)] | None = None
    """What others would have paid for its GPUs, in thousandths of what the chosen one was worth to the job. Absent
    where the policy does not say."""
    why_not: Text
    """Why it lost, in words."""


class Plan(ApiModel):
    """How the job runs: decided once, then carried out. A new decision is a new plan with a higher epoch."""

    model_config = rules(
        rule(
            "self.epoch != oldSelf.epoch || self == oldSelf",
            "a plan never changes: write another one with a higher epoch",
            ".epoch",
        )
    )
    epoch: Annotated[Int64, Field(ge=1)]
    """Counts the plans of this job; pods carry it as a label."""
    observed_generation: Annotated[Int64, Field(ge=0)]
    """metadata.generation of the spec that the plan was made for."""
    created_time: Time
    """When it was decided."""
    policy: Text
    """Policy that decided."""
    reason: LongText
    """Why this type, count, parallelism and these nodes."""
    gpu_type: GpuType
    """GPU type, e.g. H100-SXM5-80GB."""
    gpu_resource: Annotated[str, StringConstraints(min_length=1, max_length=317)]
    """Extended resource that the pods request, e.g. nvidia.com/gpu."""
    gpus: Degree
    """Number of GPUs."""
    mode: Mode
    """How the work is divided: Data, Model, or Hybrid (both)."""
    summary: Text
    """The degrees in short, e.g. `dp=2 tp=4 pp=1`."""
    parallelism: PlanParallelism
    """The degrees and the schedule."""
    node_count: Degree
    """Number of nodes, which is the number of pods."""
    nodes: Annotated[tuple[PlanNode, ...], Field(min_length=1, max_length=4096), extra(list_type="atomic")]
    """Nodes in rank order: the first holds rank 0."""
    predicted: Predicted
    """Expected step time, throughput, memory and end."""
    waits_for: (
        Annotated[tuple[Leaving, ...], Field(min_length=1, max_length=MOST_LEAVING), extra(list_type="atomic")] | None
    ) = None
    """Gangs that hold some of its GPUs still and have been asked to stop: no pod is made before theirs are gone. Absent
    where its GPUs were free."""
    terms: PlanTerms | None = None
    """What it counts against, and what its pods ask for besides GPUs. Absent in plans of earlier versions: then it is
    what the spec says now."""
    alternatives: (
        Annotated[tuple[PlanAlternative, ...], Field(min_length=1, max_length=MAX_LOST), extra(list_type="atomic")]
        | None
    ) = None
    """What lost when it was decided, the best first. Absent where there was nothing else, and in plans of earlier
    versions."""


class StopRequest(ApiModel):
    """The gang of the standing plan has been asked to save a checkpoint, and will be stopped."""

    epoch: Annotated[Int64, Field(ge=1)]
    """Plan that is to end."""
    cause: StopCause
    """One word of a closed list."""
    message: LongText
    """The same in a sentence, with figures."""
    requested_time: Time
    """When it was asked."""
    deadline_time: Time
    """When it is stopped, saved or not: `spec.elasticity.checkpoint.graceSeconds` later."""
    renewed_time: Time | None = None
    """From when on it was given that time anew, because its pods had not been told before (the controller was away);
    absent where they were told at once."""
    acknowledged_time: Time | None = None
    """When it said that it has saved what it needs."""
    beneficiary: Text | None = None
    """Job (namespace/name) that gets its GPUs; absent where there is none in particular."""
    successor: Plan | None = None
    """How it goes on at once; absent where it waits for another decision."""


class IdleStatus(ApiModel):
    """The gang holds GPUs and does nothing."""

    since_time: Time
    """From when on all of its GPUs have been idle."""
    stop_time: Time | None = None
    """When it is asked to save its state, and stopped; absent where it may go on like this."""


class StartTime(ApiModel):
    """When the job is expected to start."""

    earliest: Time
    """Four of five such jobs start between this ..."""
    expected: Time
    """Best guess."""
    latest: Time
    """... and this."""


class PendingStatus(ApiModel):
    """Why the job has no plan yet, and what would change that."""

    reason: PendingReason
    """One word of a closed list."""
    message: LongText
    """The same in a sentence, with figures."""
    blockers: Annotated[tuple[Text, ...], Field(max_length=MAX_ITEMS), extra(list_type="atomic")] = ()
    """What is in the way, one item each."""
    alternatives: Annotated[tuple[Text, ...], Field(max_length=MAX_ITEMS), extra(list_type="atomic")] = ()
    """Changes to the job or the cluster that would let it start, one sentence each."""
    start_time: StartTime | None = None
    """When it is expected to start as things are; absent when that is not in sight."""
    times: Annotated[tuple[Time, ...], Field(max_length=MAX_ITEMS), extra(list_type="atomic")] = ()
    """Points in time that the texts tell of, in the order in which they do."""
    wording_hash: Annotated[str, StringConstraints(max_length=WORDING_HASH, pattern=r"^[0-9a-f]*$")] | None = None
    """Hash of the texts without these times: it stays the same for as long as nothing else has changed."""


class Shadow(ApiModel):
    """What the shadow policy would have decided in the place of the one that decides: of the standing plan, or of the
    job's waiting. Nothing depends on it."""

    model_config = rules(
        rule("has(self.gpuType) != has(self.pendingReason)", "it either starts the job or lets it wait", ".gpuType")
    )
    policy: Text
    """The shadow policy."""
    summary: Text
    """All of it in short, e.g. `8×H100-SXM5-80GB dp=8 tp=1 pp=1`, or `waits: InsufficientGpus`."""
    gpu_type: GpuType | None = None
    """GPU type it would have taken; absent where it lets the job wait."""
    gpus: Degree | None = None
    """Number of GPUs."""
    mode: Mode | None = None
    """How it would have divided the work: Data, Model, or Hybrid."""
    nodes: Annotated[tuple[PlanNode, ...], Field(min_length=1, max_length=4096), extra(list_type="atomic")] | None = (
        None
    )
    """Nodes in rank order."""
    pending_reason: PendingReason | None = None
    """Why it would have let the job wait; absent where it would have started it."""
    predicted_finish_time: Time | None = None
    """When the job would complete, had it started when it first said so."""
    difference_seconds: Int64 | None = None
    """Predicted end less that of the plan: negative where the shadow policy would be faster, absent unless both start
    the job."""

    def says(self) -> tuple[object, ...]:
        """What makes two answers different ones: all but the times, which change from round to round."""
        return self.policy, self.summary, self.nodes, self.pending_reason


class Metric(ApiModel):
    """A figure that the trainer reports."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """Name, e.g. loss."""
    value: Annotated[str, StringConstraints(max_length=64)]
    """Value as text."""


class TrainerStatus(ApiModel):
    """Progress, in the shape of Kubeflow Trainer's KEP-2779."""

    progress_percentage: Annotated[Int32, Field(ge=0, le=100)] | None = None
    """Steps done, in per cent."""
    estimated_remaining_seconds: Annotated[Int64, Field(ge=0)] | None = None
    """Seconds until the last step."""
    metrics: Annotated[tuple[Metric, ...], Field(max_length=256), extra(list_type="atomic")] = ()
    """Latest figures of the trainer."""
    last_updated_time: Time
    """When this was observed."""


class Observed(ApiModel):
    """What the running gang reports of itself (`trimtab.report`), checked and smoothed by the controller."""

    epoch: Annotated[Int64, Field(ge=1)]
    """Plan that it was measured under."""
    step_milliseconds: Annotated[Int64, Field(ge=1)] | None = None
    """Median duration of one optimizer step, first steps left out."""
    tokens_per_second: Annotated[Int64, Field(ge=0)] | None = None
    """Throughput of the whole gang at that rate."""
    steps_done: Annotated[Int64, Field(ge=0)]
    """Optimizer steps done since the training began, under this plan and those before; where no gang runs, those that
    the last checkpoint keeps."""
    last_checkpoint_step: Annotated[Int64, Field(ge=0)] | None = None
    """Step of the last checkpoint that is safe on disk."""
    last_checkpoint_time: Time | None = None
    """When it was."""


class JobStatus(ApiModel):
    """What is known about the job. There is no phase: read the conditions."""

    model_config = rules(
        _never_decreases("leaderEpoch"),
        _never_decreases("lastEpoch"),
        rule(
            "!has(self.plan) || (has(self.lastEpoch) && self.plan.epoch == self.lastEpoch)",
            "plan.epoch must equal lastEpoch, the highest epoch ever used",
            ".lastEpoch",
        ),
        rule(
            "!has(self.plan) || has(oldSelf.plan) || !has(oldSelf.lastEpoch) || self.plan.epoch > oldSelf.lastEpoch",
            "a new plan needs an epoch above lastEpoch: epochs are never used twice",
            ".lastEpoch",
        ),
    )
    conditions: Annotated[
        tuple[Condition, ...], Field(max_length=32), extra(list_type="map", list_map_keys=["type"])
    ] = ()
    """Aspects of the job's state. The most telling one comes last."""
    observed_generation: Annotated[Int64, Field(ge=0)] | None = None
    """metadata.generation that this status reflects."""
    leader_epoch: Annotated[Int64, Field(ge=0)] | None = None
    """Fencing epoch of the controller that wrote this status. A controller with a lower one is refused."""
    last_epoch: Annotated[Int64, Field(ge=0)] | None = None
    """Highest plan epoch ever used; it outlives the plan, so that old pods are recognised."""
    plan: Plan | None = None
    """How the job runs; absent while it has no GPUs."""
    stop: StopRequest | None = None
    """The plan is to end, and the gang has been asked to save a checkpoint; absent when nobody wants it to stop."""
    idle: IdleStatus | None = None
    """Since when the gang does nothing, as the condition Idle says; absent where it does something, or nobody knows."""
    stops: Annotated[tuple[StopRecord, ...], Field(max_length=16), extra(list_type="atomic")] = ()
    """The last requests to stop, oldest first: nobody has to give way too often."""
    failures: Annotated[tuple[FailureRecord, ...], Field(max_length=16), extra(list_type="atomic")] = ()
    """The last failures, oldest first: nodes that end several gangs are avoided."""
    degrees: PlanParallelism | None = None
    """Degrees of the last gang that is known to have saved its state, or that ran for ten minutes and never says so.
    Where `checkpoint.resharding` is false, its checkpoint needs them again."""
    pending: PendingStatus | None = None
    """Why the job waits; absent when it does not."""
    shadow: Shadow | None = None
    """What the shadow policy named in it would have decided; it stays when another one is chosen, until that has said
    something, or the plan ends."""
    restarts: Annotated[Int32, Field(ge=0)] = 0
    """How often the gang was started again after a failure; at most `spec.maxRestarts`."""
    setbacks: Annotated[Int32, Field(ge=0)] = 0
    """Plans in a row that were given up, for whatever reason, before the gang had run for a while; each one doubles the
    pause."""
    retry_time: Time | None = None
    """No new plan is made before this moment."""
    start_time: Time | None = None
    """When the gang first ran."""
    completion_time: Time | None = None
    """When the job completed or failed for good."""
    trainer_status: TrainerStatus | None = None
    """Progress of the training."""
    observed: Observed | None = None
    """Step times and checkpoints that the training reports; absent when it reports none."""
