"""What `kubectl` does of the simplest kind, without a process each time, which costs more than what is tested.

A live test asks hundreds of times how a job is. Who asks here gets what `kubectl` would have given, or None where
that is more than these few lines know, or where the API server refuses: then the true one has the word, and says why.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
import weakref
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from msgspec import Struct

from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.components import ADMIN
from trimtab_local.control_plane.layout import Layout

Json = dict[str, Any]
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
MERGE = "application/merge-patch+json"
PAUSE = 0.05
"""Seconds between looks whether what was deleted is gone."""
GONE_SECONDS = 60.0
"""As long as `LocalCluster.kubectl` waits for an answer."""
DELETIONS: dict[tuple[str, ...], tuple[int | None, bool]] = {
    (): (None, True),
    ("--wait=false",): (None, False),
    ("--now",): (1, True),
    ("--force", "--grace-period=0"): (0, True),
    ("--force", "--grace-period=0", "--wait=false"): (0, False),
}
"""Arguments of `kubectl delete` that are understood: the grace in seconds, and whether the end is waited for."""


class Resource(Struct, frozen=True):
    """Where the API server has the objects of a kind."""

    base: str
    plural: str
    kind: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        space = f"/namespaces/{namespace}" if self.namespaced else ""
        return f"{self.base}{space}/{self.plural}{f'/{quote(name)}' if name else ''}"

    @property
    def version(self) -> str:
        """As objects say it in `apiVersion`."""
        return self.base.removeprefix("/apis/").removeprefix("/api/")


class Api:
    """The API server of a local cluster, as its administrator. Threads take turns: its connection is one."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._turn = threading.Lock()
        self._resources: dict[str, Resource] = {}
        self._open: list[http.client.HTTPSConnection] = []
        """None, or the one."""
        weakref.finalize(self, _close, self._open)

    def get(self, kind: str, name: str, namespace: str, *, managed: bool = False) -> Json | None:
        """The object, or an empty one where there is none; with `managed` it says who has set which field."""
        if (resource := self._resource(kind)) is None:
            return None
        status, found = self._ask("GET", resource.path(namespace, name))
        if status == 404 and found.get("details", {}).get("name") == name:
            return {}
        if status != 200:
            return None
        return found if managed else _lean(found)

    def list(self, kind: str, namespace: str, selector: str = "") -> list[Json] | None:
        """All objects of the namespace that have the labels."""
        if (resource := self._resource(kind)) is None:
            return None
        query = f"?{urlencode({'labelSelector': selector})}" if selector else ""
        status, found = self._ask("GET", resource.path(namespace) + query)
        if status != 200:
            return None
        return [_lean({"apiVersion": resource.version, "kind": resource.kind, **each}) for each in found["items"]]

    def create(self, obj: Json, namespace: str) -> bool | None:
        """As `kubectl apply` makes what is not there; None where something is."""
        meta = obj["metadata"]
        space = meta.get("namespace") or namespace
        group, kind = obj["apiVersion"].rpartition("/")[0], obj["kind"].lower()
        resource = self._resource(f"{kind}.{group}" if group else kind)
        if resource is None or resource.version != obj["apiVersion"]:
            return None
        if resource.namespaced:
            meta = {**meta, "namespace": space}
        applied = {**obj, "metadata": {**meta, "annotations": meta.get("annotations", {})}}
        last = json.dumps(applied, sort_keys=True, separators=(",", ":")) + "\n"
        notes = {**meta.get("annotations", {}), "kubectl.kubernetes.io/last-applied-configuration": last}
        query = "?fieldManager=kubectl-client-side-apply&fieldValidation=Strict"
        made = {**obj, "metadata": {**meta, "annotations": notes}}
        status, _ = self._ask("POST", resource.path(space) + query, made)
        return True if status == 201 else None

    def patch(self, kind: str, name: str, patch: Json, namespace: str, subresource: str = "") -> bool | None:
        """A JSON merge patch."""
        if (resource := self._resource(kind)) is None:
            return None
        where = resource.path(namespace, name) + (f"/{subresource}" if subresource else "")
        status, _ = self._ask("PATCH", f"{where}?fieldManager=kubectl-patch", patch, MERGE)
        return True if status == 200 else None

    def delete(self, kind: str, name: str, namespace: str, *arguments: str) -> bool | None:
        """Delete an object, if there is one, and wait until it is gone where the arguments do not say otherwise."""
        way, resource = DELETIONS.get(arguments), self._resource(kind)
        if way is None or resource is None or name.startswith("-"):
            return None
        grace, waits = way
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        body |= {} if grace is None else {"gracePeriodSeconds": grace}
        where = resource.path(namespace, name)
        status, found = self._ask("DELETE", where, body)
        if status == 404 and found.get("details", {}).get("name") == name:
            return True
        if status not in (200, 202):
            return None
        uid = found.get("details", found.get("metadata", {})).get("uid")
        limit = time.monotonic() + GONE_SECONDS
        while waits:
            status, found = self._ask("GET", where)
            if status == 404 or (status == 200 and found["metadata"]["uid"] != uid):
                break
            if time.monotonic() > limit:
                return None
            time.sleep(PAUSE)
        return True

    def _resource(self, name: str) -> Resource | None:
        """What `kubectl` understands by the word; None where it is nothing, or not clear."""
        if name not in self._resources:
            self._resources |= self._discover()
        return self._resources.get(name)

    def _discover(self) -> dict[str, Resource]:
        found: dict[str, set[Resource]] = {}
        for root in ("/api", "/apis"):
            status, told = self._ask("GET", root, accept=DISCOVERY)
            for group in told["items"] if status == 200 else ():
                own = group["metadata"].get("name", "")
                version = group["versions"][0]  # the preferred one
                for each in version.get("resources", ()):
                    base = f"{root}/{own}/{version['version']}" if own else f"{root}/{version['version']}"
                    one = Resource(base, each["resource"], each["responseKind"]["kind"], each["scope"] == "Namespaced")
                    words = {each["resource"], each["singularResource"], *each.get("shortNames", ())} - {""}
                    words.add(one.kind.lower())
                    for word in words:
                        found.setdefault(word, set()).add(one)
                        if own:
                            found.setdefault(f"{word}.{own}", set()).add(one)
        core = {word: {one for one in ones if one.base.startswith("/api/")} or ones for word, ones in found.items()}
        return {word: ones.pop() for word, ones in core.items() if len(ones) == 1}

    def _ask(
        self, method: str, where: str, body: Json | None = None, content: str = "application/json", accept: str = ""
    ) -> tuple[int, Json]:
        """Status and content; 0 where nobody answers."""
        headers = {"Accept": accept or "application/json", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        with self._turn:
            for fresh in (False, True):  # a server that was started again has cut the connection
                try:
                    connection = self._connect(fresh)
                    connection.request(method, where, data, headers)
                    answer = connection.getresponse()
                    return answer.status, json.loads(answer.read())
                except (OSError, http.client.HTTPException, ValueError):
                    _close(self._open)
                    if method == "POST":  # it may have been made
                        break
        return 0, {}

    def _connect(self, fresh: bool) -> http.client.HTTPSConnection:
        if fresh or not self._open:
            _close(self._open)
            stem = Layout(self._cluster.name).certificates / ADMIN
            tls = ssl.create_default_context(cafile=str(stem.with_name("ca.crt")))
            tls.load_cert_chain(stem.with_suffix(".crt"), stem.with_suffix(".key"))
            server = urlsplit(self._cluster.status().server)
            assert server.hostname
            self._open.append(http.client.HTTPSConnection(server.hostname, server.port, timeout=60, context=tls))
        return self._open[0]


def _lean(obj: Json) -> Json:
    """As `kubectl get -o json` shows it."""
    obj["metadata"].pop("managedFields", None)
    return obj


def _close(connections: list[http.client.HTTPSConnection]) -> None:
    for connection in connections:
        connection.close()
    connections.clear()
