"""What was found, for people (a table by group, one line a check, remedies below) and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table

from trimtab import __version__
from trimtab.doctor.findings import CheckResult, Finding, Severity
from trimtab.doctor.inventory import Seen, Unknown
from trimtab.ui.terminal import Text

LOOKS = {
    Severity.OK: ("✓", "ok", "green"),
    Severity.NOT_CHECKED: ("?", "not checked", "dim"),
    Severity.WARNING: ("!", "warning", "yellow"),
    Severity.ERROR: ("✗", "error", "bold red"),
}
"""Symbol, words, colour: colour alone says nothing to a pipe."""
MOST_OBJECTS = 1000
"""Names that a finding carries in JSON."""


def table(said: Sequence[CheckResult]) -> RenderableType:
    """All checks by group, then how many were how."""
    lines = Table(box=None, pad_edge=False, show_header=False)
    lines.add_column(no_wrap=True)
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for number, (group, checks) in enumerate(groupby(said, key=lambda each: each.group)):
        if number:
            lines.add_row()
        lines.add_row(Text(group, "bold"))
        for check in checks:
            for position, finding in enumerate(check.findings):
                lines.add_row(_level(finding.level), "" if position else check.check, _told(finding))
    return Lines(lines, "", summary(said))


def summary(said: Sequence[CheckResult]) -> Text:
    """`26 ok, 1 warning, 1 error, 2 not checked`."""
    levels = counts(said)
    shown = [level for level in (Severity.OK, Severity.WARNING, Severity.ERROR, Severity.NOT_CHECKED) if levels[level]]
    parts = [Text(f"{levels[level]} {_plural(level, levels[level])}", LOOKS[level][2]) for level in shown]
    return Text(", ").join(parts)


def counts(said: Sequence[CheckResult]) -> Counter[Severity]:
    """How many findings are how bad."""
    return Counter(finding.level for each in said for finding in each.findings)


def value(seen: Seen, said: Sequence[CheckResult]) -> dict[str, Any]:
    """The same for programs."""
    levels = counts(said)
    return {
        "version": __version__,
        "server": seen.server,
        "serverVersion": None if isinstance(seen.version, Unknown) else seen.version.git_version,
        "namespace": seen.namespace,
        "summary": {level.value: levels[level] for level in Severity},
        "findings": [_finding(each, finding) for each in said for finding in each.findings],
    }


def _finding(said: CheckResult, finding: Finding) -> dict[str, Any]:
    return {
        "group": said.group.value,
        "check": said.check,
        "level": finding.level.value,
        "reason": finding.reason.value if finding.reason else None,
        "message": finding.message,
        "fix": finding.fix or None,
        "objects": list(finding.objects[:MOST_OBJECTS]),
    }


def _level(level: Severity) -> Text:
    symbol, words, style = LOOKS[level]
    return Text(f"{symbol} {words}", style)


def _told(finding: Finding) -> Text:
    told = Text(finding.message, "dim" if finding.level in (Severity.OK, Severity.NOT_CHECKED) else "")
    if finding.fix:
        label = "needs" if finding.level is Severity.NOT_CHECKED else "fix"
        told.append(f"\n{label}: ", "bold").append(finding.fix, "")
    return told


def _plural(level: Severity, number: int) -> str:
    words = LOOKS[level][1]
    return f"{words}s" if number > 1 and level in (Severity.WARNING, Severity.ERROR) else words
