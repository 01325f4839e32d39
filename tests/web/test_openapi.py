"""The published document says what is answered: every address, and every field of every answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.web.serving import site
from tests.web.town import OPEN

from trimtab.web import answers, openapi

DOCUMENT = json.loads(json.dumps(openapi.document()))
ASKED = {
    "/whoami": "whoami", "/overview": "overview", "/nodes": "nodes", "/jobs": "jobs", "/queues": "queues",
    "/jobs/{namespace}/{name}": f"jobs/{OPEN}/next-up", "/timeline": "timeline", "/policies": "policies",
}  # fmt: skip


def resolved(schema: Any) -> Any:
    """A schema, its reference followed."""
    if "$ref" in schema:
        found: Any = DOCUMENT
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return found
    return schema


def complaints(value: Any, schema: Any, where: str) -> list[str]:
    """Where a value is not as its schema says: as far as types, enumerations and fields go."""
    schema = resolved(schema)
    if "anyOf" in schema:
        tried = [complaints(value, each, where) for each in schema["anyOf"]]
        return min(tried, key=len)
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{where}: {value!r} is none of {schema['enum']}"]
    kinds = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "boolean": bool,
             "null": type(None)}  # fmt: skip
    wanted = schema.get("type", list(kinds))
    names = wanted if isinstance(wanted, list) else [wanted]
    if not any(isinstance(value, kinds[name]) for name in names):
        return [f"{where}: {type(value).__name__} instead of {wanted}"]
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties")
        said = [f"{where}.{name}: missing" for name in schema.get("required", ()) if name not in value]
        said += [f"{where}.{name}: not told of" for name in value if known and name not in known and not rest]
        for name, each in value.items():
            said += complaints(each, known.get(name, rest if isinstance(rest, dict) else {}), f"{where}.{name}")
        return said
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [said for each in value for said in complaints(each, schema["items"], f"{where}[]")]
    return []


@pytest.mark.parametrize("path", ASKED)
async def test_answers_are_as_the_document_says(path: str) -> None:
    async with site() as made:
        status, body = await made.visit().get(ASKED[path])
    schema = DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert status == 200
    assert complaints(json.loads(body), schema, path) == []


async def test_errors_are_as_the_document_says() -> None:
    async with site() as made:
        _, body = await made.visit().get("timeline?by=x")
    assert complaints(json.loads(body), {"$ref": "#/components/schemas/Error"}, "error") == []


def test_the_check_finds_what_it_should() -> None:
    schema = {"$ref": "#/components/schemas/Abilities"}
    assert complaints({"nodes": 1, "more": True}, schema, "a") == [
        "a.more: not told of",
        "a.nodes: int instead of boolean",
    ]


def test_every_address_is_in_the_document() -> None:
    told = {path.split("/")[1] for path in DOCUMENT["paths"]}
    assert told == {*answers.ANSWERS, "whoami", "doctor", "plan", "whatif", "stream"}
