"""What strangers wrote, made fit for people's eyes: the one function that everything printed passes.

Names of images, messages of kubelets, words of dumps come from whoever may make a job. A terminal obeys some of what
could stand in them: ESC and the C1 controls move the cursor, set titles, fill clipboards; bidirectional overrides and
characters without width make a line read otherwise than it is; a lone surrogate cannot be encoded, and the command ends
with a traceback. Where such a character stood, `�` says that there was one.

Tables and pages are printed by `trimtab.ui.terminal`, which has all text pass here; lines by `say`; logs, events,
conditions and the extender's page call `printable` themselves.
"""

from __future__ import annotations

import io
import re
import sys
from typing import TextIO

UNPRINTABLE = "�"
BLANKS = "\t\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
"""Tabulators and the blanks of typography, which become spaces: no line is longer than it looks."""
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Printable by their category, and yet nothing is seen of them: what else Unicode calls Default_Ignorable_Code_Point
(fillers, joiners, variation selectors), and the empty braille pattern."""
_BLANK = dict.fromkeys(map(ord, BLANKS), " ")


def printable(text: str, *, lines: bool = False) -> str:
    """`text` with nothing in it that a terminal obeys or that has no width; line ends stay if `lines`.

    What counts is Unicode's category (`str.isprintable`): controls, formats (bidirectional and zero-width ones are
    among them), surrogates, private and unassigned characters go, and those of which nothing is seen. Markup stays: who
    prints it must not read it.
    """
    if _is_seen(text):
        return text
    text = text.replace("\r\n", "\n").translate(_BLANK)
    return "".join(each if _is_seen(each) or (lines and each == "\n") else UNPRINTABLE for each in text)


def escaped(text: str) -> str:
    r"""JSON as it is, with `\u` escapes for what is not printable inside its strings: the value stays the same."""
    if _is_seen(text):
        return text
    return "".join(each if _is_seen(each) or each == "\n" else _escape(each) for each in text)


def _is_seen(text: str) -> bool:
    return text.isprintable() and (text.isascii() or not _UNSEEN.search(text))


def say(text: str = "", *, error: bool = False) -> None:
    """Print a line, or several, for people: to standard output, or to standard error."""
    print(printable(text, lines=True), file=sys.stderr if error else sys.stdout, flush=error)


class Cleaned(io.TextIOBase):
    """A stream that is no terminal, for libraries that repeat what they were given: all that is written passes here."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(printable(text, lines=True))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
