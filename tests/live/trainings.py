"""A training that speaks for itself: the test takes its place, with the token of the real pod of its gang."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.live.harness import NAMESPACE, ControllerProcess, Live, eventually

from trimtab import names

REPORTS = {"host": "127.0.0.1", "port": 0, "url": "http://reports.test"}
AT_ONCE = {"straggler_seconds": 0.0}
"""Nobody waits for the verdict on slow cards before a job may teach."""


def forget(live: Live) -> None:
    """What earlier trainings have taught goes: predictions, and with them plans, are as on the first day."""
    where = ("-n", names.SYSTEM_NAMESPACE, "--ignore-not-found")
    live.cluster.kubectl("delete", "configmap", names.CALIBRATION_CONFIG_MAP, *where)


def desk(controller: ControllerProcess) -> str:
    """Where the controller listens: the last address in its log."""
    return re.findall(r"reports=(http://\S+)/v1/report", controller.log.read_text(errors="replace"))[-1]


def token(live: Live, job: str) -> str:
    """That of the pod of rank 0, as the kubelet would project it."""
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", f"{job}-1-0", "--audience", names.REPORT_AUDIENCE)
    return live.cluster.kubectl("create", "token", "default", "-n", NAMESPACE, *bound).strip()


def post(controller: ControllerProcess, token: str, job: str, **said: Any) -> int:
    body = {"job": f"{NAMESPACE}/{job}", "epoch": 1} | said
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = Request(f"{desk(controller)}/v1/report", json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except HTTPError as refused:
        with refused:
            return refused.code


async def tells(live: Live, controller: ControllerProcess, job: str, **figures: Any) -> None:
    """Report enough steps to be believed."""
    shown = token(live, job)
    for step in (100, 150):

        def taken(step: int = step) -> bool:
            return post(controller, shown, job, step=step, **figures) == 200

        await eventually(taken, 30, f"step {step} to be taken")
