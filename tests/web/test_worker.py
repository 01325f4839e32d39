"""The process that answers a plan or a what-if, as the console hears it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import msgspec
import pytest
import yaml
from tests.builders import H100, JOB_SPEC
from tests.web.serving import site
from tests.web.town import Town

from trimtab.errors import TrimtabError
from trimtab.settings import Settings
from trimtab.web import simulate, worker
from trimtab_policy.perf.hierarchy import Learned

LISTS = f"a: &a [{'x,' * 270}]\n  b: &b [{'*a,' * 270}]\n  c: [{'*b,' * 270}]"
UNFOLDS = f"apiVersion: trimtab.dev/v1alpha1\nkind: LLMTrainingJob\nmetadata: {{name: a}}\nspec:\n  {LISTS}\n"
"""A manifest of 2 KB with twenty million values."""


async def test_an_answer_of_many_parts_is_read_to_its_end() -> None:
    stream = asyncio.StreamReader()
    reading = asyncio.create_task(worker.whole(stream))
    for _ in range(5):
        stream.feed_data(b"x" * 65_536)
        await asyncio.sleep(0)
    stream.feed_eof()
    assert len(await reading) == 5 * 65_536


async def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LARGEST", 100_000)
    stream = asyncio.StreamReader()
    reading = asyncio.create_task(worker.whole(stream))
    stream.feed_data(b"x" * 65_536)
    await asyncio.sleep(0)
    stream.feed_data(b"x" * 65_536)
    with pytest.raises(TrimtabError, match="too large"):
        await reading


async def test_a_process_of_its_own_plans_and_says_what_would_be() -> None:
    meta = {"name": "asked", "namespace": "team-open"}
    manifest = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "LLMTrainingJob", "metadata": meta, "spec": JOB_SPEC}
    change = {"nodes": {"add": [{"type": H100, "count": 1, "gpus": 8}]}}
    async with site() as made:
        status, body = await made.visit().post("plan", {"manifest": yaml.safe_dump(manifest)})
        assert (status, msgspec.json.decode(body)["job"]) == (200, "team-open/asked")
        status, body = await made.visit().post("whatif", {"change": change})
        lives = msgspec.json.decode(body)
        assert status == 200
        assert lives["before"]["jobs"].keys() == lives["after"]["jobs"].keys() != set()


@pytest.mark.parametrize(
    ("kind", "asked", "told"),
    [
        ("plan", {"manifest": UNFOLDS}, "unfold to more than anybody wrote"),
        ("whatif", {"change": {"submit": [UNFOLDS]}}, "unfold to more than anybody wrote"),
        ("whatif", {"change": {"nodes": {"add": [{"type": H100, "count": 10**9}]}}}, "nodes.add[0].count"),
        ("whatif", {"change": {"nodes": {"add": [{"type": H100, "count": 60_000}] * 2}}}, "nodes.add[1].count"),
        ("whatif", {"change": {"nodes": {"add": [{"type": H100, "gpus": 10**9}]}}}, "nodes.add[0].gpus"),
    ],
)
async def test_a_question_of_a_few_bytes_that_would_take_all_memory_is_refused(
    kind: str, asked: dict[str, object], told: str
) -> None:
    async with site() as made:
        status, body = await made.visit().post(kind, asked)
    assert status == 400
    assert told in msgspec.json.decode(body)["error"]["message"]


def test_a_question_that_takes_more_memory_than_the_console_can_spare_says_so() -> None:
    """Where the kernel has to end a container, it ends all of it."""
    code = "from trimtab.web import simulate; simulate.answer = lambda _: bytearray(1 << 30); simulate.run()"
    asked = simulate.question(simulate.PlanAsked(""), Town().moment(1).seen, "best_fit", Learned(), Settings())
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"".join(simulate.parts(asked)), capture_output=True, check=True
    )
    told = msgspec.json.decode(done.stdout)
    assert told["asked"]
    assert "768 MiB" in told["wrong"]
