"""What somebody may have meant who wrote a name that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

MOST = 4


def nearest(name: str, known: Iterable[str], key: Callable[[str], str] = str.casefold) -> list[str]:
    """Known names that contain it, then those that look like it, by `key` of both; none for nothing alike."""
    by_key = {key(each): each for each in known}
    meant = key(name)
    containing = [each for known_key, each in by_key.items() if meant and meant in known_key]
    alike = [by_key[each] for each in difflib.get_close_matches(meant, by_key, n=MOST)]
    return list(dict.fromkeys(containing + alike))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean a, b?`, or nothing, to go on after a sentence."""
    near = nearest(name, known)[:MOST]
    return f"; did you mean {', '.join(near)}?" if near else ""
