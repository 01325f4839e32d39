"""What torch.profiler recorded, summed up: operators, kernels, the time of each class of work, and the memory peak.

Time is counted where the work is done: on a GPU that of the kernels that an operator started, on a CPU that of the
operator itself without those that it called.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from msgspec import Struct
from torch.profiler import ProfilerActivity
from torch.profiler import profile as Profiler

MATMUL, ATTENTION, ELEMENTWISE, LOSS, OPTIMIZER, COPIES = (
    "matmul", "attention", "elementwise", "loss", "optimizer", "copies",
)  # fmt: skip
FRAMEWORK = "framework"
"""What computes nothing: Python, autograd, views of tensors, allocation; on a GPU the time in which it is idle."""

_CLASSES = {  # the first that is found in the name of an operator
    ATTENTION: r"attention",
    OPTIMIZER: r"optimizer|adamw|_foreach|_amp_",
    LOSS: r"log_softmax|nll_loss|cross_entropy",
    MATMUL: r"mm\b|matmul|linear|_addmm_activation",
    COPIES: r"copy|clone|memcpy|memset|aten::(to|cat|contiguous|fill_|zero_|zeros|zeros_like)\b",
    FRAMEWORK: r"aten::(_?reshape|view|_unsafe_view|expand|t|transpose|permute|as_strided|select|slice|split|unbind|"
    r"flatten|unflatten|detach|item|_local_scalar_dense|empty|arange|result_type)(_\w+)?$",
    ELEMENTWISE: r"^aten::",
}


class Operator(Struct, frozen=True):
    """One operator, or kernel, of a step."""

    name: str
    kind: str
    """One of the classes above; `kernel` for a kernel."""
    calls: float
    """Of one step."""
    seconds: float
    """Of one step."""


def kind(name: str) -> str:
    """The class of work of an operator."""
    return next((kind for kind, words in _CLASSES.items() if re.search(words, name, re.IGNORECASE)), FRAMEWORK)


def recorder(device: torch.device, *, memory: bool = False) -> Profiler:
    """A profiler of this device, to be used as a context."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    return Profiler(activities=activities, profile_memory=memory, acc_events=True)


def operators(recorded: Profiler, device: torch.device, steps: int) -> tuple[Operator, ...]:
    """The operators of so many steps, by time."""
    on_gpu = device.type == "cuda"
    found = [
        Operator(
            event.key,
            kind(event.key),
            event.count / steps,
            (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6 / steps,
        )
        for event in recorded.key_averages()
        if event.device_type.name == "CPU"
    ]
    return _by_time(found)


def kernels(recorded: Profiler, steps: int) -> tuple[Operator, ...]:
    """The kernels of so many steps on a GPU, by time; none on a CPU."""
    return _by_time(
        Operator(event.key, "kernel", event.count / steps, event.self_device_time_total / 1e6 / steps)
        for event in recorded.key_averages()
        # Ranges that are marked in Python are told as if they were kernels that take all of their time.
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    )


def scaled(found: Iterable[Operator], by: float) -> tuple[Operator, ...]:
    """The same with times multiplied, for steps that take longer or shorter than those that were recorded."""
    return tuple(Operator(each.name, each.kind, each.calls, by * each.seconds) for each in found)


def by_class(operators: Iterable[Operator], step_seconds: float) -> dict[str, float]:
    """Seconds of each class of work in a step that took so long, largest first.

    What the operators' times lack of the step is the framework's: Python between them, or a GPU that waits.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for each in operators:
        sums[each.kind] += each.seconds
    sums[FRAMEWORK] += max(0.0, step_seconds - sum(sums.values()))
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


class MemoryWatch:
    """What `watching` saw: `peak` is set when it ends."""

    peak = 0
    """Bytes that were allocated at once, at most; on a CPU of what was allocated meanwhile."""


@contextmanager
def watching(device: torch.device) -> Iterator[MemoryWatch]:
    """Watch the memory that torch allocates on a device, from before the model is made to the second step's end.

    On a GPU its allocator counts by itself; on a CPU the profiler writes down every allocation. Libraries' own buffers
    are in neither.
    """
    watched = MemoryWatch()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        yield watched
        watched.peak = torch.cuda.max_memory_allocated(device)
        return
    with recorder(device, memory=True) as recorded:
        yield watched
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(file))
        watched.peak = peak_bytes(file)


def peak_bytes(trace: Path) -> int:
    """The most that was allocated at once, by the allocations in a chrome trace that was taken with memory."""
    events = [event for event in json.loads(trace.read_bytes())["traceEvents"] if event.get("name") == "[memory]"]
    live: dict[int, int] = {}
    total = most = 0
    for event in sorted(events, key=lambda event: float(event["ts"])):
        size, address = event["args"]["Bytes"], event["args"]["Addr"]
        if size > 0:
            live[address] = size
            total += size
        else:
            # What was allocated before the trace began was never counted.
            total -= live.pop(address, 0)
        most = max(most, total)
    return most


def _by_time(found: Iterable[Operator]) -> tuple[Operator, ...]:
    return tuple(sorted((each for each in found if each.seconds > 0), key=lambda each: -each.seconds))
