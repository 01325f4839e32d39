"""AMD GPUs: through amdsmi where it is installed, through sysfs otherwise.

sysfs needs no library and no privileges: the amdgpu driver puts a directory per card under /sys/class/drm, with hwmon
inside it (kernel documentation, gpu/amdgpu/driver-misc and gpu/amdgpu/thermal). It does not know faults but
uncorrectable ECC errors, and a card is lost when its directory is gone or cannot be read. A card that hangs on the bus
may keep its directory: the kernel answers for what it remembers (vendor, device), and the other readings are not known.
"""

from __future__ import annotations

import importlib
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import structlog
from msgspec.structs import replace

from trimtab.agent.backend import NA, BackendError, Gpu, Happened, NodeReading, known

AMD_VENDOR: Final = "0x1002"
NO_GPU: Final = "no AMD GPU is found: is the amdgpu driver loaded (lsmod), and is /sys mounted into the container?"
GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""PCI Express generation by its rate per lane, in GT/s."""

log = structlog.get_logger(__name__)


class AmdBackend:
    """`trimtab.agent.backend.Backend` of AMD GPUs. `sys` and `smi` (the module, None for none) are for tests.

    `node` goes into the names of cards without a number of their own, which would be the same on machines built alike.
    """

    name: Literal["amd"] = "amd"

    def __init__(self, sys: Path = Path("/sys"), smi: Any = ..., node: str = "") -> None:
        self._sys = sys
        self._node = node
        self._smi = _amdsmi() if smi is ... else smi
        self._handles: list[Any] = []
        self._identity: list[Gpu] = []
        self._cards: list[Path] = []
        self._uuids: dict[int, str] = {}
        self._uncorrected: dict[str, float] = {}

    def open(self) -> None:
        """Find the GPUs. Raises BackendError when there is none."""
        self._cards = _cards(self._sys)
        if self._smi is not None:
            try:
                self._smi.amdsmi_init()
                self._handles = list(self._smi.amdsmi_get_processor_handles())
            except self._smi.AmdSmiException as error:
                raise BackendError(f"amdsmi cannot be used ({error}): is the amdgpu driver loaded?") from error
        if not self._handles and not self._cards:
            raise BackendError(NO_GPU)

    def read(self) -> NodeReading:
        """All GPUs now."""
        if self._handles:
            found = [self._of_handle(index, handle) for index, handle in enumerate(self._handles)]
        else:
            found = [self._of_card(index, card) for index, card in enumerate(self._cards)]
        driver = _text(self._sys / "module/amdgpu/version")
        return NodeReading(driver_version=driver, gpus=tuple(self._judged(gpu) for gpu in found))

    def close(self) -> None:
        """Let go of the library."""
        if self._handles:
            self._handles = []
            try:
                self._smi.amdsmi_shut_down()
            except self._smi.AmdSmiException as error:
                log.warning("amdsmi did not shut down", error=str(error))

    # --- faults -----------------------------------------------------------------------------------------------------
    def _judged(self, gpu: Gpu) -> Gpu:
        """The reading with what is new in it."""
        count, before = gpu.ecc_uncorrected, self._uncorrected.get(gpu.uuid, NA)
        if known(count):
            self._uncorrected[gpu.uuid] = count
        fresh = known(count) and known(before) and count > before
        happened = (Happened("UncorrectableEcc"),) * int(fresh)
        return replace(gpu, happened=(*gpu.happened, *happened))

    # --- sysfs ------------------------------------------------------------------------------------------------------
    def _of_card(self, index: int, card: Path) -> Gpu:
        gpu = _identified(index, card, self._node)
        while len(self._identity) <= index:
            self._identity.append(gpu)
        known_as = self._identity[index]
        if not card.is_dir() or not _text(card / "vendor"):
            gone = Gpu(known_as.uuid, index, known_as.product, known_as.pci_bus)
            return replace(gone, happened=(Happened("Lost"),))
        self._identity[index] = gpu
        return _readings(gpu, card)

    # --- amdsmi -----------------------------------------------------------------------------------------------------
    def _of_handle(self, index: int, handle: Any) -> Gpu:
        """By amdsmi; what it does not answer is asked of sysfs."""
        smi = self._smi
        ask = _Asker(smi)
        bus = str(ask(smi.amdsmi_get_gpu_device_bdf, handle) or "")
        card = next((card for card in self._cards if card.resolve().name == bus), None)
        base = self._of_card(self._cards.index(card), card) if card else Gpu("", index, pci_bus=bus)
        asic = ask.table(smi.amdsmi_get_gpu_asic_info, handle)
        if index not in self._uuids:  # once: a card that is lost does not say its name any more
            self._uuids[index] = str(
                ask(smi.amdsmi_get_gpu_device_uuid, handle) or base.uuid or _made_up(self._node, bus)
            )
        activity = ask.table(smi.amdsmi_get_gpu_activity, handle)
        power = ask.table(smi.amdsmi_get_power_info, handle)
        vram = ask.table(smi.amdsmi_get_gpu_vram_usage, handle)
        ecc = ask.table(smi.amdsmi_get_gpu_total_ecc_count, handle)
        drawn = _first(_number(power, "current_socket_power"), _number(power, "average_socket_power"))
        return replace(
            base,
            uuid=self._uuids[index],
            index=index,
            product=str(asic.get("market_name") or base.product),
            sm_utilization=_first(_number(activity, "gfx_activity") / 100, base.sm_utilization),
            memory_utilization=_first(_number(activity, "umc_activity") / 100, base.memory_utilization),
            power=_first(drawn, base.power),
            memory_total=_first(_number(vram, "vram_total") * (1 << 20), base.memory_total),
            memory_used=_first(_number(vram, "vram_used") * (1 << 20), base.memory_used),
            ecc_corrected=_first(_number(ecc, "correctable_count"), base.ecc_corrected),
            ecc_uncorrected=_first(_number(ecc, "uncorrectable_count"), base.ecc_uncorrected),
        )


class _Asker:
    """Asks amdsmi; what it does not support is no answer."""

    def __init__(self, smi: Any) -> None:
        self._refusal: type[Exception] = smi.AmdSmiException

    def __call__(self, question: Callable[[Any], Any], handle: Any) -> Any:
        try:
            return question(handle)
        except self._refusal:
            return None

    def table(self, question: Callable[[Any], Any], handle: Any) -> Mapping[str, Any]:
        """An answer that is a mapping; an empty one when there is none."""
        answer = self(question, handle)
        return answer if isinstance(answer, Mapping) else {}


def _amdsmi() -> Any:
    """The module, None where it is not installed or its library does not load."""
    try:
        return importlib.import_module("amdsmi")
    except (ImportError, KeyError, OSError) as error:  # KeyError: it cannot find libamd_smi.so
        log.info("amdsmi is not there, reading sysfs", reason=str(error))
        return None


def _cards(sys: Path) -> list[Path]:
    """Device directories of the AMD cards, in PCI order."""
    cards = [path / "device" for path in sys.glob("class/drm/card*") if re.fullmatch(r"card\d+", path.name)]
    return sorted(
        (card for card in cards if _text(card / "vendor") == AMD_VENDOR), key=lambda card: card.resolve().name
    )


def _made_up(node: str, bus: str) -> str:
    """A UUID for a card without one: the same for the same slot of the same node, and no other."""
    return f"AMD-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{bus}')}"


def _identified(index: int, card: Path, node: str) -> Gpu:
    bus = card.resolve().name
    unique = _text(card / "unique_id").lower()
    return Gpu(
        uuid=f"GPU-{unique}" if unique.strip("0") else _made_up(node, bus),  # consumer cards have none
        index=index,
        product=_text(card / "product_name") or f"AMD device {_text(card / 'device')}",
        pci_bus=bus,
    )


def _readings(gpu: Gpu, card: Path) -> Gpu:
    hwmon = next(iter(sorted(card.glob("hwmon/hwmon*"))), card / "hwmon")
    clocks = _levels(card / "pp_dpm_sclk")
    numa = _value(card / "numa_node")
    errors = _ecc(card)
    return replace(
        gpu,
        numa_node=numa if numa >= 0 else NA,  # -1: not known
        cpu_affinity=_text(card / "local_cpulist"),
        memory_total=_value(card / "mem_info_vram_total"),
        memory_used=_value(card / "mem_info_vram_used"),
        sm_utilization=_value(card / "gpu_busy_percent") / 100,
        memory_utilization=_value(card / "mem_busy_percent") / 100,
        temperature=_temperature(hwmon),
        power=_first(_value(hwmon / "power1_input"), _value(hwmon / "power1_average")) / 1e6,
        power_limit=_value(hwmon / "power1_cap") / 1e6,
        sm_clock=_first(_value(hwmon / "freq1_input"), clocks[0]),
        sm_clock_max=clocks[1],
        memory_clock=_first(_value(hwmon / "freq2_input"), _levels(card / "pp_dpm_mclk")[0]),
        pcie_generation=_generation(card / "current_link_speed"),
        pcie_generation_max=_generation(card / "max_link_speed"),
        pcie_width=_value(card / "current_link_width"),
        pcie_width_max=_value(card / "max_link_width"),
        ecc_corrected=errors[0],
        ecc_uncorrected=errors[1],
    )


def _temperature(hwmon: Path) -> float:
    """The edge's, or the junction's where accelerators have no edge sensor; millidegrees."""
    by_label = {_text(label): _value(label.with_name(label.name.replace("label", "input"))) for label in
                hwmon.glob("temp*_label")}  # fmt: skip
    return _first(by_label.get("edge", NA), by_label.get("junction", NA), _value(hwmon / "temp1_input")) / 1000


def _levels(path: Path) -> tuple[float, float]:
    """Clock now (marked `*`) and highest clock of a pp_dpm_ table, in Hz."""
    found = re.findall(r"^\w+:\s*(\d+)\s*mhz(\s*\*)?", _text(path), re.MULTILINE | re.IGNORECASE)
    now = [float(mhz) for mhz, marked in found if marked]
    return (now[0] * 1e6 if now else NA, max((float(mhz) for mhz, _ in found), default=NA) * 1e6)


def _generation(path: Path) -> float:
    """From `16.0 GT/s PCIe`."""
    found = re.match(r"[\d.]+", _text(path))
    return float(GENERATIONS.get(float(found[0]), NA)) if found else NA


def _ecc(card: Path) -> tuple[float, float]:
    """Corrected and uncorrected errors of all blocks together."""
    corrected = uncorrected = NA
    for path in card.glob("ras/*_err_count"):
        for word, number in re.findall(r"^(ue|ce):\s*(\d+)", _text(path), re.MULTILINE):
            if word == "ce":
                corrected = float(number) + (corrected if known(corrected) else 0)
            else:
                uncorrected = float(number) + (uncorrected if known(uncorrected) else 0)
    return corrected, uncorrected


def _text(path: Path) -> str:
    """Content of a file; empty when it cannot be read (absent, or the card does not answer)."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _value(path: Path) -> float:
    return _parsed(_text(path))


def _number(table: Mapping[str, Any], key: str) -> float:
    """amdsmi says `N/A` for what it does not know."""
    return _parsed(table.get(key))


def _parsed(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return NA


def _first(*numbers: float) -> float:
    """The first that is known."""
    return next((number for number in numbers if known(number)), NA)
