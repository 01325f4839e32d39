"""TLS of the extender: its certificate, whose clients it answers, and what happens when the files change.

Certificates in a Secret are replaced while the process runs, usually long before they end. The files are looked at
every few seconds; once they have changed and can be read as a whole, new connections get the new ones. A set that
cannot be read (half written, key of another certificate) is reported, and the old one stays. A set that can be read and
not be put to use (no file descriptor left) is tried again.

Who may ask what follows from TLS too: without it, or without the clients' authority, anybody who reaches the port may
ask everything. `check` refuses where that is more than the settings say openly.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path

import structlog

from trimtab.errors import SettingsError
from trimtab.settings import ExtenderSettings
from trimtab.telemetry.extender_metrics import EXTENDER_CERTIFICATES

LOOK_SECONDS = 5.0

log = structlog.get_logger(__name__)

Stamp = tuple[tuple[int, int, int], ...]


def check(settings: ExtenderSettings) -> None:
    """Raises SettingsError for settings that promise more than they give, or give more than they say."""
    if bool(settings.certificate) != bool(settings.key):
        raise SettingsError("extender: certificate and key go together; give both, or neither for plain HTTP")
    if settings.client_ca and not settings.certificate:
        raise SettingsError("extender.client_ca: clients can only be checked over TLS; give certificate and key")
    if settings.client_names and not settings.client_ca:
        raise SettingsError("extender.client_names: names of certificates mean nothing without extender.client_ca")
    if settings.inspect_names and not settings.client_names:
        raise SettingsError(
            "extender.inspect_names: give extender.client_names too; without them all may ask everything"
        )
    if loopback(settings.host):
        return
    where = f"extender.host {settings.host} is reached by other machines"
    if settings.bind and not settings.client_ca:
        raise SettingsError(
            f"{where}: with extender.bind, give extender.client_ca, or anybody there could bind any pod"
        )
    if not settings.certificate and not settings.insecure:
        raise SettingsError(
            f"{where}: give extender.certificate and key, listen on 127.0.0.1 (--host), or set extender.insecure: true "
            "for plain HTTP, which shows the names of all gangs to whoever reaches the port"
        )


def loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def context(settings: ExtenderSettings) -> ssl.SSLContext | None:
    """TLS as the settings have it; None for plain HTTP. Raises SettingsError when the files cannot be used."""
    check(settings)
    if settings.certificate is None:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(settings.certificate, settings.key)
        if settings.client_ca:
            made.load_verify_locations(settings.client_ca)
            made.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(map(str, _files(settings)))
        raise SettingsError(f"extender: cannot use the TLS files {files}: {error}") from error
    return made


def stamp(settings: ExtenderSettings) -> Stamp:
    """What tells one set of files from another; empty while one is missing."""
    try:
        found = [os.stat(path) for path in _files(settings)]
    except OSError:
        return ()
    return tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in found)


async def follow(
    settings: ExtenderSettings, taken: Stamp, use: Callable[[ssl.SSLContext | None, bool], Awaitable[None]]
) -> None:
    """Call `use` with new TLS whenever the files have changed since `taken`, and whether the clients' CA has.

    An OSError of `use` is tried again. Ends with any other error only: whoever starts this watches it.
    """
    seen = taken
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = stamp(settings)
        if not now or now == seen:
            continue
        try:
            await use(context(settings), now[2:] != taken[2:])
        except (SettingsError, OSError) as error:
            if isinstance(error, SettingsError):
                seen = now  # the files themselves are wrong: nothing to try before they change again
            EXTENDER_CERTIFICATES.labels("refused").inc()
            log.error("new certificates cannot be used, going on with the old ones", error=str(error))
        else:
            seen = taken = now
            EXTENDER_CERTIFICATES.labels("taken").inc()
            log.info("new certificates taken")


def _files(settings: ExtenderSettings) -> list[Path]:
    return [path for path in (settings.certificate, settings.key, settings.client_ca) if path]
