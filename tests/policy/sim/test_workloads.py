"""Reading traces: every published schema, and what is said about files that cannot be used."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab_lab.workloads import SCHEMAS, FileError, TraceReport, check_fits, clusters, read_trace
from trimtab_lab.workloads.trace import Submission, Trace, code, constant, trace

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[3] / "../shared"
HEADER = "job_id,submit_time_s,n_gpus,duration_s,gpu_type,user_vc,status"
GOOD = "a,0,1,60,,vc,Pass"


def jobs(name: str) -> list[Submission]:
    return list(read_trace(DATA / name)[0])


def brief(name: str) -> list[tuple[str, float, int, float]]:
    return [(job.name, job.submitted, job.gpus, job.seconds) for job in jobs(name)]


def written(folder: Path, *lines: str, name: str = "trace.csv") -> Path:
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return file


# --- schemas ---------------------------------------------------------------------------------------------------------
def test_our_own_schema_keeps_its_clock_and_sorts_by_it() -> None:
    assert brief("normalised.csv") == [
        ("first", 10, 1, 3600), ("shared", 20, 1, 30), ("pascal", 20, 8, 86400.5), ("late", 90, 4, 600),
    ]  # fmt: skip
    first, shared, pascal, late = jobs("normalised.csv")
    assert (first.gpu_types, first.queue, first.status, first.application) == (("T4",), "vc1", "Pass", "eval")
    assert (first.deadline, math.isnan(late.deadline)) == (7210, True)
    assert (shared.gpu_types, pascal.gpu_types, late.gpu_types) == (("V100-SXM2-16GB", "V100-SXM2-32GB"), ("P100",), ())


def test_fractions_of_gpus_are_rounded_up_and_counted() -> None:
    assert read_trace(DATA / "normalised.csv")[1].changed == {"fractional GPUs rounded up": 1}


def test_philly_jobs_ran_for_all_their_attempts_on_the_gpus_of_the_largest() -> None:
    assert brief("philly.json") == [("app_2", 0, 1, 40), ("app_1", 1800, 8, 60 + 7200)]
    assert [(job.queue, job.status) for job in jobs("philly.json")] == [("bb22", "Killed"), ("aa11", "Pass")]


def test_philly_jobs_that_never_ran_or_never_ended_or_had_no_gpu_are_left_out() -> None:
    assert sorted(read_trace(DATA / "philly.json")[1].left_out.values()) == [1, 1, 1]


def test_philly_as_the_authors_of_pollux_prepared_it() -> None:
    assert brief("philly_pollux.csv") == [("philly-1", 0, 8, 7200), ("philly-0", 300, 1, 100)]


def test_acme_run_times_do_not_count_the_queue_and_time_zones_are_heeded() -> None:
    assert brief("acme_kalos.csv") == [("dlc4", 0, 1, 1), ("dlc1", 1800, 64, 3600)]
    assert [job.application for job in jobs("acme_kalos.csv")] == ["SFT", "Pretrain"]
    assert sum(read_trace(DATA / "acme_kalos.csv")[1].left_out.values()) == 2


def test_helios_queues_are_virtual_clusters() -> None:
    assert brief("helios.csv") == [("101", 0, 1, 86400), ("102", 26, 16, 240)]
    assert [job.queue for job in jobs("helios.csv")] == ["vcA", "vcB"]


def test_openb_pods_ran_from_scheduling_to_deletion() -> None:
    assert brief("openb.csv") == [("pod-0", 0, 1, 4990), ("pod-1", 100, 1, 150), ("pod-3", 200, 8, 60)]
    assert [job.gpu_types for job in jobs("openb.csv")][2] == ("G2",)
    assert read_trace(DATA / "openb.csv")[1].left_out == {"asks for no GPU": 1, "never scheduled": 1}


def test_pai_jobs_are_the_sum_of_their_gpu_tasks() -> None:
    assert brief("pai_job_table.csv") == [("job-a", 0, 2, 2900), ("job-c", 1000, 7, 600)]
    assert [job.gpu_types for job in jobs("pai_job_table.csv")] == [("P100", "T4"), ("MISC",)]


def test_the_merged_pai_file_counts_gpus_by_instance() -> None:
    assert brief("pai_merged.csv") == [("2", 0, 1, 3600), ("1", 50, 1, 40)]


def test_sia_workloads_leave_run_times_to_the_profiles() -> None:
    first, second, third = jobs("sia.csv")
    assert (first.submitted, first.application, first.gpus, first.batch_size) == (107, "cifar10", 6, 2048)
    assert [job.category for job in (first, second, third)] == ["adaptive", "rigid", ""]
    assert all(math.isnan(job.seconds) for job in (first, second, third))


def test_swf_processors_are_gpus_and_estimates_those_of_the_users() -> None:
    assert brief("cluster.swf") == [("1", 0, 8, 3600), ("2", 60, 4, 100), ("5", 99, 1, 1)]
    first, second, _ = jobs("cluster.swf")
    assert (first.estimate, first.queue, first.status) == (7200, "queue-2", "completed")
    assert math.isnan(second.estimate)


def test_a_schema_is_recognised_or_named() -> None:
    found = {
        path.name: read_trace(path)[1].schema
        for path in DATA.iterdir()
        if "node" not in path.name and "task" not in path.name
    }
    assert set(found.values()) == set(SCHEMAS)
    assert read_trace(DATA / "helios.csv", "helios")[1].schema == "helios"
    with pytest.raises(ValueError, match=r"unknown schema 'x', known are normalised \(our own.*; swf \("):
        read_trace(DATA / "helios.csv", "x")
    with pytest.raises(FileError, match=r"helios.csv:1: header: lacks submit_time_s, n_gpus, duration_s"):
        read_trace(DATA / "helios.csv", "normalised")


def test_a_packed_file_reads_as_the_plain_one(tmp_path: Path) -> None:
    packed = tmp_path / "normalised.csv.gz"
    packed.write_bytes(gzip.compress((DATA / "normalised.csv").read_bytes()))
    assert [job[:4] for job in read_trace(packed)[0]] == [job[:4] for job in jobs("normalised.csv")]


# --- what cannot be used ---------------------------------------------------------------------------------------------
BAD_ROWS = {
    "b,5,1": "3: duration_s: '' is missing, with all after it (3 of 7 fields)",
    "b,5,1,60,,vc,Pass,more": "3: status: 'Pass' is not the last field of 7",
    "b,-5,1,60,,vc,": "3: submit_time_s: '-5' is negative",
    "b,5,1,-60,,vc,": "3: duration_s: '-60' is negative",
    "b,5,1,nan,,vc,": "3: duration_s: 'nan' is not finite",
    "b,inf,1,60,,vc,": "3: submit_time_s: 'inf' is not finite",
    "b,5,1,,,vc,": "3: duration_s: '' is missing",
    "b,soon,1,60,,vc,": "3: submit_time_s: 'soon' is no number",
    "b,5,0,60,,vc,": "3: n_gpus: '0' asks for 0 GPUs",
    "b,5,-1,60,,vc,": "3: n_gpus: '-1' is negative",
    "b,5,1e9,60,,vc,": "3: n_gpus: '1e9' is more than a million GPUs",
    "b,5,1,60,H1000,vc,": "3: gpu_type: 'H1000' is no known GPU type",
    "a,5,1,60,,vc,": "3: job_id: 'a' is there twice",
    ",5,1,60,,vc,": "3: job_id: '' is missing",
}


@pytest.mark.parametrize("row", BAD_ROWS)
def test_a_bad_row_is_named_with_file_row_and_field(tmp_path: Path, row: str) -> None:
    file = written(tmp_path, HEADER, GOOD, row, "c,9,2,5,,,")
    with pytest.raises(FileError) as error:
        read_trace(file)
    assert str(error.value).startswith(f"{file}:{BAD_ROWS[row]}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("row", BAD_ROWS)
def test_a_bad_row_can_be_skipped_and_is_counted_once(tmp_path: Path, row: str) -> None:
    found, report = read_trace(written(tmp_path, HEADER, GOOD, row, "c,9,2,5,,,"), skip_bad=True)
    assert found.name.tolist() == ["a", "c"]
    assert (report.rows, report.jobs, sum(report.skipped.values())) == (3, 2, 1)


def test_skipped_rows_are_counted_by_reason(tmp_path: Path) -> None:
    rows = ["b,-1,1,60,,,", "c,-2,1,60,,,", "d,1,0,60,,,", "e,-3,0,-5,,,"]
    report = read_trace(written(tmp_path, HEADER, GOOD, *rows), skip_bad=True)[1]
    assert report.skipped == {"submit_time_s is negative": 3, "n_gpus asks for 0 GPUs": 1}
    assert report.lines()[1:] == ["skipped: 3 submit_time_s is negative", "skipped: 1 n_gpus asks for 0 GPUs"]


def test_blank_lines_are_no_rows_but_lines(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"trace.csv:4: n_gpus"):
        read_trace(written(tmp_path, HEADER, "", GOOD, "b,5,0,60,,,"))


def test_a_name_that_would_make_all_others_as_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FileError, match=r"trace.csv:2: job_id: has 300 characters in one of 2 rows, at most 256 may be"
    ):
        read_trace(written(tmp_path, HEADER, GOOD, f"{'x' * 300},5,1,60,,,"), skip_bad=True)


BAD_FILES = {
    "empty.csv": (b"", "is empty"),
    "head.csv": (HEADER.encode(), "holds no job"),
    "other.csv": (b"colour,size\nred,3\n", "'colour,size' is of no known schema, known are normalised"),
    "plain.csv.gz": (b"job_id\n", "is no intact gzip"),
    "cut.csv.gz": (gzip.compress(HEADER.encode() * 100)[:-20], "fetch it again"),
    "packed.csv": (gzip.compress(HEADER.encode()), "is no UTF-8 text"),
    "cut.json": (b'[{"status": "Pass", "vc"', "is no intact JSON"),
    "nul.csv": (f"{HEADER}\n".encode() + b"a,0,1,\x00" + b"x" * 200_000 + b",,,\n", "is no CSV"),
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_file_that_is_no_trace_is_refused_in_one_line(tmp_path: Path, name: str, skip_bad: bool) -> None:
    content, problem = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError) as error:
        read_trace(tmp_path / name, skip_bad=skip_bad)
    assert str(error.value).startswith(f"{tmp_path / name}:1: ")
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none.csv:1: file: cannot be read: No such file"):
        read_trace(tmp_path / "none.csv")


def test_a_bad_entry_of_the_philly_log_is_named_by_its_number(tmp_path: Path) -> None:
    entry = '{"status": "Pass", "vc": "v", "jobid": "j", "attempts": [], "submitted_time": "2017-10-07 01:00:00"}'
    file = written(tmp_path, f"[{entry}, {entry.replace('[]', '5')}]", name="log.json")
    with pytest.raises(FileError, match=r"log.json:2: attempts: Expected `array`, got `int`"):
        read_trace(file)


def test_times_that_are_none_are_refused(tmp_path: Path) -> None:
    text = (
        (DATA / "helios.csv")
        .read_text()
        .replace("2020-06-09 18:41:27,2020-06-09 18:41:27", "yesterday,2020-06-09 18:41:27")
    )
    with pytest.raises(FileError, match=r"trace.csv:3: submit_time: 'yesterday' is no time"):
        read_trace(written(tmp_path, text))
    text = (DATA / "helios.csv").read_text().replace("2020-06-09 18:45:27,240", "2019-06-09 18:45:27,240")
    with pytest.raises(FileError, match=r"trace.csv:3: end_time: '2019-06-09 18:45:27' is before start_time"):
        read_trace(written(tmp_path, text))


def test_a_job_with_an_unreadable_task_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "pai_job_table.csv").write_bytes((DATA / "pai_job_table.csv").read_bytes())
    tasks = (DATA / "pai_task_table.csv").read_text().replace("10.0,Failed", "many,Failed")
    written(tmp_path, tasks.strip(), name="pai_task_table.csv")
    with pytest.raises(FileError, match=r"pai_task_table.csv:5: inst_num: 'many' is no number"):
        read_trace(tmp_path / "pai_job_table.csv")
    found, report = read_trace(tmp_path / "pai_job_table.csv", skip_bad=True)
    assert found.name.tolist() == ["job-a"]
    assert report.left_out["has a task that could not be read"] == 1


HEADS = [path.read_text().splitlines()[0] + "\n" for path in sorted(DATA.glob("*.csv"))]
CELLS = st.sampled_from(
    ["0", "1", "-1", "2.5", "nan", "", "T4", "x", "2017-10-07 01:00:00", "\x00", '"', "1e400", "\n"]
)


@given(st.sampled_from([b"", *map(str.encode, HEADS)]), st.binary(max_size=50), st.lists(st.lists(CELLS, max_size=18)))
def test_any_bytes_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, head: bytes, tail: bytes, rows: list[list[str]]
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.csv"
    for body in (tail, "\n".join(map(",".join, rows)).encode(), "\n".join(map(" ".join, rows)).encode()):
        file.write_bytes(head + body)
        told = outcome(file)
        assert isinstance(told, TraceReport) or told.startswith(f"{file}:")


def outcome(file: Path) -> TraceReport | str:
    """What reading says: of what it read, if every row is accounted for, or why it did not."""
    try:
        found, report = read_trace(file, skip_bad=True)
    except FileError as error:
        return str(error)
    assert len(found) == report.jobs == report.rows - sum(report.skipped.values()) - sum(report.left_out.values())
    return report


# --- which jobs a cluster can run ------------------------------------------------------------------------------------
def asking(gpus: list[int], types: list[tuple[str, ...]]) -> Trace:
    names = [f"j{number}" for number in range(len(gpus))]
    return trace(names, range(len(gpus)), gpus, [60.0] * len(gpus), gpu_types=code(types), source="t.csv")


def test_a_job_fits_where_one_type_has_enough() -> None:
    cluster = clusters.preset("sia-heterogeneous")
    wanted = asking([24, 24, 17, 25, 1], [(), ("T4",), ("A100-SXM4-40GB",), (), ("P100",)])
    fitting, report = check_fits(wanted, cluster, skip_bad=True)
    assert fitting.name.tolist() == ["j0", "j1"]
    assert sorted(report.skipped.values()) == [1, 2]
    with pytest.raises(
        FileError, match=r"t.csv:3: gpus: job j2 asks for 17 GPUs of A100-SXM4-40GB, the cluster has 24"
    ):
        check_fits(wanted, cluster)


def test_what_fits_stays_as_it_is() -> None:
    found, report = check_fits(read_trace(DATA / "helios.csv")[0], clusters.cluster("T4=16x4"))
    assert (len(found), report.skipped) == (2, {})


# --- traces ----------------------------------------------------------------------------------------------------------
def test_a_part_of_a_trace_keeps_all_its_columns() -> None:
    whole = read_trace(DATA / "normalised.csv")[0]
    part = whole.between(20, 90)
    assert [str(job) for job in part] == [str(job) for job in whole][1:3]
    assert part.name.tolist() == ["shared", "pascal"]
    assert part.row.tolist() == [4, 5]
    assert part.source == whole.source


def test_deadlines_move_with_their_jobs() -> None:
    moved = read_trace(DATA / "normalised.csv")[0].from_zero()
    assert (moved.submitted[0], moved.deadline[0]) == (0, 7200)
    with pytest.raises(ValueError, match="4 ascending ones"):
        moved.resubmitted([3, 2, 1, 0])


@given(st.lists(st.sampled_from(["a", "b", ""]), max_size=20))
def test_columns_of_few_values_are_what_they_were(values: list[str]) -> None:
    column = code(values)
    assert list(column) == values
    assert [column[row] for row in range(len(column))] == values
    assert list(column.map(len)) == [len(value) for value in values]
    assert list(constant("x", len(values))) == ["x"] * len(values)


# --- the real files --------------------------------------------------------------------------------------------------
@pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="no published traces beside the repository")
@pytest.mark.parametrize(("name", "count", "gpu_hours"), [("philly", 65_028, 782_400), ("acme_kalos", 229, 353_250)])
def test_published_traces_hold_what_their_readme_says(name: str, count: int, gpu_hours: float) -> None:
    found, report = read_trace(SHARED / f"traces/{name}.csv.gz")
    assert (len(found), report.rows, report.skipped) == (count, count, {})
    assert float(np.sum(found.gpu_seconds)) / 3600 == pytest.approx(gpu_hours, rel=1e-4)
