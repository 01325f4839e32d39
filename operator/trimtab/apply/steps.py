"""The next step of one job: a pure function of its status, its pods and what stands in their way.

A job's life is a sequence of small steps, each a set of writes that may be sent in parallel and repeated without harm.
No step depends on memory: the plan in the status says what must exist, the pods say what does, and the difference is
the step. A controller that dies between any two writes leaves a state from which this same function goes on.

    plan written -> Service and pods created -> all pods bound -> GangScheduled -> PodsReady -> Complete

All or none: whatever stops a gang before it runs as a whole (a node gone, a refusal, a pod deleted, a time-out) takes
the plan out of the status in one write; pods without a plan are deleted in the next step, and the job is planned anew
after a back-off. A plan is thus never changed, only replaced by one of a higher epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from trimtab import names
from trimtab.api.status import JobStatus, Pending, Plan, Shadow
from trimtab.apply import transitions
from trimtab.apply.transitions import Happening
from trimtab.kube.objects import Meta, PodObject

RUNNING, SUCCEEDED, FAILED = "Running", "Succeeded", "Failed"


class WriteStatus(Struct, frozen=True):
    """Replace the status; `happening` is what users and metrics are told once it is written."""

    status: JobStatus
    happening: Happening | None = None


class CreateService(Struct, frozen=True):
    """Create the headless Service of the gang."""


class CreatePod(Struct, frozen=True):
    """Create the pod of a node rank."""

    rank: int


class BindPod(Struct, frozen=True):
    """Bind a pod to the node that the plan gives it."""

    name: str
    uid: str
    node: str


class DeletePod(Struct, frozen=True):
    """Delete a pod that no plan wants; `force` when its node is gone and nobody would confirm the end."""

    name: str
    uid: str
    force: bool = False


Action = WriteStatus | CreateService | CreatePod | BindPod | DeletePod
Step = tuple[Action, ...]


class Setback(Struct, frozen=True):
    """Something that stopped the gang, found outside its own pods."""

    reason: str
    """CamelCase: a condition reason, event reason and metric label."""
    message: str


class View(Struct, frozen=True):
    """All that the next step of a job depends on."""

    meta: Meta
    status: JobStatus
    suspended: bool
    finished: bool
    max_restarts: int
    now: float
    """POSIX seconds."""
    backoff: tuple[float, float]
    """Seconds of pause after the first setback in a row, and at most."""
    pods: tuple[PodObject, ...] = ()
    """Pods that the job controls, of any epoch."""
    assumed: Mapping[str, str] = {}
    """Pod UID -> node, of bindings that were answered and are not visible yet."""
    has_service: bool = False
    plan: Plan | None = None
    """A plan that was decided for a job without one."""
    pending: Pending | None = None
    """Why a job without a plan has none."""
    setback: Setback | None = None
    """Why the standing plan cannot be carried out any longer, if the reason lies outside its pods and nodes."""
    unavailable: Mapping[str, str] = {}
    """Node of the plan -> why it takes no new pods."""
    lost: Mapping[str, str] = {}
    """Node of the plan -> why what runs there must be given up."""
    gone_nodes: frozenset[str] = frozenset()
    """Nodes of the gang's pods that do not exist any more."""
    deleted: Mapping[str, bool] = {}
    """UID -> whether by force, of pods whose deletion was answered and which are still visible."""
    binding_overdue: bool = False
    """Some pods of the gang have been bound for longer than the others may take."""
    progress: int | None = None
    """Per cent, where it is known without the trainer's report."""
    shadow: Shadow | None = None
    """What the shadow policy would have decided where the plan stands, or the job waits."""


def next_step(view: View) -> Step:
    """Writes to send now; empty when there is nothing to do until something changes."""
    if view.finished:  # pods that have ended stay, for their logs
        return _clear(view, [pod for pod in view.pods if pod.status.phase not in (SUCCEEDED, FAILED)])
    if view.suspended:
        return _suspend(view)
    if view.status.plan is None:
        return _clear(view, view.pods) or _wait_or_plan(view)
    return _carry_out(view, view.status.plan)


def _suspend(view: View) -> Step:
    return _status(view, transitions.suspended(view.status, view.meta, view.now)) or _clear(view, view.pods)


def _wait_or_plan(view: View) -> Step:
    if view.pods:
        return ()  # pods of an earlier epoch are still ending: two gangs of one job must never run at once
    if view.plan:
        return _status(view, transitions.planned(view.status, view.meta, view.plan, view.now))
    if view.pending is None:
        return ()
    status = transitions.waiting(view.status, view.meta, view.pending, view.now)
    return _status(view, transitions.shadowed(status, view.shadow))


def _carry_out(view: View, plan: Plan) -> Step:
    gang = _Gang(view, plan)
    if gang.ended_well:
        return _status(view, transitions.completed(view.status, view.meta, view.now))
    if setback := view.setback or gang.setback():
        return _give_up(view, setback, failed=gang.failed)
    if gang.strays:
        return _clear(view, gang.strays)
    step = gang.missing_objects() or gang.bindings()
    if step or not gang.all_bound:
        return step
    status = transitions.progressed(
        transitions.scheduled(view.status, view.meta, view.now, all_running=gang.all_running), view.progress, view.now
    )
    status = transitions.shadowed(status, view.shadow)
    return _status(view, status, transitions.what_happened(view.status, status))


def _give_up(view: View, setback: Setback, *, failed: bool) -> Step:
    """Take the plan away. Failures of the job's own pods count against its restarts, everything else does not."""
    if failed and view.status.restarts >= view.max_restarts:
        return _status(view, transitions.failed(view.status, view.meta, setback.reason, setback.message, view.now))
    status = transitions.set_back(
        view.status, view.meta, setback.reason, setback.message, view.now, view.backoff, counts=failed
    )
    return _status(view, status, transitions.gave_up(setback.reason, setback.message, view.status))


def _clear(view: View, pods: Iterable[PodObject]) -> Step:
    """Delete pods that no plan wants, unless they are going already: by force where no kubelet would let them go."""
    return tuple(
        DeletePod(pod.metadata.name, pod.metadata.uid, force=force)
        for pod in pods
        if not _goes(view, pod, force := pod.spec.node_name in view.gone_nodes)
    )


def _goes(view: View, pod: PodObject, force: bool) -> bool:
    asked = view.deleted.get(pod.metadata.uid)
    if force:
        return asked is True
    return asked is not None or pod.metadata.deletion_timestamp is not None


def _status(view: View, status: JobStatus, happening: Happening | None = None) -> Step:
    if status == view.status:
        return ()
    return (WriteStatus(status, happening or transitions.what_happened(view.status, status)),)


class _Gang:
    """The pods of the standing plan, by rank."""

    def __init__(self, view: View, plan: Plan) -> None:
        self._view = view
        self._plan = plan
        self._was_scheduled = transitions.is_scheduled(view.status)
        self._ranks = range(len(plan.nodes))
        places = {(str(plan.epoch), str(rank)): rank for rank in self._ranks}
        self._by_rank: dict[int, PodObject] = {}
        self.strays: list[PodObject] = []
        for pod in view.pods:
            labels = pod.metadata.labels
            rank = places.get((labels.get(names.LABEL_EPOCH, ""), labels.get(names.LABEL_RANK, "")))
            if rank is None or rank in self._by_rank:
                self.strays.append(pod)
            else:
                self._by_rank[rank] = pod
        self._in_order = sorted(self._by_rank.items())

    @property
    def ended_well(self) -> bool:
        return self._complete and all(pod.status.phase == SUCCEEDED for pod in self._by_rank.values())

    @property
    def failed(self) -> bool:
        return any(_failed_by_itself(pod) for pod in self._by_rank.values())

    @property
    def all_bound(self) -> bool:
        return self._complete and all(self._node_of(pod) for pod in self._by_rank.values())

    @property
    def all_running(self) -> bool:
        return self._complete and all(pod.status.phase in (RUNNING, SUCCEEDED) for pod in self._by_rank.values())

    @property
    def _complete(self) -> bool:
        return len(self._by_rank) == len(self._ranks)

    def setback(self) -> Setback | None:
        """What the pods themselves say against going on."""
        for rank, pod in self._in_order:
            name, node = pod.metadata.name, self._node_of(pod)
            if pod.metadata.deletion_timestamp:
                return Setback("PodDeleted", f"pod {name} was deleted")
            if pod.status.phase == FAILED:
                return _why_failed(pod)
            if node and node != self._plan.nodes[rank].name:
                return Setback("BoundElsewhere", f"pod {name} was bound to {node}, not {self._plan.nodes[rank].name}")
        lost = [rank for rank in self._ranks if rank not in self._by_rank]
        if self._was_scheduled and lost:
            return Setback("PodDeleted", f"the pod of node rank {lost[0]} is gone")
        if self._view.binding_overdue and not self.all_bound:
            return Setback("BindTimeout", "not all pods of the gang could be bound in time")
        return self._setback_of_nodes()

    def _setback_of_nodes(self) -> Setback | None:
        for rank, node in enumerate(self._plan.nodes):
            pod = self._by_rank.get(rank)
            if pod and pod.status.phase == SUCCEEDED:
                continue
            if node.name in self._view.lost:
                return Setback("NodeLost", f"node {node.name}: {self._view.lost[node.name]}")
            if node.name in self._view.unavailable and not (pod and self._node_of(pod)):
                return Setback("NodeUnavailable", f"node {node.name}: {self._view.unavailable[node.name]}")
        return None

    def missing_objects(self) -> Step:
        service: Step = () if self._view.has_service else (CreateService(),)
        return service + tuple(CreatePod(rank) for rank in self._ranks if rank not in self._by_rank)

    def bindings(self) -> Step:
        return tuple(
            BindPod(pod.metadata.name, pod.metadata.uid, self._plan.nodes[rank].name)
            for rank, pod in self._in_order
            if not self._node_of(pod)
        )

    def _node_of(self, pod: PodObject) -> str:
        return pod.spec.node_name or self._view.assumed.get(pod.metadata.uid, "")


def _why_failed(pod: PodObject) -> Setback:
    """The kubelet's refusal or eviction, or the exit of a container."""
    name, status = pod.metadata.name, pod.status
    if not _failed_by_itself(pod):
        return Setback("PodRefused", f"pod {name}: {status.reason} {status.message}".strip())
    for container in status.container_statuses:
        ended = container.state.terminated
        if ended and ended.exit_code:
            how = f"exited with {ended.exit_code}" + (f" ({ended.reason})" if ended.reason else "")
            return Setback("PodFailed", f"pod {name}: container {container.name} {how}")
    return Setback("PodFailed", f"pod {name} failed")


def _failed_by_itself(pod: PodObject) -> bool:
    """A failure of the training: nobody deleted the pod, no kubelet refused or evicted it (it would give a reason)."""
    return pod.status.phase == FAILED and not pod.status.reason and not pod.metadata.deletion_timestamp
