"""What a real API server, kubeconform and Helm make of the chart."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hack.chart.render import CHART, KUBERNETES, NAMED, RenderError, helm
from hack.chart.tools import build
from tests.chart.openapi import write_schemas
from tests.chart.rendered import FILES, MANIFESTS, objects_of, parse, text_of
from tests.docs.pages import blocks

from trimtab.errors import LocalClusterError
from trimtab.names import SYSTEM_NAMESPACE
from trimtab_local.control_plane.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]  # the first test builds helm

Kubectl = Callable[..., str]
OF_OTHERS = ("monitoring.coreos.com/v1", "cert-manager.io/v1")
"""Kinds whose CRDs the session's cluster does not have."""


@pytest.fixture(scope="module")
def schemas(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Schemas of everything that the API server serves, our own kinds too."""
    directory = tmp_path_factory.mktemp("schemas")
    assert write_schemas(kubectl, directory) > 100
    return directory


def kubeconform(schemas: Path, text: str) -> subprocess.CompletedProcess[str]:
    """What kubeconform says of some manifests."""
    places = [
        f"{folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
        for folder in (schemas, Path(__file__).with_name("schemas"))
    ]
    command = [str(build() / "kubeconform"), "-strict", "-output", "json", "-summary"]
    command += [argument for place in places for argument in ("-schema-location", place)]
    command += ["-kubernetes-version", KUBERNETES.removeprefix("v")]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", FILES)
def test_every_object_is_as_its_schema_says(name: str, schemas: Path) -> None:
    checked = kubeconform(schemas, text_of(name))
    told = json.loads(checked.stdout)
    assert (told.get("resources") or []) == []
    assert checked.returncode == 0
    assert told["summary"]["valid"] == len(objects_of(name))


def test_samples_are_as_our_own_schemas_say(schemas: Path) -> None:
    for path in sorted(MANIFESTS.glob("samples/*.yaml")):
        assert kubeconform(schemas, path.read_text()).returncode == 0, path.name


def test_the_check_finds_what_is_wrong(schemas: Path) -> None:
    """A field too many, one level down, in a kind of Kubernetes and in one of ours."""
    found = parse(text_of("default"))
    deployment = next(each for each in found if each["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["hostNetworking"] = True
    refused = kubeconform(schemas, yaml.safe_dump(deployment))
    assert (refused.returncode, "hostNetworking" in refused.stdout) == (1, True)
    sample = yaml.safe_load((MANIFESTS / "samples" / "llama3-8b.yaml").read_text())
    sample["spec"]["trainning"] = {}
    refused = kubeconform(schemas, yaml.safe_dump(sample))
    assert (refused.returncode, "trainning" in refused.stdout) == (1, True)


@pytest.mark.parametrize("name", FILES)
def test_the_api_server_would_take_it(name: str, kubectl: Kubectl) -> None:
    known = [each for each in objects_of(name) if each["apiVersion"] not in OF_OTHERS]
    here = [each for each in known if each["metadata"].get("namespace") != "trimtab-agents"]
    assert len(here) > 10
    used = {each["spec"].get("serviceAccountName") for each in here if each["kind"] == "Pod"}
    accounts = [each for each in here if each["kind"] == "ServiceAccount" and each["metadata"]["name"] in used]
    if accounts:  # a pod is refused without its account, which a dry run does not make
        kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(accounts))
    answer = kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-o", "name", "-f", "-",
        stdin=yaml.safe_dump_all(here),
    )  # fmt: skip
    assert len(answer.splitlines()) == len(here)


# --- a release's life, in a cluster of its own -----------------------------------------------------------------------
@pytest.fixture(scope="module")
def empty(state_home: Path) -> Iterator[LocalCluster]:
    """A cluster without Trimtab, with nodes on which pods run as KWOK has them."""
    with LocalCluster(f"chart-{os.getpid()}") as cluster:
        nodes = MANIFESTS / "fake" / "heterogeneous.yaml"
        command = [sys.executable, "-m", "trimtab", "fake-nodes", "apply", "-f", str(nodes)]
        subprocess.run([*command, "--kubeconfig", str(cluster.kubeconfig)], check=True, capture_output=True)
        yield cluster


def released(cluster: LocalCluster, command: str, *arguments: str) -> str:
    """Output of a command of helm about the release in a cluster."""
    where = ("--kubeconfig", str(cluster.kubeconfig), "--namespace", SYSTEM_NAMESPACE)
    named = ("--values", str(NAMED)) if command in ("install", "upgrade") else ()
    return helm(command, "trimtab", *named, *arguments, *where)


def data_of(cluster: LocalCluster, secret: str) -> dict[str, bytes]:
    """Content of a Secret."""
    text = cluster.kubectl("get", "secret", secret, "-n", SYSTEM_NAMESPACE, "-o", "jsonpath={.data}")
    return {key: base64.b64decode(value) for key, value in json.loads(text).items()}


def applied(cluster: LocalCluster, manifest: Path) -> None:
    """Applies a manifest once the API server can judge it.

    It refuses everything that a new admission policy with parameters is about until it has read their kind, which takes
    it a moment. Fake pods are ready before that: `helm install --wait` of a real cluster has images to pull meanwhile.
    """
    deadline = time.monotonic() + 60.0
    while True:
        try:
            cluster.kubectl("apply", "-f", str(manifest))
        except LocalClusterError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)
        else:
            return


def pods(cluster: LocalCluster) -> set[str]:
    """UIDs of all pods of Trimtab."""
    text = cluster.kubectl("get", "pods", "-n", SYSTEM_NAMESPACE, "-o", "jsonpath={.items[*].metadata.uid}")
    return set(text.split())


def test_a_release_from_its_first_day_to_its_last(empty: LocalCluster, tmp_path: Path) -> None:
    """Installed, upgraded twice, rolled back and uninstalled; each leaves alone what it does not have to touch."""
    values = (
        "{binding: {mode: Extender}, extender: {enabled: true}, scheduler: {enabled: true}, agent: {enabled: false}"
    )
    file = tmp_path / "values.yaml"
    file.write_text(f"{values}}}\n")  # no agents: the local cluster has no controller for DaemonSets
    settled = ("--wait", "--timeout", "3m")
    released(empty, "install", str(CHART), "--create-namespace", "--values", str(file), *settled)
    before, running = data_of(empty, "trimtab-extender-tls"), pods(empty)
    assert len(running) > 4
    applied(empty, MANIFESTS / "samples" / "gpt2-124m.yaml")

    file.write_text(f"{values}, policy: {{name: fcfs}}}}\n")
    released(empty, "upgrade", str(CHART), "--values", str(file), *settled)
    assert pods(empty) == running, "another policy restarts nothing"
    chosen = empty.kubectl(
        "get", "configmap", "trimtab-policy", "-n", SYSTEM_NAMESPACE, "-o", "jsonpath={.data.policy}"
    )
    assert chosen == "fcfs"
    assert data_of(empty, "trimtab-extender-tls") == before, "certificates outlive upgrades"

    released(empty, "rollback", "1", *settled)
    assert pods(empty) == running
    assert data_of(empty, "trimtab-extender-tls") == before

    annotated = "trimtab.dev/not-after=2020-01-01"
    empty.kubectl("annotate", "secret", "trimtab-extender-tls", "-n", SYSTEM_NAMESPACE, "--overwrite", annotated)
    released(empty, "upgrade", str(CHART), "--values", str(file), "--force-conflicts", *settled)
    after, scheduler = data_of(empty, "trimtab-extender-tls"), data_of(empty, "trimtab-scheduler-tls")
    assert after["tls.crt"] != before["tls.crt"], "and are replaced in time,"
    assert scheduler["ca.crt"] == after["ca.crt"], "all of them together,"
    assert running - pods(empty), "with those who read them once"

    released(empty, "uninstall", "--wait", "--timeout", "3m")
    assert empty.kubectl("get", "ltj", "-A", "-o", "name").split() == ["llmtrainingjob.trimtab.dev/gpt2-124m"]
    kept = {
        f"customresourcedefinition.apiextensions.k8s.io/{kind}.trimtab.dev"
        for kind in ("gpunodes", "llmtrainingjobs", "queues")
    }
    deadline = time.monotonic() + 90.0
    while (left := labelled(empty)) != kept and time.monotonic() < deadline:
        time.sleep(1.0)  # Kubernetes collects pods, replica sets and endpoints behind what owned them
    assert left == kept


def labelled(cluster: LocalCluster) -> set[str]:
    """Everything in a cluster that says it is Trimtab's."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    asked = ",".join(kind for kind in kinds if not kind.startswith("events"))
    return set(cluster.kubectl("get", asked, "-A", "-l", "app.kubernetes.io/part-of=trimtab", "-o", "name").split())


def test_a_second_release_is_refused(empty: LocalCluster) -> None:
    released(empty, "install", str(CHART), "--create-namespace")
    with pytest.raises(RenderError, match="invalid ownership metadata"):
        helm(
            "install", "second", str(CHART), "--kubeconfig", str(empty.kubeconfig), "--namespace", "elsewhere",
            "--create-namespace", "--values", str(NAMED),
        )  # fmt: skip
    released(empty, "uninstall")


# --- the documentation's commands for clusters with Helm -------------------------------------------------------------
@pytest.fixture
def kubelets(empty: LocalCluster) -> Iterator[None]:
    """What the local cluster has nobody for: agents are on all nodes, and pods of `helm test` come to their end."""
    ended = threading.Event()

    def stand_in() -> None:
        while not ended.wait(2.0):
            found = json.loads(empty.kubectl("get", "daemonsets,pods", "-n", SYSTEM_NAMESPACE, "-o", "json"))["items"]
            for each in found:
                name, generation = each["metadata"]["name"], each["metadata"].get("generation")
                status: dict[str, object] = {"phase": "Succeeded"}
                if each["kind"] == "DaemonSet":
                    counts = ("currentNumberScheduled", "desiredNumberScheduled", "numberReady", "numberAvailable")
                    status = {**dict.fromkeys((*counts, "updatedNumberScheduled"), 1), "observedGeneration": generation}
                elif "helm.sh/hook" not in each["metadata"].get("annotations", {}):
                    continue
                patch = json.dumps({"status": status})
                where = ("-n", SYSTEM_NAMESPACE, "--subresource=status", "--type=merge", "-p", patch)
                with suppress(LocalClusterError):  # it is gone
                    empty.kubectl("patch", each["kind"].lower(), name, *where)

    thread = threading.Thread(target=stand_in)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.usefixtures("kubelets")
def test_the_commands_of_the_documentation_are_taken(empty: LocalCluster) -> None:
    """From `helm install` in the chart's manual to the last line of docs/tasks/upgrade.md, with the names they use."""
    script = "\n".join(["set -euo pipefail", *blocks("sh chart")])
    path = f"{build()}:{empty.binaries}:{os.environ['PATH']}"
    given = {"KUBECONFIG": str(empty.kubeconfig), "PATH": path, "REGISTRY": "registry.example.com/trimtab"}
    done = subprocess.run(
        ["bash", "-xc", script], cwd=CHART.parents[1], env={**os.environ, **given}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    left = empty.kubectl("get", "crds,clusterroles,namespaces", "--output=name")
    assert "trimtab" not in left.replace("trimtab:kwok", ""), "but for the local cluster's own kubelets"
