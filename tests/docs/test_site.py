"""The documentation as a site: built as hack/docs/build does it, where a link that leads nowhere is an error."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hack.docs import conf, reference
from hack.web import screenshots

from trimtab.telemetry import agent_metrics, metrics
from trimtab_local.checkout import checkout

ROOT = checkout()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run([ROOT / "hack/docs/build", folder], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert built.stdout == f"{folder}/index.html\n"
    return folder


def test_every_page_is_there_and_the_contents_lead_to_it(site: Path) -> None:
    pages = [path.relative_to(conf.DOCS).with_suffix("") for path in conf.DOCS.glob("**/*.md")]
    start = (site / "index.html").read_text()
    for page in pages:
        if str(page) != "index":
            assert (site / page / "index.html").exists()
            assert f'href="{page}/"' in start, f"docs/index.md has no line for {page}"


def test_programs_get_each_page_as_it_was_written(site: Path) -> None:
    listed = re.findall(r"\]\(([\w/-]+\.md)\)", (site / "llms.txt").read_text())
    assert {str(page.relative_to(conf.DOCS)) for page in conf.DOCS.glob("**/*.md")} == {*listed, "index.md"}
    assert all((site / page).read_text() == (conf.DOCS / page).read_text() for page in listed)


def test_it_asks_nobody_else_for_anything(site: Path) -> None:
    loaded = re.compile(r"""(?:<(?:script|img|iframe)[^>]+src|<link[^>]+href)=["']?(?:https?:)?//[^"'>]+""")
    assert [found for path in site.glob("**/*.html") for found in loaded.findall(path.read_text())] == []


def test_links_to_files_that_are_no_pages_name_them(site: Path) -> None:
    page = (site / "start/by-hand/index.html").read_text()
    assert '<span class="pre">manifests/samples</span>' in page
    assert "../../manifests" not in page


def test_every_page_of_the_console_is_shown_in_light_and_dark() -> None:
    shown = set(re.findall(r"\(pictures/(.+?)-(light|dark)-1280\.png\)", (conf.DOCS / "console-tour.md").read_text()))
    wanted = {screenshots.stem(page) for page in screenshots.of_docs()}
    assert shown == {(page, scheme) for page in wanted for scheme in ("light", "dark")}
    assert {path.name for path in screenshots.DOCS.iterdir()} == {f"{page}-{scheme}-1280.png" for page, scheme in shown}


def test_the_reference_has_what_users_write_and_read() -> None:
    pages = reference.pages()
    assert "| `spec.resources.gpus.min` | int32 |" in pages["api.md"]
    assert "## trimtab explain" in pages["commands.md"]
    assert "### trimtab get jobs" in pages["commands.md"]
    assert "| `policy.deadline_seconds` | `2.0` |" in pages["settings.md"]
    gpus = agent_metrics.GpuCollector(list, list).collect()
    for family in (*metrics.REGISTRY.collect(), *agent_metrics.REGISTRY.collect(), *gpus):
        assert f"| `{family.name}" in pages["metrics.md"] or not family.name.startswith("trimtab_")


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ({"description": "How many.", "minimum": 1, "maximum": 16777216}, "How many. (at least 1; at most 16,777,216)"),
        ({"enum": ["a", "b"]}, "One of `a`, `b`."),
        ({}, ""),
    ],
)
def test_bounds_and_choices_of_a_field_are_told_with_it(field: dict[str, object], told: str) -> None:
    assert reference._told(field) == told
