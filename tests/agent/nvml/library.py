"""libnvidia-ml.so.1 of our own, built from `libnvml.c`, and how to make the unmodified nvidia-ml-py load it.

In a process of its own: `environment(library, scenario)`, for LD_LIBRARY_PATH is read when a process starts.
In this process: `load(library)`; the loader then finds a library of that SONAME loaded already.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCENARIOS = HERE / "scenarios"
SONAME = "libnvidia-ml.so.1"
NEW_DRIVER, OLD_DRIVER = "580.95.05", "470.256.02"


def build(directory: Path, version: str = NEW_DRIVER) -> Path:
    """Compile the library into `directory`, and return it. Version 470 and older lack what came later."""
    directory.mkdir(parents=True, exist_ok=True)
    library, fresh = directory / SONAME, directory / f"{SONAME}.{os.getpid()}"
    command = ["cc", "-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
    command += [f"-Wl,-soname,{SONAME}", f'-DLIBRARY_VERSION="{version}"']
    command += ["-DOLD_DRIVER"] if int(version.split(".")[0]) <= 470 else []
    subprocess.run([*command, "-o", fresh, HERE / "libnvml.c"], check=True)
    fresh.rename(library)
    return library


def environment(library: Path, scenario: Path) -> dict[str, str]:
    """Variables for a process that is to load `library`, answering from `scenario`."""
    paths = [str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": ":".join(path for path in paths if path), "NVML_SCENARIO": str(scenario)}


def load(library: Path) -> ctypes.CDLL:
    """Load `library` into this process, under the name that nvidia-ml-py asks for."""
    return ctypes.CDLL(str(library))


class Scenario:
    """A scenario in a file of its own that a test changes while the library reads it."""

    def __init__(self, path: Path, source: str) -> None:
        self.path = path
        self.write((SCENARIOS / f"{source}.txt").read_text())

    def write(self, text: str) -> None:
        """Replace it at once: whoever reads meanwhile sees the old or the new one."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self.path)

    def set(self, section: str, **values: object) -> None:
        """Add or replace lines of `[section]`; dots of names are written as `__`. Values of None are taken out."""
        for name, value in values.items():
            key = name.replace("__", ".")
            head, title, body, tail = self._parts(section)
            body = re.sub(rf"(?m)^{re.escape(key)} = .*\n", "", body)
            self.write(head + title + ("" if value is None else f"{key} = {value}\n") + body + tail)

    def append(self, section: str, line: str) -> None:
        """Add a line at the end of `[section]`: an event, a process."""
        head, title, body, tail = self._parts(section)
        self.write(f"{head}{title}{body.rstrip()}\n{line}\n\n{tail}")

    def remove(self, section: str) -> None:
        """Take a section out, as if the card were pulled."""
        head, _, _, tail = self._parts(section)
        self.write(head + tail)

    def _parts(self, section: str) -> tuple[str, str, str, str]:
        title = f"[{section}]\n"
        text = self.path.read_text()
        if title not in text:
            return text + "\n", title, "", ""
        head, rest = text.split(title, 1)
        end = rest.find("\n[")
        return (head, title, rest, "") if end < 0 else (head, title, rest[: end + 1], rest[end + 1 :])
