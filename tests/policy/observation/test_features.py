"""Features are bounded whatever comes in, mean what the table says, and are the ones that weights were trained on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from msgspec.structs import replace
from tests.builders import H100, NOW, job, node, snapshot
from tests.strategies import snapshots

from trimtab.commands.dumps import as_features
from trimtab_local.checkout import checkout
from trimtab_policy.observation import features
from trimtab_policy.observation.features import FEATURES, JOB_FEATURES, NODE_FEATURES, READING_FEATURES, ObservedFeature
from trimtab_policy.types import Readings, Snapshot

ANY = nps.arrays(np.float64, st.integers(0, 20), elements=st.floats(allow_nan=True, allow_infinity=True))
each_feature = pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)


@each_feature
@given(raw=ANY)
@settings(max_examples=30)
def test_a_feature_is_a_single_within_0_and_1_whatever_comes_in(feature: ObservedFeature, raw: np.ndarray) -> None:
    found = feature.of(raw)
    assert found.dtype == np.float32
    assert found.shape == raw.shape
    assert ((found >= 0) & (found <= 1)).all()
    assert (found[np.isnan(raw)] == np.float32(feature.unknown)).all()


@each_feature
def test_the_ends_of_its_range_are_0_and_1_and_what_lies_beyond_counts_as_they_do(feature: ObservedFeature) -> None:
    low, high = feature.of([feature.low, feature.high])
    assert low == pytest.approx(0, abs=1e-6)
    assert high == pytest.approx(1, abs=1e-6)
    assert feature.of([-math.inf, math.inf, feature.low - 1e9, 1e300]).tolist() == [low, high, low, high]


@each_feature
@settings(max_examples=30)
@given(parts=st.lists(st.floats(0, 1), min_size=2, max_size=2, unique=True))
def test_more_is_more_and_there_is_a_way_back(feature: ObservedFeature, parts: list[float]) -> None:
    less, more = sorted(feature.low + part * (min(feature.high, 1e7) - feature.low) for part in parts)
    scaled = feature.scale(np.array([less, more]))
    assert scaled[0] <= scaled[1]
    assert feature.scale.back(scaled) == pytest.approx([less, more], rel=1e-6, abs=1e-3)
    inside = np.array([0.1, 0.5, 0.9], dtype=np.float32)
    assert feature.of(feature.raw(inside)) == pytest.approx(inside, abs=1e-6)


def test_known_figures_have_the_features_that_the_table_says() -> None:
    for name, raw, feature in (
        ("temperature", 75.0, 0.75),
        ("utilization", 0.4, 0.4),
        ("waiting", 16, 0.5),
        ("priority", 0, 0.5),
        ("priority", 1000, 0.75),
        ("priority", -1000, 0.25),
        ("least_gpus", 3, 0.2),
        ("node_gpus", 3, 0.5),
        ("memory", 31 * 2**30, 5 / 9),
        ("age", 30 * 86400, 1.0),
        ("cpu_cores_per_gpu", 15_000, 0.5),
    ):
        assert FEATURES[name].of(raw) == pytest.approx(feature, abs=1e-6), name


@given(nps.arrays(np.int64, st.integers(1, 9), elements=st.integers(0, 1 << 20)))
def test_scales_compute_to_the_last_bit_what_weights_were_trained_on(counts: np.ndarray) -> None:
    seconds = counts * 1.37 - 5
    assert (features.DURATION(seconds) == np.log1p(np.maximum(0.0, seconds)) / float(np.log1p(30 * 86400.0))).all()
    assert (features.GPUS(counts) == np.log2(1.0 + counts) / 10).all()
    assert (features.POOL_GPUS(counts) == np.log2(1.0 + counts) / 12).all()
    assert (features.NODE_GPUS(counts) == np.log2(1.0 + counts) / 4).all()
    assert (features.JOBS(counts) == np.log1p(counts) / 10).all()
    assert (features.WAITING(counts) == counts / (counts + 16)).all()
    feature = features.DURATION(seconds).astype(np.float32)
    expected = np.expm1(feature * np.float64(np.log1p(30 * 86400.0)))
    assert (features.seconds(feature) == expected).all()


# --- of a snapshot ---------------------------------------------------------------------------------------------------
def test_what_agents_read_stands_in_the_rows_of_the_nodes() -> None:
    told = Readings(utilization=0.9, temperature=60.0, power=0.5, arrived=NOW)
    nodes = [node("a", readings=told, speed=0.6, foreign_gpus=2, free=4), node("b", H100)]
    one, other = features.named((*READING_FEATURES, *NODE_FEATURES), features.node_features(snapshot(nodes)))
    assert one["utilization"] == pytest.approx(0.9)
    assert one["temperature"] == pytest.approx(0.6)
    assert one["reading_age"] == 0
    assert one["memory_used"] == 0.5  # not known
    assert one["speed"] == pytest.approx(0.6)
    assert (one["foreign_share"], one["free_share"]) == (0.25, 0.5)
    assert (other["utilization"], other["reading_age"], other["speed"]) == (0.5, 1.0, 1.0)
    assert other["peak_flops"] > one["peak_flops"]


def test_what_jobs_say_of_themselves_stands_in_theirs() -> None:
    jobs = [job(priority=1000, cpu_milli_per_gpu=15_000, steps_done=250), job("large", model="llama3-70b")]
    one, other = features.named(JOB_FEATURES, features.job_features(snapshot([node("a")]), jobs))
    assert (one["priority"], one["steps_left"], one["cpu_cores_per_gpu"]) == (0.75, 0.75, 0.5)
    assert other["parameters"] > one["parameters"]
    assert one["age"] == pytest.approx(math.log1p(60) / math.log1p(30 * 86400))


@given(snapshots())
@settings(max_examples=30, deadline=None)
def test_every_snapshot_has_features(now: Snapshot) -> None:
    assert features.node_features(now).shape == (len(now.nodes), len(READING_FEATURES) + len(NODE_FEATURES))
    assert features.job_features(now, now.jobs).shape == (len(now.jobs), len(JOB_FEATURES))
    dark = replace(now, nodes=tuple(replace(each, readings=Readings(arrived=math.inf)) for each in now.nodes))
    found = features.node_features(dark)
    assert ((found >= 0) & (found <= 1)).all()


def test_the_written_table_is_the_one_that_is_computed() -> None:
    written = (checkout() / "policy" / "FEATURES.md").read_text()
    assert written.endswith(features.table()), (
        "run: python -m trimtab_policy.observation.features, and put it in policy/FEATURES.md"
    )


def test_no_two_features_share_a_name() -> None:
    assert len(FEATURES) == len({*FEATURES})
    assert len(FEATURES) == len(JOB_FEATURES) + len(READING_FEATURES) + len(NODE_FEATURES) + len(
        features.OFFER_FEATURES
    )


def test_people_are_shown_features_by_name() -> None:
    shown = as_features(snapshot([node("a")], [job("j")]))
    assert set(shown["nodes"]["a"]) == {each.name for each in (*READING_FEATURES, *NODE_FEATURES)}
    assert set(shown["jobs"]["default/j"]) == {each.name for each in JOB_FEATURES}
