"""`python -m trimtab.launch -- COMMAND`: what a plan says to the launcher of a pod that somebody else has made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.plan.test_launch import LAUNCHERS, PLANS, gang

from trimtab import launch as in_container
from trimtab import names
from trimtab.launch import FLAGS, WRONG, Launch, LaunchError
from trimtab.plan.launch import DEEPSPEED_CONFIG_PATH, carried, launch

TORCHRUN = ["torchrun", "train.py", "--lr", "1e-4"]
SAID: dict[str, Any] = {
    "format": 1,
    "environment": {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "1", "TRIMTAB_TP": "4"},
    "arguments": ["--tensor-model-parallel-size", "4"],
    "files": {},
}


def plan(**environment: str) -> Launch:
    return Launch({**SAID["environment"], **environment}, SAID["arguments"], {})


# --- the way there ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_whatever_a_pod_of_ours_gets_arrives_in_one_of_theirs(launcher: str) -> None:
    started = launch(launcher, gang(PLANS["hybrid"]), 1)
    found = in_container.read(carried(started).encode(), "it")
    env = in_container.environment(found, {"HOME": "/root"})
    assert env == {"HOME": "/root", **started.env}
    assert in_container.command(found, TORCHRUN, env) == [*TORCHRUN, *started.args]
    assert in_container.ANNOTATION == names.ANNOTATION_LAUNCH
    needed = {DEEPSPEED_CONFIG_PATH: names.ANNOTATION_DEEPSPEED} if launcher == "DeepSpeed" else {}
    assert found.files == needed


def test_what_its_own_controller_says_of_the_rendezvous_counts_and_ours_of_the_degrees() -> None:
    around = {"PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "auto", "MASTER_ADDR": "first", "TRIMTAB_TP": "8"}
    env = in_container.environment(plan(PET_MASTER_ADDR="other", PET_MASTER_PORT="29500"), around)
    told = {name: env[name] for name in ("PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT")}
    assert list(told.values()) == ["0", "auto", "first", "29500"]
    assert env["TRIMTAB_TP"] == "4"


def test_flags_go_where_the_command_wants_them() -> None:
    words = ["sh", "-c", f"exec torchrun train.py ${FLAGS}"]
    assert in_container.command(plan(), words, {"PET_NNODES": "2"}) == words


# --- what is missing or wrong -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("[]", "it has to be an object, and is []"),
        (json.dumps({"plan": "data 8"}), "format is missing"),
        (json.dumps({**SAID, "format": 2}), "format is 2, and this trimtab.launch reads 1"),
        (json.dumps({**SAID, "environment": None}), "environment has to be an object, and is missing"),
        (json.dumps({**SAID, "environment": {"PET_NNODES": 2}}), "environment.PET_NNODES has to be a text, and is 2"),
        (json.dumps({**SAID, "environment": {"LD_PRELOAD": "x.so"}}), "environment.LD_PRELOAD is none of"),
        (json.dumps({**SAID, "arguments": "--tp 4"}), "arguments has to be a list"),
        (json.dumps({**SAID, "arguments": ["--tp", 4]}), "arguments[1] has to be a text, and is 4"),
        (json.dumps({**SAID, "arguments": ["a\0b"]}), "arguments[0] has to be a text"),
        (json.dumps({**SAID, "arguments": ["\ud800"]}), "arguments[0] has to be a text"),
        (json.dumps({**SAID, "files": []}), "files has to be an object"),
    ],
)
def test_a_plan_of_another_shape_is_told_by_its_field(text: str, says: str) -> None:
    with pytest.raises(LaunchError) as caught:
        in_container.read(text.encode(), "it")
    assert says in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    st.binary()
    | st.fixed_dictionaries({"format": st.just(1)}, optional={field: JSON for field in SAID if field != "format"})
)
@example(b"\xff\xfe")
@example(b"NaN")
def test_whatever_a_file_says_it_is_a_plan_or_told(said: Any) -> None:
    text = said if isinstance(said, bytes) else json.dumps(said).encode()
    try:
        found = in_container.read(text, "it")
    except LaunchError:
        return
    assert all(isinstance(word, str) and "\0" not in word for word in found.arguments)


@pytest.mark.parametrize(("name", "value"), [("PET_NNODES", "4"), ("PET_NPROC_PER_NODE", "4")])
def test_counts_of_the_container_that_contradict_the_plan_are_told(name: str, value: str) -> None:
    with pytest.raises(
        LaunchError, match=f"{name} of the container is 4, and the plan is for {SAID['environment'][name]}"
    ):
        in_container.environment(plan(), {name: value})


@pytest.mark.parametrize(
    "words", [TORCHRUN, ["/usr/bin/torchrun", "train.py"], ["python", "-m", "torch.distributed.run", "train.py"]]
)
def test_torchrun_that_would_wait_in_vain_for_rank_0_is_not_started(words: list[str]) -> None:
    with pytest.raises(LaunchError, match=r"subdomain.*PET_MASTER_ADDR"):
        in_container.command(plan(), words, SAID["environment"])
    for also in ({"PET_MASTER_ADDR": "first"}, {"PET_NNODES": "1"}):
        assert in_container.command(plan(), words, {**SAID["environment"], **also})
    assert in_container.command(plan(), [*words, "--rdzv-endpoint=first:29400"], SAID["environment"])


def test_it_waits_until_there_is_a_file_and_says_what_there_is_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, told = tmp_path / "launch.json", []
    turns = iter([lambda: file.write_text(""), lambda: file.write_text(json.dumps(SAID))])
    monkeypatch.setattr(in_container.time, "sleep", lambda _: next(turns)())
    assert json.loads(in_container.await_text(str(file), "a/b", until=1.0, clock=lambda: 0.0)) == SAID
    for content in (None, "", "x" * (in_container.LARGEST + 1)):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_text(content)
        with pytest.raises(LaunchError) as caught:
            in_container.await_text(str(file), "a/b", until=0.0)
        told.append(str(caught.value))
    assert all("a/b" in each and str(file) in each for each in told)
    assert [each.partition("of the pod, ")[2][:24] for each in told] == [
        "is not there: the downwa",
        "is empty: Trimtab has no",
        "has more than 1048576 by",
    ]
    with pytest.raises(LaunchError, match="its directory is no volume"):
        in_container.await_text(str(tmp_path / "not" / "there"), "a/b", until=1e9)
    with pytest.raises(LaunchError, match="cannot be read"):
        in_container.await_text(str(tmp_path), "a/b", until=1e9)


# --- the process ------------------------------------------------------------------------------------------------------
@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The one file, as it is copied into an image."""
    (tmp_path / "trimtab").mkdir()
    shutil.copy(in_container.__file__, tmp_path / "trimtab" / "launch.py")
    return tmp_path


def start(where: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """By a Python that has nothing but its standard library."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(where), **variables}
    command = [sys.executable, "-S", "-m", "trimtab.launch", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


SHOW = [sys.executable, "-c", "import os, sys; print(os.getpid(), os.environ.get('TRIMTAB_TP'), *sys.argv[1:])"]


def test_the_command_takes_the_place_of_the_process_with_flags_and_environment(alone: Path) -> None:
    file = alone / "launch.json"
    file.write_text(json.dumps(SAID))
    words = [sys.executable, "-S", "-m", "trimtab.launch", "--file", str(file), "--", *SHOW, "--lr=1"]
    process = subprocess.Popen(words, env={"PYTHONPATH": str(alone)}, stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said.split() == [str(process.pid), "4", "--lr=1", *SAID["arguments"]], "signals reach the training itself"


def test_how_it_ends_where_it_cannot_start(alone: Path) -> None:
    nothing = start(alone, "--file", str(alone / "none.json"), "--wait", "0", "--", *SHOW)
    assert (nothing.returncode, nothing.stdout) == (WRONG, "")
    assert nothing.stderr.startswith(f"trimtab.launch: {alone}/none.json, which shows")
    optional = start(alone, "--file", str(alone / "none.json"), "--wait", "0", "--optional", "--", *SHOW)
    assert optional.stdout.split()[1:] == ["None"]
    ours = start(alone, "--", *SHOW, "--tp", "2", **{FLAGS: "--tp 2", "TRIMTAB_TP": "2"})
    assert ours.stdout.split()[1:] == ["2", "--tp", "2"], "a pod of an LLMTrainingJob has all from the beginning"
    assert start(alone).returncode == WRONG
    missing = start(alone, "--", "no-such-program", **{FLAGS: ""})
    assert (missing.returncode, missing.stderr) == (
        127,
        "trimtab.launch: no-such-program cannot be started: No such file or directory\n",
    )
