"""The files of one cluster, `clusters/NAME/`, and the record of its life that all commands read."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct

from trimtab.errors import UsageError
from trimtab_local.control_plane.options import ExtenderFiles
from trimtab_local.control_plane.paths import clusters_directory
from trimtab_local.control_plane.process import ProcessId

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


class ClusterPhase(StrEnum):
    """Where a cluster is in its life."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    ABSENT = "absent"
    """Never started, or taken down without a trace."""


class ClusterState(Struct, frozen=True):
    """What is known of a cluster; written by its supervisor, read by everybody."""

    phase: ClusterPhase
    supervisor: ProcessId | None = None
    server: str = ""
    """URL of the API server."""
    components: dict[str, int] = {}
    """Component name to pid."""
    message: str = ""
    """Why it failed, with the end of the log in question."""


class Layout:
    """Paths of the cluster `name`. Raises UsageError for a name that could not be part of a path."""

    def __init__(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise UsageError(
                f"cluster name {name!r}: use at most 40 lower-case letters, digits and dashes, no dash at either end"
            )
        self.name = name
        self.root = clusters_directory() / name
        self.certificates = self.root / "pki"
        self.logs = self.root / "logs"
        self.etcd_data = self.root / "etcd"
        self.kubeconfig = self.root / "kubeconfig"
        """Of the cluster's administrator."""
        self.lock = self.root.with_name(f".{name}.lock")
        """Held by the supervisor as long as it lives."""
        self.output = self.root.with_name(f".{name}.supervisor.log")
        """What the supervisor itself prints: nothing, unless it crashes before or after the other files exist."""
        self._state = self.root / "state.json"

    def create(self) -> None:
        """Make the directories, readable by us only."""
        self.root.mkdir(mode=0o700)
        for directory in (self.certificates, self.logs, self.etcd_data):
            directory.mkdir(mode=0o700)

    def log(self, component: str) -> Path:
        """Log file of a component or of the supervisor."""
        return self.logs / f"{component}.log"

    def user_kubeconfig(self, component: str) -> Path:
        """Kubeconfig by which a component proves who it is."""
        return self.certificates / f"{component}.kubeconfig"

    @property
    def extender_files(self) -> ExtenderFiles:
        """Where the certificates for an extender are."""
        pki = self.certificates
        return ExtenderFiles(
            ca=pki / "ca.crt",
            certificate=pki / "extender.crt",
            key=pki / "extender.key",
            client_certificate=pki / "extender-client.crt",
            client_key=pki / "extender-client.key",
        )

    def write_state(self, state: ClusterState) -> None:
        """Replace the record in one step: readers see the old or the new one."""
        partial = self._state.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(state))
        os.replace(partial, self._state)

    def read_state(self) -> ClusterState:
        """The record; `absent` where there is none."""
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=ClusterState)
        except FileNotFoundError:
            return ClusterState(ClusterPhase.ABSENT)
