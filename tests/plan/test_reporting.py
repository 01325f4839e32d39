"""What a pod gets to report its steps with: an address, whose job it is, and a token that is good for nothing else."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion
from tests.builders import job_object, placement, plan_of

from trimtab import names
from trimtab.observe.jobs import facts
from trimtab.plan import objects
from trimtab.plan.gang import gang_plan
from trimtab.plan.objects import GangPlan

URL = "http://trimtab-reports.trimtab-system.svc:8090"


def gang(spec: dict[str, Any] | None = None, url: str = URL) -> GangPlan:
    known = facts(job_object("llama", spec or {}))
    assert known.spec, known.error
    assert known.training
    return gang_plan(known.meta, known.spec, known.template, known.training, plan_of(placement(), 3), report_url=url)


def env(pod: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}


def test_pod_that_reports(golden: SnapshotAssertion) -> None:
    assert objects.pod(gang(), 0) == golden


def test_where_nobody_listens_pods_are_what_they_were() -> None:
    with_url, without = gang(), gang(url="")
    assert objects.pod(without, 0) == objects.pod(replace(with_url, report_url=""), 0)
    assert not [name for name in env(objects.pod(without, 0)) if "REPORT" in name]
    assert names.REPORT_TOKEN_DIRECTORY not in str(objects.pod(without, 0))


def test_a_pod_knows_whom_to_trust_where_reports_go_over_https() -> None:
    pem = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"
    secure = env(objects.pod(replace(gang(url="https://reports.test"), report_ca=pem), 0))
    assert (secure["TRIMTAB_REPORT_URL"], secure["TRIMTAB_REPORT_CA"]) == ("https://reports.test", pem)
    assert "TRIMTAB_REPORT_CA" not in env(objects.pod(gang(), 0))


def test_the_user_may_send_reports_elsewhere_or_mount_a_token_of_their_own() -> None:
    trainer: dict[str, Any] = {
        "name": "trainer",
        "image": "trainer:1",
        "env": [{"name": "TRIMTAB_REPORT_URL", "value": "http://mine"}],
        "volumeMounts": [{"name": "own", "mountPath": names.REPORT_TOKEN_DIRECTORY}],
    }
    volumes = [{"name": "own", "emptyDir": {}}]
    pod = objects.pod(gang({"template.spec": {"containers": [trainer], "volumes": volumes}}), 0)
    assert env(pod)["TRIMTAB_REPORT_URL"] == "http://mine"
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["own", "trimtab-shm", "trimtab-request"]


def test_a_pod_without_the_usual_token_can_report_all_the_same() -> None:
    spec = {"containers": [{"name": "trainer", "image": "trainer:1"}], "automountServiceAccountToken": False}
    pod = objects.pod(gang({"template.spec": spec}), 0)
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert "trimtab-report" in {volume["name"] for volume in pod["spec"]["volumes"]}
