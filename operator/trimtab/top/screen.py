"""The screen of `trimtab top`: a heading, GPUs, jobs, and why the chosen one is where it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar, Protocol

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.timer import Timer
from textual.widgets import Static

from trimtab.errors import TrimtabError
from trimtab.top import view
from trimtab.top.panes import Pane
from trimtab.ui.terminal import Text
from trimtab.web.console import Moment

REDRAW_SECONDS = 0.5
"""Between two looks at what is new: over a slow line, a terminal must not fall behind."""
EXPLAIN_SECONDS = 5.0
"""Between two explanations of the same job: each takes up to seconds of work."""
CHOOSE_SECONDS = 0.3
"""How long a job is chosen before it is explained: who holds a key down passes many."""


class Source(Protocol):
    """What is known of the cluster."""

    @property
    def moment(self) -> Moment | None:
        """The last look."""

    @property
    def trouble(self) -> str:
        """Why it may be old."""

    async def explain(self, key: str) -> Sequence[tuple[str, str]]:
        """What is to be said about a job (`namespace/name`). Raises TrimtabError."""


class Top(App[None]):
    """Shows what a source knows. It changes nothing."""

    TITLE = "trimtab top"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 - as the library declares it
    BINDINGS: ClassVar[list[BindingType]] = [
        ("a", "all", "all/waiting"),
        ("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True),  # the library would say that it is another key
    ]
    CSS = """
    Screen { layout: vertical; background: $background; }
    #heading, #keys { height: 1; padding: 0 1; }
    #body { height: 1fr; layout: vertical; }
    #left { height: 2fr; }
    Pane { border: none; border-top: solid $surface-lighten-2; padding: 0 0 0 1; scrollbar-size: 1 1;
           scrollbar-gutter: stable; overflow-x: hidden; border-title-color: $text; }
    Pane:focus { border-top: solid $accent; border-title-color: $accent; }
    #gpus { height: auto; max-height: 50%; }
    #jobs { height: 1fr; min-height: 4; }
    #why { height: 1fr; }
    Screen.-wide #body { layout: horizontal; }
    Screen.-wide #left { width: 3fr; height: 1fr; }
    Screen.-wide #why { width: 2fr; height: 1fr; border-left: solid $surface-lighten-2; }
    """

    def __init__(self, source: Source, *, colours: bool = True) -> None:
        super().__init__(ansi_color=not colours)
        self._source, self._colours = source, colours
        self._shown: tuple[int, str] | None = None
        """Number of the moment that is shown, and its trouble."""
        self._jobs: list[view.JobLine] = []
        self._key = ""
        """The chosen job."""
        self._waiting_only = False
        self._why: Sequence[tuple[str, str]] = ()
        self._explained = float("-inf")
        self._explaining: asyncio.Task[None] | None = None
        self._soon: Timer | None = None

    def compose(self) -> ComposeResult:
        """What the screen is made of."""
        yield Static("", id="heading", markup=False)
        with Container(id="body"):
            with Vertical(id="left"):
                yield Pane("gpus", "GPUs by link domain, two to a character")
                yield Pane("jobs", "Jobs", choosing=True)
            yield Pane("why", "Why")
        keys = Text.assemble("j/k job  tab pane  a waiting  q quit  ", view.legend(colours=self._colours))
        yield Static(keys, id="keys", markup=False)

    def on_mount(self) -> None:
        """Begin to look for what is new."""
        self._pane("jobs").focus()
        self.set_interval(REDRAW_SECONDS, self.look)
        self.call_after_refresh(self.look)

    def on_pane_reshaped(self) -> None:
        """Lay everything out anew."""
        self._shown = None
        self.look()

    def look(self) -> None:
        """Show what is new, if anything is."""
        moment, trouble = self._source.moment, self._source.trouble
        now = moment.number if moment else 0, trouble
        if now == self._shown:
            return
        self._shown = now
        heading = view.heading(moment, trouble) if moment else Text(trouble or "looking at the cluster …", "bold")
        self.query_one("#heading", Static).update(heading)
        if moment:
            self._draw(moment)
            if time.monotonic() - self._explained > EXPLAIN_SECONDS:
                self._explain_soon(0.0)

    def _pane(self, name: str) -> Pane:
        return self.query_one(f"#{name}", Pane)

    def _draw(self, moment: Moment) -> None:
        jobs = self._pane("jobs")
        every = view.job_lines(moment, waiting_only=self._waiting_only)
        self._jobs = every[: view.MOST_JOBS]
        at = next((at for at, job in enumerate(self._jobs) if job.key == self._key), 0)
        self._take(self._jobs[at].key if self._jobs else "")
        head, lines = view.listed(self._jobs, jobs.width)
        title = "Jobs that wait" if self._waiting_only else "Jobs, those that wait first"
        jobs.border_title = title if len(every) == len(lines) else f"{title}: {len(lines)} of {len(every)}"
        jobs.show(lines, head, cursor=at)
        self._draw_gpus(moment)
        self._draw_why()

    def _draw_gpus(self, moment: Moment) -> None:
        pane = self._pane("gpus")
        chosen = next((job.row for job in self._jobs if job.key == self._key), -1)
        pane.show(view.gpu_lines(moment, pane.width, chosen, colours=self._colours))

    def _draw_why(self) -> None:
        pane = self._pane("why")
        pane.border_title = f"Why  {self._key}" if self._key else "Why"
        pane.show(view.why_lines(self._why, pane.width))

    # --- the chosen job -----------------------------------------------------------------------------------------------
    def on_pane_chosen(self, chosen: Pane.Chosen) -> None:
        """Another job is chosen: show where it is at once, and why when the cursor rests."""
        if chosen.line < len(self._jobs):
            self._take(self._jobs[chosen.line].key)
            if moment := self._source.moment:
                self._draw_gpus(moment)
            self._draw_why()

    def _take(self, key: str) -> None:
        if key == self._key:
            return
        self._key, self._why = key, ()
        self._pane("why").scroll_home(animate=False)
        self._explain_soon(CHOOSE_SECONDS)

    def _explain_soon(self, seconds: float) -> None:
        if self._soon:
            self._soon.stop()
        self._soon = self.set_timer(max(0.01, seconds), self._explain)

    def _explain(self) -> None:
        if self._explaining and not self._explaining.done():
            self._explain_soon(CHOOSE_SECONDS)  # the work for another job cannot be stopped: wait for it
        elif self._key:
            self._explained = time.monotonic()
            self._explaining = asyncio.create_task(self._told(self._key))

    async def _told(self, key: str) -> None:
        try:
            rows = await self._source.explain(key)
        except TrimtabError as error:
            rows = [("", str(error))]
        if key == self._key:
            self._why = rows
            self._draw_why()

    # --- keys -------------------------------------------------------------------------------------------------------
    def action_all(self) -> None:
        """Show all jobs, or only those that wait."""
        self._waiting_only, self._shown = not self._waiting_only, None
        self.look()
