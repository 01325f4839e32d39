"""A connection to the API server that is loaded at once: 0.1 s and 20 MiB less than `connection`, which knows more.

It takes what a pod has (service account token and CA), and a kubeconfig with certificates, a token or a token file:
what agents on nodes are given, and many people have. Plugins that fetch credentials (`exec`, `auth-provider`),
passwords and kubeconfigs of several files are for `connection`.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from trimtab.errors import SettingsError
from trimtab_policy.inputs import documents

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REFRESH_SECONDS = 60.0
"""Token files are read again so often: the kubelet replaces them long before they run out."""


USER_KEYS = frozenset(
    {
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
        "token",
        "tokenFile",
        "extensions",
    }
)
"""Credentials that are understood here, and what is none."""


DEFAULT_NAMESPACE = "default"


class Endpoint(Struct, frozen=True):
    """Where, and who we are. PEM contents, not paths; no CA: those of the system."""

    server: str
    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    token_file: str = ""
    server_name: str = ""
    verify: bool = True
    proxy: str = ""


class PlainConnection:
    """`trimtab.kube.client.Access` of an endpoint. Raises SettingsError when its token file cannot be read."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._token = endpoint.token or self._read()
        self._refreshed = time.monotonic()

    @property
    def server(self) -> str:
        """Base URL without a trailing slash."""
        return self._endpoint.server.rstrip("/")

    @property
    def authorization(self) -> str | None:
        """Value of the Authorization header."""
        return f"Bearer {self._token}" if self._token else None

    @property
    def tls_server_name(self) -> str | None:
        """Name in the server's certificate, where it is not that of the URL."""
        return self._endpoint.server_name or None

    @property
    def proxy(self) -> str | None:
        """HTTP proxy: of the kubeconfig, else of the environment (HTTPS_PROXY, NO_PROXY)."""
        url = urlsplit(self.server)
        if self._endpoint.proxy or urllib.request.proxy_bypass(url.hostname or ""):
            return self._endpoint.proxy or None
        return urllib.request.getproxies().get(url.scheme)

    def ssl_context(self) -> ssl.SSLContext:
        """TLS with the server's CA and our client certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if not self._endpoint.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self._endpoint.ca:
            context.load_verify_locations(cadata=self._endpoint.ca.decode())
        else:
            context.load_default_certs()
        if self._endpoint.certificate:
            with tempfile.NamedTemporaryFile() as file:  # OpenSSL takes keys from files only; 0600, and gone at once
                file.write(self._endpoint.certificate + b"\n" + self._endpoint.key)
                file.flush()
                context.load_cert_chain(file.name)
        return context

    def needs_refresh(self) -> bool:
        """Whether the token is due to be read again."""
        return bool(self._endpoint.token_file) and time.monotonic() - self._refreshed >= REFRESH_SECONDS

    def distrust(self) -> None:
        """The server refused our token: read it again before the next request."""
        self._refreshed = -REFRESH_SECONDS

    async def refresh(self) -> None:
        """Read the token again. Raises SettingsError; the old one stays in use then."""
        self._refreshed = time.monotonic()
        self._token = self._read()

    def _read(self) -> str:
        if not self._endpoint.token_file:
            return ""
        try:
            return Path(self._endpoint.token_file).read_text().strip()
        except OSError as error:
            raise SettingsError(f"cannot read the token of the API server: {error}") from error


def endpoint(kubeconfig: Path | None = None, context: str | None = None) -> Endpoint:
    """The API server as `kube.kubeconfig`, $KUBECONFIG, the pod's service account or ~/.kube/config say, in this order.

    Raises SettingsError when there is none, or it cannot be used.
    """
    explicit = str(kubeconfig or os.environ.get("KUBECONFIG", "")).partition(os.pathsep)[0]
    if not explicit and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster()
    path = Path(explicit or "~/.kube/config").expanduser()
    try:
        return _of_kubeconfig(documents.parse(path.read_bytes()), path, context)
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise SettingsError(
            f"cannot use the kubeconfig {path} ({problem}); set KUBECONFIG or kube.kubeconfig"
        ) from error


def plain(kubeconfig: Path | None, context: str | None) -> PlainConnection | None:
    """The connection, where this module knows all that it takes; None for a kubeconfig of several files.

    Raises SettingsError as `endpoint` does.
    """
    if os.pathsep in str(kubeconfig or os.environ.get("KUBECONFIG", "")):
        return None
    return PlainConnection(endpoint(kubeconfig, context))


def namespace(kubeconfig: Path | None = None, context: str | None = None) -> str:
    """The namespace of the context, or of the pod that we run in; `default` where nobody says another.

    Says nothing about what is malformed: whoever connects is told.
    """
    explicit = str(kubeconfig or os.environ.get("KUBECONFIG", ""))
    try:
        if not explicit and os.environ.get("KUBERNETES_SERVICE_HOST"):
            return (ACCOUNT / "namespace").read_text().strip() or DEFAULT_NAMESPACE
        files = [Path(each).expanduser() for each in (explicit or "~/.kube/config").split(os.pathsep) if each]
        read = [documents.parse(each.read_bytes()) or {} for each in files if each.is_file()]
        name = context or next(each["current-context"] for each in read if each.get("current-context"))
        contexts = [each for content in read for each in content.get("contexts") or () if each["name"] == name]
        return str(contexts[0]["context"].get("namespace") or DEFAULT_NAMESPACE)
    except (OSError, StopIteration, LookupError, AttributeError, TypeError, ValueError):
        return DEFAULT_NAMESPACE


def _in_cluster() -> Endpoint:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        ca = (ACCOUNT / "ca.crt").read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read the CA of the cluster: {error}") from error
    return Endpoint(f"https://{f'[{host}]' if ':' in host else host}:{port}", ca=ca, token_file=str(ACCOUNT / "token"))


def _of_kubeconfig(content: Any, path: Path, context: str | None) -> Endpoint:
    name = context or content["current-context"]
    chosen = _named(content, "contexts", name)["context"]
    cluster = _named(content, "clusters", chosen["cluster"])["cluster"]
    user = _named(content, "users", chosen["user"])["user"] or {} if chosen.get("user") else {}
    for unknown in sorted(set(user) - USER_KEYS):
        plugin = " from a plugin" if unknown in ("exec", "auth-provider") else ""
        told = f"context {name!r} gets its credentials{plugin} ({unknown}), which the agent cannot use"
        raise SettingsError(f"{path}: {told}: give it a token, a token file or a client certificate")
    return Endpoint(
        server=cluster["server"],
        ca=_pem(cluster, "certificate-authority", path),
        certificate=_pem(user, "client-certificate", path),
        key=_pem(user, "client-key", path),
        token="" if user.get("tokenFile") else user.get("token", ""),
        token_file=str(path.parent / user["tokenFile"]) if user.get("tokenFile") else "",
        server_name=cluster.get("tls-server-name", ""),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        proxy=cluster.get("proxy-url", ""),
    )


def _named(content: Any, kind: str, name: str) -> Any:
    for each in content[kind]:
        if each["name"] == name:
            return each
    raise ValueError(f"there is no {name!r} in {kind}")


def _pem(section: Any, key: str, path: Path) -> bytes:
    """Content that is in the kubeconfig itself (base64), or in a file relative to it."""
    if data := section.get(f"{key}-data"):
        return base64.b64decode(data)
    return (path.parent / section[key]).read_bytes() if section.get(key) else b""
