"""Numbers and names as people write them."""

from __future__ import annotations

import pytest

from trimtab.api.status import Shadow
from trimtab.ui import words
from trimtab_policy.types import PendingReason


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], ""),
        (["h100-0"], "h100-0"),
        (["h100-3", "h100-1", "h100-2", "h100-7"], "h100-[1-3,7]"),
        (["gpu-007", "gpu-008", "gpu-010"], "gpu-[007-008,010]"),
        (["h100-9", "h100-10"], "h100-[9-10]"),
        (["a-0", "b-0", "b-1", "c-0", "c-1"], "a-0, b-[0-1] +2"),
        (["alpha", "beta"], "alpha, beta"),
        (["kind-worker", "kind-worker2", "kind-worker3"], "kind-worker, kind-worker[2-3]"),
    ],
)
def test_nodes_are_told_as_slurm_tells_them(names: list[str], said: str) -> None:
    assert words.nodes(names) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.85, "850 ms"),
        (0.99999, "1 s"),
        (42, "42 s"),
        (59.6, "1m00s"),
        (200, "3m20s"),
        (5 * 3600 + 7 * 60, "5h07m"),
        (12 * 86400 + 4 * 3600, "12d4h"),
    ],
)
def test_durations_have_two_figures(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"), [(870, "870"), (999.6, "1k"), (41_234, "41.2k"), (999_999, "1M"), (1_034_000, "1.03M")]
)
def test_rates_have_three_figures_and_the_unit_that_these_need(value: float, said: str) -> None:
    assert words.rate(value) == said


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        (None, ""),
        (0, ""),
        (90, ", 1m30s later"),
        (-7200, ", 2h00m sooner"),
    ],
)
def test_what_a_shadow_policy_would_do_is_told_with_the_difference_that_it_makes(
    difference: int | None, said: str
) -> None:
    shadow = Shadow(policy="sia", summary="8×T4 dp=8", gpu_type="T4", gpus=8, difference_seconds=difference)
    assert words.shadow(shadow) == f"sia: 8×T4 dp=8{said}"
    assert words.shadow_in_short(shadow) == f"8×T4{said}"


def test_a_shadow_policy_that_lets_a_job_wait_says_so() -> None:
    shadow = Shadow(policy="sia", summary="waits: Fragmented", pending_reason=PendingReason.FRAGMENTED)
    assert words.shadow(shadow) == "sia: waits: Fragmented"
    assert words.shadow_in_short(shadow) == "waits"


def test_what_nobody_knows_to_the_second_is_told_in_minutes() -> None:
    told = {
        -5: "0 min",
        29: "0 min",
        31: "1 min",
        14 * 60: "14 min",
        3_600: "1h00m",
        7_490: "2h05m",
        3 * 86_400: "3d0h",
    }
    assert {seconds: words.minutes(seconds) for seconds in told} == told
