"""What commands say of observed step times and of what was learned from them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.builders import A100, NOW, job_object, node, placement, plan_of, snapshot
from tests.fakeserver import FakeApiServer

from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.apply.transitions import GangReport
from trimtab.commands.learned import learned, story, value
from trimtab.errors import Forbidden
from trimtab.kube.client import KubeClient
from trimtab.observe.calibration import written
from trimtab.observe.jobs import JobFacts, facts
from trimtab.settings import KubeSettings, ReportSettings
from trimtab_policy.perf.correction import learn
from trimtab_policy.perf.hierarchy import Learned
from trimtab_policy.perf.lessons import Key, Locality, State, anonymous, key_of
from trimtab_policy.specs import Prediction

META = job_object().metadata
CLUSTER = snapshot([node("n1")])
CONFIG_MAP = {"namespace": "trimtab-system", "name": "trimtab-calibration"}
CORRECTED = placement(prediction=Prediction(0.6, 65_536 / 0.6, 1 << 33, 600, correction=1.2))


def reporting() -> JobFacts:
    status = transitions.planned(JobStatus(), META, plan_of(CORRECTED, 3), NOW)
    told = GangReport(3, 340, 1000, NOW, step_seconds=0.9, checkpoint_step=300, checkpoint_time=NOW)
    return facts(job_object(status=transitions.reported(status, META, told, NOW)))


def state(*errors: float) -> State:
    found = State()
    key = key_of(reporting().as_job(created=NOW), A100, CORRECTED.plan, Locality.LINKED)
    for number, error in enumerate(errors):
        found = learn(found, key, str(number), error, namespace=anonymous("default"))
    return found


def test_a_job_that_reports_is_told_against_what_was_predicted() -> None:
    assert story(reporting(), Learned(), CLUSTER) == [
        ("Progress", "step 340 of 1000; checkpoint at step 300"),
        (
            "Step time",
            "900 ms, 1.50 times what was expected; predicted 600 ms (×1.20 by what other jobs took)",
        ),
    ]


def test_what_was_learned_is_told_with_its_interval_and_from_how_many_jobs() -> None:
    known = Learned(state(0.2, 0.3, 0.25))
    what, said = story(reporting(), known, CLUSTER)[-3]
    assert (what, said.endswith("from 3 jobs of its kind")) == ("Learned", True)
    figures = value(reporting(), known, CLUSTER)
    assert figures
    assert figures["low"] < figures["factor"] < figures["high"]
    assert f"×{figures['factor']:.2f}" in said
    assert (figures["level"], figures["jobs"]) == ("locality", 3)
    assert figures["nextLow"] < figures["low"] < figures["high"] < figures["nextHigh"]
    (by_level, levels), (sure, how) = story(reporting(), known, CLUSTER)[-2:]
    assert by_level == "By level"
    assert levels == ", ".join(
        f"{name} ×{each['factor']:.2f} (3 jobs)"
        for name, each in zip(
            ("cluster", "GPU type", "framework", "model", "class of plans", "locality"), figures["levels"], strict=True
        )
    )
    assert math.prod(each["factor"] for each in figures["levels"]) == pytest.approx(figures["factor"], rel=1e-3)
    assert sure == "Certainty"
    assert f"×{figures['nextLow']:.2f} to ×{figures['nextHigh']:.2f}" in how


def test_what_is_known_of_others_only_is_told_as_such() -> None:
    key = Key("gpt2-xl", A100, "torchtitan/BF16/Data/zero1", Locality.SCATTERED)
    known = Learned(learn(State(), key, "other", 0.3, namespace=anonymous("default")))
    what, said = story(reporting(), known, CLUSTER)[-3]
    assert (what, said.endswith("from 1 job in other frameworks on its GPU type")) == ("Learned", True)
    figures = value(reporting(), known, CLUSTER)
    assert figures
    assert (figures["level"], figures["jobs"]) == ("gpu_type", 1)
    assert [each["level"] for each in figures["levels"]] == ["cluster", "gpu_type"]


def test_a_job_without_a_plan_has_no_step_time() -> None:
    waiting = facts(job_object())
    assert story(waiting, Learned(state(0.2)), CLUSTER) == []
    assert value(waiting, Learned(state(0.2)), CLUSTER) is None


async def test_it_is_read_from_the_controllers_config_map(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        kube = KubeSettings(kubeconfig=server.kubeconfig(tmp_path))
        assert not await learned(kube, ReportSettings())
        server.store.create("configmaps", {"metadata": CONFIG_MAP, "data": written(state(0.2))})
        found = await learned(kube, ReportSettings())
        assert found.of("default") == Learned(state(0.2)).of("default")
        assert found.of("default").keys


@pytest.mark.parametrize("data", [{}, {"state.json": json.dumps({"version": 9})}], ids=str)
async def test_what_is_not_understood_is_said_to_people_and_corrects_nothing(
    data: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FakeApiServer() as server:
        server.store.create("configmaps", {"metadata": CONFIG_MAP, "data": data})
        assert not await learned(KubeSettings(kubeconfig=server.kubeconfig(tmp_path)), ReportSettings())
    out, err = capsys.readouterr()
    assert (out, "predictions are not corrected" in err) == ("", True)


async def test_who_may_not_read_it_gets_predictions_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(*_: object) -> bytes:
        raise Forbidden("no")

    monkeypatch.setattr(KubeClient, "get", forbidden)
    async with FakeApiServer() as server:
        assert not await learned(KubeSettings(kubeconfig=server.kubeconfig(tmp_path)), ReportSettings())
    assert "you may not read ConfigMap trimtab-system/trimtab-calibration" in capsys.readouterr().err
