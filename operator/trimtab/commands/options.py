"""Options that several commands share, and how a command ends."""

from __future__ import annotations

import asyncio
import gc
import os
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from trimtab.commands import completion
from trimtab.errors import TrimtabError, UsageError
from trimtab.printable import say
from trimtab.ui.form import Output
from trimtab_policy.catalog import UnknownGpu, UnknownModel
from trimtab_policy.policy import UnknownPolicy

if TYPE_CHECKING:  # what a command works with is loaded when it runs: completion and `--help` do without
    from trimtab.settings import KubeSettings

P = ParamSpec("P")
R = TypeVar("R")

_BOTH = re.compile(r"(?P<namespace>[a-z0-9-]+)/(?P<name>[a-z0-9.-]+)")

EXIT_ERROR = 1
EXIT_USAGE = 2


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Print a table, JSON or YAML.")]
KubeconfigOption = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Kubeconfig file; by default $KUBECONFIG, then ~/.kube/config.")
]
ContextOption = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
NamespaceOption = Annotated[
    str, typer.Option("--namespace", "-n", help="Namespace; by default that of the kubeconfig's context.")
]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="NAME, or NAMESPACE/NAME.", autocompletion=completion.jobs)
]


def kube_settings(kubeconfig: Path | None, context: str | None) -> KubeSettings:
    """Where the API server is, as the command line says."""
    from trimtab.settings import KubeSettings

    return KubeSettings(kubeconfig=kubeconfig, context=context)


def place(job: str, namespace: str, kubeconfig: Path | None, context: str | None) -> tuple[str, str]:
    """Namespace and name of a job that is written as NAME or NAMESPACE/NAME, as `trimtab get jobs` prints it.

    Raises UsageError where the two namespaces are not the same.
    """
    both = _BOTH.fullmatch(job)
    if both and namespace and both["namespace"] != namespace:
        raise UsageError(f"{job} and --namespace {namespace} are two namespaces: name one")
    if both:
        return both["namespace"], both["name"]
    return namespace or own_namespace(kubeconfig, context), job


def own_namespace(kubeconfig: Path | None, context: str | None) -> str:
    """The namespace that the kubeconfig's context names."""
    from trimtab.kube import slim_auth

    return slim_auth.namespace(kubeconfig, context)


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


def brief() -> None:
    """For a process that answers and ends. Its garbage is not worth looking for, nor are threads for linear algebra
    worth starting: each takes 50 ms of CPU."""
    gc.set_threshold(100_000, 50, 50)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported


def command(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Run an async command that answers and ends, its errors `reported`."""
    run = server(function)

    @wraps(function)
    def answer(*args: P.args, **kwargs: P.kwargs) -> R:
        brief()
        return run(*args, **kwargs)

    return answer


def server(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Run an async command that goes on until it is stopped, its errors `reported`."""

    @wraps(function)
    @reported()
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return asyncio.run(function(*args, **kwargs))

    return run
