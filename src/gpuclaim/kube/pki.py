"""Certificates: an authority of one's own and what it issues, for the webhook and for a cluster on this machine."""

from __future__ import annotations

import dataclasses
import datetime as dt
import ipaddress
from collections.abc import Iterable
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE: Final = dt.timedelta(days=365)
_CLOCK_SKEW: Final = dt.timedelta(minutes=5)


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority."""

    pair: Pair

    @classmethod
    def new(cls, name: str, *, life: dt.timedelta = _LIFE) -> Authority:
        """A new authority with a key of its own; self-signed, good for `life` from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name, ())
        certificate = (
            _builder(subject, subject, key.public_key(), life)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(Pair(_pem(certificate), key_pem(key)))

    def issue(
        self, name: str, *, hosts: Iterable[str] = (), groups: Iterable[str] = (), life: dt.timedelta = _LIFE
    ) -> Pair:
        """A certificate for servers at `hosts` (names and addresses) and for the client `name` in `groups`.

        Raises:
            ValueError: `name` is the authority's own: the certificate would read as self-signed.
        """
        authority = x509.load_pem_x509_certificate(self.pair.certificate)
        if _subject(name, groups) == authority.subject:
            raise ValueError(f"{name!r} is the authority itself")
        signer = serialization.load_pem_private_key(self.pair.key, None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_subject(name, groups), authority.subject, key.public_key(), life)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                # etcd shows its server certificate as a client to itself: both uses, always.
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
                critical=False,
            )
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        if alternatives := [_alternative(host) for host in hosts]:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return Pair(_pem(builder.sign(signer, hashes.SHA256())), key_pem(key))


def new_key() -> bytes:
    """A private key as PEM, to sign tokens with."""
    return key_pem(ec.generate_private_key(ec.SECP256R1()))


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as "EC PRIVATE KEY", the form that kube-apiserver reads token keys in."""
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _subject(name: str, groups: Iterable[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, life: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + life)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
