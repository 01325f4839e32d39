"""What jobs have shown of the errors of predictions, as it is kept: by key, by namespace, the latest of each.

A job that has run long enough gives one number, ln(observed / predicted step time), the prediction taken without any
correction. It belongs to a key: the GPU type, the framework with its number format, the model, the class of its plan
(the mode, and what ZeRO shards), and how the gang lies in link domains (`Locality`). `hierarchy` says what follows from
it for predictions, `correction` how it is learned and used.
"""

from __future__ import annotations

import hashlib
import math
from enum import StrEnum

import msgspec
from msgspec import UNSET, Struct

from trimtab_policy.perf import drift
from trimtab_policy.specs import ModelSpec, ParallelPlan, TrainingSpec
from trimtab_policy.types import Job

VERSION = 3
READABLE = (1, 2, VERSION)
"""The first had one book for all namespaces: what stands in it is that of a namespace without a name. The second did
not tell how gangs lay: their locality is unknown."""
LARGEST_ERROR = math.log(1000)
"""Whatever is beyond it is a mistake of somebody, and still finite."""
LARGEST_COUNT = 1 << 53


class Locality(StrEnum):
    """How a gang lies in link domains."""

    UNKNOWN = ""
    """Nobody has said: what was learned before it was told apart."""
    LINKED = "linked"
    """All of its GPUs share a link: those of one node, or of one link domain of several nodes."""
    PARTS = "parts"
    """Equal parts of several nodes in each of several link domains."""
    SCATTERED = "scattered"
    """Some node shares a link with no other."""


class Level(StrEnum):
    """What an error is shared by, from the whole to its parts; each is one of a part of the one before."""

    CLUSTER = "cluster"
    GPU_TYPE = "gpu_type"
    FRAMEWORK = "framework"
    MODEL = "model"
    PLAN = "plan"
    LOCALITY = "locality"


LEVELS = tuple(Level)
DEPTH = len(LEVELS) - 1
"""Of a key: parts of its path."""
Path = tuple[str, ...]
"""GPU type, framework, model, class of plans, locality; or the first few of them: a level's."""


class CorrectionRules(Struct, frozen=True, forbid_unknown_fields=True):
    """How much is believed of what is seen. Deviations are of logarithms: 0.15 is about 15 %."""

    cluster: float = 0.05
    """Of what is off in all of a cluster, before anything was seen: several GPU types must agree on it."""
    gpu_type: float = 0.08
    """Of the GPU types of a cluster: several models must agree before all of a type is in doubt."""
    framework: float = 0.05
    """Of the frameworks and number formats on one GPU type."""
    model: float = 0.08
    """Of the models that one framework trains there."""
    plan: float = 0.11
    """Of the classes of plans of one model."""
    locality: float = 0.05
    """Of the ways to lie in link domains that gangs of one class have."""
    noise: float = 0.15
    """Of the jobs of one key."""
    believed: float = 4.0
    """Jobs that the belief about the noise is worth, and members of a level that the belief about their spread is."""
    wider: float = 4.0
    """Bound of what is learned of a spread, as a factor of its belief, and its inverse."""
    outlier: float = 3.0
    """In units of the noise."""
    largest_factor: float = 3.0
    """Bound of a correction, and of its inverse."""
    window: int = 24
    """Jobs of a key that count: the latest."""
    keys: int = 512
    """Keys that are remembered, of all namespaces together: those last seen. Who has most gives way first."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in (*(level.value for level in Level), "noise", "outlier", "believed"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number above 0, got {getattr(self, name)}")
        for name in ("wider", "largest_factor"):
            if not 1 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and above 1, got {getattr(self, name)}")
        if self.window < 1 or self.keys < 1:
            raise ValueError(f"window and keys must be at least 1, got {self.window} and {self.keys}")


class Key(Struct, frozen=True, order=True):
    """What predictions are corrected by."""

    model: str
    gpu_type: str
    plan: str
    """The class of plans (`plan_class`), which begins with framework and number format."""
    locality: Locality = Locality.UNKNOWN

    @property
    def path(self) -> Path:
        """From the GPU type to the locality."""
        return self.gpu_type, _framework(self.plan), self.model, self.plan, self.locality


class JobEvidence(Struct, frozen=True, array_like=True):
    """What one job showed."""

    job: str
    number: int
    """Of the lesson, over all keys: a job has a new one when its figure settles."""
    error: float
    settled: bool = True
    """Whether its figure moves no more, and was held against what was expected of it."""


class NamespaceEvidence(Struct, frozen=True):
    """The jobs of one key and one namespace, the latest last."""

    key: Key
    seen: tuple[JobEvidence, ...]
    namespace: str = ""
    """As `anonymous` calls it."""


class ShiftWatch(Struct, frozen=True):
    """Whether all that one namespace runs on a GPU type changes: jobs, and what earlier ones of their kind showed."""

    namespace: str
    gpu_type: str
    stream: drift.Stream = drift.Stream()
    changed: float = 0.0
    """ln of the factor by which step times last changed."""
    at: int = 0
    """Number of the lesson that told so; 0 for none."""
    several: bool = False
    """Whether jobs of several models have, or of the only one that is run."""


class State(Struct, frozen=True):
    """All that was learned: a value that is written down as JSON."""

    version: int = VERSION
    count: int = 0
    """Lessons so far: one when a job is first seen, and one when an early figure has settled."""
    known: tuple[NamespaceEvidence, ...] = ()
    """The key seen last comes last."""
    watches: tuple[ShiftWatch, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for what nobody could have written: figures that are none."""
        if self.version not in READABLE:
            raise ValueError(f"version {self.version} is not {VERSION}, the one that is understood here")
        if not 0 <= self.count <= LARGEST_COUNT:
            raise ValueError(f"count must lie between 0 and {LARGEST_COUNT}, got {self.count}")
        if not all(known.seen for known in self.known):
            raise ValueError("seen must not be empty: a key that no job has run under is left out")
        errors = [seen.error for known in self.known for seen in known.seen]
        if not all(abs(error) <= LARGEST_ERROR for error in (*errors, *(watch.changed for watch in self.watches))):
            raise ValueError(f"errors must be finite, and at most {LARGEST_ERROR:.2f} from 0")
        for watch in self.watches:
            if not (_is_sound(watch.stream) and 0 <= watch.at <= LARGEST_COUNT):
                raise ValueError(f"watches: that of {watch.gpu_type} holds what no jobs could have shown")


def anonymous(name: str) -> str:
    """What a job or a namespace is called in what was learned: short, and nobody's secret."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def model_name(model: ModelSpec) -> str:
    """The preset's name, or one made of the shape: models of equal shape are one."""
    if model.name != "custom":
        return model.name
    return f"custom-{hashlib.sha256(msgspec.json.encode(model)).hexdigest()[:10]}"


def plan_class(software: str, training: TrainingSpec, plan: ParallelPlan) -> str:
    """E.g. `megatron-core/BF16/Hybrid/zero1`; stages 1 and 2 move the same data.

    Fine-tunes are classes of their own, e.g. `torchtitan/BF16+LoRA-NF4+offload/Data/zero3`: what one of them teaches
    says nothing of training all weights.
    """
    return f"{launched(software, training)}{plan.mode}/zero{(0, 1, 1, 3)[plan.zero_stage]}"


def key_of(job: Job, gpu_type: str, plan: ParallelPlan, lies: Locality = Locality.UNKNOWN) -> Key:
    """What a plan of the job is corrected by, on a gang that lies so."""
    return Key(model_name(job.model), gpu_type, plan_class(job.requirements.software, job.training, plan), lies)


def locality(gpus: int, nodes: int, linked: int) -> Locality:
    """How a gang lies of whose GPUs so many share a link at least (`Option.linked`); 0: links end at the node."""
    if nodes == 1 or linked >= gpus:
        return Locality.LINKED
    return Locality.PARTS if linked > gpus // nodes else Locality.SCATTERED


def _framework(plan: str) -> str:
    """What a class of plans has in common with others of its framework and number format."""
    return plan.rsplit("/", 2)[0]


def launched(software: str, training: TrainingSpec) -> str:
    adapters = "" if training.adapters is UNSET else f"+LoRA-{training.adapters.quantization}"
    offload = "" if training.offload is UNSET else "+offload"
    return f"{software}/{training.precision}{adapters}{offload}/"


def _is_sound(stream: drift.Stream) -> bool:
    sums = stream.slower, stream.faster, stream.fit
    counts = (*(each.count for each in sums), stream.differences, stream.alarms)
    figures = (*(each.height for each in sums), stream.squares, *(abs(each.total) for each in sums))
    return (
        all(0 <= count <= LARGEST_COUNT for count in counts)
        and all(0 <= figure <= LARGEST_COUNT for figure in figures)
        and max(abs(stream.correction), abs(stream.last or 0.0)) <= 2 * LARGEST_ERROR
    )
