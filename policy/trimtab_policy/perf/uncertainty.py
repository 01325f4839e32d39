"""How sure a predicted step time is: its 80 % interval.

The interval is that of the logarithm of the step time, since errors are factors: wider where communication and waiting
have a large share, over many nodes, and where tokens are routed to experts; as much wider or narrower as the runs of a
framework scatter; wider yet on a GPU generation that no constant was fitted on, for software without runs on it, and
where adapters are trained or something is kept on the host.
`fit.calibrated` sets the coefficients on runs that were left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.perf import constants, hardware
from trimtab_policy.perf.constants import StepTimeInterval
from trimtab_policy.perf.model_flops import Array, Number
from trimtab_policy.specs import GpuSpec


def half_width(
    interval: StepTimeInterval,
    computing: Array,
    doublings: Array,
    routed: NDArray[np.bool_] | bool,
    scatter: Array | float,
    strange_gpu: Array | bool,
    strange_software: Array | bool,
    strange_training: NDArray[np.bool_] | bool = False,
) -> Array:
    """Half width of the interval of the logarithm of each step time.

    `computing` (n,): share of the step spent on it (`StepTime.computing`); `doublings` (n,) of nodes; `routed`: whether
    the model has experts; `scatter`: of the software (`StepTimeInterval.scatter`); `strange_training`: whether adapters
    are trained or something is kept on the host.
    """
    mixture = interval.experts * np.asarray(routed, dtype=np.float64)
    usual = scatter * (interval.base + interval.overhead * (1 - computing) + interval.nodes * doublings + mixture)
    unusual = interval.unmeasured_generation * np.asarray(strange_gpu, dtype=np.float64)
    unheard = interval.unmeasured_software * np.asarray(strange_software, dtype=np.float64)
    untried = interval.unmeasured_training * np.asarray(strange_training, dtype=np.float64)
    widths: Array = np.sqrt(usual**2 + unusual**2 + unheard**2 + untried**2)
    return widths


def factor(
    computing: Array,
    gpu: GpuSpec,
    gpus: Number,
    linked: Number,
    software: str = hardware.CURRENT,
    *,
    routed: bool = False,
    tuned: bool = False,
) -> Array:
    """Of runs as we launch them, four in five take between their predicted time over this and times this; (n,).

    `gpus` are those of the gang, `linked` those of them that share a link (`speed.step_time`); `routed`: whether the
    model has experts; `tuned`: whether adapters are trained or something is kept on the host (`Tuning.unusual`).
    """
    used, generation = constants.active(), constants.generation(gpu)
    doublings = np.log2(np.maximum(1.0, np.asarray(gpus) / linked))
    seen = (generation, software) in used.seen
    scatter = used.interval.scatter.get(software, 1.0)
    known = used.measured(generation)
    widths: Array = np.exp(half_width(used.interval, computing, doublings, routed, scatter, not known, not seen, tuned))
    return widths
