"""Who the apiserver takes us for, and what it lets us do: the reviews that every authenticated user may ask for."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import msgspec

from gpuclaim.kube.client import Client
from gpuclaim.kube.resources import Resource

ANONYMOUS: Final = "system:anonymous"
_WHO: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_MAY: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """A user as the apiserver knows it; `anonymous` where it knows none."""

    name: str
    groups: tuple[str, ...] = ()

    @property
    def anonymous(self) -> bool:
        """Whether nobody is known by these credentials."""
        return not self.name or self.name == ANONYMOUS


async def who(client: Client) -> Identity:
    """Whose credentials the client has.

    Raises:
        ApiError: code 401 where they are not accepted.
        UnreachableError: no answer came.
    """
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer: dict[str, Any] = msgspec.json.decode(await client.request("POST", _WHO, body=review))
    user = answer.get("status", {}).get("userInfo", {})
    return Identity(str(user.get("username", "")), tuple(user.get("groups") or ()))


async def may(client: Client, verb: str, resource: Resource, namespace: str = "", name: str = "") -> bool:
    """Whether we may do that; in all namespaces where none is given.

    Raises:
        ApiError: the question was refused.
        UnreachableError: no answer came.
    """
    group = resource.api_version.partition("/")[0] if "/" in resource.api_version else ""
    attributes = {"verb": verb, "group": group, "resource": resource.plural, "namespace": namespace, "name": name}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = msgspec.json.decode(await client.request("POST", _MAY, body=review))
    return bool(answer.get("status", {}).get("allowed"))
