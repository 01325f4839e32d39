"""The small connection takes the same kubeconfigs as the large one, but for plugins, and says so."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.errors import NotFound, SettingsError
from trimtab.kube import slim_auth
from trimtab.kube.client import KubeClient
from trimtab.kube.connection import connect
from trimtab.kube.resources import NODES
from trimtab.kube.slim_auth import Endpoint, PlainConnection, endpoint
from trimtab.settings import KubeSettings
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.kubeconfig import service_account_kubeconfig

SECRET = {"token": "t"}


def kubeconfig(path: Path, user: dict[str, Any], **cluster: Any) -> Path:
    content = {
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": "https://h:6443/", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_token_and_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    (tmp_path / "token").write_text("first\n")
    path = kubeconfig(
        tmp_path / "config", {"tokenFile": "token", "client-key-data": base64.b64encode(b"KEY").decode()},
        **{"certificate-authority": "ca.pem", "tls-server-name": "kubernetes", "proxy-url": "http://p:3128"},
    )  # fmt: skip
    found = endpoint(path)
    assert (found.ca, found.key, found.server_name) == (b"CA", b"KEY", "kubernetes")
    connection = PlainConnection(found)
    assert (connection.server, connection.authorization) == ("https://h:6443", "Bearer first")
    assert (connection.proxy, connection.tls_server_name) == ("http://p:3128", "kubernetes")


@pytest.mark.parametrize("user", [{"exec": {}}, {"username": "a", "password": "b"}, {"token": "t", "as": "b"}])
def test_credentials_that_it_does_not_know_are_not_left_out(tmp_path: Path, user: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="gets its credentials"):
        slim_auth.plain(kubeconfig(tmp_path / "config", user), None)


def test_several_files_are_for_the_large_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", SECRET)
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert slim_auth.plain(None, None)
    monkeypatch.setenv("KUBECONFIG", f"{path}:{tmp_path / 'other'}")
    assert slim_auth.plain(None, None) is None


def test_the_namespace_is_that_of_the_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", SECRET)
    assert slim_auth.namespace(path) == slim_auth.namespace(tmp_path / "absent") == "default"
    content = yaml.safe_load(path.read_text())
    content["contexts"] += [{"name": "d", "context": {"cluster": "k", "user": "u", "namespace": "team-a"}}]
    path.write_text(yaml.safe_dump(content))
    assert slim_auth.namespace(path, "d") == "team-a"
    (tmp_path / "first").write_text("current-context: d\n")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'first'}:{path}")
    assert slim_auth.namespace() == "team-a"


async def test_a_token_file_that_changes_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    connection = PlainConnection(endpoint(kubeconfig(tmp_path / "c", {"tokenFile": "token"})))
    (tmp_path / "token").write_text("second")
    assert not connection.needs_refresh()
    connection.distrust()
    assert connection.needs_refresh()
    await connection.refresh()
    assert connection.authorization == "Bearer second"
    (tmp_path / "token").unlink()
    with pytest.raises(SettingsError, match="token"):
        await connection.refresh()
    assert connection.authorization == "Bearer second", "the old one stays in use"


def test_the_service_account_of_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.crt").write_text("CA")
    (tmp_path / "token").write_text("t")
    monkeypatch.setattr(slim_auth, "ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = endpoint()
    assert (found.server, found.ca) == ("https://[fd00::1]:443", b"CA")
    assert PlainConnection(found).authorization == "Bearer t"


@pytest.mark.parametrize(
    ("user", "context", "complaint"),
    [
        ({"exec": {"command": "aws"}}, None, "plugin"),
        (SECRET, "other", "there is no 'other' in contexts"),
        ({"client-certificate": "absent.pem"}, None, "absent.pem"),
    ],
)
def test_what_cannot_be_used_is_said(tmp_path: Path, user: dict[str, Any], context: str | None, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        endpoint(kubeconfig(tmp_path / "c", user), context)


@pytest.mark.parametrize("text", ["", "[]", "a: [", "clusters: 3\ncurrent-context: x\ncontexts: y"])
def test_a_file_that_is_no_kubeconfig_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c"
    path.write_text(text)
    with pytest.raises(SettingsError, match="cannot use the kubeconfig"):
        endpoint(path)


@pytest.mark.cluster
async def test_it_reaches_the_same_server_as_the_large_one(cluster: LocalCluster, tmp_path: Path) -> None:
    account = tmp_path / "account.kubeconfig"
    service_account_kubeconfig(cluster.kubeconfig, "trimtab-system", "trimtab-controller", account)
    for path in (cluster.kubeconfig, account):
        small, large = PlainConnection(endpoint(path)), await connect(KubeSettings(kubeconfig=path))
        assert (small.server, small.authorization) == (large.server, large.authorization)
        async with KubeClient(small, KubeSettings()) as client:
            assert await client.get(NODES.path())
            with pytest.raises(NotFound):
                await client.request("GET", NODES.path(name="absent"))


def test_an_endpoint_without_verification_is_only_by_request() -> None:
    assert PlainConnection(Endpoint("https://h")).ssl_context().verify_mode == ssl.CERT_REQUIRED
    assert PlainConnection(Endpoint("https://h", verify=False)).ssl_context().verify_mode == ssl.CERT_NONE
