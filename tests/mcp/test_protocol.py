"""JSON-RPC of the Model Context Protocol, over a wire of lists: what is answered, what is refused, and with what."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from trimtab.errors import UsageError
from trimtab.mcp import protocol
from trimtab.mcp.protocol import Server, Tool

Json = dict[str, Any]


class Lists:
    """What a client writes, and what it is sent."""

    def __init__(self, *lines: Any) -> None:
        self._lines = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        self.sent: list[Any] = []

    async def line(self) -> bytes | None:
        return self._lines.pop(0) if self._lines else None

    def send(self, message: bytes) -> None:
        assert b"\n" not in message
        self.sent.append(json.loads(message))


async def echo(arguments: Json) -> Json:
    if "wrong" in arguments:
        raise UsageError(arguments["wrong"])
    if "broken" in arguments:
        raise KeyError("hidden")
    if "forever" in arguments:
        await asyncio.Event().wait()
    return arguments


ECHO = Tool("echo", "Echo", "Says it again.", {"type": "object", "properties": {}}, echo)


async def answers(*lines: Any) -> list[Any]:
    wire = Lists(*lines)
    await Server([ECHO], "Ask.", lambda error: f"a bug: {type(error).__name__}").serve(wire)
    return wire.sent


def asked(method: str, number: Any = 1, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def called(number: Any = 1, **arguments: Any) -> Json:
    return asked("tools/call", number, name="echo", arguments=arguments)


@pytest.mark.parametrize(
    ("version", "spoken"),
    [("2025-06-18", "2025-06-18"), ("2024-11-05", "2024-11-05"), ("2099-01-01", protocol.VERSIONS[0])],
)
async def test_a_version_is_agreed_on(version: str, spoken: str) -> None:
    [answer] = await answers(asked("initialize", protocolVersion=version, capabilities={}))
    assert answer["result"]["protocolVersion"] == spoken
    assert answer["result"]["capabilities"].keys() == {"tools"}
    assert answer["result"]["serverInfo"]["name"] == "trimtab"


async def test_tools_are_listed_as_reading_only() -> None:
    [answer] = await answers(asked("tools/list", "a"))
    [tool] = answer["result"]["tools"]
    assert (answer["id"], tool["name"], tool["inputSchema"]) == ("a", "echo", ECHO.arguments)
    assert tool["annotations"]["readOnlyHint"] is True


async def test_an_answer_is_told_as_a_value_and_as_text() -> None:
    [answer] = await answers(called(4, text="ä", list=[1]))
    result = answer["result"]
    assert (result["structuredContent"], result["isError"]) == ({"text": "ä", "list": [1]}, False)
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


async def test_what_strangers_wrote_loses_its_controls_in_values_keys_and_errors() -> None:
    hostile = "\x1b]0;title\x07\u202egpj\x9b2J"
    value, error = await answers(called(1, **{hostile: [hostile, {"in": hostile}]}), called(2, wrong=hostile))
    for each in (value, error):
        text = json.dumps(each, ensure_ascii=False) + each["result"]["content"][0]["text"]
        assert not set("\x1b\x07\u202e\x9b") & set(text)
        assert "\\u001b" not in text
    assert "title" in error["result"]["content"][0]["text"]


async def test_what_a_tool_refuses_is_a_result_that_says_why() -> None:
    wrong, broken = await answers(called(1, wrong="name: must be one"), called(2, broken=True))
    assert wrong["result"] == {"content": [{"type": "text", "text": "name: must be one"}], "isError": True}
    assert broken["result"]["content"][0]["text"] == "a bug: KeyError"
    assert "hidden" not in json.dumps(broken)


@pytest.mark.parametrize(
    ("line", "number", "code"),
    [
        (b"{", None, protocol.PARSE_ERROR),
        (b"\xff\xfe", None, protocol.PARSE_ERROR),
        (b"[" * 100_000, None, protocol.PARSE_ERROR),
        (b"", None, protocol.INVALID_REQUEST),
        ([], None, protocol.INVALID_REQUEST),
        ("text", None, protocol.INVALID_REQUEST),
        ({"id": 1, "method": "ping"}, 1, protocol.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": 1}, 1, protocol.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": 1, "method": 7}, 1, protocol.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, None, protocol.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, None, protocol.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}, 1, protocol.INVALID_PARAMS),
        (asked("server/discover"), 1, protocol.UNKNOWN_METHOD),
        (asked("initialize"), 1, protocol.INVALID_PARAMS),
        (asked("tools/call", name="rm"), 1, protocol.INVALID_PARAMS),
        (asked("tools/call"), 1, protocol.INVALID_PARAMS),
        (asked("tools/call", name="echo", arguments=[1]), 1, protocol.INVALID_PARAMS),
    ],
)
async def test_what_is_no_message_is_refused_and_the_next_is_answered(line: Any, number: Any, code: int) -> None:
    refused, pong = await answers(line, asked("ping", 9))
    assert (refused["id"], refused["error"]["code"]) == (number, code)
    assert refused["error"]["message"]
    assert pong == {"jsonrpc": "2.0", "id": 9, "result": {}}


async def test_notifications_and_answers_are_not_answered() -> None:
    said = {"jsonrpc": "2.0", "method": "notifications/initialized"}, {"jsonrpc": "2.0", "id": 1, "result": {}}
    unknown = {"jsonrpc": "2.0", "method": "notifications/never-heard-of", "params": {"requestId": [1]}}
    assert await answers(*said, unknown) == []


async def test_a_call_that_is_cancelled_is_not_answered_and_holds_up_nobody() -> None:
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    sent = await answers(called(1, forever=True), asked("ping", 2), cancel)
    assert [each["id"] for each in sent] == [2]


async def test_a_batch_is_answered_as_one() -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    [batch] = await answers([asked("ping", 1), note, asked("nothing", 2)])
    assert [(each["id"], "error" in each) for each in batch] == [(1, False), (2, True)]
    assert await answers([note]) == []
