"""Metrics over TLS: certificates that change while they are served, and health in plain text all the same."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from tests.extender.desk import eventually

from trimtab.agent.config import AgentConfig
from trimtab.agent.start import config_of
from trimtab.errors import SettingsError
from trimtab.serving import tls as serving_tls
from trimtab.settings import HttpSettings, Settings
from trimtab.settings.section import MutualTlsSettings
from trimtab.telemetry.metrics import REGISTRY
from trimtab.telemetry.server import TelemetryServer
from trimtab_local.control_plane.pki import Authority

LOCAL = "127.0.0.1"


class Keys:
    """An authority, and the server's certificate of it."""

    def __init__(self, directory: Path) -> None:
        self._authority = Authority("metrics")
        self._ca, self.stem = directory / "ca.crt", directory / "server"
        self._authority.save(self._ca)
        self.issue("first")

    def issue(self, name: str) -> None:
        self._authority.issue(self.stem, name, hosts=[LOCAL])

    def settings(self, client_ca: Path | None = None) -> HttpSettings:
        certificate, key = self.stem.with_suffix(".crt"), self.stem.with_suffix(".key")
        tls = MutualTlsSettings(certificate=certificate, key=key, client_ca=client_ca)
        return HttpSettings(host=LOCAL, port=0, tls=tls)

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._ca)

    def scraper(self, authority: Authority, stem: Path) -> ssl.SSLContext:
        """A client with a certificate of this authority."""
        authority.issue(stem, "prometheus")
        context = self.client()
        context.load_cert_chain(stem.with_suffix(".crt"), stem.with_suffix(".key"))
        return context

    async def shown(self, server: TelemetryServer) -> str:
        """Common name of the server's certificate."""
        port = int(server.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection(LOCAL, port, ssl=self.client())
        (subject,) = (pair for (pair,) in writer.get_extra_info("peercert")["subject"])
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        return str(subject[1])


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    monkeypatch.setattr(serving_tls, "LOOK_SECONDS", 0.02)
    return Keys(tmp_path)


@pytest.fixture
async def server(keys: Keys) -> AsyncIterator[TelemetryServer]:
    async with TelemetryServer(keys.settings(), healthy=lambda: "", ready=lambda: "not yet") as server:
        yield server


def changes(result: str) -> float:
    return REGISTRY.get_sample_value("trimtab_certificates_total", {"port": "metrics", "result": result}) or 0


async def get(url: str, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    connector = aiohttp.TCPConnector(ssl=context) if context else None
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def test_metrics_are_told_over_tls_only(keys: Keys, server: TelemetryServer) -> None:
    assert server.url.startswith("https://")
    status, text = await get(f"{server.url}/metrics", keys.client())
    assert (status, "trimtab_connections" in text) == (200, True)
    assert await get(f"{server.url}/readyz", keys.client()) == (503, "not yet\n")
    assert await get(f"{server.url}/metrics".replace("https", "http")) == (400, "this port speaks TLS only\n")
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await get(f"{server.url}/metrics", ssl.create_default_context())


async def test_a_kubelet_asks_for_health_in_plain_text(server: TelemetryServer) -> None:
    plain = server.url.replace("https", "http")
    assert await get(f"{plain}/healthz") == (200, "ok\n")
    assert await get(f"{plain}/readyz") == (503, "not yet\n")


async def test_a_new_certificate_is_taken_and_a_broken_one_counted(keys: Keys, server: TelemetryServer) -> None:
    assert await keys.shown(server) == "first"
    refused, taken = changes("refused"), changes("taken")
    keys.stem.with_suffix(".crt").write_text("half a certifi")
    await eventually(lambda: changes("refused") > refused)
    assert await keys.shown(server) == "first"
    keys.issue("second")
    await eventually(lambda: changes("taken") > taken)
    assert await keys.shown(server) == "second"


async def test_files_that_cannot_be_used_are_one_clear_error(keys: Keys) -> None:
    keys.stem.with_suffix(".key").unlink()
    with pytest.raises(SettingsError, match=r"metrics\.tls: cannot use the TLS files"):
        async with TelemetryServer(keys.settings(), healthy=lambda: "", ready=lambda: ""):
            pytest.fail("it serves without its key")


async def test_agents_are_told_of_the_files_and_serve_with_them(keys: Keys) -> None:
    told = msgspec.json.encode(config_of(Settings(metrics=keys.settings()), "n1"))
    http = msgspec.json.decode(told, type=AgentConfig).http
    async with TelemetryServer(http, healthy=lambda: "", ready=lambda: "") as server:
        assert server.url.startswith("https://")
        assert await get(f"{server.url}/healthz", keys.client()) == (200, "ok\n")
    plain = config_of(Settings(metrics=HttpSettings(host=LOCAL, port=0)), "n1").http
    async with TelemetryServer(plain, healthy=lambda: "", ready=lambda: "") as server:
        assert server.url.startswith("http://")


async def test_only_scrapers_with_a_certificate_of_the_authority_read_metrics(keys: Keys, tmp_path: Path) -> None:
    authority = Authority("scrapers")
    authority.save(tmp_path / "scrapers.crt")
    told = config_of(Settings(metrics=keys.settings(client_ca=tmp_path / "scrapers.crt")), "n1")
    http = msgspec.json.decode(msgspec.json.encode(told), type=AgentConfig).http  # as an agent is told
    async with TelemetryServer(http, healthy=lambda: "", ready=lambda: "") as server:
        status, text = await get(f"{server.url}/metrics", keys.scraper(authority, tmp_path / "prometheus"))
        assert (status, "trimtab_connections" in text) == (200, True)
        for nobody in (keys.client(), keys.scraper(Authority("scrapers"), tmp_path / "stranger")):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                await get(f"{server.url}/metrics", nobody)
        assert (await get(f"{server.url}/metrics".replace("https", "http")))[0] == 400
        assert await get(f"{server.url}/healthz".replace("https", "http")) == (200, "ok\n")


def test_an_authority_of_clients_without_tls_is_refused() -> None:
    with pytest.raises(ValueError, match="client_ca: clients can only be checked over TLS"):
        MutualTlsSettings(client_ca=Path("ca.crt"))
