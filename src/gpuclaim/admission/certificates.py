"""The webhook's own certificate (R63)."""

from __future__ import annotations

import dataclasses
import ssl
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gpuclaim.kube.pki import Authority, Pair


@dataclasses.dataclass(frozen=True, slots=True)
class Serving:
    """What the webhook shows to its callers, and the authority (PEM) by which they know it."""

    pair: Pair
    authority: bytes

    @classmethod
    def self_made(cls, hosts: Iterable[str]) -> Serving:
        """A new authority and a certificate for the hosts, kept in memory only; the authority's key is forgotten."""
        authority = Authority.new("gpuclaim webhook authority")
        return cls(authority.issue("gpuclaim webhook", hosts=hosts), authority.pair.certificate)

    def context(self) -> ssl.SSLContext:
        """A server's TLS context."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # ssl takes a chain from a file only; the folder is gone before this function is.
        with tempfile.TemporaryDirectory() as folder:
            pem = Path(folder, "serving.pem")
            pem.touch(mode=0o600)
            pem.write_bytes(self.pair.key + self.pair.certificate)
            context.load_cert_chain(pem)
        return context
