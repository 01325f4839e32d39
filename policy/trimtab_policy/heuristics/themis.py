"""Themis: finish-time fairness by auctions of GPUs whose leases have ended.

Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020. The finish-time fairness of a job is
rho = T_shared / T_ideal: when it will have finished, from its submission on, over how long it would take alone on an
n-th of the cluster, n being the jobs that are there. GPUs are given for a lease. When GPUs are free or leases have
ended, they are offered to the part 1 - f of the jobs without a lease whose rho is worst (section 5.1); the bids of a
job are its rho with each of its options, and the winning bids are those with the largest product of 1/rho, of
proportionally fair share (section 5.2). What nobody of them takes is auctioned among the others, so that no GPU idles.

Left out are the hidden payments, by which the paper makes lies about rho pointless: here nobody can lie, because the
scheduler itself computes all bids. The auction is solved exactly as an assignment with the cost ln rho, and a job that
gets nothing counts with the rho of waiting for one lease and then getting its best option.
"""

from __future__ import annotations

import math

import numpy as np

from trimtab_policy import milp
from trimtab_policy.candidates import Candidate
from trimtab_policy.knapsack import FloatArray
from trimtab_policy.menu import Market, Menu, assignment, holding, left, market, taken
from trimtab_policy.realise import realise
from trimtab_policy.types import Decision, Job, Snapshot

GAP = 1e-4


class Themis:
    """The policy. All that it remembers is until when leases run; without that they run from the last start."""

    name = "themis"

    def __init__(self, lease_seconds: float = 1200.0, fairness: float = 0.8) -> None:
        """`fairness` is the knob f of the paper: GPUs are offered to the worst 1 - f of the jobs first."""
        self.lease_seconds, self.fairness = lease_seconds, fairness
        self._until: dict[str, tuple[float, float]] = {}
        """Start of a job -> end of its lease."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Keep leases, auction the rest."""
        offered = market(snapshot)
        jobs = {menu.job.uid: menu.job for menu in offered.menus}
        wanted = {uid: holding(snapshot, job) for uid, job in jobs.items() if self._leased(job, snapshot.time)}
        bidders = [menu for menu in offered.menus if menu.options and menu.job.uid not in wanted]
        bidders.sort(key=lambda menu: -unfairness(menu, offered, snapshot.time, self.lease_seconds))
        first = math.ceil((1 - self.fairness) * len(bidders))
        for group in (bidders[:first], bidders[first:]):
            wanted |= self._auction(snapshot, offered, group, wanted)
        self._renew(snapshot, jobs, wanted)
        return realise(self.name, snapshot, wanted)

    def _leased(self, job: Job, now: float) -> bool:
        if job.placement is None or job.started is None:
            return False
        started, until = self._until.get(job.uid, (None, 0.0))
        return now < (until if started == job.started else job.started + self.lease_seconds)

    def _renew(self, snapshot: Snapshot, jobs: dict[str, Job], wanted: dict[str, Candidate]) -> None:
        """A job that keeps what it has does so for another lease; a job that is moved starts anew by that."""
        kept: dict[str, tuple[float, float]] = {}
        for uid in wanted:
            if (begun := jobs[uid].started) is not None:
                running = self._leased(jobs[uid], snapshot.time)
                kept[uid] = (
                    self._until.get(uid, (begun, begun + self.lease_seconds))
                    if running
                    else (begun, snapshot.time + self.lease_seconds)
                )
        self._until = kept

    def _auction(
        self, snapshot: Snapshot, offered: Market, group: list[Menu], settled: dict[str, Candidate]
    ) -> dict[str, Candidate]:
        costs = [np.log(finish_times(menu, snapshot.time)) for menu in group]
        idle = np.array([math.log(waiting(menu, snapshot.time, self.lease_seconds)) for menu in group])
        return taken(group, milp.cheapest(assignment(left(offered, settled), group, costs, idle), GAP))


def finish_times(menu: Menu, now: float) -> FloatArray:
    """T_shared with each option, (options,): seconds from submission to the end if it keeps the option from now on."""
    job = menu.job
    remaining = max(1, job.training.steps - job.steps_done)
    moved = np.arange(len(menu.options)) != menu.current
    times: FloatArray = max(0.0, now - job.created) + remaining / menu.rate + moved * job.restart_seconds
    return times


def waiting(menu: Menu, now: float, lease_seconds: float) -> float:
    """T_shared of a job that gets nothing for one lease and then its best option."""
    return float(finish_times(menu, now).min()) + lease_seconds


def unfairness(menu: Menu, offered: Market, now: float, lease_seconds: float) -> float:
    """rho with what the job has now."""
    has = menu.current
    shared = float(finish_times(menu, now)[has]) if has >= 0 else waiting(menu, now, lease_seconds)
    share = offered.total[menu.kind] / max(1, len(offered.menus))
    alone = menu.rate * np.minimum(1.0, share / menu.gpus)  # in turns, where its share is less than it needs
    return shared * float(alone.max()) / max(1, menu.job.training.steps)
