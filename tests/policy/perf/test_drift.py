"""Drift: noticed soon and seldom without reason, corrected to within a few per cent, and harmful tuning taken back."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, NOW, T4, job, node, placement, snapshot
from tests.traced import traced

from trimtab_policy.perf.drift import (
    Event,
    Judged,
    Observed,
    Phase,
    Rules,
    State,
    Stream,
    Trial,
    Tuned,
    bet,
    follow,
    measured,
    slowed,
    watch,
)
from trimtab_policy.placement.candidates import candidates
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.policy import Policy, load
from trimtab_policy.sim.engine import Rules as SimRules
from trimtab_policy.sim.engine import simulate
from trimtab_policy.sim.llm import LlmJob, LlmRules
from trimtab_policy.types import Decision, Snapshot

SLOWER = 1 / 0.7
"""Step times of a GPU type that has lost 30 % of its speed, relative to what is predicted."""
Noise = Callable[[np.random.Generator, int], np.ndarray]


def first_alarm(errors: np.ndarray, rules: Rules | None = None) -> float:
    """How many observations were made when the first alarm came; infinite for none."""
    stream = Stream()
    for count, error in enumerate(errors.tolist(), 1):
        stream = watch(stream, error, rules or Rules())
        if stream.alarms:
            return count
    return math.inf


def observed(errors: np.ndarray | list[float], gpu_type: str = A100, state: State | None = None) -> State:
    """The state after jobs whose steps took exp(error) times as long as predicted, each seeing the factor in force."""
    state = state or State()
    for error in errors:
        factor = state.factors.get(gpu_type, 1.0)
        state = follow(state, Observed(gpu_type, math.exp(error), 1.0 * factor, factor))
    return state


def student(sigma: float) -> Noise:
    """Heavy tails: of Student's distribution with 4 degrees of freedom, which has variance 2."""
    return lambda random, count: random.standard_t(4, count) * sigma / math.sqrt(2)


def gaussian(sigma: float) -> Noise:
    return lambda random, count: random.normal(0.0, sigma, count)


# --- monitoring -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("noise", "allowed"),
    [(gaussian(0.05), 0.05), (gaussian(0.15), 0.05), (gaussian(0.3), 0.1), (student(0.15), 0.05)],
    ids=["gaussian-0.05", "gaussian-0.15", "gaussian-0.3", "heavy-tails"],
)
def test_300_jobs_without_drift_raise_no_alarm_in_95_of_100_runs(noise: Noise, allowed: float) -> None:
    """At twice the noise that is believed in at first, one run in ten may be alarmed while that is learned."""
    random = np.random.default_rng(1)
    alarms = [first_alarm(noise(random, 300)) < math.inf for _ in range(200)]
    assert np.mean(alarms) <= allowed


def test_false_alarms_are_as_rare_as_theory_says() -> None:
    """Siegmund (1985): one side with k = 1/2, threshold h runs (e^(2kb) - 2kb - 1) / 2k^2 on average, b = h + 1.166;
    with two sides half as long. A low threshold makes it short enough to be measured; here the noise is known."""
    rules = Rules(threshold=4.0, noise=0.15, believed=1_000_000, outlier=50.0)
    random = np.random.default_rng(2)
    lengths = [first_alarm(random.normal(0.0, 0.15, 3000), rules) for _ in range(400)]
    b = 4.0 + 1.166
    expected = (math.exp(b) - b - 1) / 0.5 / 2

    assert math.inf not in lengths
    assert np.mean(lengths) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(("sigma", "jobs"), [(0.05, 6), (0.15, 10), (0.3, 30)])
@pytest.mark.parametrize("factor", [SLOWER, 1 / SLOWER])
def test_a_change_by_30_per_cent_is_noticed_within_so_many_jobs(sigma: float, jobs: int, factor: float) -> None:
    random, delays = np.random.default_rng(3), []
    for _ in range(100):
        errors = random.normal(0.0, sigma, 200)
        errors[100:] += math.log(factor)
        found = first_alarm(errors)
        if found > 100:
            delays.append(found - 100)

    assert len(delays) >= 90
    assert np.quantile(delays, 0.95) <= jobs


def test_a_bias_from_the_first_job_on_is_drift_too() -> None:
    assert first_alarm(np.random.default_rng(0).normal(0.3, 0.1, 50)) <= 15


def test_one_broken_job_is_no_drift() -> None:
    state = observed([0.0] * 20 + [8.0] + [0.0] * 20)
    assert state.phase is Phase.STABLE
    assert state.factors == {}


def test_types_are_watched_apart() -> None:
    state = observed([0.36] * 30)
    state = observed([0.0] * 30, T4, state)
    assert state.factors.keys() == {A100}


# --- recalibration ------------------------------------------------------------------------------------
def test_corrected_predictions_are_right_to_a_few_per_cent() -> None:
    errors = []
    for seed in range(50):
        noise = np.random.default_rng(seed).normal(0.0, 0.1, 60)
        noise[10:] += math.log(SLOWER)
        errors.append(abs(observed(noise).factors[A100] / SLOWER - 1))
    assert np.mean(errors) < 0.03
    assert np.quantile(errors, 0.95) < 0.08


def test_a_type_that_is_repaired_loses_its_correction() -> None:
    random = np.random.default_rng(4)
    slow = observed(random.normal(math.log(SLOWER), 0.1, 60))
    repaired = observed(random.normal(0.0, 0.1, 60), state=slow)

    assert slow.factors[A100] == pytest.approx(SLOWER, rel=0.08)
    assert repaired.factors[A100] == pytest.approx(1.0, abs=0.08)


@given(st.lists(st.floats(-20, 20), max_size=80))
def test_factors_keep_their_bounds_and_sums_never_fall_below_zero(errors: list[float]) -> None:
    state = observed(errors)
    for factor in state.factors.values():
        assert 1 / 3 - 1e-9 <= factor <= 3 + 1e-9
    for stream in state.streams.values():
        assert min(stream.slower.height, stream.faster.height) >= 0


def test_few_jobs_correct_less_than_many() -> None:
    few = observed([0.5] * 8)
    many = observed([0.5] * 30, state=few)
    assert 1 < few.factors[A100] < many.factors[A100] < math.exp(0.5)


# --- snapshots --------------------------------------------------------------------------------------------
def test_given_speeds_and_running_jobs_are_corrected_exactly() -> None:
    held = job("run", placement=placement("uid-run", {"a": 4}), expected_finish=NOW + 100.0)
    now = snapshot([node("a", free=4), node("t", T4)], [traced("w", (1, 4), types=(A100, T4)), held])
    then = slowed(now, {A100: 1.25}, placed={"uid-run": 1.0})
    fresh, running = then.jobs

    rates = {(row.gpu_type, row.gpus): row.steps_per_second for row in now.jobs[0].speeds or ()}
    for row in fresh.speeds or ():
        assert row.steps_per_second == pytest.approx(
            rates[row.gpu_type, row.gpus] / (1.25 if row.gpu_type == A100 else 1)
        )
    assert running.placement is not None
    assert running.placement.prediction.step_seconds == pytest.approx(0.5 * 1.25)
    assert running.expected_finish == pytest.approx(NOW + 125.0)
    assert slowed(now, {A100: 1.25}, placed={"uid-run": 1.25}).jobs[1].expected_finish == pytest.approx(NOW + 100.0)
    assert slowed(now, {}) is now


@pytest.mark.parametrize(("gpu", "model", "within"), [(T4, "gpt3-1.3b", 0.03), (A100, "llama3-8b", 0.03)])
def test_predictions_of_the_performance_model_are_corrected_up_to_what_the_host_does(
    gpu: str, model: str, within: float
) -> None:
    waiting = job("w", model=model, gpus=(4, 16), precision="FP16")
    now = snapshot([node(f"n{number}", gpu) for number in range(2)], [waiting])
    then = slowed(now, {gpu: SLOWER})

    def seconds(where: Snapshot) -> dict[object, float]:
        found = candidates(where, Capacity(where), waiting)
        return {each.option.plan: each.option.prediction.step_seconds for each in found}

    before, after = seconds(now), seconds(then)
    assert len(before.keys() & after.keys()) >= 2
    for plan in before.keys() & after.keys():
        assert SLOWER * (1 - within) <= after[plan] / before[plan] <= SLOWER * (1 + 1e-6)


def test_only_jobs_that_computed_on_one_placement_in_between_are_measured() -> None:
    held = placement("uid-a", {"n": 8})
    at = {"a": job("a", placement=held, steps_done=100), "b": job("b", placement=held, steps_done=5, resuming=3.0)}
    before = snapshot([node("n")], [*at.values(), job("c")])
    after = replace(
        before,
        time=before.time + 60.0,
        jobs=(replace(at["a"], steps_done=200), replace(at["b"], steps_done=90), job("c", placement=held)),
    )
    assert measured(before, after, {"uid-a": 1.5}) == {"uid-a": Observed(A100, 0.6, 0.5, 1.5)}
    assert measured(before, replace(after, jobs=(replace(at["a"], steps_done=110),))) == {}


# --- safeguard --------------------------------------------------------------------------------------------
def on_trial() -> State:
    """Weights `new` have just replaced `old`."""
    return follow(observed([math.log(SLOWER)] * 40), Tuned("new", "old"))


def judged(pairs: list[tuple[float, float]], state: State | None = None) -> State:
    """The state after these decisions, or after as many as there were when the trial ended."""
    state = state or on_trial()
    for tuned, before in pairs:
        if state.phase is not Phase.FINE_TUNED:
            break
        state = follow(state, Judged(tuned, before))
    return state


def test_the_way_of_tuned_weights_that_are_better() -> None:
    recalibrated = observed([math.log(SLOWER)] * 40)
    assert recalibrated.phase is Phase.RECALIBRATED
    assert recalibrated.settled(Rules())
    assert on_trial().phase is Phase.FINE_TUNED
    assert on_trial().weights == "new"

    kept = judged([(0.9, 1.0)] * 200)
    assert (kept.phase, kept.weights) == (Phase.STABLE, "new")


def test_worse_weights_are_rolled_back_before_the_trial_ends_and_may_be_tuned_again_after_the_next_alarm() -> None:
    back = judged([(1.3, 1.0)] * 200)
    assert (back.phase, back.weights) == (Phase.ROLLED_BACK, "old")
    assert back.trial is not None
    assert back.trial.count < 100
    assert back.factors[A100] > 1.3  # predictions stay corrected

    again = observed([0.0] * 40, state=back)
    assert (again.phase, again.weights) == (Phase.RECALIBRATED, "old")


def test_weights_that_are_slightly_worse_on_average_do_not_outlive_the_trial() -> None:
    assert judged([(1.001, 1.0)] * 200).phase is Phase.ROLLED_BACK
    assert judged([(1.0, 1.0)] * 200).phase is Phase.STABLE


def test_the_bet_wins_against_harmless_weights_as_seldom_as_it_promises() -> None:
    """However often one looks: the highest stake of 1,000 decisions counts."""
    random, rules = np.random.default_rng(5), Rules()
    won = 0
    for _ in range(200):
        trial, highest = Trial("new", "old"), 0.0
        for tuned, before in random.exponential(1.0, (1000, 2)).tolist():
            trial = bet(trial, Judged(tuned, before))
            highest = max(highest, trial.wealth)
        won += highest >= -math.log(rules.risk)
    assert won / 200 <= rules.risk


def test_what_the_phase_does_not_allow_is_refused() -> None:
    with pytest.raises(ValueError, match="not in Stable"):
        follow(State(), Tuned("new", "old"))
    with pytest.raises(ValueError, match="not in Stable"):
        follow(State(), Judged(1.0, 1.0))
    with pytest.raises(ValueError, match="settled"):
        follow(observed([math.log(SLOWER)] * 8), Tuned("new", "old"))
    with pytest.raises(ValueError, match="seconds must be"):
        Observed(A100, math.nan, 1.0)
    with pytest.raises(ValueError, match="tuned must be"):
        Judged(-1.0, 1.0)
    with pytest.raises(ValueError, match="risk"):
        Rules(risk=1.0)


_EVENTS = st.one_of(
    st.builds(Observed, st.sampled_from([A100, T4]), st.floats(0.1, 10), st.floats(0.1, 10)),
    st.builds(Judged, st.floats(0, 10), st.floats(0, 10)),
    st.just(Tuned("new", "old")),
)


@given(st.lists(_EVENTS, max_size=60))
def test_what_was_written_down_goes_on_as_what_was_not(events: list[Event]) -> None:
    kept = read = State()
    for event in events:
        try:
            kept = follow(kept, event)
        except ValueError:
            with pytest.raises(ValueError, match="not in"):
                follow(read, event)
        else:
            read = msgspec.json.decode(msgspec.json.encode(follow(read, event)), type=State)
    assert read == kept


# --- all of it, in the simulator ---------------------------------------------------------------------------
class Recalibrating:
    """A policy that is shown corrected snapshots, and whose jobs are measured: what an operator would do."""

    def __init__(self, policy: Policy) -> None:
        self.name, self._policy = policy.name, policy
        self.state, self.log = State(), [(0.0, "", State())]
        self.predicted: dict[str, tuple[float, float, float]] = {}
        """UID -> time, and observed and predicted seconds, of all that were measured."""
        self._before: Snapshot | None = None
        self._placed: dict[str, float] = {}

    def decide(self, now: Snapshot) -> Decision:
        for uid, found in (measured(self._before, now, self._placed) if self._before else {}).items():
            if uid not in self.predicted:
                self.predicted[uid] = (now.time, found.seconds, found.predicted)
                self.state = follow(self.state, found)
                self.log.append((now.time, found.gpu_type, self.state))
        self._before = now
        factors = self.state.factors
        decision = self._policy.decide(slowed(now, factors, self._placed))
        self._placed |= {each.job: factors.get(each.gpu_type, 1.0) for each in decision.placements}
        return decision


def run(slower_from: int, jobs: int, seed: int) -> Recalibrating:
    """Jobs, one every ten minutes, on two types, of which A100 is slower for the jobs from a number on."""
    random = np.random.default_rng(seed)
    cluster = replace(snapshot([node("a0"), node("a1"), node("t0", T4), node("t1", T4)]), time=0.0)
    sizes = {cluster.gpu_types[name]: 8 for name in (A100, T4)}
    work = []
    for number in range(jobs):
        waiting = job(f"j{number:03}", model="gpt3-1.3b", gpus=(2, 4), steps=400, created=600.0 * number)
        waiting = replace(waiting, uid=f"u{number:03}")
        errors = dict(zip((A100, T4), np.exp(random.normal(0.0, 0.1, 2)).tolist(), strict=True))
        errors[A100] *= SLOWER if number >= slower_from else 1.0
        work.append(LlmJob(waiting, waiting.created, {}, sizes, errors, LlmRules(preemptible=False)))
    policy = Recalibrating(load("sjf"))
    simulate(policy, work, cluster, SimRules(heartbeat=120.0))
    return policy


def test_a_gpu_type_that_slows_down_in_the_middle_of_a_run_is_noticed_and_predicted_right_again() -> None:
    ran = run(slower_from=60, jobs=140, seed=0)
    alarms = [time for time, _, state in ran.log if state.streams.get(A100, Stream()).alarms]
    slow = [time for uid, (time, _, _) in ran.predicted.items() if uid >= "u060"]

    assert 60 * 600.0 < alarms[0] <= sorted(slow)[15]  # of both types; those on A100 are about half
    assert ran.state.phase is Phase.RECALIBRATED
    assert ran.state.factors[A100] == pytest.approx(SLOWER, rel=0.06)
    assert ran.state.factors.keys() == {A100}
    late = [seconds / predicted for uid, (_, seconds, predicted) in ran.predicted.items() if uid >= "u100"]
    assert np.median(late) == pytest.approx(1.0, abs=0.05)


def test_runs_without_drift_stay_stable() -> None:
    for seed in range(3):
        ran = run(slower_from=1000, jobs=60, seed=seed)
        assert ran.state.phase is Phase.STABLE
        assert len(ran.predicted) > 50
