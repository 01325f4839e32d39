"""Example answers of the console's API as files: `python -m tests.web.fixtures FOLDER [--nodes 4000]`."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import msgspec
from tests.web.town import OPEN, Town

from trimtab.settings import Settings
from trimtab.web import answers
from trimtab.web.answers import Query
from trimtab.web.audience import EVERYTHING
from trimtab.web.channels import Channel
from trimtab.web.rights import Abilities

WHOAMI = {
    "mode": "local", "user": "", "server": "https://127.0.0.1:6443", "version": "0", "can": Abilities(),
    "namespaces": None, "unseen": "", "leftOut": {"namespaces": 0, "jobs": 0}, "trouble": "",
}  # fmt: skip


def main() -> None:
    """Write them."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--nodes", type=int, default=16)
    given = asked.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    town, draw, settings = Town(given.nodes), random.Random(0), Settings()
    for name in town.nodes:
        town.report(name, [0] * 8)
    for name in town.busy:
        town.report(name, [draw.randrange(60, 101) for _ in range(8)])
    moment = town.moment()
    for name, (answer, _) in answers.ANSWERS.items():
        (given.folder / f"{name}.json").write_bytes(answers.encoded(answer, moment, EVERYTHING, Query(), settings))
    job = answers.encoded(answers.job, moment, EVERYTHING, Query((OPEN, "next-up")), settings)
    (given.folder / "job.json").write_bytes(job)
    (given.folder / "whoami.json").write_bytes(msgspec.json.encode(WHOAMI))
    (given.folder / "stream.ndjson").write_bytes(_stream(town, draw))


def _stream(town: Town, draw: random.Random) -> bytes:
    """A snapshot, and five deltas in which 5 % of the nodes have new readings."""
    channel = Channel(EVERYTHING)
    lines = b""
    for number in range(6):
        moment = town.moment()
        frame = channel.feed(moment.columns, moment.denied(EVERYTHING), town.now)
        if frame is not None:
            channel.publish(frame)
            lines += channel.snapshot() if number == 0 else frame
        town.now += 1.0
        for name in draw.sample(town.busy, max(1, len(town.nodes) // 20)):
            town.report(name, [draw.randrange(101) for _ in range(8)])
    return lines


if __name__ == "__main__":
    main()
