"""`trimtab fake-nodes`: fill any cluster in which KWOK runs with fake GPU nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from trimtab.commands.options import ContextOption, KubeconfigOption, OutputOption, command, reported
from trimtab.kube.client import KubeClient
from trimtab.printable import say
from trimtab.settings import KubeSettings
from trimtab.ui.form import Output
from trimtab.ui.output import show
from trimtab.ui.progress import progress
from trimtab_local.checkout import checkout
from trimtab_local.fake.apply import apply_devices, apply_nodes, delete_nodes
from trimtab_local.fake.nodes import devices, expand
from trimtab_local.fake.profile import FakeCluster, load_profile, shipped_profiles

QUEUE_SECONDS = 60.0
"""Deadline of a request. Nearly all of it is waiting in our own queue while 1,000 nodes are made."""

app = typer.Typer(
    help="Make fake GPU nodes, labelled and sized as real device plugins leave them; KWOK keeps them Ready.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(epilog="Example: trimtab fake-nodes apply -f manifests/fake/heterogeneous.yaml")
@command
async def apply(
    filename: Annotated[Path, typer.Option("--filename", "-f", help="A profile: see `trimtab fake-nodes list`.")],
    prefix: Annotated[str, typer.Option(help="Goes before every node's name.")] = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Create the nodes of a profile, or bring them up to date. May be repeated."""
    profile = load_profile(filename)
    nodes = expand(profile, prefix)
    async with await _connect(kubeconfig, context) as client:
        with progress("creating fake nodes", len(nodes)) as bar:
            await apply_nodes(client, nodes, bar)
        await apply_devices(client, devices(profile, prefix))
    say(f"{profile.name}: {profile.nodes} nodes with {profile.gpus} GPUs", error=True)


@app.command(epilog="Example: trimtab fake-nodes delete --profile large")
@command
async def delete(
    profile: Annotated[str, typer.Option(help="Name of the profile whose nodes go; default: all fake nodes.")] = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Delete fake nodes. Pods on them are collected by Kubernetes within a minute."""
    async with await _connect(kubeconfig, context) as client:
        count = await delete_nodes(client, profile)
    say(f"deleted {count} fake nodes", error=True)


@app.command("list", epilog="Example: trimtab fake-nodes list -o json")
@reported()
def list_profiles(form: OutputOption = Output.TABLE) -> None:
    """List the profiles that come with Trimtab."""
    rows = [_row(path, load_profile(path)) for path in shipped_profiles()]
    table = Table("FILE", "NODES", "GPUS", "DESCRIPTION", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(str(row[key]) for key in ("file", "nodes", "gpus", "description")))
    show(form, rows, table)


async def _connect(kubeconfig: Path | None, context: str | None) -> KubeClient:
    return await KubeClient.connect(KubeSettings(kubeconfig=kubeconfig, context=context, request_timeout=QUEUE_SECONDS))


def _row(path: Path, profile: FakeCluster) -> dict[str, str | int]:
    return {
        "file": str(path.relative_to(checkout())),
        "name": profile.name,
        "nodes": profile.nodes,
        "gpus": profile.gpus,
        "description": profile.description,
    }
