"""Rudder: what an option is worth, who gets what, and that its compiled world is the engine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from trimtab_lab.agents.rudder import (
    RudderCell,
    RudderConfig,
    RudderEnvironment,
    RudderTraining,
    elastic_window,
    make,
)
from trimtab_lab.evaluation.scenario import Scenario
from trimtab_lab.evaluation.workload import workload
from trimtab_lab.kernel import rescaling
from trimtab_lab.workloads import clusters
from trimtab_policy.learned import attribution, guards, rudder, store, worth
from trimtab_policy.learned.rudder import Rudder, columns
from trimtab_policy.learned.worth import Network, analytic, values
from trimtab_policy.placement.assign import Fulfilment
from trimtab_policy.placement.candidates import Candidate
from trimtab_policy.placement.options import market
from trimtab_policy.scheduling.accounts import Accounts
from trimtab_policy.scheduling.permissions import Permissions
from trimtab_policy.scheduling.shield import judge
from trimtab_policy.sim import llm
from trimtab_policy.sim.engine import simulate
from trimtab_policy.types import Quota, Snapshot


def snapshot(jobs: int = 12, cluster: str = "sia-heterogeneous", seed: int = 3) -> Snapshot:
    """Jobs that all wait, and may be moved later."""
    drawn = workload(Scenario("", "generator:cluster-v0", cluster, window_jobs=jobs, seed=seed))
    waiting = tuple(replace(job, preemptible=True, created=0.0) for job in drawn.described)
    return replace(clusters.cluster(cluster), time=60.0, jobs=waiting)


def scored(network: Network, now: Snapshot) -> np.ndarray:
    offered = market(now)
    return values(network, *columns(now, offered, offered.menus))


def random_network(seed: int) -> Network:
    draw = np.random.default_rng(seed)
    shapes = {name: shape for name, shape in worth.SHAPES.items() if name != "constants"}
    return Network(worth.ANALYTIC.copy(), *(0.3 * draw.standard_normal(shape) for shape in shapes.values()))


def test_a_network_of_zeros_leaves_the_analytic_worth() -> None:
    now = snapshot()
    silent = random_network(1)._replace(skip=np.zeros(worth.FEATURES), out=np.zeros(worth.HIDDEN))
    np.testing.assert_array_equal(scored(silent, now), scored(analytic(), now))


def test_a_network_changes_a_worth_by_a_bounded_factor() -> None:
    now = snapshot()
    wild = random_network(2)._replace(skip=np.full(worth.FEATURES, 1e6))
    ratio = scored(wild, now) / scored(analytic(), now)
    assert np.isfinite(ratio).all()
    assert (np.abs(np.log(ratio)) <= worth.LARGEST_CHANGE + 1e-9).all()


def test_the_order_of_jobs_does_not_matter() -> None:
    now = snapshot()
    network = random_network(3)
    turned = replace(now, jobs=now.jobs[::-1])
    assert sorted(scored(network, now).tolist()) == pytest.approx(sorted(scored(network, turned).tolist()), rel=1e-9)


def test_compiled_it_says_the_same() -> None:
    now = snapshot()
    offered = market(now)
    given = columns(now, offered, offered.menus)
    for network in (analytic(), random_network(4)):
        np.testing.assert_allclose(rescaling.values(network, *given), values(network, *given), rtol=1e-9)


def test_its_decisions_pass_the_shield() -> None:
    for seed in range(4):
        now = snapshot(20, seed=seed)
        decision = Rudder(analytic()).decide(now)
        verdict, _ = judge(Accounts(now), decision, Permissions())
        assert decision.placements
        assert verdict.refused == ()


def test_a_running_job_whose_wish_finds_no_nodes_is_decided_anew_however_little_it_is_worth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = snapshot(jobs=40)
    _, accounts = judge(Accounts(now), Rudder(analytic()).decide(now), Permissions())
    running = accounts.view()
    now = replace(running, time=running.time + 60, jobs=tuple(replace(job, preemptible=True) for job in running.jobs))
    lost, attempts = next(job.uid for job in now.jobs if job.placement), 0
    find = rudder.fulfil

    def without_nodes(seen: Snapshot, wanted: dict[str, Candidate], **how: Any) -> Fulfilment:
        nonlocal attempts
        attempts += 1
        return find(seen, {uid: wish for uid, wish in wanted.items() if uid != lost or attempts > 1}, **how)

    monkeypatch.setattr(rudder, "fulfil", without_nodes)
    monkeypatch.setattr(rudder, "MATTERS", 1.0)
    decision = Rudder(analytic()).decide(now)
    assert attempts > 1
    assert lost not in {stop.job for stop in decision.stops}


def test_a_quota_is_kept() -> None:
    now = snapshot(20)
    jobs = tuple(replace(job, queue="research") for job in now.jobs)
    limited = replace(now, jobs=jobs, quotas=(Quota("research", "*", 10),))
    decision = Rudder(analytic()).decide(limited)
    assert 0 < sum(placement.gpus for placement in decision.placements) <= 10


def test_who_is_more_urgent_gets_more() -> None:
    now = snapshot(20)
    first = now.jobs[0].uid
    urgent = replace(now, jobs=(replace(now.jobs[0], priority=1000), *now.jobs[1:]))

    def rate(seen: Snapshot) -> float:
        found = {each.job: each.prediction.tokens_per_second for each in Rudder(analytic()).decide(seen).placements}
        return found.get(first, 0.0)

    assert rate(urgent) > 0
    assert rate(urgent) >= rate(now)


def test_it_says_what_lost_and_why() -> None:
    placements = Rudder(analytic()).decide(snapshot()).placements
    told = [each for placement in placements for each in placement.alternatives]
    assert told
    assert all("worth" in each.why_not for each in told)


@pytest.mark.parametrize("size", [0.05, 0.5, 5.0])
def test_contributions_of_the_features_are_together_what_the_network_says(size: float) -> None:
    drawn = np.random.default_rng(4)
    for seed in range(20):
        network = Network(analytic().constants, *(size * array for array in random_network(seed)[1:]))
        z, reference = drawn.normal(size=(2, worth.FEATURES))
        parts, base = attribution.contributions(network, z, reference)
        [factor] = worth.change(network, z[:, None])
        assert parts.sum() + base == pytest.approx(np.log(factor), abs=1e-9)


def test_a_contribution_is_the_gradient_along_the_way_from_what_is_usual() -> None:
    network, drawn = random_network(2), np.random.default_rng(7)
    z, reference = drawn.normal(scale=0.1, size=(2, worth.FEATURES))
    z[3] = reference[3]
    steps = (np.arange(20_000) + 0.5) / 20_000
    inner = (network.hidden @ (reference[:, None] + (z - reference)[:, None] * steps)).T + network.bias
    gradient = network.skip + ((1 - np.tanh(inner) ** 2) * network.out).mean(axis=0) @ network.hidden
    parts, _ = attribution.contributions(network, z, reference)
    assert np.allclose(parts, (z - reference) * gradient, atol=1e-6)
    assert parts[3] == 0


def test_it_says_what_the_network_made_of_the_worth_and_why() -> None:
    network = analytic()
    network.skip[worth.SAID.index("load of the cluster")] = -0.3
    reasons = [each.reason for each in Rudder(network).decide(snapshot(jobs=60)).placements]
    assert reasons
    assert all("mostly because of: load of the cluster" in reason for reason in reasons)
    assert not any("network" in each.reason for each in Rudder(analytic()).decide(snapshot()).placements)


def test_what_lost_is_told_with_its_worth_and_the_price_of_its_gpus() -> None:
    for each in Rudder(analytic()).decide(snapshot()).placements:
        worths = [lost.worth for lost in each.alternatives]
        assert worths == sorted(worths, reverse=True)
        assert all(lost.price is not None and lost.price >= 0 for lost in each.alternatives)


def test_it_names_those_whom_it_costs_something() -> None:
    now = snapshot(jobs=60)
    decision = Rudder(analytic()).decide(now)
    waiting = {each.job for each in decision.pending}
    names = {f"{each.namespace}/{each.name}" for each in now.jobs if each.uid in waiting}
    told = [
        each.reason.split("next for these GPUs: ")[1].split(";")[0]
        for each in decision.placements
        if "next for" in each.reason
    ]
    assert told
    assert all(name in names for text in told for name in text.split(", "))


def test_the_shipped_weights_fit() -> None:
    shipped = rudder.trained(store.load("rudder", rudder.SCHEMA, (*worth.SHAPES, worth.RANGES)).arrays).network
    assert np.isfinite(scored(shipped, snapshot())).all()


def test_weights_of_a_training_hold_the_ranges_of_what_was_seen_in_it(tmp_path: Path) -> None:
    cell = RudderCell(trace="generator:cluster-v0", cluster="sia-heterogeneous", jobs=12, windows=2)
    few = RudderTraining(segments=1, generations=1, pairs=1, windows=1, validation_windows=1, threads=1)
    config = RudderConfig(task="rescaling", environment=RudderEnvironment(cells=(cell,)), training=few)
    learner = make(config, 0)
    learner.learn(0)
    ranges = learner.weights()[worth.RANGES]
    assert (ranges[:, 0] == 1.0).all()
    assert np.isfinite(ranges).all()
    assert (ranges[0, 1:] < ranges[1, 1:])[[0, 1, 2, 6, 11]].all()
    kept = tmp_path / "kept.safetensors"
    store.save(kept, learner.weights(), store.read_card("rudder"))
    again = store.load(kept, rudder.SCHEMA, (*worth.SHAPES, worth.RANGES))
    np.testing.assert_array_equal(again.arrays[worth.RANGES], ranges)


@pytest.mark.parametrize(
    ("trace", "cluster", "size_error"),
    [
        ("generator:llm", "h100-64", 0.0),
        ("generator:cluster-v0", "sia-heterogeneous", 0.0),
        ("generator:cluster-v0", "sia-heterogeneous", 0.5),
    ],
)
def test_the_compiled_world_is_that_of_the_engine_but_for_the_guards(
    trace: str, cluster: str, size_error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "rested", lambda now: now)
    monkeypatch.setattr(guards, "has_turn", lambda now, menu: False)
    monkeypatch.setattr(guards, "lift", lambda menus, waits, best, possible: np.zeros(len(menus)))
    scenario = Scenario("", trace, cluster, load=1.0, window=1, windows=4, window_jobs=40, seed=11)
    window, measured = elastic_window(scenario, size_error=size_error)
    fast = rescaling.run_window(analytic(), window).jct[measured].mean()
    drawn = workload(scenario)
    nodes = clusters.cluster(cluster)
    rules = llm.LlmRules(size_sigma=size_error)
    run = simulate(Rudder(analytic()), llm.jobs(drawn.described, nodes, rules, seed=drawn.seed), nodes)
    times = [job.finished - job.submitted for job in run.jobs if job.finished is not None]
    assert len(times) == len(run.jobs)
    assert np.mean(np.array(times)[measured]) == pytest.approx(fast, rel=0.04)


@pytest.mark.parametrize("made", [0.0, 0.5, 1.0, 1.2, 1.6])
def test_the_compiled_world_expects_of_a_job_what_the_policy_does(made: float) -> None:
    scenario = Scenario("", "generator:cluster-v0", "sia-heterogeneous", window=0, windows=1, window_jobs=12, seed=11)
    window, _ = elastic_window(scenario, size_error=0.5)
    n = len(window.steps)
    stated = np.maximum(1.0, np.rint(window.steps * window.told))
    done, zeros = made * stated, np.zeros(n)
    held = np.full(n, -1, np.int64)
    here = np.ones(n, np.bool_)
    world = rescaling._World(window.steps - done, done, held, zeros, zeros, here, zeros, zeros, zeros)
    for number in range(n):
        job, options = np.zeros(8), np.zeros((window.first[number + 1] - window.first[number], 6))
        rescaling._fill(window, world, 0.0, number, job, options)
        told = float(stated[number])
        beyond = max(0.0, done[number] - told)
        assert job[0] == pytest.approx(guards.still_left(told, min(done[number], told), beyond, 0.0))
