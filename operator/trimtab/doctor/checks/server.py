"""The API server: does it answer, is its version one that we know, and does it know our API as this version has it?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trimtab import __version__, names
from trimtab.api.schema import definitions
from trimtab.doctor.findings import Finding, Reason, error, some, warning, well
from trimtab.doctor.inventory import Crd, Seen, Unknown, known

OLDEST, NEWEST = (1, 32), (1, 37)
"""Tokens that name the agent's node are from the first on; the last is the newest one that was tried or read up."""
INSTALL = "kubectl apply --server-side --force-conflicts -f manifests/crds"
TOLD = 4
"""Differences of a schema that are told one by one."""
SAID_ONLY = ("description",)
"""Keys of a schema that change nothing."""


def reachable(seen: Seen) -> Iterator[Finding]:
    """Whether it answers; when it does not, nothing else is known."""
    if isinstance(seen.version, Unknown):
        fix = (
            "check that the cluster runs, KUBECONFIG, --kubeconfig and --context, and whether `kubectl version` answers"
        )
        yield error(Reason.UNREACHABLE, f"the API server does not answer: {seen.version.why}", fix)
        return
    yield well(f"{seen.server} answers")


def version(seen: Seen) -> Iterator[Finding]:
    """Whether its version is one that we know."""
    told = known(seen.version)
    major, minor = (int(re.sub(r"\D.*", "", number) or 0) for number in (told.major, told.minor))
    supported = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    if (major, minor) < OLDEST:
        message = f"Kubernetes {told.git_version} is older than what Trimtab is made for ({supported})"
        yield error(Reason.SERVER_TOO_OLD, message, f"upgrade the control plane to {OLDEST[0]}.{OLDEST[1]} or newer")
    elif (major, minor) > NEWEST:
        message = f"Kubernetes {told.git_version} is newer than what Trimtab {__version__} was tried with ({supported})"
        yield warning(Reason.SERVER_UNTESTED, message, "upgrade Trimtab, or try a job before you rely on it")
    else:
        yield well(f"Kubernetes {told.git_version}")


def crds(seen: Seen) -> Iterator[Finding]:
    """Whether our kinds are installed, served, and have the schema of this version."""
    found, wrong = known(seen.crds), False
    for name, ours in definitions().items():
        for finding in _crd(name, ours, found.get(name)):
            wrong = True
            yield finding
    if not wrong:
        yield well(f"{len(found)} kinds of {names.API_VERSION} as Trimtab {__version__} has them")


def _crd(name: str, ours: Mapping[str, Any], theirs: Crd | None) -> Iterator[Finding]:
    about = (f"CustomResourceDefinition/{name}",)
    if theirs is None:
        yield error(Reason.CRD_MISSING, f"{name} is not installed", INSTALL, about)
        return
    told = {each.type: each for each in theirs.status.conditions}
    if "Established" not in told or told["Established"].status != "True":
        refused = next(
            (each.message for each in told.values() if each.status == "False" and each.message), "no reason told"
        )
        fix = f"kubectl describe crd {name}; another definition of the same kind may be in the way"
        yield error(Reason.CRD_NOT_ESTABLISHED, f"{name} is not established: {refused}", fix, about)
    version = next((each for each in theirs.spec.versions if each.name == names.VERSION), None)
    if version is None or not version.served:
        served = some([each.name for each in theirs.spec.versions if each.served]) or "none"
        message = f"{name} does not serve {names.VERSION} (it serves {served})"
        yield error(Reason.CRD_NOT_SERVED, message, INSTALL, about)
        return
    (wanted,) = ours["spec"]["versions"]
    missing, other = differences(wanted["schema"]["openAPIV3Schema"], version.schema.get("openAPIV3Schema") or {})
    if "status" not in version.subresources:
        other = ["no subresource status", *other]
    if ours["spec"]["scope"] != theirs.spec.scope:
        other = [f"scope {theirs.spec.scope}", *other]
    if missing:
        message = f"{name} lacks {some(missing, TOLD)}: the API server drops what is written there without a word"
        yield error(Reason.CRD_PRUNES_FIELDS, message, INSTALL, about)
    if other:
        message = f"{name} differs from what Trimtab {__version__} has: {some(other, TOLD)}"
        fix = f"{INSTALL}; or, if the cluster has a newer Trimtab, use that version of this command"
        yield warning(Reason.CRD_DIFFERS, message, fix, about)


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Fields of our schema that theirs lacks, and everything else that differs, both as `spec.model.preset`.

    A field that lacks is told once, not with all that is below it.
    """
    missing: list[str] = []
    other: list[str] = []
    _compare(ours, theirs, "", missing, other)
    return missing, other


def _compare(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str, missing: list[str], other: list[str]
) -> None:
    mine, others = ours.get("properties", {}), theirs.get("properties", {})
    keeps = theirs.get("x-kubernetes-preserve-unknown-fields") is True
    for name in sorted(mine.keys() - others.keys()):
        (other if keeps else missing).append(_join(path, name))
    other += [f"{_join(path, name)} is not known here" for name in sorted(others.keys() - mine.keys())]
    for name in sorted(mine.keys() & others.keys()):
        _compare(mine[name], others[name], _join(path, name), missing, other)
    for key, step in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(ours.get(key), dict) and isinstance(theirs.get(key), dict):
            _compare(ours[key], theirs[key], path + step, missing, other)
    walked = (
        "properties",
        *SAID_ONLY,
        *(key for key in ("items", "additionalProperties") if key in ours and key in theirs),
    )
    for key in sorted((ours.keys() | theirs.keys()) - set(walked)):
        if _plain(ours.get(key)) != _plain(theirs.get(key)):
            other.append(f"{path or 'the object'}: {_words(key)}")


def _plain(value: Any) -> Any:
    """Without what the API server leaves out, or says in another order."""
    if isinstance(value, dict):
        return {key: kept for key, item in value.items() if (kept := _plain(item)) not in (None, [], "")}
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return sorted(items) if items and all(isinstance(item, str) for item in items) else items
    return None if value is False else value


def _words(key: str) -> str:
    return "validation rules" if key == "x-kubernetes-validations" else key.removeprefix("x-kubernetes-")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
