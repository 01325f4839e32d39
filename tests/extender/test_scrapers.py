"""The extender's two doors where only some may read metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.extender import desk as desks
from tests.extender.desk import LOCAL, desk

from trimtab.settings import HttpSettings

CLOSED = HttpSettings(host=LOCAL, port=0, authentication="Kubernetes")


async def test_metrics_are_told_at_one_door_and_there_only_to_whom_the_api_server_vouches_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = desks.settings
    monkeypatch.setattr(desks, "settings", lambda **given: made(**given).model_copy(update={"metrics": CLOSED}))
    async with desk(tmp_path) as there:
        asked, closed = (f"http://{LOCAL}:{port}" for port in there.extender.ports)
        shown = {"Authorization": "Bearer token"}
        for url, headers, status in (
            (f"{asked}/metrics", {}, 404),
            (f"{asked}/metrics", shown, 404),
            (f"{closed}/metrics", {}, 401),
            (f"{closed}/metrics", shown, 503),  # this API server knows no reviews
            (f"{closed}/healthz", {}, 200),
            (f"{asked}/healthz", {}, 200),
        ):
            async with there.session.get(url, headers=headers) as answer:
                assert (answer.status, "trimtab_connections" in await answer.text()) == (status, False), url
