"""A pane of lines, drawn line by line: what is not seen costs nothing, and what has not changed is not drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from trimtab.ui.terminal import Text


class Pane(ScrollView, can_focus=True):
    """Lines of text, cut at the right; with a cursor where `choosing`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "Down", show=False),
        Binding("k,up", "move(-1)", "Up", show=False),
        Binding("pagedown,space,ctrl+f", "page(1)", "Page down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("home", "jump(0)", "Top", show=False),
        Binding("end", "jump(-1)", "End", show=False),
    ]

    class Chosen(Message):
        """The cursor is on another line."""

        def __init__(self, line: int) -> None:
            super().__init__()
            self.line = line

    class Reshaped(Message):
        """The pane has another width: its lines have to be laid out anew."""

    def __init__(self, name: str, title: str, *, choosing: bool = False) -> None:
        super().__init__(id=name)
        self.border_title = title
        self.cursor = 0
        """The line that is chosen."""
        self.lines: list[Text] = []
        self.head: Text | None = None
        """Stays above the others."""
        self.drawn = 0
        """Times that something was drawn again because it had changed."""
        self._choosing, self._width = choosing, 0

    @property
    def width(self) -> int:
        """Columns that lines may have: those of the scrollbar are not among them."""
        return self.scrollable_content_region.width

    def on_resize(self) -> None:
        """Say so where lines fit no more."""
        if self.width != self._width:
            self._width = self.width
            self.post_message(self.Reshaped())

    @property
    def text(self) -> list[str]:
        """The lines without their colours."""
        return [line.plain for line in ([self.head] if self.head else []) + self.lines]

    def show(self, lines: Sequence[Text], head: Text | None = None, *, cursor: int | None = None) -> None:
        """Show these. Only lines that differ are drawn."""
        old, old_head, was = self.lines, self.head, self.cursor
        self.lines, self.head = list(lines), head
        self.cursor = max(0, min(self.cursor if cursor is None else cursor, len(lines) - 1))
        above = bool(head)
        if len(old) != len(lines) or bool(old_head) != above:
            self.virtual_size = Size(0, len(lines) + above)
            self.drawn += 1
            self.refresh(layout=True)  # a pane may be as high as its lines
            return
        changed = [at + above for at, pair in enumerate(zip(old, lines, strict=True)) if pair[0] != pair[1]]
        changed += [at + above for at in (was, self.cursor) if self._choosing and was != self.cursor]
        changed += [self.scroll_offset.y] if head != old_head else []
        self.drawn += bool(changed)
        for at in changed:
            self.refresh_line(at)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As high as its lines, where its style lets it."""
        return max(1, len(self.lines) + bool(self.head))

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        width, above = self.width, bool(self.head)
        if self.head and y == 0:
            return self._strip(self.head, width, "bold")
        at = y + self.scroll_offset.y - above
        if at >= len(self.lines):
            return Strip.blank(width, self.rich_style)
        chosen = self._choosing and at == self.cursor
        return self._strip(self.lines[at], width, "reverse" if chosen else "")

    def _strip(self, text: Text, width: int, style: str) -> Strip:
        shown = text.copy()
        shown.end = ""
        shown.truncate(width, overflow="ellipsis", pad=True)
        shown.stylize_before(style)
        return Strip(shown.render(self.app.console), width).apply_style(self.rich_style)

    # --- keys -------------------------------------------------------------------------------------------------------
    def action_move(self, by: int) -> None:
        """Choose another line, or scroll."""
        if self._choosing:
            self._choose(self.cursor + by)
        else:
            self.scroll_relative(y=by, animate=False)

    def action_page(self, by: int) -> None:
        """The same by a page."""
        self.action_move(by * max(1, self.size.height - 2))

    def action_jump(self, to: int) -> None:
        """To the first line, or the last."""
        if self._choosing:
            self._choose(to if to >= 0 else len(self.lines) - 1)
        else:
            self.scroll_to(y=self.virtual_size.height if to < 0 else 0, animate=False)

    def _choose(self, line: int) -> None:
        line = max(0, min(line, len(self.lines) - 1))
        if line == self.cursor or not self.lines:
            return
        was, self.cursor = self.cursor, line
        above = bool(self.head)
        for at in (was, line):
            self.refresh_line(at + above)
        self.follow_cursor()
        self.post_message(self.Chosen(line))

    def follow_cursor(self) -> None:
        """Scroll so that the chosen line is seen."""
        top, height = self.scroll_offset.y, self.size.height - bool(self.head)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height > 0:
            self.scroll_to(y=self.cursor - height + 1, animate=False)
