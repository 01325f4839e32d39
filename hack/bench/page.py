"""How the console's page bears a large cluster: `python -m hack.bench.page [--nodes 4000] [--colour use]`.

Chromium shows the map of a town of fake nodes of which 5 % of the GPUs have other readings each second, and 1 % change
hands (`hack.bench.console`). Told are, for each such second: how long the page takes to read and apply the delta, and
to draw the map (`performance.now` round both, in the page); the longest task of its main thread, which is what may make
a frame late, and all of its work (Chromium's own trace, by the clock and in CPU time of the thread); and how far frames
lay apart (`requestAnimationFrame`). Server and browser share the machine: by the clock it also tells how busy that was.

With `--controller` it tells what the controller pays for the page instead (`hack.bench.page_burden`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from hack.bench import page_burden
from hack.bench.console import Change, second
from hack.bench.percentiles import spread
from tests.web.browser.chromium import PAGES, Opened, opened

FRAME_MILLISECONDS = 16.7
"""Of a screen with 60 pictures a second."""
SETTLE_SECONDS = 3
"""Seconds that are not counted: code is compiled in them."""
TASK, MAIN = "RunTask", "CrRendererMain"
GAPS = """() => {
  const gaps = globalThis.gaps = []; let last = performance.now();
  const next = (now) => { gaps.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame(next);
}"""
MEASURED = """() => ({ applied: [...trimtab.applied], drawn: [...document.querySelector('.map').frames], gaps })"""
FORGET = """() => { trimtab.applied.length = document.querySelector('.map').frames.length = gaps.length = 0; }"""


async def measure(nodes: int, seconds: int, colour: str) -> dict[str, list[float]]:
    """Milliseconds, by what took them."""
    async with opened(nodes, viewport={"width": 1280, "height": 720}) as console:
        change = await console.site.console.thread(lambda: Change(console.site.town))
        await second(console.site, change, 2)
        await console.show(f"cluster?colour={colour}", PAGES["cluster"])
        await console.page.wait_for_function("() => document.querySelector('.map').frames.length > 0")
        await console.page.evaluate(GAPS)
        for number in range(SETTLE_SECONDS):
            await _a_second(console, change, number + 3)
        await console.page.evaluate(FORGET)
        browser = console.page.context.browser
        assert browser
        await browser.start_tracing(page=console.page, categories=["toplevel", "disabled-by-default-devtools.timeline"])
        for number in range(seconds):
            await _a_second(console, change, number + 3 + SETTLE_SECONDS)
        trace = json.loads(await browser.stop_tracing())
        found: dict[str, list[float]] = await console.page.evaluate(MEASURED)
    pairs = zip(found["applied"], found["drawn"], strict=False)
    return found | {"both": [sum(pair) for pair in pairs]} | _tasks(trace["traceEvents"])


async def _a_second(console: Opened, change: Change, number: int) -> None:
    began = time.monotonic()
    await second(console.site, change, number)
    await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began)))


def _tasks(events: Iterable[dict[str, Any]]) -> dict[str, list[float]]:
    """Of each second of the main thread: its longest task, and all of them, by the clock and in CPU time."""
    events = list(events)
    mains = {(each["pid"], each["tid"]) for each in events if each.get("args", {}).get("name") == MAIN}
    found: defaultdict[tuple[int, int], list[tuple[float, float, float]]] = defaultdict(list)
    for each in events:
        thread = each["pid"], each["tid"]
        if each["name"].endswith(TASK) and each["ph"] == "X" and thread in mains:
            found[thread].append((each["ts"] / 1e6, each["dur"] / 1e3, each.get("tdur", 0) / 1e3))
    tasks = max(found.values(), key=lambda each: sum(task[1] for task in each))
    first = min(task[0] for task in tasks)
    by_second: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for at, clock, cpu in tasks:
        by_second[int(at - first)].append((clock, cpu))
    del by_second[max(by_second)]  # it is no whole one
    of: dict[str, tuple[Callable[[list[float]], float], int]] = {
        "longest": (max, 0), "longest cpu": (max, 1), "all": (sum, 0), "all cpu": (sum, 1),
    }  # fmt: skip
    return {
        name: [fold([each[part] for each in told]) for told in by_second.values()] for name, (fold, part) in of.items()
    }


WORDS = {
    "applied": "delta read and applied",
    "drawn": "map drawn",
    "both": "delta and map",
    "longest cpu": "longest task, CPU",
    "longest": "longest task, by the clock",
    "all cpu": "all of a second, CPU",
    "all": "all of a second, by the clock",
    "gaps": "from frame to frame",
}


def main() -> None:
    """Read the command line, and print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--nodes", type=int, default=4000)
    asked.add_argument("--seconds", type=int, default=30)
    asked.add_argument("--colour", default="use", help="what the map shows: job, queue, use, state, temp or until")
    asked.add_argument("--controller", action="store_true", help="measure the controller, without the page and with it")
    asked.add_argument("--viewers", type=int, default=20, help="of the page, for --controller")
    asked.add_argument("--rounds", type=int, default=3, help="turns of each, for --controller")
    given = asked.parse_args()
    if given.controller:
        alone, seen = asyncio.run(page_burden.measure(given.rounds, given.seconds, given.viewers))
        print(f"the controller, {page_burden.NODES} nodes, in turns of {given.seconds} s")
        cpu, memory = sum(seen.cpu) / sum(alone.cpu), seen.memory[-1] / alone.memory[-1]
        print(f"  without the page  {alone.told()}")
        print(f"  with {given.viewers:<4} viewers {seen.told()}")
        print(f"  ratio             CPU {cpu:.2f}, memory {memory:.2f}")
        return
    found = asyncio.run(measure(given.nodes, given.seconds, given.colour))
    print(f"{given.nodes} nodes, {given.seconds} s, colour by {given.colour}; ms{'p50':>34}{'p99':>8}{'most':>8}")
    for name, said in WORDS.items():
        told = spread(found[name])
        print(f"  {said:<60}{told.p50:8.1f}{told.p99:8.1f}{told.max:8.1f}")
    late = sum(gap > 1.5 * FRAME_MILLISECONDS for gap in found["gaps"])
    print(f"  frames that came late: {late} of {len(found['gaps'])}")


if __name__ == "__main__":
    main()
