"""A console in this process, and the people who look at it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from gpuclaim.console import guard
from gpuclaim.console.app import Console
from gpuclaim.console.config import ConsoleConfig, Login
from gpuclaim.console.server import bound, serving
from gpuclaim.kube.client import Client
from gpuclaim.kube.config import Config

RBAC = "rbac.authorization.k8s.io"


class Running:
    """A console that answers: where, and the links that it has told."""

    def __init__(self, url: str, console: Console, links: list[str]) -> None:
        self.url = url
        self.console = console
        self.links = links


@contextlib.asynccontextmanager
async def running(
    server: Config,
    login: Login = Login.TOKEN,
    contexts: Mapping[str, Config] | None = None,
    base: str = "",
    public: str = "",
    clock: Callable[[], float] | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """A console on a free port of this machine; `public` is the origin that browsers name, unless it is that port's."""
    listener = bound("127.0.0.1", 0)
    origin = guard.origin(f"http://127.0.0.1:{listener.getsockname()[1]}")
    config = ConsoleConfig(
        login=login, origin=public or origin, base=base, server=server, contexts=contexts or {}, **settings
    )
    links: list[str] = []
    clocked: dict[str, Any] = {"clock": clock} if clock is not None else {}
    console = Console(config, tell_link=links.append, **clocked)
    async with serving(console, listener, None):
        yield Running(f"{origin}{base}", console, links)


async def add_account(admin: Client, namespace: str, name: str, role: str, *, everywhere: bool = False) -> None:
    """A ServiceAccount that has a ClusterRole in its namespace, or in all."""
    meta = {"name": name, "namespace": namespace}
    await admin.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    await admin.apply(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding" if everywhere else "RoleBinding",
            "metadata": {"name": f"{namespace}-{name}"} | ({} if everywhere else {"namespace": namespace}),
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
    )
