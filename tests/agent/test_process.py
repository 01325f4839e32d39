"""The agent as a program: small, scrapeable, and of use to somebody who looks at a node."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import CliRunner

from trimtab import names
from trimtab.agent.backend import Gpu, Happened, NodeReading
from trimtab.agent.digest import Digest
from trimtab.api.gpunode import GPUNodeStatus
from trimtab.cli import app
from trimtab.errors import LocalClusterError
from trimtab.telemetry import agent_metrics
from trimtab_local.checkout import checkout
from trimtab_local.control_plane import components
from trimtab_local.control_plane.layout import Layout

MANIFESTS = checkout() / "manifests"
H100 = MANIFESTS / "agents" / "h100x8.yaml"
HEAVY = {"pydantic", "pydantic_settings", "typer", "rich", "kubernetes", "kopf", "numpy", "torch"}
PROGRAM = """
import sys
import trimtab.agent.__main__, trimtab.agent.app, trimtab.agent.nvml
print("\\n".join(sys.modules))
"""


def trimtab(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["agent", *arguments])


def test_the_process_on_the_node_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "aiohttp" in loaded
    assert loaded & (HEAVY - {"rich"}) == set(), "structlog loads rich where it is installed; an agent's image has none"


def test_an_image_with_the_extra_agent_alone_can_start_it(tmp_path: Path) -> None:
    blocker = "import sys\nfor name in {}: sys.modules[name] = None\n".format(
        ("typer", "click", "rich", "kubernetes", "kopf", "cryptography", "matplotlib", "scipy")
    )
    (tmp_path / "sitecustomize.py").write_text(blocker)
    absent = {"NODE_NAME": "n1", "KUBECONFIG": str(tmp_path / "absent"), "TRIMTAB_METRICS__PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "trimtab.agent"], env={"PYTHONPATH": str(tmp_path), **absent}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"trimtab: cannot use the kubeconfig {tmp_path / 'absent'}")


@pytest.mark.parametrize("command", [[], ["controller"], ["agent"], ["extender"], ["cluster"]])
def test_an_image_without_the_extra_local_has_all_commands(command: list[str]) -> None:
    program = "import sys; sys.modules['cryptography'] = None; from trimtab.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_a_local_cluster_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trimtab_local.control_plane.pki", None)
    with pytest.raises(LocalClusterError, match=r"trimtab\[local\]"):
        components.prepare(Layout("absent"), {})


def test_once_as_json_is_the_status_of_a_gpunode() -> None:
    done = trimtab("--once", "--backend", "fake", "--profile", str(H100), "-o", "json")
    status = GPUNodeStatus.model_validate_json(done.stdout)
    assert [gpu.index for gpu in status.gpus] == list(range(8))
    assert status.gpus[0].pods == ("team-a/train-0",)


def test_once_as_a_table_fits_into_80_columns() -> None:
    done = trimtab("--once", "--backend", "fake", "--profile", str(H100))
    lines = done.stdout.splitlines()
    assert lines[0].strip() == "8 GPUs, backend fake, driver 580.95.05"
    assert lines[1].split()[:3] == ["GPU", "PRODUCT", "UTIL"]
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert "GPU 0, 1, 2, 3: given to team-a/train-0" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--once", "--backend", "fake"), "needs a profile"),
        (("--once", "--backend", "fake", "--profile", "absent.yaml"), "cannot read the profile absent.yaml"),
        (("--once", "--backend", "nvml"), "NVIDIA"),
        (("--backend", "fake", "--profile", str(H100)), "NODE_NAME"),
        (("--once", "--fake-nodes"), "choose one"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(
    arguments: tuple[str, ...], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    done = trimtab(*arguments)
    assert done.exit_code in (1, 2)
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stdout == ""


def test_a_reading_that_is_not_known_has_no_sample() -> None:
    digest = Digest(30.0)
    gpu = Gpu(
        "GPU-0", 0, product="H100", temperature=61.0, happened=(Happened("Xid", 79), Happened("UncorrectableEcc"))
    )
    state = digest.take(NodeReading(gpus=(gpu, Gpu("GPU-1", 1, temperature=1e9))), 0.0, 0.0)
    gpus = [each.gpu for each in state.gpus]
    rows = [((str(g.index), g.uuid, g.product), {"temperature": g.temperature, "power": math.nan}) for g in gpus]
    faults = [(("0", "GPU-0", kind, str(code)), count) for (kind, code), count in state.gpus[0].counts.items()]
    registry = CollectorRegistry()
    registry.register(agent_metrics.GpuCollector(lambda: rows, lambda: faults))
    text = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert sorted(text) == [
        'trimtab_gpu_faults_total{gpu="0",kind="UncorrectableEcc",uuid="GPU-0"} 1.0',
        'trimtab_gpu_temperature_celsius{gpu="0",product="H100",uuid="GPU-0"} 61.0',
        'trimtab_gpu_xid_errors_total{gpu="0",uuid="GPU-0",xid="79"} 1.0',
    ]


# --- what is deployed ------------------------------------------------------------------------------------------------
def documents() -> dict[str, dict[str, object]]:
    return {each["kind"]: each for each in yaml.safe_load_all((MANIFESTS / "agent.yaml").read_text())}


def test_the_manifests_and_the_program_agree_on_names() -> None:
    text = (MANIFESTS / "agent.yaml").read_text()
    account = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.AGENT_ACCOUNT}"
    assert account in text
    assert f"'{names.ANNOTATION_REPAIRED}' in object.metadata.annotations" in text
    assert set(documents()) == {
        "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet",
        "NetworkPolicy", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    }  # fmt: skip


def test_the_pod_has_no_more_power_than_it_needs() -> None:
    daemon: Any = documents()["DaemonSet"]
    spec = daemon["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsUser"] == 0, "the kubelet's socket is root's"
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert not any("hostNetwork" in each or "hostPID" in each for each in spec)
    assert "nvidia.com/gpu" not in json.dumps(container["resources"]), "it would take the GPU from a training"
    assert "cpu" not in container["resources"]["limits"]
    assert container["command"] == ["python", "-m", "trimtab.agent"]
