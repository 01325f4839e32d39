"""Authorization headers: known, or refused with a reason; rubbish costs no review twice."""

from __future__ import annotations

import base64
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from tests.builders import NOW
from tests.fuzz.draw import Draw, Json, served
from tests.fuzz.target import Target

from trimtab.controller.reports.tokens import Caller, Tokens
from trimtab.errors import ApiError, LeadershipLost, Unreachable
from trimtab.kube.reviews import NotKnown, TooMany

AUDIENCE = "trimtab"
_POD = "authentication.kubernetes.io/pod-"
_DOCUMENTED = (NotKnown, TooMany, ApiError, LeadershipLost)
T = TypeVar("T")


class _Server:
    """An API server that vouches, or not."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.asked = 0

    async def request(self, method: str, path: str, *, body: Json, deadline: float) -> bytes:
        self.asked += 1
        json.dumps(body).encode()
        if self._draw.chance(12):
            raise self._draw.pick((Unreachable("away"), LeadershipLost("gone")))
        extra: Json = {_POD + "name": ["p"], _POD + "uid": ["u"]}
        if self._draw.chance(6):
            extra = {each: self._draw.listed(self._draw.text) for each in extra if self._draw.byte() & 1}
        status = {
            "authenticated": not self._draw.chance(5),
            "user": {"username": self._draw.text(), "extra": extra},
            "audiences": self._draw.pick(([AUDIENCE], [], ["else", AUDIENCE])),
        }
        return msgspec.json.encode({"status": served(status)})


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    raise AssertionError("it waits for something")


def _token(draw: Draw) -> str:
    claims: Json = {"aud": [AUDIENCE], "exp": NOW + 3600, "sub": "x"}
    if draw.chance(4):
        claims["aud"] = draw.pick((AUDIENCE, "else", [], None, [[AUDIENCE]], {AUDIENCE: 1}, 7))
    if draw.chance(3):
        claims["exp"] = draw.pick((draw.integer(), draw.number(), NOW, 10**400, -(10**400), True, None, "x", 1e300))
    raw = draw.encoded(draw.spoiled(claims))
    parts = ["h", base64.urlsafe_b64encode(raw).decode().rstrip("="), "s"]
    if draw.chance(8):
        parts[draw.below(3)] = draw.text(9000)
    return ".".join(parts[: 3 - draw.chance(10)])


def run(data: bytes) -> None:
    """Several headers, from few addresses."""
    draw = Draw(data)
    server, now = _Server(draw), [0.0]
    answers: Any = server  # the one call of a client that is made here
    tokens = Tokens(answers, AUDIENCE, clock=lambda: now[0], wall=lambda: NOW + now[0])
    for _ in range(1 + draw.below(4)):
        header = draw.rest().decode("latin-1") if draw.chance(16) else f"Bearer {_token(draw)}"
        address, asked = draw.pick(("10.0.0.1", "10.0.0.2", "")), server.asked
        try:
            caller = finished(tokens.caller(header, address))
        except _DOCUMENTED as refused:
            assert len(str(refused)) < 1000
            assert server.asked <= asked + 1
        else:
            assert isinstance(caller, Caller)
            asked = server.asked
            assert finished(tokens.caller(header, "10.0.0.9")) == caller
            assert server.asked == asked
        now[0] += draw.pick((1.0, 0.0, 61.0, 1e6))


TARGET = Target("Authorization headers of trainings, and reviews of their tokens", run)
