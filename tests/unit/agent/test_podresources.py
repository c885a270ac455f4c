"""Asking kubelet over its socket, and what goes wrong (R20, R28)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuclaim.agent import podresources
from gpuclaim.agent.podresources import PodResources, PodResourcesError
from gpuclaim.agent.values import Answers, PodDevices
from gpuclaim.local.podresources_server import PodResourcesServer

R = "nvidia.com/GH100_H200"


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpuclaim-") as name:
        yield Path(name, "kubelet.sock")


async def test_answers(socket: Path) -> None:
    pods = [PodDevices("t", "p", {R: ["12"]}), PodDevices("t", "q", {})]
    async with PodResourcesServer(socket, {R: ["12", "13"], "devices.kubevirt.io/kvm": ["kvm0"]}, pods) as server:
        with PodResources(socket) as kubelet:
            expected = Answers(
                {R: {"12", "13"}, "devices.kubevirt.io/kvm": {"kvm0"}},
                (PodDevices("t", "p", {R: {"12"}}), PodDevices("t", "q", {})),
            )
            assert await kubelet.read() == expected
            server.pods.clear()
            assert (await kubelet.read()).pods == ()
            assert server.calls == 4


async def test_a_kubelet_that_comes_back_is_found(socket: Path) -> None:
    server = PodResourcesServer(socket, {R: ["12"]})
    with PodResources(socket) as kubelet:
        with pytest.raises(PodResourcesError, match="there is no socket"):
            await kubelet.read()
        async with server:
            assert R in (await kubelet.read()).allocatable
        async with server:
            assert R in (await kubelet.read()).allocatable
        with pytest.raises(PodResourcesError, match="there is no socket"):
            await kubelet.read()
        async with server:
            assert R in (await kubelet.read()).allocatable


async def test_a_socket_that_nobody_listens_on(socket: Path) -> None:
    async with await asyncio.start_unix_server(lambda _reader, _writer: None, socket):
        pass  # closing leaves the socket behind
    with PodResources(socket) as kubelet, pytest.raises(PodResourcesError, match="is kubelet running"):
        await kubelet.read()


async def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    with PodResources(tmp_path / ("x" * 120)) as kubelet, pytest.raises(PodResourcesError, match="cannot connect"):
        await kubelet.read()


async def test_a_refusal_is_told(socket: Path) -> None:
    async with PodResourcesServer(socket) as server:
        server.fail = "getting allocatable resources is disabled"
        with PodResources(socket) as kubelet, pytest.raises(PodResourcesError, match="resources is disabled"):
            await kubelet.read()


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 100])
async def test_something_else_listens(socket: Path, says: bytes) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, socket):
        with PodResources(socket, timeout=2) as kubelet, pytest.raises(PodResourcesError):
            await kubelet.read()


async def test_a_kubelet_that_hangs(socket: Path) -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_unix_server(silent, socket):
        with PodResources(socket, timeout=0.1) as kubelet, pytest.raises(PodResourcesError, match=r"within 0.1 s"):
            await kubelet.read()
        await ended.wait()


async def test_an_endless_answer_is_cut_off(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podresources, "_ANSWER_MAX", 100_000)
    async with PodResourcesServer(socket, {R: ["12"]}) as server:
        with PodResources(socket) as kubelet:
            for _ in range(3):
                await kubelet.read()
            server.allocatable = {R: [str(number) for number in range(10_000)]}
            with pytest.raises(PodResourcesError):
                await kubelet.read()
            server.allocatable = {R: ["12"]}
            assert (await kubelet.read()).allocatable == {R: {"12"}}


async def test_a_large_node(socket: Path) -> None:
    ids = [f"a0b1c2d3-0001-4a11-8a11-{number:012}" for number in range(20_000)]
    async with PodResourcesServer(socket, {R: ids}):
        with PodResources(socket) as kubelet:
            assert (await kubelet.read()).allocatable == {R: set(ids)}
