"""Requirements of an image, a line each: `requirements.py EXTRAS [--with NAMES] [--without NAMES]`, or `--only NAMES`.

They are those of pyproject.toml, its own dependencies and those of the extras, so that nothing is written down twice.
Versions come from hack/constraints.txt, which pip is given beside them. Standard library only.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Collection
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def name_of(requirement: str) -> str:
    """`Foo_Bar[x]>=1` -> `foo-bar`, the normalised name. Raises ValueError where there is none."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    if not found:
        raise ValueError(f"no requirement: {requirement!r}")
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def requirements(extras: Collection[str], without: Collection[str] = ()) -> list[str]:
    """Of the project and these extras, but for the names that the image does without. Raises KeyError, ValueError."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    every = list(project["dependencies"])
    for extra in extras:
        every += project["optional-dependencies"][extra]
    unknown = set(without) - {name_of(requirement) for requirement in every}
    if unknown:
        raise ValueError(f"nothing requires {', '.join(sorted(unknown))}: leave it out of --without")
    return sorted({requirement for requirement in every if name_of(requirement) not in without})


def only(names: Collection[str]) -> list[str]:
    """The requirements with these names, wherever pyproject.toml has them. Raises ValueError where it has none."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    every = {name_of(each): each for part in project["optional-dependencies"].values() for each in part}
    every |= {name_of(each): each for each in project["dependencies"]}
    if unknown := set(names) - set(every):
        raise ValueError(f"pyproject.toml requires no {', '.join(sorted(unknown))}")
    return [every[name] for name in sorted(names)]


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("extras", nargs="?", default="")
    parser.add_argument("--with", default="", dest="more")
    parser.add_argument("--without", default="")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    listed = {name: [each for each in getattr(given, name).split(",") if each] for name in vars(given)}
    wanted = only(listed["only"] or listed["more"])
    print("\n".join(wanted if listed["only"] else [*requirements(listed["extras"], listed["without"]), *wanted]))


if __name__ == "__main__":
    main()
