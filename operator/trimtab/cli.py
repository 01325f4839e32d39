"""The command line: `trimtab`, also `kubectl trimtab`. Commands are mounted here and imported only when asked for."""

from __future__ import annotations

import sys
import traceback

import typer

from trimtab import __version__
from trimtab.commands import (
    agent,
    bench,
    cluster,
    controller,
    demo,
    doctor,
    evaluate,
    explain,
    extender,
    fake_nodes,
    get,
    perf,
    plan,
    policies,
    profile,
    replay,
    snapshot,
    train,
    whatif,
)
from trimtab.printable import Cleaned, printable, say

app = typer.Typer(
    name="trimtab",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Decides how LLM training jobs run on heterogeneous GPU clusters: GPU type and count, parallelism, nodes.",
)
app.add_typer(get.app, name="get")
app.command()(plan.plan)
app.command()(explain.explain)
app.command()(whatif.whatif)
app.command()(snapshot.snapshot)
app.command()(doctor.doctor)
app.command()(evaluate.evaluate)
app.command()(replay.replay)
app.command()(policies.policies)
app.command()(train.train)
app.command()(bench.bench)
app.add_typer(profile.app, name="profile")
app.command()(controller.controller)
app.command()(agent.agent)
app.command()(extender.extender)
app.command()(demo.demo)
app.add_typer(perf.app, name="perf")
app.add_typer(cluster.app, name="cluster")
app.add_typer(fake_nodes.app, name="fake-nodes")


@app.command()
def version() -> None:
    """Print the version."""
    say(f"trimtab {__version__}")


def main() -> None:
    """Entry point of `trimtab` and `kubectl-trimtab`. A traceback is cleaned as well."""
    if any(printable(word) != word for word in sys.argv):
        sys.stderr = Cleaned(sys.stderr)
    try:
        app()
    except Exception:  # noqa: BLE001  # as the interpreter would, except for the escape codes
        say(traceback.format_exc(), error=True)
        sys.exit(1)
