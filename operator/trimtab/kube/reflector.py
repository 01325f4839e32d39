"""List + watch: a true, current copy of all objects of a kind, whatever the connection does.

The semantics are client-go's Reflector with Replace (`tools/cache/reflector.go`), which kopf's watch lacks:

    server closes the stream            resume from the last resourceVersion seen
    refused, overloaded, unreachable    resume, with growing pauses and never sooner than Retry-After
    410, or any ERROR in the stream     list again; deletions missed meanwhile are found by comparing
    silence (not even a bookmark)       the connection is dead: resume on a new one
    an event lost on the way            healed by the periodic list
    a list older than what was seen     a stale API server: refused, asked again
    an object that cannot be decoded    counted, reported in `unreadable`; its last readable state stays
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Annotated, Generic, Protocol

import msgspec
import structlog

from trimtab.errors import ApiError, Gone, Overloaded, Unreachable
from trimtab.kube.backoff import Backoff
from trimtab.kube.cache import Cache, OnChange, T
from trimtab.kube.metrics_hooks import FactsObserver, Silent
from trimtab.kube.objects import AnyObject, Meta
from trimtab.kube.resources import Resource
from trimtab.kube.responses import status_of
from trimtab.settings import ReflectorSettings

STALE_PATIENCE = 15
"""Stale lists refused in a row before we believe that the history was rewound; more than a minute at full back-off."""

log = structlog.get_logger(__name__)


class Source(Protocol):
    """What a reflector needs of `KubeClient`."""

    def pages(self, path: str, page_size: int, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Pages of one consistent list."""

    def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[list[bytes], None]:
        """Batches of watch events; the first, empty one says that the watch is established."""


class _ResourceVersion(msgspec.Struct, rename="camel"):
    resource_version: Annotated[str, msgspec.Meta(pattern="^[0-9]+$")]

    @property
    def number(self) -> int:
        return int(self.resource_version)


class _WatchPage(msgspec.Struct):
    metadata: _ResourceVersion
    items: list[msgspec.Raw] | None
    """None for no objects: of a kind of which only metadata are asked for, the API server says so."""


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: _ResourceVersion


class _RelistNeeded(Exception):
    """The watch cannot be resumed."""

    def __init__(self, reason: str, error: ApiError) -> None:
        super().__init__(str(error))
        self.reason = reason
        self.retry_after = error.retry_after


_PAGE = msgspec.json.Decoder(_WatchPage)
_EVENT = msgspec.json.Decoder(_Event)
_BOOKMARK = msgspec.json.Decoder(_Bookmark)
_ANY = msgspec.json.Decoder(AnyObject)


class Reflector(Generic[T]):
    """Keeps `items` (by `namespace/name`) equal to what the API server has.

    `run()` never ends by itself. `on_change(old, new)` and `on_malformed(key, message)` are called from it. `only` is
    namespace and name of a single object, `labels` a selector of several: the others are then neither looked at, nor
    have to be readable for us.
    """

    def __init__(
        self,
        source: Source,
        resource: Resource,
        kind: type[T],
        settings: ReflectorSettings,
        *,
        on_change: OnChange[T],
        only: tuple[str, str] | None = None,
        labels: str = "",
        on_malformed: Callable[[str, str], None] = lambda key, message: None,
        observer: FactsObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        """Set once the first list is complete."""
        self.unreadable: dict[str, str] = {}
        """Objects that exist but cannot be decoded, with the reason."""
        self.trouble = ""
        """Why the copy may be out of date right now; empty when all is well."""
        namespace, name = only or ("", "")
        self._path = resource.path(namespace)
        self._selector = {"fieldSelector": f"metadata.name={name}"} if name else {}
        self._selector |= {"labelSelector": labels} if labels else {}
        self._source = source
        self._settings = settings
        self._decoder = msgspec.json.Decoder(kind)
        self._cache: Cache[T] = Cache(on_change)
        self._on_malformed = on_malformed
        self._observer = observer or Silent()
        self._clock = clock
        self._heard = clock()
        self._stale_lists = 0
        self._backoff = Backoff(initial=0.2, cap=8.0)

    @property
    def items(self) -> Mapping[str, T]:
        """All objects by `namespace/name` (cluster-scoped: by name)."""
        return self._cache.items

    def age_seconds(self) -> float:
        """Seconds since the API server last told us anything about this kind."""
        return self._clock() - self._heard

    def apply_written(self, content: bytes) -> T:
        """Take the answer to an own create, update or patch at once (read your writes), and return it decoded.

        Not for answers to deletes. Raises msgspec.DecodeError.
        """
        obj = self._decoder.decode(content)
        self._cache.written(obj)
        return obj

    def forget(self) -> None:
        """Drop all objects: their kind is no longer served. Not while `run` does, which then begins anew."""
        self.synced.clear()
        self.unreadable = {}
        self.trouble = ""
        self._stale_lists = 0
        self._backoff.reset()
        self._cache.clear()

    async def run(self) -> None:
        """List, watch, and start over, until cancelled."""
        reason = "start"
        while True:
            try:
                await self._list(reason)
                reason = await self._follow()
            except _RelistNeeded as need:
                reason = need.reason
                await self._pause(need.reason, str(need), need.retry_after)
            except ApiError as error:
                await self._pause(type(error).__name__.lower(), str(error), error.retry_after)

    # --- list -------------------------------------------------------------------------------------------------------
    async def _list(self, reason: str) -> None:
        listed: dict[str, T] = {}
        unreadable: dict[str, str] = {}
        version = 0
        async for content in self._source.pages(self._path, self._settings.page_size, self._selector):
            page = self._page(content)
            version = page.metadata.number
            rewound = version < self._cache.version  # then one version may be two different objects
            for raw in page.items or ():
                if (obj := (None if rewound else self._known(raw)) or self._decode(raw, unreadable)) is not None:
                    listed[obj.metadata.key] = obj
        self._refuse_stale(version)
        self._observer.relist(self.resource.plural, reason)
        self._cache.replace(listed, unreadable, version)
        self.unreadable = unreadable
        self._heard_something()
        self.synced.set()

    def _known(self, raw: msgspec.Raw) -> T | None:
        """The object as we hold it, if that is the same version: else all were in memory twice for a moment."""
        try:
            meta = _ANY.decode(raw).metadata
        except msgspec.DecodeError:
            return None
        held = self._cache.items.get(meta.key)
        same = held is not None and (held.metadata.uid, held.metadata.version) == (meta.uid, meta.version)
        return held if same else None

    def _page(self, content: bytes) -> _WatchPage:
        try:
            return _PAGE.decode(content)
        except msgspec.DecodeError as error:
            raise Unreachable(f"the list of {self.resource.plural} is no list: {error}") from error

    def _refuse_stale(self, version: int) -> None:
        if version >= self._cache.version:
            self._stale_lists = 0
            return
        self._stale_lists += 1
        seen = f"list of resourceVersion {version}, but {self._cache.version} was seen already"
        if self._stale_lists <= STALE_PATIENCE:
            raise _RelistNeeded("stale", ApiError(seen))
        self._stale_lists = 0
        log.error("the cluster's history was rewound, taking it as it is", resource=self.resource.plural, reason=seen)

    # --- watch ------------------------------------------------------------------------------------------------------
    async def _follow(self) -> str:
        """Watch, over as many connections as it takes, until the next list is due."""
        due = self._clock() + self._settings.resync_seconds
        while self._clock() < due:
            try:
                if not await self._watch(due):
                    await asyncio.sleep(self._backoff.next())  # closed at once: do not spin
            except TimeoutError:
                if self._clock() < due:
                    await self._pause("stalled", f"no news for {self._settings.stall_seconds:g} s, connecting anew")
            except (Overloaded, Unreachable) as error:
                await self._pause(type(error).__name__.lower(), str(error), error.retry_after)
            except ApiError as error:
                raise _RelistNeeded("gone" if isinstance(error, Gone) else "error", error) from error
        return "resync"

    async def _watch(self, due: float) -> bool:
        """One connection's worth of events, until `due` at the latest; says whether there were any."""
        seconds = math.ceil(max(due - self._clock(), 1))
        params = {"resourceVersion": str(self._cache.version), "timeoutSeconds": str(seconds), **self._selector}
        eventful = False
        async with aclosing(self._source.watch(self._path, params)) as stream:
            while True:
                async with asyncio.timeout(min(self._settings.stall_seconds, max(due - self._clock(), 0) + 1)):
                    lines = await anext(stream, None)
                if lines is None:
                    return eventful
                for line in lines:
                    self._take(line)
                self._heard_something()
                if lines and not eventful:
                    eventful = True
                    self._backoff.reset()

    def _take(self, line: bytes) -> None:
        try:
            event = _EVENT.decode(line)
            if event.type == "BOOKMARK":
                self._cache.advance(_BOOKMARK.decode(event.object).metadata.number)
                return
            if event.type == "ERROR":
                error = status_of(event.object).error()
                raise _RelistNeeded("gone" if isinstance(error, Gone) else "error", error)
        except msgspec.DecodeError as error:
            raise Unreachable(f"the watch of {self.resource.plural} is garbled: {error}") from error
        if event.type == "DELETED":
            self._remove(event.object)
        elif (obj := self._decode(event.object, self.unreadable)) is not None:
            self.unreadable.pop(obj.metadata.key, None)
            self._cache.put(obj)

    def _remove(self, raw: msgspec.Raw) -> None:
        if (meta := self._identify(raw)) is not None:
            self.unreadable.pop(meta.key, None)
            self._cache.remove(meta)

    # --- decoding ---------------------------------------------------------------------------------------------------
    def _decode(self, raw: msgspec.Raw, unreadable: dict[str, str]) -> T | None:
        """The object, or None with its name and the reason in `unreadable`."""
        try:
            return self._decoder.decode(raw)
        except msgspec.DecodeError as error:
            reason = str(error)
        if (meta := self._identify(raw)) is not None:
            unreadable[meta.key] = reason
            self._cache.displace(meta)
            self._on_malformed(meta.key, reason)
            log.warning("object cannot be read", resource=self.resource.plural, name=meta.key, reason=reason)
        self._observer.bad_object(self.resource.plural, "undecodable")
        return None

    def _identify(self, raw: msgspec.Raw) -> Meta | None:
        try:
            return _ANY.decode(raw).metadata
        except msgspec.DecodeError as error:
            log.error("object without readable metadata", resource=self.resource.plural, reason=str(error))
            return None

    # --- how it goes ------------------------------------------------------------------------------------------------
    def _heard_something(self) -> None:
        self._heard = self._clock()
        self.trouble = ""

    async def _pause(self, reason: str, message: str, retry_after: float | None = None) -> None:
        wait = self._backoff.next(retry_after)
        self.trouble = message
        self._observer.watch_error(self.resource.plural, reason)
        log.warning("watch interrupted", resource=self.resource.plural, reason=reason, detail=message, wait=wait)
        await asyncio.sleep(wait)
