"""Where the API server is, and how to prove who we are.

Kubeconfig and service account are read by `kubernetes.aio.config`, which knows exec plugins, OIDC and rotating service
account tokens. What comes out is an `ApiConnection`: plain values that our own HTTP client and kopf's both use.

Credentials are read again once a minute, because projected tokens, token files and plugins' answers change. A kubelet
replaces a projected token when 80 % of its life is over, so that a minute-old one is always good.
"""

from __future__ import annotations

import os
import ssl
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.incluster_config import SERVICE_HOST_ENV_NAME, load_incluster_config
from kubernetes.aio.config.kube_config import KubeConfigLoader, load_kube_config

from trimtab.errors import SettingsError
from trimtab.settings import KubeSettings

REFRESH_SECONDS = 60.0
MALFORMED = (ConfigException, OSError, yaml.YAMLError, AttributeError, TypeError, ValueError)
"""What kubernetes.aio raises for kubeconfigs that are absent, unreadable or not shaped as they should be."""


class ClientTlsFiles(NamedTuple):
    """Paths of PEM files; None for the system's CAs, and where there is no client certificate."""

    ca: str | None
    certificate: str | None
    key: str | None


class ApiConnection:
    """An API server and our credentials for it. Made by `connect`."""

    def __init__(self, configuration: Configuration, loader: KubeConfigLoader | None) -> None:
        self._configuration = configuration
        self._loader = loader
        self._refreshed = time.monotonic()

    @property
    def server(self) -> str:
        """Base URL without a trailing slash, e.g. `https://10.96.0.1:443`."""
        return str(self._configuration.host).rstrip("/")

    @property
    def authorization(self) -> str | None:
        """Value of the Authorization header; None where a client certificate says who we are."""
        scheme, _, secret = str(self._configuration.api_key.get("BearerToken", "")).partition(" ")
        return f"{scheme.title()} {secret.strip()}" if secret else None

    @property
    def tls_server_name(self) -> str | None:
        """Name to check the server's certificate against, where it is not the host of the URL."""
        return self._configuration.tls_server_name or None

    @property
    def proxy(self) -> str | None:
        """HTTP proxy: of the kubeconfig, else of the environment (HTTPS_PROXY, NO_PROXY)."""
        url = urlsplit(self.server)
        if self._configuration.proxy or urllib.request.proxy_bypass(url.hostname or ""):
            return self._configuration.proxy or None
        return urllib.request.getproxies().get(url.scheme)

    @property
    def files(self) -> ClientTlsFiles:
        """Where CA and client certificate lie."""
        made = self._configuration
        return ClientTlsFiles(made.ssl_ca_cert or None, made.cert_file or None, made.key_file or None)

    def ssl_context(self) -> ssl.SSLContext:
        """TLS with the server's CA and our client certificate, as the configuration wants it."""
        context: ssl.SSLContext = RESTClientObject(self._configuration).ssl_context
        return context

    def needs_refresh(self) -> bool:
        """Whether the credentials are due to be read again."""
        return time.monotonic() - self._refreshed >= REFRESH_SECONDS

    def distrust(self) -> None:
        """The server refused our credentials: read them again before the next request."""
        self._refreshed = -REFRESH_SECONDS

    async def refresh(self) -> None:
        """Read the credentials again. Raises SettingsError; the old ones stay in use then."""
        self._refreshed = time.monotonic()
        try:
            if self._loader is None:
                load_incluster_config(self._configuration)
            else:
                await self._loader.load_and_set(self._configuration)
        except MALFORMED as error:
            raise SettingsError(f"cannot read the credentials for {self.server} again: {error}") from error


async def connect(settings: KubeSettings) -> ApiConnection:
    """The connection that the settings ask for. Raises SettingsError when there is none, or it is malformed.

    Order: `settings.kubeconfig`, $KUBECONFIG, the service account of the pod that we run in, ~/.kube/config.
    """
    configuration = Configuration()
    explicit = str(settings.kubeconfig or os.environ.get("KUBECONFIG") or "")
    try:
        if not explicit and os.environ.get(SERVICE_HOST_ENV_NAME):
            load_incluster_config(configuration)
            return ApiConnection(configuration, None)
        loader = await load_kube_config(
            _files(explicit or "~/.kube/config"), settings.context, client_configuration=configuration
        )
    except MALFORMED as error:
        raise SettingsError(f"cannot connect to an API server: {error}; set KUBECONFIG or kube.kubeconfig") from error
    return ApiConnection(configuration, loader)


def _files(paths: str) -> str:
    """The colon-separated kubeconfig files, of which at least one must exist."""
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep)):
        raise ConfigException(f"there is no kubeconfig file {paths}")
    return paths
