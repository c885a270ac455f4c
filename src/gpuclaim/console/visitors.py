"""A visitor: who the apiserver takes them for, and the client that acts with their credentials and no others."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar, cast

import aiohttp

from gpuclaim.console.feeds import Feeds
from gpuclaim.kube import identity
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.kube.config import Config
from gpuclaim.kube.identity import Identity
from gpuclaim.kube.resources import Resource

T = TypeVar("T")

_KNOWN_SECONDS: Final = 30.0
_KNOWN: Final = 256
"""So many answers are kept of one visitor."""
_REMEMBERED: Final = 32


class RejectedError(Exception):
    """Nobody is known by these credentials; the message is a sentence for the visitor."""


class TooOftenError(Exception):
    """There were too many bad tries; `seconds` is how long to wait."""

    def __init__(self, seconds: float) -> None:
        self.seconds = math.ceil(seconds)
        super().__init__(f"That was often. Try again in {self.seconds} s.")


class Visitor:
    """One of them.

    Attributes:
        identity: as the apiserver knows it.
        client: acts as the visitor.
        feeds: what the visitor's pages show, kept in step.
        context: the kubeconfig's context that it came by; empty for who brought a token.
        namespaces: those that the visitor has looked at, the last first.
    """

    def __init__(self, who: Identity, client: Client, most: int, context: str, namespaces: Iterable[str] = ()) -> None:
        self.identity = who
        self.client = client
        self.feeds = Feeds(client, most)
        self.context = context
        self.namespaces = list(dict.fromkeys(namespaces))
        self._known: dict[tuple[str, ...], tuple[float, Any]] = {}

    def knows(self, token_hash: str) -> bool:
        """Whether it came by the token with this hash."""
        return bool(self.client.config.token) and hashed(self.client.config.token or "") == token_hash

    def renew(self, token: str) -> None:
        """A newer token of the same user."""
        self.client.config.token = token
        self._known.clear()
        self.feeds.drop_refused()

    def visited(self, namespace: str) -> None:
        """Remembers a namespace."""
        self.namespaces = [namespace, *(each for each in self.namespaces if each != namespace)][:_REMEMBERED]

    async def may(self, verb: str, resource: Resource, namespace: str = "") -> bool:
        """Whether the apiserver lets the visitor do that; what it said is believed for half a minute.

        Raises:
            ApiError: code 401 where the visitor is known no more.
            UnreachableError: no answer came.
        """
        key = (verb, f"{resource.api_version}/{resource.plural}", namespace)
        return await self.remembered(key, lambda: identity.may(self.client, verb, resource, namespace))

    async def remembered(self, key: tuple[str, ...], find: Callable[[], Awaitable[T]]) -> T:
        """What was found under the key in the last half minute, else what is found now."""
        now = asyncio.get_running_loop().time()
        known = self._known.pop(key, None)
        if known is None or now - known[0] >= _KNOWN_SECONDS:
            known = (now, await find())
        self._known[key] = known
        while len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
        return cast("T", known[1])

    async def leave(self) -> None:
        """Ends what runs for the visitor."""
        await self.feeds.stop()
        await self.client.__aexit__(None, None, None)


def hashed(token: str) -> str:
    """What tells tokens apart without being one."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


async def admit(config: Config, connector: aiohttp.TCPConnector, most: int, context: str = "") -> Visitor:
    """The visitor whose credentials these are, once the apiserver has said who that is.

    Args:
        config: server and credentials.
        connector: the connections that all visitors share.
        most: how many objects of a kind a page of theirs may hold.
        context: the kubeconfig's context that this is.

    Raises:
        RejectedError: the apiserver does not know them.
        UnreachableError: it does not answer.
        ConfigError: the credentials cannot be read.
    """
    client = await Client(config, connector).__aenter__()
    try:
        who = await identity.who(client)
    except ApiError as error:
        await client.__aexit__(None, None, None)
        if error.code in {401, 403}:
            raise RejectedError("The apiserver does not accept this token: it is wrong, or its time is up.") from None
        raise
    except BaseException:
        await client.__aexit__(None, None, None)
        raise
    if who.anonymous:
        await client.__aexit__(None, None, None)
        raise RejectedError("The apiserver knows nobody by this token.")
    return Visitor(who, client, most, context, [config.namespace] if context else ())


def with_token(config: Config, token: str) -> Config:
    """The same server, and this token alone."""
    return dataclasses.replace(config, token=token, token_file=None, exec_command=None, namespace="default")
