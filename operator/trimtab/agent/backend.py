"""What every GPU backend gives: one `NodeReading` each time it is asked.

    nvml    NVIDIA's management library, through nvidia-ml-py
    amd     amdsmi where it is installed, sysfs otherwise
    fake    a profile, with noise that follows what runs on the node, and faults on demand

Numbers are floats in base units. A number that could not be read is `NA`, which is NaN: it passes through arithmetic
and comparisons without pretending to be 0, and is left out of what is reported. A backend never raises out of `read`:
what cannot be read at all is said in `NodeReading.error`, and GPUs that are gone stay in the list with a fault.
"""

from __future__ import annotations

import math
from typing import Final, Literal, Protocol

from msgspec import Struct

from trimtab.errors import TrimtabError

NA: Final = math.nan
"""A number that could not be read."""

FaultKind = Literal["Xid", "Lost", "RowRemapFailure", "UncorrectableEcc"]


class BackendError(TrimtabError):
    """The backend cannot read any GPU of this node; the message says what to do."""


def known(number: float) -> bool:
    """Whether a number was read (and is finite)."""
    return math.isfinite(number)


class Process(Struct, frozen=True):
    """A process that holds GPU memory."""

    pid: int
    memory_used: float = NA
    """Bytes."""


class Mig(Struct, frozen=True):
    """A part of a partitioned GPU."""

    uuid: str
    profile: str


class Happened(Struct, frozen=True):
    """A fault seen since the last reading. The reporter counts and remembers them."""

    kind: FaultKind
    code: int = 0
    """Number of the XID."""


class Gpu(Struct, frozen=True):
    """One GPU at one moment. Utilisations are shares in [0, 1], rates per second."""

    uuid: str
    index: int
    product: str = ""
    pci_bus: str = ""
    numa_node: float = NA
    cpu_affinity: str = ""
    memory_total: float = NA
    """Bytes, as all memory."""
    memory_used: float = NA
    sm_utilization: float = NA
    memory_utilization: float = NA
    tensor_active: float = NA
    """DCGM only, as `dram_active`."""
    dram_active: float = NA
    temperature: float = NA
    """Degrees Celsius."""
    power: float = NA
    """Watts."""
    power_limit: float = NA
    sm_clock: float = NA
    """Hz, as all clocks."""
    sm_clock_max: float = NA
    memory_clock: float = NA
    throttle_reasons: tuple[str, ...] | None = None
    """None: not known. Idleness and settings of users (application clocks) are no throttling."""
    nvlinks_active: float = NA
    nvlinks: float = NA
    nvlink_tx: float = NA
    """Bytes per second."""
    nvlink_rx: float = NA
    pcie_generation: float = NA
    pcie_generation_max: float = NA
    pcie_width: float = NA
    pcie_width_max: float = NA
    pcie_tx: float = NA
    pcie_rx: float = NA
    ecc_corrected: float = NA
    """Since the driver was loaded."""
    ecc_uncorrected: float = NA
    rows_remapped_corrected: float = NA
    rows_remapped_uncorrected: float = NA
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    mig_enabled: bool | None = None
    mig: tuple[Mig, ...] = ()
    pods: tuple[str, ...] | None = None
    """`namespace/name` of those that the kubelet gave it to; None where it cannot be asked."""
    processes: tuple[Process, ...] = ()
    happened: tuple[Happened, ...] = ()
    """Faults that are new in this reading; `Lost` is repeated for as long as the GPU is gone."""


class NodeReading(Struct, frozen=True):
    """All GPUs of the node at one moment."""

    driver_version: str = ""
    gpus: tuple[Gpu, ...] = ()
    links: tuple[tuple[str, ...], ...] = ()
    """[i][j]: how GPU i reaches GPU j, in the words of `nvidia-smi topo -m`: X, NV18, PIX, PXB, PHB, NODE, SYS.
    NA: not known."""
    error: str = ""
    """Why no GPU can be read at all; then `gpus` is empty."""


class Backend(Protocol):
    """A reader of the node's GPUs. Used from one thread."""

    @property
    def name(self) -> Literal["nvml", "amd", "fake"]:
        """As in the settings."""

    def open(self) -> None:
        """Get ready. Raises BackendError; may be tried again later, e.g. when a driver was installed."""

    def read(self) -> NodeReading:
        """Read everything now; takes milliseconds, never raises."""

    def close(self) -> None:
        """Let go of everything. May be called twice, and without `open`."""
