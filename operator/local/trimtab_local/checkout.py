"""Where the checkout is that we run from: Go module, manifests and profiles are not in the installed package."""

from __future__ import annotations

from pathlib import Path

from trimtab.errors import UsageError


def checkout() -> Path:
    """Root of the checkout. Raises UsageError when Trimtab was installed without one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "hack" / "cluster" / "go.mod").is_file():
        raise UsageError(
            f"the local control plane and the fake-node profiles belong to a checkout of Trimtab, and {root} is none: "
            "clone the repository and run hack/setup there"
        )
    return root
