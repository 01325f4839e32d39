"""Jobs of other kinds are advised: real CRDs of JobSet and Kubeflow Trainer, batch Jobs of the API server's own, and
the real controller with no more rights than manifests/other-kinds.yaml and its admission policy give."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.foreign.test_read import COMMAND, pod
from tests.live.harness import ControllerProcess, Live, eventually, training_job

from trimtab import names
from trimtab.errors import LocalClusterError
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.build import find_go
from trimtab_local.control_plane.kubeconfig import service_account_kubeconfig

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
MODULES = {
    "sigs.k8s.io/jobset@v0.10.1": ["config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"],
    "github.com/kubeflow/trainer/v2@v2.3.0": [
        f"manifests/base/crds/trainer.kubeflow.org_{plural}.yaml"
        for plural in ("trainjobs", "clustertrainingruntimes", "trainingruntimes")
    ],
}
ADVISE = {"other_kinds": "Advise", "advise_seconds": 2.0}
SMALL = [COMMAND[0], COMMAND[1], COMMAND[2].replace("$SLURM_NNODES", "2")]


def crds(directory: Path) -> list[Path]:
    """Files of the CRDs, of the Go modules of their projects; skips where these cannot be had."""
    found = []
    for module, files in MODULES.items():
        try:
            command = [str(find_go((1, 24))), "mod", "download", "-json", module]
            got = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=True)
        except (LocalClusterError, OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"{module} cannot be had here: {error}")
        found += [Path(json.loads(got.stdout)["Dir"]) / file for file in files]
    return found


@pytest.fixture(scope="module")
def other_kinds(live_cluster: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The cluster with these kinds, the controller's rights to them, and all admission policies."""
    kubectl = live_cluster.cluster.kubectl
    files = crds(tmp_path_factory.mktemp("go"))
    manifests = checkout() / "manifests"
    for file in [*files, manifests / "other-kinds.yaml", manifests / "admission.yaml"]:
        kubectl("apply", "--server-side", "-f", str(file))
    for file in files:
        kubectl("wait", "--for=jsonpath={.status.conditions}", "-f", str(file), "--timeout=30s")
        kubectl("wait", "--for=condition=Established", "-f", str(file), "--timeout=30s")
    yield live_cluster
    for file in [*files, manifests / "other-kinds.yaml", manifests / "admission.yaml"]:
        kubectl("delete", "-f", str(file), "--ignore-not-found", "--timeout=60s")


def labelled(version: str, kind: str, name: str, spec: Json, **stated: str) -> Json:
    meta = {
        "name": name,
        "labels": {names.LABEL_ADVISE: "true"},
        "annotations": {names.STATED[field]: value for field, value in stated.items()},
    }
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def jobset(name: str, nodes: int = 2) -> Json:
    template = {"spec": {"parallelism": nodes, "completions": nodes, "template": pod(SMALL, restartPolicy="Never")}}
    spec = {"suspend": True, "replicatedJobs": [{"name": "node", "replicas": 1, "template": template}]}
    return labelled("jobset.x-k8s.io/v1alpha2", "JobSet", name, spec)


def job(name: str, nodes: int = 2, command: list[str] | None = None) -> Json:
    template = pod(command or SMALL, restartPolicy="Never")
    spec = {"suspend": True, "parallelism": nodes, "completions": nodes, "completionMode": "Indexed"}
    return labelled("batch/v1", "Job", name, spec | {"template": template})


def trainjob(name: str, runtime: str) -> Json:
    trainer = {"numNodes": 2, "command": SMALL, "resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}}}
    spec = {"suspend": True, "runtimeRef": {"name": runtime}, "trainer": trainer}
    return labelled("trainer.kubeflow.org/v1alpha1", "TrainJob", name, spec)


def runtime(name: str) -> Json:
    template = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}}
    container = {"name": "node", "image": "trainer:1"}
    template |= {"spec": {"template": {"spec": {"containers": [container]}}}}
    jobs = [{"name": "node", "template": template}]
    spec = {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": jobs}}}
    meta = {"name": name, "labels": {"trainer.kubeflow.org/framework": "torch"}}
    version = "trainer.kubeflow.org/v1alpha1"
    return {"apiVersion": version, "kind": "ClusterTrainingRuntime", "metadata": meta, "spec": spec}


def advice(live: Live, kind: str, name: str) -> dict[str, str]:
    """What the annotations of an advice say, by its fields."""
    found = live.get(kind, name).get("metadata", {}).get("annotations", {})
    return {field: found[annotation] for field, annotation in names.ADVICE.items() if annotation in found}


async def advised(live: Live, kind: str, name: str, field: str, words: str = "") -> dict[str, str]:
    await eventually(
        lambda: field in (said := advice(live, kind, name)) and words in said[field],
        60,
        lambda: f"{kind} {name} to be told {field} {words}: {advice(live, kind, name)}",
    )
    return advice(live, kind, name)


def untouched(before: Json, after: Json) -> bool:
    """Whether nothing but our annotations differs."""

    def rest(found: Json) -> Json:
        meta = {
            key: value for key, value in found["metadata"].items() if key not in ("resourceVersion", "managedFields")
        }
        kept = {k: v for k, v in meta.get("annotations", {}).items() if k not in names.ADVICE.values()}
        return found | {"metadata": meta | {"annotations": kept}, "status": {}}

    return rest(before) == rest(after)


KINDS = [("jobset", jobset("advised")), ("job.batch", job("advised")), ("trainjob", trainjob("advised", "advised"))]


async def test_jobs_of_three_kinds_are_told_what_they_would_get_and_stay_as_they_are(
    live: Live, other_kinds: Live, tmp_path: Path
) -> None:
    unlabelled = job("unasked")
    del unlabelled["metadata"]["labels"]
    live.apply(runtime("advised"), *(made for _, made in KINDS), unlabelled)
    before = {kind: live.get(kind, "advised") for kind, _ in KINDS}
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=ADVISE):
        for kind, _ in KINDS:
            said = await advised(live, kind, "advised", "plan")
            assert (said["gpu_type"], said["gpus"], said["nodes"]) == ("A100-SXM4-80GB", "16", "2")
            assert said["end"] > said["start"] == said["at"]
            assert said["because"]
            assert untouched(before[kind], live.get(kind, "advised"))
        await eventually(lambda: live.events("advised").count(names.REASON_ADVICE) >= 3, what="an event for each")
        assert not advice(live, "job.batch", "unasked")
        assert not live.list("ltj")
    before_takeover = {kind: advice(live, kind, "advised") for kind, _ in KINDS}
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=ADVISE):
        live.apply(job("younger"))
        await advised(live, "job.batch", "younger", "plan")
        for kind, _ in KINDS:
            said = advice(live, kind, "advised")  # with the time at which it was said
            assert said == before_takeover[kind], "who takes over says nothing again that stands there"
    live.delete("job.batch", "younger")
    for kind, _ in KINDS:
        live.delete(kind, "advised")
    live.delete("job.batch", "unasked")


async def test_who_would_wait_is_told_why_and_hears_when_that_changes(
    live: Live, other_kinds: Live, tmp_path: Path
) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=ADVISE):
        live.apply(training_job("fills", gpus=32, seconds=3600))
        await live.until("fills", "PodsReady")
        live.apply(jobset("waits"))
        said = await advised(live, "jobset", "waits", "because", "InsufficientGpus")
        assert said["gpus"] == "16", "what it would get when its turn comes"
        assert live.holds("fills", "PodsReady"), "an advice takes nothing from anybody"
        live.delete("ltj", "fills", "--wait=false")
        await eventually(
            lambda: (now := advice(live, "jobset", "waits")) and now.get("start") == now["at"],
            60,
            lambda: f"it to be told that it could start: {advice(live, 'jobset', 'waits')}",
        )
    live.delete("jobset", "waits")


async def test_what_is_missing_or_wrong_is_named_until_it_is_stated(
    live: Live, other_kinds: Live, tmp_path: Path
) -> None:
    live.apply(
        job("vague", command=["python", "train_llm.py"]),
        trainjob("homeless", "no-such-runtime"),
        job("twisted", command=[*SMALL[:2], SMALL[2].replace("model-parallel-size 4", "model-parallel-size 5")]),
    )
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, interop=ADVISE):
        said = await advised(live, "job.batch", "vague", "problem", names.STATED["global_batch_size"])
        assert "plan" not in said
        await advised(live, "trainjob", "homeless", "problem", "no-such-runtime")
        await eventually(lambda: names.REASON_NO_ADVICE in live.events("vague"), what="the event")
        twisted = await advised(live, "job.batch", "twisted", "at")
        assert "plan" not in twisted
        assert "tensor" in (twisted.get("problem") or twisted["because"]), twisted
        stated = {"model": "gpt2", "sequence_length": "1024", "global_batch_size": "16", "steps": "1000"}
        live.patch("job.batch", "vague", {"metadata": {"annotations": {names.STATED[k]: v for k, v in stated.items()}}})
        assert "problem" not in await advised(live, "job.batch", "vague", "plan")
    live.delete("job.batch", "vague")
    live.delete("job.batch", "twisted")
    live.delete("trainjob", "homeless")


def test_the_controller_can_write_nothing_else(other_kinds: Live, tmp_path: Path) -> None:
    """Each with the controller's own token: refused by the admission policy, or by RBAC."""
    live = other_kinds
    quiet = job("quiet")
    quiet["metadata"]["labels"] = {}
    live.apply(job("held"), quiet)
    path = tmp_path / "controller.kubeconfig"
    service_account_kubeconfig(live.cluster.kubeconfig, "trimtab-system", "trimtab-controller", path)

    def tried(name: str, patch: Json, *more: str) -> str:
        try:
            arguments = ["patch", "job.batch", name, "--type=merge", "-p", json.dumps(patch), "-n", "default", *more]
            live.cluster.kubectl("--kubeconfig", str(path), *arguments)
        except LocalClusterError as error:
            return str(error)
        return ""

    ours = {"metadata": {"annotations": {names.ADVICE["plan"]: "TP8"}}}
    assert tried("held", ours) == ""
    assert "trimtab.dev/advise" in tried("quiet", ours)
    for patch in (
        {"spec": {"suspend": False}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"labels": {names.LABEL_ADVISE: None}}},
        {"metadata": {"annotations": {"other": "x"}}},
        {"metadata": {"annotations": {names.STATED["steps"]: "1"}}},
        {"metadata": {"finalizers": ["trimtab.dev/x"]}},
    ):
        assert "annotations trimtab.dev/advice-* only" in tried("held", patch), patch
    assert "jobs/status" in tried("held", {"status": {"active": 1}}, "--subresource=status")
    live.delete("job.batch", "held")
    live.delete("job.batch", "quiet")
