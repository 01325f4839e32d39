"""TLS of a port: its certificate, whose clients it answers, and what happens when the files change.

Certificates in a Secret are replaced while the process runs, usually long before they end. The files are looked at
every few seconds; once they have changed and can be read as a whole, new connections get the new ones. A set that
cannot be read (half written, key of another certificate) is reported, and the old one stays. A set that can be read and
not be put to use (no file descriptor left) is tried again.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from asyncio import sslproto
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol

import structlog
from msgspec import Struct

from trimtab.errors import SettingsError

LOOK_SECONDS = 5.0
BUFFER = 32 << 10
"""Bytes that asyncio sets aside for each TLS connection, instead of 256 KiB: 256 of those are 64 MiB."""

log = structlog.get_logger(__name__)

Stamp = tuple[tuple[int, int, int], ...]


class Pair(Protocol):
    """`trimtab.settings.section.TlsSettings`, or what has the same two fields."""

    @property
    def certificate(self) -> Path | str | None: ...

    @property
    def key(self) -> Path | str | None: ...


class MutualPair(Pair, Protocol):
    """`trimtab.settings.section.MutualTlsSettings`, or what has the same fields."""

    @property
    def client_ca(self) -> Path | str | None: ...


class ServerTlsFiles(Struct, frozen=True):
    """PEM files of one port."""

    section: str
    """Of the settings; it goes before what is wrong with them."""
    certificate: str = ""
    """Empty: plain HTTP."""
    key: str = ""
    client_ca: str = ""
    """Only clients with a certificate of this authority are let in."""

    def check(self) -> None:
        """Raises SettingsError for files that make no sense together."""
        if bool(self.certificate) != bool(self.key):
            raise SettingsError(
                f"{self.section}: certificate and key go together; give both, or neither for plain HTTP"
            )
        if self.client_ca and not self.certificate:
            raise SettingsError(
                f"{self.section}.client_ca: clients can only be checked over TLS; give certificate and key"
            )


def of_server(section: str, pair: Pair, client_ca: Path | str | None = None) -> ServerTlsFiles:
    """The files of a port; `section` of the settings says which. Without `client_ca` clients need no certificate."""
    return ServerTlsFiles(section, str(pair.certificate or ""), str(pair.key or ""), str(client_ca or ""))


def loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def context(files: ServerTlsFiles) -> ssl.SSLContext | None:
    """TLS with these files; None for plain HTTP. Raises SettingsError when they cannot be used."""
    files.check()
    if not files.certificate:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    sslproto.SSLProtocol.max_size = BUFFER
    try:
        made.load_cert_chain(files.certificate, files.key)
        if files.client_ca:
            made.load_verify_locations(files.client_ca)
            made.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(map(str, _paths(files)))
        raise SettingsError(f"{files.section}: cannot use the TLS files {named}: {error}") from error
    return made


def stamp(files: ServerTlsFiles) -> Stamp:
    """What tells one set of files from another; empty while one is missing."""
    try:
        found = [os.stat(path) for path in _paths(files)]
    except OSError:
        return ()
    return tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in found)


async def follow(
    files: ServerTlsFiles,
    taken: Stamp,
    use: Callable[[ssl.SSLContext | None, bool], Awaitable[None]],
    count: Callable[[str], None] = lambda _: None,
) -> None:
    """Call `use` with new TLS whenever the files have changed since `taken`, and whether the clients' CA has.

    `count` is told what came of it: taken, refused. An OSError of `use` is tried again. Ends with any other error only:
    whoever starts this watches it.
    """
    if not files.certificate:
        await asyncio.Event().wait()
    seen = taken
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = stamp(files)
        if not now or now == seen:
            continue
        try:
            await use(context(files), now[2:] != taken[2:])
        except (SettingsError, OSError) as error:
            if isinstance(error, SettingsError):
                seen = now  # the files themselves are wrong: nothing to try before they change again
            count("refused")
            log.error("new certificates cannot be used, going on with the old ones", error=str(error))
        else:
            seen = taken = now
            count("taken")
            log.info("new certificates taken", of=files.section)


def _paths(files: ServerTlsFiles) -> list[Path]:
    return [Path(path) for path in (files.certificate, files.key, files.client_ca) if path]
