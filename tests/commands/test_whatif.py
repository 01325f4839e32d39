"""`trimtab whatif`: a change is read strictly, both lives are simulated, and people see what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.builders import A100, H100, NOW, T4, job, node, running, snapshot
from typer.testing import CliRunner, Result

from trimtab.cli import app
from trimtab.commands import change
from trimtab.errors import UsageError
from trimtab_local.checkout import checkout
from trimtab_policy.specs import Precision
from trimtab_policy.types import Bounds, Job, Quota, Snapshot


@pytest.fixture
def now() -> Snapshot:
    """Both nodes are held, one for two hours by a job that may not give way; a long and a short job wait."""
    first = running("first", {"a-0": 8}, finish=NOW + 1800, steps=100_000, steps_done=10, started=NOW - 60)
    second = running("second", {"a-1": 8}, finish=NOW + 7200, steps=100_000, steps_done=10, started=NOW - 60)
    waiting = [
        job("long", gpus=(8, 8), steps=40_000, created=NOW - 50, queue="q"),
        job("short", gpus=(8, 8), steps=1_000, created=NOW - 40, namespace="team"),
        job("giant", gpus=(8, 8), model="llama3.1-405b"),
    ]
    nodes = [node("a-0", free=0), node("a-1", free=0)]
    first, second = (replace(each, movable_from=NOW + 600) for each in (first, second))
    return snapshot(nodes, [first, second, *waiting], quotas=[Quota("q", "*", 8), Quota("r", "*", 8)])


@pytest.fixture
def dump(now: Snapshot, tmp_path: Path) -> Path:
    file = tmp_path / "now.json"
    file.write_bytes(msgspec.json.encode(now))
    return file


def whatif(dump: Path, text: str, *arguments: str) -> Result:
    file = dump.parent / "change.yaml"
    file.write_text(text)
    return CliRunner().invoke(app, ["whatif", "-f", str(file), "--snapshot", str(dump), *arguments])


def told(dump: Path, text: str, *arguments: str) -> dict[str, Any]:
    result = whatif(dump, text, "-o", "json", *arguments)
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def applied(now: Snapshot, text: str, tmp_path: Path) -> Snapshot:
    file = tmp_path / "change.yaml"
    file.write_text(text)
    return change.apply(change.read_change(file), now, file)


def named(now: Snapshot, name: str) -> Job:
    return next(job for job in now.jobs if job.name == name)


# --- what people and programs are told -------------------------------------------------------------------------------
def test_another_node_starts_waiting_jobs_sooner(dump: Path) -> None:
    found = told(dump, f"nodes: {{add: [{{type: {A100}}}]}}", "--policy", "best_fit")  # by age, and not by length
    before, after = found["before"]["jobs"], found["after"]["jobs"]
    assert (before["default/first"]["runs"], before["default/long"]["runs"]) == (True, False)
    assert before["default/long"]["start"] == pytest.approx(1800, rel=0.05)
    assert after["default/long"]["start"] == 0
    assert found["ends_later_seconds"]["default/long"] == pytest.approx(-before["default/long"]["start"], rel=0.05)
    assert found["after"]["average_wait"] < found["before"]["average_wait"]
    assert 0 < found["after"]["utilization"] <= 1
    assert list(found["before"]["set_aside"]) == ["default/giant"]


def test_what_runs_ends_when_it_is_expected_to(dump: Path) -> None:
    jobs = told(dump, "policy: sjf")["before"]["jobs"]
    assert jobs["default/first"]["end"] == pytest.approx(1800, rel=0.02)
    assert jobs["default/second"]["end"] == pytest.approx(7200, rel=0.02)


def test_another_policy_is_asked_in_the_second_life_only(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_QUEUES__RESERVATIONS", "0")
    found = told(dump, "policy: sjf", "--policy", "fcfs", "--rigid")
    assert (found["before"]["policy"], found["after"]["policy"]) == ("fcfs", "sjf")
    assert found["ends_later_seconds"]["team/short"] < 0 < found["ends_later_seconds"]["default/long"]


def test_a_job_of_higher_priority_takes_the_place_of_another_unless_nobody_gives_way(dump: Path) -> None:
    text = "jobs: {team/short: {priority: 10}}"
    given, rigid = told(dump, text), told(dump, text, "--rigid")
    assert given["after"]["jobs"]["team/short"]["start"] < rigid["after"]["jobs"]["team/short"]["start"]
    assert rigid["after"]["jobs"]["default/first"]["restarts"] == 0


def test_nobody_overtakes_the_first_in_line_as_in_the_live_cluster(tmp_path: Path) -> None:
    """Both nodes are kept for the wide job, for which the second is free in half an hour."""
    old = running("old", {"a": 8}, finish=NOW + 1800, steps=100_000, steps_done=10, started=NOW - 60)
    first = job("first", gpus=(16, 16), steps=100_000, created=NOW - 3600)
    second = job("second", gpus=(8, 8), steps=2_000_000, created=NOW - 60)
    file = tmp_path / "now.json"
    file.write_bytes(msgspec.json.encode(snapshot([node("a", free=0), node("b")], [old, first, second])))
    jobs = told(file, "jobs: {second: {priority: 0}, old: {priority: 1}}")["before"]["jobs"]
    assert jobs["default/first"]["start"] == pytest.approx(1800, rel=0.05)
    assert jobs["default/second"]["start"] > jobs["default/first"]["start"]


def test_the_settings_say_what_is_simulated(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "jobs: {team/short: {priority: 10}}"
    assert told(dump, text)["after"]["jobs"]["team/short"]["start"] == 600, "as soon as a gang may give way"
    monkeypatch.setenv("TRIMTAB_PREEMPTION__ENABLED", "false")
    assert told(dump, text)["after"]["jobs"]["team/short"]["start"] > 1000


def test_an_elastic_job_that_waits_or_has_just_begun_grows_later(tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    waiting = job("waits", gpus=(4, 8), steps=2_000_000, elastic=True, model="gpt3-1.3b")
    short = running("short", {"a": 4}, finish=NOW + 3600, steps=5_000, steps_done=10, started=NOW - 60)
    file.write_bytes(msgspec.json.encode(snapshot([node("a", free=4)], [short, waiting])))
    jobs = told(file, "jobs: {waits: {priority: 1}}")["before"]["jobs"]
    assert jobs["default/waits"]["restarts"] == 1
    assert jobs["default/waits"]["held"].startswith("8×")


def test_a_job_may_be_submitted_to_a_cluster_that_is_idle(tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    file.write_bytes(msgspec.json.encode(snapshot([node("a-0")])))
    text = f"submit: [{checkout() / 'manifests' / 'samples' / 'gpt2-124m.yaml'}]"
    found = told(file, text)
    assert (found["before"]["jobs"], found["before"]["average_wait"], found["before"]["end"]) == ({}, None, 0.0)
    assert found["after"]["jobs"]["default/gpt2-124m"]["start"] == 0
    assert "added" in whatif(file, text).stdout
    nobody = whatif(file, f"nodes: {{add: [{{type: {A100}}}]}}")
    assert (nobody.exit_code, nobody.stdout) == (2, "")
    assert "no job that a policy could run: none waits or runs" in nobody.stderr


def test_of_fake_pods_that_run_faster_times_are_told_as_if_they_did_not(now: Snapshot, tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    file.write_bytes(msgspec.json.encode(replace(now, speedup=100.0)))
    found = told(file, "policy: sjf")
    assert found["before"]["jobs"]["default/first"]["end"] == pytest.approx(180_000, rel=0.02)
    assert any("run 100 times as fast" in line for line in found["uncertain"])


def test_people_see_a_line_a_job_totals_and_what_is_not_known(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.ui.output.WIDE_ENOUGH", 100)
    sample = checkout() / "manifests" / "samples" / "gpt2-124m.yaml"
    change = f"nodes: {{add: [{{type: {A100}, count: 2}}]}}\njobs: {{second: {{suspend: true}}}}\nsubmit: [{sample}]"
    shown = whatif(dump, change).stdout
    assert max(map(len, shown.splitlines())) <= 100
    for text in ("→ now", "sooner", "gone", "added", "average wait", "NOT SIMULATED", "Not known:", "needs at least"):
        assert text in shown


# --- what a change does ----------------------------------------------------------------------------------------------
def test_nodes_that_go_leave_their_jobs_waiting_with_what_they_have_done(now: Snapshot, tmp_path: Path) -> None:
    after = applied(now, "nodes: {remove: [a-0]}", tmp_path)
    first = named(after, "first")
    assert [node.name for node in after.nodes] == ["a-1"]
    assert (first.placement, first.steps_done, first.restarts) == (None, 10, 1)
    assert named(after, "second").placement


def test_cordoned_nodes_keep_their_jobs_and_get_no_others(dump: Path, now: Snapshot, tmp_path: Path) -> None:
    assert named(applied(now, "nodes: {cordon: [a-0]}", tmp_path), "first").placement
    jobs = told(dump, "nodes: {cordon: [a-0]}")["after"]["jobs"]
    assert jobs["default/first"]["end"] == pytest.approx(1800, rel=0.02)
    assert jobs["default/long"]["start"] >= jobs["default/second"]["end"]


def test_names_may_be_patterns_and_added_nodes_have_names_of_their_own(now: Snapshot, tmp_path: Path) -> None:
    text = f"nodes: {{remove: ['a-*'], add: [{{type: {H100}, count: 2, gpus: 4}}]}}"
    after = applied(now, text, tmp_path)
    assert [(node.name, node.gpus) for node in after.nodes] == [
        ("added-h100-sxm5-80gb-0", 4), ("added-h100-sxm5-80gb-1", 4),
    ]  # fmt: skip
    assert H100 in after.gpu_types


def test_a_running_job_whose_edit_allows_its_gpus_no_more_waits(now: Snapshot, tmp_path: Path) -> None:
    less = named(applied(now, "jobs: {first: {gpus: {min: 2, max: 4}}}", tmp_path), "first")
    assert (less.placement, less.requirements.gpus) == (None, Bounds(2, 4))
    more = applied(now, "jobs: {first: {gpus: {min: 2, max: 16}, queue: r}}", tmp_path)
    assert named(more, "first").placement
    assert named(more, "first").queue == "r"


def test_a_job_may_be_allowed_other_gpu_types_by_their_short_names(now: Snapshot, tmp_path: Path) -> None:
    other = named(applied(now, "jobs: {first: {gpuTypes: [h100-sxm5-80GB, T4]}}", tmp_path), "first")
    assert (other.placement, other.requirements.gpu_types) == (None, (H100, T4))
    wider = applied(now, "jobs: {first: {gpuTypes: [A100]}}", tmp_path)
    assert named(wider, "first").placement
    assert A100 in named(wider, "first").requirements.gpu_types
    assert named(applied(now, "jobs: {long: {gpuTypes: []}}", tmp_path), "long").requirements.gpu_types == ()


def test_a_job_may_spread_further_be_divided_otherwise_and_train_in_another_format(
    now: Snapshot, tmp_path: Path
) -> None:
    narrow = job("narrow", tensor=Bounds(2, 2), zero_stage=1, max_nodes=1)
    now = replace(now, jobs=(*now.jobs, narrow))
    text = "jobs: {narrow: {maxNodes: 3, parallelism: {pipeline: {max: 2}}, precision: FP16}}"
    after = named(applied(now, text, tmp_path), "narrow")
    need = after.requirements
    assert (need.max_nodes, need.pipeline, need.tensor, need.zero_stage) == (3, Bounds(1, 2), Bounds(), None)
    assert after.training == replace(narrow.training, precision=Precision.FP16)


@pytest.mark.parametrize("edit", ["parallelism: {tensor: {fixed: 2}}", "precision: FP16", "gpus: {max: 4}"])
def test_a_running_job_that_may_not_go_on_as_it_is_waits(now: Snapshot, tmp_path: Path, edit: str) -> None:
    assert named(applied(now, "jobs: {first: {parallelism: {}, maxNodes: 2}}", tmp_path), "first").placement
    assert named(applied(now, f"jobs: {{first: {{{edit}}}}}", tmp_path), "first").placement is None


def test_what_a_checkpoint_or_a_launcher_does_not_allow_is_refused(now: Snapshot, tmp_path: Path) -> None:
    one = Bounds(1, 1)
    fixed = {"zero_stage": 1, "tensor": one, "pipeline": one, "virtual": one, "context": one, "expert": one}
    saved = job("saved", gpus=(8, 8), steps_done=10, **fixed)
    script = job("script", software="other")
    now = replace(now, jobs=(*now.jobs, saved, script))
    for name, said in (("saved", "its checkpoint can be loaded only"), ("script", "its launcher has limits")):
        with pytest.raises(UsageError, match=rf"jobs.{name}.parallelism: {said}"):
            applied(now, f"jobs: {{{name}: {{parallelism: {{}}}}}}", tmp_path)


def test_a_short_name_of_nodes_is_that_of_the_cluster_and_else_must_mean_one(now: Snapshot, tmp_path: Path) -> None:
    added = applied(now, "nodes: {add: [{type: a100}, {type: H200-NVL}]}", tmp_path).nodes[-2:]
    assert [each.gpu_type for each in added] == [A100, "H200-NVL-141GB"]
    with pytest.raises(UsageError, match=r"nodes.add\[0\].type: 'H200' may be H200-SXM5-141GB or H200-NVL-141GB"):
        applied(now, "nodes: {add: [{type: H200}]}", tmp_path)


def test_a_suspended_job_returns_its_gpus(now: Snapshot, tmp_path: Path) -> None:
    after = applied(now, "jobs: {default/first: {suspend: true}}", tmp_path)
    assert "first" not in [job.name for job in after.jobs]
    assert after.nodes[0].free_gpus == 8


def test_a_queue_gets_the_limits_of_a_spec(now: Snapshot, tmp_path: Path) -> None:
    text = "queues: {q: {weight: 3, quotas: [{gpuType: '*', gpus: 32, guaranteed: 16}]}}"
    after = applied(now, text, tmp_path)
    assert after.quotas == (Quota("r", "*", 8), Quota("q", "*", 32, 16))
    assert after.weights == {"q": 3.0}


def test_manifests_are_looked_for_beside_the_change(now: Snapshot, tmp_path: Path) -> None:
    sample = (checkout() / "manifests" / "samples" / "gpt2-124m.yaml").read_text()
    (tmp_path / "next.yaml").write_text(sample)
    added = applied(now, "submit: [next.yaml]", tmp_path).jobs[-1]
    assert (added.model.name, added.placement, added.created) == ("gpt2", None, NOW)


# --- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expected `object`"),
        ("{}", "changes nothing"),
        ("node: {}", "unknown field `node`"),
        ("nodes: {add: [{count: 2}]}", "missing required field `type` - at `$.nodes.add[0]`"),
        ("nodes: {add: [{type: H1000}]}", "nodes.add[0].type: "),
        (f"nodes: {{add: [{{type: {T4}, count: 0}}]}}", "nodes.add[0]: count and gpus must be at least 1"),
        ("nodes: {remove: [b-0]}", "nodes.remove: no node that takes pods is called b-0"),
        ("nodes: {cordon: ['b*']}", "nodes.cordon: no node that takes pods is called b*"),
        ("policy: fastest", "policy: "),
        ("jobs: {other: {priority: 1}}", "jobs.other: no such job waits or runs"),
        ("jobs: {first: {prio: 1}}", "unknown field `prio`"),
        ("jobs: {first: {queue: nobody}}", "jobs.first.queue: there is no queue nobody"),
        ("jobs: {first: {gpus: {min: 9, max: 8}}}", "jobs.first.gpus: min must be at least 1, and at most max"),
        ("jobs: {first: {maxNodes: 0}}", "jobs.first.maxNodes: must be at least 1"),
        ("jobs: {first: {parallelism: {tensors: 2}}}", "jobs.first.parallelism.tensors: "),
        ("jobs: {first: {parallelism: {tensor: {fix: 2}}}}", "jobs.first.parallelism.tensor.fix: "),
        ("jobs: {first: {parallelism: {tensor: 2}}}", "jobs.first.parallelism.tensor: "),
        ("jobs: {first: {precision: FP4}}", "Invalid enum value 'FP4' - at `$.jobs[...].precision`"),
        ("queues: {q: {wait: 1}}", "queues.q.wait: "),
        ("queues: {q: {weight: 0}}", "queues.q.weight: "),
        ("queues: {q: {maxPendingJobs: 0}}", "queues.q.maxPendingJobs: who may wait in a queue is not simulated"),
        ("queues: {q: {namespaces: [x]}}", "queues.q.namespaces: who may wait in a queue is not simulated"),
        ("jobs: {first: {gpuTypes: [Z100]}}", "jobs.first.gpuTypes: 'Z100' is no GPU type that Trimtab knows"),
        ("submit: [absent.yaml]", "absent.yaml"),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line_that_names_it(dump: Path, text: str, said: str) -> None:
    result = whatif(dump, text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_name_that_several_namespaces_have_must_say_which(now: Snapshot, tmp_path: Path) -> None:
    twins = replace(now, jobs=(*now.jobs, replace(named(now, "short"), uid="twin", namespace="other")))
    with pytest.raises(UsageError, match="write NAMESPACE/short; it is in other, team"):
        applied(twins, "jobs: {short: {priority: 1}}", tmp_path)


def test_a_file_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        change.read_change(tmp_path / "absent.yaml")
