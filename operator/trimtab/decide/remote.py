"""Ask a policy, or compare two, in a process of its own, started when it is needed and replaced when it fails."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from trimtab.decide.engine import LOAD_SECONDS
from trimtab.decide.worker import HEADER_BYTES, CompareRequest, PolicyRequest, frame
from trimtab.errors import PolicyError
from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.sim.monitor import Comparison
from trimtab_policy.types import Snapshot

CLOSE_SECONDS = 1.0
"""For the pipe to be closed by whoever has it."""
WORKER = (sys.executable, "-m", "trimtab.decide.worker")


class RemoteEngine:
    """One process, asked one thing at a time. `constants` is the file that the performance model's are in."""

    def __init__(self, constants: Path | None = None, command: Sequence[str] = WORKER) -> None:
        self._command = (*command, *([str(constants.resolve())] if constants else []))
        self._process: Process | None = None

    async def decide(self, policy: str, snapshot: Snapshot, seconds: float, rules: Rules | None = None) -> Outcome:
        """What the policy would decide for all waiting jobs. Raises PolicyError.

        `seconds` is the policy's deadline; loading it, and starting the process, come on top.
        """
        request = PolicyRequest(policy, seconds, snapshot, rules or Rules())
        outcome: Outcome = await self._ask(policy, request, Outcome)
        for failure in outcome.fallbacks:
            await self.stop()  # whatever it was, and what may still be at work there: start afresh
            raise PolicyError(failure.message, reason=failure.reason, kind=failure.kind)
        return outcome

    async def compare(self, request: CompareRequest) -> Comparison | None:
        """How the policy does beside its fallback; None where nothing can be said. Raises PolicyError.

        The process is ended afterwards: the next time is hours away.
        """
        answer: Comparison | None = await self._ask(request.contest.policy, request, Comparison | None)
        await self.stop()
        return answer

    async def _ask(self, policy: str, request: PolicyRequest | CompareRequest, kind: Any) -> Any:
        """The answer, which is of the type `kind`. Raises PolicyError."""
        question = await asyncio.to_thread(msgspec.msgpack.encode, request)
        limit = LOAD_SECONDS + request.seconds
        try:
            async with asyncio.timeout(limit):
                answer = await self._exchange(frame(question))
            return msgspec.msgpack.decode(answer, type=kind)
        except TimeoutError:
            await self.stop()
            raise PolicyError(f"{policy} gave no answer after {limit:g} s", reason="deadline") from None
        except (EOFError, OSError, msgspec.DecodeError) as error:
            await self.stop()
            raise PolicyError(f"the process of {policy} ended without an answer ({error})", reason="crash") from error
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the process, if there is one, and whatever it has started."""
        process, self._process = self._process, None
        if process is None or process.stdin is None or process.stdout is None:
            return
        process.stdin.close()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await process.stdout.read()
        await process.wait()

    async def _exchange(self, question: bytes) -> bytes:
        if self._process is None:
            # a session of its own: Ctrl-C in a terminal is for the controller
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, start_new_session=True
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise EOFError("it has no pipes")
        stdin.write(question)
        await stdin.drain()
        header = await stdout.readexactly(HEADER_BYTES)
        return await stdout.readexactly(int.from_bytes(header, "big"))
