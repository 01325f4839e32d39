"""An imitation API server, for tests of how we behave when one misbehaves.

`Store` is what etcd and the watch cache are to the real one: objects, one resourceVersion for all, and the history that
watches are served from. `FakeApiServer` puts HTTP in front of it: discovery, paginated lists, watches with bookmarks
and 410, both of single objects, too (`fieldSelector=metadata.name=`), create, get, update, merge patch, delete with
preconditions, bindings. It checks no schema and no permission.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from aiohttp import web

Object = dict[str, Any]

KINDS = {
    "/api/v1": {
        "configmaps": "ConfigMap",
        "events": "Event",
        "namespaces": "Namespace",
        "nodes": "Node",
        "pods": "Pod",
    },
    "/apis/apiextensions.k8s.io/v1": {"customresourcedefinitions": "CustomResourceDefinition"},
    "/apis/coordination.k8s.io/v1": {"leases": "Lease"},
    "/apis/events.k8s.io/v1": {"events": "Event"},
    "/apis/trimtab.dev/v1alpha1": {"llmtrainingjobs": "LLMTrainingJob", "queues": "Queue"},
}
CLUSTER_SCOPED = {"namespaces", "nodes", "customresourcedefinitions", "queues"}
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


class Refused(Exception):
    """What the real server would answer with a Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
        }


class Store:
    """Objects by (plural, namespace/name), and every change that was ever made to them."""

    def __init__(self) -> None:
        self.version = 100
        self.compacted = 0
        self.objects: dict[tuple[str, str], Object] = {}
        self.history: list[tuple[int, str, Object]] = []
        self.changed = asyncio.Event()

    def list(self, plural: str, namespace: str = "") -> list[Object]:
        return [
            obj for (kind, key), obj in sorted(self.objects.items()) if kind == plural and key.startswith(namespace)
        ]

    def get(self, plural: str, key: str) -> Object:
        if (obj := self.objects.get((plural, key))) is None:
            raise Refused(404, "NotFound", f'{plural} "{key}" not found')
        return obj

    def create(self, plural: str, obj: Object) -> Object:
        key = key_of(obj)
        if (plural, key) in self.objects:
            raise Refused(409, "AlreadyExists", f'{plural} "{key}" already exists')
        meta = {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
        return self._record("ADDED", plural, {**obj, "metadata": {**meta, **obj["metadata"]}})

    def update(self, plural: str, key: str, obj: Object) -> Object:
        old = self.get(plural, key)
        meta = obj["metadata"]
        if meta.get("resourceVersion", old["metadata"]["resourceVersion"]) != old["metadata"]["resourceVersion"]:
            raise Refused(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{key}": has been modified')
        return self._record("MODIFIED", plural, {**obj, "metadata": {**old["metadata"], **meta}})

    def delete(self, plural: str, key: str, uid: str | None = None) -> Object:
        old = self.get(plural, key)
        if uid is not None and uid != old["metadata"]["uid"]:
            raise Refused(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")
        del self.objects[plural, key]
        return self._record("DELETED", plural, old)

    def bind(self, key: str, binding: Object) -> None:
        pod = copy.deepcopy(self.get("pods", key))
        if binding["metadata"].get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            raise Refused(409, "Conflict", "Precondition failed: UID in precondition")
        if node := pod["spec"].get("nodeName"):
            raise Refused(409, "Conflict", f'pod {pod["metadata"]["name"]} is already assigned to node "{node}"')
        pod["spec"]["nodeName"] = binding["target"]["name"]
        self.update("pods", key, pod)

    def events(self, plural: str, since: int) -> Iterator[tuple[int, Object]]:
        """Watch events of a kind after a resourceVersion, each with its own."""
        if since < self.compacted:
            raise Refused(410, "Expired", f"too old resource version: {since} ({self.compacted})")
        return ((version, event) for version, kind, event in self.history if kind == plural and version > since)

    def compact(self) -> None:
        """Forget the history: watches of older versions get 410."""
        self.compacted = self.version
        self.history.clear()

    def _record(self, event: str, plural: str, obj: Object) -> Object:
        self.version += 1
        obj = copy.deepcopy(obj)
        obj["metadata"]["resourceVersion"] = str(self.version)
        if event != "DELETED":
            self.objects[plural, key_of(obj)] = obj
        self.history.append((self.version, plural, {"type": event, "object": obj}))
        self.changed.set()
        self.changed = asyncio.Event()
        return obj


def key_of(obj: Object) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def merge(old: Any, patch: Any) -> Any:
    """JSON merge patch, RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    base = old if isinstance(old, dict) else {}
    merged = {**base, **{key: merge(base.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in merged.items() if value is not None}


class FakeApiServer:
    """`async with FakeApiServer() as server:` serves `server.store` at `server.url`."""

    def __init__(self, bookmark_seconds: float = 60.0) -> None:
        self.store = Store()
        self.url = ""
        self.requests: list[str] = []
        """`METHOD path` of everything that was asked."""
        self.authorizations: set[str] = set()
        self._bookmark_seconds = bookmark_seconds
        self._stopping = asyncio.Event()

    async def __aenter__(self) -> FakeApiServer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        await self._runner.cleanup()

    def kubeconfig(self, directory: Path, token: str = "sesame") -> Path:
        path = directory / "kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig(self.url, token)))
        return path

    # --- HTTP -------------------------------------------------------------------------------------------------------
    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        self.authorizations.add(request.headers.get("Authorization", ""))
        try:
            if (document := discovery(request.path)) is not None:
                return web.json_response(document)
            return await self._serve(request)
        except Refused as refused:
            return web.json_response(refused.body, status=refused.code)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        plural, namespace, name, subresource = parse(request.path)
        key = f"{namespace}/{name}" if namespace else name
        if not name:
            if request.method == "POST":
                return web.json_response(self.store.create(plural, await request.json()), status=201)
            if "watch" in request.query:
                return await self._watch(request, plural)
            return web.json_response(self._page(plural, namespace, request))
        match request.method:
            case "POST" if subresource == "binding":
                self.store.bind(key, await request.json())
                return web.json_response({"kind": "Status", "status": "Success"}, status=201)
            case "GET":
                return web.json_response(self.store.get(plural, key))
            case "PUT":
                return web.json_response(self.store.update(plural, key, await request.json()))
            case "PATCH":
                patched = merge(copy.deepcopy(self.store.get(plural, key)), await request.json())
                return web.json_response(self.store.update(plural, key, patched))
            case "DELETE":
                options = await request.json() if request.can_read_body else {}
                return web.json_response(self.store.delete(plural, key, options.get("preconditions", {}).get("uid")))
            case _:
                raise Refused(405, "MethodNotAllowed", request.method)

    def _page(self, plural: str, namespace: str, request: web.Request) -> Object:
        """A list page. Pages are cut from the current state: enough for tests that do not write between them."""
        items = [obj for obj in self.store.list(plural, namespace) if selected(request, obj)]
        start = int(request.query.get("continue", "0"))
        end = start + int(request.query.get("limit") or len(items) or 1)
        meta = {"resourceVersion": str(self.store.version), **({"continue": str(end)} if end < len(items) else {})}
        return {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items[start:end]}

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or self.store.version)
        loop = asyncio.get_running_loop()
        end = loop.time() + float(request.query.get("timeoutSeconds", "300"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while loop.time() < end and not self._stopping.is_set():
            changed = self.store.changed
            for version, event in self._since(plural, since):
                if event["type"] == "ERROR":
                    await response.write(json.dumps(event).encode() + b"\n")
                elif selected(request, event["object"]):
                    shown = event | {"object": as_accepted(request, event["object"])}
                    await response.write(json.dumps(shown).encode() + b"\n")
                since = version
            if not await self._wait(changed, min(end - loop.time(), self._bookmark_seconds)):
                await response.write(json.dumps(bookmark(self.store.version)).encode() + b"\n")
        return response

    def _since(self, plural: str, since: int) -> list[tuple[int, Object]]:
        try:
            return list(self.store.events(plural, since))
        except Refused as refused:
            return [(self.store.version, {"type": "ERROR", "object": refused.body})]

    async def _wait(self, changed: asyncio.Event, seconds: float) -> bool:
        """Until a change, or the server stops (True), or the time is over (False)."""
        waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(self._stopping.wait())]
        done, pending = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return bool(done)


def selected(request: web.Request, obj: Object) -> bool:
    """Whether the object has the name that the request asks for, if it asks for one."""
    _, _, name = request.query.get("fieldSelector", "").partition("metadata.name=")
    return name in ("", obj["metadata"]["name"])


def as_accepted(request: web.Request, obj: Object) -> Object:
    """The object, or its metadata alone where the request accepts that first."""
    accepted = request.headers.get("Accept", "").split(",")[0]
    if "as=PartialObjectMetadata;" not in accepted:
        return obj
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def bookmark(version: int) -> Object:
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version), "creationTimestamp": None}}}


def parse(path: str) -> tuple[str, str, str, str]:
    """Plural, namespace, name and subresource of a request path."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    if not parts:
        raise Refused(404, "NotFound", f"the server could not find {path}")
    plural, name, subresource = (*parts, "", "")[:3]
    return plural, namespace, name, subresource


def discovery(path: str) -> Object | None:
    """/version, /api, /apis and the resource lists of the groups."""
    if path == "/version":
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.3"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        return {"kind": "APIGroupList", "groups": [_group(prefix) for prefix in KINDS if prefix != "/api/v1"]}
    if path not in KINDS:
        return None
    resources = [
        {
            "name": plural,
            "kind": kind,
            "singularName": kind.lower(),
            "namespaced": plural not in CLUSTER_SCOPED,
            "verbs": VERBS,
        }
        for plural, kind in KINDS[path].items()
    ]
    return {"kind": "APIResourceList", "resources": resources}


def _group(prefix: str) -> Object:
    _, _, name, version = prefix.split("/")
    served = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [served], "preferredVersion": served}


def kubeconfig(server: str, token: str = "") -> Object:
    """A kubeconfig for a plain HTTP server on the loopback interface."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": server}}],
        "users": [{"name": "fake", "user": {"token": token} if token else {}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
    }
