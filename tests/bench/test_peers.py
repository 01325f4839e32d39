"""The race against other schedulers: what is told of what was seen, what is kept, and one race at toy size."""

from __future__ import annotations

import asyncio
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from hack.bench.__main__ import Part, measure
from hack.bench.bare_binder import Task
from hack.bench.peers import kept
from hack.bench.peers.figures import (
    Race,
    Served,
    Showing,
    goals,
    node_changes,
    partly_bound,
    remarks,
    requests_table,
    served,
    showing,
    table,
)
from hack.bench.peers.kept import Kept
from hack.bench.peers.race import CONTESTANTS, Choice
from hack.bench.peers.rivals import RIVALS
from hack.bench.report import Report
from hack.bench.watch_recorder import Sightings
from rich.console import Console

from trimtab.errors import LocalClusterError
from trimtab_local.control_plane.cluster import LocalCluster


def seen(**bound: float) -> Sightings:
    """Pods `a0`, `a1`, ... of gangs `a`, `b`, ..., all created at 1, bound as said."""
    pods = list(bound)
    return Sightings(created=dict.fromkeys(pods, 1.0), bound=bound, gang={pod: pod[0] for pod in pods})


def test_a_gang_is_partial_from_its_first_binding_to_its_last() -> None:
    found = partly_bound(seen(a0=2.0, a1=5.0, b0=3.0, b1=4.0, c0=5.0, c1=5.5))
    assert (found.most, found.longest) == (2, 3.0), "`c` begins when `a` is whole"


def test_what_arrives_at_once_is_never_partial() -> None:
    found = partly_bound(seen(a0=2.0, a1=2.0, b0=3.0))
    assert (found.most, found.longest) == (0, 0.0)


def test_latency_counts_from_the_creation_of_the_gang() -> None:
    found = showing(seen(a0=2.0, a1=3.0, b0=3.0, b1=5.0), {"a": 0.5}, {"scheduler": 0.4, "creator": 0.04}, 100.0)
    assert found.seconds == 4.5, "from the first gang handed in to the last binding"
    assert found.rate == 4 / 4.5
    assert (found.latency.p50, found.latency.max) == (2.5, 4.0), "where nobody says, a gang is born with its first pod"
    assert (found.waits.p50, found.waits.max) == (2.0, 4.0)
    assert found.cpu == {"scheduler": 100.0, "creator": 10.0}, "ms per pod"
    assert found.scheduling == 110.0
    assert found.total == found.scheduling, "nothing is known of an API server"


METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{verb="POST",resource="pods",code="201"} %d
apiserver_request_total{verb="PATCH",resource="pods",code="200"} 3
apiserver_request_total{verb="LIST",resource="pods",code="200"} 2
apiserver_request_total{verb="WATCH",resource="pods",code="200"} 7
# TYPE apiserver_watch_events_sizes histogram
apiserver_watch_events_sizes_bucket{kind="Pod",le="1024"} 4
apiserver_watch_events_sizes_bucket{kind="Pod",le="+Inf"} 5
apiserver_watch_events_sizes_sum{kind="Pod"} 4096
apiserver_watch_events_sizes_count{kind="Pod"} 5
# TYPE apiserver_response_sizes histogram
apiserver_response_sizes_bucket{verb="LIST",le="+Inf"} 2
apiserver_response_sizes_sum{verb="LIST"} 904
apiserver_response_sizes_count{verb="LIST"} 2
"""


def test_what_the_api_server_was_asked_is_counted_per_pod() -> None:
    before, after = served(METRICS % 1), served(METRICS % 21)
    assert before == Served(writes=4, reads=2, events=5, told=5000), "a watch that begins is no read: its events count"
    assert after.since(before, 10) == Served(writes=2.0)


def test_a_race_waits_until_nobody_changes_nodes() -> None:
    told = """\
# TYPE apiserver_request_total counter
apiserver_request_total{verb="PATCH",resource="nodes",subresource="",code="200"} 2512
apiserver_request_total{verb="PATCH",resource="nodes",subresource="status",code="200"} 9
apiserver_request_total{verb="GET",resource="nodes",subresource="",code="200"} 2510
"""
    assert node_changes(told) == 2512, "heartbeats are no changes"


def race(**rates: float) -> Race:
    """Contestants who bind so many pods a second, each at the same cost per pod; latencies fall as rates rise."""
    runs = {
        name: [showing(seen(a0=1 + 2 / rate), {}, {"scheduler": 0.01, "kube-apiserver": 0.02}, 50.0)]
        for name, rate in rates.items()
    }
    return Race(nodes=500, gangs=1, gang=1, showings=runs)


def test_goals_are_held_against_the_best_that_knows_gangs() -> None:
    found = {
        what: (round(value, 2), goal) for what, value, goal, _ in goals(race(trimtab=9, bare=40, volcano=3, kueue=2))
    }
    assert found["500 nodes: pods/s, Trimtab / volcano"] == (3.0, 2.0)
    assert found["500 nodes: gang latency p99, Trimtab / volcano"] == (0.33, 0.2)
    assert found["500 nodes: last pod created to last bound, p50, Trimtab / volcano"] == (0.33, 0.2)
    assert found["500 nodes: CPU per pod, API server included, Trimtab / volcano"] == (1.0, 1.0)


def test_where_nobody_could_be_twice_as_fast_the_bare_binder_is_the_measure() -> None:
    found = {what: (round(value, 2), goal) for what, value, goal, _ in goals(race(trimtab=9, bare=10, volcano=5))}
    assert found["500 nodes: pods/s, Trimtab / bare"] == (0.9, 0.85)


def test_without_rivals_there_is_nothing_to_hold_us_against() -> None:
    assert list(goals(race(trimtab=9, bare=10))) == []


def test_a_table_fits_a_terminal_and_names_who_is_missing() -> None:
    told = race(trimtab=900, bare=1000, **{"kube-scheduler": 100})
    told.left_out, told.stalled = {"volcano": "no module"}, {"kube-scheduler": 1}
    out = StringIO()
    for each in (table(told), requests_table(told)):
        Console(file=out, width=80).print(each)
    lines = out.getvalue().splitlines()
    assert any("kube-scheduler" in line and "9.00" in line for line in lines), "how many times faster we are"
    assert not any("…" in line for line in lines)
    assert "volcano left out: no module" in remarks(told)


def test_an_interrupted_race_goes_on_where_it_ended(tmp_path: Path) -> None:
    empty, done = race(), race(trimtab=9)
    file = Kept(tmp_path / "races", "abc")
    assert file.read(empty) == empty
    file.write(done)
    assert Kept(tmp_path / "races", "abc").read(empty) == done
    assert Kept(tmp_path / "races", "other").read(empty) == empty
    file.forget()
    assert file.read(empty) == empty


def test_what_cannot_be_is_told_before_anything_starts() -> None:
    assert Choice(nodes=(500, 1000)).mistake() == ""
    assert "do not fit on 31 nodes" in Choice(nodes=(500, 31)).mistake()
    assert "20 gangs" in Choice(nodes=(500,), gangs=20).mistake()
    assert "slurm: the contestants are trimtab, bare" in Choice(contestants=("trimtab", "slurm")).mistake()


def test_where_modules_cannot_be_had_a_binary_must_be_given() -> None:
    for name in ("coscheduling", "volcano", "kai"):
        with pytest.raises(LocalClusterError, match=f"--program {name}=PATH"):
            RIVALS[name].built()


def test_rivals_are_told_what_belongs_together() -> None:
    body = {"metadata": {"name": "a-0", "labels": {"job": "a"}}, "spec": {"hostname": "a-0", "containers": []}}
    pods = [Task(f"a-{i}", "default", "node", "a", body) for i in range(2)]
    assert RIVALS["kube-scheduler"].member(pods[0]) == pods[0]
    assert RIVALS["podgroups"].member(pods[0]).body["spec"]["schedulingGroup"] == {"podGroupName": "a"}
    labels = RIVALS["coscheduling"].member(pods[0]).body["metadata"]["labels"]
    assert labels == {"job": "a", "scheduling.x-k8s.io/pod-group": "a"}
    told = RIVALS["volcano"].member(pods[0]).body["metadata"]
    assert told["annotations"] == {"scheduling.k8s.io/group-name": "a"}
    assert RIVALS["volcano"].group("a", 2)["spec"]["minMember"] == 2
    told = RIVALS["kai"].member(pods[0]).body["metadata"]
    assert (told["annotations"], told["labels"]["kai.scheduler/queue"]) == ({"pod-group-name": "a"}, "peers")
    assert RIVALS["kai"].group("a", 2)["spec"] == {"minMember": 2, "queue": "peers"}
    [job] = RIVALS["kueue"].jobs(pods)
    assert (job["spec"]["suspend"], job["spec"]["completions"]) == (True, 2)
    assert job["spec"]["template"]["spec"] == {"containers": [], "restartPolicy": "Never"}
    assert body["metadata"]["labels"] == {"job": "a"}, "nobody changes what others get"


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_contestants_take_turns(
    cluster: LocalCluster, state_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rivals that are compiled first are left to the bench."""
    monkeypatch.setattr(kept, "directory", lambda: tmp_path)
    report = asyncio.run(measure({Part.PEERS}, 1, tiny=True))
    [found] = report.peers or []
    assert (found.gangs, found.gang, found.left_out) == (2, 4, {})
    assert list(found.showings) == ["trimtab", "bare", "podgroups"]
    for name, [once] in found.showings.items():
        assert once.rate > 0, name
        assert once.total >= once.scheduling >= 0, name
        assert once.served.writes >= 2, f"{name}: each pod is created and bound"
        assert once.served.events >= 2, f"{name}: our own witness sees both"
        assert (once.memory > 0) == (name != "bare")
    assert sum(once.total for [once] in found.showings.values()) > 0, "ticks of 10 ms: one alone may have none"
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    assert set(found.showings) < set(CONTESTANTS)
    assert isinstance(found.showings["bare"][0], Showing)
