"""The interval of a predicted step time: wider where less is known."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab_policy import catalog
from trimtab_policy.perf import constants, uncertainty
from trimtab_policy.perf.constants import StepTimeInterval
from trimtab_policy.perf.model_flops import Array
from trimtab_policy.perf.uncertainty import half_width

INTERVAL = StepTimeInterval(0.1, 0.2, 0.01, 0.05, 0.3, 0.2)
ALL_COMPUTING, HALF = np.array([1.0]), np.array([0.5])
NO_NODES = np.zeros(1)


def width(
    computing: Array = ALL_COMPUTING,
    doublings: Array = NO_NODES,
    routed: bool = False,
    scatter: float = 1.0,
    strange_gpu: bool = False,
    strange_software: bool = False,
) -> float:
    return float(half_width(INTERVAL, computing, doublings, routed, scatter, strange_gpu, strange_software)[0])


def test_waiting_nodes_and_experts_add_to_the_width() -> None:
    assert width() == pytest.approx(0.1)
    assert width(HALF) == pytest.approx(0.2)
    assert width(doublings=np.array([3.0])) == pytest.approx(0.13)
    assert width(routed=True) == pytest.approx(0.15)


def test_a_framework_whose_runs_scatter_has_a_wider_interval() -> None:
    assert width(HALF, scatter=1.5) == pytest.approx(1.5 * width(HALF))


def test_what_was_never_measured_adds_in_squares() -> None:
    assert width(strange_gpu=True) == pytest.approx(np.hypot(0.1, 0.3))
    assert width(strange_gpu=True, strange_software=True) == pytest.approx(np.sqrt(0.1**2 + 0.3**2 + 0.2**2))
    assert width(scatter=2.0, strange_gpu=True) == pytest.approx(np.hypot(0.2, 0.3))


def test_a_gpu_without_runs_and_a_framework_that_scatters_are_less_sure() -> None:
    packaged = constants.load()
    assert not packaged.measured("Ada")

    def factor(gpu: str, software: str = "megatron-core", routed: bool = False) -> float:
        return float(uncertainty.factor(HALF, catalog.gpu(gpu), 8, 8, software, routed=routed)[0])

    known = factor("H100-SXM5-80GB")
    assert 1 < known < factor("H100-SXM5-80GB", routed=True)
    assert known < factor("L40S")
    assert known < factor("H100-SXM5-80GB", "nanotron")
