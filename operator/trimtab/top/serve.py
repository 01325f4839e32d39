"""The process of `trimtab top`: a console without a page, and the screen that shows it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from trimtab.commands import calibration
from trimtab.commands.reach import reach
from trimtab.kube.client import KubeClient
from trimtab.settings import Settings, load
from trimtab.telemetry import logs
from trimtab.top.screen import Top
from trimtab.web import answers
from trimtab.web.console import Console, Moment


class Live:
    """A live cluster, as the console sees it."""

    def __init__(self, console: Console, settings: Settings) -> None:
        self._console, self._settings = console, settings

    @property
    def moment(self) -> Moment | None:
        """The last look."""
        return self._console.moment

    @property
    def trouble(self) -> str:
        """Why it may be old."""
        return self._console.trouble

    async def explain(self, key: str) -> Sequence[tuple[str, str]]:
        """As `trimtab explain` prints it; worked out where looks are made."""
        moment, own = self._console.ready(), self._settings
        namespace, _, name = key.partition("/")
        policy = moment.deciders.policy or own.policy.name
        found = await self._console.thread(
            lambda: answers.explained(moment.seen, namespace, name, moment.known, own, policy, "", moment.reach)
        )
        rows: Sequence[tuple[str, str]] = found["told"]
        return rows


async def show(config: Path | None, kubeconfig: Path | None, context: str | None, namespaces: Iterable[str]) -> None:
    """Show the cluster until it is left; where not all of it may be seen, these namespaces.

    Raises SettingsError, Forbidden where no job may be seen, and what ends the console.
    """
    given = {"kubeconfig": kubeconfig, "context": context}
    settings = load(config, {"kube": {name: value for name, value in given.items() if value is not None}}, "web")
    logs.configure(settings.log)
    logging.getLogger().handlers[:] = [logging.NullHandler()]  # a line of a log would be written across the screen
    calibration.use(settings.perf)
    async with await KubeClient.connect(settings.kube) as client:
        console = Console(client, settings, await reach(client, namespaces))
        screen = Top(Live(console, settings), colours=not os.environ.get("NO_COLOR"))
        looking = asyncio.create_task(console.run(), name="console")
        looking.add_done_callback(lambda done: None if done.cancelled() else screen.exit())
        try:
            await screen.run_async()
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
    if not looking.cancelled():
        looking.result()
