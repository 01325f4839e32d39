"""The screen of `trimtab top` as somebody sees it, in 80 × 24 and in 120 × 40, driven by keys."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.fakeserver import FakeApiServer
from tests.live.harness import training_job
from tests.top.terminal import in_terminal
from tests.web.town import OPEN, SECRET, Town
from textual.pilot import Pilot

from trimtab.commands.reach import Reach
from trimtab.errors import TrimtabError
from trimtab.settings import Settings
from trimtab.top import screen, view
from trimtab.top.panes import Pane
from trimtab.top.screen import Top
from trimtab.web import answers

SMALL, LARGE = (80, 24), (120, 40)


class TownSource:
    """A cluster that changes when it is told to."""

    def __init__(self, nodes: int = 16) -> None:
        self.town = Town(nodes)
        self.moment = self.town.moment()
        self.trouble = ""
        self.asked: list[str] = []

    def look(self) -> None:
        self.moment = self.town.moment(self.moment.number + 1)

    async def explain(self, key: str) -> Sequence[tuple[str, str]]:
        self.asked.append(key)
        namespace, _, name = key.partition("/")
        if namespace == SECRET:
            raise TrimtabError("you may not see it")
        known = self.moment
        rows: Sequence[tuple[str, str]] = answers.explained(
            known.seen, namespace, name, known.known, Settings(), "best_fit", ""
        )["told"]
        return rows


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a person's pace."""
    monkeypatch.setattr(screen, "CHOOSE_SECONDS", 0.01)
    monkeypatch.setattr(screen, "REDRAW_SECONDS", 0.02)


@asynccontextmanager
async def shown(source: TownSource, size: tuple[int, int], *, colours: bool = True) -> AsyncIterator[Pilot[None]]:
    app = Top(source, colours=colours)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: bool(pane(pilot, "why").lines))
        await pilot.pause()
        yield pilot


def pane(pilot: Pilot[None], name: str) -> Pane:
    return pilot.app.query_one(f"#{name}", Pane)


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await pilot.pause(0.01)
    await pilot.pause()


def seen(pilot: Pilot[None]) -> list[str]:
    """The lines of the terminal."""
    strips = pilot.app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_everything_is_on_the_screen_and_nothing_is_cut_off(size: tuple[int, int]) -> None:
    async with shown(TownSource(), size) as pilot:
        lines = seen(pilot)
        assert (len(lines), {len(line) for line in lines}) == (size[1], {size[0]})
        for told in (
            "64 of 128 GPUs held  ·  4 run  ·  2 wait  ·  best_fit decides", "A100-SXM4-80GB  64 held",
            "H100-SXM5-80GB  64 free", "r1 0/64 " + " ".join(["▀▀▀▀"] * 8), f"{OPEN}/next-up",
            "InsufficientGpus", "starts in ~1h00m", "Because", "What helps", "q quit", "broken",
        ):  # fmt: skip
            await until(pilot, lambda told=told: told in "\n".join(seen(pilot)))
        lines = seen(pilot)
        assert "…" not in "\n".join(lines)
        wide = size == LARGE
        assert any("GPUs by" in line and "Why" in line for line in lines) == wide


@pytest.mark.parametrize("size", [(20, 6), (40, 12), (200, 60)])
async def test_other_sizes_do_no_harm(size: tuple[int, int]) -> None:
    async with shown(TownSource(40), size) as pilot:
        await pilot.press("j", "tab", "end", "home", "pagedown", "pageup", "tab", "space", "a")
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: len(seen(pilot)) == SMALL[1])
        assert "JOB" in "\n".join(seen(pilot))


async def test_keys_choose_a_job_which_is_then_explained() -> None:
    source = TownSource()
    async with shown(source, SMALL, colours=False) as pilot:
        assert pane(pilot, "why").border_title == f"Why  {OPEN}/next-up"
        await pilot.press("j", "j")
        await until(pilot, lambda: f"Job            {OPEN}/run-0" in pane(pilot, "why").text)
        assert "####" in pane(pilot, "gpus").text[1]
        await pilot.press("k")
        await until(pilot, lambda: pane(pilot, "why").text == ["  you may not see it"])
        await pilot.press("end")
        assert pane(pilot, "jobs").cursor == len(pane(pilot, "jobs").lines) - 1
        await pilot.press("a")
        assert [line.split()[1] for line in pane(pilot, "jobs").text] == [
            "JOB",
            f"{OPEN}/next-up",
            f"{SECRET}/hush-hush",
        ]
        await pilot.press("q")
    assert pilot.app.return_code == 0


class LongSource(TownSource):
    """Whose explanations fill every column, and more lines than there are."""

    async def explain(self, key: str) -> Sequence[tuple[str, str]]:
        return [("Because", "x" * 5000)]


@pytest.mark.parametrize("size", [SMALL, LARGE, (97, 30)])
async def test_nothing_is_cut_off_beside_a_scrollbar(size: tuple[int, int]) -> None:
    async with shown(LongSource(200), size) as pilot:
        text = "\n".join(seen(pilot))
        for name in ("why", "jobs", "gpus"):
            found = pane(pilot, name)
            told = found.text[: found.size.height]
            assert len(found.text) > len(told) > 0
            assert [line for line in told if line.rstrip() not in text] == [], name


class TenantSource(TownSource):
    """Who may see the jobs of one namespace, and no nodes."""

    REACH = Reach({"llmtrainingjobs": (OPEN,), "pods": (OPEN,)})

    def __init__(self, nodes: int = 16) -> None:
        super().__init__(nodes)
        town = self.town
        town.nodes.clear()
        town.queues.clear()
        town.jobs = {name: job for name, job in town.jobs.items() if job.metadata.namespace == OPEN}
        seen = town.moment()
        waits = replace(seen.waits, places={})
        columns = town.layout.columns(seen.seen, waits)
        self.moment = replace(seen, reach=self.REACH, waits=waits, columns=columns)

    async def explain(self, key: str) -> Sequence[tuple[str, str]]:
        known = self.moment
        namespace, _, name = key.partition("/")
        found = answers.explained(
            known.seen, namespace, name, known.known, Settings(), "best_fit", "", known.reach
        )  # fmt: skip
        rows: Sequence[tuple[str, str]] = found["told"]
        return rows


async def test_with_the_rights_of_one_namespace_its_jobs_are_shown_and_what_is_left_out_is_said() -> None:
    async with shown(TenantSource(), LARGE) as pilot:
        await until(pilot, lambda: "Not known" in "\n".join(pane(pilot, "why").text))
        text, why = "\n".join(seen(pilot)), "\n".join(pane(pilot, "why").text)
        assert "2 run  ·  1 wait  ·  best_fit decides  ·  left out: other namespaces, nodes, queues" in text
        assert "GPUs held" not in text
        assert "you may not see nodes" in text
        assert "starts in ~1h00m" in text
        assert "Starts" in why
        assert "In line" not in why
        assert "no GPU node" not in why, "what is not seen is not said to be absent"
        await pilot.press("j")
        await until(pilot, lambda: any(re.fullmatch(rf"Job +{OPEN}/run-0", line) for line in pane(pilot, "why").text))
        jobs = pane(pilot, "jobs").text
        assert any("ends in" in line for line in jobs)
        assert not any(line.startswith("1 ") for line in jobs), "nobody's place in line is known"


async def test_ctrl_c_ends_it() -> None:
    async with shown(TownSource(), SMALL) as pilot:
        await pilot.press("ctrl+c")
    assert pilot.app.return_code == 0


async def test_where_there_are_too_many_jobs_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "MOST_JOBS", 3)
    async with shown(TownSource(), SMALL) as pilot:
        assert len(pane(pilot, "jobs").lines) == 3
        assert "Jobs, those that wait first: 3 of 6" in "\n".join(seen(pilot))


async def test_many_jobs_scroll_with_the_cursor() -> None:
    async with shown(TownSource(200), SMALL) as pilot:
        jobs = pane(pilot, "jobs")
        assert len(jobs.lines) > jobs.size.height
        for key in ("end", "home"):
            await pilot.press(key)
            await until(pilot, lambda: any(jobs.lines[jobs.cursor].plain[:40].rstrip() in line for line in seen(pilot)))
            assert "JOB" in "\n".join(seen(pilot))  # the names of the columns stay


async def test_what_changes_is_shown_and_what_does_not_is_not_drawn_again() -> None:
    source = TownSource()
    async with shown(source, SMALL) as pilot:
        drawn = {name: pane(pilot, name).drawn for name in ("gpus", "jobs")}
        before = source.moment.number
        for _ in range(3):
            source.look()  # another moment, and nothing in it is different
        await until(pilot, lambda: pilot.app._shown == (before + 3, ""))
        assert {name: pane(pilot, name).drawn for name in drawn} == drawn
        await pilot.press("j", "j", "j")
        chosen = pane(pilot, "why").border_title
        del source.town.jobs["next-up"]
        source.look()
        await until(pilot, lambda: "1 wait" in seen(pilot)[0])
        assert f"{OPEN}/next-up" not in "\n".join(pane(pilot, "jobs").text)
        assert pane(pilot, "why").border_title == chosen  # the cursor stays with its job
        source.trouble = "pods: no answer"
        await until(pilot, lambda: "may be out of date: pods: no answer" in seen(pilot)[0])


async def test_before_the_first_look_it_says_what_it_waits_for() -> None:
    source = TownSource()
    known, source.moment, source.trouble = source.moment, None, "not listed yet: pods"  # type: ignore[assignment] - none yet
    async with Top(source).run_test(size=SMALL) as pilot:
        await until(pilot, lambda: "not listed yet: pods" in seen(pilot)[0])
        source.moment, source.trouble = known, ""
        await until(pilot, lambda: "64 of 128" in seen(pilot)[0])


def test_data_is_drawn_twice_a_second_at_most() -> None:
    """The fixture makes it quicker; this is what people get."""
    code = "from trimtab.top import screen; print(screen.REDRAW_SECONDS)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(said.stdout) >= 0.5


@pytest.mark.parametrize("colours", [True, False])
async def test_a_real_terminal_shows_a_cluster(colours: bool, tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        job = training_job("waits")
        job["metadata"]["namespace"] = "team"
        server.store.create("llmtrainingjobs", job)
        words = [sys.executable, "-m", "trimtab", "top", "--kubeconfig", str(server.kubeconfig(tmp_path))]
        environment = {"NO_COLOR": "" if colours else "1", "COLORTERM": "truecolor"}
        if colours:
            words = ["env", "-u", "NO_COLOR", *words]
        written, code = await asyncio.to_thread(in_terminal, words, b"team/waits", **environment)
    assert code == 0, written[-2000:]
    assert bool(re.search(rb"\x1b\[[\d;]*\b[34]8;[25];", written)) == colours
    if not colours:
        assert not re.search(rb"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7])(?:;\d+)*m", written)
    assert b"Traceback" not in written


def test_without_a_terminal_it_says_what_to_use() -> None:
    said = subprocess.run([sys.executable, "-m", "trimtab", "top"], capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert "trimtab get jobs --watch" in said.stderr


def test_without_textual_it_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['textual'] = None; from trimtab.cli import main; sys.argv = ['trimtab', 'top']; main()"
    )
    written, status = in_terminal([sys.executable, "-c", code], b"never written")
    assert status == 2
    assert b"pip install 'trimtab[top]'" in written.replace(b"\r\n", b" ")
