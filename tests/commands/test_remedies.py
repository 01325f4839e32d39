"""What would help a job that waits, as questions that `trimtab whatif` takes: each of them lets it start sooner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.builders import A100, H100, NOW, T4, job, node, running, snapshot

from trimtab.commands import change, comparison
from trimtab.commands.remedies import Question, questions
from trimtab.settings import Settings
from trimtab_policy.specs import Precision
from trimtab_policy.types import Bounds, Job, Quota, Requirements, Snapshot

LAST = NOW + 7200
OTHERS = [
    running("first", {"a-0": 8}, finish=LAST, priority=5, steps=10**6, steps_done=10, movable_from=LAST),
    running("second", {"a-1": 6}, finish=LAST, priority=5, steps=10**6, steps_done=10, movable_from=LAST),
]
NODES = [node("a-0", free=0), node("a-1", free=2), node("h-0", H100)]


def cluster(mine: Job, *more: Job, quotas: tuple[Quota, ...] = (), weights: dict[str, float] | None = None) -> Snapshot:
    """`mine` waits, after those of `more` that come before it."""
    return snapshot(NODES, [*OTHERS, *more, mine], quotas=list(quotas), weights=weights or {})


def asks(gpus: int, *types: str, **changes: Any) -> Job:
    """A job that wants just so many GPUs of these types."""
    return job("mine", gpus=(gpus, gpus), steps=1000, gpu_types=types, **changes)


def found(now: Snapshot) -> dict[str, Question]:
    mine = next(each for each in now.jobs if each.name == "mine")
    alone = replace(now, jobs=tuple(each for each in now.jobs if each.placement or each.uid == mine.uid))
    return {each.label: each for each in questions(now, alone, mine)}


CASES = {
    "busy": (cluster(asks(8, A100)), {"any GPU type", "1 more node of A100-SXM4-80GB"}),
    "too few": (cluster(asks(32, H100)), {"3 more nodes of H100-SXM5-80GB"}),
    "limited": (
        cluster(asks(4, H100, queue="q"), quotas=(Quota("q", H100, 2), Quota("r", "*", 64)), weights={"q": 3.0}),
        {"2 more GPUs for queue q", "queue r"},
    ),
    "behind": (
        cluster(asks(8, H100, created=NOW), job("before", gpus=(8, 8), priority=3, steps=10**6, gpu_types=(H100,))),
        {"priority 4"},
    ),
    "together": (
        snapshot([node("a", free=4), node("b", free=4)], [asks(8, A100, max_nodes=1)]),
        {"at most 2 nodes"},
    ),
    "divided": (
        snapshot([node("a")], [asks(8, model="gpt3-1.3b", tensor=Bounds(16, 16))]),
        {"parallelism left free"},
    ),
    "one machine for a giant": (
        snapshot([node(f"a-{at}") for at in range(8)], [job("mine", gpus=(8, 64), model="llama3-70b", max_nodes=1)]),
        {"at most 2 nodes"},
    ),
    "a format that the GPUs do not have": (
        snapshot([node("t", T4)], [asks(8, model="gpt2", precision=Precision.BF16)]),
        {"FP16 precision"},
    ),
    "GPUs that are not there": (snapshot([node("a")], [asks(8, H100)]), {"any GPU type"}),
    "too large for each type": (
        snapshot([node("a"), node("h", H100)], [job("mine", gpus=(1, 8), model="llama3-70b")]),
        {"16 GPUs, 1 more node of A100-SXM4-80GB"},
    ),
    "host": (
        snapshot([node("a", free_memory=1 << 30)], [asks(8, A100, memory_per_gpu=1 << 33)]),
        {"1 more node of A100-SXM4-80GB"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_question_lets_the_job_start_sooner(case: str, tmp_path: Path) -> None:
    now, labels = CASES[case]
    told = found(now)
    assert told.keys() >= labels
    for each in told.values():
        file = tmp_path / "change"
        file.write_bytes(msgspec.json.encode(each.change))
        then = change.apply(change.read_change(file), now, file)
        lives = comparison.compared(now, then, ("best_fit", "best_fit"), Settings())
        before, after = (lives[life].jobs.get("default/mine") for life in ("before", "after"))
        assert after.start is not None
        assert before is None or before.start is None or after.start < before.start, each


def test_a_limit_is_raised_and_the_rest_of_the_queue_stays_as_it_is() -> None:
    now, _ = CASES["limited"]
    assert found(now)["2 more GPUs for queue q"].change == {
        "queues": {"q": {"weight": 3, "quotas": [{"gpuType": H100, "gpus": 4, "guaranteed": 0}]}}
    }


def test_a_job_that_has_room_and_is_the_first_needs_nothing() -> None:
    assert found(cluster(asks(8, H100))) == {}


def test_fewer_gpus_are_asked_for_by_their_number() -> None:
    told = found(cluster(replace(asks(4, A100), requirements=Requirements(gpus=Bounds(4, 4), gpu_types=(A100,)))))
    assert told["2 GPUs"].change == {"jobs": {"default/mine": {"gpus": {"min": 2, "max": 2}}}}
