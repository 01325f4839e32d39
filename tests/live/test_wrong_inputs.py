"""A hundred wrong inputs: each is refused when it is applied, or told at once by a condition that names its field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.builders import changed
from tests.live.accounts import clear, controlling
from tests.live.harness import NAMESPACE, Live, eventually, training_job
from tests.live.wrong_inputs import WRONG, Wrong

from trimtab import names
from trimtab.errors import ApiError
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import JOBS
from trimtab.settings import KubeSettings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

INPUTS = {f"{kind}, {index}": wrong for kind, wrongs in WRONG.items() for index, wrong in enumerate(wrongs)}
JOB = {name: f"wrong-{index}" for index, name in enumerate(INPUTS)}


async def refusals(live: Live) -> dict[str, str]:
    """Apply all as kubectl does, which drops no field in silence. What is said against those that are refused."""
    said: dict[str, str] = {}

    async def apply(client: KubeClient, name: str, wrong: Wrong) -> None:
        job = changed(training_job(JOB[name], gpus=8, seconds=600.0), wrong.changes)
        try:
            await client.create(JOBS.path(NAMESPACE), job, strict=True)
        except ApiError as error:
            said[name] = str(error)

    async with await KubeClient.connect(KubeSettings(kubeconfig=live.cluster.kubeconfig)) as client:
        await asyncio.gather(*(apply(client, name, wrong) for name, wrong in INPUTS.items()))
    return said


def conditions(live: Live) -> dict[str, list[str]]:
    """What the conditions of each job say."""
    jobs = {job["metadata"]["name"]: job.get("status", {}).get("conditions", []) for job in live.list("ltj")}
    return {name: [each["message"] for each in jobs.get(job, ())] for name, job in JOB.items()}


def names_it(wrong: Wrong, said: str) -> bool:
    return wrong.field in said and wrong.says in said


@pytest.fixture
async def cluster_with_rules(live: Live, tmp_path: Path) -> AsyncIterator[Live]:
    """With a controller, and a queue that is for another namespace."""
    queue: dict[str, Any] = {"apiVersion": names.API_VERSION, "kind": names.QUEUE_KIND}
    spec = {"namespaces": ["somewhere-else"], "quotas": [{"gpuType": "*", "gpus": 8}]}
    live.apply(queue | {"metadata": {"name": "of-others"}, "spec": spec})
    async with controlling(live, tmp_path):
        yield live
        clear(live)
    live.delete("ltq", "of-others")


def test_there_are_a_hundred_and_five_of_each_kind_at_least() -> None:
    assert len(INPUTS) >= 100
    assert {kind: len(wrongs) for kind, wrongs in WRONG.items() if len(wrongs) < 5} == {}
    assert len({json.dumps(wrong.changes, sort_keys=True) for wrong in INPUTS.values()}) == len(INPUTS)


async def test_each_is_refused_or_told_at_once_and_its_field_is_named(cluster_with_rules: Live) -> None:
    refused, told = await refusals(cluster_with_rules), dict[str, set[str]]()

    def unnamed() -> Mapping[str, object]:
        """What is still taken without a word, or with the wrong ones."""
        for name, words in conditions(cluster_with_rules).items():
            told.setdefault(name, set()).update(words)
        said = {name: [refused[name]] if name in refused else told[name] for name in INPUTS}
        return {
            f"{name}: {INPUTS[name].field} {INPUTS[name].says}": words
            for name, words in said.items()
            if not any(names_it(INPUTS[name], each) for each in words)
        }

    await eventually(lambda: not unnamed(), 10, lambda: "\n".join(f"{k}: {v}" for k, v in unnamed().items()))
    assert len(refused) > len(INPUTS) / 2
