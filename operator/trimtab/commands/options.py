"""Options that several commands share, and how a command ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from trimtab.errors import TrimtabError, UsageError
from trimtab.printable import say
from trimtab.settings import KubeSettings
from trimtab.ui.output import Output
from trimtab_policy.catalog import UnknownGpu, UnknownModel
from trimtab_policy.policy import UnknownPolicy

P = ParamSpec("P")
R = TypeVar("R")

EXIT_ERROR = 1
EXIT_USAGE = 2


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Print a table, JSON or YAML.")]
KubeconfigOption = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Kubeconfig file; by default $KUBECONFIG, then ~/.kube/config.")
]
ContextOption = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
WithOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--with", help="A file that the job names: a config of its trainer, a script, its runtime. Repeatable."
    ),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="FIELD=VALUE that the job does not state itself. Repeatable.")
]
RunOption = Annotated[int, typer.Option("--run", min=0, help="Which of several runs in the file, from 1.")]
NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the job.")]


def kube_settings(kubeconfig: Path | None, context: str | None) -> KubeSettings:
    """Where the API server is, as the command line says."""
    return KubeSettings(kubeconfig=kubeconfig, context=context)


@contextmanager
def reported() -> Iterator[None]:
    """Turn an expected error into one clear line and an exit code, not a traceback. Serves as a decorator, too."""
    try:
        yield
    except (TrimtabError, UnknownPolicy, UnknownGpu, UnknownModel) as error:
        say(f"trimtab: {error}", error=True)
        raise typer.Exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_ERROR) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def command(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Run an async command, its errors `reported`."""

    @wraps(function)
    @reported()
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return asyncio.run(function(*args, **kwargs))

    return run
