"""The policy by which the apiserver itself gives a new GPUClaim the finalizer that holds it (R10a). Pure.

It saves the call of the mutating webhook, which is asked only about claims that have none yet, and mutating policies
come before webhooks. A cluster before Kubernetes 1.36 does not serve the kind: there the webhook does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuclaim.admission.guard import LABELS, owned
from gpuclaim.api import names

NAME: Final = "gpuclaim-holds"
KIND: Final = "MutatingAdmissionPolicy"
BINDING: Final = "MutatingAdmissionPolicyBinding"
API_VERSION: Final = "admissionregistration.k8s.io/v1"

HAS_FINALIZER: Final = f"has(object.metadata.finalizers) && '{names.HOLD_FINALIZER}' in object.metadata.finalizers"
_WITH_FINALIZER: Final = (
    f"(has(object.metadata.finalizers) ? object.metadata.finalizers : []) + ['{names.HOLD_FINALIZER}']"
)


def policies(owner: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The policy and its binding.

    Args:
        owner: the ownerReference of the webhooks: where nobody takes the finalizer off, nobody may put it on.
    """
    meta = {"name": NAME, "labels": dict(LABELS)}
    rule = {
        "apiGroups": [names.GROUP],
        "apiVersions": [names.VERSION],
        "operations": ["CREATE"],
        "resources": ["gpuclaims"],
    }
    patch = f'[JSONPatch{{op: "add", path: "/metadata/finalizers", value: {_WITH_FINALIZER}}}]'
    spec = {
        # Where it fails the webhook is asked, whose failure refuses the order.
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "has-no-finalizer-yet", "expression": f"!({HAS_FINALIZER})"}],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
    }
    made = [
        {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec},
        {"apiVersion": API_VERSION, "kind": BINDING, "metadata": meta, "spec": {"policyName": NAME}},
    ]
    return owned(made, owner)
