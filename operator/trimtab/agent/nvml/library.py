"""libnvidia-ml.so.1: loaded when needed, let go afterwards, and what to do where it cannot be used.

nvidia-ml-py loads the library once and keeps it for good. That library is useless after a driver upgrade: it refuses
to talk to the new kernel module. So it is unloaded when NVML is shut down, as go-nvml does, and the next `load` finds
the new one (outside of containers: inside one, it is the file that was mounted when the container was started).
"""

from __future__ import annotations

import _ctypes
import contextlib
from typing import Any, Final

from trimtab.agent.backend import BackendError

UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 1, 9, 12, 18
NO_PERMISSION: Final = 4

WHAT_TO_DO: Final = {
    NO_PERMISSION: (
        "The NVIDIA driver refuses this user. Give the agent the devices /dev/nvidiactl and /dev/nvidia*, "
        "e.g. by `runtimeClassName: nvidia`."
    ),
    DRIVER_NOT_LOADED: (
        "The NVIDIA driver is not loaded. Install or load it (`modprobe nvidia`; `nvidia-smi` must work on the node), "
        "or take this node out of the agent's node selector."
    ),
    LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 cannot be loaded: there is no NVIDIA driver, or the container was started without it. "
        "Start the agent with `runtimeClassName: nvidia` and NVIDIA_DRIVER_CAPABILITIES=utility, "
        "or set another `agent.backend`."
    ),
    VERSION_MISMATCH: (
        "The NVIDIA driver in the kernel and libnvidia-ml.so.1 are of different versions: the driver was changed while "
        "it was in use. Restart the agent's pod; if that does not help, reload the driver or reboot the node."
    ),
}


class DriverGone(BackendError):
    """Neither this nor any other call can work until the driver is mended. `code` is NVML's."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(WHAT_TO_DO.get(code, f"NVML cannot be used: {text} ({code}). See what `nvidia-smi` says."))
        self.code = code


def load() -> Any:
    """NVML, initialised, as the module of nvidia-ml-py. Raises BackendError; `unload` undoes it."""
    try:
        import pynvml
    except ImportError as problem:
        raise BackendError("The nvml backend needs nvidia-ml-py: `pip install 'trimtab[agent]'`.") from problem
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as problem:
        _let_go(pynvml)
        raise DriverGone(problem.value, str(problem)) from problem
    return pynvml


def unload(nvml: Any) -> None:
    """Shut NVML down, and let go of the library."""
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlShutdown()
    _let_go(nvml)


def _let_go(nvml: Any) -> None:
    """Have nvidia-ml-py forget its library, so that it loads anew. Its own interface has no way to."""
    library, users = nvml.nvmlLib, nvml._nvmlLib_refcount
    if library is None or users > 0:
        return
    nvml.nvmlLib = None
    nvml._nvmlGetFunctionPointer_cache.clear()
    _ctypes.dlclose(library._handle)
