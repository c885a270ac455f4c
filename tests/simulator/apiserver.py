"""An apiserver in memory: objects as JSON, resourceVersions, watches, admission. The semantics are kube-apiserver's.

What is read of them here: optimistic concurrency by metadata.resourceVersion and uid, subresource status, finalizers
and deletionTimestamp, a write that changes nothing has no new version, watches of one kind in the order of the writes.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from gpuclaim.admission import fence
from gpuclaim.placement.scenario import merge_patch
from simulator.loop import Clock

Json: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, str]

EPOCH: Final = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
KINDS: Final = {
    "gpuclasses": ("gpu.cozystack.io/v1alpha1", "GPUClass"),
    "gpuclaims": ("gpu.cozystack.io/v1alpha1", "GPUClaim"),
    "gpunodes": ("gpu.cozystack.io/v1alpha1", "GPUNode"),
    "nodes": ("v1", "Node"),
    "pods": ("v1", "Pod"),
    "virtualmachines": ("kubevirt.io/v1", "VirtualMachine"),
    "namespaces": ("v1", "Namespace"),
    "resourcequotas": ("v1", "ResourceQuota"),
    "leases": ("coordination.k8s.io/v1", "Lease"),
    "events": ("events.k8s.io/v1", "Event"),
    "mutatingwebhookconfigurations": ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    "validatingwebhookconfigurations": ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
    "validatingadmissionpolicies": ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    "validatingadmissionpolicybindings": ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
}
_HAS_STATUS: Final = frozenset(
    {"gpuclasses", "gpuclaims", "gpunodes", "nodes", "pods", "resourcequotas", "virtualmachines"}
)
_CLUSTER: Final = frozenset(
    {"gpuclasses", "gpunodes", "nodes", "namespaces"}
    | {plural for plural in KINDS if plural.endswith(("ions", "ies", "ings"))}
)
_KEPT: Final = 400
"""How many events of a kind a watch can start from."""

Admit: TypeAlias = Callable[[str, Json, bool], Awaitable[Json]]
Written: TypeAlias = Callable[[str, "Json | None", "Json | None", str], None]
Idle: TypeAlias = Callable[[str, Json, str], None]
"""Hears of a write that changed nothing."""


class RefusedError(Exception):
    """The answer is no 2xx."""

    def __init__(self, code: int, reason: str, message: str = "", details: Json | None = None) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.body: Json = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
        if details:
            self.body["details"] = details


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """What a request's path names."""

    plural: str
    namespace: str
    name: str
    subresource: str
    group_version: str

    @classmethod
    def of(cls, path: str) -> Path:
        parts = path.strip("/").split("/")
        version, rest = (parts[1], parts[2:]) if parts[0] == "api" else (f"{parts[1]}/{parts[2]}", parts[3:])
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        plural, name, sub = (*rest, "", "", "")[:3]
        return cls(plural, namespace, name, sub, version)


def selected(obj: Json, selector: str) -> bool:
    """Whether a label selector takes the object; of selectors, that a label is there is all that is asked."""
    return not selector or selector in obj["metadata"].get("labels", {})


def shown(path: str) -> str:
    """A request's path as the trace has it."""
    at = Path.of(path)
    return "/".join(part for part in (at.plural, at.namespace, at.name, at.subresource) if part)


class Apiserver:
    """The store and its verbs. Objects are never changed in place: an event keeps what it was told of."""

    def __init__(self, clock: Clock, admit: Admit, written: Written, idle: Idle) -> None:
        self.objects: dict[str, dict[Key, Json]] = {plural: {} for plural in KINDS}
        self.history: dict[str, list[tuple[int, str, Json]]] = {plural: [] for plural in KINDS}
        self.compacted = dict.fromkeys(KINDS, 0)
        self.version = 1
        self.watchers: dict[str, list[Callable[[int, str, Json], None]]] = {plural: [] for plural in KINDS}
        self._clock = clock
        self._admit = admit
        self._written = written
        self._idle = idle
        self.page = 1000
        """How many objects a page of a list has, whatever more is allowed."""
        self._pages: dict[str, tuple[str, list[Json]]] = {}
        self.unserved: set[str] = set()
        """Kinds whose CRD nobody has installed yet."""
        self._uids = 0

    def now(self) -> str:
        """The time as the apiserver writes it: whole seconds."""
        moment = EPOCH + dt.timedelta(seconds=int(self._clock.now))
        return moment.isoformat().replace("+00:00", "Z")

    def all(self, plural: str) -> list[Json]:
        """Every object of a kind, by namespace and name."""
        return [obj for _, obj in sorted(self.objects[plural].items())]

    def find(self, plural: str, namespace: str, name: str) -> Json | None:
        """One object."""
        return self.objects[plural].get((namespace, name))

    async def handle(self, method: str, path: str, body: Any, params: dict[str, str], content: str, who: str) -> Json:
        """One request.

        Raises:
            RefusedError: the answer is no 2xx.
        """
        at = Path.of(path)
        if not at.plural:
            return self._discovery(at.group_version)
        if at.plural not in KINDS or at.plural in self.unserved:
            raise RefusedError(404, "NotFound", f"no kind {at.plural}")
        dry = params.get("dryRun") == "All"
        if method == "GET" and not at.name:
            return self._list(at, params)
        if method == "GET":
            return self._one(at)
        if method == "POST":
            return await self._create(at, body, dry=dry, who=who)
        if method == "PUT":
            return self._update(at, body, who)
        if method == "PATCH" and content.startswith("application/apply"):
            if (at.namespace, at.name) not in self.objects[at.plural]:
                return await self._create(at, body, dry=dry, who=who)
            return self._update(at, merge_patch(self._one(at), body), who)
        if method == "PATCH":
            self._fence(at, params.get("fieldManager", ""))
            return self._patch(at, body, who)
        return self._delete(at, body, who)

    def _discovery(self, group_version: str) -> Json:
        listed = [
            {"name": plural, "kind": kind, "namespaced": plural not in _CLUSTER}
            for plural, (version, kind) in KINDS.items()
            if version == group_version
        ]
        return {"resources": listed}

    def _list(self, at: Path, params: dict[str, str]) -> Json:
        """A list as it was when its first page was asked for, page by page."""
        token, selector = params.get("continue", ""), params.get("labelSelector", "")
        if token:
            if token not in self._pages:
                raise RefusedError(410, "Expired", "the continue token has expired")
            version, found = self._pages[token]
        else:
            version = str(self.version)
            found = [
                obj
                for (namespace, _), obj in sorted(self.objects[at.plural].items())
                if at.namespace in ("", namespace) and selected(obj, selector)
            ]
        meta = {"resourceVersion": version}
        if params.get("limit") and len(found) > self.page:
            meta["continue"] = f"page-{len(self._pages)}-{version}"
            self._pages[meta["continue"]] = (version, found[self.page :])
            found = found[: self.page]
        return {"metadata": meta, "items": found}

    def _one(self, at: Path) -> Json:
        obj = self.objects[at.plural].get((at.namespace, at.name))
        if obj is None:
            raise RefusedError(404, "NotFound", f"{at.plural} {at.name!r} not found")
        return obj

    async def _create(self, at: Path, body: Json, *, dry: bool, who: str) -> Json:
        version, kind = KINDS[at.plural]
        self._uids += 1
        meta = {
            **body["metadata"],
            "namespace": at.namespace,
            "uid": f"uid-{self._uids:05d}",
            "generation": 1,
            "creationTimestamp": self.now(),
        }
        meta.pop("resourceVersion", None)
        if at.plural in _CLUSTER:
            meta.pop("namespace")
        obj = {**body, "apiVersion": version, "kind": kind, "metadata": meta}
        if at.plural in ("gpuclaims", "gpuclasses", "gpunodes"):
            obj.pop("status", None)
        obj = await self._admit(at.plural, obj, dry)
        key = (at.namespace, obj["metadata"]["name"])
        if key in self.objects[at.plural]:
            raise RefusedError(409, "AlreadyExists", f"{at.plural} {key[1]!r} already exists")
        if dry:
            return obj
        return self._store(at.plural, key, None, obj, who)

    def _update(self, at: Path, body: Json, who: str) -> Json:
        old = self._one(at)
        new = merge_patch(old, {})
        self._check(old, body.get("metadata", {}))
        parts = ["status"] if at.subresource == "status" else [key for key in body if key != "metadata"]
        for part in parts:
            if part != "status" or at.subresource or at.plural not in _HAS_STATUS:
                new[part] = body.get(part, {})
        if not at.subresource:
            new["metadata"] = {
                **old["metadata"],
                **{k: v for k, v in body["metadata"].items() if k != "resourceVersion"},
            }
        return self._store(at.plural, (at.namespace, at.name), old, new, who)

    def _fence(self, at: Path, manager: str) -> None:
        """The policy `gpuclaim-fence`, which the chart installs."""
        if at.plural != "gpuclaims" or at.subresource != "status" or not manager.startswith(fence.PREFIX):
            return
        for lease in self.all("leases"):
            if manager != fence.manager(dt.datetime.fromisoformat(lease["spec"]["acquireTime"])):
                raise RefusedError(403, "Forbidden", "sent by a leader of an earlier term: another leads")

    def _patch(self, at: Path, body: Json, who: str) -> Json:
        old = self._one(at)
        meta = body.get("metadata", {})
        self._check(old, meta)
        meta = {key: value for key, value in meta.items() if key not in ("resourceVersion", "uid")}
        if at.subresource == "status":
            patch = {"status": body.get("status", {})}
        else:
            patch = {key: value for key, value in body.items() if key not in ("metadata", "status")} | {
                "metadata": meta
            }
            if at.plural not in _HAS_STATUS and "status" in body:
                patch["status"] = body["status"]
        return self._store(at.plural, (at.namespace, at.name), old, merge_patch(old, patch), who)

    def _delete(self, at: Path, body: Json | None, who: str) -> Json:
        old = self._one(at)
        self._check(old, (body or {}).get("preconditions", {}))
        meta = old["metadata"]
        key = (at.namespace, at.name)
        if meta.get("finalizers") or (at.plural == "pods" and "deletionTimestamp" not in meta):
            if "deletionTimestamp" in meta:
                return old
            return self._store(
                at.plural, key, old, merge_patch(old, {"metadata": {"deletionTimestamp": self.now()}}), who
            )
        self._store(at.plural, key, old, None, who)
        return old

    @staticmethod
    def _check(old: Json, meta: Json) -> None:
        for field in ("resourceVersion", "uid"):
            if meta.get(field) and meta[field] != old["metadata"][field]:
                raise RefusedError(409, "Conflict", f"the object has been modified ({field})")

    def _store(self, plural: str, key: Key, old: Json | None, new: Json | None, who: str) -> Json:
        if new is not None and old is not None:
            if new == old:
                self._idle(plural, old, who)
                return old
            if new.get("spec") != old.get("spec"):
                generation = old["metadata"].get("generation", 1) + 1
                new = {**new, "metadata": {**new["metadata"], "generation": generation}}
            if "deletionTimestamp" in new["metadata"] and not new["metadata"].get("finalizers") and plural != "pods":
                new = None
        self.version += 1
        stored = new if new is not None else old
        assert stored is not None
        stored = {**stored, "metadata": {**stored["metadata"], "resourceVersion": str(self.version)}}
        if new is None:
            del self.objects[plural][key]
            kind = "DELETED"
        else:
            self.objects[plural][key] = stored
            kind = "ADDED" if old is None else "MODIFIED"
        self._written(plural, old, None if new is None else stored, who)
        history = self.history[plural]
        history.append((self.version, kind, stored))
        if len(history) > _KEPT:
            self.compacted[plural] = history[-_KEPT][0] - 1
            del history[:-_KEPT]
        for watcher in [*self.watchers[plural]]:
            watcher(self.version, kind, stored)
        return stored

    def compact(self) -> None:
        """Forgets all that has been: a watch from an earlier version, and the next page of a list, is answered 410."""
        for plural in KINDS:
            self.compacted[plural] = self.version
            self.history[plural].clear()
        self._pages.clear()

    def since(self, plural: str, version: int) -> list[tuple[int, str, Json]]:
        """The events of a kind after a version.

        Raises:
            RefusedError: 410, they are forgotten; 404, the kind is not served.
        """
        if plural in self.unserved:
            raise RefusedError(404, "NotFound", f"no kind {plural}")
        if version < self.compacted[plural]:
            raise RefusedError(410, "Expired", "too old resource version")
        return [event for event in self.history[plural] if event[0] > version]
