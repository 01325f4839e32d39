"""Corrections of predictions: how much is learned from how many jobs, what is not, and what policies make of it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, H100, T4, capacity, job, node, snapshot

from trimtab_policy import policy
from trimtab_policy.perf import correction
from trimtab_policy.perf.correction import (
    CorrectionRules,
    Corrections,
    Key,
    Learned,
    State,
    anonymous,
    estimates,
    key_of,
    learn,
    plan_class,
)
from trimtab_policy.placement.candidates import candidates
from trimtab_policy.specs import (
    Adapters,
    AdapterTargets,
    Offload,
    ParallelPlan,
    Precision,
    Quantization,
    TrainingSpec,
)
from trimtab_policy.types import Correction, Job

RULES = CorrectionRules()
HYBRID = "megatron-core/BF16/Hybrid/zero1"
LLAMA = Key("llama3-8b", A100, HYBRID)
KEYS = [Key(model, gpu, plan) for model in ("llama3-8b", "gpt2") for gpu in (A100, H100) for plan in (HYBRID, "x")]
Errors = st.floats(-2, 2)
Shown = st.lists(st.tuples(st.sampled_from(KEYS), Errors), max_size=40)


def seen(
    *errors: float, key: Key = LLAMA, state: State | None = None, rules: CorrectionRules = RULES, namespace: str = ""
) -> State:
    """The state after so many jobs of one key."""
    state = state or State()
    for error in errors:
        state = learn(state, key, f"{namespace}-job-{state.count}".lstrip("-"), error, rules, namespace=namespace)
    return state


def alarms(state: State, gpu_type: str, namespace: str = "") -> int:
    """How often it was noticed that all that a namespace runs on a type has changed."""
    told = (watch for watch in state.watches if (watch.namespace, watch.gpu_type) == (namespace, gpu_type))
    return next((watch.stream.alarms for watch in told), 0)


def factor(state: State, key: Key = LLAMA, rules: CorrectionRules = RULES) -> float:
    found = estimates(state, rules).of(key)
    return found.factor if found else 1.0


# --- how much is learned ----------------------------------------------------------------------------------------------
def test_one_job_moves_a_prediction_a_little_and_many_all_the_way() -> None:
    slow = math.log(1.3)
    assert 1.1 < factor(seen(slow)) < 1.2
    assert factor(seen(*[slow] * 3)) < factor(seen(*[slow] * 20))
    assert factor(seen(*[slow] * 20)) == pytest.approx(1.3, abs=0.02)


def test_the_interval_narrows_with_jobs_and_holds_the_factor() -> None:
    few, many = (estimates(seen(*[0.2] * jobs)).keys[LLAMA] for jobs in (1, 20))
    assert few.low < few.factor < few.high
    assert many.high / many.low < few.high / few.low
    assert (few.jobs, many.jobs) == (1, 20)


def test_the_posterior_is_that_of_the_two_levels() -> None:
    """Against the joint normal distribution of type, key and jobs, conditioned by matrices."""
    import numpy as np

    errors = [0.1, 0.25]
    prior, within, noise = RULES.prior**2, RULES.within**2, RULES.noise**2
    shared = np.full((3, 3), prior + within) + np.diag([0.0, noise, noise])
    gain = shared[0, 1:] @ np.linalg.inv(shared[1:, 1:])
    found = estimates(seen(*errors)).keys[LLAMA]
    assert found.mean == pytest.approx(float(gain @ errors))
    assert found.deviation == pytest.approx(math.sqrt(shared[0, 0] - gain @ shared[1:, 0]))


def test_a_key_that_nothing_ran_under_takes_what_is_known_of_its_gpu_type() -> None:
    state = seen(*[0.3] * 5)
    other = Key("gpt2", A100, "x")
    state = seen(*[0.2] * 5, key=Key("bert-large", A100, "y"), state=state)
    assert 1.05 < factor(state, other) < factor(state)
    found = estimates(state).of(other)
    assert found
    assert found.jobs == 0
    assert estimates(state).of(Key("llama3-8b", H100, HYBRID)) is None


def test_one_broken_job_does_not_spoil_a_key() -> None:
    assert factor(seen(2.3)) < 1.4
    assert factor(seen(0.0, 0.0, 2.3)) < 1.15
    assert factor(seen(*[0.02] * 9, 2.3)) < 1.1


def test_one_odd_model_does_not_put_a_whole_gpu_type_in_doubt_and_several_do() -> None:
    other = Key("gpt2", A100, "x")
    assert factor(seen(*[1.0] * 20), other) < 1.12
    state = State()
    for model in "abcdefgh":
        state = seen(*[0.4] * 5, key=Key(model, A100, "x"), state=replace(state, watches=()))
    assert factor(state, other) > 1.2


def test_what_most_jobs_show_is_no_outlier_however_large() -> None:
    assert factor(seen(*[math.log(2.5)] * 20)) == pytest.approx(2.5, rel=0.06)


def test_one_job_counts_once_and_its_latest_word() -> None:
    state = learn(learn(State(), LLAMA, "a", 0.5), LLAMA, "a", 0.2)
    assert state == replace(learn(State(), LLAMA, "a", 0.2), watches=state.watches)
    assert state.count == 1


@pytest.mark.parametrize("error", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_an_error(error: float) -> None:
    with pytest.raises(ValueError, match="error must be a finite number"):
        learn(State(), LLAMA, "a", error)


@given(Shown, st.randoms(use_true_random=False))
def test_the_order_of_jobs_does_not_matter(shown: list[tuple[Key, float]], dice: random.Random) -> None:
    rules = CorrectionRules(window=100)
    numbered = list(enumerate(shown))
    mixed = dice.sample(numbered, len(numbered))
    results = []
    for order in (numbered, mixed):
        state = State()
        for number, (key, error) in order:
            state = replace(
                learn(state, key, str(number), error, rules), watches=()
            )  # change in time is another matter
        results.append(estimates(state, rules))
    first, second = results
    assert first.keys.keys() == second.keys.keys()
    for key, found in first.keys.items():
        assert found.mean == pytest.approx(second.keys[key].mean, abs=1e-9)
        assert found.deviation == pytest.approx(second.keys[key].deviation)


@given(Shown, st.floats(1.01, 10))
def test_factors_are_bounded(shown: list[tuple[Key, float]], largest: float) -> None:
    rules = CorrectionRules(largest_factor=largest)
    state = State()
    for number, (key, error) in enumerate(shown):
        state = learn(state, key, str(number), error, rules)
    found = estimates(state, rules)
    for each in (*found.keys.values(), *found.types.values()):
        assert 1 / largest <= each.low <= each.factor <= each.high <= largest


@given(st.lists(Errors, min_size=1, max_size=12), st.integers(0, 11), st.floats(0, 1))
def test_a_job_that_shows_more_never_makes_the_factor_smaller(errors: list[float], which: int, more: float) -> None:
    higher = list(errors)
    higher[which % len(errors)] += more
    rules = CorrectionRules(largest_factor=100)
    bare = [State(), State()]
    for index, shown in enumerate((errors, higher)):
        for number, error in enumerate(shown):
            bare[index] = replace(learn(bare[index], LLAMA, str(number), error, rules), watches=())
    assert factor(bare[1], rules=rules) >= factor(bare[0], rules=rules) - 1e-12


@given(Shown)
def test_a_state_survives_being_written_down(shown: list[tuple[Key, float]]) -> None:
    state = State()
    for number, (key, error) in enumerate(shown):
        state = learn(state, key, str(number), error)
    again = msgspec.json.decode(msgspec.json.encode(state), type=State)
    assert again == state
    assert estimates(again) == estimates(state)


@pytest.mark.parametrize("text", ['{"version": 3}', '{"known": [{"key": {}, "seen": []}]}', '{"known": 1}', "[]", "x"])
def test_what_another_version_wrote_is_not_understood(text: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(text, type=State)


def test_figures_that_nobody_could_have_learned_are_not_believed() -> None:
    text = msgspec.json.encode(seen(0.1)).replace(b"0.1,true]", b"1e9,true]")
    with pytest.raises(msgspec.ValidationError, match="errors must be finite"):
        msgspec.json.decode(text, type=State)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"known": [{"key": {"model": "m", "gpu_type": "H100", "plan": "p"}, "seen": []}]}', "seen must not be empty"),
        ('{"count": -5}', "count must lie between"),
        ('{"watches": [{"namespace": "n", "gpu_type": "H100", "changed": 1e5}]}', "errors must be finite"),
        ('{"watches": [{"namespace": "n", "gpu_type": "H100", "stream": {"alarms": -1}}]}', "watches: that of H100"),
        ('{"watches": [{"namespace": "n", "gpu_type": "H100", "at": -1}]}', "watches: that of H100"),
    ],
)
def test_what_a_person_got_wrong_is_named(text: str, named: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=named):
        msgspec.json.decode(text, type=State)


Where = list[Any]


def leaves(value: Any, path: Where) -> Iterator[Where]:
    """Where the lists and the numbers of a document are."""
    if isinstance(value, list | int | float):
        yield path
    for name, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(each, [*path, name])


@given(st.data())
def test_whatever_is_written_into_it_is_refused_or_harmless(data: st.DataObject) -> None:
    document = msgspec.json.decode(msgspec.json.encode(seen(*[0.5] * 3, *[-1.0] * 2)))
    *path, last = data.draw(st.sampled_from(list(leaves(document, []))))
    place = document
    for name in path:
        place = place[name]
    place[last] = data.draw(st.integers(-(1 << 62), 1 << 62) | st.floats(allow_nan=False) | st.just([]))
    try:
        state = msgspec.json.decode(msgspec.json.encode(document), type=State)
    except msgspec.MsgspecError:
        return
    for number in range(3):
        state = learn(state, LLAMA, f"later-{number}", 0.3)
    assert all(math.isfinite(each.factor) for each in estimates(state).keys.values())
    assert all(math.isfinite(math.exp(watch.changed)) for watch in state.watches)
    assert msgspec.json.decode(msgspec.json.encode(state), type=State) == state


def test_an_early_figure_gives_way_to_the_settled_one_and_never_comes_back() -> None:
    early = learn(State(), LLAMA, "a", 0.5, settled=False)
    assert factor(early) == factor(seen(0.5))
    settled = learn(early, LLAMA, "a", 0.2)
    assert factor(settled) == factor(seen(0.2))
    assert learn(settled, LLAMA, "a", 0.9, settled=False) == settled


def test_what_a_job_showed_can_be_forgotten() -> None:
    state = learn(seen(0.1), LLAMA, "slow-card", 0.9)
    assert factor(correction.forget(state, "slow-card")) == factor(seen(0.1))
    assert correction.forget(seen(0.1), "job-0").known == ()
    assert correction.forget(state, "unknown") is state


def test_only_the_latest_jobs_and_keys_are_kept() -> None:
    rules = CorrectionRules(window=3, keys=2)
    state = seen(0.1, 0.2, 0.3, 0.4, rules=rules)
    assert [each.error for each in state.known[0].seen] == [0.2, 0.3, 0.4]
    for model in ("b", "c"):
        state = seen(0.1, key=Key(model, A100, HYBRID), state=state, rules=rules)
    assert [known.key.model for known in state.known] == ["b", "c"]


@pytest.mark.parametrize(
    "wrong", [{"prior": 0}, {"noise": math.nan}, {"largest_factor": 1}, {"window": 0}, {"keys": 0}], ids=str
)
def test_rules_name_the_field_that_is_wrong(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CorrectionRules(**wrong)  # type: ignore[arg-type]  # on purpose


# --- change in time ---------------------------------------------------------------------------------------------------
def test_when_a_gpu_type_changes_for_all_what_was_before_counts_no_more() -> None:
    dice = random.Random(1)
    state = State()
    for number in range(60):
        state = learn(state, KEYS[number % 8], str(number), dice.gauss(0.0, 0.05))
    assert all(watch.stream.alarms == 0 for watch in state.watches)
    number = 60
    while alarms(state, A100) == 0:
        state = learn(
            state, KEYS[number % 8], str(number), dice.gauss(0.5 if KEYS[number % 8].gpu_type == A100 else 0, 0.05)
        )
        number += 1
    assert number < 80
    assert alarms(state, H100) == 0
    kept = [each for known in state.known if known.key.gpu_type == A100 for each in known.seen]
    assert min(each.number for each in kept) >= 55
    while number < 150:
        state = learn(
            state, KEYS[number % 8], str(number), dice.gauss(0.5 if KEYS[number % 8].gpu_type == A100 else 0, 0.05)
        )
        number += 1
    assert alarms(state, A100) == 1
    assert factor(state) == pytest.approx(math.exp(0.5), rel=0.05)
    assert correction.change(state, A100) > 0.2
    assert factor(state, Key("llama3-8b", H100, HYBRID)) == pytest.approx(1.0, abs=0.03)


def test_models_that_were_always_off_and_another_mix_of_them_are_no_change() -> None:
    dice = random.Random(2)
    state = State()
    for number in range(200):
        model, off = ("a", 0.0) if number < 60 else ("b", 0.5) if number < 120 else ("c", -0.4)
        state = learn(state, Key(model, A100, HYBRID), str(number), dice.gauss(off, 0.08))
    assert alarms(state, A100) == 0
    assert correction.change(state, A100) == 0


def test_figures_that_have_not_settled_are_no_change() -> None:
    state = seen(*[0.0] * 30)
    for number in range(30):
        state = learn(state, LLAMA, f"early-{number}", 1.0, settled=False)
    assert alarms(state, A100) == 0
    for number in range(30):
        state = learn(state, LLAMA, f"early-{number}", 1.0)
    assert alarms(state, A100) == 1


# --- use --------------------------------------------------------------------------------------------------------------
def known_for(one: Job, gpu_type: str, error: float, jobs: int = 10) -> Learned:
    """What is known after so many jobs like this one on data-parallel plans."""
    key = key_of(one, gpu_type, ParallelPlan(data=8, zero_stage=1))
    return Learned(seen(*[error] * jobs, key=key, namespace=anonymous(one.namespace)))


TRAINING = TrainingSpec(sequence_length=4096, global_batch_size=128, steps=1)


def test_classes_of_plans_tell_what_errors_depend_on() -> None:
    low = replace(TRAINING, precision=Precision.FP8)
    assert plan_class("megatron-core", TRAINING, ParallelPlan(data=2, tensor=4, zero_stage=2)) == HYBRID
    assert plan_class("other", low, ParallelPlan(tensor=8)) == "other/FP8/Model/zero0"


def test_a_fine_tune_is_corrected_by_fine_tunes_alone() -> None:
    whole, plan = job(), ParallelPlan(data=8, zero_stage=1)
    adapters = Adapters(16, AdapterTargets.ALL_LINEAR, Quantization.NF4)
    tuned = replace(whole, training=replace(whole.training, adapters=adapters))
    offloaded = replace(whole, training=replace(whole.training, offload=Offload(weights=True)))
    assert len({key_of(each, A100, plan) for each in (whole, tuned, offloaded)}) == 3
    learned = Corrections(known_for(tuned, A100, math.log(2)))
    of_key = {each.plan for each in learned.of(tuned)} - {""}
    assert of_key == {"megatron-core/BF16+LoRA-NF4/Data/zero1"}
    assert {each.plan for each in learned.of(whole)} <= {""}


def test_models_of_one_shape_are_one() -> None:
    shape = replace(job().model, name="custom")
    assert correction.model_name(shape) == correction.model_name(replace(shape))
    assert correction.model_name(shape) != correction.model_name(replace(shape, layers=shape.layers + 1))
    assert correction.model_name(job().model) == "gpt2"


def test_a_prediction_is_corrected_once_and_says_so() -> None:
    one = job(gpus=(8, 8))
    cluster = snapshot([node("n1")])
    told = replace(one, corrections=Corrections(known_for(one, A100, 0.3)).of(one))
    before, after = (candidates(cluster, capacity(node("n1")), each) for each in (one, told))
    plain = {(each.option.plan, each.option.nodes): each.option.prediction for each in before}
    for each in after:
        said, was = each.option.prediction, plain[each.option.plan, each.option.nodes]
        assert said.correction > 1.1
        assert said.step_seconds == pytest.approx(was.step_seconds * said.correction)
        assert said.run_seconds == pytest.approx(was.run_seconds * said.correction)
        assert each.tokens_per_second == pytest.approx(was.tokens_per_second / said.correction)
        assert said.memory_bytes == was.memory_bytes
        assert was.correction == 1.0
    assert [each.option.gpus for each in after] == sorted(each.option.gpus for each in after)


def test_without_corrections_candidates_are_the_very_same() -> None:
    options = tuple(each.option for each in candidates(snapshot([node("n1")]), capacity(node("n1")), job()))
    assert correction.corrected(options, A100, job()) is options
    other = replace(job(), corrections=(Correction(T4, "", 2.0, 1.5),))
    assert correction.corrected(options, A100, other) is options


def test_a_type_that_is_slower_than_predicted_loses_jobs_to_another() -> None:
    nodes = [node("a", A100), node("h", H100)]
    one = job(gpus=(8, 8), model="llama3-8b", global_batch_size=128, sequence_length=4096)
    best = policy.load("best_fit")
    before = best.decide(snapshot(nodes, [one])).placements[0]
    assert before.gpu_type == H100
    table = tuple(Correction(H100, plan, 3.0, 1.2) for plan in ("", plan_class("megatron-core", TRAINING, before.plan)))
    after = best.decide(snapshot(nodes, [replace(one, corrections=table)])).placements[0]
    assert after.gpu_type == A100
    assert after.prediction.correction == 1.0


def test_corrections_are_those_of_the_jobs_model_and_software_else_of_the_type() -> None:
    one, other = job(model="gpt2"), job(model="bert-large")
    known = known_for(one, A100, 0.3)
    assert [each.plan for each in Corrections(known).of(one)] == ["", "megatron-core/BF16/Data/zero1"]
    assert [each.plan for each in Corrections(known).of(other)] == [""]
    assert [each.plan for each in Corrections(known).of(job(model="gpt2", software="torchtitan"))] == [""]
    assert Corrections(Learned()).of(one) == ()


def test_small_news_is_nothing_to_decide_anew_for() -> None:
    one = job()
    assert Corrections(known_for(one, A100, 0.1)).of(one) == Corrections(known_for(one, A100, 0.100001)).of(one)
