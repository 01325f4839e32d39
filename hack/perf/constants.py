"""Fit the constants that come with the package to the published runs, calibrate their interval, and write them.

    python -m hack.perf.constants TABLE...

The fit starts from bare beliefs, never from earlier constants, so that the same tables always give the same file.
Takes some minutes: besides the fit, cross-validation by group of runs, by GPU generation and by software.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np

from trimtab_local.checkout import checkout
from trimtab_policy.perf import accuracy, fit, measured
from trimtab_policy.perf.constants import generation

PACKAGED = Path("policy/trimtab_policy/data/speed.yaml")


def main(tables: list[Path]) -> None:
    """Fit, calibrate, write, and say how good the result is on runs left out."""
    runs = measured.read_measured(*tables)
    constants = fit.fit(runs, progress=lambda steps, _: _say(f"fit: {steps} steps"))
    by_group, by_generation, by_software = (
        fit.cross_validate(runs, folds, lambda done, _, what=what: _say(f"without one {what}: {done} folds"))
        for what, folds in (
            ("group", runs.groups),
            ("generation", np.array([generation(gpu) for gpu in runs.gpus])),
            ("software", runs.software),
        )
    )
    whole = fit.calibrated(runs, constants, by_group, by_generation=by_generation, by_software=by_software)
    words = f"fitted on {len(runs.seconds)} published runs of {len(set(runs.sources.tolist()))} sources"
    msgspec.structs.replace(whole, source=words).save(checkout() / PACKAGED)
    for name, said in (("group", by_group), ("generation", by_generation), ("software", by_software)):
        found = accuracy.judge(runs, said).overall
        print(f"without the {name}: macro MAPE {found.macro_mape:.1%}, median {found.median_ape:.1%}")


def _say(words: str) -> None:
    print(f"\r{words}   ", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
