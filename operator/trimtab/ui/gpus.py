"""The GPUs of one node as a table: what an agent reads, in the words of a GPUNode's status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from trimtab.ui.terminal import Text

GIB = 1 << 30
UNKNOWN = "-"
HOT = 85
POWER_CAP = "SwPowerCap"
"""At full load the power limit sets the clock of big GPUs: nothing is wrong."""


def table(status: Mapping[str, Any]) -> RenderableType:
    """One line a GPU, and below what does not fit into it: faults, throttling, who uses it, links."""
    gpus: Sequence[Mapping[str, Any]] = status.get("gpus", ())
    parts: list[RenderableType] = [_heading(status), _readings(gpus)]
    remarks: dict[tuple[str, str], list[str]] = {}
    for gpu in gpus:
        for remark in _remarks(gpu):
            remarks.setdefault(remark, []).append(str(gpu["index"]))
    if remarks:
        parts += ["", *(Text(f"GPU {', '.join(who)}: {said}", style) for (said, style), who in remarks.items())]
    if status.get("links") and len(gpus) > 1:
        parts += ["", _links(status["links"])]
    return Group(*parts)


def _heading(status: Mapping[str, Any]) -> Text:
    count, driver = len(status.get("gpus", ())), status.get("driverVersion") or "not known"
    return Text(f"{count} GPU{'s' * (count != 1)}, backend {status.get('backend', '')}, driver {driver}", "bold")


def _readings(gpus: Sequence[Mapping[str, Any]]) -> Table:
    shown = Table("GPU", "PRODUCT", box=None, pad_edge=False)
    for name in ("UTIL", "MEM GiB", "TEMP", "POWER W", "MHz", "LINK"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("STATE", no_wrap=True)
    shown.columns[1].no_wrap, shown.columns[1].overflow = True, "ellipsis"
    for gpu in gpus:
        shown.add_row(
            str(gpu["index"]),
            gpu.get("product") or UNKNOWN,
            _number(gpu, "smUtilizationPercent", "{:.0f}%"),
            _pair(gpu, "memoryUsedBytes", "memoryTotalBytes", GIB, "{:.1f}"),
            _number(gpu, "temperatureCelsius", "{:.0f}°C"),
            _pair(gpu, "powerMilliwatts", "powerLimitMilliwatts", 1000),
            _number(gpu, "smClockMhz"),
            _link(gpu.get("link", {})),
            _state(gpu),
        )
    return shown


def _remarks(gpu: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What else is to be said about a GPU, each with its style."""
    said = []
    for fault in gpu.get("faults", ()):
        name = f"XID {fault['code']}" if fault["kind"] == "Xid" else fault["kind"]
        said.append((f"{name}, seen {fault.get('count', 1)} times, last {fault['time']}", "red"))
    if (reasons := gpu.get("throttleReasons")) and set(reasons) != {POWER_CAP}:
        said.append((f"throttled: {', '.join(reasons)}", "yellow"))
    if gpu.get("migEnabled"):
        parts = ", ".join(part["profile"] for part in gpu.get("migInstances", ()))
        said.append((f"partitioned (MIG): {parts or 'no instances'}", ""))
    if pods := gpu.get("pods"):
        said.append((f"given to {', '.join(pods)}", ""))
    elif processes := gpu.get("processes"):
        pids = ", ".join(str(each["pid"]) for each in processes)
        said.append((f"{'without a pod' if pods is not None else 'in use'}: process {pids}", ""))
    return said


def _state(gpu: Mapping[str, Any]) -> Text:
    kinds = {fault["kind"] for fault in gpu.get("faults", ())}
    if "Lost" in kinds:
        return Text("lost", "bold red")
    if kinds:
        return Text("fault", "red")
    if reasons := gpu.get("throttleReasons"):
        return Text("capped") if set(reasons) == {POWER_CAP} else Text("throttled", "yellow")
    if gpu.get("temperatureCelsius", 0) >= HOT:
        return Text("hot", "yellow")
    return Text("ok", "green")


def _links(rows: Sequence[str]) -> Table:
    shown = Table("", *(f"GPU{i}" for i in range(len(rows))), box=None, pad_edge=False)
    for number, row in enumerate(rows):
        shown.add_row(f"GPU{number}", *row.split())
    return shown


def _link(link: Mapping[str, Any]) -> str:
    if links := link.get("nvlinks"):
        up = link.get("nvlinksActive", "?")
        return f"NV{links}" if up == links else f"NV{up}/{links}"
    if "pcieWidth" in link:
        return f"PCIe {link.get('pcieGeneration', '?')}x{link['pcieWidth']}"
    return UNKNOWN


def _number(gpu: Mapping[str, Any], field: str, form: str = "{:.0f}") -> str:
    return form.format(gpu[field]) if field in gpu else UNKNOWN


def _pair(gpu: Mapping[str, Any], field: str, whole: str, unit: float, form: str = "{:.0f}") -> str:
    """`used/total`; each may be unknown."""
    used, total = (form.format(gpu[name] / unit) if name in gpu else UNKNOWN for name in (field, whole))
    return UNKNOWN if used == total == UNKNOWN else f"{used}/{total.removesuffix('.0')}"
