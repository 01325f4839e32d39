"""`hack/release`: images that anybody can build again, with what is in them and what they were built from, signed.

    hack/release build [--twice] [TARGET...]     into dist/TARGET (operator and agent), and print the digests
    hack/release notes                           what docs/release-notes.md says of this version
    hack/release sign --key KEY.pem --name NAME FOLDER...
                                                 the images and the statements about them; NAME is what they will be
                                                 pulled by, without a tag
    hack/release verify --key KEY.pub [--name NAME] FOLDER...

A folder is an image of the OCI's layout, which cosign, skopeo, crane and oras read: `cosign load` pushes it with its
signatures, `tar -C FOLDER -c . | docker load` needs no registry. The key is an ECDSA key on P-256; its password, if it
has one, is taken from $COSIGN_PASSWORD. `--twice` builds again with nothing kept, and ends with 1 unless both digests
are the same. A version that has no notes is not built: whoever upgrades has to know what changes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

from hack.requirements import PYPROJECT
from hack.supply import attest, normal, sign
from hack.supply.oci import Layout, LayoutError

ROOT = PYPROJECT.parent
DIST = ROOT / "dist"
IMAGES = ROOT / "hack" / "kind" / "images"
NOTES = ROOT / "docs" / "release-notes.md"
TARGETS = ("operator", "agent")


class NoNotesError(Exception):
    """The release notes say nothing of this version."""


EXPECTED = (sign.KeyProblem, sign.Refused, LayoutError, NoNotesError)
OF_IMAGES = (subprocess.CalledProcessError, OSError, ValueError, tarfile.TarError)


def version() -> str:
    """pyproject.toml's."""
    return str(tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["version"])


def notes(page: str, of: str) -> str:
    """Markdown below the heading that begins with `## VERSION`, up to the next version. Raises NoNotesError."""
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    for heading, _, text in (section.partition("\n") for section in sections):
        if heading.split()[:1] == [of] and text.strip():
            return text.strip()
    raise NoNotesError(
        f"{NOTES.relative_to(ROOT)} says nothing below `## {of}`: write there what is new in this version, and what "
        "whoever upgrades has to do"
    )


def epoch() -> int:
    """Unix seconds that everything is dated: $SOURCE_DATE_EPOCH, else when the last commit was made."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    return int(_output("git", "-C", str(ROOT), "log", "-1", "--format=%ct"))


def _output(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    return done.stdout.strip()


def _base() -> str:
    """The base image that hack/kind/images takes, with a digest: its own, or of what is in one that was made here."""
    base = _output(str(IMAGES), "--base")
    if "@sha256:" in base:
        return base
    [content] = json.loads(_output("docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", base))
    return f"{base}@{content}"


def build(target: str, fresh: bool = False) -> str:
    """One image into dist/TARGET. Returns its digest. Raises CalledProcessError, OSError, ValueError."""
    name, dated = _output(str(IMAGES), target, **({"NO_CACHE": "1"} if fresh else {})), epoch()
    layout = Layout(DIST / target)
    layout.begin()
    with tempfile.TemporaryDirectory(prefix=".saved-", dir=DIST) as folder:
        saved = Path(folder)
        _output("docker", "save", "--output", str(saved / "image.tar"), name)
        # GNU tar leaves nothing outside of the folder; tarfile has no such filter in Debian 12's Python 3.11.2
        _output("tar", "--extract", "--file", str(saved / "image.tar"), "--directory", str(saved))
        image = normal.image(saved, layout, version(), dated)
    normal.for_docker(layout, name)
    said = name.partition(":")[0]
    attest.beside(layout, attest.statement(said, image, attest.BILL, attest.bill_of(layout)))
    built = attest.provenance(target, _base(), {"VERSION": version()}, dated)
    attest.beside(layout, attest.statement(said, image, attest.PROVENANCE, built))
    return str(image["digest"])


def build_all(targets: list[str], twice: bool) -> int:
    """Print a digest and a folder a line. Returns the exit code."""
    differing = 0
    for target in targets:
        digest = build(target)
        if twice and (again := build(target, fresh=True)) != digest:
            print(f"error: {target} is {digest} the first time, and {again} the second", file=sys.stderr)
            differing = 1
        print(digest, DIST / target)
    return differing


def sign_all(folders: list[Path], key: Path, name: str) -> None:
    """Raises KeyProblem, LayoutError."""
    private = sign.private_key(key, os.environ.get("COSIGN_PASSWORD"))
    for folder in folders:
        sign.sign(Layout(folder), private, name)


def verify_all(folders: list[Path], key: Path, name: str | None) -> None:
    """Print what is signed. Raises KeyProblem, LayoutError, Refused."""
    public = sign.public_key(key)
    for folder in folders:
        layout = Layout(folder)
        said = sign.verify(layout, public, name)
        print(layout.image()["digest"], folder)
        for each in said:
            print(f"  attested: {each['predicateType']}")


def arguments() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="hack/release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("build")
    made.add_argument("targets", nargs="*", metavar="TARGET", default=list(TARGETS))
    made.add_argument("--twice", action="store_true")
    commands.add_parser("notes")
    for command in ("sign", "verify"):
        each = commands.add_parser(command)
        each.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
        each.add_argument("--key", type=Path, required=True)
        each.add_argument("--name", required=command == "sign")
    return parser


def main() -> int:
    """Returns the exit code."""
    given = arguments().parse_args()
    try:
        if given.command == "sign":
            sign_all(given.folders, given.key, given.name)
        elif given.command == "verify":
            verify_all(given.folders, given.key, given.name)
        else:
            told = notes(NOTES.read_text(encoding="utf-8"), version())
            if given.command == "build":
                DIST.mkdir(exist_ok=True)
                return build_all(given.targets, given.twice)
            print(told)
    except (*EXPECTED, *OF_IMAGES) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
