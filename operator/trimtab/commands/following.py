"""Rows as they change: the work of `trimtab get --watch`, from the reflectors that the console has.

What is there is printed first; then a row is printed below whenever what it shows has become another. A connection that
is cut is made anew, and what happened meanwhile is printed as well; kubectl would end. Ages move by themselves: they
make no new row.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import typer

from trimtab.commands.cluster_watch import ClusterWatch
from trimtab.commands.options import EXIT_ERROR
from trimtab.doctor.collect import OURS
from trimtab.doctor.inventory import Pod
from trimtab.kube.client import KubeClient
from trimtab.kube.listing import list_all
from trimtab.kube.objects import JobObject
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import JOBS, PODS
from trimtab.observe.jobs import JobFacts, facts
from trimtab.observe.snapshot import Observation
from trimtab.printable import say
from trimtab.settings import KubeSettings, LogSettings, Settings
from trimtab.telemetry import logs
from trimtab.ui import output
from trimtab.ui.form import ListForm, Output
from trimtab.ui.listing import Cell, Listing, Rows

LOOK_SECONDS = 1.0
"""Between two looks at the whole cluster, at least."""
TROUBLE_SECONDS = 1.0
"""How often it is asked whether the copies are current."""
GONE = "Gone"
"""In the column STATE: deleted, or its labels are no longer those that were asked for."""
MOVING = frozenset({"AGE"})
"""Columns that say something else each second."""


class _Row(NamedTuple):
    name: str
    value: dict[str, Any]
    lines: Sequence[tuple[Cell, ...]]
    shows: Any
    """What makes it another row when it changes."""


class Printer:
    """Prints rows that are new or different below those that were printed before."""

    def __init__(self, form: ListForm, kind: str) -> None:
        self._form, self._kind = form, kind
        self._printed: dict[str, _Row] = {}
        self._table: Listing | None = None

    @property
    def keys(self) -> Collection[str]:
        """Of what is there, as far as it was printed."""
        return self._printed.keys()

    def update(self, rows: Rows) -> None:
        """Print those of these rows that say something else than before."""
        plain = [msgspec.to_builtins(value) for value in rows.values]
        fresh = {}
        for key, name, value, lines in zip(rows.keys, rows.names, plain, rows.lines, strict=True):
            row = _Row(name, value, lines, self._shows(value, lines, rows.table.columns))
            if key not in self._printed or self._printed[key].shows != row.shows:
                fresh[key] = row
        self._printed |= fresh
        self._table = self._table or rows.table.below(())
        self._print(fresh.values())

    def gone(self, keys: Iterable[str]) -> None:
        """Print rows of what is there no more."""
        left = [self._printed.pop(key) for key in keys if key in self._printed]
        if self._table is not None and left:
            at = self._table.columns.index("STATE") if "STATE" in self._table.columns else None
            self._print(
                row._replace(
                    lines=[tuple(GONE if n == at else cell for n, cell in enumerate(line)) for line in row.lines],
                    value=row.value | ({"state": GONE} if "state" in row.value else {}),
                )
                for row in left
            )

    def _shows(self, value: Any, lines: Sequence[tuple[Cell, ...]], columns: tuple[str, ...]) -> Any:
        if not self._is_table:
            return value
        return [[str(cell) for name, cell in zip(columns, line, strict=True) if name not in MOVING] for line in lines]

    @property
    def _is_table(self) -> bool:
        return self._form.output is Output.TABLE and not self._form.names and self._form.path is None

    def _print(self, rows: Iterable[_Row]) -> None:
        rows = list(rows)
        if not rows or self._table is None:
            return
        if self._is_table:
            self._table = self._table.below([line for row in rows for line in row.lines])
            output.show_list(self._form, self._kind, [], [], self._table, one=False)
        for row in () if self._is_table else rows:  # each a document of its own
            if self._form.output is Output.YAML:
                say("---")
            output.show_list(self._form, self._kind, [row.name], [row.value], self._table, one=True)
        sys.stdout.flush()  # whoever reads a pipe waits for it


async def jobs(
    kube: KubeSettings, namespaces: Iterable[str], selector: str, wanted: Collection[tuple[str, str]],
    rows: Callable[[list[JobFacts]], Rows], printer: Printer,
) -> None:  # fmt: skip
    """Print jobs of these namespaces (an empty one: of all) as they change; only those of `wanted`, where there are
    any. Goes on until it is cancelled."""
    _quiet()
    news: asyncio.Queue[tuple[JobObject | None, JobObject | None]] = asyncio.Queue()

    def changed(old: JobObject | None, new: JobObject | None) -> None:
        news.put_nowait((old, new))

    async with await KubeClient.connect(kube) as client:
        how = Settings().reflector
        copies = [
            Reflector(client, JOBS, JobObject, how, only=(space, ""), labels=selector, on_change=changed)
            for space in namespaces
        ]

        async def show() -> None:
            for each in copies:
                await each.synced.wait()
            printer.gone([key for key in printer.keys if not any(key in each.items for each in copies)])
            while True:
                old, new = await news.get()
                if new is None:
                    printer.gone([old.metadata.key] if old else [])
                elif not wanted or (new.metadata.namespace, new.metadata.name) in wanted:
                    printer.update(rows([seen for seen in [facts(new)] if seen.ours]))

        def trouble() -> str:
            return next((each.trouble for each in copies if each.trouble), "")

        await _together(show(), _interrupted(), _tell(trouble), *(each.run() for each in copies))


async def looks(kube: KubeSettings, rows: Callable[[Observation], Awaitable[Rows]], printer: Printer) -> None:
    """Print what is made of looks at the whole cluster: again after each change, once a second at most. Goes on until
    it is cancelled."""
    _quiet()
    changed = asyncio.Event()
    async with await KubeClient.connect(kube) as client:
        watch = ClusterWatch(client, Settings(kube=kube), changed.set)
        watch.controllers(await list_all(client, PODS, Pod, [], params={"labelSelector": OURS}))

        async def show() -> None:
            await watch.synced()
            while True:
                changed.clear()
                seen, _ = await asyncio.to_thread(watch.prepared())
                found = await rows(seen)
                printer.update(found)
                printer.gone([key for key in printer.keys if key not in found.keys])
                await asyncio.sleep(LOOK_SECONDS)
                await changed.wait()

        async def trouble() -> None:
            await watch.synced()  # until then it says what is not listed yet
            await _tell(lambda: watch.trouble)

        await _together(show(), _interrupted(), trouble(), watch.run())


async def _together(*work: Coroutine[Any, Any, None]) -> None:
    """All of these until one fails. Raises what that raised, as it is: a pipe that is closed is no error of ours."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _interrupted() -> None:
    """Wait for Ctrl-C or SIGTERM. Raises typer.Exit with kubectl's exit code, where this is no other one."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    await stop.wait()
    raise typer.Exit(EXIT_ERROR)


async def _tell(trouble: Callable[[], str]) -> None:
    """Say on standard error when what is printed may be old, and when it is not any more."""
    told = ""
    while True:
        await asyncio.sleep(TROUBLE_SECONDS)
        now = trouble()
        if bool(now) != bool(told):
            say(f"trimtab: may be out of date: {now}" if now else "trimtab: is current again", error=True)
        told = now


def _quiet() -> None:
    """Trouble is told in a sentence, not in logs."""
    logs.configure(LogSettings(level="error"))
