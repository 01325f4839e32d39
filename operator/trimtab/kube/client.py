"""One HTTP request to the API server at a time: raw bytes in, raw bytes out.

    client = await KubeClient.connect(settings.kube)
    pod = await client.get(PODS.path("team-a", "train-0"))
    await client.bind("team-a", "train-0", uid, "gpu-17")

Every request has a deadline and ends in bytes or in an error of `trimtab.errors`. Reads are tried again a few times;
writes never: whoever wrote looks at the cluster again and decides anew. `before_write` runs right before each write and
may refuse it by raising (leadership does). Watches have connections of their own, so that a burst of bindings cannot
starve them.

Nothing here knows a typed Kubernetes class: they cost 130 MiB and 100 times the decoding time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode

import aiohttp
import msgspec
from yarl import URL

from trimtab.errors import Overloaded, SettingsError, Unreachable
from trimtab.kube import slim_auth
from trimtab.kube.backoff import Backoff
from trimtab.kube.clock import ClusterClock
from trimtab.kube.metrics_hooks import FactsObserver, Silent
from trimtab.kube.resources import PODS
from trimtab.kube.responses import error_from, next_page
from trimtab.names import FIELD_MANAGER

if TYPE_CHECKING:
    import ssl

    from trimtab.settings import KubeSettings

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
METADATA = f"application/json;as=PartialObjectMetadata{{}};g=meta.k8s.io;v=v1,{JSON}"
"""What is accepted where objects' metadata are enough; of a list the kind ends in `List`."""

CONNECT_SECONDS = 3.0
READ_ATTEMPTS = 4
WRITE_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

Body = bytes | Mapping[str, Any] | msgspec.Struct
"""JSON bytes as they are, or something to encode as JSON."""


class Access(Protocol):
    """Where the API server is, and who we are: a `Connection`, or a `PlainConnection` in small processes."""

    @property
    def server(self) -> str: ...

    @property
    def authorization(self) -> str | None: ...

    @property
    def tls_server_name(self) -> str | None: ...

    @property
    def proxy(self) -> str | None: ...

    def ssl_context(self) -> ssl.SSLContext: ...

    def needs_refresh(self) -> bool: ...

    def distrust(self) -> None: ...

    async def refresh(self) -> None: ...


class ClientLimits(Protocol):
    """The part of `KubeSettings` that a client looks at."""

    @property
    def request_timeout(self) -> float: ...

    @property
    def connections(self) -> int: ...


class KubeClient:
    """A connection pool to one API server."""

    def __init__(
        self,
        connection: Access,
        settings: ClientLimits,
        *,
        observer: FactsObserver | None = None,
        before_write: Callable[[], None] = lambda: None,
        clock: ClusterClock | None = None,
    ) -> None:
        self._before_write = before_write
        self.clock = clock or ClusterClock()
        """The cluster's time, by all answers so far; clients of one process may share it."""
        self._connection = connection
        self._settings = settings
        self._observer = observer or Silent()
        self._refreshing = asyncio.Lock()
        tls = connection.ssl_context()
        self._requests = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=settings.connections, ssl=tls))
        self._watches = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=tls), read_bufsize=1 << 20)
        self._where: dict[str, Any] = {"proxy": connection.proxy, "server_hostname": connection.tls_server_name}

    @classmethod
    async def connect(
        cls,
        settings: KubeSettings,
        *,
        observer: FactsObserver | None = None,
        before_write: Callable[[], None] = lambda: None,
        clock: ClusterClock | None = None,
    ) -> KubeClient:
        """A client for the API server that the settings name. Raises SettingsError. Sends nothing yet."""
        return cls(await _access(settings), settings, observer=observer, before_write=before_write, clock=clock)

    @property
    def server(self) -> str:
        """Base URL of the API server, without a trailing slash."""
        return self._connection.server

    async def close(self) -> None:
        """Close all connections; running requests end in Unreachable."""
        await self._requests.close()
        await self._watches.close()

    async def __aenter__(self) -> KubeClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- any request ------------------------------------------------------------------------------------------------
    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Body | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        deadline: float | None = None,
    ) -> bytes:
        """Send one request, return the body of a 2xx answer. Raises ApiError for all others, and for none.

        `deadline` in seconds replaces that of the settings.
        """
        headers = await self._headers(content_type, accept)
        data = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        limit = aiohttp.ClientTimeout(total=deadline or self._settings.request_timeout, sock_connect=CONNECT_SECONDS)
        if method in WRITE_VERBS:
            self._before_write()
        started = time.monotonic()
        status = 0
        try:
            async with self._requests.request(
                method, self._url(path, params), data=data, headers=headers, timeout=limit, **self._where
            ) as answer:
                self.clock.hear(answer.headers.get("Date"), started)
                content = await answer.read()
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = f"no answer from {self._connection.server} to {method} {path}: {_cause(error)}"
            raise Unreachable(said) from error
        finally:
            verb, resource = describe(method, path)
            self._observer.request(verb, resource, status, time.monotonic() - started)
        if status == 401:
            self._connection.distrust()
        if status >= 300:
            raise error_from(method, path, status, answer.headers.get("Retry-After"), content)
        return content

    # --- reads ------------------------------------------------------------------------------------------------------
    async def get(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """GET, tried again a few times when the server is overloaded or does not answer."""
        backoff = Backoff(initial=0.1, cap=1.0)
        for _ in range(READ_ATTEMPTS - 1):
            try:
                return await self.request("GET", path, params=params)
            except (Overloaded, Unreachable) as error:
                await asyncio.sleep(backoff.next(error.retry_after))
        return await self.request("GET", path, params=params)

    async def pages(
        self, path: str, page_size: int, params: Mapping[str, str] | None = None, accept: str = JSON
    ) -> AsyncIterator[bytes]:
        """All objects of a kind as consecutive `List` documents of one resourceVersion. Not tried again."""
        query = {**(params or {}), "limit": str(page_size)}
        while True:
            page = await self.request("GET", path, params=query, accept=accept)
            yield page
            if not (token := next_page(page)):
                return
            query["continue"] = token

    async def watch(
        self, path: str, params: Mapping[str, str], accept: str = JSON
    ) -> AsyncGenerator[list[bytes], None]:
        """Watch events as they come, one JSON document each, in batches of all that have arrived.

        The first batch is empty: it says that the watch is established. Ends when the server closes the stream.
        Raises ApiError when the watch is refused or the connection breaks.
        A stream that goes silent is not noticed here: put a timeout around each step.
        """
        query = {**params, "watch": "true", "allowWatchBookmarks": "true"}
        limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        headers = await self._headers(JSON, accept)
        status = 0
        started = time.monotonic()
        try:
            async with self._watches.get(
                self._url(path, query), headers=headers, timeout=limit, **self._where
            ) as answer:
                self.clock.hear(answer.headers.get("Date"), started)
                status = answer.status
                if status >= 300:
                    content = await answer.read()
                    raise error_from("GET", path, status, answer.headers.get("Retry-After"), content)
                yield []
                async for lines in _lines(answer.content):
                    yield lines
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"the watch of {path} broke: {_cause(error)}") from error
        finally:
            self._observer.request("watch", describe("GET", path)[1], status, time.monotonic() - started)

    # --- writes -----------------------------------------------------------------------------------------------------
    async def create(self, path: str, obj: Body, *, strict: bool = False, field_manager: str = FIELD_MANAGER) -> bytes:
        """POST; `path` is that of the collection. `strict`: unknown fields are refused, not dropped in silence."""
        params = {"fieldManager": field_manager} | ({"fieldValidation": "Strict"} if strict else {})
        return await self.request("POST", path, body=obj, params=params)

    async def replace(self, path: str, obj: Body) -> bytes:
        """PUT; fails with Conflict unless `metadata.resourceVersion` is the current one."""
        return await self.request("PUT", path, body=obj, params={"fieldManager": FIELD_MANAGER})

    async def merge_patch(self, path: str, patch: Body, *, subresource: str = "") -> bytes:
        """JSON merge patch (RFC 7386). A `metadata.resourceVersion` in it makes it fail with Conflict when stale."""
        target = f"{path}/{subresource}" if subresource else path
        params = {"fieldManager": FIELD_MANAGER}
        return await self.request("PATCH", target, body=patch, params=params, content_type=MERGE_PATCH)

    async def strategic_patch(self, path: str, patch: Body) -> bytes:
        """Strategic merge patch: lists with keys are merged by them. Only for built-in kinds."""
        params = {"fieldManager": FIELD_MANAGER}
        return await self.request("PATCH", path, body=patch, params=params, content_type=STRATEGIC_PATCH)

    async def apply(
        self, path: str, obj: Body, *, subresource: str = "", force: bool = True, field_manager: str = FIELD_MANAGER
    ) -> bytes:
        """Server-side apply: the fields in `obj` are ours from now on, those we no longer send are removed."""
        target = f"{path}/{subresource}" if subresource else path
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        return await self.request("PATCH", target, body=obj, params=params, content_type=APPLY_PATCH)

    async def delete(self, path: str, *, uid: str, grace_seconds: int | None = None) -> bytes:
        """Delete exactly the object with this UID; Conflict when another one has its name by now."""
        options: dict[str, Any] = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self.request("DELETE", path, body=options)

    async def bind(self, namespace: str, pod: str, uid: str, node: str) -> None:
        """Give the pod with this UID its node, once and for all.

        The API server checks neither that the node exists nor that it has room. Raises Conflict when the pod is bound
        already (to whatever node), gated, being deleted, or another one of the same name.
        """
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self.request("POST", PODS.path(namespace, pod, "binding"), body=binding)

    # --- inside -----------------------------------------------------------------------------------------------------
    def _url(self, path: str, params: Mapping[str, str] | None) -> URL:
        query = f"?{urlencode(params)}" if params else ""
        return URL(f"{self._connection.server}{path}{query}", encoded=True)

    async def _headers(self, content_type: str, accept: str) -> dict[str, str]:
        if self._connection.needs_refresh():
            await self._refresh()
        headers = {"Accept": accept, "Accept-Encoding": "identity", "Content-Type": content_type}
        if authorization := self._connection.authorization:
            headers["Authorization"] = authorization
        return headers

    async def _refresh(self) -> None:
        async with self._refreshing:
            if not self._connection.needs_refresh():
                return
            try:
                await self._connection.refresh()
            except SettingsError as error:
                import structlog  # large, and a command that reads once never comes here

                structlog.get_logger(__name__).error(
                    "credentials not refreshed, going on with the old ones", error=str(error)
                )


class MetadataOnly:
    """The same API server, for a reflector that wants no more of its objects than their metadata."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def pages(self, path: str, page_size: int, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        """As `KubeClient.pages`."""
        return self._client.pages(path, page_size, params, METADATA.format("List"))

    def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[list[bytes], None]:
        """As `KubeClient.watch`."""
        return self._client.watch(path, params, METADATA.format(""))


def _cause(error: Exception) -> str:
    """Why there was no answer, as the system says it where it does: `Connection refused`."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, OSError) and (error.errno or 0) > 0:  # not of a resolver, which counts downwards
        return os.strerror(error.errno or 0)
    return (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"


async def _access(settings: KubeSettings) -> Access:
    """The small way where it is enough. kubernetes.aio, which knows all others, takes a third of a command's time."""
    with suppress(SettingsError):  # also for what is malformed: the other one's words are the better ones
        if found := slim_auth.plain(settings.kubeconfig, settings.context):
            return found
    from trimtab.kube.connection import connect

    return await connect(settings)


def describe(method: str, path: str) -> tuple[str, str]:
    """Verb and resource of a request as RBAC names them.

    >>> describe("POST", "/api/v1/namespaces/a/pods/p/binding")
    ('create', 'pods/binding')
    >>> describe("GET", "/apis/trimtab.dev/v1alpha1/llmtrainingjobs")
    ('list', 'llmtrainingjobs')
    """
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    resource = "/".join((parts[0], *parts[2:])) if parts else path
    return WRITE_VERBS.get(method) or ("get" if len(parts) > 1 else "list"), resource


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """Split a stream at newlines; lines may be of any length (aiohttp's own iteration limits them)."""
    rest: list[bytes] = []
    async for chunk in content.iter_any():
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest.append(chunk)
            continue
        lines = b"".join((*rest, head)).split(b"\n")
        rest = [tail] if tail else []
        yield [line for line in lines if line]
