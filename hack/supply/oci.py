"""Images as the OCI's image layout: a folder of blobs, named by their digests, and an index of what is in it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
EMPTY = "application/vnd.oci.empty.v1+json"
IN_TOTO = "application/vnd.in-toto+json"
KIND = "kind"
"""The annotation by which cosign finds, in a layout, the image and what is about it (`cosign save` writes it, too)."""
IMAGE, SIGNATURES, ATTESTATIONS = (f"dev.cosignproject.cosign/{each}" for each in ("image", "sigs", "atts"))
NAME = "org.opencontainers.image.ref.name"

Descriptor = dict[str, Any]


class LayoutError(Exception):
    """A layout is not what it says that it is."""


def encoded(value: Any) -> bytes:
    """JSON, the same bytes for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest(data: bytes) -> str:
    """`sha256:...` of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Layout:
    """A folder. Whatever is read from it is compared with its digest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = folder / "blobs" / "sha256"

    def begin(self) -> None:
        """Empty, whatever there was of a layout before. Raises OSError; FileExistsError where it is something else."""
        if self.folder.exists() and not (self.folder / "oci-layout").exists() and any(self.folder.iterdir()):
            raise FileExistsError(f"{self.folder} is there, and no image")
        self.blobs.mkdir(parents=True, exist_ok=True)
        for blob in self.blobs.iterdir():
            blob.unlink()
        (self.folder / "oci-layout").write_bytes(encoded({"imageLayoutVersion": "1.0.0"}))
        self.write_index([])

    def path(self, name: str) -> Path:
        """Where a blob with this digest lies. Raises LayoutError for what is no digest."""
        kind, _, value = name.partition(":")
        if kind != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
            raise LayoutError(f"no digest: {name!r}")
        return self.blobs / value

    def put(self, data: bytes, media_type: str, **more: Any) -> Descriptor:
        """A blob, and what says which it is."""
        name = digest(data)
        self.path(name).write_bytes(data)
        return {"mediaType": media_type, "digest": name, "size": len(data), **more}

    def adopt(self, file: Path, name: str, media_type: str) -> Descriptor:
        """The same for a file on the same file system, whose digest is known: it is moved."""
        os.replace(file, self.path(name))
        return {"mediaType": media_type, "digest": name, "size": self.path(name).stat().st_size}

    def get(self, descriptor: Descriptor) -> bytes:
        """Raises LayoutError where the blob is missing or another one."""
        try:
            data = self.path(descriptor["digest"]).read_bytes()
        except OSError as error:
            raise LayoutError(f"{descriptor['digest']} is missing: {error}") from None
        if digest(data) != descriptor["digest"] or len(data) != descriptor["size"]:
            raise LayoutError(f"{descriptor['digest']} has another content")
        return data

    def document(self, descriptor: Descriptor) -> dict[str, Any]:
        """The same, of JSON."""
        value = json.loads(self.get(descriptor))
        if not isinstance(value, dict):
            raise LayoutError(f"{descriptor['digest']} is no JSON object")
        return value

    def index(self) -> list[Descriptor]:
        """Raises LayoutError where there is none."""
        try:
            return list(json.loads((self.folder / "index.json").read_bytes())["manifests"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LayoutError(f"{self.folder} is no image: {error}") from None

    def write_index(self, manifests: list[Descriptor]) -> None:
        """Replace it."""
        value = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}
        (self.folder / "index.json").write_bytes(encoded(value))

    def list(self, descriptor: Descriptor, kind: str, name: str) -> None:
        """Into the index, in the place of what had this name."""
        kept = [each for each in self.index() if each.get("annotations", {}).get(NAME) != name]
        self.write_index([*kept, {**descriptor, "annotations": {KIND: kind, NAME: name}}])

    def find(self, kind: str) -> Descriptor | None:
        """The one of this kind. Raises LayoutError where there is more than one."""
        found = [each for each in self.index() if each.get("annotations", {}).get(KIND) == kind]
        if len(found) > 1:
            raise LayoutError(f"{self.folder} has {len(found)} of the kind {kind}")
        return found[0] if found else None

    def image(self) -> Descriptor:
        """The image itself. Raises LayoutError."""
        if (found := self.find(IMAGE)) is None:
            raise LayoutError(f"{self.folder} has no image")
        return found
