"""Jobs as their own objects tell of them: one request, and none of what it takes to see a cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from trimtab.errors import Forbidden, NotFound, TrimtabError
from trimtab.kube.client import KubeClient
from trimtab.kube.listing import list_all
from trimtab.kube.objects import AnyObject, JobObject
from trimtab.kube.resources import JOBS, NAMESPACES
from trimtab.names import JOB_KIND
from trimtab.observe.jobs import JobFacts, facts
from trimtab.printable import say
from trimtab.settings import KubeSettings
from trimtab_policy.inputs.nearest import did_you_mean


async def jobs_of(
    kube: KubeSettings, namespace: str, selector: str = "", names: Collection[tuple[str, str]] = ()
) -> list[JobFacts]:
    """Jobs of one namespace, or of all for an empty one; of `names` (namespace, name) where any are given.

    Raises TrimtabError for a name or a namespace that there is not.
    """
    unreadable: list[str] = []
    async with await KubeClient.connect(kube) as client:
        found: list[JobObject] = []
        for where in sorted({space for space, _ in names} or {namespace}):
            params = {"labelSelector": selector} if selector else {}
            some = await list_all(client, JOBS, JobObject, unreadable, namespace=where, params=params)
            if not some and where:
                await check_namespace(client, where)
            found += some
    if unreadable:
        say(f"left out, since they cannot be read: {', '.join(unreadable)}", error=True)
    seen = [each for each in map(facts, found) if each.ours]
    if names:
        known = {(each.meta.namespace, each.meta.name): each for each in seen}
        for name in names:
            if name not in known:
                raise no_such_job(*name, [each.meta.key for each in seen])
        return [known[name] for name in names]
    return sorted(seen, key=lambda each: (each.meta.namespace, each.created, each.meta.name))


def no_such_job(namespace: str, name: str, known: Iterable[str]) -> TrimtabError:
    """The error for a job that there is not; `known` are those that there are, as NAMESPACE/NAME."""
    names = {key.partition("/")[2]: key for key in known}
    near = did_you_mean(name, names)
    for each, key in names.items():
        if each == name:  # of another namespace
            near = f"; did you mean {key}?"
    return TrimtabError(f"there is no {JOB_KIND} {namespace}/{name}{near}")


async def check_namespace(client: KubeClient, name: str) -> None:
    """Raises TrimtabError where there is no such namespace; who may not look at namespaces is not told."""
    try:
        await client.get(NAMESPACES.path(name=name))
    except Forbidden:
        return
    except NotFound as error:
        known: list[AnyObject] = []
        with suppress(Forbidden):  # without a hint at what is near
            known = await list_all(client, NAMESPACES, AnyObject, [])
        near = did_you_mean(name, [each.metadata.name for each in known])
        raise TrimtabError(f"there is no namespace {name}{near}") from error
