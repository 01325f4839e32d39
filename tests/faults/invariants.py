"""What must hold after every event, whatever breaks: I1 to I10, judged from a history of events alone.

    I1   no node has more GPUs requested by live pods than it has, and no device that a driver offers has two claims
    I2   a gang is bound in part, or without its plan, for a short time only; but on nodes that do not answer
    I3   every pod of ours has a job that exists
    I4   no job is lost: each is seen, and has a plan that goes on, or says why it waits
    I5   one live pod for a rank, bound pods of one epoch of a job, and a plan never changes
    I6   a gang that has to go is asked first and gets its time; steps go back by one checkpoint at most
    I7   nobody gives way to a job of lower or equal priority
    I8   the leader epochs of accepted writes never decrease
    I9   quotas hold at every instant
    I10  observedGeneration and epochs never decrease, and what has ended stays so

I11 (at rest nothing is written) is asked by whoever knows that there is rest (`Watcher.rests`), I12 (bad input changes
nothing) by single tests. A `Judge` reads no clock and no network: it is told
what happened when, and so the histories that it must condemn can be written down (`test_invariants`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.faults import witness_state
from tests.faults.witness_state import (
    CLAIMS,
    JOBS,
    NODES,
    PODS,
    QUEUES,
    QUOTAS,
    SLICES,
    Ledger,
    Object,
    finished,
    holds,
    live,
    name_of,
)

STOP_CAUSES = {"Preempted", "Reclaimed", "Yielded", "Resized", "Moved", "Straggler", "Suspended", "SpecChanged"} | {
    "Evicted",
    "Idle",
}
"""Reasons for which a gang that runs well is ended."""
GRACE: Object = {}
"""Of specs that do not say how long a gang may save its state."""


@dataclass(frozen=True)
class Violation:
    """An invariant that did not hold."""

    invariant: str
    subject: str
    message: str
    time: float

    def __str__(self) -> str:
        return f"{self.invariant} {self.subject}: {self.message}"


@dataclass(frozen=True)
class Limits:
    """Seconds that what is wrong may last."""

    gang: float = 30.0
    """I2. Longer where nodes have a longer grace."""
    last: float = 60.0
    """I2, besides: a job's last failure is held for so long, since its node may have died."""
    foreign: float = 10.0
    """I1, where somebody else's pod has taken GPUs that were ours."""
    orphan: float = 90.0
    """I3. The garbage collector learns of a CRD within 30 s."""
    unplanned: float = 5.0
    """I2, I3: pods and jobs are told in streams of their own."""
    idle: float = 60.0
    """I4."""
    stamp: float = 1.5
    """I6. API times are whole seconds."""


@dataclass
class Timer:
    """Something wrong that may pass."""

    since: float
    limit: float
    message: str


@dataclass
class Memory:
    """What is remembered of a job beyond its object."""

    plans: dict[int, Object] = field(default_factory=dict)
    saved: int = 0
    """Highest step that a checkpoint was reported for."""


class Judge:
    """Follows a history, and keeps what was violated."""

    def __init__(self, limits: Limits = Limits()) -> None:
        self.ledger = Ledger()
        self.violations: list[Violation] = []
        self.events = 0
        self.excused = False
        """While it is set, time does not count: the API server is away, or the controller is."""
        self._limits = limits
        self._memory: defaultdict[str, Memory] = defaultdict(Memory)
        self._timers: dict[tuple[str, str], Timer] = {}
        self._leader = 0
        self._by_driver: set[str] = set()
        """Nodes whose GPUs came by dynamic resource allocation once."""
        self._now = 0.0
        self._told: set[tuple[str, str, str]] = set()

    # --- what happened ----------------------------------------------------------------------------------------------
    def see(self, now: float, kind: str, event: str, obj: Object) -> None:
        """An ADDED, MODIFIED or DELETED."""
        self._now = now
        self.events += 1
        after = None if event == "DELETED" else obj
        before = self.ledger.put(kind, obj) if after else self.ledger.take(kind, obj) or obj
        if kind == PODS:
            self._pod(before, after)
        elif kind == JOBS:
            self._job(before, after)
        elif kind == NODES:
            self._node(obj["metadata"]["name"])
        elif kind == SLICES:
            self._node(obj["spec"].get("nodeName", ""))
        elif kind == CLAIMS and after:
            self._claim(after)

    def listed(self, now: float, kind: str, objects: Iterable[Object]) -> None:
        """A new list: what is missing in it was deleted unseen."""
        there = {witness_state.uid_of(each): each for each in objects}
        for uid, obj in list(self.ledger.objects[kind].items()):
            if uid not in there:
                self.see(now, kind, "DELETED", obj)
        for each in there.values():
            self.see(now, kind, "MODIFIED", each)

    def tick(self, now: float) -> None:
        """Time has passed."""
        for (invariant, subject), timer in list(self._timers.items()):
            if self.excused:
                timer.since += now - self._now
            elif now - timer.since > timer.limit:
                self._violated(invariant, subject, f"{timer.message} for {timer.limit:g} s")
        self._now = now

    # --- pods and nodes ---------------------------------------------------------------------------------------------
    def _pod(self, before: Object | None, after: Object | None) -> None:
        for pod in (before, after):
            if pod and witness_state.node_of(pod):
                self._node(witness_state.node_of(pod))
        pod = after or before
        assert pod is not None
        if not witness_state.is_ours(pod):
            return
        job = witness_state.owner(pod)
        if after and not job:
            self._violated("I3", name_of(pod), "has no controlling owner")
        self._owned(job)
        self._gangs(job)
        if after and witness_state.node_of(after) and not (before and witness_state.node_of(before)):
            self._quotas(after)

    def _node(self, name: str) -> None:
        node = self.ledger.named(NODES, name)
        if not node:
            return
        has = {resource: int(node["status"]["allocatable"].get(resource, 0)) for resource in witness_state.GPUS}
        if not any(has.values()) and name in self._offering(name):
            offered = Counter(self.ledger.devices(name).values())
            if not offered:
                return  # its driver is away, which takes nothing from who runs there
            has |= offered
        wanted, ours = self.ledger.requested(name), self.ledger.requested(name, ours=True)
        for resource, amount in has.items():
            over = wanted[resource] > amount and ours[resource] > 0
            message = f"{wanted[resource]} of {amount} {resource} requested"
            self._lasting("I1", f"{name} {resource}", self._limits.foreign, message if over else "")
            if ours[resource] > amount and "deletionTimestamp" not in node["metadata"]:
                self._violated("I1", name, f"{ours[resource]} of {amount} {resource} requested by our own pods")

    def _offering(self, node: str) -> set[str]:
        """The node, from the first time on that a driver offers GPUs there."""
        if self.ledger.devices(node):
            self._by_driver.add(node)
        return self._by_driver

    def _claim(self, claim: Object) -> None:
        for device in witness_state.allocated(claim):
            holders = self.ledger.holders(device)
            if len(holders) > 1 and device[0] in witness_state.WHOLE:
                self._violated("I1", "/".join(device), f"allocated to {' and '.join(holders)}")
        for node in {witness_state.node_of(pod) for pod in self._users(claim)}:
            self._node(node)

    def _users(self, claim: Object) -> list[Object]:
        pods = self.ledger.objects[PODS]
        return [pods[each["uid"]] for each in claim.get("status", {}).get("reservedFor", []) if each["uid"] in pods]

    def _owned(self, job: str) -> None:
        orphan = bool(job and self.ledger.pods_of[job] and job not in self.ledger.objects[JOBS])
        self._lasting("I3", job, self._limits.orphan, "pods of a job that does not exist" if orphan else "")

    def _gangs(self, job: str) -> None:
        pods = [pod for pod in self.ledger.pods_of[job].values() if witness_state.is_ours(pod)]
        self._ranks(job, pods)
        known = self.ledger.objects[JOBS].get(job)  # of pods whose job is gone, I3 tells
        standing = witness_state.plan_of(known or {}).get("epoch")
        plans = self._memory[job].plans
        for epoch in plans.keys() | {witness_state.epoch_of(pod) for pod in pods}:
            bound = [pod for pod in pods if witness_state.epoch_of(pod) == epoch and witness_state.node_of(pod)]
            size = plans.get(epoch, {}).get("nodeCount", 0)
            whole = (
                sum(pod["status"].get("phase") != "Failed" and not witness_state.leaving(pod) for pod in bound) == size
            )
            held = any(live(pod) and not self._unheard(pod) for pod in bound)
            partial = known is not None and held and not (whole and epoch == standing)
            what = f"{len(bound)} of {size} pods bound, plan {standing}"
            longest = self._limits.gang + (self._limits.last if known and witness_state.no_restarts(known) else 0.0)
            self._lasting("I2", f"{job} epoch {epoch}", longest, what if partial else "")
            unplanned = epoch not in plans and any(witness_state.epoch_of(pod) == epoch for pod in pods)
            self._lasting(
                "I5", f"{job} epoch {epoch}", self._limits.unplanned, "pods that no plan asks for" if unplanned else ""
            )

    def _unheard(self, pod: Object) -> bool:
        """Whether it was asked to end, and its node does not answer: nobody may let it go before long."""
        return witness_state.leaving(pod) and witness_state.silent(self.ledger.named(NODES, witness_state.node_of(pod)))

    def _ranks(self, job: str, pods: list[Object]) -> None:
        seats: defaultdict[tuple[int, str], int] = defaultdict(int)
        bound: set[int] = set()
        for pod in filter(live, pods):
            seats[witness_state.epoch_of(pod), pod["metadata"]["labels"].get("trimtab.dev/node-rank", "")] += 1
            if witness_state.node_of(pod):
                bound.add(witness_state.epoch_of(pod))
        for (epoch, rank), count in seats.items():
            if count > 1:
                self._violated("I5", job, f"{count} live pods for rank {rank} of epoch {epoch}")
        if len(bound) > 1:
            self._violated("I5", job, f"bound pods of epochs {sorted(bound)} at the same time")

    def _quotas(self, pod: Object) -> None:
        """What a pod that was just bound makes of the quotas of its namespace and of its queue."""
        namespace = pod["metadata"].get("namespace")
        for quota in self.ledger.objects[QUOTAS].values():
            if quota["metadata"]["namespace"] != namespace:
                continue
            pods = self.ledger.objects[PODS].values()
            theirs = [each for each in pods if each["metadata"].get("namespace") == namespace]
            for resource in witness_state.GPUS:
                hard = quota["spec"].get("hard", {}).get(f"requests.{resource}")
                used = sum(witness_state.gpus(each)[resource] for each in theirs if live(each))
                if hard is not None and used > int(hard):
                    self._violated("I9", str(namespace), f"{used} {resource}, quota {hard}")
        job = self.ledger.objects[JOBS].get(witness_state.owner(pod), {})
        if name := job.get("spec", {}).get("queue"):
            self._queue(self.ledger.named(QUEUES, name))

    def _queue(self, queue: Object) -> None:
        held: defaultdict[str, int] = defaultdict(int)
        for uid, job in self.ledger.objects[JOBS].items():
            if queue and job["spec"].get("queue") == queue["metadata"]["name"]:
                for pod in self.ledger.pods_of[uid].values():
                    plan = self._memory[uid].plans.get(witness_state.epoch_of(pod), {})
                    if live(pod) and witness_state.node_of(pod):
                        held[plan.get("gpuType", "")] += sum(witness_state.gpus(pod).values())
        for quota in queue.get("spec", {}).get("quotas", []):
            kind, limit = quota["gpuType"], quota.get("gpus")
            used = sum(held.values()) if kind == "*" else held[kind]
            if limit is not None and used > limit:
                self._violated("I9", f"queue {name_of(queue)}", f"{used} GPUs of type {kind}, limit {limit}")

    # --- jobs -------------------------------------------------------------------------------------------------------
    def _job(self, before: Object | None, after: Object | None) -> None:
        job = after or before
        assert job is not None
        uid = witness_state.uid_of(job)
        self._owned(uid)
        if after is None:
            self._lasting("I4", name_of(job), 0, "")
            self._gangs(uid)
            return
        old, new = witness_state.status_of(before or {}), witness_state.status_of(after)
        if before and old == new:
            return
        self._epochs(before or {}, after)
        self._went_on(before or {}, after)
        self._asked(before or {}, after)
        self._steps(uid, name_of(job), old, new)
        self._gangs(uid)

    def _epochs(self, before: Object, after: Object) -> None:
        name, old, new = name_of(after), witness_state.status_of(before), witness_state.status_of(after)
        memory = self._memory[witness_state.uid_of(after)]
        leader = int(new.get("leaderEpoch", 0))
        if before and leader < self._leader:
            self._violated("I8", name, f"written by leader {leader} after leader {self._leader}")
        self._leader = max(self._leader, leader)
        for number in ("leaderEpoch", "lastEpoch", "observedGeneration"):
            if new.get(number, 0) < old.get(number, 0):
                invariant = "I8" if number == "leaderEpoch" else "I10"
                self._violated(invariant, name, f"{number} went from {old[number]} back to {new.get(number, 0)}")
        if plan := new.get("plan"):
            known = memory.plans.setdefault(plan["epoch"], plan)
            if known != plan:
                self._violated("I5", name, f"plan {plan['epoch']} was changed")
            if plan["epoch"] < max(memory.plans):
                self._violated("I10", name, f"plan {plan['epoch']} after plan {max(memory.plans)}")
        for end in ("Complete", "Failed"):
            if holds(before, end) and not holds(after, end):
                self._violated("I10", name, f"is not {end} any more")
        if finished(before) and (new.get("plan") or {}).get("epoch") != (old.get("plan") or {}).get("epoch"):
            self._violated("I10", name, "has ended, and its plan changed")

    def _went_on(self, before: Object, after: Object) -> None:
        """I4: the timer starts anew with every change of the status."""
        new = witness_state.status_of(after)
        waits = bool(new.get("pending")) or holds(after, "Suspended")
        foreign = after["spec"].get("managedBy", "trimtab.dev/controller") != "trimtab.dev/controller"
        runs = holds(after, "PodsReady") and not new.get("stop")
        message = f"nothing has happened: {[c['type'] for c in new.get('conditions', []) if c['status'] == 'True']}"
        rests = finished(after) or waits or runs or foreign or "deletionTimestamp" in after["metadata"]
        limit = self._limits.idle
        for waited_for in (new.get("retryTime"), (new.get("stop") or {}).get("deadlineTime")):
            if waited_for:
                limit = max(limit, witness_state.seconds(waited_for) - self._now + self._limits.idle)
        self._timers.pop(("I4", name_of(after)), None)
        self._lasting("I4", name_of(after), limit, "" if rests else message)

    def _asked(self, before: Object, after: Object) -> None:
        """I6 and I7: how a plan came to its end."""
        old, new = witness_state.status_of(before), witness_state.status_of(after)
        if (stop := new.get("stop")) and stop != old.get("stop"):
            self._victim(after, stop)
        plan = witness_state.plan_of(before)
        if not plan or witness_state.plan_of(after).get("epoch") == plan["epoch"]:
            return
        grace = before["spec"].get("elasticity", GRACE).get("checkpoint", GRACE).get("graceSeconds", 1)
        if not holds(before, "PodsReady") or not grace:
            return  # it has nothing to save, or no time to do so
        asked, name, reason = old.get("stop") or {}, name_of(after), self._wanted(before, after)
        if asked.get("epoch") == plan["epoch"]:
            successor = asked.get("successor")
            planned = successor and witness_state.plan_of(after).get("epoch") == successor["epoch"]
            if planned or reason:
                self._patient(after, {**asked, **_answered(new.get("stop"), asked)})
        elif reason:
            self._violated("I6", name, f"epoch {plan['epoch']} was ended ({reason}) without being asked")

    def _patient(self, job: Object, asked: Object) -> None:
        pods = [
            pod
            for pod in self.ledger.pods_of[witness_state.uid_of(job)].values()
            if witness_state.epoch_of(pod) == asked["epoch"]
        ]
        if not all(live(pod) for pod in pods):
            return  # it has ended by itself
        until = min(witness_state.seconds(asked["deadlineTime"]), self._answer(job, pods, asked))
        if told := asked.get("acknowledgedTime"):
            until = min(until, witness_state.seconds(told))
        if self._now < until - self._limits.stamp:
            early = f"epoch {asked['epoch']} was ended {until - self._now:.1f} s too early"
            self._violated("I6", name_of(job), early)

    def _answer(self, job: Object, pods: list[Object], asked: Object) -> float:
        """When a fake trainer answers, as its job's annotation says."""
        nodes = [self.ledger.named(NODES, witness_state.node_of(pod)) for pod in pods]
        fake = any("kwok.x-k8s.io/node" in node["metadata"].get("annotations", {}) for node in nodes if node)
        text = job["metadata"].get("annotations", {}).get("fake.trimtab.dev/checkpoint", "0" if fake else "Ignores")
        return math.inf if text == "Ignores" else witness_state.seconds(asked["requestedTime"]) + float(text)

    def _victim(self, job: Object, stop: Object) -> None:
        name = name_of(job)
        if stop.get("cause") == "Preempted":
            wanted = stop.get("beneficiary") or ""
            others = [each for each in self.ledger.objects[JOBS].values() if name_of(each) == wanted]
            if not wanted:
                self._violated("I7", name, "is preempted for nobody")
            for other in others:
                if self.ledger.priority(job) >= self.ledger.priority(other):
                    self._violated("I7", name, f"gives way to {wanted}, whose priority is not higher")

    def _steps(self, uid: str, name: str, old: Object, new: Object) -> None:
        memory, seen = self._memory[uid], new.get("observed") or {}
        done, before = seen.get("stepsDone", 0), (old.get("observed") or {}).get("stepsDone", 0)
        if done < before and done < memory.saved:
            self._violated("I6", name, f"went from step {before} to {done}, behind its checkpoint {memory.saved}")
        memory.saved = max(memory.saved, seen.get("lastCheckpointStep") or 0)

    @staticmethod
    def _wanted(before: Object, after: Object) -> str:
        """For which reason a gang that runs well was ended by this write: conditions keep those of earlier ones."""
        for kind in ("PodsReady", "GangScheduled", "Planned", "CheckpointRequested"):
            told = witness_state.condition(after, kind)
            if (
                told.get("reason") in STOP_CAUSES
                and told["status"] == "False"
                and told != witness_state.condition(before, kind)
            ):
                return str(told["reason"])
        return ""

    # --- findings ---------------------------------------------------------------------------------------------------
    def _lasting(self, invariant: str, subject: str, limit: float, message: str) -> None:
        """Something is wrong since now (or since earlier), or is not any more."""
        if not message:
            self._timers.pop((invariant, subject), None)
        elif timer := self._timers.get((invariant, subject)):
            timer.message = message
        else:
            self._timers[invariant, subject] = Timer(self._now, limit, message)

    def _violated(self, invariant: str, subject: str, message: str) -> None:
        key = (invariant, subject, message)
        with suppress(KeyError):
            subject = name_of(self.ledger.objects[JOBS][subject])
        if key not in self._told:
            self._told.add(key)
            self.violations.append(Violation(invariant, subject, message, self._now))


def _answered(now: Object | None, asked: Object) -> Object:
    """The answer may come in the same write as the end."""
    same = now and now.get("epoch") == asked["epoch"]
    return {"acknowledgedTime": now["acknowledgedTime"]} if same and now and now.get("acknowledgedTime") else {}
