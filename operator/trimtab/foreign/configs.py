"""Files that lie beside a job: configs of trainers, flattened to dotted keys; and the documents of a YAML file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any, Final

import yaml

from trimtab.errors import UsageError
from trimtab_policy.inputs import documents
from trimtab_policy.inputs.documents import NotYaml

MOST_BYTES: Final = 500_000
MOST_DOCUMENTS: Final = 200
MOST_KEYS: Final = 20_000
CONFIGS: Final = (".yaml", ".yml", ".toml", ".json")
_TEMPLATE = re.compile(r"\{\{[-\s]*(?:\.|\$|if|end|range|include|with|define|toYaml|template|else|fail|/\*)|\{%")


def is_template(text: str) -> bool:
    """Whether it is the template of a Helm chart, or of Jinja, which must be rendered first."""
    return _TEMPLATE.search(text) is not None


def objects(text: str, name: str) -> list[dict[str, Any]]:
    """The objects of a file of YAML documents. Raises UsageError naming the file."""
    if len(text) > MOST_BYTES:
        raise UsageError(f"{name} is longer than {MOST_BYTES:,} characters")
    if is_template(text):
        raise UsageError(
            f"{name} is a template: render it first, for instance with `helm template`, and give what comes out"
        )
    found = []
    for part in _parts(text):
        try:
            document = documents.parse(part, documents.LARGEST_OBJECT)
        except NotYaml as error:
            raise UsageError(f"{name} is no YAML: {error}") from error
        if isinstance(document, dict):
            items = document.get("items") if document.get("kind") == "List" else [document]
            found += [each for each in items or [] if isinstance(each, dict)] if isinstance(items, list) else []
        if len(found) > MOST_DOCUMENTS:
            raise UsageError(f"{name} has more than {MOST_DOCUMENTS} documents")
    return found


def _parts(text: str) -> Iterator[str]:
    part: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if line == "---" or line.startswith(("--- ", "---\t")):
            yield "\n".join(part)
            part = [line[3:]]
        else:
            part.append(line)
    yield "\n".join(part)


def flat(text: str, name: str) -> list[tuple[str, str]]:
    """Dotted keys of a config and their values as texts. Raises UsageError naming the file."""
    if len(text) > MOST_BYTES:
        raise UsageError(f"{name} is longer than {MOST_BYTES:,} characters")
    try:
        if name.endswith(".toml"):
            value: Any = tomllib.loads(text)
        elif name.endswith(".json"):
            value = json.loads(text)
        else:
            value = documents.parse(text, documents.LARGEST_OBJECT)
    except NotYaml as error:
        raise UsageError(f"{name} is no YAML: {error}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{name} cannot be read: {' '.join(str(error).split())[:200]}") from error
    found: list[tuple[str, str]] = []
    _flatten(value, "", found, 0)
    return found


def _flatten(value: Any, key: str, found: list[tuple[str, str]], depth: int) -> None:
    if len(found) > MOST_KEYS or depth > 16:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            _flatten(inner, f"{key}.{name}" if key else str(name), found, depth + 1)
    elif isinstance(value, bool):
        found.append((key, str(value).lower()))
    elif isinstance(value, str | int | float):
        found.append((key, str(value)[:1000]))
