"""`trimtab bench`: every published number made anew, with the commands and seeds that `bench.yaml` has on record.

Results are kept entry by entry, so that a bench that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from trimtab.commands.options import OutputOption, reported
from trimtab.errors import UsageError
from trimtab.printable import say
from trimtab.ui import output
from trimtab.ui.form import Output
from trimtab.ui.interrupts import interruptible
from trimtab.ui.output import spaced
from trimtab_lab.commands import runs
from trimtab_lab.ui import bench as ui

if TYPE_CHECKING:
    from trimtab_lab.bench import BenchEntry
    from trimtab_lab.bench.results import Result


@reported()
def bench(
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Entry to make; repeatable.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few seeds and short runs: do the modules work?")] = False,
    out: Annotated[Path, typer.Option(help="Folder for results, and for runs that an entry keeps.")] = Path(
        "trimtab-bench"
    ),
    listed: Annotated[bool, typer.Option("--list", help="Show what there is, and make nothing.")] = False,
    write: Annotated[
        Path | None,
        typer.Option(metavar="PAGE", help="Write the page anew, and results into the folder results beside it."),
    ] = None,
    form: OutputOption = Output.TABLE,
) -> None:
    """Make published numbers anew: the same commands, configurations and seeds, one table an entry.

    Results are kept in --out: stopped with Ctrl-C, the same command goes on; what has not changed is not made again.

    Examples: trimtab bench --list

    trimtab bench --only cluster-64

    trimtab bench --quick -o json

    trimtab bench --write policy/RESULTS.md
    """
    if quick and write:
        raise UsageError("--write: numbers of --quick are not to be published; leave one of the two out")
    entries = _entries()
    chosen = _chosen(entries, only or [], quick)
    if listed:
        output.show(form, chosen, ui.entries(chosen))
        return
    found = _made(chosen, out / "quick" if quick else out)
    if write:
        _write(write, entries, found)
    output.show(form, {each.name: _as_json(each) for each in found}, spaced([ui.report(each.report) for each in found]))


def _entries() -> dict[str, BenchEntry]:
    with _input_errors():
        from trimtab_lab import bench

        return bench.entries()


def _chosen(entries: Mapping[str, BenchEntry], only: Sequence[str], quick: bool) -> dict[str, BenchEntry]:
    """Raises UsageError for a name that is not there."""
    for name in only:
        if name not in entries:
            raise UsageError(f"--only: there is no entry {name!r}; there are: {', '.join(entries)}")
    return {name: entry.quickly if quick else entry for name, entry in entries.items() if not only or name in only}


def _made(chosen: Mapping[str, BenchEntry], out: Path) -> list[Result]:
    """Results in the order of the entries. Ends the program with 130 when it is interrupted; what is ready is kept."""
    with _input_errors():
        from trimtab_lab import bench
        from trimtab_lab.bench import results

        for name, entry in chosen.items():
            bench.check(name, entry)
    found: list[Result] = []
    try:
        with interruptible(), ui.progress(len(chosen)) as bar:
            for name, entry in chosen.items():
                bar.begin(name)
                with _input_errors():
                    result = results.known(out, name, entry) or results.make_result(out, name, entry, bar.say)
                found.append(result)
                bar.end()
    except KeyboardInterrupt:
        told = f"{len(found)} of {len(chosen)} entries are kept in {out}: the same command goes on from there"
        say(f"\ntrimtab: stopped; {told}", error=True)
        runs.stop_children()
        raise typer.Exit(runs.EXIT_INTERRUPTED) from None
    return found


def _write(page: Path, entries: Mapping[str, BenchEntry], found: Sequence[Result]) -> None:
    from trimtab_lab.bench import page as pages

    try:
        pages.write(page, entries, found)
    except OSError as error:
        raise UsageError(f"--write: cannot write {page}: {error.strerror}") from error


def _as_json(result: Result) -> dict[str, Any]:
    """As it is kept: JSON knows no NaN, so what is not known is null."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(result))
    return plain


@contextmanager
def _input_errors() -> Iterator[None]:
    """Raises UsageError for packages that are not there, and for whatever is wrong with entries, weights or folders."""
    try:
        with runs.run_errors():
            yield
    except ImportError as error:
        raise UsageError(f"this needs {error.name}: pip install 'trimtab[sim,train]' ({error})") from error
    except OSError as error:
        raise UsageError(f"--out: {error}") from error
