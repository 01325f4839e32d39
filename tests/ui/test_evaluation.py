"""Tables of evaluations and replays, and bars while runs are made."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType
from tests.result_builders import SLOWNESS, outcome, scenario

from trimtab_lab.evaluation import compare
from trimtab_lab.evaluation.compare import ComparisonTable
from trimtab_lab.evaluation.contestant import Decider
from trimtab_lab.evaluation.scenario import ScenarioResult
from trimtab_lab.ui import evaluation, replay
from trimtab_lab.ui.replay import Fate, Story

HOUR = 3600.0


def shown(renderable: RenderableType, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(renderable)
    return out.getvalue().splitlines()


def runs(policies: Sequence[str] = tuple(SLOWNESS), windows: int = 4) -> list[ScenarioResult]:
    return [outcome(scenario(policy, window=n)) for policy in policies for n in range(windows)]


def table(outcomes: list[ScenarioResult]) -> ComparisonTable:
    [found] = compare.tables(outcomes, tuple(SLOWNESS))
    return found


def line(lines: list[str], begins: str) -> str:
    return next(each for each in lines if each.startswith(begins))


# --- evaluations -----------------------------------------------------------------------------------------------------
def test_a_table_says_what_may_be_compared_and_fits_eighty_columns() -> None:
    lines = shown(evaluation.table(table(runs())))
    assert lines[0] == "load 0.7 · 4 windows · run times known"
    assert max(map(len, lines)) <= 80
    headings = " ".join(lines[1].split() + lines[2].split())
    for heading in ("POLICY", "JCT, h", "AVG", "P50", "P99", "MAKE-", "GPU-H", "USED", "ρ", "DECIDE", "fcfs"):
        assert heading in headings


def test_figures_stand_with_three_digits_and_the_reference_has_a_ratio_of_one() -> None:
    lines = shown(evaluation.table(table(runs())))
    assert line(lines, "fcfs").split()[1:2] == ["10.0"]
    assert line(lines, "fcfs").split()[-1] == "1"
    assert line(lines, "srtf").endswith("0.50 (0.50–0.50)")


def test_the_bound_that_nobody_beats_stands_below_with_all_that_make_it() -> None:
    [bound] = [each for each in shown(evaluation.table(table(runs())), 120) if "No schedule" in each]
    assert bound == "No schedule has an average JCT below 2.50 h (mostly LB0; LB0 2.50, LB1 1.25)."


def test_a_difference_that_is_no_chance_is_marked() -> None:
    lines = shown(evaluation.table(table(runs(windows=8))), 120)
    assert line(lines, "srtf").endswith("*")
    assert any("p < 0.05 after Holm" in each for each in lines)


def test_one_window_has_neither_interval_nor_mark() -> None:
    lines = shown(evaluation.table(table(runs(windows=1))))
    assert lines[0] == "load 0.7 · 1 window · run times known"
    assert line(lines, "srtf").endswith(" 0.50")
    assert not any("Holm" in each for each in lines)


def test_unfinished_jobs_and_solver_gaps_are_told() -> None:
    odd = [replace(run, solver_gap=0.0015, summary=run.summary | {"unfinished": 1.0}) for run in runs(["fcfs"])]
    text = "\n".join(shown(evaluation.table(table(odd)), 120))
    assert "not finished when runs were cut off: fcfs 4." in text
    assert "gap that the solver left to the optimum: fcfs 0.15%." in text


def test_who_decides_by_run_times_and_how_often_is_told() -> None:
    found = table([replace(run, round_seconds=60.0 if run.scenario.policy == "las" else None) for run in runs()])
    lines = shown(evaluation.table(found), 120)
    assert line(lines, "srtf").split()[0] == "srtf†"
    assert line(lines, "las").split()[0] == "las"
    assert "† decides by how long jobs will take, as far as it is known; the others do without." in lines
    assert "Decisions: fcfs, srtf at events, alone, as published; las every 60 s, alone, as published." in lines
    unaware = shown(evaluation.table(table(runs(["fcfs", "las"]))), 120)
    assert "None of these policies decides by how long jobs will take." in unaware


def test_jobs_that_never_arrived_are_told() -> None:
    odd = [replace(run, summary=run.summary | {"not_arrived": 2.0}) for run in runs(["fcfs"])]
    assert "Jobs that had not arrived by then and are in no figure: fcfs 8." in shown(evaluation.table(table(odd)), 120)


def test_what_is_not_known_is_a_dash() -> None:
    odd = [replace(run, summary=run.summary | {"p99_rho": float("nan")}) for run in runs(["fcfs"])]
    assert " - " in line(shown(evaluation.table(table(odd))), "fcfs")


@pytest.mark.parametrize(("load", "said"), [(None, "load as in the trace"), (1.0, "load 1")])
def test_a_load_that_was_not_set_is_said_to_be_that_of_the_trace(load: float | None, said: str) -> None:
    assert evaluation.title(table([outcome(scenario(load=load))])).startswith(f"{said} · ")


def test_logs_get_a_line_every_tenth_and_runs_that_are_kept_count(capsys: pytest.CaptureFixture[str]) -> None:
    with evaluation.runs({"fcfs": 5, "las": 5}, {"fcfs": 4}) as advance:
        for policy in ("fcfs", *["las"] * 5):
            advance(policy)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == ["runs: 0/10", "runs: 4/10", *(f"runs: {n}/10" for n in range(5, 11))]


def test_people_get_a_bar_for_all_runs_and_one_for_each_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stderr", screen)
    with evaluation.runs({"fcfs": 2, "las": 2}, {"fcfs": 1}) as advance:
        advance("las")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    for bar in ("all runs", "fcfs", "las", "2/4", "1/2", "left"):
        assert bar in text


# --- replays ---------------------------------------------------------------------------------------------------------
ALONE = dict.fromkeys(("fcfs", "las", "srtf"), Decider.PAPER)


def story(name: str, **hours: float | None) -> Story:
    fates = {
        policy: Fate(time and time * HOUR, time and time * HOUR, "8×A100", restarts=int(policy == "las"))
        for policy, time in hours.items()
    }
    return Story(name, "waits", fates)


def test_a_line_holds_a_job_s_fate_under_every_policy() -> None:
    lines = shown(replay.table([story("bert", fcfs=2, las=1)], "NOW"))
    assert lines[1].split() == ["JOB", "NOW", "fcfs", "las"]
    assert lines[2].split() == ["bert", "waits", "2h00m", "8×A100", "1h00m", "8×A100", "↻1"]


def test_of_many_jobs_those_are_shown_that_policies_differ_on() -> None:
    stories = [story(f"same-{n}", fcfs=1, las=1) for n in range(50)] + [story("other", fcfs=9, las=1)]
    lines = shown(replay.table(stories, "NOW"))
    assert lines[2].startswith("other")
    assert lines[-1] == "The 40 of 51 jobs that policies differ most on; -o json has all."


def test_the_best_of_a_line_stands_out_unless_all_are_alike() -> None:
    console = Console(width=80)
    for stories, bold in (([story("bert", fcfs=2, las=1)], ["1h00m"]), ([story("bert", fcfs=1, las=1)], [])):
        segments = console.render(replay.table(stories, "NOW"))
        assert [each.text for each in segments if each.style and each.style.color and each.style.bold] == bold


def test_totals_say_who_is_ahead_and_by_how_much() -> None:
    stories = [story("a", fcfs=2, las=1), story("b", fcfs=2, las=2)]
    figures = {policy: {"avg_jct_h": average} for policy, average in (("fcfs", 2.0), ("las", 1.5))}
    lines = shown(replay.totals(stories, figures, ALONE))
    assert line(lines, "fcfs").endswith("1 of 2")
    assert line(lines, "las ").endswith("2 of 2")
    assert lines[-1] == "las has the lowest average JCT: 25% below fcfs."


def test_equals_share_the_victory_and_one_alone_has_none() -> None:
    same = {policy: {"avg_jct_h": 2.0} for policy in ("fcfs", "las")}
    assert (
        shown(replay.totals([story("a", fcfs=2, las=2)], same, ALONE))[-1] == "fcfs and las have the same average JCT."
    )
    by_itself = replay.totals([story("a", fcfs=2)], {"fcfs": {"avg_jct_h": 2.0}}, {"fcfs": Decider.CONTROLLER})
    assert shown(by_itself)[-1] == "Decisions: fcfs as the controller does, with its default settings."


def test_a_job_that_is_never_done_says_so() -> None:
    lines = shown(replay.table([story("bert", fcfs=None, las=1)], "NOW"))
    assert "never" in line(lines, "bert")
