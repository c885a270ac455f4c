"""admission.k8s.io/v1: what the apiserver asks a webhook, and what it wants to hear."""

from __future__ import annotations

import base64
from typing import Any, Literal

import msgspec

from gpuclaim.api.core import Outcome, StatusDetails, Struct


class GroupVersionKind(Struct, frozen=True, kw_only=True):
    """metav1.GroupVersionKind."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(Struct, frozen=True, kw_only=True):
    """metav1.GroupVersionResource."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(Struct, frozen=True, kw_only=True):
    """Who made the request."""

    username: str = ""


class Request(Struct, frozen=True, kw_only=True):
    """admission.k8s.io/v1 AdmissionRequest; `object` is still JSON."""

    uid: str
    kind: GroupVersionKind = GroupVersionKind()
    resource: GroupVersionResource = GroupVersionResource()
    namespace: str = ""
    name: str = ""
    operation: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = msgspec.Raw(b"null")
    dry_run: bool = False


class Review(Struct, frozen=True, kw_only=True):
    """admission.k8s.io/v1 AdmissionReview, as it is asked."""

    request: Request


class Response(Struct, frozen=True, kw_only=True):
    """admission.k8s.io/v1 AdmissionResponse."""

    allowed: bool
    uid: str = ""
    status: Outcome | None = None
    patch: str | None = None
    patch_type: Literal["JSONPatch"] | None = None
    warnings: list[str] = []


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """admission.k8s.io/v1 AdmissionReview, as it is answered."""

    api_version: str = "admission.k8s.io/v1"
    kind: str = "AdmissionReview"
    response: Response


def allow(patch: list[dict[str, Any]] | None = None, warnings: list[str] | None = None) -> Response:
    """Let it in, changed by a JSON patch where one is given."""
    if not patch:
        return Response(allowed=True, warnings=warnings or [])
    encoded = base64.b64encode(msgspec.json.encode(patch)).decode()
    return Response(allowed=True, patch=encoded, patch_type="JSONPatch", warnings=warnings or [])


def refuse(reason: str, message: str, *, code: int = 403, details: StatusDetails | None = None) -> Response:
    """Turn it away; `reason` is a word of a vocabulary, `message` a sentence for people."""
    status = Outcome(status="Failure", code=code, reason=reason, message=message, details=details)
    return Response(allowed=False, status=status)
