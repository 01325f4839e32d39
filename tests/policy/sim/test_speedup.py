"""Fake pods run faster than predicted: the same cluster as if they did not."""

from __future__ import annotations

import math

from tests.builders import NOW, job, node, running, snapshot

from trimtab_policy.sim.speedup import as_predicted


def test_what_is_away_on_the_wall_is_so_many_times_as_far_away_in_the_cluster() -> None:
    held = running(
        "held",
        {"n0": 8},
        started=NOW - 3,
        created=NOW - 4,
        finish=NOW + 5,
        movable_from=math.inf,
        stoppable_from=NOW + 1,
        lost_seconds=2.0,
        served={"T4": 16.0},
        restart_seconds=60.0,
    )
    waits = job("waits", created=NOW - 10, waits_since=NOW - 1)
    seen = as_predicted(snapshot([node("n0", free=0)], [held, waits], speedup=1000.0))
    [was, then] = seen.jobs
    assert (was.started, was.created, was.expected_finish) == (NOW - 3000, NOW - 4000, NOW + 5000)
    assert (was.movable_from, was.stoppable_from) == (math.inf, NOW + 1000)
    assert (was.lost_seconds, was.served, was.restart_seconds) == (2000.0, {"T4": 16000.0}, 60.0)
    assert (then.created, then.waits_since, then.started, then.expected_finish) == (NOW - 10000, NOW - 1000, None, None)
    assert (seen.time, seen.speedup) == (NOW, 1.0)


def test_a_real_cluster_stays_as_it_is() -> None:
    real = snapshot([node("n0")], [job()])
    assert as_predicted(real) is real
