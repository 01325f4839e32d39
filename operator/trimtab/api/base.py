"""The parts every API model is made of: the base class, bounded integers, quantities, times, and CEL rules.

A model class is the one place where a field is written down: its type and bounds become the OpenAPI schema, the
docstring below it becomes the text of `kubectl explain`, the rules in its configuration become
`x-kubernetes-validations`. Rules that span fields are CEL only, evaluated by the API server at admission; pydantic
checks types and bounds when an object is read.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StringConstraints
from pydantic.alias_generators import to_camel

from trimtab.kube.quantity import PATTERN, parse

JsonSchema = dict[str, Any]


class ApiModel(BaseModel):
    """Frozen value with snake_case attributes in Python and camelCase names on the wire."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, defer_build=True)

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object as the API server stores it: unset fields absent, times in RFC 3339."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def rule(cel: str, message: str, field: str) -> JsonSchema:
    """Return one validation rule of a model; `field` is the path below it that the API server blames, e.g. `.min`."""
    return {"rule": cel, "message": message, "fieldPath": field}


def rules(*entries: JsonSchema) -> ConfigDict:
    """Return the model configuration that carries validation rules."""
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": list(entries)})


def extra(**keywords: Any) -> Any:
    """Return annotation metadata that adds `x-kubernetes-` keywords, e.g. `extra(list_type="atomic")`."""
    return Field(
        json_schema_extra={f"x-kubernetes-{name.replace('_', '-')}": value for name, value in keywords.items()}
    )


def _checked(value: object) -> object:
    if not isinstance(value, int | str):
        raise ValueError(f"{type(value).__name__} is no quantity: write a number or a text, as in 8 or 64Gi")
    parse(value)
    return value


def _rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


Int32 = Annotated[int, Field(json_schema_extra={"format": "int32"})]
Int64 = Annotated[int, Field(json_schema_extra={"format": "int64"})]
Degree = Annotated[Int32, Field(ge=1, le=16384)]
"""A number of GPUs, or a parallel width."""

TEXT: Final = 1024
LONG_TEXT: Final = 32768
Text = Annotated[str, StringConstraints(max_length=TEXT)]
LongText = Annotated[str, StringConstraints(max_length=LONG_TEXT)]
DnsName = Annotated[
    str, StringConstraints(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
]
Namespace = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
GpuType = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
]

Quantity = Annotated[
    int | str,
    BeforeValidator(_checked),
    Field(
        json_schema_extra={
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": PATTERN,
            "maxLength": 32,
            "minimum": 0,
        }
    ),
]
"""A Kubernetes quantity that is not negative: `8`, `"500m"`, `"64Gi"`."""

Time = Annotated[datetime, PlainSerializer(_rfc3339, when_used="json")]
"""RFC 3339 in UTC, to the second, as Kubernetes writes times."""

AnyObject = Annotated[
    dict[str, Any], Field(json_schema_extra={"type": "object", "x-kubernetes-preserve-unknown-fields": True})
]
"""An object that Trimtab hands on as it is."""
