"""The webhook's HTTPS server."""

from __future__ import annotations

import ssl

import aiohttp
import pytest

from gpuclaim.admission import review, server
from gpuclaim.admission.certificates import Serving
from gpuclaim.admission.server import PortInUseError

SERVING = Serving.self_made(["127.0.0.1"])


async def yes(request: review.Request) -> review.Response:
    if request.name == "broken":
        raise ZeroDivisionError
    return review.allow([{"op": "add", "path": "/x", "value": 1}])


def trusting() -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=SERVING.authority.decode()))


async def test_it_answers_reviews_and_says_whether_it_is_ready() -> None:
    obstacle: list[str] = ["not ready: another replica leads"]
    async with server.serve(
        "127.0.0.1", 0, SERVING.context(), {"/orders": yes}, lambda: obstacle[0] if obstacle else None
    ) as port:
        url = f"https://127.0.0.1:{port}"
        async with aiohttp.ClientSession(connector=trusting()) as session:
            async with session.post(f"{url}/orders", json={"request": {"uid": "u"}}) as answer:
                body = await answer.json()
            assert body["apiVersion"] == "admission.k8s.io/v1"
            assert body["kind"] == "AdmissionReview"
            assert body["response"] == {
                "allowed": True,
                "uid": "u",
                "patch": "W3sib3AiOiJhZGQiLCJwYXRoIjoiL3giLCJ2YWx1ZSI6MX1d",
                "patchType": "JSONPatch",
            }
            async with session.post(f"{url}/orders", data=b"{") as answer:
                assert answer.status == 400
            async with session.post(f"{url}/orders", json={"request": {"uid": "u", "name": "broken"}}) as answer:
                assert answer.status == 500  # the apiserver refuses then: failurePolicy Fail
            async with session.get(f"{url}/readyz") as answer:
                assert (answer.status, await answer.text()) == (503, obstacle[0])
            obstacle.clear()
            async with session.get(f"{url}/readyz") as answer:
                assert answer.status == 200
            async with session.get(f"{url}/healthz") as answer:
                assert answer.status == 200


async def test_a_port_in_use_is_said_to_be() -> None:
    async with server.serve("127.0.0.1", 0, SERVING.context(), {}, lambda: None) as port:
        with pytest.raises(PortInUseError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with server.serve("127.0.0.1", port, SERVING.context(), {}, lambda: None):
                pass


async def test_a_caller_that_does_not_know_the_authority_gets_nothing() -> None:
    async with (
        server.serve("127.0.0.1", 0, SERVING.context(), {"/orders": yes}, lambda: None) as port,
        aiohttp.ClientSession() as session,
    ):
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.post(f"https://127.0.0.1:{port}/orders", json={})
