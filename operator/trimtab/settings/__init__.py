"""All settings as one typed tree.

Precedence, lowest first: the defaults of the sections, those of the process, the YAML file (`--config` or
`TRIMTAB_CONFIG`), the environment (`TRIMTAB_LEADERSHIP__NAMESPACE=team-a`: section and field joined by two
underscores), command-line flags. A key or value that is not understood is an error that names it; nothing is
ignored silently.

Durations are seconds, or texts with units: `2s`, `5m`, `1h30m`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from trimtab.errors import SettingsError
from trimtab.settings.controller import (
    BindingSettings,
    ConfigMapSettings,
    FakeSettings,
    GangSettings,
    HttpSettings,
    KubeSettings,
    LeadershipSettings,
    LogSettings,
    MonitorSettings,
    PerfSettings,
    PolicySettings,
    PriceSettings,
    ReflectorSettings,
    RoundSettings,
    TopologySettings,
)
from trimtab.settings.edges import AgentSettings, ExtenderSettings, ReportSettings, TelemetrySettings, WebSettings
from trimtab.settings.living import (
    ElasticitySettings,
    FailureSettings,
    IdleSettings,
    InteropSettings,
    PreemptionSettings,
    QueueSettings,
)
from trimtab_policy.inputs import documents
from trimtab_policy.inputs.documents import NotYaml

__all__ = [
    "AgentSettings",
    "BindingSettings",
    "ConfigMapSettings",
    "ElasticitySettings",
    "ExtenderSettings",
    "FailureSettings",
    "FakeSettings",
    "GangSettings",
    "HttpSettings",
    "IdleSettings",
    "InteropSettings",
    "KubeSettings",
    "LeadershipSettings",
    "LogSettings",
    "MonitorSettings",
    "PerfSettings",
    "PolicySettings",
    "PreemptionSettings",
    "PriceSettings",
    "QueueSettings",
    "ReflectorSettings",
    "ReportSettings",
    "RoundSettings",
    "Settings",
    "TelemetrySettings",
    "TopologySettings",
    "WebSettings",
    "load",
    "read_prices",
]

ENV_PREFIX = "TRIMTAB_"
ENV_CONFIG = "TRIMTAB_CONFIG"

Process = Literal["controller", "extender", "agent", "web"]
DEFAULTS: dict[Process, dict[str, Any]] = {
    "controller": {},
    "extender": {"metrics": {"port": 8081}},
    "agent": {"metrics": {"port": 8082}},
    "web": {"metrics": {"port": 8083}},
}
"""Where a process has other defaults than those of the sections: all of them may run on one machine."""


class Settings(BaseSettings):
    """The whole tree."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
    )

    kube: KubeSettings = KubeSettings()
    reflector: ReflectorSettings = ReflectorSettings()
    leadership: LeadershipSettings = LeadershipSettings()
    round: RoundSettings = RoundSettings()
    policy: PolicySettings = PolicySettings()
    monitor: MonitorSettings = MonitorSettings()
    gang: GangSettings = GangSettings()
    binding: BindingSettings = BindingSettings()
    queues: QueueSettings = QueueSettings()
    preemption: PreemptionSettings = PreemptionSettings()
    elasticity: ElasticitySettings = ElasticitySettings()
    failures: FailureSettings = FailureSettings()
    idle: IdleSettings = IdleSettings()
    interop: InteropSettings = InteropSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    reports: ReportSettings = ReportSettings()
    agent: AgentSettings = AgentSettings()
    extender: ExtenderSettings = ExtenderSettings()
    web: WebSettings = WebSettings()
    fake: FakeSettings = FakeSettings()
    topology: TopologySettings = TopologySettings()
    perf: PerfSettings = PerfSettings()
    prices: PriceSettings = PriceSettings()
    metrics: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()


def load(
    config: Path | None = None, flags: Mapping[str, Any] | None = None, process: Process = "controller"
) -> Settings:
    """Settings of a process from all sources.

    `flags` is a nested mapping as in the YAML file (`{"policy": {"name": "fcfs"}}`). Raises SettingsError.
    """
    path = config or (Path(os.environ[ENV_CONFIG]) if os.environ.get(ENV_CONFIG) else None)
    _refuse_unknown_environment()
    file = _read(path) if path else {}

    class Layered(Settings):
        """`Settings` that also reads this file and the process's defaults, below the environment and the flags."""

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            layers = (InitSettingsSource(settings_cls, layer) for layer in (file, DEFAULTS[process]))
            return init_settings, env_settings, *layers

    try:
        return Layered(**(flags or {}))
    except ValidationError as error:
        raise SettingsError(_explain(error, path)) from error


def read_prices(path: Path) -> PriceSettings:
    """Prices of a file of their own, with the keys of the section. Raises SettingsError."""
    try:
        return PriceSettings.model_validate(_read(path))
    except ValidationError as error:
        raise SettingsError(_explain(error, path)) from error


def _refuse_unknown_environment() -> None:
    """Find misspelt sections. Names without `__` may be Kubernetes' own: a Service `trimtab` sets TRIMTAB_PORT."""
    for name in os.environ:
        section, nested, _ = name.removeprefix(ENV_PREFIX).partition("__")
        if name.startswith(ENV_PREFIX) and nested and section.lower() not in Settings.model_fields:
            raise SettingsError(f"environment variable {name}: there are no settings called {section.lower()!r}")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = documents.parse(path.read_bytes())
    except (OSError, NotYaml) as error:
        raise SettingsError(f"cannot read the settings file {path}: {error}") from error
    if not isinstance(content, dict | None):
        raise SettingsError(f"the settings file {path} must hold a mapping, not a {type(content).__name__}")
    return content or {}


def _explain(error: ValidationError, path: Path | None) -> str:
    sources = f"{path}, " if path else ""
    problems = (f"{'.'.join(map(str, e['loc']))}: {_words(e['type'], e['msg'])}" for e in error.errors())
    return f"settings ({sources}{ENV_PREFIX}* environment, flags): " + "; ".join(problems)


def _words(kind: str, message: str) -> str:
    return "unknown key" if kind == "extra_forbidden" else message
