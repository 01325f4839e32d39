"""Every edit of a job that its schema suggests (Acto, SOSP'23): each property set to its least, its greatest, some of
its words, taken away, and set to what it must not be. Generated from the CRD: a new field is edited from its first day.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from trimtab_local.checkout import checkout

WORDS = 3
"""Words of a closed list that are tried, at most."""
FREE = {"queue": "team-a", "priorityClassName": "system-node-critical", "managedBy": "example.test/other"}
"""Sound values of strings that have no closed list."""
ITEMS = {"resources.gpuTypes": ["A100-SXM4-80GB", "H100-SXM5-80GB"]}


@dataclass(frozen=True)
class Edit:
    """One property, and what it is set to; None takes it away."""

    path: tuple[str, ...]
    value: Any
    sound: bool
    """Whether the schema allows it: what spans fields may still be refused."""

    def patch(self) -> dict[str, Any]:
        """As a JSON merge patch."""
        tree: Any = self.value
        for name in reversed(self.path):
            tree = {name: tree}
        return {"spec": tree}

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}={self.value!r:.40}"


def job_edits() -> list[Edit]:
    """All edits of `LLMTrainingJob.spec`."""
    text = (checkout() / "manifests" / "crds" / "llmtrainingjobs.trimtab.dev.yaml").read_text()
    schema = yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    template = [
        Edit(("template", "metadata"), {"labels": {"team": "a"}}, True),
        Edit(("template", "spec", "containers"), [{"name": "trainer", "image": "example.test/trainer:2"}], True),
        Edit(("template", "spec", "nodeSelector"), {"no-such": "label"}, True),
        Edit(("template", "spec"), None, False),
        Edit(("template",), "text", False),
    ]
    return [*_of(schema, ()), *template]


def _of(schema: dict[str, Any], path: tuple[str, ...]) -> Iterator[Edit]:
    if path == ("template",):
        return
    if path:
        yield Edit(path, None, True)
        yield from (Edit(path, value, sound) for value, sound in _values(schema, ".".join(path)))
    for name, child in schema.get("properties", {}).items():
        yield from _of(child, (*path, name))


def _values(schema: dict[str, Any], path: str) -> Iterator[tuple[Any, bool]]:
    if schema.get("x-kubernetes-int-or-string"):
        yield from ((0, True), ("1", True), (-1, False), ("much", False), ({}, False))
        return
    match schema["type"]:
        case "integer":
            low, high = schema["minimum"], schema["maximum"]
            yield from ((low, True), (high, True), (low - 1, False), (high + 1, False), ("seven", False))
        case "boolean":
            yield from ((True, True), (False, True), ("yes", False))
        case "string":
            words = schema.get("enum") or [FREE[path]]
            yield from ((word, True) for word in (words[0], words[-1], *words[1 : WORDS - 1]))
            yield from (("~ no word ~", False), (7, False))
        case "array":
            yield from (([], True), (ITEMS[path], True), ("text", False), ([""], False))
        case "object":
            yield from (("text", False), ([], False))
