"""Build helm and kubeconform, once per content of hack/chart/go.mod, beside the programs of the local control plane."""

from __future__ import annotations

from pathlib import Path

from trimtab_local.checkout import checkout
from trimtab_local.control_plane import build as builder
from trimtab_local.control_plane.build import Module, read_go_mod

VERSION = "helm.sh/helm/v4/internal/version.version"


class Tools(Module, frozen=True):
    """What hack/chart/go.mod says. `kubernetes` is the version of the client libraries, which helm takes for the
    cluster's where it sees none."""

    helm: str = ""
    """Version of helm, e.g. `v4.3.1`, which calls itself v4.0 without the stamp."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of `go install`."""
        return ("-trimpath", "-buildvcs=false", "-ldflags", f"-s -w -X {VERSION}={self.helm}")


def read_tools(directory: Path) -> Tools:
    """Read the go.mod in `directory`. Raises LocalClusterError when it lacks what we need."""
    go, tools, (helm, client) = read_go_mod(directory, "helm.sh/helm/v4", "k8s.io/client-go")
    return Tools(directory, go, tools, client.replace("v0.", "v1.", 1), "helm and kubeconform", helm)


def build() -> Path:
    """Build both unless they are there; shows progress on stderr. Returns their directory. Raises LocalClusterError."""
    return builder.build(read_tools(checkout() / "hack" / "chart"))
