"""The webhook configurations that send orders and launcher pods here, kept in step with the classes. Pure.

Orders are decided in the validating phase: only there does the object have its final name and UID (R40), and only what
the schema takes arrives. What must be changed in an object, a finalizer or a pin, is changed in the mutating phase.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuclaim.admission import guard, holding
from gpuclaim.api import names

NAME: Final = "gpuclaim"
ORDERS_PATH: Final = "/orders"
HOLDS_PATH: Final = "/holds"
PODS_PATH: Final = "/pods"
MACHINES_PATH: Final = "/machines"
MACHINE_ORDERS_PATH: Final = "/machine-orders"
ORDERS: Final = f"orders.{names.GROUP}"
HOLDS: Final = f"holds.{names.GROUP}"
PODS: Final = f"pods.{names.GROUP}"
VM_PODS: Final = f"vm-pods.{names.GROUP}"
MACHINES: Final = f"vms.{names.GROUP}"
MACHINE_ORDERS: Final = f"vm-orders.{names.GROUP}"
TIMEOUT_SECONDS: Final = 10

# A selector cannot say "or": a pod of a set carries the one label, or the other alone.
_POD_SELECTORS: Final[Mapping[str, list[dict[str, str]]]] = {
    PODS: [{"key": names.SET_LABEL, "operator": "Exists"}],
    VM_PODS: [
        {"key": names.SET_LABEL, "operator": "DoesNotExist"},
        {"key": names.VM_NAME_LABEL, "operator": "Exists"},
    ],
}


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the apiserver reaches us: an URL (`https://HOST:PORT`), or a Service as (namespace, name, port)."""

    url: str = ""
    service: tuple[str, str, int] | None = None

    def config(self, path: str, authority: bytes) -> dict[str, Any]:
        """The clientConfig for one path; `authority` is PEM."""
        bundle = base64.b64encode(authority).decode()
        if self.service is None:
            return {"url": self.url + path, "caBundle": bundle}
        namespace, name, port = self.service
        return {"service": {"namespace": namespace, "name": name, "port": port, "path": path}, "caBundle": bundle}


def configurations(
    endpoint: Endpoint, authority: bytes, resources: Iterable[str], exempt: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """The mutating and the validating configuration.

    Pods are asked about only where they belong to a set and request one of `resources`, so that all others start while
    nobody answers here (R43a); those that do are refused then, never let through unpinned. Pods of no set are the
    guard's. In `exempt` namespaces none is asked about (R44).
    """
    resources = sorted(set(resources))
    common = {
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": TIMEOUT_SECONDS,
    }
    claims = _rule(names.GROUP, names.VERSION, "gpuclaims")
    orders = {
        "name": ORDERS,
        "clientConfig": endpoint.config(ORDERS_PATH, authority),
        "rules": [claims],
    }
    holds = {
        "name": HOLDS,
        "clientConfig": endpoint.config(HOLDS_PATH, authority),
        "rules": [claims],
        "matchConditions": [{"name": "has-no-finalizer-yet", "expression": f"!({holding.HAS_FINALIZER})"}],
    }
    pods = [
        {
            "name": name,
            "clientConfig": endpoint.config(PODS_PATH, authority),
            "rules": [_rule("", "v1", "pods")],
            # Labels cost nothing to look at: of the others nothing is evaluated.
            "objectSelector": {"matchExpressions": selector},
            "matchConditions": [{"name": "asks-for-a-gpu", "expression": guard.asks_for(resources)}],
        }
        for name, selector in _POD_SELECTORS.items()
    ]
    machines = {
        "rules": [_rule("kubevirt.io", "v1", "virtualmachines")],
        # A VM that is no order never waits for us (R45).
        "objectSelector": {"matchExpressions": [{"key": names.CLASS_LABEL, "operator": "Exists"}]},
    }
    filled = machines | {"name": MACHINES, "clientConfig": endpoint.config(MACHINES_PATH, authority)}
    ordered = machines | {"name": MACHINE_ORDERS, "clientConfig": endpoint.config(MACHINE_ORDERS_PATH, authority)}
    if spared := sorted(exempt):
        outside = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": spared}
        for each in pods:
            each["namespaceSelector"] = {"matchExpressions": [outside]}
    mutating = common | {"reinvocationPolicy": "Never"}
    return [
        _configuration("MutatingWebhookConfiguration", [mutating | each for each in (holds, *pods, filled)]),
        _configuration("ValidatingWebhookConfiguration", [common | each for each in (orders, ordered)]),
    ]


def _configuration(kind: str, webhooks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": "gpuclaim"}},
        "webhooks": webhooks,
    }


def _rule(group: str, version: str, plural: str) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": ["CREATE"],
        "resources": [plural],
        "scope": "Namespaced",
    }
