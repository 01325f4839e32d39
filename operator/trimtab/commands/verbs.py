"""`trimtab suspend|resume|scale|cancel JOB`: what people do with jobs, as one change of the job's object each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.commands import completion
from trimtab.commands.options import (
    ContextOption,
    JobArgument,
    KubeconfigOption,
    NamespaceOption,
    command,
    kube_settings,
    place,
)
from trimtab.printable import say

if TYPE_CHECKING:
    from trimtab.kube.client import KubeClient
    from trimtab.kube.objects import AnyObject

JobsArgument = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="NAME, or NAMESPACE/NAME.", autocompletion=completion.jobs)
]


@command
async def suspend(
    jobs: JobsArgument,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Take jobs off their GPUs. A running one is asked for a checkpoint first; it keeps its place in the order of age.

    Example: trimtab suspend llama3-8b -n team-a
    """
    await _patch(jobs, namespace, kubeconfig, context, {"suspend": True}, "suspended")


@command
async def resume(
    jobs: JobsArgument,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Let suspended jobs run again: they are planned anew, and go on from their last checkpoint.

    Example: trimtab resume team-a/llama3-8b
    """
    await _patch(jobs, namespace, kubeconfig, context, {"suspend": False}, "resumed")


@command
async def scale(
    job: JobArgument,
    gpus: Annotated[str, typer.Option(help="How many GPUs: 8, or 8-64 for Trimtab to choose.")],
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Change how many GPUs a job may have. Jobs that are not Elastic keep what they run on until their next plan.

    Example: trimtab scale llama3-8b --gpus 16-64
    """
    from trimtab.commands.submission import gpu_range

    low, high = gpu_range("--gpus", gpus)
    wanted = {"resources": {"gpus": {"min": low, "max": high}}}
    await _patch([job], namespace, kubeconfig, context, wanted, "scaled")


@command
async def cancel(
    jobs: JobsArgument,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Delete jobs and their pods. What they have saved elsewhere stays; to go on later, suspend them instead.

    Example: trimtab cancel llama3-8b -n team-a
    """
    from trimtab.kube.client import KubeClient
    from trimtab.kube.resources import JOBS

    async with await KubeClient.connect(kube_settings(kubeconfig, context)) as client:
        for found in await _found(client, jobs, namespace, kubeconfig, context):
            meta = found.metadata
            await client.delete(JOBS.path(meta.namespace, meta.name), uid=meta.uid)
            say(f"llmtrainingjob.trimtab.dev/{meta.name} deleted")


async def _patch(
    jobs: Iterable[str],
    namespace: str,
    kubeconfig: Path | None,
    context: str | None,
    spec: dict[str, Any],
    done: str,
) -> None:
    """Merge this into the specs of jobs, all of which there must be."""
    from trimtab.kube.client import KubeClient
    from trimtab.kube.resources import JOBS

    async with await KubeClient.connect(kube_settings(kubeconfig, context)) as client:
        for found in await _found(client, jobs, namespace, kubeconfig, context):
            meta = found.metadata
            await client.merge_patch(JOBS.path(meta.namespace, meta.name), {"spec": spec})
            say(f"llmtrainingjob.trimtab.dev/{meta.name} {done}")


async def _found(
    client: KubeClient, jobs: Iterable[str], namespace: str, kubeconfig: Path | None, context: str | None
) -> list[AnyObject]:
    """The jobs, before anything is done to the first of them. Raises TrimtabError for one that there is not."""
    import msgspec

    from trimtab.commands.job_list import no_such_job
    from trimtab.errors import Forbidden, NotFound
    from trimtab.kube.listing import list_all
    from trimtab.kube.objects import AnyObject
    from trimtab.kube.resources import JOBS

    found: list[AnyObject] = []
    for each in jobs:
        where, name = place(each, namespace, kubeconfig, context)
        try:
            found.append(msgspec.json.decode(await client.get(JOBS.path(where, name)), type=AnyObject))
        except NotFound as error:
            known: list[AnyObject] = []
            try:
                known = await list_all(client, JOBS, AnyObject, [], namespace=where)
            except Forbidden as forbidden:
                raise no_such_job(where, name, ()) from forbidden
            raise no_such_job(where, name, [each.metadata.key for each in known]) from error
    return found
