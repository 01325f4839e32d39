"""The table of queues: what is promised, what is held, and who is next."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from rich.console import Console
from tests.builders import A100, NOW, job_object, node_object, placement, plan_of, queue_object

from trimtab.api.status import JobStatus
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.settings import PriceSettings
from trimtab.ui import queues, usage
from trimtab.ui.usage import Used

PRICES = PriceSettings(currency="EUR", per_gpu_hour={A100: 2.5})
COST = {"gpuSeconds": 8 * 3600, "cost": 20.0}


def seen() -> Observation:
    """A queue that holds more than it is guaranteed while another one waits, and one that says nothing."""
    held = queue_object("held", {"gpuType": A100, "guaranteed": 4}, {"gpuType": "*", "gpus": 16}, weight=2)
    waits = queue_object("waits", {"gpuType": "T4", "guaranteed": 4}, namespaces=["default"], maxPendingJobs=5)
    begun = datetime.fromtimestamp(NOW - 3600, UTC)
    plan = plan_of(placement("uid-runs", {"n1": 8}), now=begun)
    runs = JobStatus(plan=plan, last_epoch=1, start_time=begun)
    jobs = [job_object("runs", {"queue": "held"}, runs), job_object("first"), job_object("second")]
    caches = Caches([node_object("n1"), node_object("n2")], [], jobs, [held, waits, queue_object("plain")])
    return ClusterObserver(()).observe(caches, NOW)


def test_a_line_for_each_gpu_type_and_what_is_said_of_the_whole_queue_in_the_first() -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(queues.table(queues.rows(seen(), PRICES)))
    assert [" ".join(line.split()) for line in captured.get().splitlines()] == [
        "NAME WEIGHT GPU TYPE GUARANTEED LIMIT HELD BORROWED SHARE PENDING NEXT",
        f"held 2 {A100} 4 - 8 4 25.0% 0 -",
        "* 0 16 8 4",
        "plain 1 - - - - - 0.0% 0 -",
        "waits 1 T4 4 - 0 0 0.0% 2 default/first",
    ]


def test_json_has_all_of_it() -> None:
    held, plain, waits = msgspec.to_builtins(queues.rows(seen(), PRICES))
    assert held["quotas"][0] == {"gpuType": A100, "guaranteed": 4, "limit": None, "held": 8, "borrowed": 4, **COST}
    assert (held["running"], held["share"], held["next"]) == (1, 0.25, None)
    assert (plain["quotas"], plain["maxPendingJobs"], plain["problems"]) == ((), None, ())
    assert (waits["namespaces"], waits["maxPendingJobs"], waits["next"]) == (("default",), 5, "default/first")
    [problem] = waits["problems"]
    assert "the guarantees of all queues come to 4 GPUs T4, and there are 0" in problem


def test_wide_has_gpu_hours_and_their_cost_too() -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(queues.table(queues.rows(seen(), PRICES), currency="EUR"))
    head, first, whole, *_ = [line.split() for line in captured.get().splitlines()]
    assert head[-3:] == ["GPU-HOURS", "COST", "EUR"]
    assert first[-2:] == whole[-2:] == ["8.0", "20.00"]


def used(gpu_type: str, seconds: int, per_hour: float | None) -> Used:
    return Used("q", "default", gpu_type, 0, seconds, per_hour, usage.cost(seconds, per_hour))


def test_what_has_no_price_leaves_the_whole_without_a_cost_unless_nobody_used_it() -> None:
    assert usage.in_all([used("a", 3600, 2.0), used("b", 7200, 1.0)]) == (10_800, 4.0)
    assert usage.in_all([used("a", 3600, 2.0), used("b", 7200, None)]) == (10_800, None)
    assert usage.in_all([used("a", 3600, 2.0), used("b", 0, None)]) == (3600, 2.0)
    assert usage.in_all([]) == (0, None)
