"""Waiting until an apiserver has forgotten the guard of the test before: it looks at its policies every second."""

from __future__ import annotations

import re

from gpuclaim.admission import guard
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.rest import RequestError
from support.wait import until

_POLICY = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{guard.KNOWN}"
_BINDING = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{guard.KNOWN}"
_QUOTED = re.compile(r"'([^'/]+/[^']+)'")


def resources(cluster: ControlPlane) -> frozenset[str]:
    """The resources that the guard names now; none where there is no guard, or nothing that binds it."""
    if not (cluster.rest.answers(_POLICY) and cluster.rest.answers(_BINDING)):
        return frozenset()
    spec = cluster.rest.get(_POLICY)["spec"]
    return frozenset(_QUOTED.findall(spec["matchConditions"][0]["expression"]))


def until_in_force(cluster: ControlPlane, named: frozenset[str]) -> None:
    """Returns once pods that ask for these are turned away.

    Before the guard is removed: one that the apiserver is just taking up would be in force for a second after it has
    gone, and a look before that would find it forgotten.
    """
    if named:
        until(lambda: not _let_in(cluster, named), f"the apiserver has taken up {guard.KNOWN}")


def until_forgotten(cluster: ControlPlane, named: frozenset[str]) -> None:
    """Returns once no pod that asks for these is turned away any more."""
    if named:
        until(lambda: _let_in(cluster, named), f"the apiserver has forgotten {guard.KNOWN}")


def _let_in(cluster: ControlPlane, named: frozenset[str]) -> bool:
    container = {"name": "main", "image": "any", "resources": {"limits": dict.fromkeys(named, "1")}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": {"automountServiceAccountToken": False, "containers": [container]},
    }
    try:
        cluster.rest.post("/api/v1/namespaces/default/pods?dryRun=All", pod)
    except RequestError as error:
        return guard.KNOWN not in str(error)
    return True
