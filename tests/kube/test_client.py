"""The client against an imitation API server: errors, deadlines, preconditions, credentials."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from tests.fakeserver import FakeApiServer

from trimtab import errors
from trimtab.kube.client import KubeClient, describe
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.resources import JOBS, LEASES, NODES, PODS
from trimtab.kube.responses import LONGEST_WAIT_SECONDS, error_from
from trimtab.settings import KubeSettings


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(KubeSettings(kubeconfig=server.kubeconfig(tmp_path))) as client:
        yield client


def pod(name: str = "p", node: str = "") -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"nodeName": node} if node else {}}


async def test_binding_carries_the_uid_and_refuses_another_pod_of_the_same_name(
    client: KubeClient, server: FakeApiServer
) -> None:
    uid = server.store.create("pods", pod())["metadata"]["uid"]
    with pytest.raises(errors.Conflict, match="UID in precondition"):
        await client.bind("team", "p", "another-uid", "node-1")
    await client.bind("team", "p", uid, "node-1")
    assert server.store.get("pods", "team/p")["spec"]["nodeName"] == "node-1"


async def test_binding_a_bound_pod_conflicts_and_says_where_it_is(client: KubeClient, server: FakeApiServer) -> None:
    uid = server.store.create("pods", pod(node="node-7"))["metadata"]["uid"]
    with pytest.raises(errors.Conflict, match='already assigned to node "node-7"') as caught:
        await client.bind("team", "p", uid, "node-1")
    assert caught.value.status == 409


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "../../secrets/s", "a%2fb", "a?watch=1", "a#b", "a\n", "a b", 254 * "a"]
)
def test_what_can_be_the_name_of_no_object_becomes_no_path_of_another(name: str) -> None:
    with pytest.raises(errors.NotFound, match="no object of the name"):
        PODS.path("team-a", name)
    with pytest.raises(errors.NotFound):
        PODS.path(name)
    assert PODS.path("team-a", "a..b:c_d.E") == "/api/v1/namespaces/team-a/pods/a..b:c_d.E"


async def test_creating_twice_is_already_exists(client: KubeClient) -> None:
    await client.create(PODS.path("team"), pod())
    with pytest.raises(errors.AlreadyExists):
        await client.create(PODS.path("team"), pod())


async def test_delete_takes_only_the_object_with_the_uid(client: KubeClient, server: FakeApiServer) -> None:
    uid = server.store.create("pods", pod())["metadata"]["uid"]
    with pytest.raises(errors.Conflict):
        await client.delete(PODS.path("team", "p"), uid="another-uid")
    await client.delete(PODS.path("team", "p"), uid=uid)
    with pytest.raises(errors.NotFound):
        await client.get(PODS.path("team", "p"))


async def test_a_stale_update_conflicts(client: KubeClient, server: FakeApiServer) -> None:
    lease = server.store.create("leases", {"metadata": {"name": "l", "namespace": "s"}, "spec": {}})
    await client.replace(LEASES.path("s", "l"), lease)
    with pytest.raises(errors.Conflict):
        await client.replace(LEASES.path("s", "l"), lease)


async def test_merge_patch_of_a_subresource_goes_to_its_path(client: KubeClient, server: FakeApiServer) -> None:
    server.store.create("llmtrainingjobs", {"metadata": {"name": "j", "namespace": "team"}})
    await client.merge_patch(JOBS.path("team", "j"), {"status": {"x": 1}}, subresource="status")
    assert server.requests[-1] == "PATCH /apis/trimtab.dev/v1alpha1/namespaces/team/llmtrainingjobs/j/status"
    assert server.store.get("llmtrainingjobs", "team/j")["status"] == {"x": 1}


async def test_a_list_comes_in_pages(client: KubeClient, server: FakeApiServer) -> None:
    for n in range(5):
        server.store.create("nodes", {"metadata": {"name": f"n{n}"}})
    pages = [json.loads(page)["items"] for page in [page async for page in client.pages(NODES.path(), 2)]]
    assert [len(page) for page in pages] == [2, 2, 1]


async def test_the_token_of_the_kubeconfig_is_sent(client: KubeClient, server: FakeApiServer) -> None:
    await client.get(NODES.path())
    assert server.authorizations == {"Bearer sesame"}


async def test_a_refused_token_is_read_again(server: FakeApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    path = server.kubeconfig(tmp_path)
    path.write_text(path.read_text().replace("token: sesame", f"tokenFile: {token}"))
    async with await KubeClient.connect(KubeSettings(kubeconfig=path)) as client:
        token.write_text("new\n")
        client._connection.distrust()
        await client.get(NODES.path())
    assert server.authorizations == {"Bearer new"}


async def test_the_hook_before_writes_can_refuse_them_and_does_not_see_reads(
    server: FakeApiServer, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise errors.LeadershipLost("too late")

    settings = KubeSettings(kubeconfig=server.kubeconfig(tmp_path))
    async with await KubeClient.connect(settings, before_write=refuse) as client:
        await client.get(NODES.path())
        with pytest.raises(errors.LeadershipLost):
            await client.create(PODS.path("team"), pod())
    assert [line for line in server.requests if line.startswith("POST")] == []


# --- servers that misbehave ------------------------------------------------------------------------------------------
Handler = Callable[[web.Request], web.StreamResponse]


@pytest.fixture
async def misbehaving(tmp_path: Path) -> AsyncIterator[Callable[..., object]]:
    """Start a server with one handler, return a client for it."""
    runners: list[web.AppRunner] = []
    clients: list[KubeClient] = []

    async def start(handler: object, **settings: float) -> KubeClient:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]  # any aiohttp handler
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        fake = FakeApiServer()
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        client = await KubeClient.connect(KubeSettings(kubeconfig=fake.kubeconfig(tmp_path), **settings))
        clients.append(client)
        return client

    yield start
    for client in clients:
        await client.close()
    for runner in runners:
        await runner.cleanup()


async def test_a_hanging_server_is_unreachable_after_the_deadline(misbehaving: Callable[..., object]) -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    client = await misbehaving(hang, request_timeout=0.05)
    with pytest.raises(errors.Unreachable, match="no answer from"):
        await client.create(PODS.path("team"), pod())


async def test_reads_are_tried_again_writes_are_not(misbehaving: Callable[..., object]) -> None:
    seen: list[str] = []

    async def overloaded_twice(request: web.Request) -> web.Response:
        seen.append(request.method)
        return web.json_response({"ok": True}) if len(seen) > 2 else web.Response(status=503, text="busy")

    client = await misbehaving(overloaded_twice)
    assert json.loads(await client.get(NODES.path())) == {"ok": True}
    seen.clear()
    with pytest.raises(errors.Overloaded):
        await client.create(PODS.path("team"), pod())
    assert seen == ["POST"]


async def test_a_server_that_cuts_the_connection_is_unreachable(misbehaving: Callable[..., object]) -> None:
    async def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    client = await misbehaving(cut)
    with pytest.raises(errors.Unreachable):
        await client.create(PODS.path("team"), pod())


async def test_watch_lines_of_any_length_arrive_whole(misbehaving: Callable[..., object]) -> None:
    big = b'{"type":"ADDED","object":"' + b"x" * (3 << 20) + b'"}'

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(big[:1000])
        await response.write(big[1000:] + b"\n" + b'{"type":"B"}\n{"cut off')
        return response

    client = await misbehaving(stream)
    lines = [line async for batch in client.watch(PODS.path(), {}) for line in batch]
    assert lines == [big, b'{"type":"B"}']


async def test_every_request_is_observed_once(server: FakeApiServer, tmp_path: Path) -> None:
    class Recorder(Silent):
        def __init__(self) -> None:
            self.seen: list[tuple[str, str, int]] = []

        def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
            self.seen.append((verb, resource, code))

    recorder = Recorder()
    settings = KubeSettings(kubeconfig=server.kubeconfig(tmp_path))
    async with await KubeClient.connect(settings, observer=recorder) as client:
        await client.create(PODS.path("team"), pod())
        with pytest.raises(errors.NotFound):
            await client.get(PODS.path("team", "absent"))
    assert recorder.seen == [("create", "pods", 201), ("get", "pods", 404)]


# --- pure ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", errors.Invalid),
        (401, "Unauthorized", errors.Forbidden),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (413, "RequestEntityTooLarge", errors.Invalid),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.Overloaded),
        (500, "InternalError", errors.Overloaded),
        (503, "ServiceUnavailable", errors.Overloaded),
        (504, "Timeout", errors.Overloaded),
    ],
)
def test_a_status_becomes_the_error_that_it_stands_for(code: int, reason: str, expected: type[errors.ApiError]) -> None:
    status = {"kind": "Status", "code": code, "reason": reason, "message": "because"}
    error = error_from("GET", "/x", code, None, json.dumps(status).encode())
    assert type(error) is expected
    assert (str(error), error.status, error.reason) == ("because", code, reason)


def test_retry_after_comes_from_the_header_or_the_details() -> None:
    body = b'{"kind":"Status","message":"m","details":{"retryAfterSeconds":7}}'
    assert error_from("GET", "/x", 429, "3", body).retry_after == 3
    assert error_from("GET", "/x", 429, None, body).retry_after == 7
    assert error_from("GET", "/x", 429, "Wed, 21 Oct 2026 07:28:00 GMT", b"slow down").retry_after is None


@pytest.mark.parametrize("said", ["²", "٣", "-1", "1e9", "nan", "inf", " 3", "", "③"])
def test_a_wait_that_is_no_number_is_none(said: str) -> None:
    assert error_from("GET", "/x", 429, said, b"slow down").retry_after is None


@pytest.mark.parametrize("said", ["9" * 400, "86400"])
def test_nobody_makes_us_wait_for_ever(said: str) -> None:
    assert error_from("GET", "/x", 429, said, b"slow down").retry_after == LONGEST_WAIT_SECONDS
    body = b'{"details": {"retryAfterSeconds": %s}}'
    assert error_from("GET", "/x", 429, None, body % b"1e99").retry_after == LONGEST_WAIT_SECONDS
    assert error_from("GET", "/x", 429, None, body % b"-5").retry_after is None


@pytest.mark.parametrize("body", [b"\xff", b'{"message": "\xff\xfe"}', b"[" * 5000, b'{"message": 7}', b'{"a":' * 5000])
def test_a_body_that_is_no_status_is_an_answer_all_the_same(body: bytes) -> None:
    assert error_from("GET", "/x", 502, None, body).status == 502


def test_an_answer_that_is_no_status_is_quoted() -> None:
    error = error_from("GET", "/api/v1/nodes", 502, None, b"<html>Bad Gateway</html>")
    assert str(error) == "GET /api/v1/nodes was answered with 502: <html>Bad Gateway</html>"


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/nodes", ("list", "nodes")),
        ("GET", "/api/v1/nodes/n", ("get", "nodes")),
        ("GET", "/api/v1/namespaces/ns", ("get", "namespaces")),
        ("GET", "/api/v1/namespaces/ns/pods", ("list", "pods")),
        ("POST", "/api/v1/namespaces/ns/pods/p/binding", ("create", "pods/binding")),
        (
            "PATCH",
            "/apis/trimtab.dev/v1alpha1/namespaces/ns/llmtrainingjobs/j/status",
            ("patch", "llmtrainingjobs/status"),
        ),
        ("GET", "/version", ("list", "/version")),
    ],
)
def test_requests_are_described_in_the_words_of_rbac(method: str, path: str, expected: tuple[str, str]) -> None:
    assert describe(method, path) == expected


async def test_who_does_not_answer_is_told_in_words(tmp_path: Path, unused_tcp_port: int) -> None:
    path = tmp_path / "config"
    content = {
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{unused_tcp_port}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "k"}}],
    }
    path.write_text(yaml.safe_dump(content))
    async with await KubeClient.connect(KubeSettings(kubeconfig=path)) as client:
        with pytest.raises(
            errors.Unreachable, match=r"no answer from http://127\.0\.0\.1:\d+ to GET /x: [Cc]onn[^(]*$"
        ):
            await client.request("GET", "/x")


async def test_a_missing_kubeconfig_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(errors.SettingsError, match=r"there is no kubeconfig file .*absent; set KUBECONFIG"):
        await KubeClient.connect(KubeSettings(kubeconfig=tmp_path / "absent"))


async def test_a_malformed_kubeconfig_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("just: words")
    with pytest.raises(errors.SettingsError, match="cannot connect to an API server"):
        await KubeClient.connect(KubeSettings(kubeconfig=tmp_path / "config"))


async def test_in_a_pod_the_service_account_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kubernetes.aio.config import incluster_config

    from trimtab.kube import connection

    (tmp_path / "token").write_text("projected\n")
    (tmp_path / "ca.crt").write_text("certificates")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    made = await connection.connect(KubeSettings())
    assert (made.server, made.authorization) == ("https://10.0.0.1:443", "Bearer projected")
    (tmp_path / "token").write_text("rotated\n")
    made.distrust()
    await made.refresh()
    assert made.authorization == "Bearer rotated"
