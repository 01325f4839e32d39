"""All checks together: a healthy installation, one that may not be looked at, the two forms, and a large cluster."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import msgspec
import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension
from tests.builders import gpunode_object, node_object
from tests.doctor.world import healthy, lease, pod, time_at

from trimtab import __version__
from trimtab.doctor import show
from trimtab.doctor.examine import CHECKS, examine, worst
from trimtab.doctor.findings import CheckGroup, CheckResult, Finding, Reason, Severity, warning
from trimtab.doctor.inventory import Seen, Unknown

GATHERED = (
    "own", "parts", "crds", "rules", "in_force", "deployment", "lease", "scheduler_lease", "pods",
    "gang_pods", "nodes", "slices", "device_classes", "taint_rules", "compute_domains",
    "device_plugins", "node_leases", "jobs", "queues", "quotas",
    "classes", "reports", "policy", "standing", "scheduler", "certificates", "kueue",
)  # fmt: skip


def findings(seen: Seen) -> list[Finding]:
    return [finding for said in examine(seen) for finding in said.findings]


def text(said: tuple[CheckResult, ...], width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(show.table(said))
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue()


def test_a_healthy_installation_has_nothing_wrong_and_every_check_says_something() -> None:
    said = examine(healthy())
    assert worst(said) is Severity.OK
    assert len(said) == len(CHECKS)
    assert all(each.findings for each in said)
    assert {each.group for each in said} == set(CheckGroup)


def test_all_that_was_gathered_is_named_here() -> None:
    rest = {"settings", "namespace", "version", "server", "now", "ahead", "unreadable"}
    assert {*GATHERED, *rest} == set(Seen.__struct_fields__)


@pytest.mark.parametrize("field", GATHERED)
def test_whatever_may_not_be_seen_some_check_is_not_made_and_says_what_it_needs(field: str) -> None:
    seen = healthy(**{field: Unknown("this user may not", "the right to see it")})
    told = findings(seen)
    assert any(each.level is Severity.NOT_CHECKED and each.fix == "the right to see it" for each in told)
    assert worst(examine(seen)) is Severity.OK, "what was not looked at is not wrong"


def test_of_a_server_that_does_not_answer_nothing_else_is_said() -> None:
    said = examine(Seen(healthy().settings, "n", Unknown("connection refused")))
    assert [each.check for each in said] == ["reachable"]
    assert worst(said) is Severity.ERROR


def broken() -> Seen:
    """A handful of faults, of every level."""
    return healthy(
        lease=(lease("trimtab-controller-0_ab12", -600.0),),
        policy={"policy": "no_such_policy"},
        nodes=(node_object("n1"), node_object("n2", None)),
        reports=Unknown("this user may not", "the right to list gpunodes.trimtab.dev"),
    )


class _Golden(JSONSnapshotExtension):
    """One file, beside this module."""


def test_what_programs_get(snapshot: SnapshotAssertion) -> None:
    seen = broken()
    told = json.dumps(msgspec.to_builtins(show.value(seen, examine(seen))))
    value = json.loads(told.replace(__version__, "VERSION"))
    assert value["summary"] == {"ok": 26, "notChecked": 3, "warning": 1, "error": 2}
    assert value == snapshot(extension_class=_Golden)


def test_what_people_get_has_symbols_and_words_and_remedies() -> None:
    shown = text(examine(broken()))
    for expected in ("✓ ok", "! warning", "✗ error", "? not checked", "fix: ", "needs: the right to list gpunodes"):
        assert expected in shown
    assert shown.rstrip().endswith("26 ok, 1 warning, 2 errors, 3 not checked")
    heads = [line.strip() for line in shown.splitlines() if line.strip() in set(CheckGroup)]
    assert heads == list(CheckGroup), "each group once, in order"


def test_markup_in_what_the_cluster_says_is_shown_as_it_is() -> None:
    odd = CheckResult(
        CheckGroup.JOBS, "x", (warning(Reason.JOB_NEVER_STARTS, "job [bold]a[/bold]", "[link=x]fix[/link]"),)
    )
    assert "job [bold]a[/bold]" in text((odd,))
    assert "[link=x]fix[/link]" in text((odd,))


def test_a_thousand_nodes_take_no_more_than_in_proportion() -> None:
    few, many = large(100), large(1000)
    took = dict[int, float]()
    for seen in (few, few, many):  # once before it counts: what is imported, and compiled, takes longer than a hundred
        began = time.process_time()
        said = examine(seen)
        took[len(seen.nodes)] = time.process_time() - began
    assert took[1000] < 30 * took[100], "each node beside all others would be a hundred times as much"
    assert not [each for each in findings(many) if each.level in (Severity.WARNING, Severity.ERROR)]
    assert show.counts(said)[Severity.OK] > 20


def large(nodes: int) -> Any:
    """A healthy cluster of so many nodes."""
    names = [f"gpu-{index}" for index in range(nodes)]
    return healthy(
        nodes=tuple(node_object(name) for name in names),
        node_leases=tuple(lease(name, -8.0, name=name, leaseDurationSeconds=40) for name in names),
        reports=tuple(gpunode_object(name, observedTime=time_at(-20)) for name in names),
        pods=(pod("controller"), *(pod("agent", f"agent-{name}", nodeName=name) for name in names)),
    )
