"""Workloads of our own: heavy-tailed rigid traces, and LLM training jobs of all sizes.

What jobs are and how they arrive is data (`data/workloads.yaml`, with sources). Everything is drawn from the seed
alone, in streams of its own for arrivals, sizes and deadlines: one seed gives the same jobs in every process, and at
another load the same jobs at other times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from typing import TypeVar

import msgspec
import numpy as np
import yaml
from msgspec import Struct
from numpy.random import Generator
from scipy.special import ndtr, ndtri

from trimtab_lab.workloads.arrivals import Arrivals, times
from trimtab_lab.workloads.clusters import gpus_by_type
from trimtab_lab.workloads.trace import Coded, FloatArray, IntArray, Trace, code_by, constant, trace
from trimtab_policy import catalog
from trimtab_policy.perf.plans import Offer, options_by_type
from trimtab_policy.placement.candidates import weight
from trimtab_policy.specs import Precision, TrainingSpec
from trimtab_policy.types import Bounds, Job, Requirements, Snapshot

K = TypeVar("K")


class RigidClass(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs of one size: ln(seconds) is normal."""

    gpus: int
    weight: float
    mu: float
    sigma: float

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        if self.gpus < 1 or not self.sigma > 0:
            raise ValueError(f"gpus must be >= 1 and sigma > 0, got {self.gpus} and {self.sigma}")


class RigidMix(Struct, frozen=True, forbid_unknown_fields=True):
    """A rigid trace."""

    classes: tuple[RigidClass, ...]
    longest: float
    """Seconds that no job exceeds."""
    arrivals: str = "poisson"
    queues: Mapping[str, float] = {}
    """Share of the jobs by queue; empty for none."""
    deadline_share: float = 0.0
    slack: tuple[float, float] = (1.5, 6.0)
    """Deadlines come so many run times after submission."""


class LlmClass(Struct, frozen=True, forbid_unknown_fields=True):
    """LLM jobs of one kind: one of each list, tokens log-uniform."""

    name: str
    weight: float
    models: tuple[str, ...]
    sequence_length: tuple[int, ...]
    batch: tuple[int, ...]
    tokens: tuple[float, float]
    gpus: tuple[int, int]
    priority: int = 0
    precision: Precision = Precision.BF16

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        if not 0 < self.tokens[0] <= self.tokens[1]:
            raise ValueError(f"tokens of {self.name} must be two bounds above 0, got {self.tokens}")
        if not 1 <= self.gpus[0] <= self.gpus[1]:
            raise ValueError(f"gpus of {self.name} must be two bounds from 1 on, got {self.gpus}")


class LlmMix(Struct, frozen=True, forbid_unknown_fields=True):
    """A workload of LLM training jobs; fields as of `RigidMix`."""

    classes: tuple[LlmClass, ...]
    arrivals: str = "poisson"
    queues: Mapping[str, float] = {}
    deadline_share: float = 0.0
    slack: tuple[float, float] = (1.5, 6.0)


class _GeneratorFile(Struct, frozen=True, forbid_unknown_fields=True):
    arrivals: dict[str, Arrivals]
    rigid: dict[str, RigidMix]
    llm: dict[str, LlmMix]


class Ideal(Struct, frozen=True):
    """The best that a cluster can do for a job: infinite where it can do nothing."""

    work: float
    """Least GPU-seconds, each weighted with the peak of its type: what the job takes away from others."""
    seconds: float
    """Shortest run time."""


def rigid_names() -> list[str]:
    """Names of the rigid traces that can be generated."""
    return list(_presets().rigid)


def llm_names() -> list[str]:
    """Names of the LLM workloads that can be generated."""
    return list(_presets().llm)


def queues(name: str) -> list[str]:
    """Queues of the jobs of a rigid trace or an LLM workload."""
    mixes: dict[str, RigidMix | LlmMix] = {**_presets().rigid, **_presets().llm}
    return list(_known(mixes, name, "workload").queues)


def too_large(name: str, largest: int) -> list[int]:
    """GPUs of the jobs of a rigid trace that are not drawn where `largest` are all of one type."""
    return [each.gpus for each in _known(_presets().rigid, name, "rigid trace").classes if each.gpus > largest]


def arrivals_of(name: str) -> Arrivals:
    """The process of arrivals of this name. Raises ValueError with the known names."""
    return _known(_presets().arrivals, name, "arrivals")


def rigid_trace(
    mix: str | RigidMix,
    jobs: int,
    gpus: int,
    load: float,
    seed: int = 0,
    arrivals: Arrivals | None = None,
    largest: int | None = None,
) -> Trace:
    """A rigid trace of so many jobs at a stated load of so many GPUs: sum of GPU-seconds / (GPUs x span of arrivals).

    Jobs of more than `largest` GPUs are not drawn, the others as often as else. Raises ValueError for an unknown name,
    or numbers that make no workload.
    """
    _check(jobs, load, gpus)
    kind = _up_to(_known(_presets().rigid, mix, "rigid trace") if isinstance(mix, str) else mix, largest)
    sizes, clock, extras = _streams(seed)
    drawn = sizes.choice(len(kind.classes), jobs, p=_shares([each.weight for each in kind.classes]))
    asked = np.array([each.gpus for each in kind.classes])[drawn]
    seconds = _log_normal(kind, drawn, sizes)
    process = arrivals or arrivals_of(kind.arrivals)
    submitted = _submitted(process, asked * seconds, gpus, load, clock)
    return trace(
        [f"{asked_for}gpu-{number}" for number, asked_for in enumerate(asked.tolist())],
        submitted,
        asked,
        seconds,
        queue=_queues(kind.queues, jobs, extras),
        application=code_by(drawn, [f"{each.gpus}gpu" for each in kind.classes]),
        deadline=submitted + _slack(kind.deadline_share, kind.slack, jobs, extras) * seconds,
        source=f"generator:{mix}" if isinstance(mix, str) else "generator",
    )


def llm_jobs(
    mix: str | LlmMix, jobs: int, cluster: Snapshot, load: float, seed: int = 0, arrivals: Arrivals | None = None
) -> list[Job]:
    """So many LLM jobs, in the order of `created` (seconds from 0), at a stated load of a cluster.

    Only what the cluster can train is drawn. The load is the sum of the least work of each job (`Ideal.work`) / (work
    that the cluster could do while jobs arrive). Raises ValueError for an unknown name, or if nothing can be trained.
    """
    _check(jobs, load, len(cluster.nodes))
    kind = _known(_presets().llm, mix, "LLM workload") if isinstance(mix, str) else mix
    market = _Market(cluster)
    templates = [[each for each in _templates(one) if market.ideal(each).work < math.inf] for one in kind.classes]
    if not any(templates):
        raise ValueError("the cluster can train none of the models of this workload: take larger or newer GPUs")
    sizes, clock, extras = _streams(seed)
    shares = _shares([one.weight if found else 0.0 for one, found in zip(kind.classes, templates, strict=True)])
    classes = sizes.choice(len(kind.classes), jobs, p=shares).tolist()
    drawn = [_draw(kind.classes[one], templates[one], number, sizes) for number, one in enumerate(classes)]
    ideals = [market.ideal(job) for job in drawn]
    process = arrivals or arrivals_of(kind.arrivals)
    created = _submitted(process, np.array([each.work for each in ideals]), market.capacity, load, clock)
    queues = _queues(kind.queues, jobs, extras)
    seconds = np.array([each.seconds for each in ideals])
    deadlines = (created + _slack(kind.deadline_share, kind.slack, jobs, extras) * seconds).tolist()
    return [
        msgspec.structs.replace(job, created=at, queue=queue, deadline=None if math.isnan(until) else until)
        for job, at, queue, until in zip(drawn, created.tolist(), queues, deadlines, strict=True)
    ]


def ideal(job: Job, cluster: Snapshot) -> Ideal:
    """The least work and the shortest run time that the performance model finds for a job alone on the cluster."""
    return _Market(cluster).ideal(job)


def _up_to(kind: RigidMix, largest: int | None) -> RigidMix:
    classes = tuple(each for each in kind.classes if largest is None or each.gpus <= largest)
    if kind.classes and not classes:
        raise ValueError(
            f"every job of this workload needs more than {largest} GPUs of one type: take a larger cluster"
        )
    return msgspec.structs.replace(kind, classes=classes)


class _Market:
    """What a cluster offers to one job."""

    def __init__(self, cluster: Snapshot) -> None:
        self._have = gpus_by_type(cluster)
        per_node = dict.fromkeys(self._have, 0)
        for node in cluster.nodes:
            per_node[node.gpu_type] = max(node.gpus, per_node[node.gpu_type])
        self._offers = tuple(Offer(cluster.gpu_types[name], size) for name, size in per_node.items())
        self.capacity = sum(self._have[gpu.name] * weight(gpu) for gpu, _ in self._offers)

    def ideal(self, job: Job) -> Ideal:
        found = options_by_type(job.model, job.training, job.requirements, self._offers)
        possible = [
            (option.gpus * weight(gpu), option.prediction.run_seconds)
            for (gpu, _), options in zip(self._offers, found, strict=True)
            for option in options
            if option.gpus <= self._have[gpu.name]
        ]
        work = min((worth * seconds for worth, seconds in possible), default=math.inf)
        return Ideal(work, min((seconds for _, seconds in possible), default=math.inf))


def _templates(kind: LlmClass) -> list[Job]:
    """One job of a single step for every model, sequence length and batch of a class."""
    return [
        Job(
            uid="",
            namespace="default",
            name=kind.name,
            model=catalog.model(model),
            training=TrainingSpec(length, batch, steps=1, precision=kind.precision),
            requirements=Requirements(gpus=Bounds(*kind.gpus)),
            created=0.0,
            priority=kind.priority,
        )
        for model, length, batch in product(kind.models, kind.sequence_length, kind.batch)
    ]


def _draw(kind: LlmClass, templates: Sequence[Job], number: int, draw: Generator) -> Job:
    """A job of the class with a name that Kubernetes accepts."""
    chosen = templates[int(draw.integers(len(templates)))]
    low, high = kind.tokens
    tokens = low * (high / low) ** draw.random()
    training = msgspec.structs.replace(chosen.training, steps=max(1, round(tokens / chosen.training.tokens_per_step)))
    name = f"{kind.name}-{number}"
    return msgspec.structs.replace(chosen, uid=name, name=name, training=training)


def _log_normal(kind: RigidMix, drawn: IntArray, draw: Generator) -> FloatArray:
    """Run times of at least a second and at most the longest: a truncated log-normal distribution, by its inverse."""
    mu, sigma = (np.array([getattr(each, field) for each in kind.classes])[drawn] for field in ("mu", "sigma"))
    low, high = ndtr(-mu / sigma), ndtr((math.log(kind.longest) - mu) / sigma)
    return np.asarray(np.exp(mu + sigma * ndtri(low + (high - low) * draw.random(len(drawn)))), dtype=np.float64)


def _submitted(arrivals: Arrivals, work: FloatArray, capacity: float, load: float, draw: Generator) -> FloatArray:
    """Times from 0 on at exactly the load: drawn at the rate that gives it on average, then stretched a little."""
    span = float(work.sum()) / (capacity * load)
    drawn = times(arrivals, len(work), len(work) / span, draw)
    drawn -= drawn[0]
    return drawn * (span / drawn[-1]) if drawn[-1] else drawn


def _slack(share: float, slack: tuple[float, float], jobs: int, draw: Generator) -> FloatArray:
    """Run times until the deadline, NaN for jobs without one."""
    chosen = draw.random(jobs) < share
    return np.where(chosen, draw.uniform(*slack, jobs), np.nan)


def _queues(queues: Mapping[str, float], jobs: int, draw: Generator) -> Coded[str]:
    if not queues:
        return constant("", jobs)
    return code_by(draw.choice(len(queues), jobs, p=_shares(list(queues.values()))), list(queues))


def _shares(weights: list[float]) -> FloatArray:
    values = np.array(weights)
    if not (len(values) and (values >= 0).all() and values.sum() > 0):
        raise ValueError(f"weights must be >= 0 and not all 0, got {weights}")
    return np.asarray(values / values.sum(), dtype=np.float64)


def _streams(seed: int) -> list[Generator]:
    """Independent ones for sizes, the clock and what else there is."""
    return [np.random.default_rng(each) for each in np.random.SeedSequence(seed).spawn(3)]


def _check(jobs: int, load: float, gpus: int) -> None:
    if jobs < 1 or gpus < 1 or not 0 < load < math.inf:
        raise ValueError(f"jobs, GPUs and load must be above 0, got {jobs} jobs at load {load} of {gpus} GPUs")


def _known(table: Mapping[str, K], name: str, what: str) -> K:
    if name not in table:
        raise ValueError(f"unknown {what} {name!r}, known are {', '.join(table)}")
    return table[name]


@cache
def _presets() -> _GeneratorFile:
    text = (files("trimtab_lab") / "data" / "workloads.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), _GeneratorFile)
