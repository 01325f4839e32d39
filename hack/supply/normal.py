"""An image of `docker save`, without what differs from build to build: two builds of the same thing have one digest.

Files of a layer are sorted and have one date; the configuration keeps what the OCI knows, without a history. What is in
the files is the build's own business (hack/image/root.py: bytecode is checked by nothing, so it has no dates either).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast

from hack.supply.oci import CONFIG, IMAGE, LAYER, MANIFEST, Descriptor, Layout, encoded

KEPT = ("Cmd", "Entrypoint", "Env", "ExposedPorts", "Labels", "StopSignal", "User", "Volumes", "WorkingDir")
"""Of a configuration; the rest says on which container it was built."""
LEVEL = 6


class Hashing:
    """A file to write to that keeps the digest of what was written."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        self._file = file
        self._sum = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """All of it."""
        self._sum.update(data)
        self._file.write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back here."""

    @property
    def digest(self) -> str:
        """`sha256:...` of everything so far."""
        return f"sha256:{self._sum.hexdigest()}"


def image(saved: Path, layout: Layout, name: str, epoch: int) -> Descriptor:
    """The only image of an unpacked `docker save`, into a layout under a name, dated `epoch` (Unix seconds).

    Raises OSError, ValueError.
    """
    [entry] = json.loads((saved / "manifest.json").read_bytes())
    told = json.loads((saved / entry["Config"]).read_bytes())
    layers: list[Descriptor] = []
    contents: list[str] = []
    for each in entry["Layers"]:
        descriptor, content = layer(saved / each, layout, epoch)
        layers.append(descriptor)
        contents.append(content)
    config = layout.put(encoded(configuration(told, contents, epoch)), CONFIG)
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
    described = layout.put(encoded(manifest), MANIFEST)
    layout.list(described, IMAGE, name)
    return described


def for_docker(layout: Layout, tag: str) -> None:
    """What `docker load` wants beside it: `tar -C FOLDER -c . | docker load`."""
    manifest = layout.document(layout.image())
    paths = [f"blobs/sha256/{each['digest'].partition(':')[2]}" for each in (manifest["config"], *manifest["layers"])]
    entry = {"Config": paths[0], "RepoTags": [tag], "Layers": paths[1:]}
    (layout.folder / "manifest.json").write_bytes(encoded([entry]))


def configuration(told: dict[str, Any], contents: list[str], epoch: int) -> dict[str, Any]:
    """What an image is to run as, with the digests of its unpacked layers."""
    kept = {key: told["config"][key] for key in KEPT if told["config"].get(key)}
    platform = {key: told[key] for key in ("architecture", "os", "variant") if told.get(key)}
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**platform, "created": created, "config": kept, "rootfs": {"type": "layers", "diff_ids": contents}}


def layer(saved: Path, layout: Layout, epoch: int) -> tuple[Descriptor, str]:
    """A layer in its normal form, and the digest of what it unpacks to."""
    written = layout.folder / "layer.partial"
    with written.open("wb") as file:
        packed = Hashing(file)
        # Neither asks for more than `write`, whatever its type says.
        stream = gzip.GzipFile(filename="", mode="wb", fileobj=cast(Any, packed), mtime=0, compresslevel=LEVEL)
        with stream as compressed:
            content = Hashing(compressed)
            with tarfile.open(saved) as source:
                _rewrite(source, content, epoch)
    return layout.adopt(written, packed.digest, LAYER), content.digest


def _rewrite(source: tarfile.TarFile, target: Hashing, epoch: int) -> None:
    members = {_path(member.name): member for member in source.getmembers() if _path(member.name)}
    firsts: dict[str, str] = {}
    """Of a file with several names, the name that was written first, by the name that carries its content."""
    with tarfile.open(mode="w|", fileobj=cast(Any, target), format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(members):
            member = members[path]
            carrier = path
            while members[carrier].islnk():
                carrier = _path(members[carrier].linkname)
            content = members[carrier]
            written = _plain(member, path, epoch)
            if content.isreg() and carrier in firsts:
                written.type, written.linkname, written.size = tarfile.LNKTYPE, firsts[carrier], 0
                tar.addfile(written)
            elif content.isreg():
                firsts[carrier] = path
                written.type, written.linkname, written.size = tarfile.REGTYPE, "", content.size
                tar.addfile(written, source.extractfile(content))
            else:
                tar.addfile(written)


def _path(name: str) -> str:
    return name.removeprefix("./").rstrip("/")


def _plain(member: tarfile.TarInfo, path: str, epoch: int) -> tarfile.TarInfo:
    """Who owns it and what may be done with it, and nothing of when and by whom it was packed."""
    plain = tarfile.TarInfo(path)
    plain.type, plain.mode, plain.uid, plain.gid = member.type, member.mode, member.uid, member.gid
    plain.linkname, plain.devmajor, plain.devminor = member.linkname, member.devmajor, member.devminor
    plain.mtime = epoch
    kept = {key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY.xattr.")}
    plain.pax_headers = dict(sorted(kept.items()))
    return plain
