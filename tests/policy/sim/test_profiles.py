"""Profiles of the Sia artifact: what they say of speed and efficiency, and how damaged ones are refused."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.sim import toy_profiles
from tests.policy.sim.toy_profiles import FACTS, seconds

from trimtab_lab.goodput.profiles import (
    APPLICATIONS,
    GPUS,
    Application,
    ProfiledGpu,
    ProfileError,
    Profiles,
    Split,
    repacked,
)
from trimtab_lab.workloads.textfile import FileError
from trimtab_policy import catalog

SIA = Path(__file__).resolve().parents[3] / "../shared/sia/profiles"
needs_sia = pytest.mark.skipif(not SIA.is_dir(), reason="the profiles of the Sia artifact are not at ../shared/sia")


@pytest.fixture
def toy(tmp_path: Path) -> Application:
    return toy_profiles.profiles(tmp_path).application("toy")


def test_every_profiled_gpu_is_in_the_catalogue() -> None:
    assert all(catalog.gpu(gpu.gpu_type).name == gpu.gpu_type for gpu in GPUS)


@pytest.mark.parametrize("split", [(1,), (4,), (1, 2), (4, 4)])
@pytest.mark.parametrize("local", [8, 16, 32])
def test_a_profiled_row_is_told_as_it_stands(toy: Application, split: Split, local: int) -> None:
    assert toy.on("T4").time(split, local) == pytest.approx(seconds(split, local))


def test_between_profiled_samples_per_gpu_times_are_linear(toy: Application) -> None:
    assert toy.on("RTX-2080-Ti").time((8, 8), 11) == pytest.approx(seconds((8, 8), 11, speed=2))


def test_a_rotated_split_is_the_same_one(toy: Application) -> None:
    assert toy.on("T4").time((2, 1), 16) == toy.on("T4").time((1, 2), 16)


def test_a_split_that_was_not_profiled_is_interpolated_by_nodes_and_gpus(toy: Application) -> None:
    assert toy.on("T4").time((4, 4, 4), 32) == pytest.approx(seconds((4, 4, 4), 32))
    step, sync = toy.on("T4").time((1, 3), 16)
    assert seconds((1, 2), 16)[0] < step < seconds((4, 4), 16)[0]
    assert 0 < sync < step


@pytest.mark.parametrize(("split", "local"), [((1,), 33), ((1,), 7), ((7, 7, 7, 7), 16), ((1, 1, 4), 64)])
def test_what_was_not_profiled_is_refused(toy: Application, split: Split, local: int) -> None:
    assert not toy.on("T4").covers(split, local)
    with pytest.raises(ProfileError, match="toy on T4"):
        toy.on("T4").time(split, local)


def test_accumulated_micro_batches_do_not_synchronise(toy: Application) -> None:
    time = toy.on("T4").time((2,), 16)
    assert time.total(0) == pytest.approx(0.262)
    assert time.total(3) == pytest.approx(0.262 + 3 * 0.242)


def test_the_largest_local_batch_is_that_of_the_split_or_of_any_wider_one(toy: Application) -> None:
    assert toy.on("T4").largest_local((1, 2)) == 32
    assert toy.on("T4").largest_local((4, 4, 4)) == 32
    with pytest.raises(ProfileError, match="40 GPUs on 10 nodes"):
        toy.on("T4").largest_local((4,) * 10)


@given(split=st.lists(st.integers(1, 8), min_size=1, max_size=20), most=st.integers(1, 16))
def test_repacking_keeps_the_gpus_on_no_more_nodes_than_profiled(split: list[int], most: int) -> None:
    packed = repacked(tuple(split), most)
    assert sum(packed) == sum(split)
    assert len(packed) <= max(most, 1)
    assert packed == tuple(split) or max(packed) == math.ceil(sum(split) / most)


def test_gain_is_one_at_the_initial_batch_and_falls_behind_larger_ones(toy: Application) -> None:
    assert toy.gains(16) == [1.0, 1.0]
    assert toy.gains(64) == pytest.approx([4 / (3 / 4 + 1), 8 / (7 / 4 + 1)])
    with pytest.raises(ProfileError, match="global batch 129"):
        toy.gains(129)


def test_gradients_are_linear_between_validated_batches(tmp_path: Path) -> None:
    toy_profiles.write(tmp_path)
    file = tmp_path / "toy" / "validation-32.csv"
    file.write_text(file.read_text().replace("10.0,1.0,3.0", "10.0,2.0,5.0"))
    app = Profiles(tmp_path, FACTS).application("toy")
    assert app.gradients(24)[0] == pytest.approx((1.5, 4.0))


def test_an_epoch_ends_when_the_first_of_the_validated_batches_would_end_it(toy: Application) -> None:
    assert toy.milestones == [0.0, 1000.0, 2016.0]
    assert toy.work == 2016.0
    assert toy.iterations(48) == pytest.approx([500, (500 + 250) / 2])


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("placements-aws.csv", "8,0.186,0,1\n", "8,0.186\n", r"placements-aws.csv:2: file: 2 cells"),
        ("placements-aws.csv", "8,0.186,0,1\n", "8,nan,0,1\n", r"placements-aws.csv:2: step_time: .*nan"),
        ("placements-aws.csv", "8,0.186,0,1\n", "-8,0.186,0,1\n", r"placements-aws.csv:2: local_bsz: .*-8"),
        ("placements-aws.csv", "8,0.186,0,1\n", "8,x,0,1\n", r"placements-aws.csv:2: step_time: must be a number"),
        ("placements-aws.csv", "8,0.186,0,1\n", "8,0.186,0.5,1\n", r"placements-aws.csv:2: sync_time: must be below"),
        ("placements-aws.csv", "8,0.186,0,1\n", "8,0.186,0,21\n", r"placements-aws.csv:2: placement: "),
        ("placements-aws.csv", "8,0.186,0,1\n", "16,0.186,0,1\n", r"placements-aws.csv:3: local_bsz: is there twice"),
        ("placements-aws.csv", "sync_time", "sink_time", r"placements-aws.csv:1: sync_time: no such column"),
        ("scalability-aws.csv", "1,1,8,", "0,1,8,", r"scalability-aws.csv:2: num_nodes: .*above 0, got 0"),
        ("validation-16.csv", "1000.0,500", "inf,500", r"validation-16.csv:2: progress: .*inf"),
        ("validation-16.csv", "2016.0,1000,20.0,1.0,7.0\n", "", r"validation-16.csv:2: progress: ends after 1 epochs"),
    ],
)
def test_damaged_files_are_refused_with_file_and_line(
    tmp_path: Path, file: str, old: str, new: str, complaint: str
) -> None:
    path = toy_profiles.write(tmp_path) / "toy" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(FileError, match=complaint):
        Profiles(tmp_path, FACTS).application("toy").on("T4")


@pytest.mark.parametrize("lines", [0, 1])
def test_empty_files_are_refused(tmp_path: Path, lines: int) -> None:
    path = toy_profiles.write(tmp_path) / "toy" / "placements-rtx.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    with pytest.raises(FileError, match=r"placements-rtx.csv:1: "):
        Profiles(tmp_path, FACTS).application("toy").on("RTX-2080-Ti")


def test_missing_profiles_are_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no such directory"):
        Profiles(tmp_path / "nowhere")
    profiles = toy_profiles.profiles(tmp_path)
    with pytest.raises(ProfileError, match="application 'gpt_pmp' cannot be simulated; known are toy"):
        profiles.application("gpt_pmp")
    with pytest.raises(ProfileError, match="no profile of GPU type H100-SXM5-80GB"):
        profiles.application("toy").on("H100-SXM5-80GB")
    with pytest.raises(FileError, match=r"placements-quad.csv:1: file: cannot be read"):
        profiles.application("toy").on("Quadro-RTX-6000")
    with pytest.raises(ProfileError, match=r"no validation-<batch>\.csv"):
        Profiles(tmp_path, {"other": FACTS["toy"]}).application("other")


def test_progress_that_stands_still_is_refused(tmp_path: Path) -> None:
    path = toy_profiles.write(tmp_path) / "toy" / "validation-16.csv"
    path.write_text(path.read_text().replace("2016.0", "999.0"))
    with pytest.raises(ProfileError, match="does not rise from epoch to epoch"):
        Profiles(tmp_path, FACTS).application("toy")


@needs_sia
@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.suffix)
def test_every_row_of_the_artifacts_placements_is_reproduced(gpu: ProfiledGpu) -> None:
    profiles = Profiles(SIA)
    for name in APPLICATIONS:
        measured = profiles.application(name).on(gpu.gpu_type)
        with (SIA / name / f"placements-{gpu.suffix}.csv").open() as lines:
            for row in csv.DictReader(lines):
                split = tuple(map(int, row["placement"]))
                expected = float(row["step_time"]), float(row["sync_time"])
                assert measured.time(split[1:] + split[:1], int(float(row["local_bsz"]))) == pytest.approx(expected)


@needs_sia
def test_limits_of_the_artifact_s_applications() -> None:
    profiles = Profiles(SIA)
    batches = {name: (app.init_batch, app.max_batch) for name in APPLICATIONS for app in [profiles.application(name)]}
    assert batches == {
        "cifar10": (128, 4096),
        "bert": (12, 384),
        "deepspeech2": (20, 640),
        "yolov3": (8, 512),
        "imagenet": (200, 12800),
        "ncf": (256, 32768),
    }
    speech = profiles.application("deepspeech2").on("RTX-2080-Ti")
    assert speech.max_local == 57, "the artifact's exception"
    assert speech.largest_local((1,)) > 57, "which execution does not know"
