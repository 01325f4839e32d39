"""The Model Context Protocol as far as tools need it: JSON-RPC 2.0, one message a line, and nothing of Trimtab.

Versions of the handshake (`initialize`) are spoken; clients of the later stateless version begin with a question that
is answered as an unknown method, and then shake hands. Calls are answered as they are done, not in turn, and one that
is cancelled is not answered.

What goes wrong inside a tool, what it was given included, is a result (`isError`): the model that asked reads it, and
asks better. What is no message of the protocol is a JSON-RPC error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeGuard

import msgspec

from trimtab import __version__
from trimtab.errors import TrimtabError
from trimtab.printable import printable

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The newest is offered to who asks for one that is not among them."""
PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
AT_ONCE = 16
"""Calls that are worked on; those that come then wait."""

Json = dict[str, Any]


class Tool(NamedTuple):
    """What may be called. It changes nothing."""

    name: str
    title: str
    description: str
    arguments: Json
    """Schema of an object."""
    call: Callable[[Json], Awaitable[Json]]
    """Raises TrimtabError with what the caller may read."""


class Wire(Protocol):
    """Lines in, lines out."""

    async def line(self) -> bytes | None:
        """The next line; None at the end, and an empty one where it was too long."""

    def send(self, message: bytes) -> None:
        """Write a line."""


class Wrong(Exception):
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Server:
    """Answers one client. `lost` says what becomes known of an exception that nobody expected."""

    def __init__(self, tools: list[Tool], instructions: str, lost: Callable[[Exception], str]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._instructions, self._lost = instructions, lost
        self._calls: dict[str | int, asyncio.Task[None]] = {}
        """By the id of their request."""
        self._room = asyncio.Semaphore(AT_ONCE)

    async def serve(self, wire: Wire) -> None:
        """Answer until the client closes its end, and what it has asked is answered. Raises an ExceptionGroup with what
        `wire.send` raised."""
        async with asyncio.TaskGroup() as tasks:
            while (line := await wire.line()) is not None:
                try:
                    said = _read(line)
                except Wrong as error:
                    _send(wire, _failure(None, error))
                    continue
                task = tasks.create_task(self._reply(wire, said))
                if isinstance(said, dict) and "method" in said and _is_id(said.get("id")):
                    self._calls[said["id"]] = task
                    task.add_done_callback(partial(self._over, said["id"]))
                await asyncio.sleep(0)  # what needs no waiting is answered in its order

    def _over(self, number: str | int, task: asyncio.Task[None]) -> None:
        if self._calls.get(number) is task:
            del self._calls[number]

    async def _reply(self, wire: Wire, said: Any) -> None:
        if isinstance(said, list) and said:  # of version 2025-03-26
            found = [await self._answer(each) for each in said]
            answers = [each for each in found if each is not None]
            if answers:
                _send(wire, answers)
        elif (answer := await self._answer(said)) is not None:
            _send(wire, answer)

    async def _answer(self, said: Any) -> Json | None:
        """What is sent for a message; None for what is not answered."""
        number = said.get("id") if isinstance(said, dict) else None
        try:
            method, params = _understood(said)
            if method is None:
                return None  # an answer: we ask nothing
            if "id" not in said:
                self._noted(method, params)
                return None
            if not _is_id(number):
                raise Wrong(INVALID_REQUEST, "id: must be a text or a whole number")
            return {"jsonrpc": "2.0", "id": number, "result": await self._result(method, params)}
        except Wrong as error:
            return _failure(number if _is_id(number) else None, error)

    def _noted(self, method: str, params: Json) -> None:
        number = params.get("requestId")
        if method == "notifications/cancelled" and _is_id(number) and (task := self._calls.get(number)):
            task.cancel()

    async def _result(self, method: str, params: Json) -> Json:
        match method:
            case "initialize":
                return self._introduced(params)
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [_listed(tool) for tool in self._tools.values()]}
            case "tools/call":
                async with self._room:
                    return await self._called(params)
        raise Wrong(UNKNOWN_METHOD, f"there is no method {method[:100]}")

    def _introduced(self, params: Json) -> Json:
        asked = params.get("protocolVersion")
        if not isinstance(asked, str):
            raise Wrong(INVALID_PARAMS, "protocolVersion: must be a text")
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "trimtab", "title": "Trimtab", "version": __version__},
            "instructions": self._instructions,
        }

    async def _called(self, params: Json) -> Json:
        name, arguments = params.get("name"), params.get("arguments", {})
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise Wrong(INVALID_PARAMS, f"name: there is no such tool, but {', '.join(self._tools)}")
        if not isinstance(arguments, dict):
            raise Wrong(INVALID_PARAMS, "arguments: must be an object")
        try:
            value = cleaned(msgspec.to_builtins(await tool.call(arguments)))
        except TrimtabError as error:
            return {"content": [_text(str(error))], "isError": True}
        except Exception as error:  # noqa: BLE001 - one call that goes wrong must not end the others
            return {"content": [_text(self._lost(error))], "isError": True}
        told = msgspec.json.encode(value).decode()
        return {"content": [_text(told)], "structuredContent": value, "isError": False}


def _read(line: bytes) -> Any:
    if not line:
        raise Wrong(INVALID_REQUEST, "the line is too long")
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Wrong(PARSE_ERROR, f"no JSON in one line: {error}") from error


def _understood(said: Any) -> tuple[str | None, Json]:
    """Method and parameters; no method for an answer. Raises Wrong for what is no message."""
    if not isinstance(said, dict) or said.get("jsonrpc") != "2.0":
        raise Wrong(INVALID_REQUEST, 'a message is an object with "jsonrpc": "2.0"')
    if "method" not in said and ("result" in said or "error" in said):
        return None, {}
    method, params = said.get("method"), said.get("params", {})
    if not isinstance(method, str):
        raise Wrong(INVALID_REQUEST, "method: must be a text")
    if not isinstance(params, dict):
        raise Wrong(INVALID_PARAMS, "params: must be an object")
    return method, params


def _is_id(number: Any) -> TypeGuard[str | int]:
    return isinstance(number, str) or (isinstance(number, int) and not isinstance(number, bool))


def _listed(tool: Tool) -> Json:
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.arguments,
        "annotations": {"title": tool.title, "readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }


def cleaned(value: Any) -> Any:
    """A plain value whose texts, keys included, have nothing in them that a terminal obeys, or that nobody sees: what
    strangers wrote into a cluster ends up before a model, and in people's terminals."""
    if isinstance(value, str):
        return printable(value, lines=True)
    if isinstance(value, Mapping):
        return {printable(str(key)): cleaned(each) for key, each in value.items()}
    return [cleaned(each) for each in value] if isinstance(value, list | tuple) else value


def _text(text: str) -> Json:
    return {"type": "text", "text": printable(text, lines=True)}


def _failure(number: Any, error: Wrong) -> Json:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": error.code, "message": printable(str(error))}}


def _send(wire: Wire, said: Any) -> None:
    wire.send(msgspec.json.encode(said))
