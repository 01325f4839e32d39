"""What stops a gang before it has done its work, read from its own pods and the nodes of its plan; and who pays for it.

Everything that is found here takes the plan out of the status. The most telling cause counts (`causes.TELLING`): where
a GPU breaks, the programs on all other nodes end with errors, too. What the job itself has done uses up its restarts,
and what only its user can mend ends it after a few attempts; for all else it is tried again for as long as it takes,
with pauses that grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from msgspec import Struct
from msgspec.structs import replace

from trimtab.api.history import FailureCause
from trimtab.api.status import JobStatus, Plan
from trimtab.apply import causes
from trimtab.apply.causes import PodEnding
from trimtab.apply.gates import is_gated
from trimtab.apply.unscheduled import explain, said_of
from trimtab.kube.objects import PodObject

RUNNING, SUCCEEDED, FAILED = "Running", "Succeeded", "Failed"
MESSAGE_LIMIT = 1000
"""Characters of the reason for giving a plan up: API servers and schedulers may be talkative, and a status is not."""
PAYS = frozenset({FailureCause.PROGRAM, FailureCause.OUT_OF_MEMORY, FailureCause.USER_ERROR})
"""Causes that use up a restart of the job."""
FAILURES_KEPT = 16
NODE_LOST = "NodeLost"


class GangFailure(Struct, frozen=True):
    """Something that stopped the gang."""

    reason: str
    """CamelCase: a condition reason, event reason and metric label."""
    message: str
    refused: tuple[str, ...] = ()
    """Nodes that kube-scheduler would not take."""
    cause: FailureCause = FailureCause.OTHER
    """Who pays for it."""
    node: str = ""
    """Node that is to blame, if one is."""

    @property
    def brief(self) -> str:
        """The message, no longer than a status takes."""
        return self.message[:MESSAGE_LIMIT]


class GangState(Struct, frozen=True):
    """A gang as it stands, as far as it matters for whether it can go on."""

    plan: Plan
    pods: Mapping[int, PodObject]
    """By node rank."""
    bound: Mapping[int, str]
    """Rank -> node, of the pods that are on one."""
    now: float
    """POSIX seconds."""
    bound_seconds: float | None
    """Since when all of them have been; None where they never were."""
    start_timeout: float
    """Seconds that they may take from then until all run, but for those in which init containers run."""
    started: bool
    """Whether all have run."""
    gated: bool
    """Whether kube-scheduler binds."""
    binding_overdue: bool
    """Whether some are bound for longer than the others may take."""
    unavailable: Mapping[str, str]
    """Node of the plan -> why it takes no new pods."""
    lost: Mapping[str, str]
    """Node of the plan -> why what runs there must be given up."""
    unready: Set[str]
    """Nodes of the plan that are not ready, however short."""
    asked: bool
    """Whether it is asked to save its state and end: some launchers make an error of any end but the last step."""
    holding: bool
    """Whether a program's failure is not judged yet: what has caused it may be told a moment later."""

    @property
    def unbound(self) -> list[tuple[int, PodObject]]:
        """Pods that are on no node yet, by rank."""
        return [(rank, pod) for rank, pod in sorted(self.pods.items()) if rank not in self.bound]


def setback_of(gang: GangState, told: GangFailure | None = None) -> GangFailure | None:
    """Why the gang cannot go on, if it cannot. `told` is a reason that lies outside its pods and nodes."""
    found = [(setback, 0.0) for setback in (told, *_lost(gang)) if setback] + list(_ended(gang))
    if not found:
        return _unfit(gang) or _not_started(gang)
    worst, _ = min(found, key=lambda each: (causes.TELLING.index(each[0].cause), each[1]))
    if worst.cause is not FailureCause.PROGRAM:
        return worst
    if gang.unready:  # its connections break before anybody gives the node up
        node = min(gang.unready)
        message = f"{worst.message}; node {node} of its gang is not ready"
        return GangFailure(NODE_LOST, message, cause=FailureCause.NODE, node=node)
    if gang.holding:
        return None
    return replace(worst, cause=FailureCause.OTHER) if gang.asked else worst


def last_word(setback: GangFailure, status: JobStatus, max_restarts: int, user_errors: int) -> str:
    """Why the job is not tried again after this; empty where it is.

    `user_errors`: attempts of one spec, in a row, that may end with what only the user can mend.
    """
    generation = status.plan.observed_generation if status.plan else None
    in_a_row = 0
    for record in reversed(status.failures):
        if record.cause is not FailureCause.USER_ERROR or record.generation != generation:
            break
        in_a_row += 1
    if setback.cause is FailureCause.USER_ERROR and in_a_row + 1 >= user_errors:
        return "trying again does not help: mend it in a new job"
    return "no restarts are left" if setback.cause in PAYS and status.restarts >= max_restarts else ""


def _ended(gang: GangState) -> Iterator[tuple[GangFailure, float]]:
    """Why pods have ended or are not where they should be, and when."""
    for rank, planned in enumerate(gang.plan.nodes):
        pod, node = gang.pods.get(rank), gang.bound.get(rank, "")
        if pod is None:
            if gang.bound_seconds is not None:
                yield _missing(rank, planned.name, gang.unready), 0.0
        elif ending := causes.ending_of(pod):
            yield _setback(ending, node), ending.time
        elif node and node != planned.name:
            yield GangFailure("BoundElsewhere", f"pod {pod.metadata.name} was bound to {node}, not {planned.name}"), 0.0
        elif node and (ending := causes.cannot_start(pod, gang.bound_seconds or 0.0)):
            yield _setback(ending, node), ending.time


def _setback(ending: PodEnding, node: str) -> GangFailure:
    return GangFailure(ending.reason, ending.message, cause=ending.cause, node=node if ending.at_fault else "")


def _missing(rank: int, node: str, unready: Set[str]) -> GangFailure:
    """A pod was there, and is not any more; with a node that is gone, its pods are deleted after a while."""
    message = f"the pod of node rank {rank} is gone"
    if node in unready:
        return GangFailure(causes.POD_DELETED, f"{message}, as is its node {node}", cause=FailureCause.NODE, node=node)
    return GangFailure(causes.POD_DELETED, message)


def _lost(gang: GangState) -> Iterator[GangFailure]:
    for rank, node in enumerate(gang.plan.nodes):
        pod = gang.pods.get(rank)
        if node.name in gang.lost and not (pod and pod.status.phase == SUCCEEDED):
            message = f"node {node.name}: {gang.lost[node.name]}"
            yield GangFailure(NODE_LOST, message, cause=FailureCause.NODE, node=node.name)


def _unfit(gang: GangState) -> GangFailure | None:
    """Why not all pods can be bound."""
    if any(is_gated(pod) != gang.gated for _, pod in gang.unbound):
        return GangFailure("BindingChanged", "its pods wait to be bound in the other way, see the setting binding.mode")
    if gang.binding_overdue and len(gang.bound) < len(gang.plan.nodes):
        return _overdue(gang)
    for rank, node in enumerate(gang.plan.nodes):
        if node.name in gang.unavailable and rank not in gang.bound:
            return GangFailure("NodeUnavailable", f"node {node.name}: {gang.unavailable[node.name]}")
    return None


def _overdue(gang: GangState) -> GangFailure:
    """Not all pods could be bound in time: with kube-scheduler's own words, where it is the one who binds."""
    if not gang.gated:
        return GangFailure("BindTimeout", "not all pods of the gang could be bound in time")
    said = said_of(gang.unbound)
    nodes = {rank: node.name for rank, node in enumerate(gang.plan.nodes)}
    refused = tuple(nodes[each.rank] for each in said if each.of_its_node)
    return GangFailure("BindTimeout", explain(said, dict(gang.unbound), nodes), refused)


def _not_started(gang: GangState) -> GangFailure | None:
    """All pods have their nodes, and for too long some do not run."""
    if gang.started or gang.bound_seconds is None or gang.bound_seconds < gang.start_timeout:
        return None
    pending = [pod for _, pod in sorted(gang.pods.items()) if pod.status.phase == "Pending"]
    stuck = [pod for pod in pending if causes.still_for(pod, gang.bound_seconds, gang.now) >= gang.start_timeout]
    if not stuck:
        return None
    ending = causes.not_started(stuck, len(gang.plan.nodes), gang.bound_seconds)
    return _setback(ending, stuck[0].spec.node_name)
