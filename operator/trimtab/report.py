"""Report steps from a training script to Trimtab. Standard library only; Python 3.8 and later; one file to copy.

    from trimtab import report
    reporter = report.Reporter()                              # before the loop
    for step, batch in enumerate(loader, start):
        ...
        reporter.step(step, tokens=tokens_per_step, loss=loss)   # after each optimizer step

and, when a checkpoint is safe on disk, `reporter.checkpoint(step)`. It never raises into the training and never waits
for the network: the latest figures lie in one slot, and a daemon thread sends what is there every
TRIMTAB_REPORT_SECONDS (10 by default). A `loss` may be a tensor: that thread turns it into a number, not the loop.
What is wrong (a figure that is no number, a token that is refused) is told once on stderr; the rest is sent.

Trimtab stops a running job only after asking it to save its state, and gives it time (`graceSeconds`) to do so:

        if reporter.should_checkpoint():                      # after each step: cheap, in every process
            save(step)
            reporter.checkpointed(step)                       # rank 0, when the checkpoint of all ranks is complete
            sys.exit(143)                                     # under torchrun 0: it makes 1 of every other code

Ranks hear of it at different times, so let them agree where they save together: rank 0 asks every so many steps and
broadcasts the answer, and all leave after a barrier behind `checkpointed`. A job that does not answer is stopped when
its time is over, and goes on from its last checkpoint; TRIMTAB_RESUME_STEP names the step, where it is known.

It sends nothing where TRIMTAB_REPORT_URL is unset (outside Trimtab), and in every process but that of global rank 0.
Time per step is measured between calls: the median of the latest ones, the first few left out; a call may also stand
for several steps. The token is read anew for each report, since the kubelet renews it, and goes nowhere but to that
URL: no proxy, no redirection. Where that is https, the server must have a certificate of the authority in
TRIMTAB_REPORT_CA (PEM, or the path of a file of it), or without that, of one that this machine trusts.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import math
import os
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

TOKEN_FILE = "/var/run/secrets/trimtab.dev/report/token"  # noqa: S105 - a path
WARM_UP = 5
"""First intervals of a process that are no measure: compilation, cold caches, the first batches."""
WINDOW = 100
TIMEOUT_SECONDS = 2.0
TRIES = 4
"""Of one report, where who answers does not lead: a Service sends each connection to another replica, by chance."""
LARGEST_METRICS = 32
PASSING = (408, 409, 429, 500, 503)
"""HTTP statuses that the next report has got over, or nobody needs to be told of."""
RETRY_SECONDS = 1.2
"""Pause before the last report is tried once more: two within a second are one too many for the controller."""
LOOK_SECONDS = 1.0
"""The file that tells of a request is looked at so often, however often it is asked about."""
LARGEST_ANSWER = 1 << 16


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """A redirected request would show the token to somebody else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _trusting(env: Mapping[str, str]) -> list[urllib.request.BaseHandler]:
    """What checks the certificate of an https URL. Raises OSError or ValueError where that cannot be done."""
    if not env["TRIMTAB_REPORT_URL"].startswith("https:"):
        return []
    import ssl  # here: a Python without it can still report in plain text

    given = env.get("TRIMTAB_REPORT_CA", "")
    text, path = (given, None) if "-----BEGIN" in given else (None, given or None)
    return [urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=path, cadata=text))]


class Reporter:
    """Sends the latest step, its duration and its figures in the background."""

    def __init__(self, token_file: str = TOKEN_FILE) -> None:
        env = os.environ
        leads = env.get("RANK", env.get("PET_NODE_RANK", "0")) == "0"
        self._url = env.get("TRIMTAB_REPORT_URL", "") if leads else ""
        self._job, self._epoch = env.get("TRIMTAB_REPORT_JOB", ""), env.get("TRIMTAB_EPOCH", "")
        self._period, self._token_file = 10.0, token_file
        self._intervals: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._last: tuple[int, float] | None = None
        self._slot: tuple[int, Any, dict[str, Any]] | None = None
        self._saved: int | None = None
        self._warned: set[str] = set()
        self._news, self._skip, self._ending = 0, WARM_UP, threading.Event()
        self._file, self._look_at, self._in_file, self._asked = (
            env.get("TRIMTAB_CHECKPOINT_FILE", ""),
            0.0,
            False,
            False,
        )
        self._wake, self._heard, self._unheard = threading.Event(), threading.Event(), False
        if self._url:
            with contextlib.suppress(ValueError):
                self._period = max(0.1, float(env.get("TRIMTAB_REPORT_SECONDS", "10")))
            direct: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirection()]
            try:
                self._open = urllib.request.build_opener(*direct, *_trusting(env)).open
            except Exception as error:  # noqa: BLE001  # certificates that cannot be read, a Python without TLS
                self._url = ""
                self._warn("tls", f"steps are not reported: TRIMTAB_REPORT_CA cannot be used: {error}")
        if self._url:
            self._thread = threading.Thread(target=self._run, name="trimtab-report", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def step(self, step: int, tokens: float | None = None, **metrics: Any) -> None:
        """After optimizer step number `step`, counted over the whole training; `tokens` of all ranks in one step."""
        if not self._url:
            return
        try:
            step, now, before = int(step), time.monotonic(), self._last
            self._last = (step, now)
            if before and step > before[0]:
                if self._skip:
                    self._skip -= 1
                else:
                    self._intervals.append((now - before[1]) / (step - before[0]))
            self._slot = (step, tokens, {k: v.detach() if hasattr(v, "detach") else v for k, v in metrics.items()})
            self._news += 1
        except Exception as error:  # noqa: BLE001  # whatever is wrong with a report, the training goes on
            self._warn("step", f"a step that cannot be told: {error}")

    def checkpoint(self, step: int) -> None:
        """The checkpoint of this step is complete: a restart would go on from it."""
        try:
            self._saved = int(step)
            self._news += 1
        except Exception as error:  # noqa: BLE001  # as above
            self._warn("checkpoint", f"a checkpoint that cannot be told: {error}")

    def should_checkpoint(self) -> bool:
        """Whether the job is to save its state and end; False again where that was taken back."""
        now = time.monotonic()
        if self._file and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            # A file that is not there, or not text, asks for nothing; the training goes on.
            with contextlib.suppress(OSError, ValueError), open(self._file) as file:
                self._in_file = bool(file.read(99).strip())
        return self._asked or self._in_file

    def checkpointed(self, step: int, seconds: float = 3.0) -> None:
        """The state is saved as it was asked for, up to this step. Waits until that was heard, so many seconds at most:
        it may be the last thing that the process says."""
        self.checkpoint(step)
        if not self._url or self._saved is None:
            return
        last = self._slot
        if last is None or last[0] < self._saved:
            self._slot = (self._saved, None, {})
        self._heard.clear()
        self._unheard = True
        self._wake.set()
        self._heard.wait(seconds)

    def close(self, seconds: float = 3.0) -> None:
        """Send what is left, within so many seconds; called by itself when the process ends."""
        self._ending.set()
        self._wake.set()
        if self._url and self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        sent, last_tries = 0, 2
        while last_tries:
            self._wake.wait(RETRY_SECONDS if self._unheard else self._period)
            self._wake.clear()
            ended, news = self._ending.is_set(), self._news
            if ended:
                self._wake.set()  # no pause between the last tries but their own
            if (news != sent or self._unheard) and self._slot:
                try:
                    self._send(*self._slot)
                    sent = news
                except Exception as error:  # noqa: BLE001  # the next report replaces this one
                    self._tell(error)
            if ended:
                last_tries = last_tries - 1 if news != sent and self._slot else 0
                time.sleep(RETRY_SECONDS if last_tries else 0)

    def _send(self, step: int, tokens: float | None, metrics: dict[str, Any]) -> None:
        body: dict[str, Any] = {"job": self._job, "epoch": int(self._epoch), "step": step}
        if self._intervals:
            body["stepSeconds"] = statistics.median(list(self._intervals))
            rate = (self._number("tokens", 0.0 if tokens is None else tokens) or 0.0) / body["stepSeconds"]
            if 0 < rate < math.inf:
                body["tokensPerSecond"] = rate
        if self._saved is not None and self._saved <= step:  # told with its step, if it comes first
            body["checkpointStep"] = self._saved
        saved_as_asked = self._unheard
        if saved_as_asked:
            body["acknowledged"] = True
        figures = {name[:63]: self._number(name, value) for name, value in metrics.items()}
        told = [{"name": name, "value": f"{value:.6g}"} for name, value in figures.items() if value is not None]
        if len(told) > LARGEST_METRICS:
            self._warn("metrics", f"{len(told)} metrics, of which the first {LARGEST_METRICS} are sent")
        body["metrics"] = told[:LARGEST_METRICS]
        with open(self._token_file) as file:
            headers = {"Authorization": "Bearer " + file.read().strip(), "Content-Type": "application/json"}
        request = urllib.request.Request(self._url + "/v1/report", json.dumps(body).encode(), headers)  # noqa: S310 - the operator gave the address
        for left in reversed(range(TRIES)):
            try:
                with self._open(request, timeout=TIMEOUT_SECONDS) as answer:
                    self._hear(answer.read(LARGEST_ANSWER), saved_as_asked)
                return
            except urllib.error.HTTPError as error:
                if error.code != 503 or not left:
                    raise
                error.close()

    def _hear(self, answer: bytes, saved_as_asked: bool) -> None:
        if saved_as_asked:
            self._unheard = False
            self._heard.set()
        self._asked = False
        with contextlib.suppress(Exception):  # no answer in words is no request
            self._asked = bool(json.loads(answer)["checkpoint"])

    def _number(self, name: str, value: Any) -> float | None:
        try:
            return float(value)
        except Exception as error:  # noqa: BLE001  # whatever somebody's tensor raises
            self._warn(name, f"{name} is no number, and is left out: {error}")
            return None

    def _tell(self, error: Exception) -> None:
        if not isinstance(error, urllib.error.HTTPError):
            self._warn(type(error).__name__, f"steps cannot be reported for now: {error}")
            return
        with error:
            if 400 <= error.code < 500 and error.code not in (408, 429):
                self._unheard = False  # whose plan is over, or was never valid, need not repeat it
                self._heard.set()
            if error.code not in PASSING:
                said = error.read(500).decode("utf-8", "replace")
                self._warn(str(error.code), f"a report was refused with HTTP {error.code}: {said}")

    def _warn(self, what: str, message: str) -> None:
        """Once for each kind of mistake: logs of trainings are long enough."""
        if what not in self._warned:
            self._warned.add(what)
            with contextlib.suppress(Exception):
                said = "".join(each if each.isprintable() else "�" for each in message)  # it may be an answer's
                print(f"trimtab.report: {said}", file=sys.stderr, flush=True)
