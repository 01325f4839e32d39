"""The flags that gangs are started with, held against the parsers of the real launchers. Needs no GPU.

Launchers live in a folder of their own: torchtitan, DeepSpeed and what they need have no place beside what is locked.
`--install` makes it, with the versions and hashes of launchers.txt; it takes torch from .venv.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.gpu.verdicts import Comparison, Missing, Outcome
from msgspec import UNSET
from msgspec.structs import replace
from tests.plan.test_launch import PLANS, TRAINING, gang

from trimtab.plan.launch import LaunchedGang, launch
from trimtab_local.checkout import checkout
from trimtab_policy.specs import Offload, OptimizerOffload, ParallelPlan, Precision, TrainingSpec

LOCK = Path(__file__).with_name("launchers.txt")
PROBE = Path(__file__).with_name("launcher_probe.py")
LAUNCHERS = ("Torchrun", "Torchtitan", "Megatron", "DeepSpeed")
SINCE_0_3 = ("torchtitan", "--module", "llama3")
"""What a container says that starts torchtitan 0.3 or later."""
SECONDS = 1800
Case = dict[str, Any]


def cases() -> list[Case]:
    """Every launcher with every plan of the golden table, one plan in each precision, and one with what it can keep on
    the host."""
    formats = [("hybrid", replace(TRAINING, precision=each)) for each in Precision if each is not TRAINING.precision]
    wanted = [*((name, TRAINING) for name in PLANS), *formats]
    return [
        _case(launcher, name, training)
        for launcher in LAUNCHERS
        for name, training in (*wanted, (OFFLOADED[launcher], replace(TRAINING, offload=ON_HOST[launcher])))
        if not (launcher == "Torchtitan" and training.precision is Precision.FP16)  # which it does not have
    ]


_ALL = Offload(OptimizerOffload.HOST, weights=True)
ON_HOST = {
    "Torchrun": _ALL,
    "Torchtitan": _ALL,
    "Megatron": Offload(OptimizerOffload.HOST),
    "DeepSpeed": replace(_ALL, activations=True),
}
OFFLOADED = {"Torchrun": "data-zero3", "Torchtitan": "data-zero3", "Megatron": "hybrid", "DeepSpeed": "data-zero3"}
"""The plan with it."""


def _case(launcher: str, name: str, training: TrainingSpec) -> Case:
    plan = PLANS[name]
    planned = gang(plan, training)
    started = launch(launcher, planned, 0)
    kept = "" if training.offload is UNSET else ", on the host"
    return {
        "launcher": launcher,
        "name": f"{name}, {training.precision.value}{kept}",
        "args": {"plain": started.args, "module": _since_0_3(launcher, planned)},
        "env": started.env,
        "deepspeed_config": started.deepspeed_config,
        "global_batch": TRAINING.global_batch_size,
        **_counts(plan),
    }


def _since_0_3(launcher: str, planned: LaunchedGang) -> Sequence[str]:
    return launch(launcher, replace(planned, command=SINCE_0_3), 0).args


def _counts(plan: ParallelPlan) -> dict[str, Any]:
    divided = plan.pipeline > 1 or plan.context > 1
    return {"gpus": plan.gpus, "data": plan.data, "experts": plan.expert > 1, "divided": divided}


def check_launchers(folder: Path, python: Path | None = None, megatron: Path | None = None) -> Outcome:
    """Ask the launchers of `python`, or those that were installed into `folder`. Raises Missing without any."""
    program = python or folder / "bin" / "python"
    if not program.exists():
        raise Missing(
            f"no launchers are installed: `hack/gpu/check --install` puts those of {LOCK.name} into {folder}, 0.4 GB;"
            " or --launchers names the Python of your own"
        )
    # From the folder of the probe nothing of ours is found, and the launchers' own modules are.
    env = {"PYTHONPATH": str(megatron)} if megatron else {}
    done = subprocess.run(
        [str(program), str(PROBE)], input=json.dumps(cases()), capture_output=True, text=True, timeout=SECONDS,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder.parent), **env}, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Missing(f"{program} cannot ask its launchers: {done.stderr.strip()[-300:]}")
    return judge(json.loads(done.stdout.splitlines()[-1]))


def judge(answer: dict[str, Any]) -> Outcome:
    """What the probe was told. Raises Missing where no launcher is there at all."""
    told = answer["verdicts"]
    absent = {each["launcher"]: each["absent"] for each in told if each["absent"]}
    rows = tuple(
        Comparison(f"{each['launcher']}: {each['name']}", each["refused"] or "accepted", "accepted",
                   met=not each["refused"])
        for each in told
        if not each["absent"]
    )  # fmt: skip
    if not rows:
        raise Missing("; ".join(absent.values()))
    note = ", ".join(f"{name} {version}" for name, version in answer["versions"].items())
    missing = "; ".join(f"{name} was not asked: {why}" for name, why in absent.items())
    return Outcome("launchers", rows, missing=missing, note=note)


def install(folder: Path) -> None:
    """Make the folder of launchers anew. Raises Missing where something cannot be installed, and leaves none then."""
    packages = sysconfig.get_path("purelib")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    lock = ("--no-deps", "--require-hashes", "--only-binary=:all:", "--no-binary=deepspeed", "--no-build-isolation")
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *lock,
         "--requirement", str(LOCK)],
    )  # fmt: skip
    for number, command in enumerate(steps):
        done = subprocess.run(command, cwd=checkout(), capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            (folder / "bin" / "python").unlink(missing_ok=True)
            raise Missing(f"{' '.join(command[:4])} failed: {done.stderr.strip()[-300:]}")
        if number == 0:  # torch, numpy and the like are those of .venv
            (folder / "lib" / version / "site-packages" / "base.pth").write_text(packages + "\n")
