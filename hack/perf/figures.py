"""A figure with the goal that it was meant to reach."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Unit(Enum):
    """How a figure is written."""

    PERCENT = "percent"
    PLAIN = "plain"
    MILLISECONDS = "ms"
    MICROSECONDS = "µs"

    def say(self, value: float) -> str:
        """The value as people write it; times come in seconds."""
        match self:
            case Unit.PERCENT:
                return f"{100 * value:.3g} %"
            case Unit.MILLISECONDS:
                return f"{1e3 * value:.3g} ms"
            case Unit.MICROSECONDS:
                return f"{1e6 * value:.3g} µs"
            case Unit.PLAIN:
                return f"{value:.3g}"


class Figure(Struct, frozen=True):
    """Something that was measured. Without a goal it is there to explain the others."""

    what: str
    value: float
    goal: float | None = None
    at_least: bool = False
    unit: Unit = Unit.PERCENT
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def said(self) -> tuple[str, str, str, str, str]:
        """What, measured, goal, verdict, note."""
        verdict = {True: "met", False: "**missed**", None: ""}[self.met]
        goal = "" if self.goal is None else f"{'≥' if self.at_least else '≤'} {self.unit.say(self.goal)}"
        return self.what, self.unit.say(self.value), goal, verdict, self.note


class Section(Struct, frozen=True):
    """Figures about one thing, and tables in Markdown that show more of it."""

    title: str
    figures: list[Figure]
    details: str = ""
