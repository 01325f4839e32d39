"""What a job could do on each GPU type of a cluster: the best plan, what it takes, and why it was not chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from trimtab.ui.choices import TypeChoice
from trimtab_policy.perf.breakdown import breakdown
from trimtab_policy.perf.correction import corrected
from trimtab_policy.perf.plans import Offer, Option, options_by_type, why_none
from trimtab_policy.placement.capacity import Capacity, GangDemand
from trimtab_policy.placement.host_limits import host_shortage
from trimtab_policy.placement.topology import link_domains, linked_gpus
from trimtab_policy.specs import GpuSpec, ParallelPlan, Prediction
from trimtab_policy.types import Job, Placement, Snapshot


def outlook(
    snapshot: Snapshot, job: Job, placement: Placement | None, prices: Mapping[str, float]
) -> tuple[TypeChoice, ...]:
    """The chosen plan, the alternatives that the policy names, and the best plan of every GPU type that is in neither.

    The chosen one comes first, then the fastest; types without a plan come last. `prices` are those of a GPU-hour.
    """
    view = _View(snapshot, job, prices)
    said = list(view.of_placement(placement)) if placement else []
    named = {choice.gpu_type for choice in said}
    said += [view.of_type(gpu, placement) for name, gpu in snapshot.gpu_types.items() if name not in named]
    return tuple(sorted(said, key=lambda choice: (not choice.chosen, -_rate(choice), choice.gpu_type)))


def _rate(choice: TypeChoice) -> float:
    return choice.prediction.tokens_per_second if choice.prediction else 0.0


class _View:
    """One job before one cluster."""

    def __init__(self, snapshot: Snapshot, job: Job, prices: Mapping[str, float]) -> None:
        self._job, self._prices, self._types = job, prices, snapshot.gpu_types
        self._capacity = Capacity(snapshot)
        counts = ((gpu, self._capacity.node_gpus(name)) for name, gpu in snapshot.gpu_types.items())
        offers = tuple(Offer(gpu, count) for gpu, count in counts if count)
        found = options_by_type(job.model, job.training, job.requirements, offers)
        self._options = {
            offer.gpu.name: corrected(known, offer.gpu.name, job) for offer, known in zip(offers, found, strict=True)
        }

    def of_placement(self, placement: Placement) -> Iterator[TypeChoice]:
        """What the policy chose, and what it weighed against it."""
        gpu, shares = self._types[placement.gpu_type], placement.shares
        linked = linked_gpus(shares, link_domains(gpu, shares, self._capacity.by_name))
        chosen = self._choice(gpu, shares[0].gpus, placement.plan, placement.prediction, linked)
        yield replace(chosen, chosen=True)
        for other in placement.alternatives:
            gpu = self._types[other.gpu_type]
            width, linked = self._shape(gpu, other.plan, other.prediction)
            yield replace(self._choice(gpu, width, other.plan, other.prediction, linked), why_not=other.why_not)

    def of_type(self, gpu: GpuSpec, chosen: Placement | None) -> TypeChoice:
        """The fastest plan that the cluster could hold if it were empty, or why there is none."""
        job, needs = self._job, self._job.requirements
        known, node = self._options.get(gpu.name, ()), self._capacity.node_gpus(gpu.name)
        could = [each for each in known if self._ever(gpu, each)]
        if not could:
            few = self._too_few(gpu, known) if known else ""
            return TypeChoice(gpu.name, why_not=few or why_none(job.model, job.training, needs, gpu, node))
        best = max(could, key=lambda each: each.prediction.tokens_per_second)
        choice = self._choice(gpu, best.gpus_per_node, best.plan, best.prediction, best.linked)
        return replace(choice, why_not=self._why_not(gpu, best, chosen))

    def _too_few(self, gpu: GpuSpec, known: Sequence[Option]) -> str:
        """What the nodes of a type are too few, or too small, for."""
        beside = (host_shortage(self._capacity, self._job, _demand(gpu, each)) for each in known)
        return next((why for why in beside if why), f"needs at least {known[0].gpus} GPUs, more than such nodes have")

    def _why_not(self, gpu: GpuSpec, option: Option, chosen: Placement | None) -> str:
        allowed = self._job.requirements.gpu_types
        if allowed and gpu.name not in allowed:
            return "not among spec.resources.gpuTypes"
        demand = _demand(gpu, option)
        if not self._capacity.fits(self._job, demand):
            return "no room for it now"
        if not self._capacity.fits(self._job, replace(demand, least_speed=1.0)):
            return "has room only on nodes with slow GPUs"
        ratio = option.prediction.tokens_per_second / chosen.prediction.tokens_per_second if chosen else 0
        return f"{ratio:.2f}× the speed" if chosen else "has room: the policy did not take it"

    def _choice(self, gpu: GpuSpec, width: int, plan: ParallelPlan, prediction: Prediction, linked: int) -> TypeChoice:
        apart = breakdown(
            self._job.model,
            self._job.training,
            plan,
            gpu,
            width,
            price=self._prices.get(gpu.name),
            software=self._job.requirements.software,
            expected=prediction,
            linked=linked,
        )
        return TypeChoice(gpu.name, plan.gpus, plan, prediction, apart)

    def _shape(self, gpu: GpuSpec, plan: ParallelPlan, prediction: Prediction) -> tuple[int, int]:
        """GPUs per node of an alternative, which names only its plan, and those that share a link: of the option that
        it was."""
        same = (each for each in self._options[gpu.name] if (each.plan, each.prediction) == (plan, prediction))
        found = next(same, None)
        return (found.gpus_per_node, found.linked) if found else (min(plan.gpus, self._capacity.node_gpus(gpu.name)), 0)

    def _ever(self, gpu: GpuSpec, option: Option) -> bool:
        return self._capacity.could_ever_fit(self._job, _demand(gpu, option))


def _demand(gpu: GpuSpec, option: Option) -> GangDemand:
    """Nodes for a plan, however slow they are."""
    return GangDemand(gpu.name, option.gpus, option.nodes, linkage=option.linkage)
