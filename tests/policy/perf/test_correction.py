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
from trimtab_policy.perf.correction import Corrections, learn
from trimtab_policy.perf.hierarchy import Estimate, Learned, estimates
from trimtab_policy.perf.lessons import (
    VERSION,
    CorrectionRules,
    Key,
    Level,
    Locality,
    Path,
    State,
    anonymous,
    key_of,
    locality,
    model_name,
    plan_class,
)
from trimtab_policy.perf.plans import Option
from trimtab_policy.placement.candidates import candidates
from trimtab_policy.specs import (
    Adapters,
    AdapterTargets,
    Offload,
    ParallelPlan,
    Precision,
    Prediction,
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


def test_the_posterior_is_that_of_the_tree() -> None:
    """Against the joint normal distribution of all levels and jobs, conditioned by matrices, with the spreads that were
    learned. Nothing here is far enough from the median to be brought nearer."""
    import numpy as np

    scattered = replace(LLAMA, locality=Locality.SCATTERED)
    keys = [LLAMA, scattered, replace(LLAMA, plan="megatron-core/BF16/Data/zero1"), Key("gpt2", A100, HYBRID),
            Key("gpt2", H100, "torchtitan/BF16/Data/zero1")]  # fmt: skip
    errors = [0.06, 0.1, 0.03, -0.04, 0.05]
    state = State()
    for key, error in zip(keys, errors, strict=True):
        state = seen(error, key=key, state=state)
    known = Learned(state)
    spreads = known.spreads("")

    def shared(one: Path, other: Path) -> float:
        alike = next(
            (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
        )
        return sum(spreads.levels[: alike + 1])

    asked = [*(key.path for key in keys), LLAMA.path[:2], ()]
    of_jobs = np.array([[shared(a.path, b.path) for b in keys] for a in keys]) + RULES.noise**2 * np.eye(len(keys))
    for path in asked:
        gain = np.array([shared(path, key.path) for key in keys]) @ np.linalg.inv(of_jobs)
        found = known.by("").groups[path] if len(path) < 5 else known.by("").keys[keys[asked.index(path)]]
        assert found.mean == pytest.approx(float(gain @ errors)), path
    exact = shared(LLAMA.path, LLAMA.path) - float(
        (g := np.array([shared(LLAMA.path, key.path) for key in keys])) @ np.linalg.inv(of_jobs) @ g
    )
    assert spreads.noise == pytest.approx(RULES.noise**2), "of one job each nothing is learned of the noise"
    assert known.by("").keys[LLAMA].deviation == pytest.approx(math.sqrt(exact), rel=1e-6)


def test_a_key_that_nothing_ran_under_takes_what_is_known_of_its_gpu_type() -> None:
    state = seen(*[0.3] * 5)
    other = Key("gpt2", A100, "x")
    state = seen(*[0.2] * 5, key=Key("bert-large", A100, "y"), state=state)
    assert 1.05 < factor(state, other) < factor(state)
    found = estimates(state).of(other)
    assert found
    assert (found.level, found.jobs) == (Level.GPU_TYPE, 10)
    elsewhere = estimates(state).of(Key("llama3-8b", H100, HYBRID))
    assert elsewhere
    assert elsewhere.level is Level.CLUSTER
    assert 1.0 < elsewhere.factor < factor(state, other), "of another GPU type it says little"
    assert estimates(State()).of(other) is None


def test_what_is_nearer_to_what_ran_is_told_more_of_it() -> None:
    state = seen(*[0.3] * 10, key=replace(LLAMA, locality=Locality.LINKED))
    kin = [
        replace(LLAMA, locality=Locality.LINKED),
        replace(LLAMA, locality=Locality.SCATTERED),
        replace(LLAMA, plan="megatron-core/BF16/Data/zero3"),
        Key("gpt2", A100, HYBRID),
        Key("gpt2", A100, "torchtitan/BF16/Data/zero1"),
        Key("gpt2", H100, HYBRID),
    ]
    found = [each for key in kin if (each := estimates(state).of(key))]
    assert [each.level for each in found] == list(reversed(Level))
    assert [each.mean for each in found] == sorted((each.mean for each in found), reverse=True)
    assert [each.deviation for each in found] == sorted(each.deviation for each in found)


def test_where_models_differ_one_says_less_of_another_and_the_interval_is_wider() -> None:
    def asked(apart: float) -> Estimate:
        state = State()
        for number, model in enumerate("abcdefghijklmnop"):
            error = 0.2 + apart * (-1) ** number
            state = seen(*[error] * 6, key=Key(model, A100, HYBRID), state=replace(state, watches=()))
        found = estimates(state).of(Key("new", A100, HYBRID))
        assert found
        return found

    alike, different = asked(0.02), asked(0.3)
    assert alike.mean > different.mean
    assert different.deviation > 2 * alike.deviation
    assert different.deviation == pytest.approx(0.3, abs=0.12)


def test_jobs_that_scatter_make_the_interval_wider_and_move_no_factor() -> None:
    steady, scattered = (seen(*[0.1 - luck, 0.1 + luck] * 8) for luck in (0.02, 0.3))
    assert estimates(scattered).noise > 0.25 > 0.1 > estimates(steady).noise
    assert factor(scattered) == pytest.approx(factor(steady), rel=0.02)
    one = job()
    narrow, wide = (Corrections(known_for(one, A100, 0.1, luck=luck)).of(one)[-1].uncertainty for luck in (0.02, 0.3))
    assert narrow < 1.2 < 1.4 < wide


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
    for each in (*found.keys.values(), *found.groups.values()):
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


@pytest.mark.parametrize("text", ['{"version": 4}', '{"known": [{"key": {}, "seen": []}]}', '{"known": 1}', "[]", "x"])
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
    "wrong",
    [{"gpu_type": 0}, {"wider": 1}, {"noise": math.nan}, {"largest_factor": 1}, {"window": 0}, {"keys": 0}],
    ids=str,
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
def known_for(one: Job, gpu_type: str, error: float, jobs: int = 10, luck: float = 0.0) -> Learned:
    """What is known after so many jobs like this one on data-parallel plans."""
    key = key_of(one, gpu_type, ParallelPlan(data=8, zero_stage=1))
    shown = [error - luck, error + luck] * (jobs // 2)
    return Learned(seen(*shown, key=key, namespace=anonymous(one.namespace)))


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
    assert model_name(shape) == model_name(replace(shape))
    assert model_name(shape) != model_name(replace(shape, layers=shape.layers + 1))
    assert model_name(job().model) == "gpt2"


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

    def told(asked: Job) -> list[tuple[str, str]]:
        return [(each.gpu_type, each.plan) for each in Corrections(known).of(asked)]

    assert told(one) == [("", ""), (A100, ""), (A100, "megatron-core/BF16/Data/zero1")]
    assert told(other) == told(job(model="gpt2", software="torchtitan")) == [("", ""), (A100, "")]
    assert Corrections(Learned()).of(one) == ()


def test_gangs_that_lie_otherwise_have_corrections_of_their_own() -> None:
    one, plan = job(gpus=(16, 16)), ParallelPlan(data=16, zero_stage=1)
    state = State()
    for lies, error in ((Locality.LINKED, 0.0), (Locality.SCATTERED, 0.4)):
        key = key_of(one, A100, plan, lies)
        state = seen(*[error] * 12, key=key, state=replace(state, watches=()), namespace=anonymous(one.namespace))
    told = replace(one, corrections=Corrections(Learned(state)).of(one))
    said = Prediction(1.0, 1000.0, 1 << 30, 100.0, uncertainty=1.3)
    wide = Option(16, 2, 8, plan, said)
    near, far = (correction.corrected_option(each, A100, told).prediction for each in (replace(wide, linked=16), wide))
    assert near.correction < 1.1 < 1.3 < far.correction
    moved = correction.corrected_option(replace(wide, prediction=near), A100, told).prediction
    assert moved.correction == far.correction
    assert moved.step_seconds == pytest.approx(far.step_seconds)


@pytest.mark.parametrize(
    ("gpus", "nodes", "linked", "lies"),
    [(8, 1, 0, Locality.LINKED), (16, 2, 0, Locality.SCATTERED), (32, 8, 32, Locality.LINKED),
     (32, 8, 16, Locality.PARTS), (32, 8, 4, Locality.SCATTERED)],
)  # fmt: skip
def test_how_a_gang_lies(gpus: int, nodes: int, linked: int, lies: Locality) -> None:
    assert locality(gpus, nodes, linked) is lies


def test_what_was_learned_before_localities_were_told_apart_is_read_and_counts() -> None:
    before = b'{"version":2,"count":2,"known":[{"key":{"model":"llama3-8b","gpu_type":"A100-SXM4-80GB","plan":"' + (
        HYBRID.encode() + b'"},"seen":[["a",1,0.3],["b",2,0.3]],"namespace":""}]}'
    )
    state = msgspec.json.decode(before, type=State)
    assert state.known[0].key.locality is Locality.UNKNOWN
    assert factor(state, replace(LLAMA, locality=Locality.LINKED)) > 1.1
    assert learn(state, LLAMA, "c", 0.3).version == VERSION


@given(st.floats(1.001, 3), st.floats(1.001, 3), st.floats(0, 1))
def test_an_interval_narrows_at_once_and_widens_as_far_as_that_was_seen(
    said: float, by: float, measured: float
) -> None:
    one = job()
    told = replace(one, corrections=(Correction(A100, "", 1.0, by, "", measured),))
    option = Option(8, 1, 8, ParallelPlan(data=8), Prediction(1.0, 1.0, 1, 1.0, uncertainty=said))
    found = correction.corrected_option(option, A100, told).prediction.uncertainty
    assert min(said, by) <= found * (1 + 1e-9)
    assert found <= max(said, by) * (1 + 1e-9)
    if by <= said or measured == 1:
        assert found == pytest.approx(by)
    elif measured == 0:
        assert found == pytest.approx(said)


def test_small_news_is_nothing_to_decide_anew_for() -> None:
    one = job()
    assert Corrections(known_for(one, A100, 0.1)).of(one) == Corrections(known_for(one, A100, 0.100001)).of(one)
