"""A Kueue that does as it is told: the real API server with Kueue's real CRDs, and its controller played by the test.

    async with ScriptedKueue(kubeconfig) as kueue:
        await kueue.asked("job")
        await kueue.admit("job", 8, flavor="a100")

It writes as Kueue does (server-side apply as `kueue-admission`, over the version that it has read), and holds every
change that it sees, in order, against the rules of Kueue's validating webhook; `complaints` must stay empty. The CRDs
are those of the Go module sigs.k8s.io/kueue (Apache License 2.0), fetched by its checksum and not kept here.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.interop.webhooks import problems

from trimtab import names
from trimtab.errors import ApiError, LocalClusterError
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import RESOURCE_FLAVORS, WORKLOADS
from trimtab.settings import KubeSettings
from trimtab_local.control_plane.build import find_go

MODULE = "sigs.k8s.io/kueue@v0.19.0"
CRDS = ("workloads", "resourceflavors")
NAMESPACE = "default"
Json = dict[str, Any]


class NoKueue(Exception):
    """Kueue's module cannot be had here."""


def crds() -> list[Path]:
    """Files of Kueue's CRDs. Raises NoKueue."""
    try:
        command = [str(find_go((1, 24))), "mod", "download", "-json", MODULE]
        with tempfile.TemporaryDirectory() as nowhere:  # outside of any module
            environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
            found = subprocess.run(
                command, cwd=nowhere, env=environment, capture_output=True, text=True, timeout=90, check=False
            )
        content = json.loads(found.stdout or "{}")
    except (LocalClusterError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NoKueue(str(error)) from error
    if "Dir" not in content:
        raise NoKueue(f"{MODULE}: {content.get('Error') or found.stderr}")
    bases = Path(content["Dir"]) / "config" / "components" / "crd" / "bases"
    return [bases / f"{names.KUEUE_GROUP}_{plural}.yaml" for plural in CRDS]


class ScriptedKueue:
    """Sees every Workload, and says what the test wants it to."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._known: dict[str, Json] = {}
        self._news = asyncio.Condition()
        self.complaints: list[str] = []
        """What the webhook would have refused."""
        self.seen: list[tuple[str, Json]] = []
        """Every event, in order."""

    # --- what it sees ------------------------------------------------------------------------------------------------
    def workload(self, job: str) -> Json:
        """The Workload of a job, or an empty object."""
        return next((w for w in self._known.values() if w["metadata"]["labels"].get(names.LABEL_JOB) == job), {})

    def condition(self, job: str, kind: str) -> Json:
        """A condition of it, or an empty object."""
        conditions = self.workload(job).get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), {})

    def holds(self, job: str, kind: str) -> bool:
        return bool(self.condition(job, kind).get("status") == "True")

    async def until(self, happened: Any, what: str, seconds: float = 30) -> None:
        """Wait until something is so in what is seen."""
        try:
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(happened)
        except TimeoutError:
            raise AssertionError(f"waited {seconds:g} s for {what}: {json.dumps(self._known)[:4000]}") from None

    async def asked(self, job: str) -> Json:
        """Wait for the job's Workload."""
        await self.until(lambda: self.workload(job), f"a Workload of {job}")
        return self.workload(job)

    # --- what it says ------------------------------------------------------------------------------------------------
    async def flavor(self, name: str, labels: dict[str, str], *tolerations: Json) -> None:
        spec = {"nodeLabels": labels, "tolerations": list(tolerations)}
        made = {"apiVersion": RESOURCE_FLAVORS.api_version, "kind": "ResourceFlavor", "metadata": {"name": name}}
        await self._client.apply(RESOURCE_FLAVORS.path(name=name), made | {"spec": spec}, field_manager="admin")

    async def refuse(self, job: str, reason: str, message: str) -> None:
        """No quota for now."""
        await self._say(job, ("QuotaReserved", False, reason, message))

    async def admit(self, job: str, gpus: int, flavor: str) -> None:
        """Reserve quota and admit; an eviction is over."""
        given = {"name": "main", "flavors": {names.NVIDIA_GPU: flavor}, "count": gpus}
        admission = {"clusterQueue": "research", "podSetAssignments": [given | {"resourceUsage": {}}]}
        over = [("Evicted", False, "QuotaReserved", "")] if self.condition(job, "Evicted") else []
        reserved = ("QuotaReserved", True, "QuotaReserved", "Quota reserved in ClusterQueue research")
        await self._say(
            job, reserved, ("Admitted", True, "Admitted", "The workload is admitted"), *over, given=admission
        )

    async def evict(
        self, job: str, reason: str = "Preempted", message: str = "Preempted to accommodate another"
    ) -> None:
        """The job must stop; its owner gives the quota back."""
        await self._say(job, ("Evicted", True, reason, message), given=self.workload(job)["status"]["admission"])

    async def delete(self, job: str) -> None:
        meta = self.workload(job)["metadata"]
        await self._client.delete(WORKLOADS.path(NAMESPACE, meta["name"]), uid=meta["uid"])

    async def _say(self, job: str, *said: tuple[str, bool, str, str], given: Json | None = None) -> None:
        """Write the conditions of admission, the others as they are; again where somebody was faster."""
        for _ in range(20):
            there = self.workload(job)
            conditions = {each["type"]: each for each in there.get("status", {}).get("conditions", ())}
            for kind, value, reason, message in said:
                now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                told = {"type": kind, "status": str(value), "reason": reason, "message": message}
                conditions[kind] = told | {"lastTransitionTime": now}
            status = {"conditions": list(conditions.values())} | ({"admission": given} if given else {})
            meta = {key: there["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
            body = {"apiVersion": WORKLOADS.api_version, "kind": "Workload", "metadata": meta, "status": status}
            path = WORKLOADS.path(NAMESPACE, meta["name"])
            try:
                answer = await self._client.apply(path, body, subresource="status", field_manager="kueue-admission")
            except ApiError:
                await asyncio.sleep(0.1)
                continue
            await self._reach(job, int(json.loads(answer)["metadata"]["resourceVersion"]))
            return
        raise AssertionError(f"could not write the Workload of {job}")

    async def _reach(self, job: str, version: int) -> None:
        """Wait until what is seen is as new as the own write."""

        def reached() -> bool:
            there = self.workload(job)
            return not there or int(there["metadata"]["resourceVersion"]) >= version

        await self.until(reached, "the own write")

    # --- following ---------------------------------------------------------------------------------------------------
    async def __aenter__(self) -> ScriptedKueue:
        self._client = await KubeClient.connect(KubeSettings(kubeconfig=self._kubeconfig))
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._client.close()

    async def _follow(self) -> None:
        """Every event since the beginning; starts anew where the kind is away for a while."""
        while True:
            with suppress(ApiError):
                listed = json.loads(await self._client.get(WORKLOADS.path()))
                self._known = {each["metadata"]["uid"]: each for each in listed["items"]}
                await self._tell()
                version = {"resourceVersion": listed["metadata"]["resourceVersion"]}
                async for lines in self._client.watch(WORKLOADS.path(), version):
                    for event in map(json.loads, lines):
                        self._take(event["type"], event["object"])
                    await self._tell()
            await asyncio.sleep(0.2)

    def _take(self, kind: str, new: Json) -> None:
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            return
        old = self._known.pop(new["metadata"]["uid"], None)
        self.seen.append((kind, new))
        if kind != "DELETED":
            self._known[new["metadata"]["uid"]] = new
            self.complaints += [f"{new['metadata']['name']}: {why}" for why in problems(new, old)]

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()
