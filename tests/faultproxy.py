"""A reverse proxy between a controller and an API server that breaks things on request, and remembers every write.

    async with FaultProxy(kubeconfig, directory) as proxy:              # or: python -m tests.faultproxy UPSTREAM OUT
        run_controller(KUBECONFIG=proxy.kubeconfig)
        await proxy.victim(pid)
        await proxy.inject("kill-after", method="POST", path="pods/.*/binding", nth=3)
        for call in await proxy.trace(): ...

The controller speaks plain HTTP to it on the loopback interface; it speaks to the API server as the upstream kubeconfig
says. A bearer token passes through unchanged, so that the controller's own permissions are exercised; the client
certificate of the upstream kubeconfig is shown only for callers without a token.

Actions. The first line of each group says when a rule strikes: at calls that match method and path, from the nth such
call on, `count` times.

    a write    kill-before     SIGKILL the victim instead of forwarding it          (crash before the write)
               kill-after      forward, wait for the answer, SIGKILL the victim     (crash after it, answer lost)
               drop-reply      forward, then cut the connection                     (did it happen? nobody knows)
    any call   status:NNN      answer NNN instead of forwarding
               reset           cut the connection instead of forwarding             (the API server is away)
               hang:SECONDS    say nothing for so long, then cut the connection
               delay:SECONDS   forward after so long
    a list     stale-list      answer with the first list of this path ever seen    (a stale API server)
    a watch    gone            answer with an in-stream ERROR 410
               werr:NNN        answer with an in-stream ERROR NNN
               mute            keep the connection open and swallow all events
               drop-event:TYPE swallow the next event of this type                  (ADDED, MODIFIED, DELETED, BOOKMARK)

`sever` cuts the watches that are open, so that a rule for watches strikes now instead of at the next reconnect.

Control, JSON over HTTP on the same port: POST /_faults (a rule), DELETE /_faults, GET /_faults (with hits),
GET /_trace, DELETE /_trace, PUT /_victim (a pid), POST /_sever.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import ssl
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from tests import forkserver
from tests.faultrules import Call, Rule, State, kind_of, status, summary

from trimtab.kube.connection import ApiConnection, connect
from trimtab.settings import KubeSettings

HOP_BY_HOP = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}


class Proxy:
    """The HTTP side. `connection` says where the API server is and who we are when the caller does not say."""

    def __init__(self, connection: ApiConnection) -> None:
        self.state = State()
        self._connection = connection
        tls = connection.ssl_context()
        self._ours = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=tls), auto_decompress=False)
        self._theirs = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=_without_certificate(connection)), auto_decompress=False
        )

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/_faults", self._inject)
        app.router.add_get("/_faults", self._faults)
        app.router.add_delete("/_faults", self._heal)
        app.router.add_get("/_trace", self._trace)
        app.router.add_delete("/_trace", self._forget)
        app.router.add_put("/_victim", self._aim)
        app.router.add_post("/_sever", self._sever)
        app.router.add_route("*", "/{path:.*}", self._proxy)
        return app

    async def close(self) -> None:
        await self._ours.close()
        await self._theirs.close()

    # --- control ----------------------------------------------------------------------------------------------------
    async def _inject(self, request: web.Request) -> web.Response:
        try:
            self.state.rules.append(Rule(**await request.json()))
        except (TypeError, ValueError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return await self._faults(request)

    async def _faults(self, request: web.Request) -> web.Response:
        return web.json_response([asdict(rule) for rule in self.state.rules])

    async def _heal(self, request: web.Request) -> web.Response:
        rules = await self._faults(request)
        self.state.rules.clear()
        return rules

    async def _trace(self, request: web.Request) -> web.Response:
        return web.json_response([asdict(call) for call in self.state.trace])

    async def _forget(self, request: web.Request) -> web.Response:
        self.state.trace.clear()
        return await self._trace(request)

    async def _aim(self, request: web.Request) -> web.Response:
        self.state.victim = int(await request.json())
        return web.json_response(self.state.victim)

    async def _sever(self, request: web.Request) -> web.Response:
        severed = len(self.state.open_watches)
        for watch in self.state.open_watches:
            watch.cancel()
        return web.json_response(severed)

    # --- what passes through ----------------------------------------------------------------------------------------
    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        kind = kind_of(request)
        rule = self.state.strike(request.method, request.path_qs, kind)
        call = self._remember(request, body, rule) if kind == "write" else None
        if rule and (answer := await self._before(request, rule)) is not None:
            return answer
        if kind == "watch":
            return await self._watch(request, rule)
        status, headers, content = await self._forward(request, body)
        if call:
            call.status = status
        if kind == "list" and status == 200:
            self.state.first_lists.setdefault(request.path, content)
        if rule and rule.verb in ("kill-after", "drop-reply"):
            return self._cut(request, kill=rule.verb == "kill-after")
        return web.Response(status=status, headers=headers, body=content)

    async def _before(self, request: web.Request, rule: Rule) -> web.StreamResponse | None:
        """Faults that take the place of the API server; None lets the request go on."""
        match rule.verb:
            case "kill-before":
                return self._cut(request, kill=True)
            case "status":
                code = int(rule.argument)
                headers = {"Retry-After": "1"} if code == 429 else {}
                return web.json_response(status(code), status=code, headers=headers)
            case "reset":
                return self._cut(request, kill=False)
            case "hang":
                await asyncio.sleep(float(rule.argument))
                return self._cut(request, kill=False)
            case "delay":
                await asyncio.sleep(float(rule.argument))
            case "gone" | "werr":
                error = {"type": "ERROR", "object": status(int(rule.argument or 410))}
                return web.Response(body=json.dumps(error).encode() + b"\n", content_type="application/json")
            case "stale-list" if request.path in self.state.first_lists:
                return web.Response(body=self.state.first_lists[request.path], content_type="application/json")
        return None

    def _cut(self, request: web.Request, kill: bool) -> web.Response:
        if kill:
            with suppress(ProcessLookupError):
                os.kill(self.state.victim, signal.SIGKILL)
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _forward(self, request: web.Request, body: bytes) -> tuple[int, dict[str, str], bytes]:
        async with self._send(request, body, aiohttp.ClientTimeout(total=60)) as answer:
            return answer.status, _answer_headers(answer), await answer.read()

    async def _watch(self, request: web.Request, rule: Rule | None) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None, "handlers run in tasks"
        self.state.open_watches.add(task)
        try:
            async with self._send(request, b"", aiohttp.ClientTimeout(total=None)) as answer:
                response = web.StreamResponse(status=answer.status, headers=_answer_headers(answer))
                await response.prepare(request)
                dropping = rule.argument if rule and rule.verb == "drop-event" else ""
                muted = rule is not None and rule.verb == "mute"
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        if dropping and json.loads(line)["type"] == dropping:
                            dropping = ""
                        elif not muted:
                            await response.write(line + b"\n")
                return response
        except (asyncio.CancelledError, ConnectionResetError):  # severed, or the controller went away
            return self._cut(request, kill=False)
        finally:
            self.state.open_watches.discard(task)

    def _send(self, request: web.Request, body: bytes, timeout: aiohttp.ClientTimeout) -> Any:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        session = self._theirs if "Authorization" in headers else self._ours
        if session is self._ours and (ours := self._connection.authorization):
            headers["Authorization"] = ours
        url = f"{self._connection.server}{request.path_qs}"
        return session.request(request.method, url, data=body or None, headers=headers, timeout=timeout)

    def _remember(self, request: web.Request, body: bytes, rule: Rule | None) -> Call:
        kind, name = summary(request.path, body)
        call = Call(
            number=len(self.state.trace) + 1,
            time=time.time(),
            method=request.method,
            path=request.path,
            kind=kind,
            name=name,
            fault=rule.action if rule else None,
        )
        self.state.trace.append(call)
        return call


def _answer_headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    kept = ("Content-Type", "Content-Encoding", "Retry-After", "Warning")
    return {name: answer.headers[name] for name in kept if name in answer.headers}


def _without_certificate(connection: ApiConnection) -> ssl.SSLContext:
    """The server is checked as ever, but no client certificate is shown: the caller's token has to do."""
    context = ssl.create_default_context(cafile=connection.files.ca)
    if connection.ssl_context().verify_mode is ssl.CERT_NONE:  # a kubeconfig can say so
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


# --- as a process ----------------------------------------------------------------------------------------------------
async def serve(upstream: Path, kubeconfig: Path, token: str) -> None:
    """Serve until killed. The kubeconfig appears when everything is ready."""
    connection = await connect(KubeSettings(kubeconfig=upstream))
    proxy = Proxy(connection)
    runner = web.AppRunner(proxy.app(), access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    if not token and (scheme_and_token := connection.authorization):
        token = scheme_and_token.partition(" ")[2]
    _write_kubeconfig(kubeconfig, f"http://127.0.0.1:{port}", token)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        await stop.wait()
    finally:
        await runner.cleanup()
        await proxy.close()


def _write_kubeconfig(path: Path, server: str, token: str) -> None:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxy",
        "clusters": [{"name": "proxy", "cluster": {"server": server}}],
        "users": [{"name": "proxy", "user": {"token": token} if token else {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
    }
    partial = path.with_suffix(".partial")
    partial.write_text(yaml.safe_dump(content))
    partial.rename(path)


class FaultProxy:
    """The proxy in a process of its own, and its control in words. `token`: whom the controller is to be."""

    def __init__(self, upstream: Path, directory: Path, token: str = "") -> None:
        self.kubeconfig = directory / "proxy.kubeconfig"
        self.server = ""
        self._arguments = [str(upstream), str(self.kubeconfig), *(["--token", token] if token else [])]
        self._log = directory / "proxy.log"

    async def __aenter__(self) -> FaultProxy:
        self.kubeconfig.unlink(missing_ok=True)
        self._log.write_bytes(b"")
        self._process = forkserver.shared().spawn(
            self._arguments, self._log, self.kubeconfig.parent, program="faultproxy"
        )
        async with asyncio.timeout(30):
            while not self.kubeconfig.exists():
                if self._process.poll() is not None:
                    raise RuntimeError(f"the fault proxy has ended: {self._log.read_text()}")
                await asyncio.sleep(0.02)
        self.server = yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        self._session = aiohttp.ClientSession(self.server)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()
        await asyncio.sleep(0.05)  # its transports end a moment later
        self._process.terminate()
        await asyncio.to_thread(self._process.wait)

    async def inject(self, action: str, *, method: str = ".*", path: str = "", nth: int = 1, count: int = 1) -> None:
        """Add a rule; see the module's docstring."""
        rule = {"action": action, "method": method, "path": path, "nth": nth, "count": count}
        await self._ask("POST", "/_faults", rule)

    async def heal(self) -> int:
        """Remove all rules; returns how often they have struck."""
        return sum(rule["struck"] for rule in await self._ask("DELETE", "/_faults"))

    async def struck(self) -> int:
        """How often any rule has struck."""
        return sum(rule["struck"] for rule in await self._ask("GET", "/_faults"))

    async def victim(self, pid: int) -> None:
        """Whom kill-before and kill-after kill."""
        await self._ask("PUT", "/_victim", pid)

    async def sever(self) -> int:
        """Cut all open watches; returns how many there were."""
        return int(await self._ask("POST", "/_sever"))

    async def trace(self) -> list[Call]:
        """All writes so far, in order of arrival."""
        return [Call(**call) for call in await self._ask("GET", "/_trace")]

    async def forget(self) -> None:
        """Start the trace anew."""
        await self._ask("DELETE", "/_trace")

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        async with self._session.request(method, path, json=body) as answer:
            content = await answer.json()
        if answer.status != 200:
            raise ValueError(content["error"])
        return content


def main() -> None:
    """`python -m tests.faultproxy UPSTREAM_KUBECONFIG KUBECONFIG_TO_WRITE [--token T]`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("upstream", type=Path, help="kubeconfig of the API server")
    parser.add_argument("kubeconfig", type=Path, help="kubeconfig to write, pointing at the proxy")
    parser.add_argument("--token", default="", help="bearer token for that kubeconfig")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.upstream, arguments.kubeconfig, arguments.token))


if __name__ == "__main__":
    main()
