"""What the next step of a job depends on, put together from the caches: the one place where the stages meet.

`apply` must not know how nodes are read or how specs are judged; here the facts of `observe`, the rules of `decide`
and the objects of `plan` are brought into the terms of `trimtab.apply.steps`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from msgspec import Struct, field

from trimtab.api.base import LONG_TEXT, TEXT
from trimtab.api.convert import to_placement, to_plan
from trimtab.api.status import MAX_ITEMS, Plan, Shadow
from trimtab.api.status import Pending as WirePending
from trimtab.apply import transitions
from trimtab.apply.steps import Setback, View
from trimtab.controller.cluster import Cluster
from trimtab.errors import NotFound
from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.snapshot import Observer
from trimtab.plan import fake
from trimtab.plan.gang import gang_plan
from trimtab.plan.objects import GangPlan
from trimtab.settings import Settings
from trimtab_policy.limits import user_limits
from trimtab_policy.types import Pending, Placement


class Promise(Struct, frozen=True):
    """A placement that is decided and not written yet."""

    placement: Placement
    policy: str
    generation: int
    """Generation of the spec that it was decided for."""


class Watched(Struct, frozen=True):
    """What the shadow policy would have done, and instead of what."""

    shadow: Shadow
    epoch: int | None
    """Of the plan that was decided at the same time; None where the job had to wait."""


class Gang(Struct):
    """What is remembered of one job between two looks: confirmed by the API server, but not visible yet."""

    task: asyncio.Task[None] | None = None
    promise: Promise | None = None
    pending: Pending | None = None
    setback: Setback | None = None
    watched: Watched | None = None
    assumed: dict[str, str] = field(default_factory=dict)
    """Pod UID -> node of answered bindings."""
    deleted: dict[str, bool] = field(default_factory=dict)
    """Pod UID -> whether by force, of answered deletions."""
    binding_since: float | None = None
    """Monotonic time of the first binding of a gang that is not wholly bound."""


class Views:
    """Puts views together; remembers only since when each node is not ready, by the local monotonic clock."""

    def __init__(self, cluster: Cluster, observer: Observer, settings: Settings) -> None:
        self._cluster = cluster
        self._observer = observer
        self._settings = settings
        self._not_ready_since: dict[str, float] = {}

    def view(self, uid: str, gang: Gang) -> View | None:
        """What the next step of the job depends on; None for a job that is gone, going, or unreadable."""
        job = self._cluster.job(uid)
        if job is None or job.metadata.deletion_timestamp:
            return None
        facts = self._observer.job(job)
        if not facts.ours or facts.unreadable:
            return None
        pods = self._cluster.pods_of(uid)
        _settle(gang, facts, {pod.metadata.uid for pod in pods})
        plan = facts.status.plan
        nodes = (
            {node.name: self._observer.node(self._cluster.nodes.items.get(node.name)) for node in plan.nodes}
            if plan
            else {}
        )
        return View(
            meta=facts.meta,
            status=facts.status,
            suspended=facts.suspended,
            finished=facts.finished,
            max_restarts=facts.spec.max_restarts if facts.spec else 0,
            now=time.time(),
            backoff=(self._settings.gang.backoff_initial_seconds, self._settings.gang.backoff_max_seconds),
            pods=pods,
            assumed=gang.assumed,
            deleted=gang.deleted,
            has_service=self._cluster.has_service(uid),
            plan=self._plan(facts, gang.promise),
            pending=_wire(gang.pending),
            setback=gang.setback or _edited_away(facts),
            unavailable={name: why for name, node in nodes.items() if (why := _unavailable(node))},
            lost={name: why for name, node in nodes.items() if (why := self._lost(name, node))},
            gone_nodes=frozenset(n for pod in pods if (n := pod.spec.node_name) and n not in self._cluster.nodes.items),
            binding_overdue=self._overdue(gang),
            progress=fake.progress(facts.status, time.time()) if self._settings.fake.enabled else None,
            shadow=_said(gang.watched, plan),
        )

    def gang_plan(self, view: View) -> GangPlan:
        """What the objects of a planned job are made of."""
        job = self._cluster.job(view.meta.uid)
        plan = view.status.plan
        facts = self._observer.job(job) if job else None
        if plan is None or facts is None or facts.spec is None or facts.training is None:
            raise NotFound(f"job {view.meta.key} is gone, or can no longer be understood")
        speedup = self._settings.fake.speedup
        annotations = fake.pod_annotations(facts.meta, plan, speedup) if self._settings.fake.enabled else None
        return gang_plan(facts.meta, facts.spec, facts.template, facts.training, plan, annotations)

    def watch_nodes(self, nodes: Mapping[str, NodeFacts]) -> float:
        """Note which nodes are not ready; return the seconds until the first of them has used up its grace."""
        now = time.monotonic()
        down = {name for name, facts in nodes.items() if not facts.ready}
        self._not_ready_since = {name: self._not_ready_since.get(name, now) for name in down}
        grace = self._settings.gang.node_grace_seconds
        left = [since + grace - now for since in self._not_ready_since.values() if since + grace > now]
        return min(left, default=float("inf"))

    def next_progress(self, jobs: Iterable[JobFacts]) -> float:
        """Seconds until the progress of a fake gang is to be noted; infinite outside fake mode."""
        if not self._settings.fake.enabled:
            return float("inf")
        now = time.time()
        running = (facts.status for facts in jobs if facts.holds_gpus)
        return min((fake.next_progress(status, now) for status in running), default=float("inf"))

    def _plan(self, facts: JobFacts, promise: Promise | None) -> Plan | None:
        if promise is None:
            return None
        node = self._node(promise.placement.shares[0].node)
        if node is None:
            return None
        return to_plan(
            promise.placement,
            epoch=(facts.status.last_epoch or 0) + 1,
            policy=promise.policy,
            resource=node.resource,
            generation=facts.meta.generation,
            now=datetime.fromtimestamp(int(time.time()), UTC),
            speedup=self._settings.fake.speedup if self._settings.fake.enabled else 1.0,
        )

    def _node(self, name: str) -> NodeFacts | None:
        return self._observer.node(self._cluster.nodes.items.get(name))

    def _lost(self, name: str, node: NodeFacts | None) -> str:
        """Why pods that run on the node must be given up; empty when they need not."""
        if node is None:
            return "deleted, or no longer a GPU node"
        since = self._not_ready_since.get(name)
        grace = self._settings.gang.node_grace_seconds
        overdue = not node.ready and since is not None and time.monotonic() - since >= grace
        return f"NotReady for {grace:g} s" if overdue else ""

    def _overdue(self, gang: Gang) -> bool:
        limit = self._settings.gang.bind_timeout_seconds
        return gang.binding_since is not None and time.monotonic() - gang.binding_since >= limit


def _said(watched: Watched | None, plan: Plan | None) -> Shadow | None:
    """What the shadow policy has said about this very plan, or about a job that has none."""
    return watched.shadow if watched and watched.epoch == (plan.epoch if plan else None) else None


def _settle(gang: Gang, facts: JobFacts, known: set[str]) -> None:
    """Drop what was remembered and has become visible, or void."""
    gang.deleted = {pod: force for pod, force in gang.deleted.items() if pod in known}
    gang.assumed = {pod: node for pod, node in gang.assumed.items() if pod in known}
    if facts.status.plan or facts.suspended or facts.finished:
        gang.promise = gang.pending = None
    elif gang.promise and gang.promise.generation != facts.meta.generation:
        gang.promise = None
    if facts.status.plan is None:
        gang.setback = None
    if facts.status.plan is None or transitions.is_scheduled(facts.status):
        gang.binding_since = None


def _unavailable(node: NodeFacts | None) -> str:
    return node.unavailable if node else "deleted, or no longer a GPU node"


def _edited_away(facts: JobFacts) -> Setback | None:
    """The spec was edited so that the standing plan is no longer allowed."""
    plan = facts.status.plan
    if plan is None or facts.finished or facts.requirements is None:
        return None
    if plan.observed_generation == facts.meta.generation:
        return None
    broken = next(user_limits(facts.requirements, to_placement(facts.meta.uid, plan)), None)
    return Setback("SpecChanged", f"the plan no longer meets the spec: {broken[1]}") if broken else None


def _wire(pending: Pending | None) -> WirePending | None:
    """What a policy says about a waiting job, cut to what the API takes: policies may be talkative."""
    if pending is None:
        return None
    return WirePending(
        reason=pending.reason,
        message=pending.message[:LONG_TEXT],
        blockers=tuple(item[:TEXT] for item in pending.blockers[:MAX_ITEMS]),
        alternatives=tuple(item[:TEXT] for item in pending.alternatives[:MAX_ITEMS]),
    )
