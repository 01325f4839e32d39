"""The forms in which commands answer, by name: apart from what prints them, which loads much."""

from __future__ import annotations

from enum import StrEnum


class Output(StrEnum):
    """Values of `-o`."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
