"""Where settings come from, and what is said about wrong ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from trimtab import docstrings
from trimtab.errors import SettingsError
from trimtab.settings import DEFAULTS, Settings, load
from trimtab.settings.section import Section


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trimtab.yaml"
    path.write_text("policy: {name: fixed, fallback: fixed, deadline_seconds: 1}\n")
    return path


def test_flags_beat_the_environment_which_beats_the_file_which_beats_defaults(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_POLICY__NAME", "from-env")
    monkeypatch.setenv("TRIMTAB_POLICY__FALLBACK", "from-env")
    settings = load(file, {"policy": {"name": "from-flag"}})
    assert settings.policy.name == "from-flag"
    assert settings.policy.fallback == "from-env"
    assert settings.policy.deadline_seconds == 1
    assert settings.kube.connections == 64


def test_all_processes_find_a_port_of_their_own_on_one_machine(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Counter(load(process=process).metrics.port for process in DEFAULTS)
    everybody = load()
    taken.update((everybody.reports.port, everybody.extender.port))
    assert set(taken.values()) == {1}
    file.write_text("metrics: {port: 9000}\n")
    assert {load(file, process=process).metrics.port for process in DEFAULTS} == {9000}
    monkeypatch.setenv("TRIMTAB_METRICS__PORT", "0")
    assert {load(file, process=process).metrics.port for process in DEFAULTS} == {0}


def test_the_environment_names_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_CONFIG", str(file))
    assert load().policy.name == "fixed"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("policy: {nmae: x}", r"policy\.nmae: unknown key"),
        ("polcy: {}", r"polcy: unknown key"),
        ("kube: {connections: many}", r"kube\.connections: Input should be a valid integer"),
        ("leadership: {lease_seconds: 5}", r"leadership: .*retry_seconds < renew_seconds < lease_seconds"),
        ("metrics: {tls: {certificate: a.crt}}", r"metrics\.tls: .*certificate and key go together"),
        ("reports: {tls: {certificate: a, key: b}, url: 'http://x'}", r"reports: .*url must begin with https://"),
        ("reports: {ca: x, url: 'http://x'}", r"reports: .*ca is for an url that begins with https://"),
        ("reports: {ca: x, url: 'https://x'}", r"reports: .*ca is no PEM certificate"),
        ("reports: {ca: '-----BEGIN PRIVATE KEY-----', url: 'https://x'}", r"reports: .*ca holds a private key"),
        ("- a list", r"must hold a mapping, not a list"),
        ("policy: [", r"cannot read the settings file"),
    ],
)
def test_a_wrong_file_is_refused_and_the_key_named(file: Path, content: str, message: str) -> None:
    file.write_text(content)
    with pytest.raises(SettingsError, match=message):
        load(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the settings file .*absent"):
        load(tmp_path / "absent")


def test_a_misspelt_section_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_POLCY__NAME", "x")
    with pytest.raises(SettingsError, match="TRIMTAB_POLCY__NAME: there are no settings called 'polcy'"):
        load()


def test_what_kubernetes_puts_into_the_environment_for_a_service_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_PORT", "tcp://10.0.0.1:443")
    monkeypatch.setenv("TRIMTAB_SERVICE_HOST", "10.0.0.1")
    assert load().model_dump() == Settings().model_dump()


def test_every_setting_is_documented() -> None:
    sections = {name: info.annotation for name, info in Settings.model_fields.items()}
    for name, section in sections.items():
        assert isinstance(section, type)
        assert issubclass(section, Section)
        documented = docstrings.of_fields(section)
        undocumented = [field for field in section.model_fields if not documented.get(field)]
        assert not undocumented, name


def test_durations_may_have_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_ROUND__SWEEP_SECONDS", "5m")
    assert load(flags={"gang": {"backoff_initial_seconds": "1500ms"}}).gang.backoff_initial_seconds == 1.5
    assert load().round.sweep_seconds == 300
    for wrong in ("5x", "0s"):
        monkeypatch.setenv("TRIMTAB_ROUND__SWEEP_SECONDS", wrong)
        with pytest.raises(SettingsError, match=r"round\.sweep_seconds: "):
            load()
