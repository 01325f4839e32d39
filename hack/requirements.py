"""What to install, for `pip install --require-hashes`: the lines of hack/constraints.txt with these and all they need.

    requirements.py [EXTRAS] [--with NAMES] [--without NAMES] [--groups NAMES]   the project's, and those of the extras
    requirements.py --only NAMES                                                 some, wherever pyproject.toml has them
    requirements.py --only-groups NAMES                                          groups of [dependency-groups] alone

With `--leave-out PREFIXES`, distributions whose names begin so are not listed, whoever needs them.

What is wanted stands in pyproject.toml, versions and hashes in the lock, so nothing is written down twice. hack/lock
makes the lock anew; its comments (`# via`) say who needs what, and so what has to be installed. Standard library only.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HACK = Path(__file__).resolve().parent
PYPROJECT = HACK.parent / "pyproject.toml"
LOCK = HACK / "constraints.txt"
FUZZ = HACK / "fuzz.txt"
"""The lock of what `hack/fuzz` needs beside it, which not every machine can have."""


@dataclass
class Locked:
    """A distribution of the lock. One that has different versions for different Pythons has several."""

    name: str
    """Normalised."""
    version: str
    text: str
    """Its lines for pip: version, marker, hashes."""
    hashes: list[str] = field(default_factory=list)
    """Of all files of the release: `sha256:...`."""
    parents: list[str] = field(default_factory=list)
    """Normalised names of those that need it; pyproject.toml is not among them."""


def normal(name: str) -> str:
    """`Foo_Bar.baz` -> `foo-bar-baz`, as the index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """`Foo_Bar[x]>=1` -> `foo-bar`, the normalised name. Raises ValueError where there is none."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    if not found:
        raise ValueError(f"no requirement: {requirement!r}")
    return normal(found[0])


def read_lock(text: str) -> list[Locked]:
    """The lock, as `uv pip compile` writes it. Raises ValueError for a line that is none of its."""
    locked: list[Locked] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or line.startswith("#"):
            continue
        if head := re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;]+)", line):
            locked.append(Locked(normal(head[1]), head[2], f"{line}\n"))
        elif locked and (digest := re.match(r"--hash=(sha256:[0-9a-f]{64})(?: \\)?$", bare)):
            locked[-1].text += f"{line}\n"
            locked[-1].hashes.append(digest[1])
        elif locked and (via := re.match(r"#\s+(?:via\s+)?([A-Za-z0-9][A-Za-z0-9._-]*)$", bare)):
            locked[-1].parents += [normal(via[1])] if via[1] != "via" else []
        elif not (locked and bare.startswith("#")):
            raise ValueError(f"line {number} of the lock is no requirement and no hash: {bare!r}")
    return locked


def needed(roots: Iterable[str], locked: Collection[Locked]) -> list[Locked]:
    """What has to be installed for these names, themselves included. Raises ValueError for one that is not locked."""
    wanted: set[str] = set()
    more = set(roots)
    if unknown := more - {each.name for each in locked}:
        raise ValueError(f"not in hack/constraints.txt: {', '.join(sorted(unknown))}; run hack/lock")
    while more:
        wanted |= more
        more = {each.name for each in locked if not wanted.isdisjoint(each.parents)} - wanted
    return [each for each in locked if each.name in wanted]


def _pyproject() -> dict[str, Any]:
    return tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))


def requirements(extras: Collection[str], without: Collection[str] = ()) -> list[str]:
    """Of the project and these extras, but for the names that are done without. Raises KeyError, ValueError."""
    project = _pyproject()["project"]
    every = list(project["dependencies"])
    for extra in extras:
        every += project["optional-dependencies"][extra]
    unknown = set(without) - {name_of(requirement) for requirement in every}
    if unknown:
        raise ValueError(f"nothing requires {', '.join(sorted(unknown))}: leave it out of --without")
    return sorted({requirement for requirement in every if name_of(requirement) not in without})


def only(names: Collection[str]) -> list[str]:
    """The requirements with these names, wherever pyproject.toml has them. Raises ValueError where it has none."""
    project = _pyproject()["project"]
    every = {name_of(each): each for part in project["optional-dependencies"].values() for each in part}
    every |= {name_of(each): each for each in project["dependencies"]}
    if unknown := set(names) - set(every):
        raise ValueError(f"pyproject.toml requires no {', '.join(sorted(unknown))}")
    return [every[name] for name in sorted(names)]


def of_groups(names: Collection[str]) -> list[str]:
    """The requirements of these groups. Raises KeyError."""
    groups = _pyproject()["dependency-groups"]
    return [each for name in names for each in groups[name]]


def main() -> None:
    """Print the lines; what is unknown ends it with an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("extras", nargs="?", default="")
    parser.add_argument("--with", default="", dest="more")
    for name in ("--without", "--groups", "--only", "--only-groups", "--leave-out"):
        parser.add_argument(name, default="")
    given = parser.parse_args()
    listed = {name: [each for each in getattr(given, name).split(",") if each] for name in vars(given)}
    if listed["only"] or listed["only_groups"]:
        wanted = [*only(listed["only"]), *of_groups(listed["only_groups"])]
    else:
        wanted = requirements(listed["extras"], listed["without"])
        wanted += [*only(listed["more"]), *of_groups(listed["groups"])]
    locked = read_lock(LOCK.read_text(encoding="utf-8"))
    try:
        lines = needed(map(name_of, wanted), locked)
    except ValueError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write("".join(each.text for each in lines if not each.name.startswith(tuple(listed["leave_out"]))))


if __name__ == "__main__":
    main()
