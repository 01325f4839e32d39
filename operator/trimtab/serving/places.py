"""Who is connected to a port, how far each has come, and who makes room for whom."""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from typing import Generic, Protocol, TypeVar


class Rank(IntEnum):
    """How far a connection has come."""

    WAITING = 0
    """For a request to be complete."""
    READY = 1
    """It is, and will be read as soon as the pace allows."""
    HEADERS = 2
    """It is being read; over TLS, the handshake."""
    BODY = 3
    WORKING = 4
    """Never makes room."""
    IDLE = 5
    """The answer is on its way, or was fetched."""


class Seated(Protocol):
    """What is asked of a connection here."""

    rank: Rank

    def fetching(self) -> bool:
        """Whether its peer still takes an answer."""


S = TypeVar("S", bound=Seated)


class Places(Generic[S]):
    """Connections by how far they have come, in the order in which they came so far."""

    def __init__(self) -> None:
        self._of: dict[Rank, dict[S, None]] = {rank: {} for rank in Rank}
        self.taken = 0

    def add(self, seat: S) -> None:
        """One more."""
        self._of[seat.rank][seat] = None
        self.taken += 1

    def remove(self, seat: S) -> None:
        """One less."""
        del self._of[seat.rank][seat]
        self.taken -= 1

    def first(self, rank: Rank) -> S | None:
        """Who has been there longest."""
        return next(iter(self._of[rank]), None)

    def all(self, *ranks: Rank) -> list[S]:
        """Those that are there now; without ranks, all."""
        return [seat for rank in ranks or Rank for seat in self._of[rank]]

    def least(self) -> S | None:
        """Whose end is the least loss, unless there is a request after all; None where all are in work."""
        waiting, ready = self._of[Rank.WAITING], self._of[Rank.READY]
        if waiting and len(waiting) >= len(ready):
            return self.first(Rank.WAITING)
        idle = self._of[Rank.IDLE]
        if found := next((seat for seat in idle if not seat.fetching()), None) or next(iter(idle), None):
            return found
        if found := self.first(Rank.BODY) or next(reversed(ready), None):
            return found
        return self.first(Rank.HEADERS) or self.first(Rank.WAITING)


def network(peer: str) -> str:
    """Whose connection it is: an IPv4 address, or an IPv6 network of 64 bits, of which one machine has all."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if not isinstance(address, IPv6Address):
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64)) + "/64"
