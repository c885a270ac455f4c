"""The certificates and keys of a cluster on this machine, as the files that its components read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from gpuclaim.kube import pki

# This machine by its names, and the Service "kubernetes" by its own.
_HOSTS: Final = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "127.0.0.1",
    "10.0.0.1",
)


class Authority:
    """A certificate authority whose files are in one folder, every key readable by its owner only.

    Attributes:
        directory: where the files are.
        file: the authority's own certificate, PEM.
    """

    def __init__(self, directory: Path, authority: pki.Authority) -> None:
        """Use `load`."""
        self.directory = directory
        self.file = directory / "ca.crt"
        self._authority = authority

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Return the authority of the folder, made if there is none yet."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        certificate, key = directory / "ca.crt", directory / "ca.key"
        if certificate.exists() and key.exists():
            return cls(directory, pki.Authority(pki.Pair(certificate.read_bytes(), key.read_bytes())))
        authority = pki.Authority.new("gpuclaim local")
        _write(directory, "ca", authority.pair)
        return cls(directory, authority)

    def issue(self, name: str, common_name: str, organizations: Sequence[str] = ()) -> tuple[Path, Path]:
        """Return the files of a new certificate and its key, good for clients and for servers on this machine.

        Args:
            name: what the two files are called.
            common_name: the user, for Kubernetes.
            organizations: the user's groups, for Kubernetes.
        """
        return _write(self.directory, name, self._authority.issue(common_name, hosts=_HOSTS, groups=organizations))

    def signing_key(self, name: str) -> Path:
        """Return the file of a private key that signs tokens, made if there is none yet."""
        file = self.directory / f"{name}.key"
        if not file.exists():
            write_private(file, pki.new_key())
        return file


def write_private(file: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    temporary = file.with_name(f".{file.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    temporary.replace(file)


def _write(directory: Path, name: str, pair: pki.Pair) -> tuple[Path, Path]:
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    write_private(key, pair.key)
    certificate.write_bytes(pair.certificate)
    return certificate, key
