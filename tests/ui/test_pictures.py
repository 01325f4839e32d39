"""Pictures of evaluations: as files in any format, and in a terminal of any width."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from tests.result_builders import CLUSTER, NODES, drawn, span

from trimtab.ui.charts import NARROWEST
from trimtab_lab.evaluation.timeline import Timeline, timelines
from trimtab_lab.ui import canvas, pictures
from trimtab_lab.ui.pictures import Panel
from trimtab_lab.workloads import clusters

EMPTY = clusters.cluster(CLUSTER)
NAMES = ["job-0", "job-1", "job-2"]
RUN = timelines(EMPTY, {"fcfs": drawn()[1]}, NAMES)["fcfs"]
IDLE = timelines(EMPTY, {"fcfs": []}, [])["fcfs"]
BEGINS = {"png": b"\x89PNG", "svg": b"<?xml"}


def shown(renderable: RenderableType, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(renderable)
    return out.getvalue().splitlines()


def crowd(nodes: int = 40) -> Timeline:
    """More GPUs and jobs than can have lines and names of their own."""
    large = clusters.cluster(f"T4={8 * nodes}")
    spans = [span(n, 10 * n, 10 * n + 400, {node.name: 8}) for n, node in enumerate(large.nodes)]
    return timelines(large, {"fcfs": spans}, [f"job-{n}" for n in range(nodes)])["fcfs"]


def svg(draw: object, tmp_path: Path, *arguments: object) -> str:
    file = tmp_path / "picture.svg"
    draw(file, *arguments)  # type: ignore[operator]
    return file.read_text()


@pytest.fixture
def as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters of SVG files as text and not as outlines."""
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")


# --- files -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", BEGINS)
@pytest.mark.parametrize("run", [RUN, IDLE, crowd()], ids=["few", "idle", "crowd"])
def test_any_run_is_drawn_in_the_format_of_its_name(tmp_path: Path, run: Timeline, suffix: str) -> None:
    for draw in (pictures.gantt, pictures.heat):
        draw(tmp_path / f"run.{suffix}", "fcfs", run)
        assert (tmp_path / f"run.{suffix}").read_bytes().startswith(BEGINS[suffix])


@pytest.mark.usefixtures("as_text")
def test_a_gantt_chart_names_gpu_types_their_nodes_and_few_jobs(tmp_path: Path) -> None:
    text = svg(pictures.gantt, tmp_path, "under fcfs", RUN)
    for word in ("under fcfs", "T4", "2 nodes × 4", "A100-SXM4-40GB", "1 node × 8", "hours from the start", *NAMES):
        assert word in text


@pytest.mark.usefixtures("as_text")
def test_many_jobs_are_counted_not_named(tmp_path: Path) -> None:
    text = svg(pictures.gantt, tmp_path, "under fcfs", crowd())
    assert "40 jobs" in text
    assert "job-7<" not in text


@pytest.mark.usefixtures("as_text")
def test_a_heat_map_says_how_much_was_held_in_all(tmp_path: Path) -> None:
    """2 + 2 GPUs for an hour, then 8 + 8 for one, then 8: 28 of 48 GPU-hours."""
    assert "58% of all GPU time held" in svg(pictures.heat, tmp_path, "fcfs", RUN)


@pytest.mark.usefixtures("as_text")
def test_distributions_have_a_panel_a_table_and_tell_averages(tmp_path: Path) -> None:
    panels = [Panel("load 0.7", {"fcfs": [1.0, 3.0], "las": [0.1, 1.9]}), Panel("load 1.3", {"fcfs": [4.0, 8.0]})]
    text = svg(pictures.distributions, tmp_path, panels)
    for word in ("load 0.7", "load 1.3", "fcfs: 2 h", "las: 1 h", "fcfs: 6 h", "1 h", "10 min", "job completion time"):
        assert word in text


def test_a_policy_of_which_nothing_finished_leaves_the_others_drawn(tmp_path: Path) -> None:
    pictures.distributions(tmp_path / "jct.png", [Panel("all", {"fcfs": [], "las": [1.0]})])
    assert (tmp_path / "jct.png").read_bytes().startswith(BEGINS["png"])


# --- terminal --------------------------------------------------------------------------------------------------------
def test_nodes_are_lines_and_jobs_letters_from_left_to_right() -> None:
    lines = shown(canvas.Gantt(RUN), 80)
    t4_0, t4_1, a100 = (each.split("│")[1] for each in lines[:3])
    assert [each.split()[0] for each in lines[:3]] == NODES
    assert (t4_0[0], t4_0[30], t4_0[-1]) == ("A", "B", "·")
    assert (t4_1[0], t4_1[30], a100[0], a100[-1]) == ("·", "B", "·", "C")
    assert lines[3].split() == ["└0", "3h00m"]
    assert lines[4] == "A job-0   B job-1   C job-2"


def test_the_same_job_has_the_same_letter_under_another_policy() -> None:
    other = timelines(EMPTY, {"las": [span(2, 0, 3600, {NODES[0]: 2})]}, NAMES)["las"]
    assert shown(canvas.Gantt(other))[-1] == "C job-2"


def test_a_heat_map_has_heights_and_averages() -> None:
    lines = shown(canvas.Heat(RUN))
    t4_0, _, a100 = (each.split("│")[1] for each in lines[:3])
    assert (t4_0[0], t4_0[-6], a100[0], a100[-6]) == ("█", "·", "·", "█")
    assert (t4_0.split()[-1], a100.split()[-1]) == ("67%", "67%")


def test_neighbours_of_one_type_share_lines_in_large_clusters() -> None:
    for picture in (canvas.Gantt(crowd()), canvas.Heat(crowd())):
        lines = shown(picture)
        assert len(lines) <= canvas.MOST_ROWS + 3
        assert lines[0].split()[0] == "t4-[0-2]"


def test_curves_rise_from_left_to_right_and_the_legend_tells_medians() -> None:
    lines = shown(canvas.Distributions({"fcfs": [1.0, 2.0, 4.0], "las": [0.5, 1.0, 2.0]}))
    assert lines[0] == "share of jobs done by completion time"
    assert lines[-1] == "A fcfs (median 2h00m)   B las (median 1h00m)"
    assert lines[-2].split() == ["└30m00s", "4h00m"]
    assert lines[1].startswith("100 % ┤")
    assert {sign for each in lines[1:-2] for sign in each} >= {"A", "B"}


def test_colours_tell_curves_and_jobs_apart() -> None:
    console = Console(width=80, color_system="standard", force_terminal=True)
    for picture in (canvas.Distributions({"fcfs": [1.0, 2.0], "las": [3.0, 4.0]}), canvas.Gantt(RUN)):
        styles = {str(each.style) for each in console.render(picture) if each.style and each.text.strip()}
        assert len(styles) >= 3


def test_where_nothing_finished_it_says_so() -> None:
    assert shown(canvas.Distributions({"fcfs": []})) == ["no job finished"]


@pytest.mark.parametrize("width", [1, 24, 39])
def test_in_a_narrow_terminal_lines_are_folded(width: int) -> None:
    for picture in (canvas.Distributions({"fcfs": [1.0, 2.0]}), canvas.Gantt(RUN), canvas.Heat(RUN)):
        wide, narrow = shown(picture, NARROWEST), shown(picture, width)
        assert all(len(line) <= width for line in narrow)
        assert "".join("".join(narrow).split()) == "".join("".join(wide).split())


HOURS = st.lists(st.floats(0, 1e5), max_size=20)


@given(st.dictionaries(st.sampled_from(["fcfs", "las", "srtf"]), HOURS), st.integers(40, 160))
def test_any_distributions_fit_any_terminal(jct_h: dict[str, list[float]], width: int) -> None:
    assert all(len(each) <= width for each in shown(canvas.Distributions(jct_h), width))


@given(st.sampled_from([RUN, IDLE, crowd(3), crowd()]), st.integers(40, 160))
def test_any_run_fits_any_terminal(run: Timeline, width: int) -> None:
    for picture in (canvas.Gantt(run), canvas.Heat(run)):
        assert all(len(each) <= width for each in shown(picture, width))
