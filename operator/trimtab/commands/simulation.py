"""What goes wrong when something is simulated, as errors of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trimtab.errors import TrimtabError, UsageError
from trimtab_policy.sim.engine import Stuck
from trimtab_policy.sim.node_accounts import BrokenDecision


@contextmanager
def extras() -> Iterator[None]:
    """Say how to install what only simulations need."""
    try:
        yield
    except ImportError as error:
        extra = "ray" if error.name == "ray" else "sim"
        raise UsageError(f"this needs {error.name}: pip install 'trimtab[{extra}]' ({error})") from error


@contextmanager
def input_errors() -> Iterator[None]:
    """Errors in what was typed, or in the files that it names, are those of whoever typed it."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


@contextmanager
def run_errors(*wrong: type[ValueError]) -> Iterator[None]:
    """Raises UsageError for input that no run can be made of, TrimtabError for a run that went wrong.

    `wrong` are further ways in which it may.
    """
    try:
        yield
    except ValueError as error:
        if isinstance(error, (BrokenDecision, Stuck, *wrong)):
            raise TrimtabError(cause(error)) from error
        raise UsageError(cause(error)) from error


def cause(error: Exception) -> str:
    """Ray wraps the error of a run into one of the same kind whose message is a traceback."""
    return str(getattr(error, "cause", None) or error)
