"""rich, for text that strangers wrote: the only console, and the only kind of text, that commands print with.

A string in a table is printed as it is: it is no markup, names no emoji, and passes `printable` before its width is
taken. `Text` does so as soon as it is made. What comes by another way loses its controls when it is printed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import console
from rich import text as texts
from rich.console import ConsoleOptions, RenderableType
from rich.progress import TextColumn
from rich.segment import Segment
from rich.style import Style

from trimtab.printable import printable


class Text(texts.Text):
    """A piece of text without controls; line ends are kept."""

    def __init__(self, text: str = "", style: str | Style = "", **layout: Any) -> None:
        super().__init__(printable(text, lines=True), style, **layout)

    def append(self, text: texts.Text | str, style: str | Style | None = None) -> Text:
        """Add a string, cleaned, or a text."""
        super().append(printable(text, lines=True) if isinstance(text, str) else text, style)
        return self

    def __add__(self, other: object) -> Text:
        return Text.assemble(self, other) if isinstance(other, str | texts.Text) else NotImplemented

    @classmethod
    def assemble(cls, *parts: str | texts.Text | tuple[str, str | Style], **layout: Any) -> Text:
        """One text of several, each cleaned."""
        made = cls(**layout)
        for part in parts:
            made.append(*part) if isinstance(part, tuple) else made.append(part)
        return made

    def join(self, lines: Iterable[texts.Text]) -> Text:
        """These with this one between them."""
        return Text().append(super().join(lines))


class Console(console.Console):
    """A console that reads no markup and prints no controls but its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, markup=False, emoji=False)

    def render_str(self, text: str, **layout: Any) -> texts.Text:
        """The text of a string: of a cell, a title, an argument of `print`."""
        layout |= {"markup": False, "emoji": False}
        return super().render_str(printable(text, lines=True), **layout)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What will be written, with the same style, whatever it is made of."""
        for segment in super().render(renderable, options):
            said = segment.text if segment.control else printable(segment.text, lines=True)
            yield segment if said == segment.text else Segment(said, segment.style)


def column(field: str = "{task.description}") -> TextColumn:
    """A column of a progress bar: what its task says, or a fixed word."""
    return TextColumn(field, markup=False)
