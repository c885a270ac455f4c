"""Waiting until an apiserver has forgotten the guard of the test before: it looks at its policies every second."""

from __future__ import annotations

import re

from gpuclaim.admission import guard
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.rest import RequestError
from support.wait import until

_POLICY = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{guard.KNOWN}"
_QUOTED = re.compile(r"'([^'/]+/[^']+)'")


def resources(cluster: ControlPlane) -> frozenset[str]:
    """The resources that the guard names now; none where there is no guard."""
    if not cluster.rest.answers(_POLICY):
        return frozenset()
    spec = cluster.rest.get(_POLICY)["spec"]
    return frozenset(_QUOTED.findall(spec["matchConditions"][0]["expression"]))


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
