"""Whom one may act as on the page of `gpuclaim up`: the hoster, and each tenant with a tenant's rights."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuclaim.api import names
from gpuclaim.console import guard
from gpuclaim.console.app import Console
from gpuclaim.console.config import ConsoleConfig, Login, secret_path
from gpuclaim.console.server import bound, serving
from gpuclaim.kube import config
from gpuclaim.kube.client import Client
from gpuclaim.kube.config import Config

HOSTER: Final = "hoster"
_ACCOUNT: Final = "tenant"
_RBAC: Final = "rbac.authorization.k8s.io"
_MONTH: Final = 30 * 24 * 3600
_READ: Final = ("get", "list", "watch")
_ALL: Final = (*_READ, "create", "update", "patch", "delete")
# As in a cluster's role `edit` with what the chart adds to it, as far as the page has to do with it.
_RULES: Final = (
    (names.GROUP, "gpuclaims", _ALL),
    ("kubevirt.io", "virtualmachines", _ALL),
    ("", "resourcequotas", _READ),
)


def rights(namespace: str) -> list[dict[str, Any]]:
    """A tenant's ServiceAccount, and its rights: in its namespace, and to read the catalogue."""
    subject = {"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": namespace}

    def binding(kind: str, meta: dict[str, str], role: dict[str, str]) -> dict[str, Any]:
        role = {"apiGroup": _RBAC} | role
        return {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": meta, "roleRef": role, "subjects": [subject]}

    rules = [{"apiGroups": [group], "resources": [plural], "verbs": list(verbs)} for group, plural, verbs in _RULES]
    catalogue = [{"apiGroups": [names.GROUP], "resources": ["gpuclasses"], "verbs": list(_READ)}]
    here = {"name": _ACCOUNT, "namespace": namespace}
    everywhere = f"catalogue-{namespace}"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here},
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": here, "rules": rules},
        binding("RoleBinding", here, {"kind": "Role", "name": _ACCOUNT}),
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": everywhere}, "rules": catalogue},
        binding("ClusterRoleBinding", {"name": everywhere}, {"kind": "ClusterRole", "name": everywhere}),
    ]


async def token(admin: Client, namespace: str) -> str:
    """The tenant's bearer token, for a month.

    Raises:
        ApiError: there is no such account yet.
    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _MONTH},
    }
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{_ACCOUNT}/token"
    return str(msgspec.json.decode(await admin.request("POST", path, body=body))["status"]["token"])


async def contexts(admin: Client, kubeconfig: Path, tenants: Sequence[str]) -> dict[str, Config]:
    """Whom one may act as, by name; the hoster, who may everything, is the first."""
    server = config.load(kubeconfig, anonymous=True)
    found = {HOSTER: config.load(kubeconfig)}
    for tenant in tenants:
        for obj in rights(tenant):
            await admin.apply(obj)
        found[tenant] = dataclasses.replace(server, token=await token(admin, tenant), namespace=tenant)
    return found


@contextlib.asynccontextmanager
async def page(known: Mapping[str, Config], tell_link: Callable[[str], None]) -> AsyncIterator[None]:
    """The page on a free port of this machine while the context is open.

    Args:
        known: whom one may act as.
        tell_link: told of each link that lets one browser in, once.
    """
    listener = bound("127.0.0.1", 0)
    settings = ConsoleConfig(
        login=Login.KUBECONFIG,
        origin=guard.origin(f"http://127.0.0.1:{listener.getsockname()[1]}"),
        base=secret_path(),
        server=next(iter(known.values())),
        contexts=known,
        idle=ConsoleConfig.longest,
    )
    async with serving(Console(settings, tell_link=tell_link), listener, None):
        yield
