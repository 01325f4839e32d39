"""Build what clusters of kind need, from the Go module proxy alone, beside the programs of the local control plane.

    python -m hack.kind.programs            # kind, helm and kubectl; prints their directories as a PATH has them
    python -m hack.kind.programs node       # whatever is in a node; prints a line each: name and path
    python -m hack.kind.programs sources    # kind's sources; prints their directory
    python -m hack.kind.programs others     # controllers of other kinds of jobs, for tests; prints their directories

Each Go module is built once per content (`trimtab_local.control_plane.build`). What the local cluster has is not
built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from hack.chart import tools

from trimtab.errors import LocalClusterError, TrimtabError
from trimtab_local.checkout import checkout
from trimtab_local.control_plane import build as builder
from trimtab_local.control_plane.build import Module, read_module

HERE = checkout() / "hack" / "kind"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


class Plain(Module, frozen=True):
    """Programs that need no stamp of a version, some of them our own: `kubernetes` is nobody's here."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of `go install`."""
        return ("-trimpath", "-buildvcs=false", "-ldflags", "-s -w")

    @property
    def digest(self) -> str:
        """Changes with whatever could change the binaries: our own sources, too."""
        whole = hashlib.sha256(super().digest.encode())
        for path in sorted(self.directory.rglob("*.go")):
            whole.update(path.read_bytes())
        return whole.hexdigest()[:16]


def plain(directory: Path, title: str) -> Plain:
    """Read the go.mod in `directory`, whose tools are the only lines of a single word."""
    text = (directory / "go.mod").read_text()
    go = re.findall(r"^go ([\d.]+)$", text, re.MULTILINE)[0]
    tools = re.findall(r"^(?:tool |\t)([\w./-]+)$", text, re.MULTILINE)
    return Plain(directory, tuple(map(int, go.split("."))), tuple(tools), "", title)


def kind() -> Path:
    """Directory of kind, which is built unless it is there. Raises LocalClusterError."""
    return builder.build(plain(HERE / "cli", "kind"))


def others() -> dict[str, Plain]:
    """Modules of the controllers of other kinds of jobs, by their directory in hack/other-kinds."""
    top = checkout() / "hack" / "other-kinds"
    found = {path.parent.relative_to(top).as_posix(): path.parent for path in sorted(top.rglob("go.mod"))}
    return {name: plain(directory, "controllers of other kinds of jobs") for name, directory in found.items()}


def sources() -> Path:
    """Directory of the sources of kind, which are fetched unless they are there. Raises LocalClusterError."""
    module = plain(HERE / "cli", "kind")
    command = [builder.find_go(module.go), "mod", "download", "-json", *module.tools]
    done = subprocess.run(command, cwd=module.directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LocalClusterError(f"the sources of kind cannot be fetched: {done.stdout}{done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])


def node() -> dict[str, Path]:
    """Name -> path of all programs of a node and of kubeadm's images, built unless they are there.
    Raises LocalClusterError."""
    kubernetes = read_module(HERE / "node-image" / "kubernetes")
    control_plane = builder.build()
    found = {name: control_plane / name for name in CONTROL_PLANE}
    for module in (
        Module(kubernetes.directory, kubernetes.go, kubernetes.tools, kubernetes.kubernetes, "the kubelet"),
        plain(HERE / "node-image" / "runtime", "the container runtime"),
    ):
        directory = builder.build(module)
        found |= {name: directory / name for name in module.names}
    return found


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["node"]:
            print("\n".join(f"{name} {path}" for name, path in node().items()))
        elif sys.argv[1:] == ["sources"]:
            print(sources())
        elif sys.argv[1:] == ["others"]:
            print("\n".join(str(builder.build(module)) for module in others().values()))
        elif sys.argv[1:]:
            sys.exit(__doc__)
        else:
            print(os.pathsep.join(map(str, (kind(), tools.build(), builder.build()))))
    except TrimtabError as error:
        sys.exit(f"error: {error}")
