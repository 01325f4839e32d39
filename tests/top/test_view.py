"""Lines of `trimtab top`, of a moment: the console's values, laid out for narrow and wide terminals."""

from __future__ import annotations

import pytest
from tests.builders import A100, H100
from tests.web.town import OPEN, SECRET, SECRET_JOB, Town

from trimtab.top import view
from trimtab.ui import line, words
from trimtab.ui.terminal import Text
from trimtab.web.columns import FREE


def plain(lines: list[Text]) -> list[str]:
    return [each.plain for each in lines]


def test_domains_are_those_of_the_racks_with_what_is_held() -> None:
    found = view.domains(Town(32).moment().columns)
    assert [(each.gpu_type, each.label) for each in found] == [
        (A100, "r0 64/64"), (A100, "r2 0/64"), (H100, "r1 64/64"), (H100, "r3 0/64"),
    ]  # fmt: skip
    assert [len(each.nodes) for each in found] == [8] * 4


def test_two_gpus_share_a_character_and_those_of_the_chosen_job_stand_out() -> None:
    moment = Town().moment()
    row = moment.columns["job.key"].index(f"{OPEN}/run-0")
    without = plain(view.gpu_lines(moment, 80, -1, colours=False))
    assert without[0] == f"{A100}  64 held"
    assert without[1].split() == ["r0", "64/64", *["████"] * 8]
    assert without[3].split() == ["r1", "0/64", *["····"] * 8]
    assert plain(view.gpu_lines(moment, 80, row, colours=False))[1].split()[2:] == [*["####"] * 2, *["████"] * 6]
    coloured = view.gpu_lines(moment, 80, row, colours=True)[1]
    assert {str(span.style) for span in coloured.spans} >= {f"{view.CHOSEN_COLOUR} on {view.CHOSEN_COLOUR}"}


def test_a_broken_gpu_and_one_that_is_half_of_a_pair_are_seen() -> None:
    node = view.GpuNode(((FREE, False), (3, False), (FREE, True), (FREE, False), (7, False)), kept=False)
    drawn = Text()
    view._add_node(drawn, node, -1, colours=False)
    assert drawn.plain == "▄!▀"
    view._add_node(drawn, node, -1, colours=True)
    assert drawn.plain == "▄!▀▀▀▀"
    assert any(view.BROKEN_COLOUR in str(span.style) for span in drawn.spans)


@pytest.mark.parametrize("width", [24, 40, 80, 120, 300])
@pytest.mark.parametrize("nodes", [0, 16, 200])
def test_every_gpu_is_drawn_once_and_no_line_is_too_wide(nodes: int, width: int) -> None:
    moment = Town(nodes).moment()
    lines = view.gpu_lines(moment, width, -1, colours=True)
    assert sum(each.plain.count("▀") for each in lines) == nodes * 4
    assert all(each.cell_len <= width for each in lines if "▀" in each.plain)
    if width == 300 and nodes == 200:
        assert len(lines) < nodes // 8  # several domains side by side


def test_the_line_says_what_trimtab_queue_says() -> None:
    town = Town()
    moment = town.moment()
    waiting = view.job_lines(moment, waiting_only=True)
    for shown, row in zip(waiting, line.rows(moment.seen), strict=True):
        assert row.starts_in_seconds is not None
        assert shown.key == row.job
        assert shown.cells[0] == str(row.place)
        assert shown.cells[-1] == f"starts in ~{words.minutes(row.starts_in_seconds)}"
    assert waiting[0].why == f"behind {SECRET}/{SECRET_JOB}, and others of {SECRET}"
    every = view.job_lines(moment, waiting_only=False)
    assert [each.key for each in every][:2] == [each.key for each in waiting]
    assert {each.key for each in every} == set(moment.jobs)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_jobs_take_a_line_each_and_lose_columns_before_names(width: int) -> None:
    jobs = view.job_lines(Town().moment(), waiting_only=False)
    head, lines = view.listed(jobs, width)
    assert len(lines) == len(jobs)
    assert all(each.cell_len <= width for each in (head, *lines))
    if width >= 60:
        assert all(job.key in each.plain for job, each in zip(jobs, lines, strict=True))
    assert ("WHY" in head.plain) == (width >= 120)


def test_what_is_explained_is_folded_and_loses_its_controls() -> None:
    rows = [("Because", "word " * 40), ("", "second"), ("What helps", "\x1b[2Jred [bold]text[/]")]
    lines = plain(view.why_lines(rows, 60))
    assert all(len(each) <= 60 for each in lines)
    assert lines[0].startswith("Because     word")
    assert lines[-2].strip() == "second"
    assert lines[-1] == "What helps  �[2Jred [bold]text[/]"


def test_the_heading_has_the_overviews_numbers_or_the_trouble() -> None:
    moment = Town().moment()
    assert view.heading(moment, "").plain == "64 of 128 GPUs held  ·  4 run  ·  2 wait  ·  best_fit decides"
    assert view.heading(moment, "pods: no answer").plain == "may be out of date: pods: no answer"
