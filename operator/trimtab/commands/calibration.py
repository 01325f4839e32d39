"""Which constants of the performance model a command, or the controller, predicts with."""

from __future__ import annotations

from pathlib import Path

from trimtab.errors import SettingsError
from trimtab.settings import PerfSettings
from trimtab_policy.perf import constants
from trimtab_policy.perf.constants import Constants, ConstantsError


def read_calibration_file(file: Path | None) -> Constants:
    """Constants of a file; without one the published ones. Raises SettingsError naming file and field."""
    try:
        return constants.load(file)
    except ConstantsError as error:
        raise SettingsError(f"the constants of the performance model cannot be used: {error}") from error


def use(perf: PerfSettings) -> None:
    """Let everything that this process predicts follow the settings."""
    constants.use(read_calibration_file(perf.constants))
