"""One look at an installation through the API server. Reads only: the reviews that it posts are answered, not kept.

Whatever cannot be read becomes `Unknown` with the right that is missing; nothing of it ends the look.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trimtab import names
from trimtab.doctor import rbac
from trimtab.doctor.inventory import (
    AccessRight,
    ComputeDomain,
    Crd,
    Deployment,
    InstalledPart,
    Lease,
    Pod,
    PolicyBinding,
    ResourceQuota,
    Seen,
    Unknown,
    ValidatingAdmissionPolicy,
    Version,
)
from trimtab.doctor.rbac import Need, Right
from trimtab.errors import ApiError, Forbidden, NotFound, SettingsError
from trimtab.kube.client import KubeClient
from trimtab.kube.listing import list_all
from trimtab.kube.objects import (
    AnyObject,
    ConfigMapObject,
    DeviceClassObject,
    DeviceTaintRuleObject,
    GpuNodeObject,
    JobObject,
    NodeObject,
    PriorityClassObject,
    QueueObject,
    ResourceSliceObject,
)
from trimtab.kube.resources import (
    COMPUTE_DOMAINS,
    CONFIG_MAPS,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    GPUNODES,
    JOBS,
    LEASES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    RESOURCE_SLICES,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SUBJECT_ACCESS_REVIEWS,
    Resource,
)
from trimtab.settings import Settings

T = TypeVar("T")

CRDS = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions")
RULES = Resource("admissionregistration.k8s.io/v1", "validatingadmissionpolicies")
IN_FORCE = Resource("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings")
DEPLOYMENTS = Resource("apps/v1", "deployments")
QUOTAS = Resource("v1", "resourcequotas")
SERVICE_ACCOUNTS = Resource("v1", "serviceaccounts")
SECRETS = Resource("v1", "secrets")
VERSION = "/version"
KUEUE = f"/apis/{names.KUEUE_GROUP}"
PARTS = (names.CONTROLLER_ACCOUNT, names.EXTENDER_ACCOUNT, names.AGENT_ACCOUNT, names.SCHEDULER_ACCOUNT)
OURS = f"{names.LABEL_PART} in (trimtab,{','.join(PARTS)})"
DEVICE_PLUGINS = ("app.kubernetes.io/name=nvidia-device-plugin", "app=nvidia-device-plugin-daemonset")
"""Labels of pods of NVIDIA's device plugin, as its chart and as NVIDIA's GPU operator install it."""
LEASE_LOOKS_SECONDS, LEASE_PAUSE_SECONDS = 5.0, 0.25
"""A leader renews its Lease every 2 s unless it is told otherwise; that it does is seen by looking twice."""


class _Verdict(Struct):
    allowed: bool = False


class _Review(Struct):
    """SubjectAccessReview as it comes back."""

    status: _Verdict


class _ServerVersion(Struct):
    version: str


class _Group(Struct):
    """metav1.APIGroup."""

    versions: tuple[_ServerVersion, ...] = ()


class _Secret(Struct):
    """v1.Secret, of which the private key is not decoded."""

    data: dict[str, msgspec.Raw] = {}


async def gather(settings: Settings, *, certificates: bool = False) -> Seen:
    """Look at the installation. Never raises: what cannot be read says so."""
    kube, namespace = settings.kube, settings.leadership.namespace
    try:
        connected = await KubeClient.connect(kube)
    except SettingsError as error:
        return Seen(settings, namespace, Unknown(str(error)))
    async with connected as client:
        try:
            version = msgspec.json.decode(await client.request("GET", VERSION), type=Version)
        except (ApiError, msgspec.DecodeError) as error:
            return Seen(settings, namespace, Unknown(str(error)), server=client.server)
        seen = Seen(settings, namespace, version, server=client.server)
        return await _Look(client, settings, certificates).at(seen)


class _Look:
    """The requests of one look; each answers with a value or `Unknown`."""

    def __init__(self, client: KubeClient, settings: Settings, certificates: bool) -> None:
        self._client = client
        self._settings = settings
        self._namespace = settings.leadership.namespace
        self._certificates = certificates
        self._unreadable: list[str] = []

    async def at(self, seen: Seen) -> Seen:
        """All of it, at once where one thing does not depend on another."""
        own = self._namespace
        lease = asyncio.create_task(self._lease())
        fields: dict[str, Awaitable[Any]] = {
            "pods": self._list(PODS, Pod, {"labelSelector": OURS}),
            "gang_pods": self._list(PODS, Pod, {"labelSelector": names.LABEL_JOB}),
            "nodes": self._list(NODES, NodeObject),
            "slices": self._list(RESOURCE_SLICES, ResourceSliceObject),
            "device_classes": self._list(DEVICE_CLASSES, DeviceClassObject),
            "taint_rules": self._list(DEVICE_TAINT_RULES, DeviceTaintRuleObject),
            "compute_domains": self._list(COMPUTE_DOMAINS, ComputeDomain),
            "device_plugins": self._device_plugins(),
            "node_leases": self._list(LEASES, Lease, namespace=rbac.NODE_LEASES),
            "jobs": self._list(JOBS, JobObject),
            "queues": self._list(QUEUES, QueueObject),
            "quotas": self._list(QUOTAS, ResourceQuota),
            "classes": self._list(PRIORITY_CLASSES, PriorityClassObject),
            "reports": self._list(GPUNODES, GpuNodeObject),
            "crds": self._crds(),
            "rules": self._list(RULES, ValidatingAdmissionPolicy),
            "in_force": self._list(IN_FORCE, PolicyBinding),
            "deployment": self._one(DEPLOYMENTS, own, names.CONTROLLER_ACCOUNT, Deployment),
            "own": self._may(rbac.OF_USER, ""),
            "scheduler_lease": self._one(LEASES, own, names.SCHEDULER_ACCOUNT, Lease),
            "standing": self._config_map(self._settings.monitor.namespace, self._settings.monitor.config_map),
            "policy": self._config_map(
                self._settings.policy.config_map.namespace, self._settings.policy.config_map.name
            ),
            "scheduler": self._config_map(own, names.SCHEDULER_ACCOUNT),
            "certificates": self._certificates_of(names.EXTENDER_SECRETS),
            "kueue": self._kueue(),
        }
        answers = await asyncio.gather(*fields.values())
        clock = self._client.clock
        found = replace(seen, now=clock.now(), ahead=clock.ahead(), **dict(zip(fields, answers, strict=True)))
        parts = await self._parts(found.pods)
        return replace(found, parts=parts, lease=await lease, unreadable=tuple(sorted(set(self._unreadable))))

    # --- objects ----------------------------------------------------------------------------------------------------
    async def _list(
        self, resource: Resource, kind: type[T], params: Mapping[str, str] | None = None, namespace: str = ""
    ) -> tuple[T, ...] | Unknown:
        """All objects that can be read; none where the kind is not installed, which is for the check of the CRDs to
        tell."""
        try:
            found = await list_all(self._client, resource, kind, self._unreadable, namespace=namespace, params=params)
        except NotFound:
            return ()
        except (ApiError, msgspec.DecodeError) as error:
            return _unknown(error, Right("list", _group(resource), resource.plural, namespace=namespace))
        return tuple(found)

    async def _device_plugins(self) -> tuple[Pod, ...] | Unknown:
        found = await asyncio.gather(*(self._list(PODS, Pod, {"labelSelector": label}) for label in DEVICE_PLUGINS))
        for each in found:
            if isinstance(each, Unknown):
                return each
        return tuple(pod for each in found if not isinstance(each, Unknown) for pod in each)

    async def _one(self, resource: Resource, namespace: str, name: str, kind: type[T]) -> T | Unknown | None:
        """One object; None where there is none."""
        try:
            return msgspec.json.decode(await self._client.get(resource.path(namespace, name)), type=kind)
        except NotFound:
            return None
        except (ApiError, msgspec.DecodeError) as error:
            return _unknown(error, Right("get", _group(resource), resource.plural, name, namespace))

    async def _crds(self) -> dict[str, Crd | None] | Unknown:
        plurals = (names.JOB_PLURAL, names.QUEUE_PLURAL, names.GPUNODE_PLURAL)
        wanted = [f"{plural}.{names.GROUP}" for plural in plurals]
        found = await asyncio.gather(*(self._one(CRDS, "", name, Crd) for name in wanted))
        for each in found:
            if isinstance(each, Unknown):
                return each
        return {name: each for name, each in zip(wanted, found, strict=True) if not isinstance(each, Unknown)}

    async def _config_map(self, namespace: str, name: str) -> dict[str, str] | Unknown | None:
        found = await self._one(CONFIG_MAPS, namespace, name, ConfigMapObject)
        return found.data if isinstance(found, ConfigMapObject) else found

    async def _certificates_of(self, secrets: Iterable[str]) -> dict[str, bytes] | Unknown:
        if not self._certificates:
            return Unknown(
                "not asked for", "`trimtab doctor --certificates`, which reads the Secrets " + " and ".join(secrets)
            )
        found: dict[str, bytes] = {}
        for name in secrets:
            secret = await self._one(SECRETS, self._namespace, name, _Secret)
            if isinstance(secret, Unknown):
                return secret
            if secret and "tls.crt" in secret.data:
                try:
                    found[name] = base64.b64decode(msgspec.json.decode(secret.data["tls.crt"], type=str))
                except binascii.Error as error:
                    return Unknown(f"Secret {name}: {error}")
        return found

    async def _kueue(self) -> tuple[str, ...] | Unknown:
        try:
            group = msgspec.json.decode(await self._client.get(KUEUE), type=_Group)
        except NotFound:
            return ()
        except (ApiError, msgspec.DecodeError) as error:
            return Unknown(f"{KUEUE} cannot be read: {error}", "the ClusterRole system:discovery, which all users have")
        return tuple(each.version for each in group.versions)

    # --- the Lease --------------------------------------------------------------------------------------------------
    async def _lease(self) -> tuple[Lease, ...] | Unknown:
        """Look until it was renewed, for some seconds at most."""
        looks: list[Lease] = []
        deadline = time.monotonic() + LEASE_LOOKS_SECONDS
        while True:
            found = await self._one(LEASES, self._namespace, self._settings.leadership.name, Lease)
            if isinstance(found, Unknown):
                return found
            if found is None or not found.holder:
                return (*looks, found) if found else tuple(looks)
            if not looks or looks[-1].metadata.resource_version != found.metadata.resource_version:
                looks.append(found)
            if len(looks) > 1 or time.monotonic() > deadline:
                return tuple(looks)
            await asyncio.sleep(LEASE_PAUSE_SECONDS)

    # --- rights -----------------------------------------------------------------------------------------------------
    async def _parts(self, pods: tuple[Pod, ...] | Unknown) -> tuple[InstalledPart, ...]:
        """Who the controller, the extender and the agents act as, and what they may do."""
        titles = {
            "controller": (
                names.CONTROLLER_ACCOUNT,
                (*rbac.OF_CONTROLLER, *rbac.OF_ADVISOR, *rbac.OF_PLACER, *rbac.OF_REVIEWER),
            ),
            "extender": (names.EXTENDER_ACCOUNT, (*rbac.OF_EXTENDER, *rbac.OF_REVIEWER)),
            "agent": (names.AGENT_ACCOUNT, rbac.OF_AGENT),
        }
        running = () if isinstance(pods, Unknown) else pods
        return tuple(await asyncio.gather(*(self._part(title, *told, running) for title, told in titles.items())))

    async def _part(self, title: str, account: str, wanted: tuple[Need, ...], pods: Iterable[Pod]) -> InstalledPart:
        pod = next((pod for pod in pods if pod.part == title), None)
        namespace = pod.metadata.namespace if pod else self._namespace
        account = (pod.spec.service_account_name if pod else "") or account
        exists: bool | Unknown = True
        if pod is None:
            listed = await self._list(SERVICE_ACCOUNTS, AnyObject, namespace=namespace)
            exists = listed if isinstance(listed, Unknown) else account in {each.metadata.name for each in listed}
        part = InstalledPart(title, namespace, account, pod is not None, exists)
        return replace(part, grants=await self._may(wanted, part.user)) if exists is True else part

    async def _may(self, wanted: Iterable[Need], user: str) -> tuple[AccessRight, ...] | Unknown:
        """What a service account may do, or, without one, who asks."""
        asked = [(need, right) for need in wanted for right in need.rights(self._namespace)]
        try:
            verdicts = await asyncio.gather(*(self._review(right, user) for _, right in asked))
        except (ApiError, msgspec.DecodeError) as error:
            return _unknown(error, Right("create", "authorization.k8s.io", "subjectaccessreviews"))
        return tuple(AccessRight(need, right, allowed) for (need, right), allowed in zip(asked, verdicts, strict=True))

    async def _review(self, right: Right, user: str) -> bool:
        resource = SUBJECT_ACCESS_REVIEWS if user else SELF_SUBJECT_ACCESS_REVIEWS
        kind, _, subresource = right.resource.partition("/")
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": kind,
            "subresource": subresource,
            "name": right.name,
            "namespace": right.namespace,
        }
        body = {
            "apiVersion": resource.api_version,
            "kind": "SubjectAccessReview" if user else "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes} | ({"user": user, "groups": _groups(user)} if user else {}),
        }
        answer = await self._client.request("POST", resource.path(), body=body)
        return msgspec.json.decode(answer, type=_Review).status.allowed


def _groups(user: str) -> list[str]:
    """Groups of a service account: bindings may name those."""
    _, _, namespace, _ = user.split(":")
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]


def _group(resource: Resource) -> str:
    group, slash, _ = resource.api_version.partition("/")
    return group if slash else ""


def _unknown(error: Exception, right: Right) -> Unknown:
    if isinstance(error, Forbidden):
        return Unknown(
            "this user may not", f"the right to {right.told()} (all of them: `trimtab doctor --roles-for USER`)"
        )
    return Unknown(f"{right.told()}: {error}")
