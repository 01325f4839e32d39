"""Kubeconfig files: one self-contained file per user, with the CA inside, so that TLS is always verified."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from trimtab.errors import LocalClusterError
from trimtab_local.control_plane.build import binaries

TOKEN_LIFETIME = "24h"  # noqa: S105 - a duration


def write_kubeconfig(path: Path, cluster: str, server: str, ca: bytes, user: str, credentials: dict[str, str]) -> None:
    """Write a kubeconfig for one user of one cluster; `credentials` as in the kubeconfig's `user` object."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": cluster,
        "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": _base64(ca)}}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
    }
    partial = path.with_name(f".{path.name}.partial")
    partial.touch(mode=0o600)
    partial.write_text(yaml.safe_dump(content, sort_keys=False))
    os.replace(partial, path)


def certificate_credentials(stem: Path) -> dict[str, str]:
    """Credentials of the client certificate `stem`.crt with its key `stem`.key."""
    return {
        "client-certificate-data": _base64(stem.with_suffix(".crt").read_bytes()),
        "client-key-data": _base64(stem.with_suffix(".key").read_bytes()),
    }


def service_account_kubeconfig(admin_kubeconfig: Path, namespace: str, name: str, path: Path) -> None:
    """Write to `path` a kubeconfig that acts as a ServiceAccount, with a token from the TokenRequest API for 24 hours.

    Raises LocalClusterError when the ServiceAccount does not exist or the administrator may not request tokens.
    """
    token = kubectl(admin_kubeconfig, "create", "token", name, "--namespace", namespace, "--duration", TOKEN_LIFETIME)
    admin: dict[str, Any] = yaml.safe_load(admin_kubeconfig.read_text())
    cluster = admin["clusters"][0]
    ca = base64.b64decode(cluster["cluster"]["certificate-authority-data"])
    user = f"system:serviceaccount:{namespace}:{name}"
    write_kubeconfig(path, cluster["name"], cluster["cluster"]["server"], ca, user, {"token": token.strip()})


def kubectl(kubeconfig: Path, *arguments: str, stdin: str = "", timeout: float = 60) -> str:
    """Output of the control plane's own kubectl. Raises LocalClusterError with what it complained of."""
    command = [str(binaries() / "kubectl"), "--kubeconfig", str(kubeconfig), *arguments]
    # its discovery cache is keyed by host and port, which local clusters get anew each time
    environment = {**os.environ, "KUBECACHEDIR": str(kubeconfig.with_name("kubectl-cache"))}
    try:
        result = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environment, timeout=timeout, check=True
        )
    except subprocess.CalledProcessError as error:
        raise LocalClusterError(f"kubectl {' '.join(arguments)}: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise LocalClusterError(f"kubectl {' '.join(arguments)}: no answer in {timeout:.0f} s") from error
    return result.stdout


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
