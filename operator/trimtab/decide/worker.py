"""The process in which a shadow policy decides, or two are compared: frames in on standard input, frames out on
standard output.

    python -m trimtab.decide.worker [CONSTANTS]      # a file of constants of the performance model

A frame is four bytes of length (big-endian) and so many bytes of msgpack. A process of its own has a lock, a memory and
a priority of its own, and can be killed: whatever a policy does in it, the controller does not wait for it. It ends
when its input does, and an alarm ends it should its policy keep it from noticing that.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from trimtab.decide.engine import LOAD_SECONDS, Engine
from trimtab_policy.perf import constants
from trimtab_policy.policy import load
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.sim.monitor import Budget, Comparison, Contest, compare
from trimtab_policy.types import Snapshot

HEADER_BYTES = 4
NICENESS = 10
"""Whatever else the machine does goes first."""
ALARM_SECONDS = 5.0
"""After the last moment at which an answer could be due."""


class PolicyRequest(Struct, frozen=True, tag="decide"):
    """What would this policy decide, given so many seconds? The answer is an `Outcome`."""

    policy: str
    seconds: float
    snapshot: Snapshot
    rules: Rules = Rules()


class CompareRequest(Struct, frozen=True, tag="compare"):
    """Is this policy worse than its fallback here? The answer is a `sim.monitor.Comparison`, or None.

    It takes `cpu_seconds` of CPU time at most, of a core the part `cpu_share`, and `seconds` on the wall.
    """

    contest: Contest
    seconds: float
    cpu_seconds: float
    cpu_share: float


def frame(content: bytes) -> bytes:
    """The content with its length before it."""
    return len(content).to_bytes(HEADER_BYTES, "big") + content


def serve(questions: BinaryIO, answers: BinaryIO, engine: Engine) -> None:
    """Answer until there are no more questions."""
    while header := questions.read(HEADER_BYTES):
        ask = msgspec.msgpack.decode(questions.read(int.from_bytes(header, "big")), type=PolicyRequest | CompareRequest)
        signal.setitimer(signal.ITIMER_REAL, math.ceil(LOAD_SECONDS + ask.seconds + ALARM_SECONDS))
        answer = _answer(ask, engine)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(frame(msgspec.msgpack.encode(answer)))
        answers.flush()


def _answer(ask: PolicyRequest | CompareRequest, engine: Engine) -> Outcome | Comparison | None:
    if isinstance(ask, CompareRequest):
        return compare(ask.contest, load, Budget(ask.cpu_seconds, ask.cpu_share))
    return engine.decide(ask.snapshot, Choice(ask.policy, ask.policy, deadline_seconds=ask.seconds), ask.rules)


def main(arguments: list[str]) -> None:
    """Serve on the standard streams; what a policy prints goes to standard error."""
    os.nice(NICENESS)
    for file in arguments:
        constants.use(constants.load(Path(file)))
    with os.fdopen(0, "rb") as questions, os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        serve(questions, answers, Engine())


if __name__ == "__main__":
    main(sys.argv[1:])
