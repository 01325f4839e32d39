"""What one job could run on: its plan options per GPU type, and which of them have room right now.

Shared by all heuristics, so that they differ only in what they choose. A job that brings its own speeds (a trace's, a
profile's) can run on these; for the others the performance model searches plans. The former are remembered by the
identity of what they follow from, because a simulator asks about the same jobs at every one of its decisions.

Where nodes of a type are slow (`Node.speed`) each option is there again for each of their speeds, with what it would be
there: an option on slow cards competes with a smaller one, or with another type, by what it would really bring, in
whatever order a policy looks at them. Where link domains of a type span nodes it is likewise there for each way to lie
in them that makes a difference (`Option.linked`), and has room only where the nodes are linked so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy import catalog
from trimtab_policy.perf import plans
from trimtab_policy.perf.correction import corrected, corrected_option
from trimtab_policy.perf.plan_space import ANYHOW, Linkage, linkage
from trimtab_policy.perf.plans import Offer, Option
from trimtab_policy.placement.capacity import Capacity, GangDemand
from trimtab_policy.placement.topology import link_domains, linked_gpus
from trimtab_policy.specs import GpuSpec, ParallelPlan, Precision, Prediction, TrainingSpec
from trimtab_policy.types import Alternative, Job, NodeShare, Placement, Requirements, Snapshot, Speed

ANY_NODES = 1 << 20
REMEMBERED = 1 << 15
"""Jobs with given speeds whose candidates are kept."""


class Candidate(Struct, frozen=True):
    """One option of one job on one GPU type."""

    gpu: GpuSpec
    option: Option
    tokens_per_second: float
    cost: float
    """GPUs weighted by their peak 16-bit FLOP/s: an H100 is not a T4."""
    spread: int = 0
    """Nodes that a gang of unequal parts may be spread over; 0: equal parts on just the nodes of the option."""
    speed: float = 1.0
    """Its nodes are at least this fast (`Node.speed`), and its figures are those for just this speed."""

    def describe(self) -> str:
        """Short form for people: `8×A100-SXM4-80GB`."""
        return f"{self.option.gpus}×{self.gpu.name}"

    def describe_with_plan(self) -> str:
        """The same with its plan: `8×A100-SXM4-80GB, dp=8 tp=1 pp=1`."""
        return f"{self.describe()}, {self.option.plan.describe()}"

    @property
    def may_be_uneven(self) -> bool:
        """Not where it matters how its nodes are linked: groups of ranks are the same on each."""
        return self.spread > 0 and not self.option.linked

    def demand(self) -> GangDemand:
        """The nodes that it asks for."""
        option, spread = self.option, self.spread if self.may_be_uneven else 0
        return GangDemand(self.gpu.name, option.gpus, option.nodes, spread, self.speed, option.linkage)

    def at(self, speed: float) -> Candidate:
        """The same on nodes that are as slow as this."""
        slowed = self.option.prediction.at(speed / self.speed)
        return replace(
            self,
            option=replace(self.option, prediction=slowed),
            tokens_per_second=slowed.tokens_per_second,
            speed=speed,
        )


Fitting = tuple[Candidate, tuple[NodeShare, ...]]
"""A candidate and the nodes that have room for it."""


def weight(gpu: GpuSpec) -> float:
    """Relative worth of one GPU: its dense peak in the fastest 16-bit (else 32-bit) format, FLOP/s."""
    return max(peak for precision, peak in gpu.peak_flops.items() if precision is not Precision.FP8)


def allowed_types(snapshot: Snapshot, requirements: Requirements) -> list[GpuSpec]:
    """GPU types of the cluster that are allowed, by name."""
    wanted = requirements.gpu_types
    return [spec for name, spec in sorted(snapshot.gpu_types.items()) if not wanted or name in wanted]


def candidates(snapshot: Snapshot, capacity: Capacity, job: Job) -> list[Candidate]:
    """Every feasible option of the job on the GPU types of the cluster, whether there is room for it or not."""
    found = _at_full_speed(snapshot, capacity, job)
    if not capacity.slow:
        return found
    return found + [each.at(speed) for each in found for speed in capacity.lower_speeds(each.gpu.name)]


def is_known(snapshot: Snapshot, capacity: Capacity, job: Job) -> bool:
    """Whether its candidates are remembered, so that asking for them costs next to nothing."""
    if job.speeds is not None:
        return True
    return plans.is_known(job.model, job.training, job.requirements, _offers(snapshot, capacity, job))


def _offers(snapshot: Snapshot, capacity: Capacity, job: Job) -> tuple[Offer, ...]:
    return tuple(
        Offer(gpu, size) for gpu in allowed_types(snapshot, job.requirements) if (size := capacity.node_gpus(gpu.name))
    )


def _at_full_speed(snapshot: Snapshot, capacity: Capacity, job: Job) -> list[Candidate]:
    if job.speeds is not None:
        return list(_given(snapshot, job, job.speeds))
    offers = _offers(snapshot, capacity, job)
    found = plans.options_by_type(job.model, job.training, job.requirements, offers)
    return [
        Candidate(gpu, option, option.prediction.tokens_per_second, option.gpus * worth)
        for (gpu, _), of_type in zip(offers, found, strict=True)
        for worth in (weight(gpu),)
        for option in corrected(_linkable(capacity, gpu, of_type) if gpu.link_domain else of_type, gpu.name, job)
    ]


def _linkable(capacity: Capacity, gpu: GpuSpec, options: tuple[Option, ...]) -> tuple[Option, ...]:
    """Options for which the cluster has nodes that are linked so; also those that cannot do with less, so that their
    jobs are told what they lack."""
    return tuple(
        option
        for option in options
        if option.linkage is ANYHOW
        or option.plan.tensor > option.gpus_per_node
        or capacity.ever_links(gpu.name, option.nodes, option.gpus_per_node, option.linkage)
    )


def has_room(capacity: Capacity, job: Job, candidate: Candidate) -> bool:
    """Whether the candidate fits at this moment."""
    return capacity.fits(job, candidate.demand())


def could_ever_fit(capacity: Capacity, job: Job, candidate: Candidate) -> bool:
    """Whether it would fit if every GPU of the present nodes were free."""
    return capacity.could_ever_fit(job, candidate.demand())


def nodes_for(
    capacity: Capacity, job: Job, candidate: Candidate, *, scatter: bool = True, slow: bool = False
) -> tuple[NodeShare, ...] | None:
    """Nodes for the candidate at this moment; without `scatter` an uneven gang takes no more nodes than it has to.

    `slow`: rather on slower nodes than the candidate says, or on such as are linked worse, than nowhere. That is for
    policies that count GPUs and leave their nodes to others.
    """
    demand, option = candidate.demand(), candidate.option
    if demand.spread and not scatter:
        demand = replace(demand, spread=option.nodes)
    if slow:
        demand = replace(demand, least_speed=0.0)
    found = capacity.find(job, demand)
    if found is None and slow and option.linked:
        fewest = linkage(option.plan, option.gpus_per_node, max(option.gpus_per_node, option.plan.tensor))
        return capacity.find(job, replace(demand, linkage=fewest))
    return found


def with_room(capacity: Capacity, job: Job, ordered: Iterable[Candidate]) -> Iterator[Fitting]:
    """Those of the candidates that fit at this moment, with their nodes, in the given order."""
    for candidate in ordered:
        if shares := nodes_for(capacity, job, candidate):
            yield candidate, shares


def on_nodes(capacity: Capacity, job: Job, chosen: Candidate, shares: tuple[NodeShare, ...]) -> Candidate:
    """The candidate as these nodes make it: predicted for the slowest of them, and for how they are linked."""
    speed = capacity.speed_of(shares)
    found = chosen if speed == chosen.speed else chosen.at(speed)
    if not chosen.option.linked or len(shares) == 1:
        return found
    linked = linked_gpus(shares, link_domains(chosen.gpu, shares, capacity.by_name))
    return _as_linked(job, found, linked)


def placement(
    capacity: Capacity,
    job: Job,
    chosen: Candidate,
    shares: tuple[NodeShare, ...],
    reason: str,
    alternatives: tuple[Alternative, ...] = (),
) -> Placement:
    """Turn a chosen candidate into the placement that a decision carries, with its prediction for these nodes.

    Its reason says so where one of them is slow, or where they lie in several link domains.
    """
    found = on_nodes(capacity, job, chosen, shares)
    if found.option.linked and len(shares) > 1:
        reason += _over_domains(link_domains(found.gpu, shares, capacity.by_name))
    if found.speed != 1:
        reason += f"; {_slowed(capacity, shares, found.speed)}"
    return Placement(
        job=job.uid,
        gpu_type=found.gpu.name,
        shares=shares,
        plan=found.option.plan,
        prediction=found.option.prediction,
        reason=reason,
        alternatives=alternatives,
        speed=found.speed,
    )


def _as_linked(job: Job, chosen: Candidate, linked: int) -> Candidate:
    """The candidate where so many GPUs of the gang share a link; its tensor groups do in any case, or the placement is
    refused (`limits`)."""
    option, software = chosen.option, job.requirements.software
    linked = max(linked, option.plan.tensor)
    if linked == option.linked:
        return chosen
    then, now = (
        plans.predict(
            job.model, job.training, option.plan, chosen.gpu, option.gpus_per_node, software=software, linked=gpus
        )
        for gpus in (option.linked, linked)
    )
    faster = option.prediction.at(then.step_seconds / now.step_seconds)
    option = replace(option, prediction=replace(faster, uncertainty=now.uncertainty), linked=linked)
    option = corrected_option(option, chosen.gpu.name, job)
    return replace(chosen, option=option, tokens_per_second=option.prediction.tokens_per_second)


def _over_domains(domains: list[str]) -> str:
    """`, 12 nodes in each of 3 NVLink domains`; empty for a single one."""
    sizes = sorted(Counter(domains).values(), reverse=True)
    if len(sizes) == 1:
        return ""
    if sizes[0] == 1:
        return ", on nodes that share no NVLink"
    if sizes[0] == sizes[-1]:
        return f", {sizes[0]} nodes in each of {len(sizes)} NVLink domains"
    return f", in {len(sizes)} NVLink domains of {', '.join(map(str, sizes))} nodes"


def _slowed(capacity: Capacity, shares: tuple[NodeShare, ...], speed: float) -> str:
    slowest = next(share.node for share in shares if capacity.speed_of((share,)) == speed)
    return f"at {speed:.2f} of the usual rate, because node {slowest} has a slow GPU"


def type_of(snapshot: Snapshot, held: Placement) -> GpuSpec:
    """What a running job's GPUs are: the snapshot tells it only of types of which some node takes pods now.

    Raises UnknownGpu for one that neither it nor the catalogue has.
    """
    return snapshot.gpu_types.get(held.gpu_type) or catalog.gpu(held.gpu_type)


def holding(snapshot: Snapshot, job: Job, held: Placement) -> Candidate:
    """What a running job has, as the candidate to stay with."""
    gpu, largest = type_of(snapshot, held), max(share.gpus for share in held.shares)
    rate, cost = held.prediction.tokens_per_second, held.gpus * weight(gpu)
    if job.speeds is None:
        linked, lies = held_links(snapshot, held, gpu)
        option = Option(held.gpus, len(held.shares), largest, held.plan, held.prediction, linked, lies)
        return Candidate(gpu, option, rate, cost, speed=held.speed)
    # Should it have to move all the same, then onto as few nodes as can be, however scattered it was.
    option = Option(held.gpus, 1, held.gpus, held.plan, held.prediction)
    return Candidate(gpu, option, rate, cost, ANY_NODES, held.speed)


def held_links(snapshot: Snapshot, held: Placement, gpu: GpuSpec) -> tuple[int, Linkage]:
    """GPUs of a running gang that share a link, and how it would have to lie to be as fast elsewhere."""
    if not gpu.link_domain:
        return 0, ANYHOW
    nodes = {node.name: node for node in snapshot.nodes}
    linked = max(linked_gpus(held.shares, link_domains(gpu, held.shares, nodes)), held.plan.tensor)
    return linked, linkage(held.plan, held.shares[0].gpus, linked)


_Key = tuple[int, int, int, int]
_remembered: dict[_Key, tuple[tuple[object, ...], tuple[Candidate, ...]]] = {}
"""Identities -> what they belong to, which keeps them from being given to others, and the candidates."""


def _given(snapshot: Snapshot, job: Job, speeds: tuple[Speed, ...]) -> tuple[Candidate, ...]:
    """One candidate for each of the speeds that the cluster and the requirements allow."""
    sources = speeds, job.training, job.requirements, snapshot.gpu_types
    key = id(speeds), id(job.training), id(job.requirements), id(snapshot.gpu_types)
    known = _remembered.get(key)
    if known is None:
        if len(_remembered) >= REMEMBERED:
            _remembered.clear()
        known = _remembered[key] = sources, tuple(_from_speeds(snapshot, job, speeds))
    return known[1]


def _from_speeds(snapshot: Snapshot, job: Job, speeds: tuple[Speed, ...]) -> Iterator[Candidate]:
    need = job.requirements
    allowed = {gpu.name: (gpu, weight(gpu)) for gpu in allowed_types(snapshot, need)}
    most = ANY_NODES if need.max_nodes is None else need.max_nodes
    for row in speeds:
        if row.gpu_type in allowed and need.gpus.admits(row.gpus) and row.nodes <= most and row.steps_per_second > 0:
            gpu, worth = allowed[row.gpu_type]
            option = _option(gpu, job.training, row)
            rate = option.prediction.tokens_per_second
            yield Candidate(gpu, option, rate, row.gpus * worth, min(most, _widest(row, speeds)))


def _option(gpu: GpuSpec, training: TrainingSpec, row: Speed) -> Option:
    """What memory such a job needs nobody says: it is taken to be all that there is."""
    seconds = 1 / row.steps_per_second
    rate = training.tokens_per_step * row.steps_per_second
    prediction = Prediction(seconds, rate, gpu.memory_bytes, seconds * training.steps)
    return Option(row.gpus, row.nodes, -(-row.gpus // row.nodes), ParallelPlan(data=row.gpus), prediction)


def _widest(row: Speed, speeds: tuple[Speed, ...]) -> int:
    """Nodes up to which the row speaks for its GPUs: until another one is given for more nodes."""
    wider = (
        other.nodes
        for other in speeds
        if (other.gpu_type, other.gpus) == (row.gpu_type, row.gpus) and other.nodes > row.nodes
    )
    return min(wider, default=ANY_NODES + 1) - 1
