"""One real control plane for the whole test session, started when the first test asks for it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from hack import last_runs

from trimtab_local.checkout import checkout
from trimtab_local.control_plane.build import build
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.options import ClusterOptions

# What a test finds must not depend on how busy the machine is, and in CI not on chance either.
hypothesis.settings.register_profile("trimtab", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("trimtab")

# Ctrl-C and hang-ups are tested: whoever started us in the background or with nohup has them ignored.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)

LONGEST = (
    "faults/test_edits",
    "bench/test_bench",
    "live/test_doctor",
    "faults/test_sweep",
    "live/extender/test_outages",
)
"""Files that take minutes: of several processes, none should be left alone with one of them in the end."""

Kubectl = Callable[..., str]
"""kubectl(*arguments, stdin="") -> stdout, as the administrator; raises LocalClusterError."""


APART = {"kind": "run the tests on kind, and no others", "long": "run the tests that take minutes, and no others"}
"""Markers of tests that run only where they are asked for, each by an option of its name."""
BEGUN_ON = pytest.StashKey[str]()
"""The commit that a run of all tests that are apart began on."""
WHOLE = {frozenset({"--kind", "--all"}): "hack/test --kind --all", frozenset({"--long"}): "hack/test --long"}
"""Runs of all tests that are apart, by their arguments."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`hack/test --kind`, `hack/test --kind --all` and `hack/test --long`."""
    for name, what in APART.items():
        parser.addoption(f"--{name}", action="store_true", help=what)
    parser.addoption("--all", action="store_true", help="with --kind: all of them, not only those marked essential")


def _arguments(config: pytest.Config) -> frozenset[str]:
    return frozenset(str(word) for word in config.invocation_params.args)


def _whole(config: pytest.Config) -> str:
    """The command of a run of all tests that are apart; empty for any other run."""
    return WHOLE.get(_arguments(config), "")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """When all tests that are apart were last run: CI leaves out long ones, and most of those on kind."""
    if _arguments(config) == {"--kind"}:
        return [f"left out here: {last_runs.told('hack/test --kind --all')}"]
    if not (command := _whole(config)):
        return []
    config.stash[BEGUN_ON] = last_runs.commit_now()
    return [last_runs.told(command)]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
    """And how it came out this time."""
    if (command := _whole(config)) and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        counts = {each: len(terminalreporter.stats.get(each, ())) for each in ("passed", "failed", "error", "skipped")}
        result = ", ".join(f"{count} {each}" for each, count in counts.items() if count)
        terminalreporter.write_line(last_runs.note(command, result, config.stash[BEGUN_ON]))


def pytest_configure(config: pytest.Config) -> None:
    """Each process begins to collect somewhere else, and finds what the others have compiled: where nothing is compiled
    yet, as in CI, that is half of what collecting costs. The order of the tests is the same for all, see below.
    """
    worker, processes = os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if worker and config.args == config.getini("testpaths"):
        parts = sorted(str(path) for path in Path(__file__).parent.iterdir() if path.is_dir() and path.name[0] != "_")
        first = len(parts) * int(worker.removeprefix("gw")) // processes
        config.args[:] = parts[first:] + parts[:first]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Those on kind are in one folder: to read all others' files takes longer than one of them."""
    beside = collection_path.parent == config.rootpath / "tests" and collection_path.name != "kind"
    return True if beside and config.getoption("--kind") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fast tests first: whoever breaks a pure function should not wait for a control plane to learn it.

    Those that are apart keep the machine busy: they run by themselves, or not at all. Of those on kind the essential
    ones run, and the others with --all.
    """
    wanted = {name for name in APART if config.getoption(f"--{name}")}
    others = {item for item in items if {name for name in APART if item.get_closest_marker(name)} != wanted}
    if wanted == {"kind"} and not config.getoption("--all"):
        others |= {item for item in items if not item.get_closest_marker("essential")}
    if others:
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]
    items.sort(key=lambda item: (_turn(item), item.path))


def _turn(item: pytest.Item) -> int:
    if item.get_closest_marker("cluster") is None:
        return 0
    path = str(item.path.relative_to(item.config.rootpath / "tests").with_suffix(""))
    return 1 if path in LONGEST else 2


@pytest.fixture(scope="session", autouse=True)
def current_event_loop() -> Iterator[None]:
    """pytest-asyncio puts the main thread's loop back after each test; without one it makes one that nobody closes."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The clusters of the tests are out of the way of the user's own."""
    directory = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(directory))
        yield directory


@pytest.fixture(scope="session")
def cluster(state_home: Path) -> Iterator[LocalCluster]:
    """A control plane with PodGroups, our CRDs and our controller's RBAC rules. It is shared: use names of your
    own."""
    build()
    options = ClusterOptions(
        feature_gates={"GenericWorkload": True},
        apis=("scheduling.k8s.io/v1alpha2",),
        controllers=("podgroup-protection-controller",),
    )
    with LocalCluster(f"tests-{os.getpid()}", options=options) as cluster:
        manifests = checkout() / "manifests"
        for path in (manifests / "crds", manifests / "rbac.yaml"):
            if path.exists():
                cluster.kubectl("apply", "--server-side", "-f", str(path))
        if (manifests / "crds").exists():
            cluster.kubectl("wait", "--for=condition=Established", "-f", str(manifests / "crds"), "--timeout=30s")
        yield cluster


@pytest.fixture(scope="session")
def kubectl(cluster: LocalCluster) -> Kubectl:
    """kubectl as the session cluster's administrator."""
    return cluster.kubectl
