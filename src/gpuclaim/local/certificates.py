"""The certificates and keys of a cluster on this machine."""

from __future__ import annotations

import datetime
import ipaddress
import os
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Self

_LIFE = datetime.timedelta(days=365)
_HOSTS = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_ADDRESSES = ("127.0.0.1", "10.0.0.1")  # this machine, and the Service "kubernetes"


class Authority:
    """A certificate authority whose files are in one folder, every key readable by its owner only."""

    def __init__(self, directory: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        """Use `load`."""
        self.directory = directory
        self.file = directory / "ca.crt"
        self._key = key
        self._certificate = certificate

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Return the authority of the folder, made if there is none yet."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        certificate_file, key_file = directory / "ca.crt", directory / "ca.key"
        if key_file.exists() and certificate_file.exists():
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
            assert isinstance(key, ec.EllipticCurvePrivateKey)
            return cls(directory, key, x509.load_pem_x509_certificate(certificate_file.read_bytes()))
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("gpuclaim local", ())
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        write_private(key_file, _pem(key))
        certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(directory, key, certificate)

    def issue(self, name: str, common_name: str, organizations: Sequence[str] = ()) -> tuple[Path, Path]:
        """Return the files of a new certificate and its key, good for clients and for servers on this machine.

        Args:
            name: what the two files are called.
            common_name: the user, for Kubernetes.
            organizations: the user's groups, for Kubernetes.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[x509.GeneralName] = [x509.DNSName(host) for host in _HOSTS]
        alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in _ADDRESSES]
        # etcd's gateway to itself shows its server certificate as a client: both uses, always.
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            _builder(_name(common_name, organizations), self._certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        certificate_file, key_file = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        write_private(key_file, _pem(key))
        certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return certificate_file, key_file

    def signing_key(self, name: str) -> Path:
        """Return the file of a private key that signs tokens, made if there is none yet."""
        file = self.directory / f"{name}.key"
        if not file.exists():
            write_private(file, _pem(ec.generate_private_key(ec.SECP256R1())))
        return file


def write_private(file: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    temporary = file.with_name(f".{file.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    temporary.replace(file)


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
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


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # "EC PRIVATE KEY": the form that kube-apiserver reads token keys in, beside PKCS#8.
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
