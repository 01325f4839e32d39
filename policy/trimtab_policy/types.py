"""The values that travel between observing, deciding and acting.

Everything a policy may know is a `Snapshot`; everything it may say is a `Decision`. Both are frozen, comparable and
serialisable (msgspec), so that one and the same value flows through the live controller, `trimtab plan` on a dumped
snapshot, the simulator and the tests.

Units, unless a field says otherwise: bytes, seconds, FLOP/s, bytes/s; points in time are POSIX seconds.
"Node" is a machine with GPUs, "gang" the set of pods of one job (one pod per node, equal GPUs each). What a model, a
GPU or a parallel plan is, `specs` says.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import cached_property

from msgspec import Struct

from trimtab_policy.specs import GpuSpec, Mode, ModelSpec, ParallelPlan, Precision, Prediction, Recompute, TrainingSpec

MOST_LEAVING = 256
"""Gangs that stop or move for one decision, and that one plan waits for: its status names each of them."""
UNBOUNDED = 1 << 50
"""Millicores or bytes of a node of which nobody has said what it has: more than any pod asks for."""


class Bounds(Struct, frozen=True):
    """Inclusive limits of one degree; `low == high` when the user fixed it."""

    low: int = 1
    high: int = 1 << 20

    def admits(self, value: int) -> bool:
        return self.low <= value <= self.high


class Requirements(Struct, frozen=True):
    """What a job allows: the part of the plan space that a policy may choose from."""

    gpus: Bounds
    gpu_types: tuple[str, ...] = ()
    """Allowed canonical GPU types; empty for any."""
    max_nodes: int | None = None
    gpus_per_node: Bounds = Bounds()
    """What each node of the gang gives; of a job whose pods others make, what each of these asks for."""
    modes: tuple[Mode, ...] = (Mode.DATA, Mode.MODEL, Mode.HYBRID)
    tensor: Bounds = Bounds()
    pipeline: Bounds = Bounds()
    virtual: Bounds = Bounds()
    """Chunks per pipeline rank that the launcher can interleave."""
    context: Bounds = Bounds()
    expert: Bounds = Bounds()
    zero_stage: int | None = None
    """None: free to choose ..."""
    zero_stages: Bounds = Bounds(0, 3)
    """... from these."""
    hybrid_sharding: bool = True
    """Whether the launcher can shard within groups of ranks, e.g. nodes, instead of over all (`ParallelPlan.shard`)."""
    software: str = "megatron-core"
    """What the launcher starts, as `perf.constants` names it: `megatron-core`, `torchtitan`, or `other`."""
    recompute: Recompute | None = None
    """None: free to choose."""
    cpu_milli_per_gpu: int = 0
    memory_per_gpu: int = 0
    """Host memory in bytes per GPU."""
    cpu_milli_per_pod: int = 0
    """What a pod asks for whatever its GPUs: sidecars, or a template with requests of its own."""
    memory_per_pod: int = 0

    @property
    def asks_host(self) -> bool:
        """Whether its pods ask for CPU or memory beside GPUs."""
        return bool(self.cpu_milli_per_gpu or self.memory_per_gpu or self.cpu_milli_per_pod or self.memory_per_pod)

    def cpu_milli(self, gpus: int) -> int:
        """CPU millicores that a pod with so many GPUs requests."""
        return self.cpu_milli_per_pod + gpus * self.cpu_milli_per_gpu

    def memory(self, gpus: int) -> int:
        """Bytes of host memory that a pod with so many GPUs requests."""
        return self.memory_per_pod + gpus * self.memory_per_gpu


class Readings(Struct, frozen=True, omit_defaults=True):
    """How the GPUs of a node are doing, as its agent read it: means over its GPUs. NaN: not known.

    Only `math.nan` itself is left out of JSON, as it has to be: no other NaN may stand here.
    """

    utilization: float = math.nan
    """Part of the time in which some kernel ran, in [0, 1]."""
    memory_used: float = math.nan
    """Part of the memory in use, in [0, 1]."""
    memory_bandwidth: float = math.nan
    """Part of the time (with DCGM: of the cycles) in which memory moved data, in [0, 1]."""
    temperature: float = math.nan
    """Degrees Celsius of the hottest one."""
    power: float = math.nan
    """Power drawn over the power limit, in [0, 1]."""
    arrived: float = 0.0
    """When they arrived, POSIX seconds: their age is `Snapshot.time` less this."""


class Node(Struct, frozen=True):
    """A schedulable machine with GPUs of one type."""

    name: str
    gpu_type: str
    gpus: int
    """Allocatable GPUs."""
    free_gpus: int
    """Not requested by any pod that is bound or promised to the node; negative when the node is over-allocated."""
    free_cpu_milli: int
    free_memory: int
    free_pods: int
    topology: tuple[str, ...] = ()
    """Enclosing domains from widest to nearest, e.g. (zone, block, rack): a longer shared prefix is a shorter way."""
    link_domain: str = ""
    """GPUs of equal link_domain share NVLink/xGMI; empty where the domain ends at the node."""
    speed: float = 1.0
    """Rate of its slowest GPU over what its type does, in (0, 1]: a gang with a part here is slowed to this."""
    foreign_gpus: int = 0
    """Of those not requested by any pod, GPUs that are busy all the same; `free_gpus` leaves them out."""
    readings: Readings | None = None
    """None without an agent, or where its readings are stale or implausible."""
    cpu_milli: int = UNBOUNDED
    """Allocatable millicores of CPU: what no pod can ask for more of, even on the empty node."""
    memory: int = UNBOUNDED
    """Allocatable bytes of host memory, likewise."""


class NodeShare(Struct, frozen=True):
    """GPUs that a gang takes of one node, i.e. one pod."""

    node: str
    gpus: int


class Alternative(Struct, frozen=True):
    """A choice that lost, kept to explain the one that won."""

    gpu_type: str
    gpus: int
    plan: ParallelPlan
    prediction: Prediction
    why_not: str
    worth: float | None = None
    """To the job, beside the chosen one: 1 is as much. None where the policy does not say."""
    price: float | None = None
    """What others would pay for its GPUs, as a part of what the chosen one is worth to the job."""


class Placement(Struct, frozen=True):
    """The whole answer for one job: type, count, parallelism and nodes."""

    job: str
    """UID of the job."""
    gpu_type: str
    shares: tuple[NodeShare, ...]
    """Rank order: the first share holds rank 0. Equal GPUs each."""
    plan: ParallelPlan
    prediction: Prediction
    reason: str
    """Why this one, in the words a user would ask for."""
    alternatives: tuple[Alternative, ...] = ()
    speed: float = 1.0
    """Lowest `Node.speed` among its nodes, which the prediction takes into account."""

    @property
    def gpus(self) -> int:
        return sum(share.gpus for share in self.shares)


class PendingReason(StrEnum):
    """Why a job has no placement: a closed list that tools may rely on."""

    NO_FEASIBLE_PLAN = "NoFeasiblePlan"
    """No division of the model over the GPUs that the job allows fits into their memory, or divides evenly. The
    message has the nearest miss in numbers; more GPUs, other types or free degrees help."""
    NO_SUCH_GPU = "NoSuchGpu"
    """The cluster has none of the GPU types in `spec.resources.gpuTypes`."""
    NO_ELIGIBLE_NODE = "NoEligibleNode"
    """No GPU node matches the nodeSelector, affinity and tolerations of `spec.template`."""
    CLUSTER_TOO_SMALL = "ClusterTooSmall"
    """Were all nodes empty, even its smallest plan would not fit: it takes more GPUs than there are on nodes that it
    may use, or its pods ask for more CPU or memory than any of these nodes has."""
    INSUFFICIENT_GPUS = "InsufficientGpus"
    """Too few GPUs are free now; the message says who holds them. It starts when enough of them end."""
    FRAGMENTED = "Fragmented"
    """Enough GPUs are free, but not on the same nodes, not within one NVLink domain, or without the CPU and memory
    that its pods ask for."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """Its queue has given out all that it may have. It starts when a job of the queue ends, or with a higher limit."""
    QUEUE_NOT_FOUND = "QueueNotFound"
    """There is no Queue of the name in `spec.queue`."""
    PRIORITY_CLASS_NOT_FOUND = "PriorityClassNotFound"
    """There is no PriorityClass of the name in `spec.priorityClassName`."""
    OBJECT_NOT_FOUND = "ObjectNotFound"
    """Its template refers to a PersistentVolumeClaim, Secret, ConfigMap or ServiceAccount that is not in its namespace;
    the message names field and object. It goes on within seconds once that is there."""
    INVALID_SPEC = "InvalidSpec"
    """The spec is understood by the API server, but makes no sense together; the message names the field."""
    QUEUE_NOT_ALLOWED = "QueueNotAllowed"
    """The job's namespace may not use the queue."""
    QUEUE_FULL = "QueueFull"
    """The queue has as many waiting jobs as it takes."""
    BEHIND_OTHERS = "BehindOthers"
    """There may be room, but the policy gives it to jobs that come first."""
    WAITING_FOR_BETTER = "WaitingForBetterGpus"
    """GPUs that come free soon are worth more to it than what it could have now, or before that."""
    RESERVED = "Reserved"
    """There is room, but it is kept for a job that came first and would be delayed."""
    WAITING_FOR_ADMISSION = "WaitingForAdmission"
    """Another system (Kueue) has the say, and has not admitted it yet."""
    BACKING_OFF = "BackingOff"
    """Its last gang failed, or what it left behind is still there. It is tried again after a pause that doubles;
    `status.failures` and the message say what went wrong."""
    DECISION_REFUSED = "DecisionRefused"
    """What the policy decided for it breaks a rule, and was not done. That is a bug of the policy; the message has the
    rule."""
    DECISION_FAILED = "DecisionFailed"
    """Deciding about this very job fails, which is a bug of ours: all others are decided about without it."""
    NOT_CONSIDERED = "NotConsidered"
    """So many jobs are new, or wait in its queue or namespace, that its turn has not come."""


FITS_NOWHERE = frozenset(
    (
        PendingReason.NO_FEASIBLE_PLAN,
        PendingReason.NO_SUCH_GPU,
        PendingReason.NO_ELIGIBLE_NODE,
        PendingReason.CLUSTER_TOO_SMALL,
    )
)
"""Reasons why a job would find no place even if it were alone on the cluster."""
NEVER_STARTS = FITS_NOWHERE | {
    PendingReason.QUEUE_NOT_FOUND,
    PendingReason.QUEUE_NOT_ALLOWED,
    PendingReason.PRIORITY_CLASS_NOT_FOUND,
    PendingReason.OBJECT_NOT_FOUND,
    PendingReason.INVALID_SPEC,
}
"""Reasons that no other job's end takes away: somebody has to change the job or the cluster."""


class StopCause(StrEnum):
    """Why a running gang is asked to stop: a closed list that tools may rely on."""

    PREEMPTED = "Preempted"
    """A job of higher priority gets its GPUs."""
    RECLAIMED = "Reclaimed"
    """Its queue holds more than it is guaranteed, and another one wants what it is guaranteed."""
    YIELDED = "Yielded"
    """The policy wants its GPUs for others; the job has said that it may."""
    RESIZED = "Resized"
    """It goes on with more or fewer GPUs."""
    MOVED = "Moved"
    """It goes on elsewhere, or divided otherwise: so that another gang fits, or because it is faster there."""
    STRAGGLER = "Straggler"
    """It leaves a slow GPU."""
    SUSPENDED = "Suspended"
    """Its user has set spec.suspend."""
    SPEC_CHANGED = "SpecChanged"
    """Its user has changed the spec so that the plan is no longer allowed."""
    EVICTED = "Evicted"
    """Kueue has taken its admission back."""
    IDLE = "Idle"
    """It has held GPUs and done nothing for long, and its notice is over."""


class Eta(Struct, frozen=True):
    """When something is expected, as POSIX seconds: four times of five between `low` and `high`."""

    low: float
    expected: float
    high: float


class Wording(Struct, frozen=True):
    """What a text says besides the points in time that it tells of: these move with every report of a running job."""

    timeless: str
    """The text without them."""
    times: tuple[float, ...] = ()
    """In the order in which the text tells them, as POSIX seconds."""


class Awaited(Struct, frozen=True):
    """GPUs that a job waits for though it could have others."""

    gpu_type: str
    gpus: int
    step_seconds: float
    """Of the job on these, as predicted."""


class Remedy(Struct, frozen=True):
    """A change that would help a job which waits, for whoever wants to try it. What is left out stays as it is."""

    gpus: int | None = None
    """The job takes just so many."""
    gpu_types: tuple[str, ...] | None = None
    """It may have these types; empty for all."""
    priority: int | None = None
    queue: str | None = None
    gpu_type: str = ""
    """Of the two below."""
    quota: int = 0
    """So many GPUs more are allowed to its queue."""
    nodes: int = 0
    """So many nodes more, with `node_gpus` each."""
    node_gpus: int = 0
    max_nodes: int | None = None
    """The job may spread over so many nodes."""
    any_degrees: bool = False
    """How its work is divided is left free."""
    precision: Precision | None = None
    """It is trained in this format."""


class Pending(Struct, frozen=True):
    """Why a job waits, and what would let it start."""

    job: str
    reason: PendingReason
    message: str
    blockers: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    """Changes that would unblock it, each a sentence."""
    eta: Eta | None = None
    """When it is expected to start; None when that is not in sight."""
    awaited: Awaited | None = None
    """What it waits for on purpose: GPUs are kept, and others give way, for nothing that is slower."""
    wordings: dict[str, Wording] = {}
    """Of those of the above texts that tell of points in time (`placement.wording`)."""
    remedies: tuple[Remedy, ...] = ()
    """Those of the alternatives that could be tried."""


class Speed(Struct, frozen=True):
    """What a job makes of so many GPUs of one type, where that was measured or given and not predicted."""

    gpu_type: str
    gpus: int
    nodes: int
    """Over how many nodes they are spread. Such gangs may take unequal parts of their nodes."""
    steps_per_second: float
    """In the steps of `TrainingSpec.steps`, whatever a step stands for: a second of a trace, an iteration."""


class Correction(Struct, frozen=True):
    """By how much predictions for a job are corrected on one GPU type, because of what other jobs were seen to take."""

    gpu_type: str
    """Empty for all types that have no correction of their own."""
    plan: str
    """Class of plans (`correction.plan_class`); empty for all that have no correction of their own."""
    factor: float
    """Observed over predicted step time."""
    uncertainty: float
    """Factor of the 80 % interval of a corrected step time, as `Prediction.uncertainty`."""
    locality: str = ""
    """How the gang lies (`correction.Locality`); empty for all ways that have no correction of their own."""
    measured: float = 0.0
    """How much of that uncertainty was seen in this cluster, and not believed beforehand: 0 to 1."""


class Grant(Struct, frozen=True):
    """GPUs that a gang was given at one time, and their place in the order in which GPUs were given (`grants`)."""

    gpus: int
    order: int
    """Among all that are held, whatever their type: given later, higher."""
    type_order: int
    """Among those of its type: a gang that goes on with another type was given those later."""


class Job(Struct, frozen=True):
    """A training job as policies see it."""

    uid: str
    namespace: str
    name: str
    model: ModelSpec
    training: TrainingSpec
    requirements: Requirements
    created: float
    priority: int = 0
    queue: str = ""
    placement: Placement | None = None
    """Set while the job holds GPUs."""
    grants: tuple[Grant, ...] = ()
    """The GPUs of its placement in the order in which it was given them; empty where that is not known."""
    started: float | None = None
    expected_finish: float | None = None
    """When the job is expected to give its GPUs back, if it holds any."""
    steps_done: int = 0
    """Of those that the job states, those that need not be done again."""
    steps_beyond: int = 0
    """Those that it has made beyond all that it states: such a job is longer than it says."""
    eligible: tuple[str, ...] | None = None
    """Names of the nodes that selectors, affinity and tolerations admit; None for all."""
    policy: str | None = None
    """Policy asked for by the job itself, for tests and comparisons."""
    speeds: tuple[Speed, ...] | None = None
    """All that it could run on, where that is known; None: what the performance model finds for `requirements`."""
    preemptible: bool = False
    """Whether it may be stopped, moved or resized while it runs."""
    elastic: bool = False
    """Whether its owner allows that, though it may be too early now, or it may wait."""
    restart_seconds: float = 0.0
    """GPU time that a stop and a new start are expected to cost: save, schedule, load."""
    restarts: int = 0
    """Starts after the first."""
    resuming: float = 0.0
    """Seconds until it computes again, if it is being started or restarted."""
    served: dict[str, float] = {}
    """GPU-seconds that it has held, by GPU type."""
    deadline: float | None = None
    corrections: tuple[Correction, ...] = ()
    """Of what the performance model predicts for it; its own `speeds` need none."""
    share: float = 0.0
    """What its queue holds already, over the weight of the queue: of equal priority, who has less comes first."""
    entitled: bool = False
    """Its queue holds less than it is guaranteed."""
    movable_from: float = 0.0
    """POSIX time before which a running job must not be stopped, moved or resized for the good of others or its own:
    it has just been started, or had to give way too often. Infinite while it is being started or stopped."""
    stoppable_from: float | None = None
    """Of a gang that is being started: POSIX time from which it should run, and may be stopped, though not moved, for
    those who are entitled to its GPUs. None: never; it runs, or is being stopped."""
    lost_seconds: float = 0.0
    """Of a running job: seconds of work that a stop would lose if it did not save a checkpoint first."""
    not_before: float = 0.0
    """POSIX time before which it must not start: its last gang has just failed."""
    waits_since: float | None = None
    """Since when it has waited (again), where it has run before; None: since it was created."""
    preempts: bool = True
    """Whether jobs of lower priority may be stopped for it."""


class Quota(Struct, frozen=True):
    """Limits of one queue on one GPU type (`*` for all types together)."""

    queue: str
    gpu_type: str
    gpus: int
    """Most that its jobs may hold at a time."""
    guaranteed: int = 0
    """What it may have back at any time: of what it holds, the rest is borrowed."""


class Snapshot(Struct, frozen=True, dict=True):
    """The cluster at one moment: all that a policy may know."""

    time: float
    nodes: tuple[Node, ...]
    """Only nodes that may take new pods; `unavailable` says why the others may not."""
    jobs: tuple[Job, ...]
    """Jobs that wait for a decision, hold GPUs, or are to start again in a moment. Finished and suspended ones are
    absent, and those that failed and wait for longer before they are tried again."""
    gpu_types: dict[str, GpuSpec]
    """Facts of every type that occurs in `nodes`."""
    quotas: tuple[Quota, ...] = ()
    weights: dict[str, float] = {}
    """Queue -> its part of what nobody is guaranteed, relative to the others; 1 where it is left out."""
    unavailable: dict[str, str] = {}
    """GPU node -> why it takes no pods (cordoned, NotReady, no memory label, ...)."""
    ending: dict[str, int] = {}
    """Node -> GPUs of it that no job has any more, and that are not free before the pods on them have ended."""
    speedup: float = 1.0
    """Jobs run so many times as fast as predicted: other than 1 only where pods are fake."""
    granted: int = 0
    """The highest order of a grant that stands, or is about to."""

    def waiting(self) -> list[Job]:
        """Jobs to decide about, in line."""
        return [job for job in self.line() if job.not_before <= self.time]

    def line(self) -> list[Job]:
        """Jobs without a placement, also those that come back in a moment, most urgent first: priority, guarantee,
        share of the queue, age, name."""
        return list(self._in_line)

    @cached_property
    def _in_line(self) -> list[Job]:  # each stage of a decision asks for it
        return sorted((job for job in self.jobs if job.placement is None), key=in_turn)


def in_turn(job: Job) -> tuple[float | str, ...]:
    """What waiting jobs are sorted by: the most urgent is the least."""
    return -job.priority, not job.entitled, job.share, job.created, job.namespace, job.name


class Stop(Struct, frozen=True):
    """A running job that is to give its GPUs back and wait."""

    job: str
    reason: str
    cause: StopCause = StopCause.PREEMPTED
    beneficiary: str = ""
    """UID of the job that gets its GPUs; empty where there is none in particular."""


class DoubtReason(StrEnum):
    """Why a learned policy does without what it has learned: a closed list that tools may rely on."""

    OUT_OF_TRAINING = "out_of_training"
    """The job is unlike all that the policy was trained on."""
    CLUSTER_OUT_OF_TRAINING = "cluster_out_of_training"
    """The cluster as a whole is, e.g. its load, and not the job."""
    NOT_FINITE = "not_finite"
    """What it has learned comes to no finite number."""


class Doubt(Struct, frozen=True):
    """Jobs about which a learned policy decided without what it has learned."""

    reason: DoubtReason
    message: str
    """The same for as long as the reason is: it is told as an event."""
    jobs: tuple[str, ...]
    """UIDs."""


class Decision(Struct, frozen=True):
    """What a policy wants: placements, and for every other waiting job the reason why not.

    A placement of a job that runs moves or resizes it; a running job that is not mentioned goes on as it is. Both this
    and `stops` are only for jobs that are preemptible.
    """

    policy: str
    placements: tuple[Placement, ...] = ()
    pending: tuple[Pending, ...] = ()
    stops: tuple[Stop, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    line: tuple[str, ...] | None = None
    """Waiting jobs, by UID, that GPUs are to be kept for, those first that matter most. Of a policy that decides by
    itself who comes first; None: whoever came first, and the others in line behind it. What comes before all that is
    priority, and what a queue is guaranteed."""
