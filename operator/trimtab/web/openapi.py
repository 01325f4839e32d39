"""The API of the console as an OpenAPI document: `hack/generate` writes it to docs/console-openapi.json.

Shapes of what commands tell come from the values that they are; what a Kubernetes object says (`status`, `plan`) is as
the CRD has it, and columns are as docs/console-api.md says.
"""

from __future__ import annotations

from typing import Any

import msgspec

from trimtab import __version__
from trimtab.commands.remedies import Question
from trimtab.ui.choices import TypeChoice
from trimtab.ui.explain import Objection, Place, Prospect
from trimtab.ui.line import WaitingRow
from trimtab.ui.queues import QueueRow
from trimtab.ui.usage import Used
from trimtab.web.rights import Abilities
from trimtab.web.simulate import PlanAsked, WhatifAsked
from trimtab_policy.listing import Listed
from trimtab_policy.sim.whatif import Life
from trimtab_policy.types import Pending, Placement

Json = dict[str, Any]
VALUES = (
    Abilities, Life, Listed, Objection, Pending, Place, Placement, PlanAsked, Prospect, Question, QueueRow, TypeChoice,
    Used, WaitingRow, WhatifAsked,
)  # fmt: skip
OBJECT: Json = {"type": "object"}
NUMBER: Json = {"type": "number"}
TEXT: Json = {"type": "string"}
ROWS: Json = {"type": "array", "items": {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}}
REFUSALS = {
    "400": "What was asked makes no sense; the message names the field.",
    "401": "A token is missing, or no longer good.",
    "403": "Not allowed; `help` names the right to ask for.",
    "404": "There is no such thing, or none that this visitor may see.",
    "429": "Too much is asked; `Retry-After` says when to come again.",
    "503": "The API server does not answer, or the first look is not complete.",
}


def document() -> Json:
    """The whole document."""
    _, found = msgspec.json.schema_components(VALUES, ref_template="#/components/schemas/{name}")
    error = _fields(status={"type": "integer"}, reason=TEXT, message=TEXT, help=TEXT)
    return {
        "openapi": "3.1.0",
        "info": {"title": "The console of Trimtab", "version": __version__},
        "servers": [{"url": "/api/v1"}],
        "security": [{"token": []}],
        "paths": {path: {verb: _operation(*told) for verb, told in verbs.items()} for path, verbs in PATHS.items()},
        "components": {
            "schemas": dict(sorted({**found, "Error": _fields(error=error), "Columns": COLUMNS}.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(summary: str, answer: Json, words: tuple[str, ...] = (), body: str = "") -> Json:
    lines = answer.get("x-lines")
    kind = "application/x-ndjson" if lines else "application/json"
    found: Json = {
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": {kind: {"schema": answer}}},
            **{
                status: {"description": why, "content": {"application/json": {"schema": _ref("Error")}}}
                for status, why in REFUSALS.items()
            },
        },
    }
    if words:
        found["parameters"] = [_parameter(word) for word in words]
    if body:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
    return found


def _parameter(word: str) -> Json:
    inside = word.startswith("{")
    return {
        "name": word.strip("{}"), "in": "path" if inside else "query", "required": inside, "schema": TEXT,
    }  # fmt: skip


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _fields(**fields: Json) -> Json:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _list(of: Json) -> Json:
    return {"type": "array", "items": of}


def _or_null(of: Json) -> Json:
    return {"anyOf": [of, {"type": "null"}]}


COLUMNS: Json = {"type": "object", "additionalProperties": _list({"type": ["string", "number"]})}
_JOB = _fields(
    job=TEXT, state=TEXT, plan=_or_null(OBJECT), pending=_or_null(_ref("Pending")), line=_or_null(_ref("Place")),
    start=_or_null(_ref("Prospect")), decision=_or_null(_ref("Placement")), choices=_list(_ref("TypeChoice")),
    currency=TEXT, helps=_list(_ref("Question")), status=OBJECT, observed=_or_null(OBJECT), learned={}, told=ROWS,
)  # fmt: skip
_PLANNED = _fields(
    job=TEXT, decision=_or_null(_ref("Placement")), pending=_or_null(_ref("Pending")), asked=OBJECT,
    choices=_list(_ref("TypeChoice")), currency=TEXT, told=ROWS, notes=_list(TEXT),
)  # fmt: skip
_DECIDING = _fields(policy=TEXT, chosen=TEXT, fallback=TEXT)
PATHS: dict[str, dict[str, tuple[Any, ...]]] = {
    "/whoami": {
        "get": (
            "Who asks, and what they may see",
            _fields(
                mode={"enum": ["local", "cluster"]},
                user=TEXT,
                server=TEXT,
                version=TEXT,
                unseen=TEXT,
                can=_ref("Abilities"),
                namespaces=_or_null(_list(TEXT)),
                leftOut=OBJECT,
                trouble=TEXT,
            ),
        )
    },
    "/overview": {
        "get": (
            "The cluster in short",
            _fields(
                time=NUMBER,
                running=NUMBER,
                waiting=NUMBER,
                gpus=_list(OBJECT),
                deciding=_DECIDING,
                line=_list(OBJECT),
                decisions=_list(OBJECT),
                shadow=OBJECT,
            ),
        )
    },
    "/nodes": {
        "get": (
            "Columns of nodes, GPUs and jobs; with form=objects as `trimtab get nodes -o json`",
            {"anyOf": [_fields(time=NUMBER, columns=_ref("Columns")), _fields(items=_list(OBJECT))]},
            ("form",),
        )
    },
    "/jobs": {"get": ("As `trimtab get jobs -A -o json`", _fields(items=_list(OBJECT)))},
    "/jobs/{namespace}/{name}": {"get": ("As `trimtab explain -o json`", _JOB, ("{namespace}", "{name}", "why-not"))},
    "/queues": {
        "get": (
            "As `trimtab get queues -o json` and `trimtab queue -o json`, and who uses how much",
            _fields(
                items=_list(_ref("QueueRow")), line=_list(_ref("WaitingRow")), use=_list(_ref("Used")), currency=TEXT
            ),
        )
    },
    "/timeline": {
        "get": (
            "What ran, runs and is expected to run",
            _fields(
                **{"time": NUMBER, "from": NUMBER, "to": NUMBER, "by": TEXT},
                lanes=_list(OBJECT),
                spans=_list(OBJECT),
                marks=_list(OBJECT),
            ),
            ("from", "to", "by"),
        )
    },
    "/policies": {
        "get": (
            "As `trimtab policies -o json`, who decides, and what the shadow would have done",
            _fields(
                items={"type": "object", "additionalProperties": _ref("Listed")}, deciding=_DECIDING, shadow=OBJECT
            ),
        )
    },
    "/doctor": {
        "get": (
            "As `trimtab doctor -o json`",
            _fields(
                version=TEXT,
                server=TEXT,
                serverVersion=_or_null(TEXT),
                namespace=TEXT,
                summary=OBJECT,
                findings=_list(OBJECT),
            ),
            ("fresh",),
        )
    },
    "/plan": {"post": ("As `trimtab plan -o json`", _PLANNED, (), "PlanAsked")},
    "/whatif": {
        "post": (
            "As `trimtab whatif -o json`",
            _fields(before=_ref("Life"), after=_ref("Life"), ends_later_seconds=OBJECT, uncertain=_list(TEXT)),
            (),
            "WhatifAsked",
        )
    },
    "/stream": {
        "get": (
            "A snapshot, then what changes: a JSON object in each line",
            {"x-lines": True, **_fields(event={"enum": ["snapshot", "delta", "ping", "denied"]})},
            ("since",),
        )
    },
}
"""Path -> verb -> what it answers, its parameters, and the schema of its body."""
