"""One GPUNode -> facts that may be relied on: every number finite and possible, everything else left out and said.

An agent may be broken, or its node taken over. Whatever it sends is therefore read leniently and believed sparingly: a
number that cannot be so is dropped by itself, a report that makes no sense is dropped whole, and `implausible` says
what and why. Points in time of the node's own clock are compared with each other only, never with ours.

Values are floats in base units, utilisations shares in [0, 1]. What is not known is NaN, always `math.nan` itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, Literal, cast, get_args

import msgspec
from msgspec import Struct

from trimtab import names
from trimtab.kube.objects import GpuNodeObject
from trimtab_policy.types import Readings

MAX_GPUS: Final = 64
MAX_FAULTS: Final = 32
MAX_PODS: Final = 64
DEFAULT_PERIOD: Final = 30.0
MAX_SAID: Final = 8
"""Implausible things that are named; a broken agent has hundreds."""
BYTES: Final = 1 << 46
HERTZ_PER_MHZ: Final = 1e6
MAX_MHZ: Final = 3_500.0
"""Above the highest boost of any card that trains (some 3,100 MHz); where a card's own highest clock is known, that and
`CLOCK_SLACK` is the bound."""
CLOCK_SLACK: Final = 1.03
MAX_WATTS: Final = 2_000.0
"""Of one GPU whose limit is not known; where it is, three times that, for peaks."""
NA: Final = math.nan

FaultKind = Literal["Xid", "Lost", "RowRemapFailure", "UncorrectableEcc"]
_FAULT_KINDS: Final = frozenset(get_args(FaultKind))


class GpuFault(Struct, frozen=True, gc=False):
    """Something that went wrong on a GPU since its machine was started, and has not been mended."""

    kind: FaultKind
    code: int
    """Number of the XID, 0 for the others."""
    time: float
    """When it was seen last, POSIX seconds of the node's clock."""


class GpuFacts(Struct, frozen=True, gc=False):
    """One GPU as its agent sees it."""

    uuid: str
    index: int
    product: str = ""
    memory_total: float = NA
    memory_used: float = NA
    utilization: float = NA
    """Part of the time in which some kernel ran."""
    memory_utilization: float = NA
    """Part of the time in which memory was read or written."""
    tensor_active: float = NA
    dram_active: float = NA
    temperature: float = NA
    power: float = NA
    """Watts."""
    power_limit: float = NA
    sm_clock: float = NA
    """Hz."""
    sm_clock_max: float = NA
    throttled: float = NA
    """Part of the last period in which something other than idleness or a user's setting kept the clock down."""
    throttle_reasons: tuple[str, ...] = ()
    row_remap_failed: bool = False
    row_remap_pending: bool = False
    partitioned: bool = False
    """Whether it is cut into parts (MIG)."""
    pods: tuple[str, ...] | None = None
    """`namespace/name` of those that have it; None where the kubelet cannot be asked."""
    faults: tuple[GpuFault, ...] = ()


class HealthyCondition(Struct, frozen=True, gc=False):
    """The conditions as the controller wrote them last: its only memory of what it thought of the node."""

    status: str
    reason: str
    message: str
    since: float
    """POSIX seconds."""
    contained: bool = False
    """Whether the condition FaultContained says that the faulty GPUs had been taken away."""


class NodeTelemetry(Struct, frozen=True):
    """What one agent reports about its node."""

    name: str
    uid: str
    observed: str = ""
    """The agent's own time of the readings; another one is another report."""
    period: float = DEFAULT_PERIOD
    """Seconds within which the next report comes."""
    boot_id: str = ""
    error: str = ""
    """Why there are no readings."""
    gpus: tuple[GpuFacts, ...] = ()
    implausible: tuple[str, ...] = ()
    """What was left out."""
    repaired: float = -math.inf
    """Faults up to this time of the node's clock are mended, says the annotation."""
    judged: HealthyCondition | None = None

    def means(self, arrived: float) -> Readings:
        """What policies see of it."""
        gpus = self.gpus
        return Readings(
            utilization=_mean([gpu.utilization for gpu in gpus]),
            memory_used=_mean([gpu.memory_used / gpu.memory_total for gpu in gpus]),
            memory_bandwidth=_mean([_known(gpu.dram_active, gpu.memory_utilization) for gpu in gpus]),
            temperature=max((gpu.temperature for gpu in gpus if gpu.temperature == gpu.temperature), default=NA),
            power=min(_mean([gpu.power / gpu.power_limit for gpu in gpus]), 1.0),
            arrived=arrived,
        )


class _Gpu(Struct, rename="camel"):
    """One GPU on the wire. Any value is taken, to be looked at one by one."""

    uuid: Any = None
    index: Any = None
    product: Any = None
    memory_total_bytes: Any = None
    memory_used_bytes: Any = None
    sm_utilization_percent: Any = None
    memory_utilization_percent: Any = None
    tensor_active_percent: Any = None
    dram_active_percent: Any = None
    temperature_celsius: Any = None
    power_milliwatts: Any = None
    power_limit_milliwatts: Any = None
    sm_clock_mhz: Any = None
    sm_clock_max_mhz: Any = None
    throttled_percent: Any = None
    throttle_reasons: Any = None
    memory_errors: Any = None
    mig_enabled: Any = None
    pods: Any = None
    faults: Any = None


class _Condition(Struct, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: Any = None


class _GpuNodeStatus(Struct, rename="camel"):
    observed_time: Any = None
    period_seconds: Any = None
    boot_id: Any = None
    error: Any = None
    gpus: tuple[_Gpu, ...] = ()
    conditions: tuple[_Condition, ...] = ()


class _Conditions(Struct):
    conditions: tuple[_Condition, ...] = ()


_STATUS = msgspec.json.Decoder(_GpuNodeStatus)
_CONDITIONS = msgspec.json.Decoder(_Conditions)


def read_telemetry(obj: GpuNodeObject) -> NodeTelemetry:
    """Facts of one GPUNode; never raises."""
    meta = obj.metadata
    said: list[str] = []
    try:
        status = _STATUS.decode(obj.status)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        return NodeTelemetry(meta.name, meta.uid, implausible=(f"status: {error}",), judged=_rescued(obj))
    number = _Numbers(said)
    seconds = number("periodSeconds", status.period_seconds, 1, 3600)
    return NodeTelemetry(
        name=meta.name,
        uid=meta.uid,
        observed=_text(status.observed_time),
        period=DEFAULT_PERIOD if math.isnan(seconds) else seconds,
        boot_id=_text(status.boot_id),
        error=_text(status.error),
        gpus=tuple(_gpus(status.gpus, number)),
        implausible=_some(said),
        repaired=_time(meta.annotations.get(names.ANNOTATION_REPAIRED), -math.inf),
        judged=_judged(status.conditions),
    )


class _Numbers:
    """Takes a number that is one, finite and within bounds; notes all others."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def __call__(self, what: str, value: object, low: float, high: float, unit: float = 1.0) -> float:
        if value is None:
            return NA
        if type(value) is int or type(value) is float:  # not a bool
            if low <= value <= high:
                return value * unit
            self.said.append(f"{what} is out of range")
        else:
            self.said.append(f"{what} is no number")
        return NA


def _gpus(wire: Sequence[_Gpu], number: _Numbers) -> Iterator[GpuFacts]:
    if len(wire) > MAX_GPUS:
        number.said.append(f"{len(wire)} GPUs, more than a node can have: all are ignored")
        return
    uuids: set[str] = set()
    indices: set[int] = set()
    for position, gpu in enumerate(wire):
        uuid, index = gpu.uuid, gpu.index
        if not (isinstance(uuid, str) and 0 < len(uuid) <= 128 and type(index) is int and 0 <= index < 1024):
            number.said.append(f"gpus[{position}] has no usable uuid and index: it is ignored")
        elif uuid in uuids or index in indices:
            number.said.append(f"gpus[{position}] has the uuid or index of another one: it is ignored")
        else:
            uuids.add(uuid)
            indices.add(index)
            yield _gpu(gpu, uuid, index, number)


def _gpu(gpu: _Gpu, uuid: str, index: int, number: _Numbers) -> GpuFacts:
    at = f"GPU {index}: "
    total = number(at + "memoryTotalBytes", gpu.memory_total_bytes, 1, BYTES)
    used = total * 1.01 if total == total else BYTES  # a driver's own part may be counted twice
    limit = number(at + "powerLimitMilliwatts", gpu.power_limit_milliwatts, 1, 3000 * MAX_WATTS, 1e-3)
    power = 3 * limit if limit == limit else MAX_WATTS
    clock_max = number(at + "smClockMaxMhz", gpu.sm_clock_max_mhz, 1, MAX_MHZ, HERTZ_PER_MHZ)
    highest = CLOCK_SLACK * clock_max / HERTZ_PER_MHZ if clock_max == clock_max else MAX_MHZ
    errors = gpu.memory_errors if isinstance(gpu.memory_errors, dict) else {}
    return GpuFacts(
        uuid=uuid,
        index=index,
        product=_text(gpu.product),
        memory_total=total,
        memory_used=number(at + "memoryUsedBytes", gpu.memory_used_bytes, 0, used),
        utilization=number(at + "smUtilizationPercent", gpu.sm_utilization_percent, 0, 100, 0.01),
        memory_utilization=number(at + "memoryUtilizationPercent", gpu.memory_utilization_percent, 0, 100, 0.01),
        tensor_active=number(at + "tensorActivePercent", gpu.tensor_active_percent, 0, 100, 0.01),
        dram_active=number(at + "dramActivePercent", gpu.dram_active_percent, 0, 100, 0.01),
        temperature=number(at + "temperatureCelsius", gpu.temperature_celsius, -50, 150),
        power=number(at + "powerMilliwatts", gpu.power_milliwatts, 0, 1000 * power, 1e-3),
        power_limit=limit,
        sm_clock=number(at + "smClockMhz", gpu.sm_clock_mhz, 0, highest, HERTZ_PER_MHZ),
        sm_clock_max=clock_max,
        throttled=number(at + "throttledPercent", gpu.throttled_percent, 0, 100, 0.01),
        throttle_reasons=_texts(at + "throttleReasons", gpu.throttle_reasons, number.said) or (),
        row_remap_failed=errors.get("rowRemapFailed") is True,
        row_remap_pending=errors.get("rowRemapPending") is True,
        partitioned=gpu.mig_enabled is True,
        pods=_texts(at + "pods", gpu.pods, number.said),
        faults=tuple(_faults(at, gpu.faults, number)) if gpu.faults else (),
    )


def _faults(at: str, wire: object, number: _Numbers) -> Iterator[GpuFault]:
    if not isinstance(wire, list) or len(wire) > MAX_FAULTS:
        number.said.append(f"{at}faults is no list of at most {MAX_FAULTS}: it is ignored")
        return
    for fault in wire:
        entry = fault if isinstance(fault, dict) else {}
        kind, code = _text(entry.get("kind")), entry.get("code", 0)
        seen = _time(entry.get("time"), NA)
        numbered = type(code) is int and 0 <= code <= 100_000 and (code > 0) == (kind == "Xid")
        if kind in _FAULT_KINDS and numbered and seen == seen:
            yield GpuFault(cast(FaultKind, kind), code, seen)
        else:
            number.said.append(f"{at}a fault of no known kind, code and time: it is ignored")


def _rescued(obj: GpuNodeObject) -> HealthyCondition | None:
    """What we wrote ourselves, of a status whose other parts make no sense."""
    try:
        return _judged(_CONDITIONS.decode(obj.status).conditions)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None


def _judged(conditions: Sequence[_Condition]) -> HealthyCondition | None:
    contained = any(told.type == names.FAULT_CONTAINED and told.status == "True" for told in conditions)
    for told in conditions:
        if told.type == names.HEALTHY:
            return HealthyCondition(
                told.status, told.reason, told.message, _time(told.last_transition_time, 0.0), contained
            )
    return None


def _mean(values: list[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else NA


def _known(first: float, second: float) -> float:
    return first if first == first else second


def _text(value: object) -> str:
    return value[:1024] if isinstance(value, str) else ""


def _texts(what: str, value: object, said: list[str]) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) <= MAX_PODS and all(isinstance(item, str) for item in value):
        return tuple(value)
    said.append(f"{what} is no list of words")
    return None


def _time(value: object, otherwise: float) -> float:
    """POSIX seconds of an RFC 3339 time."""
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else otherwise
    except (ValueError, OverflowError):
        return otherwise


def _some(said: Sequence[str]) -> tuple[str, ...]:
    return (*said[:MAX_SAID], f"and {len(said) - MAX_SAID} more") if len(said) > MAX_SAID else tuple(said)
