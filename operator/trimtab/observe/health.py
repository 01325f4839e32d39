"""What a GPU's faults mean, and how a node is judged by them: a table, and pure steps from one judgement to the next.

    Healthy -> Reported      a fault; acted on by nobody yet
            -> Unhealthy     within the limit: takes no pods, and after a grace gangs leave its broken GPUs
            -> Recovering    no fault any more: still takes no pods
            -> Healthy       without a fault for long enough

What holds a node back is a fault in fresh, plausible readings, at once. What lets it go is fresh readings that have
been without one for long enough; the agent drops faults when the machine starts anew, and the annotation
`trimtab.dev/repaired` mends those before it. Readings that are missing or stale change nothing (R10: no act on missing
data), and at most a part of the nodes is held back at a time, for when most GPUs seem broken, the reports are.

XIDs as in NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors), which also says what to do; those of applications
are the ones that NVIDIA's device plugin leaves out of its health check, too. XIDs that are not in the table are told
and not acted on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from trimtab import names
from trimtab.observe.telemetry import GpuFacts, GpuFault, NodeTelemetry

RESET = "drain and reset the GPU, or restart the machine"
REPLACE = "restart the machine; if it comes again, have the GPU replaced"


class Xid(NamedTuple):
    """One error of NVIDIA's driver."""

    meaning: str
    fatal: bool
    """Whether the GPU must not take work until somebody did something about it."""
    advice: str = ""


APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 69, 109})
"""Mistakes of the program on the GPU (bad addresses, hanging kernels, clean-up after either): the pod fails."""

XIDS: Final[Mapping[int, Xid]] = {
    46: Xid("the GPU stopped processing", True, RESET),
    48: Xid("a double-bit ECC error", True, RESET),
    61: Xid("a breakpoint of the internal micro-controller", True, RESET),
    62: Xid("the internal micro-controller halted", True, RESET),
    63: Xid("a memory row is to be remapped", False, "reset the GPU when it is idle"),
    64: Xid("a memory row could not be remapped", True, REPLACE),
    74: Xid("an NVLink error", True, "restart the machine; if it comes again, check NVLink bridges, switches and GPU"),
    79: Xid("the GPU has fallen off the bus", True, REPLACE),
    92: Xid("a high rate of single-bit ECC errors", False, "watch it"),
    94: Xid("a contained ECC error: it ended one program, the GPU is sound", False, "reset the GPU when it is idle"),
    95: Xid("an uncontained ECC error", True, RESET),
    110: Xid("a security fault", True, RESET),
    119: Xid("the GPU's system processor (GSP) does not answer", True, RESET),
    120: Xid("an error of the GPU's system processor (GSP)", True, RESET),
    140: Xid("an unrecovered ECC error", True, RESET),
    143: Xid("the GPU could not be initialised", True, REPLACE),
    154: Xid("the driver asks for a recovery action", False, "see the kernel's log for which"),
}
_CONTAINED: Final = 94
_UNCONTAINED: Final = frozenset({48, 95, 140})


class SickGpu(Struct, frozen=True):
    """A GPU that must not take work."""

    uuid: str
    index: int
    reason: str
    """CamelCase, of the condition and the event."""
    what: str
    """What happened, and what to do."""

    def __str__(self) -> str:
        return f"GPU {self.index}: {self.what}"


def bad_gpus(told: NodeTelemetry) -> tuple[SickGpu, ...]:
    """GPUs with a fault that nobody has mended; one reason each, the worst."""
    return tuple(bad for gpu in told.gpus if (bad := _judge(gpu, told.repaired)))


def remarks(told: NodeTelemetry) -> tuple[str, ...]:
    """Faults that somebody should know about though they take nothing away."""
    return tuple(
        f"GPU {gpu.index}: {said}"
        for gpu in told.gpus
        for fault in gpu.faults
        if fault.time > told.repaired and (said := _remark(fault))
    )


def _judge(gpu: GpuFacts, repaired: float) -> SickGpu | None:
    """The state that is read now counts whatever an annotation says; events count unless they are mended."""
    if gpu.row_remap_failed:
        return _row_remap_failed(gpu)
    if not gpu.faults:
        return None
    lasting = [fault for fault in gpu.faults if fault.time > repaired]
    kinds = {fault.kind for fault in lasting}
    codes = {fault.code for fault in lasting if fault.kind == "Xid"}
    if "Lost" in kinds:
        return SickGpu(gpu.uuid, gpu.index, names.REASON_GPU_LOST, f"it does not answer any more; {REPLACE}")
    if "RowRemapFailure" in kinds:
        return _row_remap_failed(gpu)
    if fatal := sorted(code for code in codes if code in XIDS and XIDS[code].fatal):
        xid = XIDS[fatal[0]]
        said = f"XID {fatal[0]}, {xid.meaning}; {xid.advice}"
        return SickGpu(gpu.uuid, gpu.index, names.REASON_XID_FATAL, said)
    contained = _CONTAINED in codes and not codes & _UNCONTAINED
    if "UncorrectableEcc" in kinds and not contained:
        said = f"memory errors that could not be corrected; {RESET}"
        return SickGpu(gpu.uuid, gpu.index, names.REASON_UNCORRECTABLE_ECC, said)
    return None


def _row_remap_failed(gpu: GpuFacts) -> SickGpu:
    said = "broken memory rows that cannot be remapped any more; have the GPU replaced"
    return SickGpu(gpu.uuid, gpu.index, names.REASON_ROW_REMAP_FAILED, said)


def _remark(fault: GpuFault) -> str:
    if fault.kind != "Xid" or fault.code in APPLICATION_XIDS:
        return ""
    xid = XIDS.get(fault.code)
    if xid is None:
        return f"XID {fault.code}, which is not in the table: see NVIDIA's catalogue"
    return "" if xid.fatal else f"XID {fault.code}, {xid.meaning}; {xid.advice}"


def _in_words(bad: Sequence[SickGpu]) -> str:
    """`GPU 0, 1, 2: it does not answer any more; ...`, the same fault of several GPUs once."""
    alike: dict[str, list[str]] = {}
    for each in bad:
        alike.setdefault(each.what, []).append(str(each.index))
    return "; ".join(f"GPU {', '.join(indices)}: {what}" for what, indices in alike.items())


def _vouch(known: NodeHealth, told: NodeTelemetry) -> str:
    """How to say that a GPU was repaired while the machine ran on. What is read in the GPU itself cannot be so."""
    if all(bad.reason == names.REASON_ROW_REMAP_FAILED for bad in known.bad):
        return ""
    now = f"{names.ANNOTATION_REPAIRED}=$(date -u +%FT%TZ)"
    return f"once it is repaired without a restart: kubectl annotate --overwrite gpunode {told.name} {now}"


# --- from one judgement of a node to the next ------------------------------------------------------------------------
class HealthState(StrEnum):
    """Where a node stands."""

    UNSEEN = "Unseen"
    """No readings yet."""
    HEALTHY = "Healthy"
    REPORTED = "Reported"
    """A fault beyond the limit on nodes held back: it is not acted on."""
    UNHEALTHY = "Unhealthy"
    RECOVERING = "Recovering"
    STALE = "Stale"
    """Nothing was wrong, and now nothing is known."""


class NodeHealth(Struct, frozen=True):
    """The judgement of one node."""

    state: HealthState
    since: float
    """When it came into this state, on the caller's clock."""
    bad: tuple[SickGpu, ...] = ()
    """GPUs that are faulty; while recovering, those that were."""
    boot_id: str = ""
    """Of the machine when they were."""

    @property
    def held(self) -> bool:
        """Whether the node is kept from taking pods."""
        return self.state in (HealthState.UNHEALTHY, HealthState.RECOVERING)


def remembered(told: NodeTelemetry, age: float, now: float) -> NodeHealth:
    """The judgement that the condition on the object tells of, `age` seconds old: how it survives a restart."""
    judged = told.judged
    if judged is None:
        return NodeHealth(HealthState.UNSEEN, now)
    states = {
        names.REASON_HEALTHY: HealthState.HEALTHY,
        names.REASON_RECOVERING: HealthState.RECOVERING,
        names.REASON_TOO_MANY_UNHEALTHY: HealthState.REPORTED,
        names.REASON_STALE_READINGS: HealthState.STALE,
        names.REASON_NO_READINGS: HealthState.STALE,
    }
    state = HealthState.UNHEALTHY if judged.status == "False" else states.get(judged.reason, HealthState.UNSEEN)
    return NodeHealth(state, now - max(0.0, age))


def step(before: NodeHealth, told: NodeTelemetry, *, fresh: bool, now: float, recovery: float) -> NodeHealth:
    """The judgement after one more look. Only `admitted` turns a reported fault into one that is acted on."""
    if not fresh or told.error or not told.gpus:
        if before.held or before.state is HealthState.STALE:
            return before
        return NodeHealth(HealthState.STALE, now)
    bad = bad_gpus(told)
    bad += _vanished(before, told, {each.uuid for each in bad})
    if bad:
        if before.state is HealthState.RECOVERING:
            return NodeHealth(HealthState.UNHEALTHY, now, bad, told.boot_id)
        same = before.state in (HealthState.UNHEALTHY, HealthState.REPORTED)
        return NodeHealth(
            before.state if same else HealthState.REPORTED, before.since if same else now, bad, told.boot_id
        )
    if before.state is HealthState.UNHEALTHY:
        return replace(before, state=HealthState.RECOVERING, since=now)
    if before.state is HealthState.HEALTHY or (
        before.state is HealthState.RECOVERING and now - before.since < recovery
    ):
        return before
    return NodeHealth(HealthState.HEALTHY, now)


def _vanished(before: NodeHealth, told: NodeTelemetry, known: set[str]) -> tuple[SickGpu, ...]:
    """A faulty GPU that is not in the list any more, on a machine that was not started anew, has not been mended."""
    if not before.held or not before.bad or told.boot_id != before.boot_id:
        return ()
    present = {gpu.uuid for gpu in told.gpus} | known
    return tuple(bad for bad in before.bad if bad.uuid not in present)


def allowance(held: int, nodes: int, share: float) -> int:
    """How many nodes more may be held back: at most `share` of them in all, and one at least."""
    return max(0, max(1, math.floor(share * nodes)) - held)


def admitted(known: Mapping[str, NodeHealth], held: int, nodes: int, share: float) -> Sequence[str]:
    """Nodes that may be held back while `held` others are: of those reported, and those that were held before.

    Faults in the readings come before what only a condition tells, what was held before comes before what is new.
    """
    waiting = sorted(
        (not told.bad, not told.held, told.since, name)
        for name, told in known.items()
        if told.held or told.state is HealthState.REPORTED
    )
    return [name for *_, name in waiting[: allowance(held, nodes, share)]]


class HealthCondition(NamedTuple):
    """A health in the words of a condition."""

    status: str
    reason: str
    message: str
    contained: bool = False
    """Whether the node's device plugin has taken the faulty GPUs away."""


WITHDRAWN: Final = "its device plugin has taken it away, the node's other GPUs go on"
"""For people: `contained` says so to a new controller."""


def verdict(known: NodeHealth, told: NodeTelemetry, recovery: float, *, withdrawn: bool = False) -> HealthCondition:
    """What the condition Healthy says; the same for as long as nothing has changed.

    `withdrawn`: the node's device plugin has taken the faulty GPUs away.
    """
    faults = _in_words(known.bad)
    match known.state:
        case HealthState.UNHEALTHY if not known.bad and told.judged:  # after a restart, before the first fresh report
            judged = told.judged
            return HealthCondition(
                "False", judged.reason or names.REASON_GPU_UNHEALTHY, judged.message, judged.contained
            )
        case HealthState.UNHEALTHY:
            message = "; ".join(filter(None, (faults, WITHDRAWN if withdrawn else "", _vouch(known, told))))
            reason = known.bad[0].reason if known.bad else names.REASON_GPU_UNHEALTHY
            return HealthCondition("False", reason, message, withdrawn)
        case HealthState.REPORTED:
            message = f"{faults}; not acted on: too large a part of the nodes is held back already"
            return HealthCondition("Unknown", names.REASON_TOO_MANY_UNHEALTHY, message)
        case HealthState.RECOVERING:
            return HealthCondition(
                "Unknown", names.REASON_RECOVERING, f"takes jobs again after {recovery:g} s without a fault"
            )
        case HealthState.HEALTHY:
            return HealthCondition("True", names.REASON_HEALTHY, "")
        case _ if told.error:
            return HealthCondition("Unknown", names.REASON_NO_READINGS, f"the agent cannot read the GPUs: {told.error}")
        case _ if not told.gpus:
            return HealthCondition("Unknown", names.REASON_NO_READINGS, "the agent's report tells of no GPU")
        case _:
            message = f"no report within {told.period:g} s, several times over: is the agent running?"
            return HealthCondition("Unknown", names.REASON_STALE_READINGS, message)
