"""What a ConfigMap may say about who decides, and what is said about one that is wrong."""

from __future__ import annotations

import re

import pytest

from trimtab import names
from trimtab.decide.choice import read_choice
from trimtab.decide.engine import LOAD_SECONDS, TRIAL_SECONDS
from trimtab.errors import PolicyError
from trimtab.settings import HttpSettings, PolicySettings
from trimtab_policy.policy import UnknownPolicy
from trimtab_policy.scheduling.choice import LONGEST_DEADLINE, Choice

STARTED = Choice("best_fit", "fcfs", "sia", 2.0)


def test_all_keys_are_understood() -> None:
    said = {"policy": "srtf", "fallback": "sjf", "shadow": "las", "deadlineSeconds": "0.5"}
    assert read_choice(said, STARTED) == Choice("srtf", "sjf", "las", 0.5)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, STARTED),
        ({"policy": " srtf\n"}, Choice("srtf", "fcfs", "sia", 2.0)),
        ({"shadow": ""}, Choice("best_fit", "fcfs", "", 2.0)),
        ({"deadlineSeconds": "30"}, Choice("best_fit", "fcfs", "sia", 30.0)),
        ({"deadlineSeconds": "1500ms"}, Choice("best_fit", "fcfs", "sia", 1.5)),
    ],
)
def test_what_is_left_out_stays_as_started(said: dict[str, str], wanted: Choice) -> None:
    assert read_choice(said, STARTED) == wanted


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            {"policy": "best_fti"},
            "policy: 'best_fti' is not understood: unknown policy 'best_fti'; did you mean best",
        ),
        ({"policy": ""}, "policy: '' is not understood: unknown policy ''"),
        ({"policy": "srtf", "fallback": "none"}, "fallback: 'none' is not understood"),
        ({"fallback": "dqn_cnn"}, "dqn_cnn is learned and may fail itself; fall back on a rule such as fcfs"),
        ({"shadow": "me"}, "shadow: 'me' is not understood"),
        ({"deadlineSeconds": "soon"}, "deadlineSeconds: 'soon' is not understood: 'soon' is no duration"),
        ({"deadlineSeconds": "0"}, "deadlineSeconds: '0' is not understood: must be more than 0 and at most 30"),
        ({"deadlineSeconds": "nan"}, "deadlineSeconds: 'nan' is not understood: must be"),
        ({"deadlineSeconds": "31"}, "deadlineSeconds: '31' is not understood: must be"),
        (
            {"policy": "x" * 9999},
            f"policy: '{'x' * 80}' is not understood: unknown policy '{'x' * 80}'; registered are: ",
        ),
        ({"polcy": "srtf"}, "unknown key 'polcy' (value 'srtf'); known keys are: policy, fallback, shadow, deadline"),
    ],
)
def test_what_is_not_understood_is_told_with_key_value_and_what_is_known(said: dict[str, str], told: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(told)):
        read_choice(said, STARTED)


@pytest.mark.parametrize("role", ["policy", "fallback", "shadow"])
def test_a_controller_is_not_started_with_a_name_that_is_not_registered(role: str) -> None:
    wrong = Choice(**{"policy": "best_fit", "fallback": "fcfs"} | {role: "nonsense"})
    with pytest.raises(UnknownPolicy, match="nonsense"):
        wrong.check()


def test_a_controller_is_not_started_with_a_fallback_that_may_fail_itself() -> None:
    with pytest.raises(UnknownPolicy, match="dqn_cnn is learned and may fail itself"):
        Choice("best_fit", "dqn_cnn").check()
    Choice("dqn_cnn", "fcfs").check()


def test_no_deadline_makes_a_round_look_stuck() -> None:
    """Policy and fallback may both be new, slow to load, and late."""
    assert HttpSettings().stale_round_seconds > 2 * (LOAD_SECONDS + TRIAL_SECONDS + LONGEST_DEADLINE)


def test_the_names_in_the_settings_are_the_names_in_the_config_map() -> None:
    where = PolicySettings().config_map
    assert (where.namespace, where.name) == (names.SYSTEM_NAMESPACE, names.POLICY_CONFIG_MAP)
    assert "`policy`, `fallback`, `shadow` and `deadlineSeconds`" in (type(where).__doc__ or "")
