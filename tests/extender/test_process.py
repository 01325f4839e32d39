"""`trimtab extender` as it is run: a process with the rights of its service account, against the real API server."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from tests.extender.desk import LOCAL, Object, node, planned, pod
from tests.extender.test_manifests import EXTENDER

from trimtab.names import SYSTEM_NAMESPACE
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.kubeconfig import service_account_kubeconfig

pytestmark = pytest.mark.cluster


@pytest.fixture
def account(cluster: LocalCluster, tmp_path: Path) -> Path:
    """A kubeconfig with exactly the rights of manifests/extender.yaml."""
    rights = [obj for obj in EXTENDER if obj["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")]
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(rights))
    path = tmp_path / "kubeconfig"
    service_account_kubeconfig(cluster.kubeconfig, SYSTEM_NAMESPACE, "trimtab-extender", path)
    return path


class Running:
    """A process, and where it listens."""

    def __init__(self, process: asyncio.subprocess.Process, ports: tuple[int, int]) -> None:
        self.process = process
        self.url = f"http://{LOCAL}:{ports[0]}"
        self.health = f"http://{LOCAL}:{ports[1]}"

    async def filter(self, session: aiohttp.ClientSession, of: Object, *nodes: str) -> Any:
        async with session.post(f"{self.url}/filter", json={"Pod": of, "NodeNames": nodes}) as answer:
            assert answer.status == 200
            return await answer.json()

    async def ready(self, session: aiohttp.ClientSession) -> None:
        async with asyncio.timeout(60):
            while True:
                async with session.get(f"{self.health}/readyz") as answer:
                    if answer.status == 200:
                        return
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running(account: Path, tmp_path: Path) -> AsyncIterator[Running]:
    config = tmp_path / "settings.yaml"
    config.write_text(yaml.safe_dump({"metrics": {"host": LOCAL, "port": 0}, "log": {"format": "json"}}))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trimtab", "extender", "--host", LOCAL, "--port", "0"),
        *("--config", str(config), "--kubeconfig", str(account)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout
    try:
        while (said := json.loads(await process.stdout.readline()))["event"] != "serving":
            pass
        draining = asyncio.create_task(process.stdout.read())
        yield Running(process, (said["port"], said["health_port"]))
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
            await draining
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_two_replicas_know_the_same_and_end_when_told_to(
    cluster: LocalCluster, account: Path, tmp_path: Path
) -> None:
    for name in ("extender-a", "extender-b"):
        made = {"apiVersion": "v1", "kind": "Node", **node(name)}
        cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(made))
        status = json.dumps({"status": made["status"]})
        cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", status)
    try:
        async with (
            aiohttp.ClientSession() as session,
            running(account, tmp_path) as one,
            running(account, tmp_path) as other,
        ):
            for replica in (one, other):
                await replica.ready(session)
            for of in (planned("job7-1-0", "extender-a"), planned("job7-1-0", "nowhere"), pod("stranger")):
                offered = ("extender-a", "extender-b", "nowhere")
                answers = [await replica.filter(session, of, *offered) for replica in (one, other)]
                assert answers[0] == answers[1]
                if of["metadata"]["name"] == "stranger":
                    assert answers[0]["NodeNames"] == list(offered)
    finally:
        cluster.kubectl("delete", "node", "extender-a", "extender-b")
