"""Jobs whose template refers to what is not there wait without GPUs: whether it is there is asked before they are
planned, and again and again while they wait.

Nothing is watched: watches of all claims and ConfigMaps would cost memory by what others have, and of Secrets they
would show what is in them. Claims and service accounts are read one by one. Secrets and ConfigMaps are *not* read: that
one may be created under the name is asked in a dry run, which says `AlreadyExists` or not, and never what is in it; the
policy trimtab-controller-records holds this account to dry runs. Decision 0054 has the reasons.

A round is not kept waiting: it takes what is known, and what is not known yet comes a few milliseconds later and wakes
the next one. Namespaces take turns, and each has only so many second looks in a second. Where the API server does not
tell, jobs are planned as if all were there: kubelets tell in their own way.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
import structlog
from msgspec import Struct, field

from trimtab.controller.jobs.screening import Screening
from trimtab.errors import AlreadyExists, ApiError, NotFound
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import AnyObject, JobObject
from trimtab.kube.resources import CLAIMS, CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, Resource
from trimtab.observe.facts_memo import FactsMemo
from trimtab.observe.jobs import JobFacts
from trimtab.observe.references import ACCOUNT, CLAIM, CONFIG_MAP, SECRET, Reference, references_of
from trimtab_policy.types import Pending, PendingReason

READ: dict[str, Resource] = {CLAIM: CLAIMS, ACCOUNT: SERVICE_ACCOUNTS}
"""Kinds that are read ..."""
TRIED: dict[str, Resource] = {SECRET: SECRETS, CONFIG_MAP: CONFIG_MAPS}
"""... and those of which it is only asked whether the name is taken."""
AT_ONCE = 8
"""Requests in flight."""
DEADLINE_SECONDS = 3.0
"""Of one request: a webhook that hangs must not keep jobs from being planned ..."""
PATIENCE_SECONDS = 5.0
"""... nor anything else: so long after it was first asked for, what is not known counts as there."""
MISSING_SECONDS, THERE_SECONDS, UNTOLD_SECONDS = 2.0, 60.0, 30.0
"""When to look again at what is missing, what is there, and what the API server does not tell."""
PACE_SECONDS = 0.25
"""Between second looks at objects of one namespace: who has named a thousand that are not there waits longer."""
TELL_SECONDS = 300.0
MOST_NAMED = 3
"""Objects that a message names."""

_OBJECT = msgspec.json.Decoder(AnyObject)

log = structlog.get_logger(__name__)


class Named(NamedTuple):
    """An object, wherever it is named."""

    namespace: str
    kind: str
    name: str


Needs = tuple[tuple[Reference, Named | None], ...]
"""What a job refers to; None in the place of what no object can be called."""


class Found(Struct):
    """What is known of one."""

    since: float
    """When it was first asked for; times are monotonic."""
    due: float
    """When it is to be looked at (next): what stands in line for another time is left over from before."""
    there: bool | None = None
    """None: not told (yet)."""
    answered: bool = False


class Turns(Struct):
    """The objects of a namespace by the time at which they are to be looked at (next)."""

    line: list[tuple[float, Named]] = field(default_factory=list)
    """A heap."""
    paced: float = 0.0
    """When the next second look may be at the earliest."""


class References(Screening):
    """What waiting jobs refer to, and whether it is there."""

    def __init__(
        self,
        client: KubeClient,
        jobs: Callable[[], Iterable[JobObject]],
        facts: Callable[[JobObject], JobFacts],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(client, jobs, facts, wake)
        self._of: FactsMemo[JobObject, Needs] = FactsMemo("references", self._read, lambda job, error: ())
        self._found: dict[Named, Found] = {}
        self._turns: OrderedDict[str, Turns] = OrderedDict()
        """By namespace; who was served last stands last."""
        self._news = asyncio.Event()
        self._told = -math.inf

    def look(self) -> dict[str, Pending | None]:
        """Who must not be planned, by UID: why, or None where it is being asked. To be called once in every round."""
        held: dict[str, Pending | None] = {}
        wanted: set[Named] = set()
        now = time.monotonic()
        for job, needs in self._of.all(self._jobs()):
            missing: list[Reference] = []
            for reference, named in needs:
                if named is None:
                    missing.append(reference)
                    continue
                wanted.add(named)
                found = self._found.get(named) or self._ask(named, now)
                if found.there is False:
                    missing.append(reference)
                elif not found.answered and now - found.since < PATIENCE_SECONDS:
                    held[job.metadata.uid] = None
            if missing:
                held[job.metadata.uid] = _pending(job, missing)
        for named in self._found.keys() - wanted:
            del self._found[named]
        return held

    async def run(self) -> None:
        """Ask and ask again, until cancelled. Raises LeadershipLost."""
        while True:
            if batch := self._due(time.monotonic()):
                await asyncio.gather(*(self._settle(named) for named in batch))
                continue
            self._news.clear()
            wait = min((turns.line[0][0] for turns in self._turns.values() if turns.line), default=math.inf)
            try:
                async with asyncio.timeout(None if wait == math.inf else max(0.0, wait - time.monotonic())):
                    await self._news.wait()
            except TimeoutError:
                continue

    # --- inside -----------------------------------------------------------------------------------------------------
    def _read(self, job: JobObject) -> Needs:
        """What a job needs that waits for GPUs; nothing of any other: kubelets tell what its pods lack."""
        facts = self._facts(job)
        found = references_of(facts.template["spec"]) if facts.waits else ()
        at = job.metadata.namespace
        return tuple((each, Named(at, each.kind, each.name) if each.possible else None) for each in found)

    def _ask(self, named: Named, now: float) -> Found:
        found = self._found[named] = Found(now, now)
        heapq.heappush(self._turns.setdefault(named.namespace, Turns()).line, (now, named))
        self._news.set()
        return found

    def _due(self, now: float) -> list[Named]:
        """What to ask now, one of each namespace in turn."""
        batch: list[Named] = []
        served = True
        while served and len(batch) < AT_ONCE:
            served = False
            for namespace, turns in list(self._turns.items()):
                while turns.line and not self._stands(*turns.line[0]):
                    heapq.heappop(turns.line)
                if not turns.line:
                    del self._turns[namespace]
                elif turns.line[0][0] <= now and len(batch) < AT_ONCE:
                    named = heapq.heappop(turns.line)[1]
                    self._found[named].due = math.inf
                    batch.append(named)
                    self._turns.move_to_end(namespace)
                    served = True
        return batch

    def _stands(self, due: float, named: Named) -> bool:
        """Whether an entry of the line counts: some waiting job names the object, and it was not put there anew."""
        found = self._found.get(named)
        return found is not None and found.due == due

    async def _settle(self, named: Named) -> None:
        """Ask whether one object is there, and see to it that it is asked again."""
        there = await self._there(named)
        if (found := self._found.get(named)) is None:
            return
        news = not found.answered or found.there is not there
        found.there, found.answered = there, True
        again = {True: THERE_SECONDS, False: MISSING_SECONDS, None: UNTOLD_SECONDS}[there]
        turns, now = self._turns.setdefault(named.namespace, Turns()), time.monotonic()
        turns.paced = max(turns.paced, now) + PACE_SECONDS
        found.due = max(now + again, turns.paced)
        heapq.heappush(turns.line, (found.due, named))
        if news:
            self._wake()

    async def _there(self, named: Named) -> bool | None:
        """Whether it is there; None where the API server does not tell. What is being deleted is there no more: no pod
        is started with it."""
        namespace, kind, name = named
        try:
            if kind in READ:
                content = await self._client.request("GET", READ[kind].path(namespace, name), deadline=DEADLINE_SECONDS)
                return not _OBJECT.decode(content).metadata.deletion_timestamp
            body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}}
            path = TRIED[kind].path(namespace)
            await self._client.request("POST", path, body=body, params={"dryRun": "All"}, deadline=DEADLINE_SECONDS)
        except AlreadyExists:
            return True
        except NotFound:
            return False
        except ApiError as error:
            self._tell(named, error)
            return None
        return False

    def _tell(self, named: Named, error: ApiError) -> None:
        now = time.monotonic()
        if now - self._told >= TELL_SECONDS:
            self._told = now
            log.warning(
                "whether what jobs refer to is there cannot be asked: taken to be there",
                kind=named.kind, namespace=named.namespace, error=str(error),
            )  # fmt: skip


def _pending(job: JobObject, missing: list[Reference]) -> Pending:
    namespace = job.metadata.namespace
    said = [
        f"{each.field}: there is no {each.kind} {each.name!r} in namespace {namespace}"
        if each.possible
        else f"{each.field}: {each.name!r} is no name that a {each.kind} can have"
        for each in missing[:MOST_NAMED]
    ]
    more = [f"and {len(missing) - MOST_NAMED} more"] if len(missing) > MOST_NAMED else []
    return Pending(
        job.metadata.uid,
        PendingReason.OBJECT_NOT_FOUND,
        "; ".join([*said, *more]),
        blockers=tuple(f"{each.kind} {each.name}" for each in missing),
        alternatives=("create what is missing: the job goes on within seconds; or correct the field",),
    )
