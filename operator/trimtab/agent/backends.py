"""Picks the backend. Libraries of a vendor are imported only where its backend is asked for."""

from __future__ import annotations

from pathlib import Path

from trimtab.agent.backend import Backend, BackendError
from trimtab.agent.config import AgentConfig
from trimtab.agent.pod_resources import PodResources


def make_backend(config: AgentConfig) -> Backend:
    """The backend of the settings, not opened yet. Raises BackendError when something that it needs is missing."""
    match config.backend:
        case "nvml":
            from trimtab.agent.nvml import NvmlBackend

            return NvmlBackend()
        case "amd":
            from trimtab.agent.amd import AmdBackend

            return AmdBackend(node=config.node)
        case "fake":
            from trimtab.agent.fake import FakeBackend

            if not config.profile:
                told = "the fake backend needs a profile: set agent.profile, e.g. to manifests/agents/h100x8.yaml"
                raise BackendError(told)
            return FakeBackend(Path(config.profile), node=config.node)


def kubelet(config: AgentConfig) -> PodResources | None:
    """Who says which pod has which GPU; None where there is no kubelet, or the profile says it."""
    path = Path(config.pod_resources)
    return PodResources(path) if config.backend != "fake" and config.pod_resources and path.exists() else None
