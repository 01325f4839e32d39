"""Plans and what-ifs in a process of their own: strangers' questions, which take long and may go wrong.

`python -m trimtab.web.simulate` reads one question and ends. The console writes it in parts, so that no part holds its
interpreter for long; what is read is its own, and what a stranger wrote in it is text.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trimtab.commands import calibration, change, comparison, planning
from trimtab.decide.rules import rules_of
from trimtab.errors import TrimtabError, UsageError
from trimtab.observe.calibration import corrected
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.queues import QueueFacts
from trimtab.observe.snapshot import Observation
from trimtab.settings import Settings
from trimtab_policy.catalog import UnknownGpu, UnknownModel
from trimtab_policy.perf.correction import Corrections
from trimtab_policy.perf.hierarchy import Learned
from trimtab_policy.policy import UnknownPolicy
from trimtab_policy.types import Snapshot

PART = 200
"""Nodes or jobs that are written at once."""
MEMORY = 768 << 20
"""Bytes that a question may take. A plan on 10,000 nodes takes 180 MiB; the console's container has 2 GiB for both of
them, and where that is not enough the kernel ends the console as well."""


class PlanAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """What to plan."""

    manifest: str
    """Manifest of an LLMTrainingJob, a job of another kind, or an sbatch script."""
    policy: str = ""
    """Policy to ask; empty: the one that decides now."""
    priority: int = 0
    """Value of the job's PriorityClass."""
    set: dict[str, str] = {}
    """What a job of another kind does not state itself: field to value, such as vocab_size to 50257."""


class WhatifAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """What to change."""

    change: dict[str, Any]
    """As the file of `trimtab whatif`, but for `submit`, which has the manifests themselves: one or more of
    nodes.add (a list of type, count, gpus), nodes.remove and nodes.cordon (lists of names, in which * stands for
    anything), policy, jobs (by namespace/name: priority, queue, gpus.min and gpus.max,
    gpuTypes, maxNodes, parallelism as in a spec, precision, suspend), queues (by name: the spec of a Queue), submit (a
    list of manifests of jobs)."""
    policy: str = ""
    """Policy of both lives; empty: the one that decides now."""
    rigid: bool = False
    """Nobody gives way for others, and nobody is resized."""


class Question(Struct, frozen=True):
    """All that an answer needs. `snapshot` travels without nodes and jobs, which come in parts behind it."""

    kind: Literal["plan", "whatif"]
    asked: bytes
    """JSON of a PlanAsked or WhatifAsked."""
    policy: str
    """Who decides now."""
    settings: dict[str, Any]
    """All of them, as `Settings.model_dump` gives them."""
    known: Learned
    snapshot: Snapshot
    nodes: dict[str, NodeFacts]
    queues: dict[str, QueueFacts]

    @property
    def configured(self) -> Settings:
        """The settings of the console."""
        return Settings.model_validate(self.settings)


def question(
    asked: PlanAsked | WhatifAsked, seen: Observation, policy: str, known: Learned, settings: Settings
) -> Question:
    """What is asked, about what is seen."""
    return Question(
        "plan" if isinstance(asked, PlanAsked) else "whatif",
        msgspec.json.encode(asked),
        policy,
        settings.model_dump(),
        known,
        seen.snapshot,
        seen.nodes,
        seen.queues,
    )


def parts(question: Question) -> Iterator[bytes]:
    """The question as it is written: each part takes about a millisecond to make."""
    now = question.snapshot
    nodes = list(question.nodes.values()) if question.kind == "plan" else []
    yield pickle.dumps(replace(question, snapshot=replace(now, nodes=(), jobs=()), nodes={}))
    for several in (now.nodes, now.jobs, nodes):
        yield pickle.dumps(len(several))
        for first in range(0, len(several), PART):
            yield pickle.dumps(several[first : first + PART])


def read(stream: BinaryIO) -> Question:
    """The question again."""

    def several() -> list[Any]:
        count: int = pickle.load(stream)  # noqa: S301 - the console wrote it, into our pipe
        found: list[Any] = []
        while len(found) < count:
            found += pickle.load(stream)  # noqa: S301 - as above
        return found

    question: Question = pickle.load(stream)  # noqa: S301 - as above
    snapshot = replace(question.snapshot, nodes=tuple(several()), jobs=tuple(several()))
    return replace(question, snapshot=snapshot, nodes={facts.name: facts for facts in several()})


def answer(question: Question) -> dict[str, Any]:
    """What the command says of it. Raises TrimtabError and what the catalogue raises."""
    calibration.use(question.configured.perf)
    with tempfile.TemporaryDirectory() as folder:
        return _plan(question, Path(folder)) if question.kind == "plan" else _whatif(question, Path(folder))


def decoded(kind: str, body: bytes) -> PlanAsked | WhatifAsked:
    """What a body asks. Raises UsageError naming the field."""
    try:
        if kind == "plan":
            return msgspec.json.decode(body, type=PlanAsked)
        return msgspec.json.decode(body, type=WhatifAsked)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(f"body: {error}") from error


def _plan(question: Question, folder: Path) -> dict[str, Any]:
    asked = msgspec.json.decode(question.asked, type=PlanAsked)
    file = folder / ("manifest.yaml" if "apiVersion" in asked.manifest else "manifest")
    file.write_text(asked.manifest)
    stated = [f"{field}={value}" for field, value in asked.set.items()]
    with contextlib.redirect_stderr(io.StringIO()) as notes:  # what the command tells beside its answer
        facts = planning.manifest(file, stated=stated)
    site = planning.PlanSite(question.snapshot, question.nodes, question.queues)
    found = planning.plan_on(
        site, facts, question.known, asked.policy or question.policy, asked.priority, rules_of(question.configured),
        question.configured.prices,
    )  # fmt: skip
    return found.value | {"told": found.rows, "notes": notes.getvalue().splitlines()}


def _whatif(question: Question, folder: Path) -> dict[str, Any]:
    asked = msgspec.json.decode(question.asked, type=WhatifAsked)
    submitted = asked.change.get("submit", [])
    if not isinstance(submitted, list) or not all(isinstance(each, str) for each in submitted):
        raise UsageError("change.submit: must be a list of manifests, each a text")
    for number, manifest in enumerate(submitted):
        (folder / f"submit-{number}.yaml").write_text(manifest)
    names = [f"submit-{number}.yaml" for number in range(len(submitted))]
    file = folder / "change"
    file.write_bytes(msgspec.json.encode(asked.change | ({"submit": names} if names else {})))
    wanted = change.read_change(file)
    now = question.snapshot
    if question.configured.reports.correct:
        now = corrected(now, Corrections(question.known))
    decides = asked.policy or question.policy
    policies = decides, wanted.policy or decides
    then = change.apply(wanted, now, file)
    return comparison.compared(now, then, policies, question.configured, rigid=asked.rigid)


def main(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer one question with `{"value": ...}` or `{"wrong": "..."}`."""
    sink.write(json.dumps(_told(read(source))).encode())


def _told(question: Question) -> dict[str, Any]:
    try:
        return {"value": msgspec.to_builtins(answer(question))}
    except (TrimtabError, UnknownPolicy, UnknownGpu, UnknownModel) as error:
        return {"wrong": _without_folder(str(error)), "asked": isinstance(error, UsageError)}
    except MemoryError:
        what = f"it takes more than {MEMORY >> 20} MiB to work out: ask with fewer jobs or nodes"
        return {"wrong": what, "asked": True}


def _without_folder(message: str) -> str:
    """Messages name the file that the question was put into."""
    words = message.split(tempfile.gettempdir() + "/")
    return words[0] + "".join(word.partition("/")[2] for word in words[1:])


def run() -> None:
    """The life of the process."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    main(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    run()
