"""One reading of the backend, for people who look at a node: `trimtab agent --once`."""

from __future__ import annotations

import time
from pathlib import Path

from trimtab.agent import backends, wire
from trimtab.agent.backend import BackendError
from trimtab.agent.config import AgentConfig
from trimtab.agent.digest import Digest, report
from trimtab.agent.pod_resources import with_pods


def read_reports(config: AgentConfig) -> wire.WireStatus:
    """What the agent would report now. Rates are differences, so that it takes one sampling period.

    Raises BackendError when no GPU can be read.
    """
    backend = backends.make_backend(config)
    backend.open()
    try:
        backend.read()
        time.sleep(config.sample_seconds)
        reading = backend.read()
    finally:
        backend.close()
    if pods := backends.kubelet(config):
        reading = with_pods(reading, pods.ask())
    if reading.error:
        raise BackendError(reading.error)
    state = Digest(config.report_seconds).take(reading, time.monotonic(), time.time())
    boot = Path(config.boot_id)
    boot_id = boot.read_text().strip() if boot.is_file() else ""
    return report(state, backend=config.backend, period=config.report_seconds, boot_id=boot_id)
