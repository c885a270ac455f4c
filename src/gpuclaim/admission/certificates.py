"""The webhook's certificates: made here or read from a folder, and rotated without a request lost (R63).

A rotation has three steps: callers are told of the new authority beside the old one, then the new certificate is shown,
then the old authority is forgotten. Between two of them every caller gets the time to follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

from cryptography import x509

from gpuclaim.kube.pki import Authority, Pair

log = logging.getLogger(__name__)

LIFE: Final = dt.timedelta(days=90)
"""How long a certificate made here is good; it is replaced after two thirds of that."""
_SETTLED_AFTER: Final = dt.timedelta(minutes=1)
"""For callers to have heard: apiservers watch the webhook configurations, and hear in less than a second."""
_LOOK_EVERY: Final = dt.timedelta(seconds=10)


class CertificateError(Exception):
    """A certificate is of no use here; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Serving:
    """What the webhook shows to its callers, and the authority (PEM) by which they know it."""

    pair: Pair
    authority: bytes

    @classmethod
    def self_made(cls, hosts: Iterable[str], life: dt.timedelta = LIFE) -> Serving:
        """A new authority and a certificate for the hosts, kept in memory only; the authority's key is forgotten."""
        authority = Authority.new("gpuclaim webhook authority", life=life)
        return cls(authority.issue("gpuclaim webhook", hosts=hosts, life=life), authority.pair.certificate)

    @property
    def ends(self) -> dt.datetime:
        """Until when the certificate is good."""
        return x509.load_pem_x509_certificate(self.pair.certificate).not_valid_after_utc

    def context(self) -> ssl.SSLContext:
        """A server's TLS context.

        Raises:
            ssl.SSLError: key and certificate are none, or not of each other.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load_into(context)
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Has a server that runs show this from its next connection on; those that are open stay.

        Raises:
            ssl.SSLError: as `context`.
        """
        # ssl takes a chain from a file only; the folder is gone before this function is.
        with tempfile.TemporaryDirectory() as folder:
            pem = Path(folder, "serving.pem")
            pem.touch(mode=0o600)
            pem.write_bytes(self.pair.key + self.pair.certificate)
            context.load_cert_chain(pem)

    def check(self, host: str) -> None:
        """Shakes hands with itself as a caller does that asks for `host`.

        Raises:
            CertificateError: such a caller would turn away: expired, for other hosts, of another authority.
        """
        try:
            caller = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            # As Go does: whatever stands in the bundle is trusted, a root or not.
            caller.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
            caller.load_verify_locations(cadata=self.authority.decode("ascii"))
            _shake_hands(self.context(), caller, host)
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(error.verify_message) from None
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise CertificateError(f"certificate, key or authority cannot be used: {error}") from None


def _shake_hands(server: ssl.SSLContext, caller: ssl.SSLContext, host: str) -> None:
    to_server, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        caller.wrap_bio(to_caller, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_caller, server_side=True),
    ]
    for _ in range(4):  # each side speaks twice at most
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()


class Source(Protocol):
    """Where certificates come from."""

    def first(self) -> Serving:
        """The one to begin with.

        Raises:
            CertificateError: there is none that can be used.
        """

    def newer(self, shown: Serving) -> Serving | None:
        """The one that takes the place of `shown`, where it is time for that.

        Raises:
            CertificateError: there is one, and it cannot be used.
        """


@dataclasses.dataclass(frozen=True)
class SelfMade:
    """Certificates made here, each with an authority of its own, and replaced after two thirds of their life."""

    hosts: Sequence[str]
    life: dt.timedelta = LIFE

    def first(self) -> Serving:
        """A new one."""
        return Serving.self_made(self.hosts, self.life)

    def newer(self, shown: Serving) -> Serving | None:
        """A new one, in the last third of the old one's life."""
        return self.first() if shown.ends - dt.datetime.now(dt.UTC) <= self.life / 3 else None


@dataclasses.dataclass(frozen=True)
class Folder:
    """Certificates that somebody else, such as cert-manager, writes as `tls.crt`, `tls.key` and `ca.crt`."""

    path: Path
    host: str

    def first(self) -> Serving:
        """What the folder has."""
        try:
            certificate, key, authority = ((self.path / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt"))
        except OSError as error:
            raise CertificateError(f"{error.filename}: {error.strerror}") from None
        found = Serving(Pair(certificate, key), authority)
        try:
            found.check(self.host)
        except CertificateError as error:
            raise CertificateError(f"the certificate in {self.path} is not good for {self.host}: {error}") from None
        return found

    def newer(self, shown: Serving) -> Serving | None:
        """What the folder has, where that is something else."""
        found = self.first()
        return found if found != shown else None


class Certificates:
    """The certificate that is shown, and its rotation.

    Attributes:
        context: the server's TLS context; a rotation changes it under the running server.
        bundle: the authorities (PEM) by which callers know what is shown now, and what is shown next.
    """

    def __init__(
        self,
        source: Source,
        published: Callable[[bytes], Awaitable[None]],
        *,
        settled_after: dt.timedelta = _SETTLED_AFTER,
        look_every: dt.timedelta = _LOOK_EVERY,
    ) -> None:
        """Gets the first certificate.

        Args:
            source: where certificates come from.
            published: has callers told of a bundle, and returns once they can know of it.
            settled_after: how long callers may take to follow what was published.
            look_every: how often the source is asked.

        Raises:
            CertificateError: there is no certificate to begin with.
        """
        self._source = source
        self._published = published
        self._settled = settled_after.total_seconds()
        self._look = look_every.total_seconds()
        self._shown = source.first()
        self._ends = self._shown.ends
        self._fault = ""
        self.context = self._shown.context()
        self.bundle = self._shown.authority

    @property
    def ends(self) -> dt.datetime:
        """Until when what is shown is good."""
        return self._ends

    def obstacle(self) -> str | None:
        """Why no caller can trust what is shown, as a sentence; None while they can."""
        if dt.datetime.now(dt.UTC) < self._ends:
            return None
        return f"not ready: the webhook's certificate ended at {self._ends:%Y-%m-%dT%H:%M:%SZ}" + (
            f"; {self._fault}" if self._fault else ""
        )

    @property
    def warning(self) -> str:
        """What is wrong with the certificate that should take the place of the one that is shown; empty for nothing."""
        return self._fault

    async def run(self) -> None:
        """Rotates until it is cancelled."""
        while True:
            await asyncio.sleep(self._look)
            new = self._next()
            if new is not None:
                await self._rotate(new)

    def _next(self) -> Serving | None:
        try:
            new = self._source.newer(self._shown)
        except CertificateError as error:
            fault, new = str(error), None
        else:
            fault = ""
        if fault != self._fault and fault:
            log.error("%s; the old one is shown until %s", fault, self._ends)
        self._fault = fault
        if new is None and (said := self.obstacle()):
            log.error("%s", said)
        return new

    async def _rotate(self, new: Serving) -> None:
        both = (
            new.authority if new.authority == self._shown.authority else new.authority + b"\n" + self._shown.authority
        )
        await self._publish(both)
        if self.obstacle() is None:
            await asyncio.sleep(self._settled)
        new.load_into(self.context)
        self._shown, self._ends = new, new.ends
        log.info("the webhook shows a new certificate, good until %s", self._ends)
        if both != new.authority:
            await asyncio.sleep(self._settled)
            await self._publish(new.authority)

    async def _publish(self, bundle: bytes) -> None:
        self.bundle = bundle
        await self._published(bundle)
