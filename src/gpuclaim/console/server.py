"""Where the console listens, and the certificate that it shows."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from aiohttp import web

from gpuclaim.console.app import Console

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 30.0
_HEADER_MAX: Final = 64 * 1024
"""A token of an identity provider that names many groups has tens of kilobytes."""
_SHUTDOWN_SECONDS: Final = 5.0


class ListenError(Exception):
    """It cannot listen there, or not with this certificate; the message is a sentence."""


@dataclasses.dataclass(frozen=True, slots=True)
class Certificate:
    """Files in PEM; they are read again when they change."""

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """A server's TLS context.

        Raises:
            ListenError: the files are none, or not of each other.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load_into(context)
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Has a server that runs show what the files have now; errors as `context`."""
        try:
            context.load_cert_chain(self.chain, self.key)
        except (OSError, ssl.SSLError) as error:
            raise ListenError(f"the certificate {self.chain} with the key {self.key} cannot be used: {error}") from None

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """What changes with the files; empty where they cannot be looked at."""
        try:
            return tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in (self.chain.stat(), self.key.stat()))
        except OSError:
            return ()


def bound(host: str, port: int) -> socket.socket:
    """A socket that will listen; port 0 takes a free one.

    Raises:
        ListenError: another program listens there, or there is no such address.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=512)
    except OSError as error:
        raise ListenError(f"cannot listen on {host or '*'}:{port}: {error.strerror or error}") from None


@contextlib.asynccontextmanager
async def serving(console: Console, listener: socket.socket, certificate: Certificate | None) -> AsyncIterator[None]:
    """The console answers while the context is open.

    Raises:
        ListenError: the certificate cannot be used.
    """
    try:
        tls = certificate.context() if certificate is not None else None
    except ListenError:
        listener.close()
        raise
    runner = web.AppRunner(
        console.application(),
        access_log=None,
        max_field_size=_HEADER_MAX,
        max_line_size=16 * 1024,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    looking = None
    try:
        await web.SockSite(runner, listener, ssl_context=tls).start()
        if tls is not None and certificate is not None:
            looking = asyncio.create_task(_follow(certificate, tls))
        console.open_doors()
        yield
    finally:
        if looking is not None:
            looking.cancel()
        await runner.cleanup()
        listener.close()


async def _follow(certificate: Certificate, tls: ssl.SSLContext) -> None:
    shown = certificate.stamp()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        now = certificate.stamp()
        if now and now != shown:
            try:
                certificate.load_into(tls)
            except ListenError as error:
                # Half written, or wrong: the old one is shown until a good one is there.
                log.warning("%s", error)
            else:
                shown = now
                log.info("the certificate was read anew")
