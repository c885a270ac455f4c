"""The apiserver's admission: it asks the webhooks that are configured, of whichever replica the Service leads to."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gpuclaim.admission import review, webhooks
from gpuclaim.api import names
from simulator.apiserver import Json, RefusedError, selected
from simulator.network import Network
from simulator.replica import Replica

_FOREIGN_SECONDS: Final = 1.0
"""How long the rest of admission takes at most, after ours."""


class Admission:
    """Webhooks with failurePolicy Fail."""

    def __init__(self, network: Callable[[], Network], replicas: Callable[[], list[Replica]]) -> None:
        self._network = network
        self._replicas = replicas
        self._requests = 0

    async def __call__(self, plural: str, obj: Json, dry: bool) -> Json:
        """The object as it is to be stored.

        Raises:
            RefusedError: a webhook said no, or nobody answered.
        """
        net = self._network()
        if plural == "gpuclaims" and self._configured("Mutating"):
            if names.HOLD_FINALIZER not in obj["metadata"].get("finalizers", []):
                obj = _patched(obj, await self._ask(webhooks.HOLDS_PATH, obj, dry))
            await self._ask(webhooks.ORDERS_PATH, obj, dry)
        elif plural == "pods" and self._asks_for_gpu(obj):
            bare = {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "uid"}}
            obj = _patched(obj, await self._ask(webhooks.PODS_PATH, bare, dry))
        elif plural == "virtualmachines" and selected(obj, names.CLASS_LABEL) and self._configured("Mutating"):
            bare = {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "uid"}}
            patched = _patched(bare, await self._ask(webhooks.MACHINES_PATH, bare, dry))
            obj = {**patched, "metadata": obj["metadata"]}
            await self._ask(webhooks.MACHINE_ORDERS_PATH, obj, dry)
        else:
            return obj
        slow = net.universe.rng.random() < net.weather.slow
        await asyncio.sleep(net.universe.rng.uniform(0, _FOREIGN_SECONDS) if slow else net.latency())
        if net.universe.rng.random() < net.weather.vetoed:
            net.universe.tally["vetoed by others after us"] += 1
            raise RefusedError(403, "Forbidden", "another admission plugin says no")
        return obj

    def _configured(self, phase: str) -> Json | None:
        return self._network().api.find(f"{phase.lower()}webhookconfigurations", "", webhooks.NAME)

    def _asks_for_gpu(self, pod: Json) -> bool:
        configured = self._configured("Mutating")
        if configured is None:
            return False
        expression = str([hook for hook in configured["webhooks"] if hook["name"] == webhooks.PODS])
        limits = (name for c in pod["spec"]["containers"] for name in c.get("resources", {}).get("limits", {}))
        return any(name in expression for name in limits)

    async def _ask(self, path: str, obj: Json, dry: bool) -> review.Response:
        net = self._network()
        rng, loop = net.universe.rng, net.server
        self._requests += 1
        meta = obj["metadata"]
        request = review.Request(
            uid=f"request-{self._requests}",
            kind=review.GroupVersionKind(kind=obj["kind"]),
            namespace=meta.get("namespace", ""),
            name=meta["name"],
            operation="CREATE",
            object=msgspec.Raw(msgspec.json.encode(obj)),
            dry_run=dry,
        )
        alive = self._replicas()
        # A replica that does not lead is not ready and out of the Service, as soon as that is noticed.
        leading = [replica for replica in alive if replica.leads]
        chosen = leading if leading and rng.random() < 0.9 else alive
        if not chosen or rng.random() < net.weather.lost:
            net.universe.tally["webhook not reached"] += 1
            raise RefusedError(500, "InternalError", f"failed calling webhook {path}: connection refused")
        replica = rng.choice(chosen)
        heard: asyncio.Future[review.Response] = loop.create_future()
        lost = rng.random() < net.weather.answer_lost
        net.universe.tally["webhook answer lost"] += lost

        def answer(response: review.Response | Exception) -> None:
            if not lost and not replica.loop.dead:
                loop.call_at(net.universe.clock.now + net.latency(), hear, response)

        def hear(response: review.Response | Exception) -> None:
            if heard.done():
                return
            if isinstance(response, Exception):
                heard.set_exception(RefusedError(500, "InternalError", f"failed calling webhook {path}: {response!r}"))
            else:
                heard.set_result(response)

        def arrive() -> None:
            if not replica.loop.dead:
                replica.ask(path, request, answer)

        replica.loop.call_at(net.universe.clock.now + net.latency(), arrive)
        try:
            async with asyncio.timeout(webhooks.TIMEOUT_SECONDS):
                response = await heard
        except TimeoutError:
            raise RefusedError(500, "InternalError", f"failed calling webhook {path}: deadline exceeded") from None
        if not response.allowed:
            status = response.status
            assert status is not None
            details = msgspec.to_builtins(status.details) if status.details is not None else None
            raise RefusedError(status.code, status.reason, status.message, details)
        return response


def _patched(obj: Json, response: review.Response) -> Json:
    """The object with a JSON patch of `add` operations on fields of objects, all that the desk writes."""
    if response.patch is None:
        return obj
    for operation in msgspec.json.decode(base64.b64decode(response.patch)):
        assert operation["op"] == "add"
        obj = _added(obj, operation["path"].strip("/").split("/"), operation["value"])
    return obj


def _added(obj: Json, path: list[str], value: Any) -> Json:
    step, *rest = path
    return {**obj, step: _added(obj[step], rest, value) if rest else value}
