"""What predictions learn from running jobs: kept in a ConfigMap, applied to jobs that wait, told when it changes.

The leader reads it when it begins to lead, and writes it at most once a minute, only over what it has read itself. A
ConfigMap that cannot be understood stays as it is: nothing is learned then but what this process sees, and a metric and
an event say so until somebody deletes or mends it. Deleting it is how one makes Trimtab forget.

What teaches nothing: gangs with a card that is known to be slow, when planned or now. Their step times tell of the
card, not of the model, and the prediction of a plan contains that already. So nothing is learned before a slow card
could have been found (`settle_seconds`), and what a job has taught is forgotten when one of its cards turns out slow.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from functools import partial

import msgspec
import structlog

from trimtab import names
from trimtab.api import conditions
from trimtab.api.convert import to_placement
from trimtab.apply.transitions import JobEvent
from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.reports.endpoint import ReportServer
from trimtab.controller.reports.progress import MeasuredSteps, ProgressReports, predicted_seconds
from trimtab.controller.reports.tokens import Tokens
from trimtab.errors import AlreadyExists, ApiError, Conflict, LeadershipLost, NotFound
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import ConfigMapObject
from trimtab.kube.resources import CONFIG_MAPS
from trimtab.observe import calibration
from trimtab.observe.calibration import NotUnderstood
from trimtab.observe.snapshot import ClusterObserver, Observation
from trimtab.settings import ReportSettings
from trimtab.telemetry import metrics
from trimtab_policy import catalog
from trimtab_policy.perf import correction
from trimtab_policy.perf.correction import Corrections
from trimtab_policy.perf.hierarchy import Learned
from trimtab_policy.perf.lessons import CorrectionRules, Locality, State, anonymous, key_of
from trimtab_policy.placement import topology
from trimtab_policy.placement.candidates import type_of
from trimtab_policy.types import Node, Placement, Snapshot

TURN_SECONDS = 5.0
"""Between looks at whether something is to be written."""
WRITE_SECONDS = 60.0
READ_SECONDS = 3.0
"""Nobody waits longer for the ConfigMap, neither the first round nor the end of the process."""
UNSAVED = 1000
"""Jobs that are remembered for when the ConfigMap can be read again."""

log = structlog.get_logger(__name__)
_CONFIG_MAP = msgspec.json.Decoder(ConfigMapObject)


def _running_on(snapshot: Snapshot, nodes: frozenset[str]) -> list[str]:
    """UIDs of jobs that hold GPUs of these nodes."""
    held = ((job.uid, job.placement) for job in snapshot.jobs)
    return [uid for uid, placement in held if placement and any(share.node in nodes for share in placement.shares)]


class Calibration:
    """Listens to trainings while `settings.listens`, and learns from them; otherwise it does nothing at all."""

    def __init__(
        self,
        settings: ReportSettings,
        client: KubeClient,
        cluster: Cluster,
        observer: ClusterObserver,
        recorder: EventRecorder,
        *,
        news: Callable[[str], None],
        leading: Callable[[], bool],
        settle_seconds: float = 0.0,
        write_seconds: float = WRITE_SECONDS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.state = State()
        self.known = Learned()
        self._corrections = Corrections(self.known)
        self.progress = ProgressReports(
            cluster,
            observer.job,
            news=news,
            learn=self.learn,
            drift_factor=settings.drift_factor,
            settle_seconds=settle_seconds,
            wall=wall,
        )
        self._settings = settings
        self._client = client
        self._cluster = cluster
        self._observer = observer
        self._recorder = recorder
        self._leading = leading
        self._write_seconds = write_seconds
        tokens = Tokens(client, names.REPORT_AUDIENCE, wall=wall, reports=cluster.reports)
        self._server = ReportServer(settings, tokens, self.progress, leading)
        self._rules = CorrectionRules(largest_factor=settings.largest_factor)
        self._found: ConfigMapObject | None = None
        """The ConfigMap as it was last read or written."""
        self._read = False
        """Whether it could be read, or is not there."""
        self._unsaved: list[Callable[[State], State]] = []
        """What was learned or forgotten since it was read or written."""
        self._written = self._looked = -math.inf
        self._slow: frozenset[str] = frozenset()
        """Nodes with a card that is known to be slow."""
        self._snapshot: Snapshot | None = None
        """The last that was seen."""
        self._nodes: dict[str, Node] = {}
        """As they were seen last, those that take no pods any more as well."""

    async def run(self) -> None:
        """Listen and keep what is learned, until cancelled."""
        if not self._settings.listens:
            await asyncio.Event().wait()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._server)
            while True:
                await asyncio.sleep(TURN_SECONDS)
                if self._leading():
                    await self._turn()

    async def load(self) -> None:
        """Read what was learned before; to be called when leadership begins. Goes on without where that fails."""
        if not self._settings.listens:
            return
        self._looked = time.monotonic()
        path = CONFIG_MAPS.path(self._settings.namespace, self._settings.config_map)
        found: ConfigMapObject | None = None
        try:
            found = _CONFIG_MAP.decode(await self._client.request("GET", path, deadline=READ_SECONDS))
            state = calibration.read_calibration(found.data)
        except NotFound:
            state = State()
        except NotUnderstood as error:
            self._complain("unreadable", f"what was learned is not understood: {error}", found)
            return
        except (ApiError, msgspec.MsgspecError) as error:
            self._complain("unreadable", f"what was learned could not be read: {error}", None)
            return
        if not self._read and found:
            log.info("learned before", lessons=state.count, keys=len(state.known))
        self._found, self._read = found, True
        metrics.CALIBRATION_PROBLEM.clear()
        for change in self._unsaved:
            state = change(state)
        self._adopt(state)

    async def stop(self) -> None:
        """Write down what is not yet, as long as we still may."""
        if self._settings.listens and self._unsaved and self._leading():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._save(), READ_SECONDS)

    def corrected(self, observation: Observation) -> Observation:
        """The observation with waiting jobs' predictions to be corrected."""
        slow = frozenset(card.node for card in observation.stragglers)
        if new := slow - self._slow:
            self._forget(_running_on(observation.snapshot, new))
        self._slow = slow
        self._remember(observation.snapshot)
        if not self._settings.correct:
            return observation
        snapshot = calibration.corrected(observation.snapshot, self._corrections)
        return (
            observation if snapshot is observation.snapshot else msgspec.structs.replace(observation, snapshot=snapshot)
        )

    def learn(self, measured: MeasuredSteps) -> None:
        """Take note of how long steps of a gang take."""
        facts, plan = measured.facts, measured.plan
        if facts.training is None or self._has_slow_card(measured):
            return
        job = facts.as_job(created=facts.created)
        held = to_placement(job.uid, plan)
        key = key_of(job, plan.gpu_type, held.plan, self._lies(held))
        model_said = predicted_seconds(plan, facts.training) / ((plan.predicted.correction_permille or 1000) / 1000)
        error = math.log(measured.seconds / model_said)
        lesson = partial(
            correction.learn,
            key=key,
            job=anonymous(job.uid),
            error=error,
            rules=self._rules,
            namespace=anonymous(job.namespace),
            settled=measured.settled,
        )
        before = self.state
        self._change(lesson)
        log.info(
            "learned",
            job=facts.meta.key,
            model=key.model,
            type=key.gpu_type,
            plan=key.plan,
            lies=key.locality.value,
            error=round(error, 3),
        )
        self._alarm(key.gpu_type, before)

    def _remember(self, snapshot: Snapshot) -> None:
        before, self._snapshot = self._snapshot, snapshot
        if before and before.nodes is snapshot.nodes and before.unavailable == snapshot.unavailable:
            return  # in most rounds: a snapshot keeps the tuple where no node has changed
        here = {node.name: node for node in snapshot.nodes}
        gone = {name: node for name, node in self._nodes.items() if name in snapshot.unavailable}
        self._nodes = gone | here

    def _lies(self, held: Placement) -> Locality:
        """How a gang lies in link domains; unknown before the first look, and of a GPU type of which nothing is."""
        if self._snapshot is None:
            return Locality.UNKNOWN
        try:
            return topology.locality(type_of(self._snapshot, held), held.shares, self._nodes)
        except catalog.UnknownGpu:
            return Locality.UNKNOWN

    def _has_slow_card(self, measured: MeasuredSteps) -> bool:
        if measured.plan.predicted.speed_permille is not None:
            return True
        return any(node.name in self._slow for node in measured.plan.nodes)

    def _forget(self, uids: Iterable[str]) -> None:
        for uid in uids:
            lesson = partial(correction.forget, job=anonymous(uid))
            if lesson(self.state) is not self.state:
                self._change(lesson)
                log.info("forgotten", uid=uid, reason="one of its cards has turned out slow")

    def _change(self, lesson: Callable[[State], State]) -> None:
        self._unsaved.append(lesson)
        del self._unsaved[:-UNSAVED]
        self._adopt(lesson(self.state))

    def _adopt(self, state: State) -> None:
        self.state = state
        self.known = Learned(state, self._rules)
        self._corrections = Corrections(self.known)
        factors = self.known.factors()
        metrics.replace(metrics.PREDICTION_FACTOR, {(k.model, k.gpu_type, k.plan): f for k, f in factors.items()})
        drifts: dict[tuple[str, ...], float] = {}
        for gpu_type in sorted({known.key.gpu_type for known in state.known}):
            metrics.PREDICTION_DRIFT_ALARMS.labels(gpu_type)  # from 0 on: Prometheus sees no counter be born at 1
            drifts[gpu_type,] = math.exp(correction.change(state, gpu_type))
        metrics.replace(metrics.PREDICTION_DRIFT, drifts)

    def _alarm(self, gpu_type: str, before: State) -> None:
        """Tell when the steps of all jobs on a GPU type have become slower or faster than they were."""
        if not correction.alarm(before, self.state, gpu_type):
            return
        factor = math.exp(correction.change(self.state, gpu_type))
        metrics.PREDICTION_DRIFT_ALARMS.labels(gpu_type).inc()
        message = (
            f"steps on {gpu_type} take about {factor:.2f} times as long as those of earlier jobs of their kind:"
            " predictions follow the latest jobs, and what was learned before the change counts no more"
        )
        log.warning("PredictionDrift", type=gpu_type, message=message)
        if self._found:
            happening = JobEvent("Warning", "PredictionDrift", message, self.state.count)
            self._recorder.choice(self._found.metadata, happening)

    async def _turn(self) -> None:
        self.progress.forget()
        metrics.DRIFTED_JOBS.set(self._drifted())
        now = time.monotonic()
        if not self._read and now - self._looked >= self._write_seconds:
            await self.load()
        if self._unsaved and now - self._written >= self._write_seconds:
            await self._save()

    def _drifted(self) -> int:
        jobs = (self._observer.job(job) for job in self._cluster.jobs.items.values())
        return sum(facts.holds_gpus and conditions.holds(facts.status.conditions, names.DRIFTED) for facts in jobs)

    async def _save(self) -> None:
        """Write over what was read, or create it; what somebody else has written meanwhile is taken as it is."""
        if not self._read:
            return
        self._written = time.monotonic()
        saved = len(self._unsaved)
        try:
            self._found = _CONFIG_MAP.decode(await self._send())
        except (Conflict, AlreadyExists, NotFound):
            self._read = False
            await self.load()
        except (ApiError, LeadershipLost) as error:
            self._complain("unwritable", f"what was learned could not be written: {error}", None)
        else:
            del self._unsaved[:saved]
            metrics.CALIBRATION_PROBLEM.clear()

    async def _send(self) -> bytes:
        namespace, name, data = self._settings.namespace, self._settings.config_map, calibration.written(self.state)
        if self._found is None:
            meta = {"name": name, "namespace": namespace}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
            return await self._client.create(CONFIG_MAPS.path(namespace), body)
        patch = {"metadata": {"resourceVersion": self._found.metadata.resource_version}, "data": data}
        return await self._client.merge_patch(CONFIG_MAPS.path(namespace, name), patch)

    def _complain(self, reason: str, message: str, about: ConfigMapObject | None) -> None:
        metrics.replace(metrics.CALIBRATION_PROBLEM, {(reason,): 1})
        log.warning("calibration", problem=reason, message=message)
        if about:
            happening = JobEvent("Warning", "CalibrationNotUnderstood", message, about.metadata.version)
            self._recorder.choice(about.metadata, happening)
