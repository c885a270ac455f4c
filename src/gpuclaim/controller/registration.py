"""What makes the apiserver ask here: webhook configurations, the guard, the Service's endpoint. Kept by the leader."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import msgspec
import tenacity

from gpuclaim.admission import fence, guard, holding, webhooks
from gpuclaim.admission.webhooks import Endpoint
from gpuclaim.api import names
from gpuclaim.api.types import GPUClass
from gpuclaim.controller import endpoint as leader_endpoint
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.placement.books import Books

log = logging.getLogger(__name__)

_MANAGER: Final = "gpuclaim-controller"
_IN_FORCE_SECONDS: Final = 5.0
"""An apiserver takes a policy up within a second or two; until then a class is left to the policy about new ones."""
_REPAIR_SECONDS: Final = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Here:
    """Where this replica is reached: the endpoint of all replicas, and this one's own address and port.

    The address is empty where callers reach this process by an URL, or by a Service that selects pods itself.
    """

    endpoint: Endpoint
    address: str
    port: int


class Registration:
    """Writes the registration while this replica leads, and again whenever it changes."""

    def __init__(
        self, client: Client, books: Books, *, lease_left: Callable[[], float], lease: tuple[str, str] = ("", "")
    ) -> None:
        """Sets up.

        Args:
            client: how it is written.
            books: the classes, and the namespaces that are exempt.
            lease_left: for how many seconds from now on this process may write.
            lease: namespace and name of the leader's Lease; empty, there is none, and no fence.
        """
        self._client = client
        self._lease = lease
        self._books = books
        self._lease_left = lease_left
        self._due = asyncio.Event()
        self._told = asyncio.Event()
        self._leading = False
        self._bundle = b""
        self._written: dict[tuple[str, str], tuple[dict[str, Any], int]] = {}
        self._trying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((ApiError, UnreachableError, TimeoutError)),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
            before_sleep=tenacity.before_sleep_log(log, logging.WARNING),
        )

    def changed(self) -> None:
        """Pods may ask for classes by other names."""
        self._due.set()

    async def published(self, bundle: bytes) -> None:
        """Returns once the webhook configurations have the bundle; a follower's are written when it begins to lead."""
        self._due.set()
        while self._leading and self._bundle != bundle:
            await self._told.wait()

    async def keep(self, here: Here, bundle: Callable[[], bytes], ready: Callable[[], None]) -> None:
        """Runs while this replica leads.

        What somebody else made of what is written is made good every minute.

        Args:
            here: where callers are to be led.
            bundle: the authorities (PEM) by which callers know what is shown to them now.
            ready: called once all is written.
        """
        self._leading = True
        try:
            await self._keep(here, bundle, ready)
        finally:
            self._leading = False
            self._bundle = b""
            self._written.clear()
            self._tell()

    async def _keep(self, here: Here, bundle: Callable[[], bytes], ready: Callable[[], None]) -> None:
        clock = asyncio.get_running_loop().time
        owner: dict[str, Any] = {}
        in_force, repair, settled = math.inf, 0.0, False
        while True:
            self._due.clear()
            first, due = not self._written, clock() >= repair
            authorities = bundle()
            if here.endpoint.service is not None and here.address:
                lead_here = leader_endpoint.lead_here
                await self._trying(lead_here, self._client, here.endpoint.service, here.address, here.port)
            asked, exempt = self._books.resource_names, self._books.settings.exempt_namespaces
            # The guard first: pods of no set are its alone.
            configurations = [
                *guard.policies(asked, exempt, owner),
                *webhooks.configurations(here.endpoint, authorities, asked, exempt),
            ]
            changed = False
            for configuration in configurations:
                charts = here.endpoint.service is not None and configuration["metadata"]["name"] == guard.NEW
                stored = await self._write(configuration, anew=due, send=self._add if charts else self._apply)
                changed |= stored is not None
                if not owner and stored is not None and stored["kind"] == "MutatingWebhookConfiguration":
                    # The policies go with the webhooks, and these with the chart's release: left alone they would
                    # refuse every pod with GPUs for ever.
                    owner = guard.owner(stored)
                    self._due.set()
            if settled and due:
                await self._write_helpful(here, owner)
            self._bundle = authorities
            self._tell()
            if first:
                log.info("takes orders")
                ready()
            if due:
                repair = clock() + _REPAIR_SECONDS
            if changed:
                in_force = clock() + _IN_FORCE_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(in_force, repair)):
                    await self._due.wait()
            if clock() >= in_force:
                in_force = math.inf if await self._say_guarded() else clock() + _IN_FORCE_SECONDS
                if not settled:
                    # Not at once: an apiserver learns every five seconds what it may patch, and until then turns away
                    # what the policy is about.
                    settled = True
                    await self._write_helpful(here, owner)

    async def _write(
        self, configuration: dict[str, Any], *, anew: bool, send: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any] | None:
        """Sends a configuration where it is new, or `anew`; what is stored, where it was new."""
        key = (configuration["kind"], configuration["metadata"]["name"])
        content, generation = self._written.get(key, ({}, 0))
        if content == configuration and not anew:
            return None
        stored: dict[str, Any] = await self._trying(self._in_time, send, configuration)
        # Of what was there already and was left alone, nobody tells which generation it is.
        now = int(stored["metadata"].get("generation", generation))
        self._written[key] = (configuration, now)
        if content != configuration:
            return stored
        if now != generation:
            log.warning("%s %s had been changed by somebody, and is as it should be again", *key)
        return None

    async def _write_helpful(self, here: Here, owner: dict[str, Any]) -> None:
        """Writes what orders are taken without too, where the cluster takes it.

        That is the policy that saves a webhook call, and the fence. Behind a Service the latter is the chart's: whoever
        makes a policy about Leases must be allowed to read all of them.
        """
        written = [holding.policies(owner)]
        if here.endpoint.service is None and all(self._lease):
            written.append(fence.policies(*self._lease, owner))
        for policy, binding in written:
            try:
                await self._in_time(self._apply, policy)
                await self._in_time(self._apply, binding)
            except (ApiError, UnreachableError, TimeoutError) as error:
                served = not isinstance(error, ApiError) or error.code != 404
                name = policy["metadata"]["name"]
                log.log(logging.WARNING if served else logging.DEBUG, "%s was not written: %s", name, error)

    async def _in_time(
        self, send: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], configuration: dict[str, Any]
    ) -> dict[str, Any]:
        """Sends while the lease surely holds.

        A leader that was paused must not call orders back to itself from the one that leads now.
        """
        left = self._lease_left()
        if left <= 0:
            raise TimeoutError("the lease does not hold")
        async with asyncio.timeout(left):
            return await send(configuration)

    async def _apply(self, configuration: dict[str, Any]) -> dict[str, Any]:
        return await self._client.apply(configuration, manager=_MANAGER)

    async def _add(self, configuration: dict[str, Any]) -> dict[str, Any]:
        """Makes it where it is missing, and leaves it as it is else.

        In a cluster it is the chart's. Had the leader applied it, Helm's next upgrade would end in a conflict: of a
        field that is one whole, such as `matchConstraints`, what is applied lacks the defaults that are stored.
        """
        resource = await self._client.discover(configuration["apiVersion"], configuration["kind"])
        try:
            made = await self._client.request("POST", resource.path(), body=configuration)
        except ApiError as error:
            if error.code != 409:
                raise
            return configuration
        return cast("dict[str, Any]", msgspec.json.decode(made))

    def _tell(self) -> None:
        self._told.set()
        self._told = asyncio.Event()

    async def _say_guarded(self) -> bool:
        """Labels the classes that the guard names now: the policy about new classes leaves them to it.

        Whether all that needed it have the label.
        """
        well = True
        for cls in [*self._books.classes.values()]:
            if names.GUARDED_LABEL not in cls.metadata.labels:
                label = {"metadata": {"labels": {names.GUARDED_LABEL: "true"}, "uid": cls.metadata.uid}}
                try:
                    await self._client.patch(GPUClass, cls.metadata.name, label)
                except (ApiError, UnreachableError) as error:
                    log.warning("the label of class %s: %s", cls.metadata.name, error)
                    well = False
        return well
