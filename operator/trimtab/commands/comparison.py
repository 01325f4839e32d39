"""What would become of the jobs of a cluster if something about it were changed: the work of `trimtab whatif`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trimtab import settings
from trimtab.commands import calibration, change, learned, simulation
from trimtab.commands.dumps import read_snapshot
from trimtab.commands.live import deciding, look
from trimtab.decide.rules import simulated
from trimtab.observe.calibration import corrected
from trimtab.settings import KubeSettings
from trimtab.ui import output
from trimtab.ui import whatif as ui
from trimtab.ui.form import Output
from trimtab.ui.progress import step
from trimtab_policy.perf.correction import Corrections
from trimtab_policy.policy import load
from trimtab_policy.sim.controller import SimulatedController
from trimtab_policy.types import Snapshot


async def run(form: Output, file: Path, snapshot: Path | None, policy: str, kube: KubeSettings, *, rigid: bool) -> None:
    """Simulate the live cluster, or a dump, with and without the change of a file, and print both."""
    configured = settings.load()
    calibration.use(configured.perf)
    asked = change.read_change(file)
    if snapshot:
        now, decides = read_snapshot(snapshot), configured.policy.name
    else:
        now, decides = (await look(kube)).snapshot, await deciding(kube, configured.policy, configured.monitor)
        if configured.reports.correct:
            now = corrected(now, Corrections(await learned.learned(kube, configured.reports)))
    policies = policy or decides, asked.policy or policy or decides
    value = compared(now, change.apply(asked, now, file), policies, configured, rigid=rigid)
    before, after, later, unsure = value.values()
    output.show(form, value, ui.page(before, after, later, unsure))


def _controller(configured: settings.Settings, rigid: bool, name: str, now: Snapshot) -> SimulatedController:
    """Who decides as a controller with these settings would."""
    how, elastic = simulated(configured, rigid=rigid), configured.elasticity.enabled
    return SimulatedController(load(name), how, lambda job: elastic and job.elastic, begin=now)


def compared(
    now: Snapshot, then: Snapshot, policies: tuple[str, str], configured: settings.Settings, *, rigid: bool = False
) -> dict[str, Any]:
    """The lives of a cluster and of the changed one, and by how much jobs end later, as `-o json` tells them.

    Raises UsageError for a cluster of which none can be simulated, TrimtabError for a run that went wrong.
    """
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
            found.append(lives.live(case, _controller(configured, rigid, policy, case.cluster)))
    before, after = found
    later = lives.differences(before.jobs, after.jobs)
    return {"before": before, "after": after, "ends_later_seconds": later, "uncertain": lives.unsure(now)}
