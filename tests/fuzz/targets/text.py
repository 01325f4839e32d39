"""Words of strangers on a terminal: nothing in them is obeyed or hidden, and nothing else of them is lost."""

from __future__ import annotations

import io
import json

from tests.fuzz.draw import Draw
from tests.fuzz.target import Target

from trimtab.printable import UNPRINTABLE, escaped, printable
from trimtab.ui import tables
from trimtab.ui.terminal import Console

_PIECES = ("image", "\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "[/b]", "[link=http://x]", "‮", "​", "\u2066", "\ud800",
           "\r", "\n", "\r\n", "\t", "\x00", "😀", "é", ":smile:", "\u2028", "\xad", "\ue000", "%s", "{}", "\\", '"',
           "\U000e0041", "漢", "\x7f", "\x85")  # fmt: skip


def _text(draw: Draw) -> str:
    pieces = [draw.pick(_PIECES) if draw.byte() & 3 else draw.some(6).decode("utf-8", "replace") for _ in range(6)]
    return "".join(pieces[: draw.below(7)])


def run(data: bytes) -> None:
    """One text alone, and in a table and as JSON."""
    draw = Draw(data)
    text, lines = _text(draw), bool(draw.byte() & 1)
    said = printable(text, lines=lines)
    assert all(each.isprintable() or (lines and each == "\n") for each in said), ascii(said)
    assert printable(said, lines=lines) == said
    assert len(said) <= len(text)
    assert text != said or UNPRINTABLE in text or text.isprintable() or lines
    said.encode()
    words = json.dumps({"x": text, text: [text]}, ensure_ascii=False)
    assert json.loads(escaped(words)) == json.loads(words)
    escaped(words).encode()
    if draw.chance(4):
        _table(text)


def _table(text: str) -> None:
    out = io.StringIO()
    Console(file=out, width=60, force_terminal=False).print(tables.pairs([("name", text), (text, "value")]))
    assert all(each.isprintable() or each == "\n" for each in out.getvalue()), ascii(out.getvalue())


TARGET = Target("words of strangers, as they are printed", run)
