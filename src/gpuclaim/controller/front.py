"""How the apiserver's questions come to a replica: over HTTPS, with certificates that rotate."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from gpuclaim.admission import server
from gpuclaim.admission.certificates import LIFE, Certificates, Folder, SelfMade
from gpuclaim.admission.webhooks import Endpoint
from gpuclaim.controller.registration import Here


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """Where the apiserver asks, the authorities (PEM) by which it knows the answers now, and until when it does."""

    here: Here
    bundle: Callable[[], bytes]
    certificate_ends: Callable[[], dt.datetime | None] = lambda: None


Unready: TypeAlias = Callable[[], str | None]
Published: TypeAlias = Callable[[bytes], Awaitable[None]]
Front: TypeAlias = Callable[
    [Mapping[str, server.Handler], Unready, Published], contextlib.AbstractAsyncContextManager[Served]
]
"""What brings the apiserver's questions to the handlers (by path) while its context is open. The second argument is why
this replica is of no use now; the third returns once callers can know of new authorities."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HttpsConfig:
    """Where the webhook listens, and how it is known.

    Attributes:
        url: `https://HOST:PORT` by which the apiserver reaches this process; a port of 0 takes a free one.
        service: instead of an URL, the Service in front of all replicas: (namespace, name, port).
        address: this pod's IP address, to which the leader makes the Service lead; empty where the Service selects
            the replicas itself.
        listen: where it listens; of an URL its own host and port.
        certificate_folder: where the certificate is read from; it makes its own where None.
        certificate_life: how long a certificate of its own is good.
    """

    url: str = ""
    service: tuple[str, str, int] | None = None
    address: str = ""
    listen: tuple[str, int] = ("0.0.0.0", 9443)  # noqa: S104 - in a pod, every address is the pod's
    certificate_folder: Path | None = None
    certificate_life: dt.timedelta = LIFE


@contextlib.asynccontextmanager
async def https(
    config: HttpsConfig, handlers: Mapping[str, server.Handler], unready: Unready, published: Published
) -> AsyncIterator[Served]:
    """The front of a real replica.

    Raises:
        PortInUseError: it cannot listen.
        CertificateError: there is no certificate that can be used.
    """
    url = urllib.parse.urlsplit(config.url)
    host, port = (url.hostname, url.port or 0) if url.hostname else config.listen
    certificates = _certificates(config, published)

    def obstacle() -> str | None:
        return certificates.obstacle() or unready()

    async with server.serve(
        host, port, certificates.context, handlers, obstacle, remark=lambda: certificates.warning
    ) as actual:
        named = f"[{host}]" if ":" in host else host
        endpoint = Endpoint(url=f"https://{named}:{actual}" if url.hostname else "", service=config.service)
        async with asyncio.TaskGroup() as group:
            rotating = group.create_task(certificates.run())
            try:
                yield Served(
                    Here(endpoint, config.address, actual), lambda: certificates.bundle, lambda: certificates.ends
                )
            finally:
                rotating.cancel()


def _certificates(config: HttpsConfig, published: Published) -> Certificates:
    hosts = _hosts(config)
    if config.certificate_folder is not None:
        return Certificates(Folder(config.certificate_folder, hosts[0]), published)
    # A short life leaves callers less time to follow, never more than its last third has.
    settled = min(dt.timedelta(minutes=1), config.certificate_life / 12)
    look = min(dt.timedelta(seconds=10), config.certificate_life / 12)
    source = SelfMade(hosts, config.certificate_life)
    return Certificates(source, published, settled_after=settled, look_every=look)


def _hosts(config: HttpsConfig) -> Sequence[str]:
    if config.service is not None:
        namespace, name, _ = config.service
        return [f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local", f"{name}.{namespace}", name]
    host = urllib.parse.urlsplit(config.url).hostname
    return [host] if host else ["localhost", "127.0.0.1"]
