"""The process in which a shadow policy decides: frames in on standard input, frames out on standard output.

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
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.types import Snapshot

HEADER_BYTES = 4
NICENESS = 10
"""Whatever else the machine does goes first."""
ALARM_SECONDS = 5.0
"""After the last moment at which an answer could be due."""


class PolicyRequest(Struct, frozen=True):
    """What would this policy decide, given so many seconds? The answer is an `Outcome`."""

    policy: str
    seconds: float
    snapshot: Snapshot
    rules: Rules = Rules()


def frame(content: bytes) -> bytes:
    """The content with its length before it."""
    return len(content).to_bytes(HEADER_BYTES, "big") + content


def serve(questions: BinaryIO, answers: BinaryIO, engine: Engine) -> None:
    """Answer until there are no more questions."""
    while header := questions.read(HEADER_BYTES):
        ask = msgspec.msgpack.decode(questions.read(int.from_bytes(header, "big")), type=PolicyRequest)
        signal.setitimer(signal.ITIMER_REAL, math.ceil(LOAD_SECONDS + ask.seconds + ALARM_SECONDS))
        outcome = engine.decide(ask.snapshot, Choice(ask.policy, ask.policy, deadline_seconds=ask.seconds), ask.rules)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(frame(msgspec.msgpack.encode(outcome)))
        answers.flush()


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
