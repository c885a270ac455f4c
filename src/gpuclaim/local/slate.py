"""Bringing a control plane back to an earlier state in milliseconds, without a restart."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuclaim.local.controlplane import ControlPlane

_ROOT = "/registry/"
_DELETES_AT_ONCE = 100  # etcd takes 128 operations in a transaction
# The apiserver keeps these by itself, in step with the CRDs that it serves.
_OWN = ("/registry/apiregistration.k8s.io/", "/registry/masterleases/", "/registry/ranges/")


class Slate:
    """Remembers which objects a control plane has, and removes the others.

    They are removed in etcd, below the apiserver: no finalizer, grace period or webhook holds
    them up, and every watcher is told of each as of any other deletion. Objects that were
    there and were changed stay as they are.
    """

    def __init__(self, cluster: ControlPlane) -> None:
        """Remember the objects that are there now."""
        self._cluster = cluster
        self._kept: set[str] = set()
        self._prefixes: tuple[str, ...] = _OWN
        self.keep()

    def keep(self, prefixes: Iterable[str] = ()) -> None:
        """Remember the objects that are there now too; and whatever comes below the etcd key `prefixes`."""
        self._prefixes += tuple(prefixes)
        self._kept |= self._keys()

    def wipe(self) -> int:
        """Remove every object that is not remembered; return how many there were."""
        new = sorted(key for key in self._keys() - self._kept if not key.startswith(self._prefixes))
        for start in range(0, len(new), _DELETES_AT_ONCE):
            batch = new[start : start + _DELETES_AT_ONCE]
            deletes = [{"requestDeleteRange": {"key": _encoded(key)}} for key in batch]
            self._cluster.etcd.post("/v3/kv/txn", {"success": deletes})
        return len(new)

    def _keys(self) -> set[str]:
        end = _ROOT[:-1] + chr(ord(_ROOT[-1]) + 1)
        answer: dict[str, Any] = self._cluster.etcd.post(
            "/v3/kv/range", {"key": _encoded(_ROOT), "rangeEnd": _encoded(end), "keysOnly": True}
        )
        return {base64.b64decode(each["key"]).decode() for each in answer.get("kvs", ())}


def _encoded(key: str) -> str:
    return base64.b64encode(key.encode()).decode()
