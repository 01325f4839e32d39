"""The jobs of the demo."""

from __future__ import annotations

from trimtab_local.checkout import checkout
from trimtab_local.demo.script import ARRIVALS


def test_every_sample_takes_part() -> None:
    samples = {path.stem for path in (checkout() / "manifests" / "samples").glob("*.yaml")}
    assert {arrival.sample for arrival in ARRIVALS} == samples


def test_no_two_jobs_have_one_name() -> None:
    jobs = [arrival.job() for arrival in ARRIVALS if arrival.job()]
    assert len(set(jobs)) == len(jobs)


def test_a_sample_may_come_again_under_another_name() -> None:
    again = next(arrival for arrival in ARRIVALS if arrival.name)
    assert again.manifest()["metadata"]["name"] == again.job() == again.name
