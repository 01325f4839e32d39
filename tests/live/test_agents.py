"""The agent as a process, as its own service account, against the real API server."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.faultproxy import FaultProxy
from tests.live.api import Api
from tests.live.harness import eventually, gpu_node

from trimtab import names
from trimtab.agent import sampler
from trimtab.agent.app import NodeAgent
from trimtab.agent.backend import BackendError, Gpu, NodeReading
from trimtab.agent.config import AgentConfig, Http, Kube
from trimtab.errors import LocalClusterError
from trimtab.kube.client import KubeClient
from trimtab.kube.slim_auth import PlainConnection, endpoint
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.kubeconfig import write_kubeconfig

pytestmark = pytest.mark.cluster

OWN, OTHER = "agent-0", "agent-1"
PROFILE = "product: NVIDIA-A100-SXM4-80GB\ngpus: 2\nrunning: [{pod: team-a/train-0, gpus: 1}]\n"
XID = PROFILE + "faults: [{kind: xid, gpu: 1, code: 94}]\n"
SECONDS = {"sample_seconds": 0.2, "report_seconds": 2, "least_report_seconds": 1}


class Agents:
    """The cluster with the agents' rights, and words about GPUNodes."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._api = Api(cluster)

    def token(self, node: str = "") -> str:
        """A token of the agent's account, as the kubelet projects it into the agent's pod on that node."""
        bound = ["--bound-object-kind", "Pod", "--bound-object-name", f"agent-{node}"] if node else []
        return self.cluster.kubectl(
            "create", "token", names.AGENT_ACCOUNT, "-n", names.SYSTEM_NAMESPACE, *bound
        ).strip()

    def kubeconfig(self, path: Path, token: str) -> Path:
        admin = yaml.safe_load(self.cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
        ca = base64.b64decode(admin["certificate-authority-data"])
        write_kubeconfig(path, "tests", admin["server"], ca, "agent", {"token": token})
        return path

    def gpunode(self, node: str = OWN) -> dict[str, Any]:
        """A GPUNode, empty where there is none."""
        if (found := self._api.get("gpun", node, names.SYSTEM_NAMESPACE, managed=True)) is None:
            raise LocalClusterError(f"no answer about GPUNode {node}")
        return found

    def status(self, node: str = OWN) -> dict[str, Any]:
        status: dict[str, Any] = self.gpunode(node).get("status", {})
        return status

    def faults(self, node: str = OWN, gpu: int = 1) -> list[tuple[str, int, int]]:
        """Kind, code and count."""
        gpus = self.status(node).get("gpus", [])
        return [(f["kind"], f.get("code", 0), f["count"]) for f in (gpus[gpu].get("faults", []) if gpus else [])]


class AgentProcess:
    """`trimtab agent`."""

    def __init__(self, directory: Path, kubeconfig: Path, *options: str, **agent: Any) -> None:
        self.log = directory / f"agent-{id(self)}.log"
        self._config = directory / f"agent-{id(self)}.yaml"
        metrics = {"host": "127.0.0.1", "port": 0}
        self._config.write_text(yaml.safe_dump({"agent": {**SECONDS, **agent}, "metrics": metrics}))
        command = [sys.executable, "-m", "trimtab", "agent", "--config", self._config, "--kubeconfig", kubeconfig]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([*map(str, command), *options], stdout=log, stderr=log)

    def get(self, path: str) -> str:
        found = re.search(r"metrics=(http://\S+)/metrics", self.log.read_text(errors="replace"))
        assert found, self.log.read_text()
        with urlopen(f"{found[1]}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def metric(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.get("/metrics"))
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def end(self) -> int:
        """SIGTERM, as Kubernetes ends it; returns the exit code."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(15)
        self._process.kill()
        return self._process.wait()


@asynccontextmanager
async def running(directory: Path, kubeconfig: Path, *options: str, **agent: Any) -> AsyncIterator[AgentProcess]:
    process = AgentProcess(directory, kubeconfig, *options, **agent)
    try:
        yield process
    finally:
        code = await asyncio.to_thread(process.end)
        assert code == 0, process.log.read_text()


@pytest.fixture(scope="module")
def agents(cluster: LocalCluster) -> Iterator[Agents]:
    """Two nodes with an agent's pod each, and everything of manifests/agent.yaml but the DaemonSet."""
    documents = yaml.safe_load_all((checkout() / "manifests" / "agent.yaml").read_text())
    rights = [each for each in documents if each["kind"] != "DaemonSet"]
    nodes = [gpu_node(name, gpus=2) for name in (OWN, OTHER)]
    everything = {"apiVersion": "v1", "kind": "List", "items": [*rights, *nodes, *map(_pod, (OWN, OTHER))]}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(everything))
    yield Agents(cluster)
    cluster.kubectl("delete", "pod", "-n", names.SYSTEM_NAMESPACE, f"agent-{OWN}", f"agent-{OTHER}", "--force")
    cluster.kubectl("delete", "node", OWN, OTHER)
    cluster.kubectl("delete", "gpun", "--all")


def _pod(node: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"agent-{node}", "namespace": names.SYSTEM_NAMESPACE},
        "spec": {
            "nodeName": node,
            "serviceAccountName": names.AGENT_ACCOUNT,
            "containers": [{"name": "agent", "image": "example.test/agent:1"}],
            "tolerations": [{"operator": "Exists"}],
        },
    }


class Machine:
    """The node OWN with fake GPUs: its profile and boot ID can be changed, and its agent started."""

    def __init__(self, directory: Path, kubeconfig: Path) -> None:
        self.directory = directory
        self.kubeconfig = kubeconfig
        self.has(PROFILE)
        self.boots("boot-1")

    def has(self, profile: str) -> None:
        (self.directory / "profile.yaml").write_text(profile)

    def boots(self, identity: str) -> None:
        (self.directory / "boot").write_text(f"{identity}\n")

    @asynccontextmanager
    async def agent(self, kubeconfig: Path | None = None, node: str = OWN) -> AsyncIterator[AgentProcess]:
        files = {"profile": str(self.directory / "profile.yaml"), "boot_id": str(self.directory / "boot")}
        where = kubeconfig or self.kubeconfig
        async with running(self.directory, where, node=node, backend="fake", **files) as process:
            yield process


@pytest.fixture
def machine(tmp_path: Path, agents: Agents) -> Iterator[Machine]:
    """The node OWN, whose agent has the account of the DaemonSet."""
    yield Machine(tmp_path, agents.kubeconfig(tmp_path / "agent.kubeconfig", agents.token(OWN)))
    agents.cluster.kubectl("delete", "gpun", "--all")


async def test_a_node_is_reported_and_goes_on_being_reported(agents: Agents, machine: Machine) -> None:
    async with machine.agent() as process:
        await eventually(lambda: bool(agents.status()), what=process.log.read_text)
        found = agents.gpunode()
        (owner,) = found["metadata"]["ownerReferences"]
        node = json.loads(agents.cluster.kubectl("get", "node", OWN, "-o", "json"))
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", OWN, node["metadata"]["uid"])
        first = found["status"]
        assert (first["backend"], first["periodSeconds"], first["bootId"]) == ("fake", 2, "boot-1")
        assert [gpu["pods"] for gpu in first["gpus"]] == [["team-a/train-0"], []]
        managers = {each["manager"] for each in found["metadata"]["managedFields"]}
        assert managers == {names.AGENT_FIELD_MANAGER}
        await eventually(lambda: agents.status()["observedTime"] > first["observedTime"], what="a heartbeat")
        head, line = agents.cluster.kubectl("get", "gpun", OWN).splitlines()
        assert head.split() == ["NAME", "HEALTHY", "REASON", "BACKEND", "DRIVER", "REPORTED", "AGE"]
        assert line.split()[:3] == [OWN, "fake", "580.95.05"]
        assert process.get("/readyz") == "ok\n"
        assert process.get("/healthz") == "ok\n"
        assert process.metric("trimtab_gpu_utilization_ratio", gpu="0") > 0.5
        assert process.metric("trimtab_agent_reports_total", result="written") >= 2


async def test_faults_outlive_the_agent_but_not_the_machine(agents: Agents, machine: Machine) -> None:
    async with machine.agent() as process:
        await eventually(lambda: bool(agents.status()), what=process.log.read_text)
        machine.has(XID)
        await eventually(lambda: agents.faults() == [("Xid", 94, 1)], what="the fault")
        assert process.metric("trimtab_gpu_xid_errors_total", gpu="1", xid="94") == 1
        assert process.metric("trimtab_agent_reports_total", cause="fault", result="written") == 1
    machine.has(PROFILE)
    before = agents.status()["observedTime"]
    async with machine.agent() as process:
        await eventually(lambda: agents.status()["observedTime"] > before, what=process.log.read_text)
        assert agents.faults() == [("Xid", 94, 1)]
    before = agents.status()["observedTime"]
    machine.boots("boot-2")
    async with machine.agent() as process:
        await eventually(lambda: agents.status()["observedTime"] > before, what=process.log.read_text)
        assert agents.faults() == []


async def test_a_repair_ends_faults(agents: Agents, machine: Machine) -> None:
    machine.has(XID)
    async with machine.agent() as process:
        await eventually(lambda: len(agents.faults()) == 1, what=process.log.read_text)
        mended = f"{names.ANNOTATION_REPAIRED}=2099-01-01T00:00:00Z"
        agents.cluster.kubectl("annotate", "gpun", OWN, mended)
        await eventually(lambda: agents.faults() == [], what="the repair to be seen")
        assert agents.gpunode()["metadata"]["annotations"], "the agent does not take back what others said"


async def test_a_gpunode_that_somebody_deleted_comes_back(agents: Agents, machine: Machine) -> None:
    async with machine.agent() as process:
        await eventually(lambda: bool(agents.status()), what=process.log.read_text)
        uid = agents.gpunode()["metadata"]["uid"]
        agents.cluster.kubectl("delete", "gpun", OWN)
        await eventually(lambda: bool(agents.status()), what=process.log.read_text)
        assert agents.gpunode()["metadata"]["uid"] != uid
        assert agents.gpunode()["metadata"]["ownerReferences"]


async def test_the_controllers_condition_stays(agents: Agents, machine: Machine) -> None:
    condition = {
        "type": names.HEALTHY, "status": "True", "reason": "Fine", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    judged = {
        "apiVersion": names.API_VERSION, "kind": names.GPUNODE_KIND, "metadata": {"name": OWN},
        "status": {"conditions": [condition]},
    }  # fmt: skip
    async with machine.agent() as process:
        await eventually(lambda: bool(agents.status()), what=process.log.read_text)
        apply = ("apply", "--server-side", "--subresource=status", f"--field-manager={names.FIELD_MANAGER}", "-f", "-")
        agents.cluster.kubectl(*apply, stdin=json.dumps(judged))
        before = agents.status()["observedTime"]
        await eventually(lambda: agents.status()["observedTime"] > before, what="the next report")
        assert [each["reason"] for each in agents.status()["conditions"]] == ["Fine"]
        assert agents.status()["gpus"]


async def test_an_outage_of_the_api_server_loses_no_fault(agents: Agents, machine: Machine) -> None:
    async with (
        FaultProxy(agents.cluster.kubeconfig, machine.directory, token=agents.token(OWN)) as proxy,
        machine.agent(proxy.kubeconfig) as process,
    ):
        await eventually(lambda: bool(agents.status()), what=process.log.read_text)
        await proxy.inject("status:503", path="gpunodes", count=1000)
        machine.has(XID)
        failed = {"result": "overloaded"}
        await eventually(lambda: process.metric("trimtab_agent_reports_total", **failed) >= 2, what="failed reports")
        assert agents.faults() == []
        assert process.get("/healthz") == "ok\n"
        await proxy.heal()
        await eventually(lambda: agents.faults() == [("Xid", 94, 1)], 40, process.log.read_text)


async def test_an_agent_on_a_node_that_does_not_exist_says_so_and_waits(agents: Agents, machine: Machine) -> None:
    async with machine.agent(agents.cluster.kubeconfig, "agent-9") as process:
        await eventually(lambda: "there is no Node" in process.log.read_text(), what=process.log.read_text)
        agents.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(gpu_node("agent-9")))
        try:
            await eventually(lambda: bool(agents.status("agent-9")), 40, process.log.read_text)
        finally:
            agents.cluster.kubectl("delete", "node", "agent-9")


# --- the driver ------------------------------------------------------------------------------------------------------
class Driver:
    """A backend that can hang, and be replaced."""

    name: Literal["nvml"] = "nvml"
    needs_restart = False

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()

    def open(self) -> None:
        """It is there."""

    def read(self) -> NodeReading:
        self.answers.wait(30)
        return NodeReading(gpus=(Gpu("GPU-0", 0, temperature=50.0),))

    def close(self) -> None:
        """Nothing is held."""


async def test_a_driver_that_hangs_is_reported_and_one_that_was_replaced_ends_the_agent(
    agents: Agents, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "HUNG_SECONDS", 1.0)
    driver, config = Driver(), AgentConfig(OWN, sample_seconds=0.1, least_report_seconds=0.5, http=Http("127.0.0.1", 0))
    async with KubeClient(PlainConnection(endpoint(machine.kubeconfig)), Kube()) as client:
        agent = asyncio.create_task(NodeAgent(config, driver, client).run(asyncio.Event()))
        await eventually(lambda: bool(agents.status().get("gpus")), what="the first report")
        driver.answers.clear()
        await eventually(lambda: "does not answer" in agents.status().get("error", ""), what="the report of it")
        driver.answers.set()
        await eventually(lambda: "error" not in agents.status() and bool(agents.status()["gpus"]), what="its end")
        driver.needs_restart = True
        with pytest.raises(BackendError, match="replaced"):
            await agent


# --- rights ----------------------------------------------------------------------------------------------------------
def write(
    agents: Agents,
    directory: Path,
    token: str,
    node: str,
    annotations: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
) -> str:
    """Try to write a GPUNode; returns what was complained of."""
    body = {
        "apiVersion": names.API_VERSION, "kind": names.GPUNODE_KIND,
        "metadata": {"name": node, "annotations": dict(annotations or {})},
        "status": {"backend": "fake", **(status or {})},
    }  # fmt: skip
    kubeconfig = agents.kubeconfig(directory / "writer.kubeconfig", token)
    command = [
        "--kubeconfig",
        str(kubeconfig),
        "apply",
        "--server-side",
        "--validate=false",
        "--force-conflicts",
        "-f",
        "-",
    ]
    try:
        agents.cluster.kubectl(*command, stdin=json.dumps(body))
        agents.cluster.kubectl(*command, "--subresource=status", stdin=json.dumps(body))
    except LocalClusterError as error:
        return str(error)
    return ""


async def test_an_agent_may_write_the_gpunode_of_its_own_node_only(agents: Agents, tmp_path: Path) -> None:
    own = agents.token(OWN)
    foreign = f"the agent on node {OWN} may not write GPUNode {OTHER}"
    await eventually(lambda: foreign in write(agents, tmp_path, own, OTHER), what="the admission policy to be in force")
    assert write(agents, tmp_path, own, OWN) == ""
    assert "names no node" in write(agents, tmp_path, agents.token(), OWN)
    repaired = {names.ANNOTATION_REPAIRED: "2026-01-01T00:00:00Z"}
    assert "is for people to say" in write(agents, tmp_path, own, OWN, repaired)
    agents.cluster.kubectl("delete", "gpun", "--all")


async def test_an_agent_may_not_judge_its_own_node(agents: Agents, tmp_path: Path) -> None:
    own, theirs = agents.token(OWN), "is for the controller to say"
    healthy = {
        "type": names.HEALTHY, "status": "True", "reason": "Fine", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    await eventually(
        lambda: theirs in write(agents, tmp_path, own, OWN, status={"conditions": [healthy]}), what="the policy"
    )
    assert "conditions" not in agents.status()
    assert write(agents, tmp_path, own, OWN) == ""
    agents.cluster.kubectl("delete", "gpun", "--all")


def test_an_agent_may_do_nothing_else(agents: Agents) -> None:
    account = f"--as=system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.AGENT_ACCOUNT}"
    listed = agents.cluster.kubectl("auth", "can-i", "--list", "--no-headers", account)
    granted = {line.split()[0]: line[line.rindex("[") :] for line in listed.splitlines() if not line.startswith(" ")}
    ours = {kind: verbs for kind, verbs in granted.items() if "selfsubject" not in kind}
    assert ours == {
        "gpunodes.trimtab.dev": "[get create patch]",
        "gpunodes.trimtab.dev/status": "[patch]",
        "nodes": "[get]",
    }


# --- fake nodes ------------------------------------------------------------------------------------------------------
async def test_one_process_plays_the_agents_of_all_fake_nodes(agents: Agents, tmp_path: Path) -> None:
    kubectl = agents.cluster.kubectl
    pod = _pod(OWN)
    pod["metadata"] = {"name": "agents-busy", "namespace": "default"}
    pod["spec"]["containers"][0]["resources"] = {"limits": {names.NVIDIA_GPU: "2"}}
    pod["spec"].pop("serviceAccountName")
    async with running(tmp_path, agents.cluster.kubeconfig, "--fake-nodes") as process:
        await eventually(lambda: bool(agents.status(OWN) and agents.status(OTHER)), what=process.log.read_text)
        assert [gpu["smUtilizationPercent"] for gpu in agents.status(OWN)["gpus"]] == [0, 0]
        kubectl("apply", "-f", "-", stdin=json.dumps(pod))
        await eventually(
            lambda: [gpu["pods"] for gpu in agents.status(OWN)["gpus"]] == [["default/agents-busy"]] * 2,
            what=process.log.read_text,
        )
        await eventually(lambda: agents.status(OWN)["gpus"][0]["smUtilizationPercent"] > 50, what="GPUs at work")
        kubectl("annotate", "node", OTHER, f"{names.ANNOTATION_FAKE_GPU_FAULTS}=[{{kind: xid, gpu: 1, code: 79}}]")
        await eventually(
            lambda: sorted(agents.faults(OTHER)) == [("Lost", 0, 1), ("Xid", 79, 1)], what=process.log.read_text
        )
        kubectl("delete", "pod", "agents-busy", "--force")
        await eventually(lambda: agents.status(OWN)["gpus"][0]["pods"] == [], what="the end of the pod to be seen")
