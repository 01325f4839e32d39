"""TLS of the extender, and what its settings may promise.

Who may ask what follows from TLS: without it, or without the clients' authority, anybody who reaches the port may ask
everything. `check` refuses where that is more than the settings say openly.
"""

from __future__ import annotations

from trimtab.errors import SettingsError
from trimtab.serving.tls import ServerTlsFiles, loopback
from trimtab.settings import ExtenderSettings


def files(settings: ExtenderSettings) -> ServerTlsFiles:
    """Its files. Raises SettingsError as `check`."""
    check(settings)
    return _files(settings)


def check(settings: ExtenderSettings) -> None:
    """Raises SettingsError for settings that promise more than they give, or give more than they say."""
    _files(settings).check()
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


def _files(settings: ExtenderSettings) -> ServerTlsFiles:
    paths = settings.certificate, settings.key, settings.client_ca
    return ServerTlsFiles("extender", *(str(path or "") for path in paths))
