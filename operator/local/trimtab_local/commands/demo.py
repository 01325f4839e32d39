"""`trimtab demo`: see Trimtab at work, without a cluster, a GPU or root rights. `hack/demo` runs this."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from trimtab.commands.options import reported
from trimtab.errors import TrimtabError
from trimtab.printable import say
from trimtab.ui import output, words
from trimtab.ui.interrupts import interruptible
from trimtab.ui.progress import step
from trimtab_local.demo.history import History
from trimtab_local.demo.play import await_leader, play
from trimtab_local.demo.screen import LiveScreen, PlainScreen
from trimtab_local.demo.script import ARRIVALS, PROFILE, SPEEDUP
from trimtab_local.demo.stage import Stage, stage, take_down
from trimtab_local.demo.summary import summary
from trimtab_policy.policy import entry


@reported()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave cluster and controller running.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End what --keep has left, and do nothing else.")] = False,
    speedup: Annotated[
        float, typer.Option(help="Training runs this many times as fast as predicted.", min=1.0)
    ] = SPEEDUP,
    web: Annotated[bool, typer.Option("--web", help="Show it in a browser, too: `trimtab ui`.")] = False,
    policy: Annotated[str, typer.Option(help="Policy that decides, e.g. fcfs, sia, q_learning.")] = "rudder",
) -> None:
    """Run the sample jobs on a control plane and a fake heterogeneous cluster of their own, and show what happens.

    Example: trimtab demo --policy sia --keep
    """
    if stop:
        take_down()
        return
    entry(policy)
    with interruptible(), stage(speedup, PROFILE, policy, keep=keep, web=web) as set_up:
        _run(set_up, speedup, policy)
        if keep:
            _tell_how_to_go_on(set_up)


def _run(set_up: Stage, speedup: float, policy: str) -> None:
    console = output.console()
    screen = LiveScreen(console, speedup) if console.is_terminal else PlainScreen(console)
    if set_up.page:
        say(f"The console: {set_up.page}")
    with step("waiting for the controller to lead"):
        asyncio.run(await_leader(set_up))
    console.print(f"\nThe jobs arrive. One second is {speedup / 60:.3g} minutes of training.\n", highlight=False)
    with screen:
        history = asyncio.run(play(set_up, ARRIVALS, screen))
    console.print()
    console.print(summary(history, speedup), highlight=False)
    judge(history, policy)


def judge(history: History, policy: str) -> None:
    """Raise TrimtabError unless exactly the jobs that can complete have completed, all of them as `policy` decided."""
    expected = {arrival.job() for arrival in ARRIVALS if arrival.completes} - {""}
    completed = {name for name, trail in history.trails.items() if words.state(trail.facts) == "Completed"}
    if completed != expected:
        odd = ", ".join(sorted(completed ^ expected))
        raise TrimtabError(f"the demo did not end as it should, look at: {odd}")
    plans = {name: trail.facts.status.plan for name, trail in history.trails.items()}
    others = [f"{plan.policy} for {name}" for name, plan in plans.items() if plan and plan.policy != policy]
    if others:
        raise TrimtabError(f"{policy} failed, and another policy decided: {', '.join(others)}")


def _tell_how_to_go_on(set_up: Stage) -> None:
    page = f"\nThe console: {set_up.page}" if set_up.page else ""
    say(f"""
Everything is still running. To look around:

    export KUBECONFIG={set_up.cluster.kubeconfig}
    export PATH={set_up.cluster.binaries}:$PATH
    kubectl get ltj
    kubectl describe ltj llama-405b-impossible

The controller's log: {set_up.controller_log}{page}
To stop it all: hack/demo --stop""")
