"""The texts below the fields of a class: what `kubectl explain` shows, and the reference of the settings.

They are read from the source when somebody wants them. pydantic can do so as well (`use_attribute_docstrings`), but
does it whenever a class is made: 0.1 s of every command.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel


def of_fields(cls: type) -> dict[str, str]:
    """Name -> text of the fields of a class and of those that it inherits from; its own words win."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        found |= _of_module(each.__module__).get(each.__qualname__, {})
    return found


def of_constants(module: ModuleType, beginning: str) -> dict[str, str]:
    """Value -> text of the constants of a module whose names begin so; empty for one without words."""
    texts = _of_body(ast.parse(inspect.getsource(module)).body)
    found = {name: value for name, value in vars(module).items() if name.startswith(beginning)}
    return {value: texts.get(name, "") for name, value in found.items()}


def of_members(kind: type[StrEnum]) -> dict[str, str]:
    """Value -> text of the members of an enumeration; empty for one without words."""
    texts = of_fields(kind)
    return {member.value: texts.get(member.name, "") for member in kind}


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Class -> field -> text, of the classes at the top of a module."""
    module = sys.modules.get(name)
    if module is None or not (getattr(module, "__file__", None) or "").endswith(".py"):
        return {}
    tree = ast.parse(inspect.getsource(module))
    return {each.name: _of_body(each.body) for each in tree.body if isinstance(each, ast.ClassDef)}


def _of_body(body: list[ast.stmt]) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, below in pairwise(body):
        match field:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    found[name] = inspect.cleandoc(str(below.value.value))
    return found


def describe(schema: dict[str, Any], model: type[BaseModel], family: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of `model`, by its aliases, with these texts; other models in it are subclasses of `family`."""
    definitions = schema.get("$defs", {})
    parts = [(schema, model)]
    parts += [(definitions[each.__name__], each) for each in _below(family) if each.__name__ in definitions]
    for part, described in parts:
        texts = of_fields(described)
        fields = part.get("properties", {})
        for name, field in described.model_fields.items():
            if text := texts.get(name):
                known = fields[field.alias or name]
                fields[field.alias or name] = dict(sorted(({"description": text} | known).items()))  # as pydantic does
    return schema


def _below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in model.__subclasses__():
        yield each
        yield from _below(each)
