"""The nvml backend: NVIDIA's management library through nvidia-ml-py.

    backend     opens, reads, and opens again after a driver came or changed
    session     all GPUs between nvmlInit and nvmlShutdown, and which of them is asked for what when
    device      one GPU: what it is, how it does, what happened to it
    topology    how the GPUs reach one another
    events      XID errors as they happen
    calls       every call into NVML, and what its errors mean
    library     libnvidia-ml.so.1 loaded and let go, and what to do where that fails

Importing it takes neither nvidia-ml-py nor a driver; opening the backend does.
"""

from trimtab.agent.nvml.backend import NvmlBackend

__all__ = ["NvmlBackend"]
