"""The rules of the house: what the layout promises, checked, so that it still holds in a year."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

from trimtab import names

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("operator/trimtab", "operator/local/trimtab_local", "policy/trimtab_policy", "policy/lab/trimtab_lab")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted(ROOT.glob("tests/**/*.py"))
MOST_LINES, MOST_LINES_OF_TESTS, MOST_LINES_OF_FUNCTION = 700, 700, 60
"""A file tells one story, as long as that is: no file exists because another one was full."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def tracked() -> list[Path]:
    """Files that are or will be part of the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(parsed(path)) if isinstance(node, Function))


def length(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_nothing_shadows_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "policy" / "__init__.py").exists()


def test_a_fresh_interpreter_in_the_checkout_still_finds_the_standard_operator() -> None:
    check = "import operator; assert operator.add(1, 2) == 3; import trimtab, trimtab_policy"
    subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=True)


def test_every_module_opens_with_its_story() -> None:
    assert [relative(path) for path in SOURCES + TESTS if not ast.get_docstring(parsed(path))] == []


def test_files_fit_the_house() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in SOURCES + TESTS}
    limits = dict.fromkeys(TESTS, MOST_LINES_OF_TESTS) | dict.fromkeys(SOURCES, MOST_LINES)
    assert {relative(path): size for path, size in sizes.items() if size > limits[path]} == {}


def test_functions_fit_a_screen() -> None:
    sizes = {f"{relative(path)}: {each.name}": length(each) for path in SOURCES + TESTS for each in functions(path)}
    assert {name: size for name, size in sizes.items() if size > MOST_LINES_OF_FUNCTION} == {}


def test_most_functions_are_much_shorter() -> None:
    assert median(length(each) for path in SOURCES for each in functions(path)) <= 10


def test_every_function_says_what_it_returns() -> None:
    silent = [f"{relative(path)}: {each.name}" for path in SOURCES for each in functions(path) if each.returns is None]
    assert silent == []


def test_every_name_that_users_can_see_is_used() -> None:
    text = "\n".join(path.read_text() for path in SOURCES if path.name != "names.py")
    within = (ROOT / "operator/trimtab/names.py").read_text()
    constants = [name for name in vars(names) if name.isupper()]
    assert constants
    unused = [name for name in constants if not re.search(rf"\b{name}\b", text) and within.count(name) < 2]
    assert unused == []


def test_names_that_users_can_see_are_written_down_once() -> None:
    """Labels, annotations and reasons are constants: a literal of our group elsewhere is a second source. What is
    copied into images alone cannot import them: tests/launch holds its own to be the same."""
    literal = re.compile(rf"""["'](fake\.)?{re.escape(names.GROUP)}/[a-z-]+["']""")
    second = [relative(path) for path in SOURCES if path.name != "names.py" and literal.search(path.read_text())]
    assert second == ["operator/trimtab/launch.py"]


MACHINE = re.compile(r"/work\b|/root/|/home/\w")
NEIGHBOUR = "../shared"
MAY_READ_NEIGHBOURS = ("tests/", "hack/bench/")
"""Published measurements beside the repository, which these skip when absent."""


def test_nothing_refers_to_the_machine_it_was_written_on() -> None:
    found = []
    for path in tracked():
        if path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            neighbour = NEIGHBOUR in line and not relative(path).startswith(MAY_READ_NEIGHBOURS)
            if neighbour or MACHINE.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()}")
    assert found == []


def test_the_import_contracts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    outcome = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_every_package_has_its_layer() -> None:
    """A package that the layers do not name is one that they do not hold to anything."""
    layers = (ROOT / "pyproject.toml").read_text()
    packages = [path.parent.name for path in ROOT.glob("operator/trimtab/*/__init__.py")]
    assert packages
    assert [package for package in packages if f"trimtab.{package}" not in layers] == []


MAY_PRINT = ("trimtab/printable.py", "trimtab/ui/output.py", "trimtab/report.py", "trimtab/launch.py")
"""Where the builtin may be called: by `say`, for JSON and YAML, and by what is copied into training images alone."""


def test_whatever_is_printed_passes_the_function_that_cleans_it() -> None:
    """Tables and texts by `trimtab.ui.terminal`, lines by `trimtab.printable.say`: not by rich, print, click or sys."""
    found = [
        f"{relative(path)}:{line}: {what}"
        for path in ROOT.glob("operator/trimtab/**/*.py")
        for line, what in uncleaned(parsed(path))
        if relative(path) != "operator/trimtab/ui/terminal.py"
        and not (what == "print" and relative(path).endswith(MAY_PRINT))
    ]
    assert found == []


def uncleaned(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """What of a module prints, or makes text, by another way."""
    ours = {id(each) for node in ast.walk(tree) if is_for_types(node) for each in ast.walk(node)}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=imported) if module.split(".")[0] == "rich":
                forbidden = {"Console", "Text", "TextColumn", "print", "escape", "Spinner", "Markdown", "Syntax"}
                names_ = {alias.name for alias in imported} & forbidden
                yield from ((node.lineno, f"{module}.{name}") for name in names_ if id(node) not in ours)
            case ast.Call(func=ast.Name(id="print")):
                yield node.lineno, "print"
            case ast.Call(func=ast.Attribute(attr="echo" | "secho" | "from_markup" as name)):
                yield node.lineno, name
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="stdout" | "stderr"), attr="write")):
                yield node.lineno, "sys.std*.write"


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_the_check_of_what_is_printed_finds_what_it_should() -> None:
    written = "from rich.text import Text\nprint(1)\ntyper.echo(1)\nText.from_markup(x)\nsys.stderr.write(x)\n"
    assert len(list(uncleaned(ast.parse(written)))) == 5
