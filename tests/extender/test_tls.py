"""TLS: whose certificate opens which door, and certificates that are replaced while the extender runs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from tests.extender.desk import LOCAL, Desk, desk, eventually, node, planned

from trimtab.errors import SettingsError
from trimtab.extender import tls
from trimtab.extender.app import _until, serve_extender
from trimtab.serving import tls as serving_tls
from trimtab.settings import ExtenderSettings, Settings
from trimtab.telemetry.metrics import PORTS, REGISTRY
from trimtab.telemetry.ports import PortCounts
from trimtab_local.control_plane.pki import Authority

ASKED = {"Pod": planned("job7-1-0", "gpu-1"), "NodeNames": ["gpu-1"]}


class Keys:
    """Files of two authorities, and who got a certificate of which."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers, self.clients, self.strangers = Authority("servers"), Authority("clients"), Authority("strangers")
        self.servers.save(self.path("servers.ca"))
        self.clients.save(self.path("clients.ca"))
        self.issue_server("first")
        self.clients.issue(self.path("scheduler"), "system:kube-scheduler")
        self.clients.issue(self.path("other"), "somebody-else")
        self.strangers.issue(self.path("stranger"), "system:kube-scheduler")

    def path(self, name: str) -> Path:
        return self.directory / name

    def issue_server(self, name: str) -> None:
        """A new certificate of the server, in its usual place."""
        self.servers.issue(self.path("server"), name, hosts=(LOCAL,))

    def settings(self, **changes: Any) -> dict[str, Any]:
        server = {"certificate": self.path("server.crt"), "key": self.path("server.key")}
        return {**server, "client_ca": self.path("clients.ca"), **changes}

    def client(self, who: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.path("servers.ca"))
        if who:
            context.load_cert_chain(self.path(f"{who}.crt"), self.path(f"{who}.key"))
        return context


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest_asyncio.fixture
async def there(tmp_path: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    """An extender that answers kube-scheduler only, and looks at its files often."""
    monkeypatch.setattr(serving_tls, "LOOK_SECONDS", 0.05)
    limits = keys.settings(client_names=("system:kube-scheduler",), request_seconds=10)
    async with desk(tmp_path, ("nodes", node("gpu-1")), **limits) as made:
        yield made


async def ask(there: Desk, context: ssl.SSLContext, path: str = "/filter") -> int:
    """Status of the answer, on a connection of its own."""
    url = f"https://{LOCAL}:{there.extender.ports[0]}{path}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        method = "POST" if path == "/filter" else "GET"
        async with session.request(method, url, json=ASKED if path == "/filter" else None) as answer:
            await answer.read()
            return answer.status


async def test_kube_scheduler_is_answered_and_nobody_else(there: Desk, keys: Keys) -> None:
    assert await ask(there, keys.client("scheduler")) == 200
    assert await ask(there, keys.client("other")) == 403
    for who in ("", "stranger"):
        with pytest.raises(aiohttp.ClientError):
            await ask(there, keys.client(who))


async def test_what_is_planned_where_is_shown_to_nobody_without_a_certificate(there: Desk, keys: Keys) -> None:
    assert await ask(there, keys.client("scheduler"), "/inspect") == 200
    assert await ask(there, keys.client("other"), "/inspect") == 403
    with pytest.raises(aiohttp.ClientError):
        await ask(there, keys.client(), "/inspect")
    async with there.session.get(f"http://{LOCAL}:{there.extender.ports[1]}/inspect") as answer:
        assert answer.status == 404


async def test_people_may_read_what_is_planned_where_and_ask_for_nothing_else(tmp_path: Path, keys: Keys) -> None:
    limits = keys.settings(client_names=("system:kube-scheduler",), inspect_names=("somebody-else",))
    async with desk(tmp_path, ("nodes", node("gpu-1")), **limits) as there:
        assert await ask(there, keys.client("other"), "/inspect") == 200
        assert await ask(there, keys.client("other"), "/filter") == 403
        assert await ask(there, keys.client("other"), "/metrics") == 403
        assert await ask(there, keys.client("scheduler")) == 200


async def test_plain_http_and_old_tls_are_not_spoken(there: Desk, keys: Keys) -> None:
    with pytest.raises(aiohttp.ClientError):
        await there.get("/healthz")
    old = keys.client("scheduler")
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(aiohttp.ClientError):
        await ask(there, old)


async def test_a_handshake_that_stalls_is_cut_off(tmp_path: Path, keys: Keys) -> None:
    async with desk(tmp_path, ("nodes", node("gpu-1")), **keys.settings(request_seconds=0.3)) as there:
        reader, _ = await there.dial()
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        assert await ask(there, keys.client("scheduler")) == 200


async def served_certificate(there: Desk, keys: Keys) -> str:
    """Common name of what the server shows."""
    context = keys.client("scheduler")
    _, writer = await asyncio.open_connection(LOCAL, there.extender.ports[0], ssl=context)
    (subject,) = (pair for (pair,) in writer.get_extra_info("peercert")["subject"])
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    return str(subject[1])


def taken(result: str) -> float:
    return REGISTRY.get_sample_value("trimtab_certificates_total", {"port": "extender", "result": result}) or 0


async def test_a_new_certificate_is_shown_without_a_connection_lost(there: Desk, keys: Keys) -> None:
    assert await served_certificate(there, keys) == "first"
    before = taken("taken")
    connector = aiohttp.TCPConnector(ssl=keys.client("scheduler"), limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:
        keys.issue_server("second")
        while taken("taken") == before:
            async with session.post(f"https://{LOCAL}:{there.extender.ports[0]}/filter", json=ASKED) as answer:
                assert answer.status == 200
    assert await served_certificate(there, keys) == "second"


async def test_a_set_of_files_that_does_not_fit_together_changes_nothing(there: Desk, keys: Keys) -> None:
    before = taken("refused")
    keys.path("server.crt").write_text("half a certifi")
    await eventually(lambda: taken("refused") > before)
    assert await served_certificate(there, keys) == "first"
    keys.path("server.crt").unlink()
    await asyncio.sleep(0.2)
    assert await served_certificate(there, keys) == "first"
    keys.issue_server("second")
    before = taken("taken")
    await eventually(lambda: taken("taken") > before)


async def test_clients_of_an_authority_that_was_replaced_are_answered_no_more(there: Desk, keys: Keys) -> None:
    connector = aiohttp.TCPConnector(ssl=keys.client("scheduler"))
    async with aiohttp.ClientSession(connector=connector) as session:
        url = f"https://{LOCAL}:{there.extender.ports[0]}/filter"
        async with session.post(url, json=ASKED) as answer:
            assert answer.status == 200
        before = taken("taken")
        keys.strangers.save(keys.path("clients.ca"))
        await eventually(lambda: taken("taken") > before)
        with pytest.raises(aiohttp.ClientError):  # not even on the connection that it had
            await session.post(url, json=ASKED)
    assert await ask(there, keys.client("stranger")) == 200


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"certificate": Path("c")}, "go together"),
        ({"key": Path("k")}, "go together"),
        ({"client_ca": Path("ca")}, "over TLS"),
        ({"client_names": ("me",)}, "mean nothing"),
        (
            {"certificate": Path("c"), "key": Path("k"), "client_ca": Path("ca"), "inspect_names": ("me",)},
            "client_names",
        ),
        ({}, "extender.certificate"),
        ({"host": "::"}, "extender.insecure"),
        ({"host": "10.0.0.1", "bind": True, "insecure": True}, "anybody there could bind"),
        ({"certificate": Path("c"), "key": Path("k"), "bind": True}, "extender.client_ca"),
        ({"certificate": Path("nowhere.crt"), "key": Path("nowhere.key")}, "cannot use the TLS files"),
    ],
)
def test_settings_that_promise_more_than_they_give_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        serving_tls.context(tls.files(ExtenderSettings(**given)))


@pytest.mark.parametrize(
    "given",
    [
        {"host": "127.0.0.1", "bind": True},
        {"host": "::1"},
        {"host": "localhost", "bind": True},
        {"insecure": True},
        {"certificate": Path("c"), "key": Path("k")},
        {"certificate": Path("c"), "key": Path("k"), "client_ca": Path("ca"), "bind": True},
    ],
)
def test_settings_that_say_what_they_give_are_taken(given: dict[str, Any]) -> None:
    tls.check(ExtenderSettings(**given))


async def test_nothing_is_begun_with_settings_that_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"0\.0\.0\.0.*extender\.certificate.*--host.*extender\.insecure: true"):
        await serve_extender(Settings())


# --- following the files, whatever happens ---------------------------------------------------------------------------
class Door:
    """Takes new TLS, once it has failed as often as it is to."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.opened: list[bool] = []
        """For each time whether the clients' authority was another."""

    async def open(self, context: ssl.SSLContext | None, other_clients: bool) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.opened.append(other_clients)


@pytest.fixture
def following(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Callable[[Door], asyncio.Task[None]]:
    """Starts to follow the files, on behalf of a door."""
    monkeypatch.setattr(serving_tls, "LOOK_SECONDS", 0.02)
    files, counts = tls.files(ExtenderSettings(**keys.settings())), PortCounts(PORTS, "extender", 1)
    return lambda door: asyncio.create_task(
        serving_tls.follow(files, serving_tls.stamp(files), door.open, counts.certificates)
    )


async def test_a_port_that_cannot_be_opened_anew_is_tried_again(
    keys: Keys, following: Callable[[Door], asyncio.Task[None]]
) -> None:
    door = Door(OSError("too many open files"))
    task = following(door)
    keys.strangers.save(keys.path("clients.ca"))
    await eventually(lambda: door.opened == [True])
    assert not task.done()
    task.cancel()


async def test_clients_of_the_old_authority_go_though_the_first_set_with_the_new_one_was_refused(
    keys: Keys, following: Callable[[Door], asyncio.Task[None]]
) -> None:
    door, before = Door(), taken("refused")
    task = following(door)
    keys.path("server.crt").write_text("half a certifi")
    keys.strangers.save(keys.path("clients.ca"))
    await eventually(lambda: taken("refused") > before)
    assert door.opened == []
    keys.issue_server("second")
    await eventually(lambda: door.opened != [])
    assert door.opened == [True]
    task.cancel()


async def test_the_process_ends_when_certificates_are_followed_no_more(
    keys: Keys, following: Callable[[Door], asyncio.Task[None]]
) -> None:
    task = following(Door(ValueError("a bug")))
    keys.issue_server("second")
    with pytest.raises(ValueError, match="a bug"):
        await _until(asyncio.Event(), task)
