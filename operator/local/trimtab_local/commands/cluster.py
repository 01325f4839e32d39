"""`trimtab cluster`: a control plane on this machine, kept until it is taken down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.table import Table

from trimtab.commands.options import OutputOption, reported
from trimtab.errors import UsageError
from trimtab.extender.config import FEATURE_GATES, ExtenderTls, scheduler_configuration
from trimtab.printable import say
from trimtab.ui.form import Output
from trimtab.ui.output import show
from trimtab_local.control_plane import build as builder
from trimtab_local.control_plane.cluster import LocalCluster, local_clusters
from trimtab_local.control_plane.layout import ClusterPhase, ClusterState, Layout
from trimtab_local.control_plane.options import ClusterOptions, ExtenderFiles, SecondScheduler

app = typer.Typer(
    help="Run a real control plane on this machine, without containers: etcd, kube-apiserver, controllers, KWOK.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Option("--name", "-n", help="Clusters of different names run side by side.")]
DEFAULT = "default"


@app.command(epilog="Example: trimtab cluster up && trimtab fake-nodes apply -f manifests/fake/heterogeneous.yaml")
@reported()
def up(
    name: Name = DEFAULT,
    extender: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Run a second kube-scheduler that asks an extender there, e.g. https://127.0.0.1:8888.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Start a cluster and wait until it is ready. It runs until `trimtab cluster down`.

    With --extender, pods with schedulerName trimtab go to a second kube-scheduler that asks the extender at this URL;
    the command that starts such an extender is printed.

    Example: trimtab cluster up --name ext --extender https://127.0.0.1:8888
    """
    programs = builder.build()
    cluster = LocalCluster(name, keep=True, options=_with_extender(name, extender) if extender else ClusterOptions())
    cluster.start()
    say(f"cluster {name} is ready at {cluster.status().server}", error=True)
    say(f"export KUBECONFIG={cluster.kubeconfig}")
    say(f"kubectl of the same version: {programs / 'kubectl'}", error=True)
    if extender:
        say(f"start the extender: {_extender_command(extender, cluster.extender_files)}", error=True)


@app.command(epilog="Example: trimtab cluster down --name test")
@reported()
def down(name: Name = DEFAULT) -> None:
    """Stop a cluster and remove its files. Succeeds when there is none."""
    LocalCluster(name).stop()


@app.command(epilog="Example: trimtab cluster status -o json | jq '.[].phase'")
@reported()
def status(
    name: Annotated[str, typer.Option("--name", "-n", help="Only this cluster.")] = "",
    form: OutputOption = Output.TABLE,
) -> None:
    """List the clusters of this machine. With --name, the exit code is 1 unless that cluster is ready."""
    clusters = {name: LocalCluster(name).status()} if name else local_clusters()
    show(form, clusters, _table(clusters))
    if name and clusters[name].phase is not ClusterPhase.READY:
        raise typer.Exit(1)


@app.command(epilog="Example: trimtab cluster logs kube-apiserver -f")
@reported()
def logs(
    component: Annotated[str, typer.Argument(help="etcd, kube-apiserver, kwok, ...; all when left out.")] = "",
    name: Name = DEFAULT,
    lines: Annotated[int, typer.Option("--lines", help="Lines from the end of each log.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing until Ctrl-C.")] = False,
) -> None:
    """Print the ends of the components' logs."""
    files = _log_files(LocalCluster(name), component)
    command = ["tail", f"--lines={lines}", *(["--follow=name", "--retry"] if follow else []), *map(str, files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as tail:
        for line in tail.stdout or ():
            say(line.rstrip("\n"))
            sys.stdout.flush()
    raise typer.Exit(tail.returncode)


@app.command(epilog="Example: export PATH=$(trimtab cluster build):$PATH")
@reported()
def build() -> None:
    """Build the control plane, unless that was done already, and print the directory of the programs."""
    say(str(builder.build()))


def _with_extender(name: str, url: str) -> ClusterOptions:
    """A second kube-scheduler; it shows the cluster's own certificates where the URL asks for TLS."""
    files = Layout(name).extender_files
    shown = ExtenderTls(str(files.ca), str(files.client_certificate), str(files.client_key))
    configuration = scheduler_configuration(url, tls=shown if url.startswith("https://") else None)
    return ClusterOptions(second_scheduler=SecondScheduler(configuration, dict(FEATURE_GATES)))


def _extender_command(url: str, files: ExtenderFiles) -> str:
    parts = urlsplit(url)
    words = ["trimtab extender", f"--host {parts.hostname}", f"--port {parts.port or 443}"]
    if parts.scheme == "https":
        words += [f"--certificate {files.certificate}", f"--key {files.key}", f"--client-ca {files.ca}"]
    return " ".join(words)


def _log_files(cluster: LocalCluster, component: str) -> list[Path]:
    directory = cluster.log("any").parent
    known = {path.stem: path for path in sorted(directory.glob("*.log"))}
    if not known:
        raise UsageError(f"cluster {cluster.name} has no logs: it is not running")
    if component and component not in known:
        raise UsageError(f"component {component!r}: choose one of {', '.join(known)}")
    return [known[component]] if component else list(known.values())


def _table(clusters: dict[str, ClusterState]) -> Table:
    table = Table("NAME", "PHASE", "SERVER", "MESSAGE", box=None, pad_edge=False)
    for name, state in clusters.items():
        first_line = state.message.partition("\n")[0]
        table.add_row(name, state.phase, state.server, first_line)
    return table
