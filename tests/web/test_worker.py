"""The process that answers a plan or a what-if, as the console hears it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import yaml
from tests.builders import H100, JOB_SPEC
from tests.web.serving import site

from trimtab.errors import TrimtabError
from trimtab.web import worker


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
