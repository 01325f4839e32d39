"""`trimtab logs JOB`: what the trainer of a job has written, of the pod of one rank."""

from __future__ import annotations

from typing import Annotated

import typer

from trimtab.commands.options import (
    ContextOption,
    JobArgument,
    KubeconfigOption,
    NamespaceOption,
    command,
    kube_settings,
    place,
)
from trimtab.errors import TrimtabError


@command
async def logs(
    job: JobArgument,
    rank: Annotated[int, typer.Option(help="Node rank of the pod: 0 is the one that leads.", min=0)] = 0,
    tail: Annotated[int | None, typer.Option(help="Only so many lines from the end.", min=0)] = None,
    container: Annotated[str, typer.Option("--container", "-c", help="Container; default: the trainer.")] = "",
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Of the container before its restart.")] = False,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Print the log of a job's trainer. To follow it: kubectl logs -f -l trimtab.dev/job=JOB,trimtab.dev/node-rank=0

    Example: trimtab logs team-a/llama3-8b --rank 3 --tail 20
    """
    from trimtab.api.template import trainer_among
    from trimtab.commands.job_list import jobs_of
    from trimtab.kube.client import KubeClient
    from trimtab.kube.listing import list_all
    from trimtab.kube.objects import PodObject
    from trimtab.kube.resources import PODS
    from trimtab.names import LABEL_JOB, LABEL_RANK
    from trimtab.printable import say

    kube, (where, name) = kube_settings(kubeconfig, context), place(job, namespace, kubeconfig, context)
    async with await KubeClient.connect(kube) as client:
        labels = {"labelSelector": f"{LABEL_JOB}={name},{LABEL_RANK}={rank}"}
        pods = await list_all(client, PODS, PodObject, [], namespace=where, params=labels)
        if not pods:
            await jobs_of(kube, where, names=[(where, name)])  # tells of a job that there is not
            raise TrimtabError(f"{where}/{name} has no pod of rank {rank}: trimtab explain {where}/{name} says why")
        pod = max(pods, key=lambda each: each.metadata.creation_timestamp or "")
        among = [each.name for each in pod.spec.containers]
        asked = {"container": container or among[trainer_among(among)]}
        asked |= {"tailLines": str(tail)} if tail is not None else {}
        asked |= {"previous": "true"} if previous else {}
        text = await client.get(PODS.path(where, pod.metadata.name, "log"), asked)
    if text:
        say(text.decode(errors="replace").removesuffix("\n"))
