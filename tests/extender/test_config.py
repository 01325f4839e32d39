"""What kube-scheduler is told about the extender: each field keeps a danger away that was seen without it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from trimtab import names
from trimtab.errors import SettingsError
from trimtab.extender.config import FEATURE_GATES, ExtenderTls, scheduler_configuration

TLS = ExtenderTls(ca="/etc/extender/ca.crt", certificate="/etc/extender/tls.crt", key="/etc/extender/tls.key")


def configuration(**changes: Any) -> dict[str, Any]:
    return scheduler_configuration("https://trimtab-extender.trimtab-system.svc:8888", **{"tls": TLS, **changes})


def extender(**changes: Any) -> dict[str, Any]:
    (only,) = configuration(**changes)["extenders"]
    return dict(only)


def test_it_says_what_it_is() -> None:
    made = configuration()
    assert (made["apiVersion"], made["kind"]) == ("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration")
    assert yaml.safe_load(yaml.safe_dump(made)) == made


def test_a_refusal_never_kills_running_pods_because_our_profile_does_not_preempt() -> None:
    ours, *_ = configuration()["profiles"]
    assert ours["schedulerName"] == names.SCHEDULER_NAME
    assert ours["plugins"] == {"postFilter": {"disabled": [{"name": "*"}]}}


def test_should_preemption_come_back_the_extender_is_asked() -> None:
    assert extender()["preemptVerb"] == "preempt"


def test_the_extender_sees_every_node_that_fits_one_of_our_pods_and_of_others_a_sample() -> None:
    made = configuration(beside=["others"])
    assert [each.get("percentageOfNodesToScore") for each in made["profiles"]] == [100, None]
    assert "percentageOfNodesToScore" not in made


def test_nothing_is_placed_without_us_when_we_do_not_answer() -> None:
    assert extender()["ignorable"] is False


def test_kube_scheduler_goes_on_counting_gpus() -> None:
    managed = extender()["managedResources"]
    assert {resource["name"]: resource["ignoredByScheduler"] for resource in managed} == dict.fromkeys(
        names.GPU_RESOURCES, False
    )


def test_names_are_sent_and_not_whole_nodes() -> None:
    assert extender()["nodeCacheCapable"] is True


def test_a_call_that_hangs_holds_others_up_for_a_second_at_most() -> None:
    assert extender()["httpTimeout"] == "1000ms"
    assert extender(timeout_seconds=0.25)["httpTimeout"] == "250ms"


def test_kube_scheduler_binds_itself_and_scores_itself_unless_told_otherwise() -> None:
    assert not {"bindVerb", "prioritizeVerb", "weight"} & extender().keys()
    both = extender(bind=True, prioritize=True)
    assert (both["bindVerb"], both["prioritizeVerb"]) == ("bind", "prioritize")
    assert 10 * 10 * both["weight"] > 1200  # weights of the default plugins add up to 12, their scores go to 100


def test_refused_pods_wait_out_their_back_off() -> None:
    assert FEATURE_GATES == {"SchedulerPopFromBackoffQ": False}


def test_tls_is_checked_on_both_sides() -> None:
    made = extender(tls=ExtenderTls(TLS.ca, TLS.certificate, TLS.key, server_name="trimtab-extender"))
    assert made["enableHTTPS"] is True
    assert made["tlsConfig"] == {
        "insecure": False,
        "caFile": TLS.ca,
        "certFile": TLS.certificate,
        "keyFile": TLS.key,
        "serverName": "trimtab-extender",
    }


def test_plain_http_is_for_one_machine() -> None:
    (made,) = scheduler_configuration("http://127.0.0.1:8888/")["extenders"]
    assert made["enableHTTPS"] is False
    assert "tlsConfig" not in made
    assert made["urlPrefix"] == "http://127.0.0.1:8888"


@pytest.mark.parametrize(
    ("url", "tls", "complaint"),
    [
        ("https://extender:8888", None, "checks none at all"),
        ("https://extender:8888", ExtenderTls(ca=""), "checks none at all"),
        ("http://extender:8888", None, "anybody could answer"),
        ("http://127.0.0.1:8888", TLS, "https://"),
        ("https://extender", ExtenderTls(ca="ca", certificate="crt"), "needs its key"),
        ("extender:8888", None, "http://HOST"),
    ],
)
def test_what_would_not_be_safe_is_refused(url: str, tls: ExtenderTls | None, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        scheduler_configuration(url, tls=tls)


def test_other_pods_keep_their_own_profile_and_its_preemption() -> None:
    ours, other = configuration(beside=("default-scheduler",))["profiles"]
    assert other == {"schedulerName": "default-scheduler"}
    with pytest.raises(SettingsError, match="name of its own"):
        configuration(beside=(ours["schedulerName"],))


def test_replicas_elect_a_leader_by_a_lease_of_their_own() -> None:
    assert configuration()["leaderElection"] == {"leaderElect": False}
    assert configuration(lease=("trimtab-system", "trimtab-scheduler"))["leaderElection"] == {
        "leaderElect": True,
        "resourceNamespace": "trimtab-system",
        "resourceName": "trimtab-scheduler",
    }
