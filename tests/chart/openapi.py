"""JSON schemas for kubeconform, made from what an API server says of its own kinds: nothing is downloaded.

`/openapi/v2` has a definition for every kind, CRDs too. Each becomes a file that stands alone, with the definitions
that it refers to, and stricter than the server's own words: no field that is not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]
PREFIX = "#/definitions/"
LOOSE: dict[str, Schema] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
}
"""Kinds of values whose definition says string, and which may be numbers, too."""


def write_schemas(kubectl: Callable[..., str], directory: Path) -> int:
    """Write a schema for every kind of a cluster into `directory`; returns how many. Files are called as
    kubeconform's `{{.ResourceKind}}{{.KindSuffix}}` has it: `deployment-apps-v1.json`."""
    definitions: dict[str, Schema] = json.loads(kubectl("get", "--raw", "/openapi/v2"))["definitions"]
    strict = {name: LOOSE.get(name) or tightened(each) for name, each in definitions.items()}
    written = 0
    for name, each in definitions.items():
        for kind in each.get("x-kubernetes-group-version-kind", []):
            suffix = "-".join(part for part in (kind["group"].partition(".")[0], kind["version"]) if part)
            needed = {found: strict[found] for found in reachable(strict, name)}
            content = {"$ref": PREFIX + name, "definitions": needed}
            (directory / f"{kind['kind'].lower()}-{suffix}.json").write_text(json.dumps(content))
            written += 1
    return written


def tightened(schema: Schema) -> Schema:
    """The same without room for unknown fields, wherever fields are listed at all."""
    copy = {key: _inside(value) for key, value in schema.items() if key != "properties"}
    if "properties" in schema:
        copy["properties"] = {name: tightened(each) for name, each in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            copy.setdefault("additionalProperties", False)
    return copy


def _inside(value: object) -> object:
    if isinstance(value, dict):
        return tightened(value)
    return [_inside(each) for each in value] if isinstance(value, list) else value


def reachable(definitions: dict[str, Schema], name: str) -> set[str]:
    """Names of the definitions that one needs, itself among them."""
    found, ahead = {name}, [name]
    while ahead:
        for reference in references(definitions[ahead.pop()]):
            if reference not in found:
                found.add(reference)
                ahead.append(reference)
    return found


def references(value: object) -> Iterator[str]:
    """What a schema refers to."""
    if isinstance(value, dict):
        if isinstance(target := value.get("$ref"), str):
            yield target.removeprefix(PREFIX)
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)
