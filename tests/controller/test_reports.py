"""The listener for reports, with the API server's own word on whose token it is, and what else may be sent to it."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import gang_pod, job_object, placement, plan_of
from tests.conftest import Kubectl

from trimtab import names
from trimtab.api.status import JobStatus
from trimtab.controller.reports import endpoint
from trimtab.controller.reports.endpoint import AT_ONCE, LARGEST_BODY, ReportServer
from trimtab.controller.reports.progress import ProgressReports, ReportRefused
from trimtab.controller.reports.tokens import Caller, Tokens
from trimtab.errors import LeadershipLost, Unreachable
from trimtab.kube import reviews
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import Identity, JobObject, PodObject
from trimtab.kube.reviews import NotKnown, TooMany
from trimtab.observe.jobs import facts
from trimtab.settings import KubeSettings, ReportSettings
from trimtab.telemetry.metrics import REGISTRY
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.kubeconfig import service_account_kubeconfig

NAMESPACE = "reports"
SETTINGS = ReportSettings(host="127.0.0.1", port=0, url="http://reports.test")
BOMB = 8 << 20
"""Bytes that are few when packed: few enough that nobody can refuse them before they are unpacked."""
REPORT = {"job": f"{NAMESPACE}/mine", "epoch": 1, "step": 10, "stepSeconds": 0.5}


class Known:
    """Two jobs, each with a plan and the pod of rank 0, whose UID is given."""

    def __init__(self, uids: dict[str, str]) -> None:
        status = JobStatus(plan=plan_of(placement(nodes={"n1": 8})), last_epoch=1)
        self.jobs = {f"{NAMESPACE}/{name}": job_object(name, status=status, namespace=NAMESPACE) for name in uids}
        self.pods = {
            Identity(f"{NAMESPACE}/{name}", f"uid-{name}").digest: gang_pod(
                name, 1, 0, "n1", phase="Running", metadata={"uid": uid}
            )
            for name, uid in uids.items()
        }

    def job_named(self, key: str) -> JobObject | None:
        return self.jobs.get(key)

    def pods_of(self, job: str) -> tuple[PodObject, ...]:
        return (self.pods[job],)


class Desk:
    """The listener, and what it is asked."""

    def __init__(self, known: Known, whose: Tokens) -> None:
        self.leading = True
        self.clock = 0.0
        self.news: list[str] = []
        self.progress = ProgressReports(
            known, facts, news=self.news.append, learn=lambda _: None, clock=lambda: self.clock
        )
        self.server = ReportServer(SETTINGS, whose, self.progress, lambda: self.leading)

    async def post(self, token: str = "", body: Any = REPORT, **options: Any) -> tuple[int, dict[str, str]]:
        self.clock += 10
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                options.pop("method", "POST"),
                self.server.url + options.pop("path", endpoint.PATH),
                data=data,
                headers=headers,
            ) as answer,
        ):
            return answer.status, await answer.json()


def counted(result: str) -> float:
    return REGISTRY.get_sample_value("trimtab_reports_total", {"result": result}) or 0.0


# --- with the real API server ----------------------------------------------------------------------------------------
POD: dict[str, Any] = {"containers": [{"name": "trainer", "image": "example.test/trainer:1"}]}


@pytest.fixture(scope="module")
def pods(kubectl: Kubectl) -> Iterator[dict[str, str]]:
    """Pods of two jobs, name -> UID; nobody schedules them."""
    kubectl("create", "namespace", NAMESPACE)
    for name in ("mine", "other", "brief"):
        spec = POD | {"schedulerName": "nobody", "serviceAccountName": "default", "automountServiceAccountToken": False}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
        for _ in range(40):  # the default service account is made a moment after its namespace
            if "default" in kubectl("get", "serviceaccounts", "-n", NAMESPACE, "-o", "name"):
                break
        kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    found = json.loads(kubectl("get", "pods", "-n", NAMESPACE, "-o", "json"))["items"]
    yield {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
async def desk(cluster: LocalCluster, pods: dict[str, str], tmp_path: Path) -> AsyncIterator[Desk]:
    """The listener with the rights of the controller."""
    path = tmp_path / "kubeconfig"
    service_account_kubeconfig(cluster.kubeconfig, names.SYSTEM_NAMESPACE, "trimtab-controller", path)
    async with await KubeClient.connect(KubeSettings(kubeconfig=path)) as client:
        desk = Desk(Known(pods), Tokens(client, names.REPORT_AUDIENCE))
        async with desk.server:
            yield desk


def token(kubectl: Kubectl, pod: str = "mine", audience: str = names.REPORT_AUDIENCE) -> str:
    """As the kubelet gets it for a projected volume; without a pod, as anybody may."""
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", pod) if pod else ()
    return kubectl("create", "token", "default", "-n", NAMESPACE, "--audience", audience, *bound).strip()


@pytest.mark.cluster
async def test_the_right_pod_is_heard(desk: Desk, kubectl: Kubectl) -> None:
    before = counted("accepted")
    assert await desk.post(token(kubectl)) == (200, {"result": "accepted"})
    assert desk.news == ["uid-mine"]
    assert counted("accepted") == before + 1


@pytest.mark.cluster
async def test_another_jobs_pod_is_not(desk: Desk, kubectl: Kubectl) -> None:
    status, said = await desk.post(token(kubectl, "other"))
    assert (status, said["error"]) == (403, f"job: the token's pod is no pod of {NAMESPACE}/mine")
    assert desk.news == []


@pytest.mark.cluster
async def test_a_token_for_something_else_or_bound_to_nothing_is_not(desk: Desk, kubectl: Kubectl) -> None:
    assert (await desk.post(token(kubectl, audience="https://kubernetes.default.svc")))[0] == 401
    status, said = await desk.post(token(kubectl, pod=""))
    assert (status, "not bound to a pod" in said["error"]) == (401, True)


@pytest.mark.cluster
async def test_a_token_with_a_false_signature_is_not(desk: Desk, kubectl: Kubectl) -> None:
    head, claims, signature = token(kubectl).split(".")
    forged = f"{head}.{claims}.{signature[:-8]}AAAAAAAA"
    status, said = await desk.post(forged)
    assert (status, said["error"]) == (401, "the API server does not vouch for the token")


@pytest.mark.cluster
async def test_a_pod_that_is_gone_is_not(desk: Desk, kubectl: Kubectl) -> None:
    shown = token(kubectl, "brief")
    kubectl("delete", "pod", "brief", "-n", NAMESPACE, "--force", "--grace-period=0")
    status, said = await desk.post(shown, REPORT | {"job": f"{NAMESPACE}/brief"})
    assert (status, said["error"]) == (401, "the API server does not vouch for the token")


@pytest.mark.cluster
async def test_an_old_epochs_report_is_not(desk: Desk, kubectl: Kubectl) -> None:
    status, said = await desk.post(token(kubectl), REPORT | {"epoch": 2})
    assert (status, said["error"]) == (409, "epoch: 2 is not that of the standing plan, 1")


# --- without one ------------------------------------------------------------------------------------------------------
class Vouching(Tokens):
    """Knows every token that is the UID of a pod, and counts how often it is asked."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.asked = 0

    async def caller(self, authorization: str, address: str = "") -> Caller:
        self.asked += 1
        if self.failure:
            raise self.failure
        return Caller("pod", authorization.removeprefix("Bearer "))


@pytest.fixture
async def open_desk() -> AsyncIterator[Desk]:
    desk = Desk(Known({"mine": "pod-a", "other": "pod-b"}), Vouching())
    async with desk.server:
        yield desk


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"job": "mine"}, "$.job"),
        ({"epoch": 0}, "$.epoch"),
        ({"epoch": "1"}, "$.epoch"),
        ({"step": -1}, "$.step"),
        ({"step": 1.5}, "$.step"),
        ({"stepSeconds": 0}, "$.stepSeconds"),
        ({"stepSeconds": 1e9}, "$.stepSeconds"),
        ({"stepSeconds": "fast"}, "$.stepSeconds"),
        ({"tokensPerSecond": -1}, "$.tokensPerSecond"),
        ({"checkpointStep": 11}, "checkpointStep"),
        ({"metrics": [{"name": "", "value": "1"}]}, "$.metrics[0].name"),
        ({"metrics": [{"name": "loss", "value": "9" * 65}]}, "$.metrics[0].value"),
        ({"metrics": [{"name": "loss", "value": "1"}] * 33}, "$.metrics"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_named(wrong: dict[str, Any], named: str, open_desk: Desk) -> None:
    status, said = await open_desk.post("pod-a", REPORT | wrong)
    assert status == 422
    assert named in said["error"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'{"step": NaN}', b'{"stepSeconds": Infinity}', b"\xff\xfe", b"[" * LARGEST_BODY],
    ids=lambda body: repr(body[:12]),
)
async def test_rubbish_is_refused(body: bytes, open_desk: Desk) -> None:
    assert (await open_desk.post("pod-a", body))[0] == 422


@given(st.binary(max_size=200) | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(repr).map(str.encode))
def test_no_bytes_make_it_stumble(body: bytes) -> None:
    with pytest.raises(ReportRefused):
        endpoint._understood(body)


async def test_fields_that_a_later_client_sends_do_no_harm(open_desk: Desk) -> None:
    assert (await open_desk.post("pod-a", REPORT | {"gradientNorm": 1.0}))[0] == 200


async def test_there_is_one_door(open_desk: Desk) -> None:
    assert (await open_desk.post("pod-a", path="/metrics"))[0] == 404
    assert (await open_desk.post("pod-a", method="PUT"))[0] == 405


async def test_who_does_not_lead_sends_everybody_away(open_desk: Desk) -> None:
    open_desk.leading = False
    assert (await open_desk.post("pod-a"))[0] == 503


async def test_a_mistake_of_ours_is_counted_and_the_next_report_is_taken(
    open_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = counted("500")
    with monkeypatch.context() as patch:
        patch.setattr(ProgressReports, "take", lambda *_: 1 / 0)
        status, said = await open_desk.post("pod-a")
    assert (status, "controller" in said["error"]) == (500, True)
    assert counted("500") == before + 1
    assert (await open_desk.post("pod-a"))[0] == 200


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (NotKnown("no"), 401),
        (TooMany("many"), 429),
        (Unreachable("down"), 503),
        (LeadershipLost("lost"), 503),
    ],
    ids=str,
)
async def test_tokens_that_nobody_vouches_for(failure: Exception, status: int) -> None:
    desk = Desk(Known({"mine": "pod-a"}), Vouching(failure))
    async with desk.server:
        assert (await desk.post("pod-a"))[0] == status


async def test_bodies_that_do_not_come_are_in_nobodys_way() -> None:
    """A token is worth as many connections as an address may have, and of places in work there are fewer."""
    desk = Desk(Known({"mine": "pod-a", "other": "pod-b"}), Vouching())
    async with desk.server:
        port = int(desk.server.url.rpartition(":")[2])
        head = b"POST /v1/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer pod-b\r\nContent-Length: 100\r\n\r\n"
        held = [await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.9", 0)) for _ in range(AT_ONCE)]
        for _, writer in held:
            writer.write(head)
            await writer.drain()
        await asyncio.sleep(0.3)  # until all have been read: a few milliseconds
        assert (await desk.post("pod-a"))[0] == 200
        for _, writer in held:
            writer.close()


async def test_a_big_body_is_refused_whether_its_size_is_told_or_not(open_desk: Desk) -> None:
    assert (await open_desk.post("pod-a", b" " * (LARGEST_BODY + 1)))[0] == 413
    head = (
        f"POST {endpoint.PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer pod-a\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    assert (await raw(open_desk, head.encode() + chunk * 6 + b"0\r\n\r\n")).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("known", [True, False], ids=["a token that is believed", "one that is not"])
@pytest.mark.parametrize("coding", ["deflate", "gzip"])
async def test_what_is_small_only_while_it_is_packed_takes_no_memory(coding: str, known: bool, open_desk: Desk) -> None:
    packed = zlib.compress(bytes(BOMB)) if coding == "deflate" else gzip.compress(bytes(BOMB), mtime=0)
    head = (
        f"POST {endpoint.PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {'pod-a' if known else 'rubbish'}\r\n"
        f"Content-Encoding: {coding}\r\nContent-Length: {len(packed)}\r\n\r\n"
    )
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        answer = await raw(open_desk, head.encode() + packed)
        most = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert answer.startswith(b"HTTP/1.1 4")
    assert most < BOMB / 8


async def raw(desk: Desk, sent: bytes) -> bytes:
    """Everything that comes back until the listener ends the connection; an abort counts as an end."""
    host, port = desk.server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SECONDS", 0.3)
    head = f"POST {endpoint.PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer pod-a\r\nContent-Length: 100\r\n\r\n{{"
    desk = Desk(Known({"mine": "pod-a"}), Vouching())
    async with desk.server:
        assert (await raw(desk, head.encode())).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/report HTTP/1.1\r\nHost: x\r\nX-Slow: "], ids=["nothing", "half a head"]
)
async def test_a_connection_without_a_request_ends_by_itself(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SECONDS", 0.3)
    desk = Desk(Known({"mine": "pod-a"}), Vouching())
    async with desk.server:
        assert await raw(desk, sent) == b""


async def test_nobody_is_told_what_answers(open_desk: Desk) -> None:
    async with aiohttp.ClientSession() as session, session.post(open_desk.server.url + endpoint.PATH) as answer:
        assert (answer.status, "Server" in answer.headers) == (422, False)
    assert b"server:" not in (await raw(open_desk, b"rubbish\r\n\r\n")).lower()


async def test_what_an_alert_asks_for_is_counted_from_0_on(open_desk: Desk) -> None:
    known = {
        result: REGISTRY.get_sample_value("trimtab_reports_total", {"result": result})
        for result in ("401", "403", "422")
    }
    assert None not in known.values()


async def test_whoever_waits_makes_room_for_who_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "CONNECTIONS", 2)
    desk = Desk(Known({"mine": "pod-a"}), Vouching())
    async with desk.server:
        host, port = desk.server.url.removeprefix("http://").split(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
        assert (await desk.post("pod-a"))[0] == 200
        for _, writer in held:
            writer.close()


# --- tokens -----------------------------------------------------------------------------------------------------------
class Reviewer:
    """An API server that reviews tokens as it is told."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        extra = {
            "authentication.kubernetes.io/pod-name": ["mine-1-0"],
            "authentication.kubernetes.io/pod-uid": ["pod-a"],
        }
        user = {"username": "system:serviceaccount:x:default", "extra": extra}
        self.status: dict[str, Any] = {"authenticated": True, "user": user, "audiences": [names.REPORT_AUDIENCE]}

    async def request(self, method: str, path: str, *, body: dict[str, Any], deadline: float) -> bytes:
        assert (method, path) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
        self.asked.append(body["spec"])
        await asyncio.sleep(0)
        return msgspec.json.encode({"status": self.status})


def jwt(**claims: Any) -> str:
    """Something that looks like a token of ours."""
    body = {"aud": [names.REPORT_AUDIENCE], "exp": 4e9} | claims
    return f"e30.{base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip('=')}.sig"


def tokens_of(reviewer: Reviewer, clock: list[float] | None = None) -> Tokens:
    now = clock or [0.0]
    return Tokens(reviewer, names.REPORT_AUDIENCE, clock=lambda: now[0])


async def test_a_good_token_is_asked_about_once_a_minute() -> None:
    reviewer, clock = Reviewer(), [0.0]
    known = tokens_of(reviewer, clock)
    for clock[0] in (0.0, 30.0, 59.0, 61.0):
        assert await known.caller(f"Bearer {jwt()}") == Caller("mine-1-0", "pod-a")
    assert [spec["audiences"] for spec in reviewer.asked] == [[names.REPORT_AUDIENCE]] * 2


async def test_a_bad_token_is_asked_about_seldom_and_heard_again_when_it_has_become_good() -> None:
    reviewer, clock = Reviewer(), [0.0]
    good, reviewer.status = reviewer.status, {"authenticated": False}
    known = tokens_of(reviewer, clock)
    for _ in range(3):
        with pytest.raises(NotKnown):
            await known.caller(f"Bearer {jwt()}")
    assert len(reviewer.asked) == 1
    reviewer.status, clock[0] = good, 11.0
    assert await known.caller(f"Bearer {jwt()}")


@pytest.mark.parametrize(
    "header",
    ["", "Basic YTpi", "Bearer ", "Bearer x", "Bearer a.b.c", "Bearer ..", f"Bearer {jwt()}{'x' * 9000}",
     "Bearer é.é.é", f"Bearer {jwt(aud='else')}", f"Bearer {jwt(exp=1)}", f"Bearer {jwt(exp=None)}",
     "Bearer e30.W10.sig"],
    ids=lambda header: header[:14],
)  # fmt: skip
async def test_what_cannot_pass_costs_the_api_server_nothing(header: str) -> None:
    reviewer = Reviewer()
    with pytest.raises(NotKnown):
        await tokens_of(reviewer).caller(header)
    assert reviewer.asked == []


@pytest.mark.parametrize(
    "change",
    [{"audiences": []}, {"audiences": ["else"]}, {"user": {}},
     {"user": {"extra": {"authentication.kubernetes.io/pod-name": ["x"]}}}],
    ids=str,
)  # fmt: skip
async def test_an_answer_without_our_audience_or_without_a_pod_is_no_answer(change: dict[str, Any]) -> None:
    reviewer = Reviewer()
    reviewer.status |= change
    with pytest.raises(NotKnown):
        await tokens_of(reviewer).caller(f"Bearer {jwt()}")


async def test_only_so_many_tokens_are_reviewed_at_once() -> None:
    reviewer = Reviewer()
    known = tokens_of(reviewer)
    asked = (known.caller(f"Bearer {jwt(number=n)}", f"10.0.0.{n}") for n in range(reviews.REVIEWS_AT_ONCE + 5))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, Caller) for answer in answers) == reviews.REVIEWS_AT_ONCE
    assert sum(isinstance(answer, TooMany) for answer in answers) == 5


@pytest.mark.parametrize(
    "ends",
    [10**400, -(10**400), 10**18, 1e300, -1, -0.0, True, False, "4e9", None, [], [4e9], {}, {"exp": 4e9}],
    ids=lambda ends: repr(ends)[:12],
)
async def test_whatever_a_token_says_of_its_end_it_is_refused_and_costs_nothing(ends: Any) -> None:
    reviewer = Reviewer()
    known = tokens_of(reviewer)
    with pytest.raises(NotKnown):
        await known.caller(f"Bearer {jwt(exp=ends)}", "10.0.0.9")
    assert reviewer.asked == []


def encoded(claims: bytes) -> str:
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.sig"


@pytest.mark.parametrize(
    "claims",
    [b'{"exp": NaN}', b'{"exp": Infinity}', b'{"exp": 1e999}', b'{"exp": 1' + b"0" * 5000 + b"}", b'{"exp": "\xff"}',
     b'{"exp": "\\ud800"}', b"[" * 3000, b'{"a":' * 900, b"null", b"\x00"],
    ids=lambda claims: repr(claims[:12]),
)  # fmt: skip
async def test_claims_that_are_none_are_refused(claims: bytes) -> None:
    with pytest.raises(NotKnown):
        await tokens_of(Reviewer()).caller(f"Bearer {encoded(claims)}")


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("aud", "exp", "kubernetes.io", "sub"), _ANYTHING)))
def test_no_claims_make_it_stumble(claims: dict[str, Any]) -> None:
    async def ask() -> None:
        for made in (claims, {"aud": names.REPORT_AUDIENCE, "exp": 4e9} | claims, {"exp": 4e9} | claims):
            with suppress(NotKnown, TooMany):
                await tokens_of(Reviewer()).caller(f"Bearer {encoded(json.dumps(made).encode())}")

    asyncio.run(ask())


async def test_tokens_that_nobody_can_have_signed_slow_their_address_down() -> None:
    reviewer = Reviewer()
    known = tokens_of(reviewer)
    for _ in range(reviews.STRIKES):
        with pytest.raises(NotKnown):
            await known.caller(f"Bearer {jwt(exp=10**400)}", "10.0.0.9")
    with pytest.raises(TooMany):
        await known.caller(f"Bearer {jwt()}", "10.0.0.9")
    assert await known.caller(f"Bearer {jwt()}", "10.0.0.1")


@pytest.mark.parametrize("answer", [b"", b"<html>", b'{"status": 7}', b"\xff", b'{"status": {"error": "\xff"}}'])
async def test_an_answer_that_is_no_review_is_none(answer: bytes) -> None:
    reviewer = Reviewer()

    async def request(*_: Any, **__: Any) -> bytes:
        return answer

    reviewer.request = request  # type: ignore[assignment,method-assign]  # on purpose
    with pytest.raises(Unreachable):
        await tokens_of(reviewer).caller(f"Bearer {jwt()}")


def bad(reviewer: Reviewer) -> None:
    reviewer.status = {"authenticated": False}


async def rubbish(known: Tokens, count: int, address: str = "10.0.0.9") -> list[type[BaseException]]:
    found = []
    for number in range(count):
        with pytest.raises((NotKnown, TooMany)) as refusal:
            await known.caller(f"Bearer {jwt(rubbish=number)}", address)
        found.append(refusal.type)
    return found


async def test_who_sends_rubbish_is_soon_asked_about_seldom_and_others_as_before() -> None:
    reviewer, clock = Reviewer(), [0.0]
    known, good = tokens_of(reviewer, clock), reviewer.status
    bad(reviewer)
    assert await rubbish(known, reviews.STRIKES + 20) == [NotKnown] * reviews.STRIKES + [TooMany] * 20
    reviewer.status = good
    assert await known.caller(f"Bearer {jwt(another=1)}", "10.0.0.1")
    clock[0] = reviews.STRIKE_SECONDS
    assert await known.caller(f"Bearer {jwt(mended=1)}", "10.0.0.9")


async def test_however_much_rubbish_comes_so_many_reviews_a_second_are_made_of_it() -> None:
    reviewer, clock = Reviewer(), [0.0]
    known = tokens_of(reviewer, clock)
    bad(reviewer)
    for number in range(600):
        clock[0] = number / 10
        with pytest.raises((NotKnown, TooMany)):
            await known.caller(f"Bearer {jwt(rubbish=number)}", "10.0.0.9")
    assert len(reviewer.asked) <= reviews.STRIKES + 60 / reviews.STRIKE_SECONDS


async def test_rubbish_from_one_address_does_not_lock_out_the_good_tokens_from_there() -> None:
    reviewer = Reviewer()
    known, good = tokens_of(reviewer), reviewer.status
    bad(reviewer)
    await rubbish(known, 10)
    reviewer.status = good
    for number in range(20):
        assert await known.caller(f"Bearer {jwt(number=number)}", "10.0.0.9")


def named(pod: str, **claims: Any) -> str:
    """A token that says that it is bound to this pod of ours."""
    return jwt(**{"kubernetes.io": {"namespace": NAMESPACE, "pod": {"name": pod, "uid": f"uid-of-{pod}"}}}, **claims)


async def test_a_token_that_names_a_pod_of_ours_does_not_wait_behind_rubbish_that_names_none() -> None:
    reviewer, clock = Reviewer(), [0.0]
    pods = {(f"{NAMESPACE}/mine", "uid-of-mine"), (f"{NAMESPACE}/other", "uid-of-other")}
    known = Tokens(
        reviewer,
        names.REPORT_AUDIENCE,
        clock=lambda: clock[0],
        reports=lambda key, uid: (key, uid) in pods,
    )
    good = reviewer.status
    bad(reviewer)
    assert (await rubbish(known, 99))[-1] is TooMany
    with pytest.raises(TooMany):
        await known.caller(f"Bearer {named('invented')}", "10.0.0.9")
    reviewer.status = good
    known.reviews.asking[reviews.TokenStanding.NEW] = reviews.REVIEWS_AT_ONCE
    assert await known.caller(f"Bearer {named('mine')}", "10.0.0.9")
    bad(reviewer)
    for number in range(reviews.STRIKES):  # who knows the UID of a pod makes it slow for that one
        with pytest.raises(NotKnown):
            await known.caller(f"Bearer {named('mine', number=number)}", "10.0.0.9")
    reviewer.status = good
    with pytest.raises(TooMany):
        await known.caller(f"Bearer {named('mine', renewed=1)}", "10.0.0.9")
    assert await known.caller(f"Bearer {named('mine')}", "10.0.0.9")
    assert await known.caller(f"Bearer {named('other')}", "10.0.0.9")
    clock[0] += reviews.STRIKE_SECONDS
    assert await known.caller(f"Bearer {named('mine', renewed=1)}", "10.0.0.9")


async def test_many_good_tokens_may_come_from_one_address() -> None:
    known = tokens_of(Reviewer())
    for number in range(3 * reviews.STRIKES):
        assert await known.caller(f"Bearer {jwt(number=number)}", "10.0.0.1")


async def test_an_api_server_that_is_away_is_nobodys_fault() -> None:
    reviewer = Reviewer()
    known, answer = tokens_of(reviewer), reviewer.request
    reviewer.request = lambda *_, **__: 1 / 0  # type: ignore[assignment,method-assign]  # on purpose
    for _ in range(2 * reviews.STRIKES):
        with pytest.raises(ZeroDivisionError):
            await known.caller(f"Bearer {jwt()}", "10.0.0.1")
    reviewer.request = answer  # type: ignore[method-assign]  # as it was
    assert await known.caller(f"Bearer {jwt()}", "10.0.0.1")


async def test_rubbish_neither_pushes_a_known_token_out_nor_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviews, "REMEMBERED", 4)
    reviewer, clock = Reviewer(), [0.0]
    known, good = tokens_of(reviewer, clock), reviewer.status
    await known.caller(f"Bearer {jwt()}", "10.0.0.1")
    bad(reviewer)
    await rubbish(known, 8)
    asked = len(reviewer.asked)
    await known.caller(f"Bearer {jwt()}", "10.0.0.1")
    assert len(reviewer.asked) == asked
    clock[0], reviewer.status = 61.0, good
    known.reviews.asking[reviews.TokenStanding.NEW] = reviews.REVIEWS_AT_ONCE  # slow ones of rubbish
    assert await known.caller(f"Bearer {jwt()}", "10.0.0.1")
