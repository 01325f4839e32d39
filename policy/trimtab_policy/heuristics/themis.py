"""Themis: finish-time fairness by auctions of GPUs whose leases have ended.

Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020. The finish-time fairness of a job is
rho = T_shared / T_ideal: when it will have finished, from its submission on, over how long it would take alone on an
n-th of the cluster, n being the jobs that are there. GPUs are given for a lease. When GPUs are free or leases have
ended, they are offered to the part 1 - f of the jobs without a lease whose rho is worst (section 5.1); the bids of a
job are its rho with each of its options, and the winning bids are those with the largest product of 1/rho, of
proportionally fair share (section 5.2). What nobody of them takes is auctioned among the others; and what is left for
reasons that the auction does not know, such as where free GPUs are, goes to whoever can use it: no GPU idles.

The part 1 - f is counted in the GPUs that the jobs need at least. With jobs of one GPU that is the paper's; but a large
gang that was offered GPUs together with small young jobs would lose every auction, a lease being less to its rho.

A bid is about one lease: with an option the job does its work of a lease, and the rest at its best speed afterwards;
with nothing it waits for a lease first. Otherwise few GPUs would seem worse than none. All leases end on multiples of
their length, whenever they began: if each ended on its own, a large gang would never find its GPUs free together.

Left out are the hidden payments, by which the paper makes lies about rho pointless: here nobody can lie, because the
scheduler itself computes all bids. The auction is solved as an assignment with the cost ln rho.
"""

from __future__ import annotations

import numpy as np

from trimtab_policy.placement.assign import realise
from trimtab_policy.placement.candidates import Candidate
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.options import Market, OptionMenu, assignment, holding, left, market, taken
from trimtab_policy.placement.queueing import fastest
from trimtab_policy.policy import Kind
from trimtab_policy.solvers import milp
from trimtab_policy.solvers.knapsack import FloatArray
from trimtab_policy.types import Decision, Job, Placement, Snapshot

GAP = 1e-4


class Themis:
    """The policy. All that it remembers is when leases last ended; without that only new jobs have one."""

    name = "themis"
    kind = Kind.OPTIMISER
    source = "Mahajan et al., NSDI 2020"

    def __init__(self, lease_seconds: float = 1200.0, fairness: float = 0.8) -> None:
        """`fairness` is the knob f of the paper: GPUs are offered to the worst 1 - f of the jobs first."""
        self.lease_seconds, self.fairness = lease_seconds, fairness
        self._ended: float | None = None

    def decide(self, snapshot: Snapshot) -> Decision:
        """Keep leases, auction the rest."""
        offered = market(snapshot)
        ended = snapshot.time // self.lease_seconds * self.lease_seconds
        wanted = {menu.job.uid: holding(snapshot, menu.job) for menu in offered.menus if self._leased(menu.job, ended)}
        self._ended = ended
        bidders = [menu for menu in offered.menus if menu.options and menu.job.uid not in wanted]
        bidders.sort(key=lambda menu: -unfairness(menu, offered, snapshot.time, self.lease_seconds))
        first = _worst(bidders, 1 - self.fairness)
        for group in (bidders[:first], bidders[first:]):
            wanted |= self._auction(snapshot, offered, group, wanted)
        capacity = Capacity(snapshot)
        decision = realise(self.name, snapshot, wanted, capacity=capacity)
        return _with_the_rest(snapshot, capacity, [menu.job for menu in bidders], decision)

    def _leased(self, job: Job, ended: float) -> bool:
        """Whether it runs on, given when leases last ended; all are new if they were auctioned since."""
        if job.placement is None or job.started is None:
            return False
        return self._ended == ended or job.started >= ended

    def _auction(
        self, snapshot: Snapshot, offered: Market, group: list[OptionMenu], settled: dict[str, Candidate]
    ) -> dict[str, Candidate]:
        """What the group gets: the least sum of ln rho, each relative to that of waiting."""
        times = [finish_times(menu, snapshot.time, self.lease_seconds) for menu in group]
        idle = [waiting(menu, snapshot.time, self.lease_seconds) for menu in group]
        costs = [np.log(with_it / without) for with_it, without in zip(times, idle, strict=True)]
        return taken(group, milp.cheapest(assignment(left(offered, settled), group, costs, 0.0), GAP))


def finish_times(menu: OptionMenu, now: float, lease_seconds: float) -> FloatArray:
    """T_shared with each option for a lease, (options,): seconds from submission to the end.

    Work that is left after the lease is done at the best speed. A lease begins when the job computes.
    """
    job, best = menu.job, menu.rate.max()
    remaining = _remaining(job)
    moved = np.arange(len(menu.options)) != menu.current
    computing = np.where(
        menu.rate * lease_seconds >= remaining,
        remaining / menu.rate,
        lease_seconds + (remaining - menu.rate * lease_seconds) / best,
    )
    times: FloatArray = _age(job, now) + computing + moved * job.restart_seconds
    return times


def waiting(menu: OptionMenu, now: float, lease_seconds: float) -> float:
    """T_shared of a job that gets nothing for one lease and then its best option."""
    job = menu.job
    return _age(job, now) + lease_seconds + job.restart_seconds + float(_remaining(job) / menu.rate.max())


def unfairness(menu: OptionMenu, offered: Market, now: float, lease_seconds: float) -> float:
    """rho with what the job has now."""
    has = menu.current
    shared = float(finish_times(menu, now, lease_seconds)[has]) if has >= 0 else waiting(menu, now, lease_seconds)
    share = offered.total[menu.kind] / max(1, len(offered.menus))
    alone = menu.rate * np.minimum(1.0, share / menu.gpus)  # in turns, where its share is less than it needs
    return shared * float(alone.max()) / max(1, menu.job.training.steps)


def _worst(bidders: list[OptionMenu], part: float) -> int:
    """How many of the bidders, the worst off first, need at least this part of the GPUs that all of them need."""
    needed = np.cumsum([menu.gpus.min() for menu in bidders])
    return int(np.searchsorted(needed, part * needed[-1])) + 1 if bidders else 0


def _remaining(job: Job) -> int:
    return max(1, job.training.steps - job.steps_done)


def _age(job: Job, now: float) -> float:
    return max(0.0, now - job.created)


def _with_the_rest(snapshot: Snapshot, capacity: Capacity, queue: list[Job], decision: Decision) -> Decision:
    """The decision, and GPUs that it leaves free (`capacity`) for those of the queue to whom it gives none."""
    without = {each.job for each in decision.pending} | {each.job for each in decision.stops}
    more: dict[str, Placement] = {}
    for job in queue:
        if not capacity.free.any():
            break
        if job.uid in without and (chosen := fastest(snapshot, capacity, job)):
            capacity.take(job, chosen.gpu_type, chosen.shares)
            more[job.uid] = chosen
    return Decision(
        decision.policy,
        (*decision.placements, *more.values()),
        tuple(each for each in decision.pending if each.job not in more),
        tuple(each for each in decision.stops if each.job not in more),
    )
