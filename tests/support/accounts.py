"""Who asks the apiserver: ServiceAccounts by their tokens, people by a certificate."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpuclaim.kube.client import Client
from gpuclaim.local.controlplane import ControlPlane


async def token(admin: Client, namespace: str, account: str, pod: tuple[str, str] | None = None) -> str:
    """A token of a ServiceAccount for an hour; bound to a pod (name, UID) as kubelet asks for it, or to nothing."""
    spec: dict[str, Any] = {"expirationSeconds": 3600}
    if pod is not None:
        name, uid = pod
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return str(msgspec.json.decode(await admin.request("POST", path, body=body))["status"]["token"])


def kubeconfig(cluster: ControlPlane, file: Path, user: dict[str, str]) -> Path:
    """Writes a kubeconfig with this user, and so without a certificate."""
    loaded = copy.deepcopy(yaml.safe_load(cluster.kubeconfig.read_text()))
    loaded["users"][0]["user"] = user
    file.write_text(yaml.safe_dump(loaded))
    return file
