"""The listener for reports over TLS, with certificates that change while it runs."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp
import pytest
from tests.controller import test_reports
from tests.controller.test_reports import REPORT, Desk, Known, Vouching
from tests.extender.desk import eventually

from trimtab.controller.reports.endpoint import PATH
from trimtab.serving import tls as serving_tls
from trimtab.settings import ReportSettings
from trimtab.settings.section import TlsSettings
from trimtab.telemetry.metrics import REGISTRY
from trimtab_local.control_plane.pki import Authority


async def test_reports_are_taken_over_tls_and_new_certificates_are_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_tls, "LOOK_SECONDS", 0.02)
    stem, mine = tmp_path / "server", {"Authorization": "Bearer pod-a"}

    def signed(name: str) -> aiohttp.TCPConnector:
        authority, ca = Authority(name), tmp_path / f"{name}.ca"
        authority.save(ca)
        authority.issue(stem, name, hosts=["127.0.0.1"])
        return aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca))

    def taken() -> float:
        return REGISTRY.get_sample_value("trimtab_certificates_total", {"port": "reports", "result": "taken"}) or 0

    first, pair = signed("first"), TlsSettings(certificate=stem.with_suffix(".crt"), key=stem.with_suffix(".key"))
    settings = ReportSettings(host="127.0.0.1", port=0, url="https://reports.test", tls=pair)
    monkeypatch.setattr(test_reports, "SETTINGS", settings)
    desk = Desk(Known({"mine": "pod-a"}), Vouching())
    async with desk.server, aiohttp.ClientSession(connector=first) as session:
        url, before = desk.server.url + PATH, taken()
        assert url.startswith("https://")
        async with session.post(url, json=REPORT, headers=mine) as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientError):
            async with session.post(url.replace("https", "http"), json=REPORT, headers=mine):
                pytest.fail("it was answered in plain text")
        second = signed("second")
        await eventually(lambda: taken() > before)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            async with session.post(url, json=REPORT, headers=mine):
                pytest.fail("the old certificate is still shown")
        desk.clock += 10
        async with aiohttp.ClientSession(connector=second) as anew, anew.post(url, json=REPORT, headers=mine) as answer:
            assert answer.status == 200
