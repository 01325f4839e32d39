"""The root file system of an image without a distribution: `root.py VENV TARGET`, run with the base image's Python.

TARGET gets the virtual environment, the interpreter that it links to and its standard library, every shared library
that any of them is linked with, the CA certificates, and the few files of /etc that libc reads: no shell, no package
manager, nothing set-user-ID. Everything is compiled, since a read-only root cannot do so later. For scanners, the
Debian packages that files come from are listed in /var/lib/dpkg/status.d. It works for Debian's own Python and for that
of the official images. Standard library only.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

USER = 65532
UNUSED = {
    *("__pycache__", "test", "tests", "idle_test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"),
    *("pydoc_data", "site-packages", "dist-packages"),
}
"""Directories of the standard library that no process of ours imports. `site-packages` are those of the base image."""
UNUSED_OF_PACKAGES = {"__pycache__", "tests"}
UNUSED_CODE = ("kubernetes/client/api", "kubernetes/aio/client/api")
"""A class for every path of every API, imported on first use: 100 MB compiled. trimtab.kube has a client of its own."""
UNUSED_ENDINGS = (".a", ".pyi", ".h", ".pxd", ".pyx")
"""What compilers and editors read."""
DLOPENED = ("libgcc_s.so.1",)
"""glibc loads it when a thread is cancelled: nothing is linked with it."""
FOR_LIBC = ("/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/nsswitch.conf", "/etc/protocols", "/etc/services")
FOR_TLS = ("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/usr/lib/ssl", "/usr/share/ca-certificates")
ELF = b"\x7fELF"


class Root:
    """A directory that becomes `/`. Everything in it lies where it lies here, links included."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.taken: set[Path] = set()
        """Real paths of the files that were copied."""

    def add(self, path: Path) -> None:
        """A file, link or empty directory, with every link on the way to it. Raises OSError."""
        done, parts = Path("/"), list(path.parts[1:])
        while parts:
            here = done / parts.pop(0)
            there = self.target / here.relative_to("/")
            if here.name == "..":
                done = done.parent
            elif here.is_symlink():
                link = Path(os.readlink(here))
                if not there.is_symlink():
                    there.symlink_to(link)
                done = Path("/") if link.is_absolute() else done
                parts = [*(part for part in link.parts if part != "/"), *parts]
            elif here.is_dir():
                there.mkdir(exist_ok=True)
                done = here
            elif here not in self.taken:
                shutil.copy2(here, there)
                self.taken.add(here)

    def add_tree(self, top: Path, without: Iterable[str] = (), endings: tuple[str, ...] = ()) -> None:
        """A directory with all that is in it, but for directories that end with a path of `without`, and such files."""
        for path in walk(top, tuple(without)):
            if not path.name.endswith(endings):
                self.add(path)


def walk(top: Path, without: tuple[str, ...]) -> Iterator[Path]:
    """Everything below a directory, and itself. Links are not followed."""
    yield top
    for directory, folders, files in os.walk(top):
        ways = {folder: f"{directory}/{folder}" for folder in sorted(folders)}
        folders[:] = [folder for folder, way in ways.items() if not way.endswith(tuple(f"/{each}" for each in without))]
        yield from (Path(directory, name) for name in (*folders, *sorted(files)))


def is_elf(path: Path) -> bool:
    """Whether a file is a program or a shared library."""
    with path.open("rb") as file:
        return file.read(4) == ELF


def linked(paths: Iterable[Path]) -> Iterator[Path]:
    """What the loader would load for these files, and the loader. Raises CalledProcessError where `ldd` cannot say."""
    for path in paths:
        outcome = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True)
        for line in outcome.stdout.splitlines():
            words = line.split()
            found = words[2:3] if "=>" in words else words[:1]
            yield from (Path(os.path.normpath(word)) for word in found if word.startswith("/"))


def libraries(root: Root) -> None:
    """Until nothing new is found: libraries are linked with libraries."""
    cache = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout.splitlines()
    for line in cache:
        name, _, path = line.strip().partition(" => ")
        if name.partition(" ")[0] in DLOPENED:
            root.add(Path(path))
    asked: set[Path] = set()
    while new := {path for path in root.taken - asked if is_elf(path)}:
        asked |= new
        for library in set(linked(sorted(new))):
            root.add(library)


def accounts(root: Root) -> None:
    """Who runs, and where that may write: nowhere, but for what is mounted."""
    etc = root.target / "etc"
    (etc / "passwd").write_text(
        f"root:x:0:0:root:/root:/sbin/nologin\ntrimtab:x:{USER}:{USER}:trimtab:/var/lib/trimtab:/sbin/nologin\n"
    )
    (etc / "group").write_text(f"root:x:0:\ntrimtab:x:{USER}:\n")
    for directory, mode in (("tmp", 0o1777), ("root", 0o700), ("var/lib/trimtab", 0o755)):
        (root.target / directory).mkdir(parents=True, exist_ok=True)
        (root.target / directory).chmod(mode)


def packages(root: Root) -> None:
    """The Debian packages that files come from, one status file each, where scanners look for them."""
    names = {str(path) for path in root.taken}
    names |= {name.removeprefix("/usr") for name in names}  # dpkg knows libraries by the path before /usr was merged
    owners: set[str] = set()
    listed = sorted(names)
    for first in range(0, len(listed), 500):
        command = ["dpkg-query", "--search", *listed[first : first + 500]]
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)  # fails for files of nobody
        for line in outcome.stdout.splitlines():
            owner, separator, _ = line.partition(": ")
            owners |= {name.strip() for name in owner.split(",")} if separator and " by " not in owner else set()
    directory = root.target / "var" / "lib" / "dpkg" / "status.d"
    directory.mkdir(parents=True)
    for owner in sorted(owners):
        outcome = subprocess.run(["dpkg-query", "--status", owner], capture_output=True, text=True, check=True)
        (directory / owner.partition(":")[0]).write_text(outcome.stdout)


def compiled(root: Root, top: Path) -> None:
    """Bytecode that is taken as it is: nothing here is ever edited. Raises RuntimeError for what does not compile."""
    if not compileall.compile_dir(
        root.target / top.relative_to("/"),
        stripdir=str(root.target),
        prependdir="/",
        quiet=1,
        workers=os.cpu_count() or 1,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    ):
        raise RuntimeError(f"{top} has modules that do not compile")


def main() -> None:
    """Fill the target."""
    venv, root = Path(sys.argv[1]), Root(Path(sys.argv[2]))
    root.target.mkdir(parents=True, exist_ok=True)
    library = Path(sysconfig.get_path("stdlib"))
    unused = {*UNUSED, *(path.name for path in library.glob("config-*"))}
    root.add_tree(library, unused, UNUSED_ENDINGS)
    root.add_tree(venv, {*UNUSED_OF_PACKAGES, *UNUSED_CODE}, UNUSED_ENDINGS)
    root.add(venv / "bin" / "python")
    for path in map(Path, (*FOR_LIBC, *FOR_TLS)):
        if path.is_dir():
            root.add_tree(path)
        elif path.exists():
            root.add(path)
    libraries(root)
    accounts(root)
    packages(root)
    for top in (library, venv):
        compiled(root, top)
    subprocess.run(["ldconfig", "-r", str(root.target)], check=True)


if __name__ == "__main__":
    main()
