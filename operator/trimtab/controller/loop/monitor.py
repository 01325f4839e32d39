"""Whether the policy that decides does worse than its fallback on this cluster; while it does, the fallback decides.

Every few hours the jobs of the last day are simulated under both (`sim.monitor`), in a process of its own with low
priority and a bounded part of a core. Nothing waits for it. What it finds is kept in a ConfigMap, so that the
next controller goes on with it, and told: a log line and metrics each time, an event when it changes who decides.

Should anything of this fail, that costs the comparison only: whoever decided before goes on deciding.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import msgspec
import structlog
from msgspec.structs import replace

from trimtab.apply.transitions import JobEvent
from trimtab.controller.event_recorder import EventRecorder
from trimtab.decide.remote import RemoteEngine
from trimtab.decide.rules import monitor_rules, simulated
from trimtab.decide.standing import read_standing, written
from trimtab.decide.worker import CompareRequest
from trimtab.errors import AlreadyExists, ApiError, Conflict, LeadershipLost, NotFound, PolicyError
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import ConfigMapObject, Meta
from trimtab.kube.resources import CONFIG_MAPS
from trimtab.observe import past
from trimtab.observe.snapshot import Observation
from trimtab.settings import Settings
from trimtab.telemetry import metrics
from trimtab_policy.policy import Kind, UnknownPolicy, entry
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.sim.monitor import Comparison, Contest, Standing, judge

READ_SECONDS = 3.0
"""Nobody waits longer for the ConfigMap when leadership begins."""
AGAIN_SECONDS = 600.0
"""Where there were too few jobs, it is looked again so soon, or after the period if that is less."""
SLACK = 2.0
"""On the wall a comparison may take so many times what its CPU time takes at its share of a core: others work, too."""

log = structlog.get_logger(__name__)
_CONFIG_MAP = msgspec.json.Decoder(ConfigMapObject)


class Monitor:
    """Compares, keeps the verdict, and says who decides by it. `wake` lets a round come after a change."""

    def __init__(
        self,
        engine: RemoteEngine,
        client: KubeClient,
        recorder: EventRecorder,
        settings: Settings,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._client = client
        self._recorder = recorder
        self._settings = settings
        self._own = settings.monitor
        self._rules = monitor_rules(settings.monitor)
        self._wake = wake
        self._clock = clock
        self.standing = Standing()
        self._found: ConfigMapObject | None = None
        """The ConfigMap as it was last read or written."""
        self._foreign = False
        """It holds what this version does not understand: nothing is written over it."""
        self._not_before = -math.inf
        """Of `clock`: no comparison begins before that."""
        self._task: asyncio.Task[None] | None = None

    @property
    def enabled(self) -> bool:
        return self._own.period_seconds > 0

    async def load(self) -> None:
        """Read what was found before; to be called when leadership begins. Goes on without where that fails."""
        if not self.enabled:
            return
        try:
            path = CONFIG_MAPS.path(self._own.namespace, self._own.config_map)
            self._found = _CONFIG_MAP.decode(await self._client.request("GET", path, deadline=READ_SECONDS))
            self.standing = read_standing(self._found.data)
            self._gauge()
        except NotFound:
            self._found, self.standing = None, Standing()
        except PolicyError as error:
            self._foreign = True
            self._failed("unreadable", f"what the monitor has found before is not understood: {error}")
        except (ApiError, msgspec.MsgspecError) as error:
            self._failed("unreadable", f"what the monitor has found before could not be read: {error}")

    def decides(self, chosen: Choice) -> Choice:
        """Who decides in place of those that were chosen; the very same while nothing speaks against the policy."""
        standing = self.standing
        if not (self.enabled and standing.fallen and standing.concerns(chosen.policy, chosen.fallback)):
            return chosen
        return replace(chosen, policy=chosen.fallback)

    def watch(self, observation: Observation, chosen: Choice) -> None:
        """Begin a comparison of those that were chosen, if one is due. Costs next to nothing where none is.

        A rule is chosen for what it does, fairness for example, and not to be second-guessed: only what was learned may
        turn out to be unfit for a cluster.
        """
        if not self.enabled or not _is_learned(chosen.policy) or self._clock() < self._not_before:
            return
        if self._task and not self._task.done():
            return
        now, known = observation.snapshot.time, self.standing
        due = known.compared + self._own.period_seconds if known.concerns(chosen.policy, chosen.fallback) else now
        if now < due:
            return
        soon = min(AGAIN_SECONDS, self._own.period_seconds)
        if past.there_since(observation, now - self._own.window_seconds) < self._own.least_jobs:
            self._not_before = self._clock() + soon
            metrics.MONITOR_COMPARISONS.labels("too_few_jobs").inc()
            return
        self._not_before = self._clock() + self._own.period_seconds  # whatever comes of it
        self._task = asyncio.create_task(self._compare(observation, chosen), name="monitor")

    async def stop(self) -> None:
        """End what is under way, and the process."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._engine.stop()

    async def _compare(self, observation: Observation, chosen: Choice) -> None:
        try:
            request, now = await asyncio.to_thread(self._request, observation, chosen), observation.snapshot.time
            del observation  # it may take an hour from here on
            found = await self._engine.compare(request)
            if found is None:
                self._failed("out_of_time", "not even the fewest jobs could be simulated, or most can never run")
                return
            await self._conclude(found, now)
        except PolicyError as failure:
            self._failed(failure.reason, str(failure))
        except Exception:  # a mistake of ours in watching must not become one in deciding
            log.exception("the monitor failed: this is a bug, please report it")
            metrics.MONITOR_COMPARISONS.labels("bug").inc()

    def _request(self, observation: Observation, chosen: Choice) -> CompareRequest:
        own = self._own
        contest = Contest(
            chosen.policy,
            chosen.fallback,
            past.window(observation, own.window_seconds),
            own.window_seconds,
            simulated(self._settings),
            self._settings.elasticity.enabled,
            self._rules,
        )
        return CompareRequest(contest, SLACK * own.cpu_seconds / own.cpu_share, own.cpu_seconds, own.cpu_share)

    async def _conclude(self, found: Comparison, now: float) -> None:
        before = self.standing
        self.standing = judge(before, found, self._rules, now)
        metrics.MONITOR_COMPARISONS.labels("compared").inc()
        self._gauge()
        fell = self.standing.fallen
        was = before.fallen and before.concerns(found.policy, found.fallback)
        log.info(
            "policy compared",
            decides=found.fallback if fell else found.policy,
            message=found.describe(),
            without_one=round(found.without_one, 3),
            queues=found.queues,
            priorities=found.priorities,
            of=found.of,
        )
        await self._save()
        if fell != was:
            self._tell(fell, found)
            self._wake()

    def _tell(self, fell: bool, found: Comparison) -> None:
        who, reason = (found.fallback, "PolicyReplaced") if fell else (found.policy, "PolicyRestored")
        message = f"{who} decides from now on; {found.describe()}"
        (log.warning if fell else log.info)(reason, message=message)
        happening = JobEvent("Warning" if fell else "Normal", reason, message, int(self.standing.since))
        about = self._found.metadata if self._found else Meta(name=self._own.config_map, namespace=self._own.namespace)
        self._recorder.choice(about, happening)

    def _gauge(self) -> None:
        standing, found = self.standing, self.standing.latest
        if found is None:
            return
        names = found.policy, found.fallback
        bounds = {"ratio": found.ratio, "low": found.low, "high": found.high}
        metrics.replace(metrics.MONITOR_RATIO, {(*names, bound): value for bound, value in bounds.items()})
        metrics.replace(metrics.MONITOR_FALLEN, {names: float(standing.fallen)})
        metrics.MONITOR_JOBS.set(found.jobs)

    async def _save(self) -> None:
        """Write over what was read, or create it; where somebody else was first, the next comparison does."""
        if self._foreign:
            return
        try:
            self._found = _CONFIG_MAP.decode(await self._send())
        except (Conflict, AlreadyExists, NotFound) as error:
            self._failed("unwritable", f"somebody else has changed what the monitor keeps: {error}")
            await self._reread()
        except (ApiError, LeadershipLost) as error:
            self._failed("unwritable", f"what the monitor has found could not be written: {error}")

    async def _reread(self) -> None:
        """Learn which version of the ConfigMap there is now; what was found here counts."""
        mine = self.standing
        await self.load()
        self.standing = mine

    async def _send(self) -> bytes:
        namespace, name, data = self._own.namespace, self._own.config_map, written(self.standing)
        if self._found is None:
            meta = {"name": name, "namespace": namespace}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
            return await self._client.create(CONFIG_MAPS.path(namespace), body)
        patch = {"metadata": {"resourceVersion": self._found.metadata.resource_version}, "data": data}
        return await self._client.merge_patch(CONFIG_MAPS.path(namespace, name), patch)

    def _failed(self, reason: str, message: str) -> None:
        metrics.MONITOR_COMPARISONS.labels(reason).inc()
        log.warning("policies not compared", reason=reason, message=message)


def _is_learned(policy: str) -> bool:
    try:
        return entry(policy).kind is Kind.LEARNED
    except UnknownPolicy:
        return False
