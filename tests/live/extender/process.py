"""`trimtab extender` as a process of its own, behind the front that kube-scheduler knows."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from urllib.request import urlopen

import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests import forkserver

from trimtab_local.control_plane.options import ExtenderFiles

READY_SECONDS = 150.0


class ExtenderProcess:
    """Answers over TLS, and only who has the scheduler's certificate."""

    def __init__(self, kubeconfig: Path, files: ExtenderFiles, directory: Path) -> None:
        settings = {
            "extender": {
                "host": "127.0.0.1",
                "port": 0,
                "certificate": str(files.certificate),
                "key": str(files.key),
                "client_ca": str(files.ca),
                "client_names": ["kube-scheduler-trimtab"],
            },
            "metrics": {"host": "127.0.0.1", "port": 0},
        }
        config = directory / f"extender-{id(self)}.yaml"
        config.write_text(yaml.safe_dump(settings))
        self.log = directory / f"extender-{id(self)}.log"
        self.log.write_bytes(b"")
        arguments = ["extender", "--config", str(config), "--kubeconfig", str(kubeconfig)]
        self._process = forkserver.shared().spawn(arguments, self.log, directory)
        self.port, self._health_port = self._serving()

    def asked(self, verb: str = "filter") -> float:
        """How often kube-scheduler has asked this process."""
        with urlopen(f"http://127.0.0.1:{self._health_port}/metrics", timeout=5) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            samples = [sample for family in families for sample in family.samples]
        return sum(
            sample.value
            for sample in samples
            if sample.name == "trimtab_extender_requests_total" and sample.labels["verb"] == verb
        )

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(15)

    def _serving(self) -> tuple[int, int]:
        limit = time.monotonic() + READY_SECONDS
        while time.monotonic() < limit and self._process.poll() is None:
            text = re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text(errors="replace"))
            ports = {
                name: int(found[1])
                for name in ("port", "health_port")
                if (found := re.search(rf"\b{name}=(\d+)", text))
            }
            if len(ports) == 2 and self._ready(ports["health_port"]):
                return ports["port"], ports["health_port"]
            time.sleep(0.1)
        raise AssertionError(f"the extender does not serve:\n{self.log.read_text(errors='replace')}")

    def _ready(self, port: int) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
