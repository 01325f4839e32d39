"""Which of several controllers acts: a Lease as in client-go, with a fencing epoch that client-go leaves to its users.

The Lease (coordination.k8s.io/v1) says who leads. A leader renews it every `retry_seconds`; one that could not renew
for `renew_seconds` stops by itself; a Lease that was not renewed for `lease_seconds` may be taken. Since the first
limit is shorter than the second, no two leaders overlap, provided that clocks run at about the same speed. Only local
monotonic time is looked at, never the times written in the Lease: clocks of other machines may be wrong by hours.

What an election cannot prevent is a leader that is paused right before a write and wakes up too late. Against that
stand `check()` right before every write, and the epoch: a number that grows with every change of leadership (it is the
Lease's `leaseTransitions`), goes into every status, and makes an older leader's writes recognisable.

    client = KubeClient(..., before_write=leadership.check)
    await leadership.acquire()          # waits; from here on `epoch` is ours
    await leadership.hold()             # returns when leadership is lost; nothing of it may be used again then
    await leadership.release()          # on a clean shutdown: lets a successor start at once
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import structlog

from trimtab.errors import AlreadyExists, ApiError, Conflict, LeadershipLost, NotFound
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import LEASES
from trimtab.settings import LeadershipSettings

log = structlog.get_logger(__name__)


class LeaseMeta(msgspec.Struct, rename="camel", omit_defaults=True):
    """Metadata of the Lease, as far as it must be sent back."""

    name: str
    namespace: str
    resource_version: str = ""


class LeaseSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """coordination.k8s.io/v1 LeaseSpec."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str = ""
    renew_time: str = ""
    lease_transitions: int = 0


class Lease(msgspec.Struct, rename="camel"):
    """coordination.k8s.io/v1 Lease."""

    metadata: LeaseMeta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
    api_version: str = LEASES.api_version
    kind: str = "Lease"


_LEASE = msgspec.json.Decoder(Lease)


def boot_time() -> float:
    """Seconds since boot; goes on while the machine is suspended, as other machines' clocks do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def default_identity() -> str:
    """A name that no other process has, not even on the same host."""
    return f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"


class Leadership:
    """One candidate. `client` must be one of its own, so that a burst of other requests cannot delay renewals."""

    def __init__(
        self, client: KubeClient, settings: LeadershipSettings, clock: Callable[[], float] = boot_time
    ) -> None:
        self.identity = settings.identity or default_identity()
        self.epoch = 0
        """Fencing number of the current leadership; 0 before the first."""
        self._client = client
        self._settings = settings
        self._clock = clock
        self._path = LEASES.path(settings.namespace, settings.name)
        self._observed: Lease | None = None
        self._observed_at = clock()
        self._valid_until: float | None = None

    @property
    def leading(self) -> bool:
        """Whether we may act right now."""
        return self._valid_until is not None and self._clock() < self._valid_until

    def check(self) -> None:
        """Raise LeadershipLost unless we may act right now."""
        if self._valid_until is None:
            raise LeadershipLost(f"{self.identity} does not lead")
        if self._clock() >= self._valid_until:
            late = self._clock() - self._valid_until
            raise LeadershipLost(f"{self.identity} (epoch {self.epoch}) should have renewed its lease {late:.1f} s ago")

    async def acquire(self) -> int:
        """Wait until we lead, and return the epoch."""
        waits_for = ""
        while not self.leading:
            await self._attempt()
            if not self.leading:
                if (holder := self._holder()) not in ("", waits_for):
                    waits_for = holder
                    log.info("waits for the lease: it has another holder", holder=holder, seconds=self._lifetime())
                await asyncio.sleep(self._settings.retry_seconds)
        log.info("leading", identity=self.identity, epoch=self.epoch)
        return self.epoch

    async def hold(self) -> None:
        """Renew the lease for as long as possible; return when it is lost."""
        while self.leading:
            await asyncio.sleep(self._settings.retry_seconds)
            await self._attempt()
        self._valid_until = None
        log.error("leadership lost", identity=self.identity, epoch=self.epoch)

    async def release(self) -> None:
        """Give the lease back, if it is ours. Without an answer it runs out by itself."""
        try:
            while self.leading and self._observed is not None and self._ours(self._observed.spec):
                try:
                    spec = msgspec.structs.replace(self._observed.spec, holder_identity="", lease_duration_seconds=1)
                    await self._write(spec)
                except Conflict:  # a renewal was interrupted, and has arrived all the same; or it is not ours any more
                    await self._observe()
        except ApiError as error:
            log.warning("lease not released, a successor has to wait for its end", error=str(error))
        finally:
            self._valid_until = None

    # --- one attempt ------------------------------------------------------------------------------------------------
    async def _attempt(self) -> None:
        """Take or renew the lease, or find out who has it. Errors leave everything as it was."""
        try:
            async with asyncio.timeout(self._settings.renew_seconds / 2):
                await self._take_or_renew()
        except (ApiError, TimeoutError) as error:
            log.warning("lease neither taken nor renewed", identity=self.identity, error=str(error) or "no answer")

    async def _take_or_renew(self) -> None:
        """A renewal writes straight over what it last saw; only a conflict makes it look again."""
        if self.leading and self._observed is not None:
            try:
                await self._renew(self._observed)
                return
            except Conflict:
                pass  # ours with an answer lost on the way, or somebody else's: the lease itself tells
        await self._observe()
        if self._observed is not None and self._ours(self._observed.spec):
            await self._renew(self._observed)
        elif self._valid_until is not None:
            self._valid_until = None  # somebody took it: whatever the clock says, we do not lead any more
        elif self._free():
            await self._take()

    async def _observe(self) -> None:
        try:
            lease = _LEASE.decode(await self._client.request("GET", self._path))
        except NotFound:
            self._observed = None
            return
        if self._observed is None or lease.metadata.resource_version != self._observed.metadata.resource_version:
            self._observed, self._observed_at = lease, self._clock()

    def _ours(self, spec: LeaseSpec) -> bool:
        """Held by us since this very acquisition; a former life under the same name does not count."""
        acquired = self._valid_until is not None
        return acquired and spec.holder_identity == self.identity and spec.lease_transitions == self.epoch

    def _free(self) -> bool:
        if self._observed is None or self._observed.spec.holder_identity in ("", self.identity):
            return True
        return self._clock() >= self._observed_at + self._lifetime()

    def _holder(self) -> str:
        return self._observed.spec.holder_identity if self._observed else ""

    def _lifetime(self) -> float:
        """Seconds after which a lease that its holder does not renew may be taken."""
        told = self._observed.spec.lease_duration_seconds if self._observed else 0
        return max(told, self._settings.lease_seconds)

    async def _take(self) -> None:
        epoch = (self._observed.spec.lease_transitions if self._observed else 0) + 1
        asked = self._clock()
        try:
            await self._write(self._spec(epoch, acquired=_now()))
        except (Conflict, AlreadyExists):
            return  # somebody was faster
        self.epoch = epoch
        self._valid_until = asked + self._settings.renew_seconds

    async def _renew(self, observed: Lease) -> None:
        asked = self._clock()
        await self._write(self._spec(self.epoch, acquired=observed.spec.acquire_time))
        self._valid_until = asked + self._settings.renew_seconds

    def _spec(self, epoch: int, acquired: str) -> LeaseSpec:
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=math.ceil(self._settings.lease_seconds),
            acquire_time=acquired,
            renew_time=_now(),
            lease_transitions=epoch,
        )

    async def _write(self, spec: LeaseSpec) -> None:
        """Create the lease, or update exactly the version that we saw."""
        meta = LeaseMeta(name=self._settings.name, namespace=self._settings.namespace)
        if self._observed is None:
            answer = await self._client.create(LEASES.path(self._settings.namespace), Lease(meta, spec))
        else:
            meta.resource_version = self._observed.metadata.resource_version
            answer = await self._client.replace(self._path, Lease(meta, spec))
        self._observed, self._observed_at = _LEASE.decode(answer), self._clock()


def _now() -> str:
    """MicroTime, for people who look at the lease; we never compare it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
