"""Carry out one action against the API server; safe to repeat, whatever happened to an earlier attempt.

    status    fenced by resourceVersion and by the leader epoch in it (the CRD refuses a lower one)
    create    deterministic names: AlreadyExists is success if the object there is controlled by the same job UID
    release   carries the pod's UID: a gate that is gone already is success
    adopt     carries the pod's UID and version: one that is adopted already is success
    annotate  carries the pod's UID: the same words twice are the same as once
    bind      carries the pod's UID: Conflict is success if the pod is on that very node
    delete    carries the UID: NotFound and Conflict mean that this pod is gone already

A refusal that repeating cannot mend is `WriteRefused`: the gang is rolled back and planned anew. Everything else is an
`ApiError` and means: look again, then try again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from trimtab import names
from trimtab.api.status import JobStatus
from trimtab.apply.actions import DeletePod
from trimtab.errors import AlreadyExists, Conflict, Forbidden, Invalid, LeadershipLost, NotFound, TrimtabError
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import AnyObject, Identity, Meta, PodObject
from trimtab.kube.resources import JOBS, PODS, Resource

_ANY = msgspec.json.Decoder(AnyObject)
_POD = msgspec.json.Decoder(PodObject)


class WriteRefused(TrimtabError):
    """The API server, or an object of somebody else, stands in the way of this gang."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def write_status(client: KubeClient, meta: Meta, before: JobStatus, after: JobStatus, leader_epoch: int) -> bytes:
    """Write a status over the one that it was derived from; return the job as it is now.

    Raises Conflict when the job has changed meanwhile and LeadershipLost when a later leader has written to it.
    """
    if (before.leader_epoch or 0) > leader_epoch:
        later = f"leader epoch {before.leader_epoch}, ours is {leader_epoch}"
        raise LeadershipLost(f"job {meta.key} was written by {later}")
    wire = after.model_copy(update={"leader_epoch": leader_epoch}).to_wire()
    patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": merge_patch(before.to_wire(), wire)}
    return await client.merge_patch(JOBS.path(meta.namespace, meta.name), patch, subresource="status")


def merge_patch(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The RFC 7386 patch that turns `before` into `after`; lists are replaced as a whole.

    >>> merge_patch({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2, "d": 4}})
    {'a': None, 'b': {'d': 4}}
    """
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            if nested := merge_patch(old, value):
                patch[key] = nested
        elif value != old or key not in before:
            patch[key] = value
    return patch


async def create(client: KubeClient, resource: Resource, obj: dict[str, Any], owner: Identity) -> bytes:
    """Create a Service or pod of the gang, or find the one that an earlier attempt created; return what is there."""
    namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
    try:
        # Of a template, the API server knew only that it holds an object: a misspelt field is told, not dropped.
        return await client.create(resource.path(namespace), obj, strict=resource is PODS)
    except AlreadyExists:
        there = await client.get(resource.path(namespace, name))
        if _ANY.decode(there).metadata.job == owner:
            return there
        what = resource.plural.removesuffix("s")
        raise WriteRefused("NameTaken", f"a {what} named {name} exists and belongs to somebody else") from None
    except (Forbidden, Invalid) as error:
        raise WriteRefused("CreateRefused", f"creating {resource.plural.removesuffix('s')} {name}: {error}") from error


async def bind(client: KubeClient, namespace: str, pod: str, uid: str, node: str) -> None:
    """Bind the pod with this UID to the node, or find that this has been done."""
    try:
        await client.bind(namespace, pod, uid, node)
    except Conflict as error:
        there = _POD.decode(await client.get(PODS.path(namespace, pod)))
        if there.metadata.uid != uid or there.spec.node_name != node:
            raise WriteRefused("BindRefused", f"binding pod {pod} to {node}: {error}") from error
    except (NotFound, Forbidden, Invalid) as error:
        raise WriteRefused("BindRefused", f"binding pod {pod} to {node}: {error}") from error


async def release(client: KubeClient, namespace: str, pod: str, uid: str) -> bytes:
    """Take our gate away from the pod with this UID, and no other gate; return the pod as it is now.

    Gates cannot be added again: from here on kube-scheduler may bind the pod at any time.
    """
    gate = {"$patch": "delete", "name": names.SCHEDULING_GATE}
    patch = {"metadata": {"uid": uid}, "spec": {"schedulingGates": [gate]}}
    try:
        return await client.strategic_patch(PODS.path(namespace, pod), patch)
    except (NotFound, Forbidden, Invalid, Conflict) as error:  # another UID is Conflict or Invalid
        raise WriteRefused("ReleaseRefused", f"releasing pod {pod} to kube-scheduler: {error}") from error


async def adopt(
    client: KubeClient, namespace: str, pod: str, uid: str, patch: Callable[[dict[str, Any]], dict[str, Any]]
) -> bytes:
    """Make the pod with this UID, which another controller has made, a pod of a gang; return it as it is now.

    `patch` makes the merge patch out of the pod as it is. What is of a gang already stays as it is. Raises NotFound
    when that pod is gone, or goes, and Conflict when it has just changed.
    """
    there = await client.get(PODS.path(namespace, pod))
    known = _POD.decode(there)
    if known.metadata.uid != uid or known.metadata.deletion_timestamp:
        raise NotFound(f"pod {pod} is gone, or goes")
    if known.metadata.job:
        return there
    try:
        return await client.merge_patch(PODS.path(namespace, pod), patch(msgspec.json.decode(there)))
    except (Forbidden, Invalid) as error:
        raise WriteRefused("AdoptRefused", f"taking pod {pod} into the gang: {error}") from error


async def annotate(client: KubeClient, namespace: str, pod: str, uid: str, deadline: str) -> bytes:
    """Tell the pod with this UID by when it is to have saved its state; return the pod as it is now.

    Raises NotFound when that pod is gone.
    """
    patch = {"metadata": {"uid": uid, "annotations": {names.ANNOTATION_CHECKPOINT: deadline}}}
    try:
        return await client.strategic_patch(PODS.path(namespace, pod), patch)
    except (Conflict, Invalid) as error:  # another pod has its name: the UID does not match
        raise NotFound(str(error)) from error


async def delete_owned(client: KubeClient, kind: Resource, namespace: str, name: str, uid: str) -> None:
    """Delete the object with this UID, of a kind that the kubelet has no part in, if it still exists."""
    try:
        await client.delete(kind.path(namespace, name), uid=uid)
    except (NotFound, Conflict):
        return


async def delete_pod(client: KubeClient, namespace: str, pod: DeletePod) -> None:
    """Delete the pod with this name and UID, if it still exists."""
    try:
        await client.delete(PODS.path(namespace, pod.name), uid=pod.uid, grace_seconds=0 if pod.force else pod.grace)
    except (NotFound, Conflict):
        return
