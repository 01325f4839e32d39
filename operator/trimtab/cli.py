"""The command line: `trimtab`, also `kubectl trimtab`.

A command is whatever a distribution names in its entry points `trimtab.commands`: a function, or a Typer application
for a command with commands of its own. Only the one that is asked for is imported; `--help` imports all.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from trimtab import __version__
from trimtab.printable import Cleaned, printable, say
from trimtab_policy.inputs.plugins import offered

GROUP = "trimtab.commands"


class Commands(TyperGroup):
    """The commands that are installed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in order."""
        return sorted({*super().list_commands(ctx), *offered(GROUP)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import it. One that cannot be imported says so when it is used, and is no hindrance to the others."""
        own = super().get_command(ctx, cmd_name)
        if own or cmd_name not in offered(GROUP):
            return own
        accepts: dict[str, bool] = {}
        try:
            found = offered(GROUP)[cmd_name].load()
        except Exception as error:  # noqa: BLE001 - whatever somebody else's command raises while it is imported
            found = _broken(cmd_name, f"{type(error).__name__}: {error}")
            accepts = {"ignore_unknown_options": True, "allow_extra_args": True}  # what these were it cannot say
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(pretty_exceptions_enable=False)
            alone.command(cmd_name, context_settings=accepts)(found)
            found = alone
        command = get_command(found)
        command.name = cmd_name
        return command


def _broken(name: str, why: str) -> Callable[[], None]:
    told = f"cannot be imported from {offered(GROUP)[name].value}: {why}"

    def fail() -> None:
        say(f"trimtab: {name} {told}", error=True)
        raise typer.Exit(1)

    fail.__doc__ = f"This command {told}"
    return fail


app = typer.Typer(
    name="trimtab",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Decides how LLM training jobs run on heterogeneous GPU clusters: GPU type and count, parallelism, nodes.",
)


def _version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _group(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """With it Typer makes a group of an application that has a single command of its own."""


@app.command()
def version() -> None:
    """Print the version."""
    say(f"trimtab {__version__}")


def main() -> None:
    """Entry point of `trimtab` and `kubectl-trimtab`. A traceback is cleaned as well."""
    if sys.argv[1:] in (["version"], ["--version"]):  # before Typer loads what it reads arguments with
        version()
        return
    if any(printable(word) != word for word in sys.argv):
        sys.stderr = Cleaned(sys.stderr)
    try:
        app()
    except Exception:  # noqa: BLE001  # as the interpreter would, except for the escape codes
        say(traceback.format_exc(), error=True)
        sys.exit(1)
