"""Certificates that the chart makes are good for what they are for."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

import pytest
from tests.chart.rendered import objects_of

from trimtab.extender import tls
from trimtab.names import SYSTEM_NAMESPACE
from trimtab.serving import tls as serving_tls
from trimtab.settings import load

pytestmark = pytest.mark.timeout(1800)  # the first test builds helm


def test_extender_and_kube_scheduler_shake_hands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake between the extender, as its environment has it, and kube-scheduler, with these files."""
    found = {each["metadata"]["name"]: each for each in objects_of("generated") if each["kind"] == "Secret"}
    assert found.keys() == {"trimtab-extender-tls", "trimtab-scheduler-tls", "trimtab-inspect-tls"}
    for name, secret in found.items():
        for key, value in secret["data"].items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / key).write_bytes(base64.b64decode(value))
    server, client = tmp_path / "trimtab-extender-tls", tmp_path / "trimtab-scheduler-tls"
    for variable, file in (("CERTIFICATE", "tls.crt"), ("KEY", "tls.key"), ("CLIENT_CA", "client-ca.crt")):
        monkeypatch.setenv(f"TRIMTAB_EXTENDER__{variable}", str(server / file))
    here = serving_tls.context(tls.files(load().extender))
    assert here is not None
    there = ssl.create_default_context(cafile=str(client / "ca.crt"))
    there.load_cert_chain(client / "tls.crt", client / "tls.key")
    shown = handshake(here, there, f"trimtab-extender.{SYSTEM_NAMESPACE}.svc")
    assert (("commonName", "trimtab-scheduler"),) in shown["subject"]
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(here, there, "another.svc")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> dict[str, tuple[object, ...]]:
    """Shake hands in memory; returns the certificate that the client showed."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(4):
        for side in (theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = ours.getpeercert()
    assert shown
    return {key: value for key, value in shown.items() if isinstance(value, tuple)}
