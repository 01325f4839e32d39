"""What the jobs of `trimtab/Cluster-v0` are: families of LLM jobs, the gangs they may run on, and when they arrive.

A family is a model with its batch. Its work is counted in GPU-seconds of its most efficient option, so that the speed
of an option is the number of such GPUs that it is worth: 4 where four GPUs scale perfectly. The default families follow
from the performance model, like everything that the live system decides: a policy that learns here has seen the memory
limits, the break-even points between types and the scaling of the very options that it will be asked about. Goodput
tables or invented families come in as plain arrays (`Families`).

Load is stated against what the cluster could carry at best: load 1 is the largest arrival rate at which some mix of
allocations finishes work as fast as it arrives (`saturation`, a linear program in the fluid limit).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.optimize import linprog

from trimtab_policy import catalog
from trimtab_policy.observation.encode import MODES
from trimtab_policy.perf.plans import Offer, options_by_type
from trimtab_policy.perf.restarts import checkpoint_bytes
from trimtab_policy.sim.llm import LlmRules
from trimtab_policy.specs import Precision, TrainingSpec
from trimtab_policy.types import Bounds, Requirements, Snapshot

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Machines(NamedTuple):
    """The cluster, and the gangs that are offered on it; types by their first appearance."""

    types: tuple[str, ...]
    node_type: Ints
    """(nodes,)"""
    node_gpus: Ints
    """(nodes,)"""
    option_type: Ints
    """(options,) GPU type of each gang."""
    option_nodes: Ints
    """(options,)"""
    option_width: Ints
    """(options,) GPUs on each of its nodes."""

    @property
    def option_gpus(self) -> Ints:
        return self.option_nodes * self.option_width

    @property
    def gpus_of(self) -> Ints:
        """GPUs of each type."""
        return np.bincount(self.node_type, weights=self.node_gpus).astype(np.int64)


class Families(Struct, frozen=True, eq=False):
    """Kinds of jobs, as arrays over families (and options of `Machines`)."""

    names: tuple[str, ...]
    share: Floats
    """(families,) of the jobs; sums to 1."""
    speed: Floats
    """(families, options) work per second, in GPUs of the most efficient option; 0 where it cannot run."""
    gpu_hours: Floats
    """(families, 2) smallest and largest work; in between the logarithm is uniform."""
    start_seconds: Floats
    """(families,) until a job computes after its first start."""
    restart_seconds: Floats
    """(families, options) the same after every other start, a move or a resize."""
    mode: Ints | None = None
    """(families, options) index into `encode.MODES` of each option's plan; None: all are data parallel."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        count = len(self.names)
        if self.speed.ndim != 2 or len(self.speed) != count or not (self.speed >= 0).all():
            raise ValueError(f"speed must be ({count}, options) and not negative, got shape {self.speed.shape}")
        if not self.speed.any(axis=1).all():
            raise ValueError(f"speed: a family without an option that runs: {self.names[self.speed.any(1).argmin()]}")
        if self.share.shape != (count,) or not np.isclose(self.share.sum(), 1) or not (self.share >= 0).all():
            raise ValueError(f"share must be {count} parts that sum to 1, got {self.share}")
        low, high = self.gpu_hours.reshape(-1, 2).T
        if self.gpu_hours.shape != (count, 2) or not ((low > 0) & (low <= high)).all():
            raise ValueError(f"gpu_hours must be ({count}, 2), above 0 and ascending, got {self.gpu_hours.tolist()}")
        if self.start_seconds.shape != (count,) or self.restart_seconds.shape != self.speed.shape:
            raise ValueError("start_seconds must be (families,) and restart_seconds (families, options)")

    @property
    def mean_work(self) -> Floats:
        """(families,) GPU-seconds."""
        low, high = self.gpu_hours.T
        spread = np.log(high / low)
        flat = spread < 1e-9
        mean: Floats = 3600 * np.where(flat, low, (high - low) / np.where(flat, 1.0, spread))
        return mean

    @property
    def fastest_seconds(self) -> float:
        """Mean run time of a job that always has its fastest option."""
        return float(self.share @ (self.mean_work / self.speed.max(axis=1)))


class ClusterEpisode(NamedTuple):
    """Jobs of one episode, in the order of their submission; columns (jobs,)."""

    submitted: Floats
    family: Ints
    work: Floats
    told: Floats
    """What users believe the work to be."""
    deadline: Floats
    """Infinite for none."""


class Mix(NamedTuple):
    """How the jobs of an episode are drawn."""

    jobs: int
    rate: float
    """Arrivals per second: a Poisson process."""
    estimate_sigma: float
    """Spread of ln(told / work)."""
    deadline_share: float
    """Part of the jobs with a deadline: 2 to 10 times their fastest run time after submission, uniform."""


class JobFamily(NamedTuple):
    """One of the default families, as jobs of the live API have it."""

    model: str
    """Name of its preset."""
    sequence: int
    share: float
    """Of the jobs."""
    gpu_hours: tuple[float, float]
    """Smallest and largest work, on the most efficient GPU."""

    def training(self, steps: int) -> TrainingSpec:
        """What it trains: FP16, which every card has."""
        return TrainingSpec(self.sequence, _BATCH, steps, Precision.FP16)


_LLM = (
    # Small jobs are many and large ones few, over two and a half decades, as in
    # the size classes of Sia's workloads (SOSP 2023); the numbers themselves are ours.
    JobFamily("bert-base", 512, 0.30, (0.1, 1.0)),
    JobFamily("gpt2", 1024, 0.22, (0.2, 2.0)),
    JobFamily("gpt2-medium", 1024, 0.20, (0.5, 5.0)),
    JobFamily("gpt2-xl", 1024, 0.14, (1.0, 10.0)),
    JobFamily("gpt3-2.7b", 2048, 0.09, (4.0, 20.0)),
    JobFamily("llama2-7b", 2048, 0.05, (8.0, 40.0)),
)
_BATCH = 64


def machines(cluster: Snapshot, largest: int = 16) -> Machines:
    """The nodes of an empty cluster and, on each GPU type, gangs of 1, 2, 4, ... `largest` GPUs on the fewest nodes.

    Raises ValueError where the nodes of one type differ in size: gangs have equal parts.
    """
    types = tuple(dict.fromkeys(node.gpu_type for node in cluster.nodes))
    node_type = np.array([types.index(node.gpu_type) for node in cluster.nodes], dtype=np.int64)
    node_gpus = np.array([node.gpus for node in cluster.nodes], dtype=np.int64)
    options = []
    for kind, name in enumerate(types):
        sizes = np.unique(node_gpus[node_type == kind])
        if len(sizes) > 1:
            raise ValueError(f"cluster: nodes of {name} have {sizes.tolist()} GPUs, but a type must have one size")
        most = min(largest, int(node_gpus[node_type == kind].sum()))
        options += [(kind, *gang) for power in range(most.bit_length()) if (gang := _gang(1 << power, int(sizes[0])))]
    columns = np.array(options, dtype=np.int64).T
    return Machines(types, node_type, node_gpus, *columns)


def _gang(gpus: int, node_gpus: int) -> tuple[int, int] | None:
    """(nodes, GPUs of each), if so many can be had in equal parts of as few nodes as can be."""
    nodes = -(-gpus // node_gpus)
    return None if gpus % nodes else (nodes, gpus // nodes)


@lru_cache(maxsize=16)
def _predicted(kind: JobFamily, offers: tuple[Offer, ...], most: int) -> dict[tuple[str, int, int], tuple[float, int]]:
    """(type, nodes, width) -> steps per second, and the mode."""
    found = options_by_type(catalog.model(kind.model), kind.training(1), Requirements(Bounds(1, most)), offers)
    return {
        (offer.gpu.name, option.nodes, option.gpus_per_node): (
            1 / option.prediction.step_seconds,
            MODES.index(option.plan.mode),
        )
        for offer, options in zip(offers, found, strict=True)
        for option in options
    }


class FamilyPlans(NamedTuple):
    """What one of the default families makes of each option, from the performance model."""

    rate: Floats
    """(options,) steps per second; 0 where it cannot run."""
    mode: Ints
    """(options,) index into `encode.MODES`."""


def plans(cluster: Snapshot, gangs: Machines) -> dict[JobFamily, FamilyPlans]:
    """The default families that fit a gang of the cluster. Raises ValueError when none does."""
    size = dict(zip(gangs.node_type.tolist(), gangs.node_gpus.tolist(), strict=True))
    offers = tuple(Offer(cluster.gpu_types[name], size[kind]) for kind, name in enumerate(gangs.types))
    keys = list(zip(gangs.option_type.tolist(), gangs.option_nodes.tolist(), gangs.option_width.tolist(), strict=True))
    found = {}
    for kind in _LLM:
        known = _predicted(kind, offers, int(gangs.option_gpus.max()))
        pairs = [known.get((gangs.types[type_], nodes, width), (0.0, 0)) for type_, nodes, width in keys]
        rate, mode = np.array([rate for rate, _ in pairs]), np.array([mode for _, mode in pairs], dtype=np.int64)
        if rate.any():
            found[kind] = FamilyPlans(rate, mode)
    if not found:
        raise ValueError("cluster: none of the default models fits its GPUs; give families of your own")
    return found


def most_efficient(gangs: Machines, rate: Floats) -> float:
    """Steps per second of one GPU of the option that gets most out of its GPUs: what counts as a GPU of work."""
    return float((rate / gangs.option_gpus).max())


def llm(cluster: Snapshot, gangs: Machines) -> Families:
    """The default families: six transformers of 0.1 to 7 billion parameters.

    Speeds from the performance model (`plans`), restarts as of `sim.llm`. Raises ValueError when none fits.
    """
    found = plans(cluster, gangs)
    kinds = list(found)
    rows = [each.rate / most_efficient(gangs, each.rate) for each in found.values()]
    share = np.array([kind.share for kind in kinds])
    rules = LlmRules()
    begin = rules.schedule_seconds + rules.startup_seconds
    bandwidth = np.minimum(gangs.option_nodes * rules.storage_bandwidth, rules.storage_limit)
    sizes = np.array([checkpoint_bytes(catalog.model(kind.model), TrainingSpec(1, 1, 1)) for kind in kinds])
    return Families(
        names=tuple(kind.model for kind in kinds),
        share=share / share.sum(),
        speed=np.array(rows),
        gpu_hours=np.array([kind.gpu_hours for kind in kinds]),
        start_seconds=np.full(len(kinds), begin),
        restart_seconds=begin + 2 * sizes[:, None] / bandwidth,
        mode=np.array([each.mode for each in found.values()]),
    )


def saturation(gangs: Machines, families: Families) -> float:
    """Largest arrival rate (jobs per second) that the cluster can carry, were GPUs divisible in time.

    max rate subject to sum_o speed[f, o] x[f, o] = rate share[f] work[f] for every family f, and for every GPU type
    sum over its options of gpus[o] x[f, o] <= GPUs; x[f, o] is how many jobs of family f run on option o at a time.
    """
    count, options = families.speed.shape
    demand = families.share * families.mean_work
    supply = np.zeros((count, count * options + 1))
    for family in range(count):
        supply[family, family * options : (family + 1) * options] = families.speed[family] / demand.sum()
    supply[:, -1] = -demand / demand.sum()
    of_type = gangs.option_type == np.arange(len(gangs.types))[:, None]
    held = np.hstack([np.tile(of_type * gangs.option_gpus, count), np.zeros((len(gangs.types), 1))])
    goal = np.zeros(count * options + 1)
    goal[-1] = -1
    found = linprog(goal, A_ub=held, b_ub=gangs.gpus_of, A_eq=supply, b_eq=np.zeros(count))
    return float(-found.fun)


def draw(families: Families, mix: Mix, random: np.random.Generator) -> ClusterEpisode:
    """The jobs of one episode. The first one arrives at 0."""
    gaps = random.exponential(1 / mix.rate, mix.jobs)
    gaps[0] = 0
    submitted = np.cumsum(gaps)
    family = random.choice(len(families.names), mix.jobs, p=families.share)
    low, high = np.log(3600 * families.gpu_hours[family]).T
    work = np.exp(random.uniform(low, high))
    told = work * np.exp(mix.estimate_sigma * random.standard_normal(mix.jobs))
    hurried = random.random(mix.jobs) < mix.deadline_share
    patience = random.uniform(2, 10, mix.jobs) * work / families.speed.max(axis=1)[family]
    return ClusterEpisode(submitted, family, work, told, np.where(hurried, submitted + patience, np.inf))
