"""GPUs that do not exist: what they would read, given what runs on the node and what goes wrong.

Utilisation of a GPU in use is its load's mean plus noise, an AR(1) process that forgets with `noiseSeconds` and is
correlated between the GPUs of a node (sqrt(c) of it is common to all). Power follows utilisation and clock, the
temperature follows power with the inertia of a heat sink. All is exact for steps of any length, and the same for the
same seed, node name and moments.
"""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from trimtab.agent.backend import NA, Gpu, Happened, NodeReading, Process
from trimtab.agent.plausible import BOUNDS
from trimtab.agent.profile import FakeNode, FaultName, Injected, RunningPod
from trimtab_policy.specs import GpuSpec

POWER_SECONDS: Final = 3.0
HEAT_SECONDS: Final = 60.0
MEMORY_SECONDS: Final = 8.0
HOTTEST: Final = 78.0
"""°C at full power in the air of a data centre."""
THROTTLING: Final = 91.0
THROTTLED_CLOCK: Final = 0.6
IDLE_POWER: Final = 0.12
IDLE_CLOCK: Final = 0.18
IDLE_MEMORY: Final = 0.006
NVLINK_SHARE: Final = 0.3
"""Of the links' bandwidth that a training on several GPUs uses."""
ECC_XIDS: Final = (48, 94, 95)
REMAP_XID: Final = 63
LOST_XID: Final = 79
GARBAGE: Final = ("sm_utilization", "temperature", "power")
STUCK: Final = ("sm_utilization", "memory_utilization", "memory_used", "temperature", "power", "sm_clock")
NUMBERS: Final = tuple(BOUNDS)


class _Card(Struct):
    """What a simulated GPU remembers."""

    noise: float = 0.0
    memory: float = IDLE_MEMORY
    power: float = 0.0
    heat: float = 0.0
    ecc: int = 0
    remapped: int = 0
    pending: bool = False
    failed: bool = False
    stuck: Gpu | None = None


class SimulatedNode:
    """The GPUs of one fake node. `running` and `faults` may be replaced at any time."""

    def __init__(self, profile: FakeNode, spec: GpuSpec, node: str) -> None:
        self.profile = profile
        self.running: Sequence[RunningPod] = profile.running
        self.faults: Sequence[Injected] = profile.faults
        self._spec = spec
        self._random = random.Random(f"{profile.seed}/{node}")  # noqa: S311 - made-up readings
        self._common = 0.0
        self._cards = [_Card(power=IDLE_POWER, heat=IDLE_POWER) for _ in range(profile.gpus)]
        self._uuids = [f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}.{i}.gpu')}" for i in range(profile.gpus)]
        self._pods: dict[str, tuple[int, ...]] = {}
        self._first_seen: dict[Injected, float] = {}
        self._happened: set[tuple[Injected, int]] = set()
        self._at = NA
        links = f"NV{profile.nvlinks}" if profile.nvlinks else "SYS"
        several = range(profile.gpus)
        self._links = tuple(tuple("X" if i == j else links for j in several) for i in several)

    def hanging(self, now: float) -> bool:
        """Whether the driver does not answer at this moment."""
        return any(fault.kind == "hang" for fault in self._active(now))

    def read(self, now: float) -> NodeReading:
        """The readings at `now`, in monotonic seconds."""
        active = self._active(now)
        elapsed = math.inf if math.isnan(self._at) else max(0.0, now - self._at)  # it begins settled
        self._at = now
        self._assign()
        self._draw(elapsed)
        gpus = tuple(self._gpu(index, elapsed, active) for index in range(len(self._cards)))
        if any(fault.kind == "driverError" for fault in active):
            return NodeReading(error="Driver/library version mismatch (injected): restart the node after upgrades")
        return NodeReading(driver_version=self.profile.driver, gpus=gpus, links=self._links)

    # --- what runs, and what goes wrong -----------------------------------------------------------------------------
    def _active(self, now: float) -> list[Injected]:
        known = {fault: self._first_seen.get(fault, now) for fault in self.faults}
        self._first_seen = known
        self._happened = {(fault, gpu) for fault, gpu in self._happened if fault in known}
        return [
            fault
            for fault, seen in known.items()
            if now >= seen + fault.at and (fault.seconds is None or now < seen + fault.at + fault.seconds)
        ]

    def _assign(self) -> None:
        """Pods keep the GPUs that they have; new ones get those that are free, lowest number first."""
        wanted = {each.pod: each.gpus for each in self.running}
        self._pods = {pod: held for pod, held in self._pods.items() if wanted.get(pod) == len(held)}
        taken = {gpu for held in self._pods.values() for gpu in held}
        free = [gpu for gpu in range(len(self._cards)) if gpu not in taken]
        for pod, count in wanted.items():
            if pod not in self._pods and len(free) >= count:
                self._pods[pod], free = tuple(free[:count]), free[count:]

    def _draw(self, elapsed: float) -> None:
        kept = math.exp(-elapsed / self.profile.load.noise_seconds)
        fresh = math.sqrt(1 - kept * kept)
        self._common = kept * self._common + fresh * self._random.gauss(0, 1)
        for card in self._cards:
            card.noise = kept * card.noise + fresh * self._random.gauss(0, 1)

    # --- one GPU ----------------------------------------------------------------------------------------------------
    def _gpu(self, index: int, elapsed: float, active: Sequence[Injected]) -> Gpu:
        card = self._cards[index]
        mine = [fault for fault in active if index in fault.gpus]
        here = {fault.kind: fault for fault in mine}
        pods = tuple(pod for pod, held in self._pods.items() if index in held)
        happened = self._events(index, card, mine)
        if "lost" in here or any(fault.kind == "xid" and fault.code == LOST_XID for fault in mine):
            gone = Gpu(self._uuids[index], index, self._product(), _bus(index))
            return replace(gone, happened=(*happened, Happened("Lost")))
        busy = bool(pods) or "foreignLoad" in here
        gpu = self._reading(index, card, busy, self._clock(busy, here), elapsed)
        if "thermalThrottle" in here:
            gpu = replace(gpu, temperature=max(gpu.temperature, THROTTLING), throttle_reasons=("HwThermalSlowdown",))
        alone = len(self._pods.get(pods[0], ())) < 2 if pods else True
        traffic = 0.0 if alone else NVLINK_SHARE * self._spec.link_bandwidth * gpu.sm_utilization
        linked = self.profile.nvlinks > 0
        gpu = replace(
            gpu,
            pods=pods,
            happened=happened,
            nvlink_tx=traffic if linked else NA,
            nvlink_rx=traffic if linked else NA,
        )
        return _distorted(gpu, card, here)

    def _events(self, index: int, card: _Card, here: Iterable[Injected]) -> tuple[Happened, ...]:
        told: list[Happened] = []
        for fault in here:
            if (fault, index) in self._happened:
                continue
            self._happened.add((fault, index))
            told += _event(fault, card)
        return tuple(told)

    def _clock(self, busy: bool, here: dict[FaultName, Injected]) -> float:
        """As a part of the highest clock."""
        if not busy:
            return IDLE_CLOCK
        slowed = here["slow"].factor if "slow" in here else 1.0
        return 0.97 * slowed * (THROTTLED_CLOCK if "thermalThrottle" in here else 1.0)

    def _reading(self, index: int, card: _Card, busy: bool, clock: float, elapsed: float) -> Gpu:
        profile, load, spec = self.profile, self.profile.load, self._spec
        noise = math.sqrt(load.correlation) * self._common + math.sqrt(1 - load.correlation) * card.noise
        utilization = min(1.0, max(0.0, load.utilization + load.noise * noise)) if busy else 0.0
        power = IDLE_POWER + (0.98 - IDLE_POWER) * utilization * clock if busy else IDLE_POWER
        card.power = _towards(card.power, power, elapsed, POWER_SECONDS)
        card.heat = _towards(card.heat, card.power, elapsed, HEAT_SECONDS)
        card.memory = _towards(card.memory, load.memory if busy else IDLE_MEMORY, elapsed, MEMORY_SECONDS)
        used = card.memory * spec.memory_bytes
        return Gpu(
            uuid=self._uuids[index],
            index=index,
            product=self._product(),
            pci_bus=_bus(index),
            numa_node=float(2 * index // len(self._cards)),
            memory_total=float(spec.memory_bytes),
            memory_used=used,
            sm_utilization=utilization,
            memory_utilization=0.5 * utilization,
            tensor_active=0.45 * utilization,
            dram_active=0.4 * utilization,
            temperature=profile.ambient + (HOTTEST - profile.ambient) * card.heat,
            power=card.power * spec.power_watts,
            power_limit=spec.power_watts,
            sm_clock=clock * profile.clock_mhz * 1e6,
            sm_clock_max=profile.clock_mhz * 1e6,
            memory_clock=profile.memory_clock_mhz * 1e6,
            throttle_reasons=(),
            nvlinks_active=float(profile.nvlinks or NA),
            nvlinks=float(profile.nvlinks or NA),
            pcie_generation=5.0,
            pcie_generation_max=5.0,
            pcie_width=16.0,
            pcie_width_max=16.0,
            ecc_corrected=0.0,
            ecc_uncorrected=float(card.ecc),
            rows_remapped_corrected=0.0,
            rows_remapped_uncorrected=float(card.remapped),
            row_remap_pending=card.pending,
            row_remap_failed=card.failed,
            mig_enabled=False,
            processes=(Process(4000 + index, used),) if busy else (),
        )

    def _product(self) -> str:
        return self.profile.product.replace("-", " ")


def _event(fault: Injected, card: _Card) -> list[Happened]:
    """What a fault does when it begins."""
    match fault.kind:
        case "xid":
            card.ecc += fault.code in ECC_XIDS
            card.remapped += fault.code == REMAP_XID
            card.pending = card.pending or fault.code == REMAP_XID
            return [Happened("Xid", fault.code)]
        case "uncorrectableEcc":
            card.ecc += 1
            return [Happened("UncorrectableEcc")]
        case "rowRemapFailure":
            card.failed = True
            return [Happened("RowRemapFailure")]
    return []


def _distorted(gpu: Gpu, card: _Card, here: dict[FaultName, Injected]) -> Gpu:
    """Faults of reading, not of the GPU."""
    if (stuck := here.get("stuck")) is None:
        card.stuck = None
    else:
        card.stuck = card.stuck or gpu
        gpu = replace(gpu, **{field: getattr(card.stuck, field) for field in stuck.fields or STUCK})
    if garbage := here.get("garbage"):
        gpu = replace(gpu, **dict.fromkeys(garbage.fields or GARBAGE, garbage.value))
    if nan := here.get("nan"):
        gpu = replace(gpu, **dict.fromkeys(nan.fields or NUMBERS, NA))
        gpu = replace(gpu, throttle_reasons=gpu.throttle_reasons if nan.fields else None)
    return gpu


def _towards(value: float, target: float, elapsed: float, seconds: float) -> float:
    return value + (target - value) * -math.expm1(-elapsed / seconds)


def _bus(index: int) -> str:
    return f"00000000:{0x1A + 0x10 * index:02X}:00.0" if index < 14 else f"00000001:{index:02X}:00.0"
