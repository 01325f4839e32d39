"""A control (`evaluation.controls`): rudder's form with the constants from before any training, without its network."""

from __future__ import annotations

from trimtab_policy.learned.rudder import Rudder
from trimtab_policy.learned.worth import analytic


class AnalyticRudder(Rudder):
    """Rudder before any training."""

    name = "analytic_rudder"

    def __init__(self) -> None:
        super().__init__(analytic())
