"""What is said about an image: what is in it (CycloneDX) and what it was built from (SLSA), as in-toto statements.

They name the image by its digest, so they are about nothing else. Beside it they lie as artifacts that refer to it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hack.requirements import LOCK, PYPROJECT
from hack.supply.oci import EMPTY, IN_TOTO, MANIFEST, NAME, Descriptor, Layout, LayoutError, digest, encoded

STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
BILL = "https://cyclonedx.org/bom"
BUILD_TYPE = "https://trimtab.dev/build/dockerfile/v1"
BUILDER = "https://trimtab.dev/builders/checkout/v1"
"""A checkout on somebody's machine: who it was is said by the key that signs."""
BILLS = "usr/share/sbom/"


def statement(name: str, image: Descriptor, kind: str, predicate: Any) -> dict[str, Any]:
    """`predicate` about the image with this digest."""
    subject = {"name": name, "digest": {"sha256": image["digest"].partition(":")[2]}}
    return {"_type": STATEMENT, "subject": [subject], "predicateType": kind, "predicate": predicate}


def bill_of(layout: Layout) -> dict[str, Any]:
    """The bill of materials that the image carries. Raises LayoutError where there is not one."""
    found: list[dict[str, Any]] = []
    for each in layout.document(layout.image())["layers"]:
        with tarfile.open(layout.path(each["digest"])) as tar:
            for member in tar:
                if member.name.startswith(BILLS) and member.name.endswith(".cdx.json"):
                    file = tar.extractfile(member)
                    found += [json.loads(file.read())] if file else []
    if len(found) != 1:
        raise LayoutError(f"the image has {len(found)} bills of materials in /{BILLS}")
    return found[0]


def provenance(target: str, base: str, arguments: Mapping[str, str], epoch: int) -> dict[str, Any]:
    """What was built from what: all that a second build of the same needs. Raises CalledProcessError without git."""
    root = PYPROJECT.parent
    materials = [
        {"uri": "git+checkout", "digest": {"gitCommit": _git(root, "rev-parse", "HEAD")}},
        {"uri": "file:hack/constraints.txt", "digest": _sha256(LOCK)},
        {"uri": "file:Dockerfile", "digest": _sha256(root / "Dockerfile")},
        _base(base),
    ]
    built = {"target": target, "buildArgs": dict(arguments), "sourceDateEpoch": epoch}
    changed = _git(root, "status", "--porcelain", "--untracked-files=no") != ""
    definition = {
        "buildType": BUILD_TYPE,
        "externalParameters": built,
        "internalParameters": {"changedSinceCommit": changed},
        "resolvedDependencies": materials,
    }
    return {"buildDefinition": definition, "runDetails": {"builder": {"id": BUILDER}}}


def _base(base: str) -> dict[str, Any]:
    name, _, pinned = base.partition("@sha256:")
    return {"uri": f"docker:{name}", "digest": {"sha256": pinned}} if pinned else {"uri": f"docker:{name}"}


def _sha256(path: Path) -> dict[str, str]:
    return {"sha256": digest(path.read_bytes()).partition(":")[2]}


def _git(root: Path, *arguments: str) -> str:
    # Whatever repository the caller's own environment names (a hook's, for one) is not asked.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=own).stdout.strip()


def beside(layout: Layout, said: dict[str, Any]) -> Descriptor:
    """A statement as an artifact that refers to the image, so that registries list it as one of its referrers."""
    kind = said["predicateType"]
    blob = layout.put(encoded(said), IN_TOTO, annotations={"in-toto.io/predicate-type": kind})
    image = {key: layout.image()[key] for key in ("mediaType", "digest", "size")}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": IN_TOTO,
        "config": layout.put(b"{}", EMPTY),
        "layers": [blob],
        "subject": image,
        "annotations": {"in-toto.io/predicate-type": kind},
    }
    described = layout.put(encoded(manifest), MANIFEST, artifactType=IN_TOTO)
    layout.list(described, "in-toto", f"in-toto-{kind.rpartition('//')[2].replace('/', '-')}")
    return described


def statements(layout: Layout) -> list[dict[str, Any]]:
    """Those beside the image. Raises LayoutError for one that is about another image."""
    image = layout.image()["digest"]
    found: list[dict[str, Any]] = []
    for each in layout.index():
        if not each.get("annotations", {}).get(NAME, "").startswith("in-toto-"):
            continue
        manifest = layout.document(each)
        for blob in manifest["layers"]:
            said = layout.document(blob)
            subjects = {f"sha256:{subject['digest']['sha256']}" for subject in said["subject"]}
            if manifest["subject"]["digest"] != image or subjects != {image}:
                raise LayoutError(f"a statement is about {', '.join(sorted(subjects))}, not about this image, {image}")
            found.append(said)
    return found
