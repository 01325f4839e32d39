"""Rules that span fields, in CEL: evaluated by the API server at admission, so that bad input never gets further.

Each table belongs to the model of the same name in `v1alpha1`; `self` is that object. Language and cost limits:
https://kubernetes.io/docs/reference/using-api/cel/ and KEP-2876.
"""

from __future__ import annotations

from trimtab.api.base import JsonSchema, rule
from trimtab.names import TRAINER_CONTAINER

GPU_RANGE = (rule("!has(self.min) || self.min <= self.max", "min must not exceed max", ".min"),)

GPUS_PER_NODE = (rule("!has(self.min) || !has(self.max) || self.min <= self.max", "min must not exceed max", ".min"),)

WIDTH = (rule("!has(self.max) || !has(self.fixed)", "give at most one of max and fixed", ".fixed"),)

MODEL = (rule("has(self.preset) != has(self.architecture)", "give exactly one of preset and architecture", ".preset"),)

TRAINING = (rule("has(self.steps) != has(self.tokens)", "give exactly one of steps and tokens", ".steps"),)

ARCHITECTURE = (
    rule(
        "has(self.headDim) || self.hiddenSize % self.attentionHeads == 0",
        "hiddenSize must be a multiple of attentionHeads, unless headDim is given",
        ".hiddenSize",
    ),
    rule(
        "!has(self.kvHeads) || self.attentionHeads % self.kvHeads == 0",
        "attentionHeads must be a multiple of kvHeads",
        ".kvHeads",
    ),
    rule(
        "has(self.experts) == has(self.expertsPerToken)",
        "experts and expertsPerToken belong together: give both or neither",
        ".expertsPerToken",
    ),
    rule(
        "!has(self.experts) || !has(self.expertsPerToken) || self.expertsPerToken <= self.experts",
        "expertsPerToken must not exceed experts",
        ".expertsPerToken",
    ),
)

_MAX_GPUS = "self.resources.gpus.max"
_MIN_GPUS = f"self.resources.gpus.?min.orValue(self.elasticity.policy == 'Fixed' ? {_MAX_GPUS} : 1)"


def _fixed(degree: str) -> str:
    return f"self.parallelism.?{degree}.?fixed.orValue(1)"


_MODEL_DEGREES = ("tensor", "pipeline", "context")
_REPLICA = " * ".join(map(_fixed, _MODEL_DEGREES))
_UNIT = f"{_REPLICA} * {_fixed('expert')}"
_ALL_FIXED = " && ".join(f"self.parallelism.?{degree}.?fixed.hasValue()" for degree in _MODEL_DEGREES)
_ARCHITECTURE = "self.model.architecture"

_MODE_RULES = (
    *(
        rule(
            f"self.parallelism.mode != 'Data' || {_fixed(degree)} == 1",
            f"mode Data leaves the model whole: {degree} cannot be fixed above 1",
            f".parallelism.{degree}",
        )
        for degree in _MODEL_DEGREES
    ),
    rule(
        f"self.parallelism.mode != 'Model' || {_MAX_GPUS} >= 2",
        "mode Model divides the model over at least 2 GPUs: raise resources.gpus.max",
        ".parallelism.mode",
    ),
    rule(
        f"self.parallelism.mode != 'Hybrid' || {_MAX_GPUS} >= 4",
        "mode Hybrid needs at least 4 GPUs (2 copies on 2 GPUs each): raise resources.gpus.max",
        ".parallelism.mode",
    ),
    rule(
        f"!(self.parallelism.mode in ['Model', 'Hybrid'] && {_ALL_FIXED}) || {_REPLICA} > 1",
        "modes Model and Hybrid divide the model: tensor, pipeline and context cannot all be fixed at 1",
        ".parallelism.mode",
    ),
    rule(
        f"!(self.parallelism.mode == 'Model' && {_ALL_FIXED})"
        f" || ({_REPLICA} >= {_MIN_GPUS} && {_REPLICA} <= {_MAX_GPUS})",
        "with mode Model, tensor x pipeline x context is the number of GPUs: it must lie within resources.gpus",
        ".parallelism.mode",
    ),
    rule(
        f"self.parallelism.mode != 'Model' || {_fixed('expert')} == 1",
        "mode Model has one copy, thus no data-parallel ranks that could divide the experts: use Hybrid or Auto",
        ".parallelism.expert",
    ),
)

_DEGREE_RULES = (
    rule(
        f"{_MIN_GPUS} > {_MAX_GPUS} || {_MAX_GPUS} - {_MAX_GPUS} % ({_UNIT}) >= {_MIN_GPUS}",
        "the product of the fixed degrees must divide a number of GPUs between resources.gpus.min and max",
        ".parallelism",
    ),
    rule(
        f"!has({_ARCHITECTURE}) || {_ARCHITECTURE}.attentionHeads % {_fixed('tensor')} == 0",
        "tensor.fixed must divide model.architecture.attentionHeads",
        ".parallelism.tensor",
    ),
    rule(
        f"!has({_ARCHITECTURE}) || {_fixed('pipeline')} <= {_ARCHITECTURE}.layers",
        "pipeline.fixed must not exceed model.architecture.layers",
        ".parallelism.pipeline",
    ),
    rule(
        f"self.training.sequenceLength % {_fixed('context')} == 0",
        "context.fixed must divide training.sequenceLength",
        ".parallelism.context",
    ),
    rule(
        f"!has({_ARCHITECTURE}) || {_ARCHITECTURE}.?experts.orValue(1) % {_fixed('expert')} == 0",
        "expert.fixed must divide model.architecture.experts (1 for a dense model)",
        ".parallelism.expert",
    ),
)

_CONTAINERS = "self.template.spec.containers"
_TRAINER = (
    f"({_CONTAINERS}.exists(c, c.name == '{TRAINER_CONTAINER}') "
    f"? {_CONTAINERS}.filter(c, c.name == '{TRAINER_CONTAINER}')[0] : {_CONTAINERS}[0])"
)


def _asked_once(resource: str, field: str) -> JsonSchema:
    asked = (f"{_TRAINER}.?resources.?{table}[?'{resource}'].hasValue()" for table in ("requests", "limits"))
    return rule(
        f"!has(self.resources.{field}) || !({' || '.join(asked)})",
        f"the trainer's {resource} is {field} times its GPUs: take it out of the container, or leave {field} out",
        f".resources.{field}",
    )


_DEEPSPEED = "self.launcher != 'DeepSpeed'"

JOB_SPEC = (
    rule(
        f"self.elasticity.policy != 'Fixed' || {_MIN_GPUS} == {_MAX_GPUS}",
        "elasticity.policy Fixed means exactly resources.gpus.max GPUs: set min to the same number or leave it out",
        ".resources.gpus.min",
    ),
    *_MODE_RULES,
    *_DEGREE_RULES,
    rule(
        f"{_DEEPSPEED} || {_fixed('pipeline')} == 1 || self.parallelism.?zeroStage.orValue(0) < 2",
        "DeepSpeed's pipeline engine works with ZeRO stage 0 or 1 only",
        ".parallelism.zeroStage",
    ),
    rule(
        f"{_DEEPSPEED} || {_fixed('tensor')} == 1 || self.parallelism.?zeroStage.orValue(0) < 3",
        "DeepSpeed's tensor parallelism (AutoTP) works with ZeRO stages 0 to 2 only",
        ".parallelism.zeroStage",
    ),
    _asked_once("cpu", "cpusPerGpu"),
    _asked_once("memory", "memoryPerGpu"),
    rule(
        "has(self.managedBy) == has(oldSelf.managedBy)"
        " && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
        "managedBy is immutable: delete the job and create it anew",
        ".managedBy",
    ),
)

QUEUE_QUOTA = (
    rule(
        "!has(self.gpus) || self.?guaranteed.orValue(0) <= self.gpus",
        "guaranteed must not exceed gpus",
        ".guaranteed",
    ),
    rule("has(self.gpus) || self.?guaranteed.orValue(0) > 0", "give gpus, guaranteed or both", ".gpus"),
)

QUEUE_SPEC = (
    rule(
        "!has(self.quotas) || self.quotas.all(whole, whole.gpuType != '*' || !has(whole.gpus)"
        " || self.quotas.all(part, part.?guaranteed.orValue(0) <= whole.gpus))",
        "guaranteed must not exceed gpus of `*`, the limit of all types together",
        ".quotas",
    ),
)

QUEUE_STATUS = (
    rule(
        "!has(oldSelf.leaderEpoch) || (has(self.leaderEpoch) && self.leaderEpoch >= oldSelf.leaderEpoch)",
        "leaderEpoch may never decrease: another controller leads",
        ".leaderEpoch",
    ),
)

JOB = (
    rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "a job's name begins with a letter and has only a-z, 0-9 and - (RFC 1035): it becomes the name of its Service",
        ".metadata.name",
    ),
    *(
        rule(
            f"!has(oldSelf.status) || !has(oldSelf.status.plan) || self.spec.{field} == oldSelf.spec.{field}",
            f"{field} cannot change under a plan: set spec.suspend, wait until status.plan is gone, then change it",
            f".spec.{field}",
        )
        for field in ("model", "training", "launcher", "template")
    ),
    rule("!has(oldSelf.status) || has(self.status)", "status cannot be taken away", ".status"),
)
