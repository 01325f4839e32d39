"""Signatures as cosign makes and verifies them with a key: ECDSA on P-256 with SHA-256, over the image's digest.

The image has a signed payload of the form "simple signing", each statement about it a signed DSSE envelope. Nothing is
written to a transparency log: `cosign verify --private-infrastructure --key KEY.pub --local-image FOLDER`.
"""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hack.supply import attest
from hack.supply.oci import (
    ATTESTATIONS,
    CONFIG,
    IN_TOTO,
    MANIFEST,
    SIGNATURES,
    Descriptor,
    Layout,
    encoded,
)

SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
PAYLOAD_TYPE = "cosign container image signature"


class KeyProblem(Exception):
    """A key cannot be read, or is of another kind."""


class Refused(Exception):
    """A signature is missing, of another key, or about something else."""


def private_key(path: Path, password: str | None = None) -> ec.EllipticCurvePrivateKey:
    """A PEM file, as `openssl ecparam -name prime256v1 -genkey` writes it. Raises KeyProblem."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password.encode() if password else None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyProblem(f"{path} is no private key that can be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise KeyProblem(f"{path} is no key on the curve P-256")
    return key


def public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """A PEM file, as `openssl ec -pubout` and cosign write it. Raises KeyProblem."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise KeyProblem(f"{path} is no public key that can be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise KeyProblem(f"{path} is no key on the curve P-256")
    return key


def sign(layout: Layout, key: ec.EllipticCurvePrivateKey, name: str) -> None:
    """The image, under the name that it will be pulled by, and every statement about it. Raises LayoutError."""
    image = layout.image()["digest"]
    tag = image.replace(":", "-")
    payload = encoded(
        {
            "critical": {
                "identity": {"docker-reference": name},
                "image": {"docker-manifest-digest": image},
                "type": PAYLOAD_TYPE,
            },
            "optional": None,
        }
    )
    signed = layout.put(payload, SIMPLE_SIGNING, annotations={SIGNATURE: _signature(key, payload)})
    layout.list(_manifest(layout, [signed]), SIGNATURES, f"{tag}.sig")
    envelopes = [_envelope(layout, key, said) for said in attest.statements(layout)]
    if envelopes:
        layout.list(_manifest(layout, envelopes), ATTESTATIONS, f"{tag}.att")


def _signature(key: ec.EllipticCurvePrivateKey, data: bytes) -> str:
    return base64.b64encode(key.sign(data, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))).decode()


def _envelope(layout: Layout, key: ec.EllipticCurvePrivateKey, said: dict[str, Any]) -> Descriptor:
    body = encoded(said)
    sealed = {
        "payloadType": IN_TOTO,
        "payload": base64.b64encode(body).decode(),
        "signatures": [{"keyid": "", "sig": _signature(key, _authenticated(IN_TOTO, body))}],
    }
    annotations = {SIGNATURE: "", "predicateType": said["predicateType"]}
    return layout.put(encoded(sealed), ENVELOPE, annotations=annotations)


def _authenticated(kind: str, body: bytes) -> bytes:
    """DSSE's encoding of what is signed: its type is signed with it."""
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(body), body)


def _manifest(layout: Layout, blobs: list[Descriptor]) -> Descriptor:
    """As cosign stores signatures: an image whose layers are the signed things."""
    contents = [each["digest"] for each in blobs]
    config = {"architecture": "", "os": "", "config": {}, "rootfs": {"type": "layers", "diff_ids": contents}}
    described = layout.put(encoded(config), CONFIG)
    return layout.put(
        encoded({"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": blobs}), MANIFEST
    )


def verify(layout: Layout, key: ec.EllipticCurvePublicKey, name: str | None = None) -> list[dict[str, Any]]:
    """The statements about the image that the key has signed. Raises Refused, and LayoutError for a changed blob.

    All that the image is made of is read, and compared with its digest. With `name`, it has to be signed under that.
    """
    described = layout.image()
    manifest = layout.document(described)
    for each in (manifest["config"], *manifest["layers"]):
        layout.get(each)
    found = layout.find(SIGNATURES)
    if found is None:
        raise Refused("the image is not signed")
    problems = [_problem(layout, key, each, described["digest"], name) for each in layout.document(found)["layers"]]
    if not problems or all(problems):
        raise Refused("; ".join(filter(None, problems)) or "the image is not signed")
    sealed = layout.find(ATTESTATIONS)
    envelopes = layout.document(sealed)["layers"] if sealed else []
    return [_opened(layout, key, each, described["digest"]) for each in envelopes]


def _problem(layout: Layout, key: ec.EllipticCurvePublicKey, blob: Descriptor, image: str, name: str | None) -> str:
    """Why a signature does not count; empty where it does."""
    payload = layout.get(blob)
    if not _valid(key, blob.get("annotations", {}).get(SIGNATURE, ""), payload):
        return "the signature is not of this key"
    try:
        critical = json.loads(payload)["critical"]
        about, kind = critical["image"]["docker-manifest-digest"], critical["type"]
        said = critical["identity"]["docker-reference"]
    except (ValueError, KeyError, TypeError):
        return "what is signed is of no form that is known"
    if (about, kind) != (image, PAYLOAD_TYPE):
        return f"the signature is about {about}, not about this image, {image}"
    return f"it is signed as {said}, not as {name}" if name is not None and said != name else ""


def _opened(layout: Layout, key: ec.EllipticCurvePublicKey, blob: Descriptor, image: str) -> dict[str, Any]:
    sealed = json.loads(layout.get(blob))
    try:
        body, kind = base64.b64decode(sealed["payload"], validate=True), sealed["payloadType"]
        signatures = [str(each["sig"]) for each in sealed["signatures"]]
    except (binascii.Error, KeyError, TypeError) as error:
        raise Refused(f"an attestation is no envelope: {error}") from None
    if kind != IN_TOTO or not any(_valid(key, each, _authenticated(kind, body)) for each in signatures):
        raise Refused("an attestation is not signed with this key")
    said: dict[str, Any] = json.loads(body)
    if {f"sha256:{each['digest']['sha256']}" for each in said["subject"]} != {image}:
        raise Refused("an attestation is about another image")
    return said


def _valid(key: ec.EllipticCurvePublicKey, signature: str, data: bytes) -> bool:
    try:
        key.verify(base64.b64decode(signature, validate=True), data, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, binascii.Error):
        return False
    return True
