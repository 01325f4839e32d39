"""Certificates of one local cluster, made anew for every start and thrown away with it.

Two authorities: one for the Kubernetes API, one for etcd, because whoever may speak to etcd has passed every check of
the API server. Kubernetes takes the user name from a client certificate's CN and the groups from its O fields
(kubernetes.io/docs/reference/access-authn-authz/authentication, "X.509 client certificates").
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=365)
CLOCK_SKEW = datetime.timedelta(minutes=5)


class Authority:
    """A certificate authority that keeps its key in memory only: nobody can sign for the cluster after its start."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        key_usage = _key_usage(key_cert_sign=True, crl_sign=True)
        self._certificate = (
            _unsigned(self._name, self._key.public_key())
            .issuer_name(self._name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def save(self, path: Path) -> None:
        """Write the authority's certificate as PEM."""
        path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, stem: Path, user: str, *, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> None:
        """Write `stem`.crt and `stem`.key: a client certificate; where `hosts` are given, a server certificate too."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _unsigned(_name(user, groups), key.public_key())
            .issuer_name(self._name)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(authority_key, critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_alternative_name(host) for host in hosts])
            certificate = certificate.add_extension(names, critical=False)
        signed = certificate.sign(self._key, hashes.SHA256())
        stem.with_suffix(".crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        save_key(stem.with_suffix(".key"), key)


def save_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key as PEM that only we can read."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def save_signing_pair(stem: Path) -> None:
    """Write `stem`.key and `stem`.pub, by which the API server signs and checks service account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    save_key(stem.with_suffix(".key"), key)
    stem.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def _unsigned(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(user: str, groups: Sequence[str] = ()) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
