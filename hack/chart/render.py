"""Render the chart as `helm template` does."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from hack.chart.tools import build

from trimtab.errors import LocalClusterError
from trimtab.names import SYSTEM_NAMESPACE
from trimtab_local.checkout import checkout

CHART: Final = checkout() / "charts" / "trimtab"
INSTALL: Final = checkout() / "manifests" / "install.yaml"
KUBERNETES: Final = "v1.36.3"
"""Version that renders are for where no cluster says its own."""
HEADER: Final = """\
# The chart charts/trimtab with its defaults, rendered by `python -m hack.chart render`: do not edit.
# Name the registry that the images are in:
#
#   sed "s|REGISTRY/|$REGISTRY/|" manifests/install.yaml | kubectl apply --server-side -f -
"""
NAMED: Final = CHART / "ci" / "default-values.yaml"
"""What every installation has to name; goes before all other values of a render."""


class RenderError(LocalClusterError):
    """Helm refuses the chart or the values; its message says why."""


def helm(*arguments: str, stdin: str = "") -> str:
    """Output of helm. Raises RenderError with what it complained of."""
    done = subprocess.run([build() / "helm", *arguments], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RenderError(done.stderr.strip())
    return done.stdout


def render(*arguments: str, values: str = "", namespace: str = SYSTEM_NAMESPACE) -> str:
    """Manifests of a release called trimtab, hooks too; `values` is YAML. Raises RenderError."""
    given = ("--values", str(NAMED), *(("--values", "-") if values else ()))
    where = ("--namespace", namespace, "--kube-version", KUBERNETES)
    return helm("template", "trimtab", str(CHART), *where, *given, *arguments, stdin=values)


def install() -> str:
    """Text of manifests/install.yaml. Hooks are Helm's, so they are left out. Raises RenderError."""
    return HEADER + render("--no-hooks", "--set", "namespace.create=true,image.registry=REGISTRY")


def value_files() -> dict[str, Path]:
    """The sets of values that come with the chart, by name."""
    return {path.name.removesuffix("-values.yaml"): path for path in sorted(CHART.glob("ci/*-values.yaml"))}
