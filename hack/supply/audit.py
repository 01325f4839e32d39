"""`hack/audit`: known vulnerabilities of what is locked, and what the static analyser says of our own code.

    hack/audit [NAME...]                    pip-audit asks the package index about everything locked, or about these
    hack/audit --advisories PATH [NAME...]  from saved advisories (OSV: a file, a folder, or the zip of all of PyPI)

Ends with 0 where there is nothing, 1 with findings, and 2 where pip-audit could not ask: that is not taken for "none".
An advisory that cannot hurt here is listed in pyproject.toml, [tool.trimtab.audit.accepted], with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hack.requirements import FUZZ, LOCK, PYPROJECT, Locked, normal, read_lock
from hack.supply import advisories

BIN = Path(sys.executable).parent


class CannotAsk(Exception):
    """pip-audit has no answer about everything that it was asked about."""


def ask(locked: Collection[Locked], osv: str | None = None) -> list[dict[str, Any]]:
    """pip-audit's answer: a dict of name, version and `vulns` for each. `osv` is the address to ask instead.

    Raises CannotAsk.
    """
    firsts = list({each.name: each for each in locked}.values())
    if others := [each for each in locked if each not in firsts]:  # it takes one version of each at a time
        return ask(firsts, osv) + ask(others, osv)
    with tempfile.TemporaryDirectory(prefix="trimtab-audit-") as folder:
        lines = Path(folder, "lock.txt")
        # A marker would leave out what this machine does not need: all are asked about.
        lines.write_text("".join(_unconditional(each) for each in locked), encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(lines), "--require-hashes", "--disable-pip"]
        command += ["--format", "json", "--progress-spinner", "off"]
        command += ["--vulnerability-service", "osv", "--osv-url", osv, "--cache-dir", folder] if osv else []
        local = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"} if osv else None
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=local)
    try:
        answers: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        raise CannotAsk(done.stderr.strip().rpartition("\n")[2] or f"pip-audit ended with {done.returncode}") from None
    answered = {(normal(each["name"]), each.get("version")) for each in answers if "vulns" in each}
    if missing := sorted({each.name for each in locked if (each.name, each.version) not in answered}):
        # It ends with 0 and "no known vulnerabilities" then: what it could not ask about, it leaves out.
        why = next((each["skip_reason"] for each in answers if "skip_reason" in each), "pip-audit does not say why")
        raise CannotAsk(f"no answer about {', '.join(missing[:5])}{' and others' * (len(missing) > 5)}: {why}")
    return answers


def _unconditional(locked: Locked) -> str:
    return f"{locked.name}=={locked.version} " + " ".join(f"--hash={each}" for each in locked.hashes) + "\n"


def findings(answers: Collection[Mapping[str, Any]], accepted: Mapping[str, str]) -> tuple[list[str], set[str]]:
    """A line for each vulnerability, and those of the accepted IDs that there still are."""
    lines: list[str] = []
    met: set[str] = set()
    for each in answers:
        for vuln in each["vulns"]:
            known = {vuln["id"], *vuln.get("aliases", [])}
            if reasons := known & set(accepted):
                met |= reasons
                continue
            fixed = ", ".join(vuln.get("fix_versions", [])) or "no version"
            lines.append(
                f"{each['name']} {each['version']}: {vuln['id']}, fixed in {fixed}: {vuln['description'][:100]}"
            )
    return lines, met


def vulnerabilities(names: Collection[str], saved: Path | None) -> int:
    """Print what there is. Returns the exit code."""
    locked = [each for lock in (LOCK, FUZZ) for each in read_lock(lock.read_text(encoding="utf-8"))]
    if unknown := {normal(name) for name in names} - {each.name for each in locked}:
        print(f"error: not in hack/constraints.txt: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    wanted = [each for each in locked if not names or each.name in {normal(name) for name in names}]
    accepted = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["trimtab"]["audit"]["accepted"]
    try:
        if saved is None:
            answers = ask(wanted)
        else:
            with advisories.served(advisories.read(saved)) as address:
                answers = ask(wanted, address)
    except (CannotAsk, OSError, ValueError) as error:
        print(f"error: could not ask about vulnerabilities: {error}", file=sys.stderr)
        return 2
    lines, met = findings(answers, accepted)
    for line in lines:
        print(line)
    for known, why in accepted.items():
        print(f"accepted: {known}: {why}" if known in met else f"accepted for nothing, can go: {known}")
    print(f"{len(wanted)} distributions, {len(lines)} vulnerabilities", file=sys.stderr)
    return 1 if lines else 0


def analysis() -> int:
    """What ruff says, with its rules on security (those of bandit) among others. Returns the exit code."""
    command = [str(BIN / "ruff"), "check", "--no-fix", "--quiet"]
    return 1 if subprocess.run(command, cwd=PYPROJECT.parent, check=False).returncode else 0


def main() -> int:
    """Both, whatever the first says; the graver code."""
    parser = argparse.ArgumentParser(
        prog="hack/audit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--advisories", type=Path, metavar="PATH")
    given = parser.parse_args()
    return max(vulnerabilities(given.names, given.advisories), analysis())


if __name__ == "__main__":
    sys.exit(main())
