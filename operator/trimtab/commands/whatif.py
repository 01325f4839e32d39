"""`trimtab whatif -f change.yaml`: what would become of the jobs of a cluster if something about it were changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab import settings
from trimtab.commands import calibration, change, learned, simulation
from trimtab.commands.live import deciding, look
from trimtab.commands.options import (
    ContextOption,
    KubeconfigOption,
    OutputOption,
    command,
    kube_settings,
)
from trimtab.commands.snapshot import read_snapshot
from trimtab.decide.rules import simulated
from trimtab.observe.calibration import corrected
from trimtab.ui import output
from trimtab.ui import whatif as ui
from trimtab.ui.output import Output
from trimtab.ui.progress import step
from trimtab_policy.perf.correction import Corrections
from trimtab_policy.policy import load
from trimtab_policy.sim.controller import SimulatedController
from trimtab_policy.types import Snapshot


@command
async def whatif(
    file: Annotated[Path, typer.Option("--file", "-f", help="The change: nodes, policy, jobs, queues, submit.")],
    snapshot: Annotated[Path | None, typer.Option(help="Start from this dump instead of the live cluster.")] = None,
    policy: Annotated[str, typer.Option(help="Policy of both lives; by default the one that decides now.")] = "",
    rigid: Annotated[bool, typer.Option("--rigid", help="Nobody gives way for others, and nobody is resized.")] = False,
    form: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Simulate the cluster twice from now on, as it is and after a change, and show when each job starts and ends.

    Both times decisions are made as by a controller with these settings: by policy, line, reservations, preemption,
    reclaim, moves and resizes.

    The change is a YAML file with one or more of: nodes.add (a list of type, count, gpus), nodes.remove and
    nodes.cordon (lists of names, in which * stands for anything), policy, jobs (by namespace/name: priority, queue,
    gpus.min and gpus.max, suspend), queues (by name: the spec of a Queue), submit (a list of manifests of jobs).

    Examples: trimtab whatif -f four-more-nodes.yaml

    trimtab snapshot -o json > now.json; trimtab whatif -f change.yaml --snapshot now.json -o json
    """
    configured = settings.load()
    calibration.use(configured.perf)
    asked = change.read_change(file)
    if snapshot:
        now, decides = read_snapshot(snapshot), configured.policy.name
    else:
        kube = kube_settings(kubeconfig, context)
        now, decides = (await look(kube)).snapshot, await deciding(kube, configured.policy, configured.monitor)
        if configured.reports.correct:
            now = corrected(now, Corrections(await learned.learned(kube, configured.reports)))
    policies = policy or decides, asked.policy or policy or decides
    _compare(form, now, change.apply(asked, now, file), policies, partial(_controller, configured, rigid))


def _controller(configured: settings.Settings, rigid: bool, name: str, now: Snapshot) -> SimulatedController:
    """Who decides as a controller with these settings would."""
    how, elastic = simulated(configured, rigid=rigid), configured.elasticity.enabled
    return SimulatedController(load(name), how, lambda job: elastic and job.elastic, begin=now)


def _compare(
    form: Output,
    now: Snapshot,
    then: Snapshot,
    policies: tuple[str, str],
    controller: Callable[[str, Snapshot], SimulatedController],
) -> None:
    with simulation.extras():
        from trimtab_policy.sim import replay
        from trimtab_policy.sim import whatif as lives
    with simulation.input_errors():
        cases = replay.sorted_out(now), replay.sorted_out(then)
        if not any(each.snapshot.jobs for each in cases):
            raise replay.nothing(cases[1])
    found = []
    for title, case, policy in zip(("as it is", "after the change"), cases, policies, strict=True):
        with step(f"simulating {title}, under {policy}"), simulation.run_errors():
            found.append(lives.live(case, controller(policy, case.cluster)))
    before, after = found
    later = lives.differences(before.jobs, after.jobs)
    value: dict[str, Any] = {
        "before": before,
        "after": after,
        "ends_later_seconds": later,
        "uncertain": lives.unsure(now),
    }
    output.show(form, value, ui.page(before, after, later, value["uncertain"]))
