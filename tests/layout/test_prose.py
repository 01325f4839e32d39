"""Nothing decides by words that are written for people: what is to be decided by is a field, a type or a reason.

Checked is what can be seen in the source: a question about the wording of a value that is called as prose is called
here. Who renames it gets past this, and past no reader.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from tests.layout.test_house import SOURCES, parsed, relative

PROSE = {"message", "why", "why_not", "hint", "unusable"}
"""Names of texts for people, in all of the product."""
OF_TEXT = {"startswith", "endswith", "find", "index", "count"}
PATTERNS = {"match", "fullmatch", "search", "findall", "finditer"}
OTHERS_WORDS = {
    "operator/trimtab/apply/causes.py": "kubelets and container runtimes tell causes in their messages alone",
    "operator/trimtab/doctor/checks/scheduler.py": "so does kube-scheduler, of calls to its extender that failed",
    "policy/lab/trimtab_lab/profiling/measure.py": "torch raises RuntimeError where the CPU's memory is not enough",
    "policy/lab/trimtab_lab/workloads/philly.py": "msgspec tells where a JSON document is wrong in its message alone",
}
"""Modules that read what other programs say and tell in no other way -> which."""


def questions(tree: ast.Module) -> Iterator[str]:
    """Every question about the wording of a text for people, or of an exception."""
    caught = {each.name for each in ast.walk(tree) if isinstance(each, ast.ExceptHandler) and each.name}

    def is_prose(node: ast.AST) -> bool:
        match node:
            case ast.Attribute(attr=name):
                return name in PROSE
            case ast.Name(id=name):
                return name in PROSE
            case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]):
                return name in caught or name == "error"
            case ast.Call(func=ast.Attribute(value=of, attr="lower" | "casefold" | "strip")):
                return is_prose(of)
        return False

    for node in ast.walk(tree):
        asked: list[ast.expr] = []
        match node:
            case ast.Call(func=ast.Attribute(value=of, attr=method)) if method in OF_TEXT:
                asked = [of]
            case ast.Call(func=ast.Attribute(attr=method), args=args) if method in PATTERNS:
                asked = args
            case ast.Compare(ops=ops, comparators=of):
                asked = [each for op, each in zip(ops, of, strict=True) if isinstance(op, ast.In | ast.NotIn)]
        if any(map(is_prose, asked)):
            yield ast.unparse(node)


def test_nothing_is_decided_by_the_wording_of_a_message() -> None:
    found = {relative(path): [*questions(parsed(path))] for path in SOURCES}
    assert {path: asked for path, asked in found.items() if asked and path not in OTHERS_WORDS} == {}
    assert {path for path, asked in found.items() if asked} == OTHERS_WORDS.keys()


@pytest.mark.parametrize(
    ("source", "asks"),
    [
        ("if 'is 0' in facts.message: pass", True),
        ("if WITHDRAWN in told.judged.message: pass", True),
        ("if health.WITHDRAWN in told.judged.message: pass", True),
        ("if f'{name} is' not in why: pass", True),
        ("node.unusable.startswith('no label')", True),
        ("message.lower().endswith('full')", True),
        ("_CLOCK.findall(before.message)", True),
        ("try: run()\nexcept ValueError as odd:\n    if 'memory' in str(odd): pass", True),
        ("if node.name in gang.unavailable: pass", False),
        ("if pending.reason in NEVER_STARTS: pass", False),
        ("path.name.endswith('.json')", False),
        ("text = message[:10]", False),
    ],
)
def test_the_check_of_what_is_asked_finds_what_it_should(source: str, asks: bool) -> None:
    assert bool([*questions(ast.parse(source))]) is asks
