"""What a result was computed by: the source that takes part in it, its data and weights, and the packages that compute.

Source takes part if it is imported, from the top of a module or within a function, by what carries the run out or by
its policy, directly or through others. Nothing else of this package can change a run.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from trimtab_lab.evaluation import controls
from trimtab_lab.evaluation.contestant import contestant
from trimtab_policy.learned.store import ENV_FOLDER

_LAB = Path(__file__).resolve().parents[1]
_PACKAGE = Path(str(files("trimtab_policy")))
_ROOTS = {"trimtab_lab": _LAB.parent, "trimtab_policy": _PACKAGE.parent}
"""Package whose source counts -> the folder that it is in."""
_COMPUTE = ("numpy", "scipy", "highspy", "clarabel", "numba")
"""Packages whose next version may give other numbers."""
_RUN = "trimtab_lab.evaluation.run_scenario"


def of_run(policy: str) -> bytes:
    """Digest of what runs under that policy, named as in a scenario, are computed by."""
    name = contestant(policy).name
    return _digest(_RUN, controls.module(name), weights=f"{name}.*") + _versions()


def of_package() -> bytes:
    """Digest of the whole package, whatever takes part."""
    return _digest(weights="*") + _versions()


def imported(*modules: str) -> frozenset[Path]:
    """Files of these modules of the package and of all that they import."""
    waiting, seen = list(modules), set[Path]()
    while waiting:
        name = waiting.pop()
        if (path := _file(name)) and path not in seen:
            seen.add(path)
            waiting += _imports(path)
            waiting += [name.rpartition(".")[0]]
    return frozenset(seen)


def _file(module: str) -> Path | None:
    """None for what is no module of this package."""
    root = _ROOTS.get(module.partition(".")[0])
    if root is None:
        return None
    base = root.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


@lru_cache(maxsize=1024)
def _imports(path: Path) -> tuple[str, ...]:
    return tuple(_named(ast.walk(ast.parse(path.read_bytes()))))


def _named(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Modules of import statements; what is imported from a package may be one, too."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@lru_cache(maxsize=64)
def _digest(*modules: str, weights: str) -> bytes:
    """Without modules: all of them."""
    package = _PACKAGE
    source = imported(*modules) if modules else (*package.rglob("*.py"), *_LAB.rglob("*.py"))
    own = Path(os.environ.get(ENV_FOLDER) or package / "weights")
    data = (*(package / "data").rglob("*"), *(_LAB / "data").rglob("*"))
    read = {*source, *data, *(package / "weights").glob(weights), *own.glob(weights)}
    digest = hashlib.sha256()
    for file in sorted(path for path in read if path.is_file()):
        digest.update(os.path.relpath(file, package).encode() + file.read_bytes())
    return digest.digest()


def _versions() -> bytes:
    return " ".join([platform.python_version(), *(f"{name}-{version(name)}" for name in _COMPUTE)]).encode()
