"""`#SBATCH` lines: how many nodes and GPUs a script asks Slurm for, and the variables that Slurm sets from them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from trimtab.foreign import gpu_types
from trimtab.foreign.arguments import Stated
from trimtab.foreign.kinds import whole

_SHORT = {
    "N": "nodes",
    "n": "ntasks",
    "G": "gpus",
    "J": "job-name",
    "p": "partition",
    "q": "qos",
    "A": "account",
    "t": "time",
    "d": "dependency",
    "a": "array",
    "C": "constraint",
    "c": "cpus-per-task",
}
IN_LINE = ("partition", "qos", "account", "time", "dependency", "array")
"""Options that say where a script stands in line and when it may run."""
_SAME = {"tasks-per-node": "ntasks-per-node"}
_GPUS = re.compile(r"(?:gpu|gpus)(?::([A-Za-z][A-Za-z0-9_.-]*))?(?::([0-9]{1,6}))?(?:\(.*)?", re.ASCII)
_TYPED = re.compile(r"(?:([A-Za-z][A-Za-z0-9_.-]*):)?([0-9]{1,6})", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,6}", re.ASCII)


def directives(text: str) -> dict[str, str]:
    """Options of the `#SBATCH` lines of a script, by their long names; the last of a name counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("#SBATCH") and len(line) < 2000:
            found.update(_options(line[len("#SBATCH") :]))
    return found


def _options(line: str) -> Iterator[tuple[str, str]]:
    line = re.sub(r"<[A-Z][A-Z ]{0,60}>", " ", line)
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split("#", 1)[0].split()
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, value = _SHORT.get(word[1], word[1]), word[2:].lstrip("=")
            equals = value
        else:
            continue
        if not equals and index < len(words) and not words[index].startswith("-"):
            value = words[index]
            index += 1
        yield _SAME.get(name, name), value


def fields(found: dict[str, str]) -> dict[str, Stated]:
    """Nodes, GPUs and their type, as far as the options say them."""
    said: dict[str, Stated] = {}
    nodes = _number(found, "nodes")
    if nodes:
        said["nodes"] = Stated(str(nodes), "#SBATCH --nodes")
    per_node, kind, source = _per_node(found)
    if per_node:
        said["gpus_per_node"] = Stated(str(per_node), source)
    if kind:
        said["gpu_type"] = Stated(gpu_types.of_text(kind), source)
    total = _typed(found.get("gpus", ""))
    if total[1]:
        said["gpus"] = Stated(str(total[1]), "#SBATCH --gpus")
        if total[0]:
            said["gpu_type"] = Stated(gpu_types.of_text(total[0]), "#SBATCH --gpus")
    if "gpu_type" not in said and (constraint := gpu_types.of_text(found.get("constraint", ""))) != found.get(
        "constraint", ""
    ):
        said["gpu_type"] = Stated(constraint, "#SBATCH --constraint")
    return said


def _per_node(found: dict[str, str]) -> tuple[int, str, str]:
    if "gpus-per-node" in found:
        kind, count = _typed(found["gpus-per-node"])
        return count, kind, "#SBATCH --gpus-per-node"
    for part in found.get("gres", "").split(","):
        if match := _GPUS.fullmatch(part.removeprefix("gres/").replace("=", ":")):
            kind = match[1] or ""
            named = gpu_types.of_text(kind) != kind or bool(gpu_types.catalogued(kind))
            count = int(match[2]) if match[2] else int(named or not kind)
            return count, kind if named else "", "#SBATCH --gres"
    if "gpus-per-task" in found:
        kind, count = _typed(found["gpus-per-task"])
        tasks = _number(found, "ntasks-per-node")
        if not tasks and (total := _number(found, "ntasks")) and (nodes := _number(found, "nodes")):
            tasks = total // nodes
        return count * tasks, kind, "#SBATCH --gpus-per-task"
    return 0, "", ""


def _typed(text: str) -> tuple[str, int]:
    match = _TYPED.fullmatch(text.strip())
    return (match[1] or "", int(match[2])) if match else ("", 0)


def _number(found: dict[str, str], name: str) -> int:
    text = found.get(name, "").strip()
    return int(text) if _NUMBER.fullmatch(text) else 0


def tasks_per_node(found: dict[str, str]) -> int:
    """Processes that Slurm starts on a node; 0 where the options do not say it."""
    each, total, nodes = (_number(found, name) for name in ("ntasks-per-node", "ntasks", "nodes"))
    return each or (total // nodes if total and nodes else 0)


def variables(found: dict[str, str]) -> dict[str, str]:
    """The variables that Slurm sets from the options."""
    said: dict[str, str] = {}
    nodes, tasks = _number(found, "nodes"), tasks_per_node(found)
    if nodes:
        said |= {"SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes)}
    if tasks:
        said["SLURM_NTASKS_PER_NODE"] = str(tasks)
    total = _number(found, "ntasks") or nodes * tasks
    if total:
        said |= {"SLURM_NTASKS": str(total), "SLURM_NPROCS": str(total)}
    per_node = _per_node(found)[0]
    if per_node:
        said["SLURM_GPUS_ON_NODE"] = str(per_node)
        if "gpus-per-node" in found:
            said["SLURM_GPUS_PER_NODE"] = str(per_node)
    if cpus := whole(found.get("cpus-per-task")):
        said["SLURM_CPUS_PER_TASK"] = str(cpus)
    if name := found.get("job-name"):
        said["SLURM_JOB_NAME"] = name
    return said
