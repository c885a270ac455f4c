"""The webhook's certificates: a rotation drops no request, and one that cannot be used is said to be (R63)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from gpuclaim.admission import review, server
from gpuclaim.admission.certificates import CertificateError, Certificates, Folder, SelfMade, Serving
from gpuclaim.kube.pki import Pair

HOST = "127.0.0.1"
AT_ONCE = dt.timedelta(0)


async def yes(_: review.Request) -> review.Response:
    return review.allow()


async def asked(port: int, bundle: bytes) -> bool:
    """Whether a caller with this bundle gets an answer on a new connection."""
    trust = ssl.create_default_context(cadata=bundle.decode())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
        try:
            async with session.post(f"https://{HOST}:{port}/orders", json={"request": {"uid": "u"}}) as answer:
                return answer.status == 200
        except aiohttp.ClientConnectorCertificateError:
            return False


class Offered:
    """A source that offers what a test puts there."""

    def __init__(self) -> None:
        self.shelf: list[Serving | CertificateError] = []

    def first(self) -> Serving:
        return Serving.self_made([HOST])

    def newer(self, shown: Serving) -> Serving | None:
        found = self.shelf.pop(0) if self.shelf else None
        if isinstance(found, CertificateError):
            raise found
        return found


@contextlib.asynccontextmanager
async def running(shown: Certificates) -> AsyncIterator[int]:
    async with server.serve(HOST, 0, shown.context, {"/orders": yes}, shown.obstacle) as port:
        task = asyncio.create_task(shown.run())
        try:
            yield port
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_at_every_moment_of_a_rotation_a_caller_that_follows_in_time_is_answered() -> None:
    source = Offered()
    bundles: asyncio.Queue[tuple[bytes, asyncio.Event]] = asyncio.Queue()

    async def published(bundle: bytes) -> None:
        heard = asyncio.Event()
        bundles.put_nowait((bundle, heard))
        await heard.wait()

    shown = Certificates(source, published, settled_after=AT_ONCE, look_every=AT_ONCE)
    old = shown.bundle
    new = Serving.self_made([HOST])
    async with running(shown) as port:
        assert await asked(port, old)
        assert not await asked(port, new.authority)
        source.shelf.append(new)
        both, heard = await bundles.get()
        # Callers are still being told: whichever bundle they have, they know what is shown.
        assert await asked(port, old)
        assert await asked(port, both)
        heard.set()
        last, heard_last = await bundles.get()
        assert last == new.authority
        assert await asked(port, both)  # those that have not heard of the last bundle yet
        assert await asked(port, last)
        heard_last.set()
    assert not shown.warning


async def test_open_connections_outlive_a_rotation() -> None:
    source = Offered()
    done = asyncio.Event()

    async def published(bundle: bytes) -> None:
        if bundle.count(b"BEGIN") == 1:
            done.set()

    shown = Certificates(source, published, settled_after=AT_ONCE, look_every=AT_ONCE)
    trust = ssl.create_default_context(cadata=shown.bundle.decode())
    async with running(shown) as port, aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:

        async def ask() -> int:
            async with session.post(f"https://{HOST}:{port}/orders", json={"request": {"uid": "u"}}) as answer:
                await answer.read()
                return answer.status

        assert await ask() == 200
        source.shelf.append(Serving.self_made([HOST]))
        await done.wait()
        assert await ask() == 200


async def test_a_new_certificate_that_cannot_be_used_is_told_and_the_old_one_is_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Offered()
    shown = Certificates(source, lambda _: asyncio.sleep(0), settled_after=AT_ONCE, look_every=AT_ONCE)
    source.shelf += [CertificateError("it is for other hosts")] * 3
    async with running(shown) as port:
        while not shown.warning:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert shown.warning == "it is for other hosts"
        assert await asked(port, shown.bundle)
        assert [record.message for record in caplog.records if "it is for other hosts" in record.message][1:] == []


def test_a_certificate_that_ended_is_an_obstacle() -> None:
    ended = dt.timedelta(minutes=-1)

    class Ended(Offered):
        def first(self) -> Serving:
            return Serving.self_made([HOST], ended)

    shown = Certificates(Ended(), lambda _: asyncio.sleep(0))
    assert (shown.obstacle() or "").startswith("not ready: the webhook's certificate ended at 2")


def test_one_made_here_is_replaced_in_the_last_third_of_its_life() -> None:
    source = SelfMade([HOST], dt.timedelta(hours=3))
    assert source.newer(source.first()) is None
    assert source.newer(Serving.self_made([HOST], dt.timedelta(minutes=59))) is not None


def write(folder: Path, serving: Serving) -> None:
    (folder / "tls.crt").write_bytes(serving.pair.certificate)
    (folder / "tls.key").write_bytes(serving.pair.key)
    (folder / "ca.crt").write_bytes(serving.authority)


def test_a_folder_gives_what_it_has_and_again_when_that_changed(tmp_path: Path) -> None:
    source = Folder(tmp_path, HOST)
    write(tmp_path, Serving.self_made([HOST]))
    first = source.first()
    assert source.newer(first) is None
    second = Serving.self_made([HOST])
    write(tmp_path, second)
    assert source.newer(first) == second


def test_what_a_folder_may_have_wrong(tmp_path: Path) -> None:
    good = Serving.self_made([HOST])
    source = Folder(tmp_path, HOST)
    with pytest.raises(CertificateError, match=r"tls\.crt: No such file"):
        source.first()
    other = Serving.self_made([HOST])
    wrong = {
        "has expired": Serving.self_made([HOST], dt.timedelta(minutes=-1)),
        "IP address mismatch": Serving.self_made(["gpuclaim.default.svc"]),
        "unable to get local issuer": Serving(good.pair, other.authority),
        "KEY_VALUES_MISMATCH|key values mismatch": Serving(Pair(good.pair.certificate, other.pair.key), good.authority),
        "cannot be used": Serving(good.pair, b""),
    }
    for said, serving in wrong.items():
        write(tmp_path, serving)
        with pytest.raises(CertificateError, match=said):
            source.first()


def test_a_certificate_that_is_its_own_authority_will_do(tmp_path: Path) -> None:
    # What cert-manager's SelfSigned issuer gives: ca.crt is tls.crt.
    made = Serving.self_made([HOST])
    write(tmp_path, Serving(made.pair, made.pair.certificate))
    assert Folder(tmp_path, HOST).first().authority == made.pair.certificate
