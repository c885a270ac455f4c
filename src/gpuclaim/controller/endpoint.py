"""Where the apiserver's calls go: to the leader, and to no other replica.

In a cluster the webhook's Service selects no pods. The leader names itself in the Service's one EndpointSlice, so every
replica may be ready, a rollout ends, and a disruption budget counts what it should. A replica needs no right to
change pods for it.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

import msgspec

from gpuclaim.kube.client import Client

PORT_NAME: Final = "https"
"""The name of the Service's port: an EndpointSlice's port belongs to the Service's of the same name."""
_MANAGER: Final = "gpuclaim-controller"


def endpoint_slice(service: dict[str, Any], address: str, port: int) -> dict[str, Any]:
    """The EndpointSlice that leads the Service to one address.

    Args:
        service: the Service as the apiserver has it; it owns the slice, which goes with it.
        address: an IPv4 or IPv6 address.
        port: the port that is listened on there.

    Raises:
        ValueError: that is no IP address.
    """
    meta = service["metadata"]
    version = ipaddress.ip_address(address).version
    owner = {"apiVersion": "v1", "kind": "Service", "name": meta["name"], "uid": meta["uid"]}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            # The family is part of the name: it may never change in a slice.
            "name": f"{meta['name']}-leader-ipv{version}",
            "namespace": meta["namespace"],
            "labels": {
                "kubernetes.io/service-name": meta["name"],
                "endpointslice.kubernetes.io/managed-by": _MANAGER,
            },
            "ownerReferences": [owner],
        },
        "addressType": f"IPv{version}",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": PORT_NAME, "port": port, "protocol": "TCP"}],
    }


async def lead_here(client: Client, service: tuple[str, str, int], address: str, port: int) -> None:
    """Makes the Service (namespace, name, port) lead to this process.

    Raises:
        ApiError: there is no such Service, or a right is missing.
        UnreachableError: the apiserver does not answer.
    """
    namespace, name, _ = service
    found = msgspec.json.decode(await client.request("GET", f"/api/v1/namespaces/{namespace}/services/{name}"))
    await client.apply(endpoint_slice(found, address, port), manager=_MANAGER)
