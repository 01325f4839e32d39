"""What a ConfigMap says was learned: understood or refused; corrections are finite and bounded."""

from __future__ import annotations

import json
import math

from tests.builders import A100, H100, job
from tests.fuzz.draw import Draw, Json
from tests.fuzz.target import Target

from trimtab.observe import calibration
from trimtab.observe.calibration import NotUnderstood
from trimtab_policy.perf import correction
from trimtab_policy.perf.correction import Corrections
from trimtab_policy.perf.hierarchy import Learned
from trimtab_policy.perf.lessons import CorrectionRules, Key, State, key_of
from trimtab_policy.specs import ParallelPlan

_JOB = job()


def _usual() -> Json:
    state = State()
    for number in range(12):
        key = key_of(_JOB, (A100, H100)[number % 2], ParallelPlan(data=1 + number % 3))
        state = correction.learn(state, key, f"job-{number}", 0.1 * number, namespace=f"team-{number % 3}")
    found: Json = json.loads(calibration.written(state)[calibration.KEY])
    return found


_WORDS = json.dumps(_usual())


def run(data: bytes) -> None:
    """One ConfigMap is read, corrected by, learned upon, and written again."""
    draw = Draw(data)
    raw = draw.rest() if draw.chance(16) else draw.encoded(draw.spoiled(draw.tweaked(json.loads(_WORDS))))
    try:
        text = raw.decode()  # a ConfigMap's data is text
    except UnicodeDecodeError:
        return
    try:
        state = calibration.read_calibration({calibration.KEY: text})
    except NotUnderstood as error:
        assert str(error)
        return
    rules = CorrectionRules()
    learned = Learned(state, rules)
    for factor in learned.factors().values():
        assert 0 < factor <= rules.largest_factor * 1.001, factor
        assert factor >= 0.999 / rules.largest_factor
    for each in Corrections(learned).of(_JOB):
        assert math.isfinite(each.factor)
        assert math.isfinite(each.uncertainty)
        assert each.factor > 0
        assert each.uncertainty >= 1
    for gpu_type in {known.key.gpu_type for known in state.known}:
        assert math.isfinite(math.exp(correction.change(state, gpu_type)))
    key: Key = key_of(_JOB, A100, ParallelPlan(data=2))
    later = correction.learn(state, key, "new", draw.number(-5, 5), namespace=draw.pick(("team-0", "team-9")))
    later = correction.forget(later, "job-1")
    assert calibration.read_calibration(calibration.written(later)) == later
    Learned(later, rules).factors()


TARGET = Target("the ConfigMap of what was learned", run)
