"""The fence: the apiserver refuses a bind or move of a leader of an earlier term, however late it comes (R39). Pure.

A leader stops sending a margin before its lease ends. What it sent before, or was about to send when it was paused, may
arrive when another leads that has given the room away. So whoever puts a hold on a node says as which leader, in the
write's fieldManager, and an admission policy compares that with the Lease.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from gpuclaim.admission.guard import LABELS, owned
from gpuclaim.api import names

NAME: Final = "gpuclaim-fence"
PREFIX: Final = "gpuclaim-leader@"
_API: Final = "admissionregistration.k8s.io/v1"
_MANAGER: Final = "request.options.fieldManager"


def refused(message: str) -> bool:
    """Whether an apiserver's refusal, by its message, is the fence's."""
    return NAME in message


def manager(acquired: dt.datetime) -> str:
    """As whom the leader that acquired the Lease at that moment writes; at most 128 characters, as Kubernetes asks.

    The moment is written as the apiserver writes a Lease's `acquireTime`.
    """
    return f"{PREFIX}{acquired.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def policies(
    lease_namespace: str, lease_name: str, owner: Mapping[str, Any] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """The policy and its binding to the leader's Lease.

    Args:
        lease_namespace: the Lease's namespace.
        lease_name: its name.
        owner: the ownerReference of what they go with; empty, they stay until somebody deletes them.
    """
    meta = {"name": NAME, "labels": dict(LABELS)}
    rule = {
        "apiGroups": [names.GROUP],
        "apiVersions": [names.VERSION],
        "operations": ["UPDATE"],
        "resources": ["gpuclaims/status"],
    }
    by_a_leader = f"has({_MANAGER}) && {_MANAGER}.startsWith('{PREFIX}')"
    leads = f"has(params.spec.acquireTime) && {_MANAGER} == '{PREFIX}' + string(params.spec.acquireTime)"
    policy = {
        "failurePolicy": "Fail",
        "paramKind": {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"},
        "matchConstraints": {"resourceRules": [rule]},
        # A version that does not say as which leader it writes is not held up.
        "matchConditions": [{"name": "written-by-a-leader", "expression": by_a_leader}],
        "validations": [
            {
                "expression": leads,
                "message": "sent by a leader of an earlier term: another leads",
                "reason": "Forbidden",
            }
        ],
    }
    binding = {
        "policyName": NAME,
        "validationActions": ["Deny"],
        # Without a Lease nobody leads, and nothing is given away that could be late for it.
        "paramRef": {"namespace": lease_namespace, "name": lease_name, "parameterNotFoundAction": "Allow"},
    }
    made = [
        {"apiVersion": _API, "kind": "ValidatingAdmissionPolicy", "metadata": meta, "spec": policy},
        {"apiVersion": _API, "kind": "ValidatingAdmissionPolicyBinding", "metadata": meta, "spec": binding},
    ]
    return owned(made, owner)
