"""The console against a real API server: with the rights that the chart gives it, and visitors with real tokens."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.live.harness import eventually, training_job
from tests.top.terminal import in_terminal

from trimtab.names import SYSTEM_NAMESPACE
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.kubeconfig import service_account_kubeconfig
from trimtab_local.control_plane.process import spawn, stop

pytestmark = pytest.mark.cluster

OURS, THEIRS, JOB, SECRET = "web-ours", "web-theirs", "mine", "hush-hush"
SECONDS = 90.0


class Page:
    """The console of the chart, with its own account."""

    def __init__(self, url: str, tokens: dict[str, str]) -> None:
        self.url, self.tokens = url, tokens

    def get(self, path: str, who: str = "") -> tuple[int, bytes]:
        """Status and body of an answer; 0 where nobody answers."""
        headers = {"Authorization": f"Bearer {self.tokens.get(who, who)}"} if who else {}
        request = urllib.request.Request(f"{self.url}/{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""


def _applied(cluster: LocalCluster) -> None:
    """Rights of the console, two namespaces with a job each, and visitors: one of a namespace, one of everything."""
    kubectl = cluster.kubectl
    documents = list(yaml.safe_load_all((checkout() / "manifests" / "web.yaml").read_text()))
    rights = [each for each in documents if each["kind"] in ("ServiceAccount", "ClusterRole", "Role") or
              each["kind"].endswith("Binding")]  # fmt: skip
    kubectl("apply", "-f", str(checkout() / "manifests" / "roles.yaml"))
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    for namespace, name in ((OURS, JOB), (THEIRS, SECRET)):
        kubectl("create", "namespace", namespace)
        job = training_job(name)
        job["metadata"]["namespace"] = namespace
        kubectl("apply", "-f", "-", stdin=json.dumps(job))
    for name in ("ann", "root", "eve"):
        kubectl("create", "serviceaccount", name, "-n", OURS)
    account = f"--serviceaccount={OURS}"
    kubectl("create", "rolebinding", "ann", "-n", OURS, "--clusterrole=trimtab-viewer", f"{account}:ann")
    kubectl("create", "clusterrolebinding", "web-root", "--clusterrole=cluster-admin", f"{account}:root")


@pytest.fixture(scope="module")
def page(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The console, serving."""
    _applied(cluster)
    folder: Path = tmp_path_factory.mktemp("web")
    kubeconfig = folder / "kubeconfig"
    service_account_kubeconfig(cluster.kubeconfig, SYSTEM_NAMESPACE, "trimtab-web", kubeconfig)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"web": {"host": "127.0.0.1", "port": port}, "metrics": {"host": "127.0.0.1", "port": 0}}
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    words = [sys.executable, "-m", "trimtab", "web", f"--config={folder}/settings.yaml", f"--kubeconfig={kubeconfig}"]
    process = spawn(words, folder / "log", dict(os.environ))
    tokens = {name: cluster.kubectl("create", "token", name, "-n", OURS).strip() for name in ("ann", "root", "eve")}
    found = Page(f"http://127.0.0.1:{port}", tokens)
    asyncio.run(eventually(lambda: found.get("readyz")[0] == 200, SECONDS, lambda: (folder / "log").read_text()))
    yield found
    stop([process], 10.0)
    for namespace in (OURS, THEIRS):
        cluster.kubectl("delete", "ltj", "--all", "-n", namespace)
    cluster.kubectl("delete", "clusterrolebinding", "web-root")


@pytest.fixture(scope="module")
def tenant(page: Page, cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kubeconfig of somebody with the rights of one namespace."""
    kubeconfig = tmp_path_factory.mktemp("tenant") / "kubeconfig"
    service_account_kubeconfig(cluster.kubeconfig, OURS, "ann", kubeconfig)
    return kubeconfig


@pytest.fixture(scope="module")
def own(tenant: Path) -> Iterator[Page]:
    """`trimtab ui` with those rights."""
    out = tenant.with_name("out")
    words = [sys.executable, "-m", "trimtab", "ui", "--no-browser", f"--kubeconfig={tenant}", f"--namespace={OURS}"]
    process = spawn(words, out, dict(os.environ))
    found = Page("", {})

    def serves() -> bool:
        said = out.read_text().splitlines()
        found.url = next((line.rstrip("/") for line in said if line.startswith("http")), "http://127.0.0.1:1")
        return found.get("api/v1/jobs")[0] == 200

    asyncio.run(eventually(serves, SECONDS, out.read_text))
    yield found
    stop([process], 10.0)


def keys(body: bytes) -> set[str]:
    items: list[dict[str, Any]] = json.loads(body)["items"]
    return {f"{item['namespace']}/{item['name']}" for item in items}


def test_a_user_of_one_namespace_sees_its_jobs_and_no_byte_of_others(page: Page) -> None:
    status, body = page.get("api/v1/jobs", "ann")
    assert (status, keys(body)) == (200, {f"{OURS}/{JOB}"})
    for path in ("whoami", "overview", "queues", "timeline", f"jobs/{OURS}/{JOB}", f"jobs/{THEIRS}/{SECRET}", "nodes"):
        status, body = page.get(f"api/v1/{path}", "ann")
        assert status in (200, 403), path
        assert THEIRS.encode() not in body
        assert SECRET.encode() not in body
    assert json.loads(page.get("api/v1/whoami", "ann")[1])["leftOut"]["jobs"] >= 1


def test_an_administrator_sees_all_of_them(page: Page) -> None:
    assert keys(page.get("api/v1/jobs", "root")[1]) >= {f"{OURS}/{JOB}", f"{THEIRS}/{SECRET}"}
    assert page.get("api/v1/nodes", "root")[0] == 200
    status, body = page.get("api/v1/doctor", "root")
    assert status == 200
    assert json.loads(body)["findings"]


def test_who_may_nothing_sees_nothing_and_who_is_nobody_is_not_let_in(page: Page) -> None:
    assert keys(page.get("api/v1/jobs", "eve")[1]) == set()
    assert page.get("api/v1/jobs", "a.b.c")[0] == 401
    assert page.get("api/v1/jobs")[0] == 401
    assert page.get("")[0] in (200, 404)  # the page itself is no secret


def test_its_own_rights_are_enough_for_all_that_it_follows(page: Page) -> None:
    assert json.loads(page.get("api/v1/whoami", "root")[1])["trouble"] == ""


def test_with_the_rights_of_one_namespace_a_page_of_ones_own_shows_it_and_says_what_is_left_out(own: Page) -> None:
    assert keys(own.get("api/v1/jobs")[1]) == {f"{OURS}/{JOB}"}
    me = json.loads(own.get("api/v1/whoami")[1])
    assert (me["namespaces"], me["unseen"], me["trouble"]) == ([OURS], "other namespaces, nodes, queues", "")
    told = json.loads(own.get(f"api/v1/jobs/{OURS}/{JOB}")[1])["told"]
    assert ["Job", f"{OURS}/{JOB}"] in told
    assert any(name == "Not known" for name, _ in told)
    assert {path: own.get(f"api/v1/{path}")[0] for path in ("nodes", "queues", "doctor", "overview", "timeline")} == {
        "nodes": 403, "queues": 403, "doctor": 403, "overview": 200, "timeline": 200,
    }  # fmt: skip


async def test_with_those_rights_top_shows_it_too(tenant: Path) -> None:
    words = [sys.executable, "-m", "trimtab", "top", f"--kubeconfig={tenant}", f"--namespace={OURS}"]
    written, code = await asyncio.to_thread(in_terminal, words, f"{OURS}/{JOB}".encode(), COLUMNS="120")
    assert code == 0, written[-2000:]
    assert b"left out: other namespaces, nodes, queues" in written
    assert b"may be out of date" not in written


async def test_who_may_see_no_job_is_told_what_to_ask_for(tenant: Path) -> None:
    words = [sys.executable, "-m", "trimtab", "top", f"--kubeconfig={tenant}", f"--namespace={THEIRS}"]
    written, code = await asyncio.to_thread(in_terminal, words, b"never written")
    assert code == 1
    assert b"--namespace" in written
