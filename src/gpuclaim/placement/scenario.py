"""A state of objects and what happens to it step by step: what `gpuclaim plan` and tests decide on (R74)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from gpuclaim.api import core, model
from gpuclaim.api.types import Condition, GPUClaim, GPUClaimSpec, GPUClaimStatus, GPUClass, GPUNode
from gpuclaim.placement.books import Books, Known, Settings
from gpuclaim.placement.orders import Move, Order, Verdict
from gpuclaim.placement.verdict import decide

KINDS: Final[Mapping[str, type[Known]]] = {
    "GPUClass": GPUClass,
    "GPUClaim": GPUClaim,
    "GPUNode": GPUNode,
    "Node": core.Node,
    "Pod": core.Pod,
    "Namespace": core.Namespace,
    "ResourceQuota": core.ResourceQuota,
}

Key: TypeAlias = tuple[str, str, str]
"""Kind, namespace ("" for none) and name of an object."""
Result: TypeAlias = dict[str, Any]
"""What came of a step: see `Simulation.step`."""
Json: TypeAlias = Any
"""Any JSON value."""


class ScenarioError(ValueError):
    """The scenario cannot be played: the place in it, by line (1 is the first; 0: unknown) and field, and why."""

    def __init__(self, line: int, where: str, why: str) -> None:
        super().__init__(": ".join(part for part in (f"line {line}" if line else "", where, why) if part))
        self.line = line
        self.where = where
        self.why = why


@dataclass(frozen=True, slots=True)
class NewOrder:
    """A tenant creates a claim."""

    namespace: str
    name: str
    class_name: str
    count: int = 1
    set_name: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """An object is deleted; a claim goes when its set's pod has ended (R10a)."""

    key: Key


@dataclass(frozen=True, slots=True)
class Clock:
    """It is now that late."""

    now: dt.datetime


@dataclass(frozen=True, slots=True)
class Merge:
    """A JSON merge patch of an object."""

    key: Key
    patch: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Holds:
    """How many GPUs are held where."""


Action: TypeAlias = NewOrder | Delete | Clock | Merge | Holds


@dataclass(frozen=True, slots=True)
class Step:
    """What happens, where it is written, and what the file says must come of it."""

    action: Action
    line: int = 0
    where: str = ""
    expect: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A state, and what happens from `now` on. `state` is (object, line, field) by order of the file."""

    now: dt.datetime
    state: Sequence[tuple[Known, int, str]] = ()
    steps: Sequence[Step] = ()


class Simulation:
    """The state as it goes on. Admitted orders are bound at once, as the binder does when nothing is in its way."""

    def __init__(self, scenario: Scenario, settings: Settings | None = None) -> None:
        self.books = Books(settings or Settings())
        self.now = scenario.now
        self.objects: dict[Key, Known] = {}
        self._steps = scenario.steps
        for obj, line, where in scenario.state:
            key = key_of(obj)
            if key in self.objects:
                raise ScenarioError(line, where, f"{_say(key)} is there twice")
            if isinstance(obj, GPUClaim) and not obj.metadata.uid:
                obj = msgspec.structs.replace(obj, metadata=_with_uid(obj.metadata))
            self.put(obj)
        self.settle()

    def run(self) -> list[Result]:
        """Play all steps: one result each.

        Raises:
            ScenarioError: a step names what is not there, or there already, or merges into no such object.
        """
        return [self.step(step) for step in self._steps]

    def step(self, step: Step) -> Result:
        """Play one step.

        Returns:
            For an order `{"verdict": "admitted"|"refused", "node", "reason", "message", "moves": ["namespace/name"]}`,
            node and reason None where there is none; for holds `{"holds": {node: GPUs held}}` of all nodes; else `{}`.

        Raises:
            ScenarioError: the step names what is not there, or there already, or merges into no such object.
        """
        match step.action:
            case NewOrder() as new:
                return self._order(new, step)
            case Delete(key):
                self._delete(key, step)
            case Clock(now):
                self.now = now
            case Merge(key, patch):
                self._merge(key, patch, step)
            case Holds():
                held = self.books.holds_by_node()
                known = {key[2] for key in self.objects if key[0] in ("Node", "GPUNode")}
                return {"holds": {node: held.get(node, 0) for node in sorted(known | held.keys())}}
        self.settle()
        return {}

    def _order(self, new: NewOrder, step: Step) -> Result:
        key = ("GPUClaim", new.namespace, new.name)
        if key in self.objects:
            raise ScenarioError(step.line, step.where, f"{_say(key)} is there already")
        claim = GPUClaim(
            metadata=_with_uid(core.ObjectMeta(namespace=new.namespace, name=new.name, creation_timestamp=self.now)),
            spec=GPUClaimSpec(class_name=new.class_name, count=new.count, set=new.set_name),
        )
        verdict = decide(self.books, Order.of(claim), self.now)
        if verdict.admitted:
            self._bind(claim, verdict)
        return result_of(verdict)

    def _bind(self, claim: GPUClaim, verdict: Verdict) -> None:
        self.make(verdict.moves)
        status = GPUClaimStatus(
            node_name=verdict.node,
            held_since=self.now,
            refusals=claim.status.refusals,
            conditions=[
                Condition(type="Bound", status=core.Status.TRUE, reason="Bound", last_transition_time=self.now)
            ],
        )
        self.put(msgspec.structs.replace(claim, status=status))

    def make(self, moves: Sequence[Move]) -> None:
        """Store the moves."""
        for move in moves:
            claim = self.objects["GPUClaim", move.namespace, move.name]
            assert isinstance(claim, GPUClaim)
            status = msgspec.structs.replace(claim.status, node_name=move.to_node)
            self.put(msgspec.structs.replace(claim, status=status))

    def _delete(self, key: Key, step: Step) -> None:
        obj = self.objects.get(key)
        if obj is None:
            raise ScenarioError(step.line, step.where, f"there is no {_say(key)}")
        if isinstance(obj, GPUClaim) and self.books.attached(key[1], model.claim_set(obj)):
            gone = msgspec.structs.replace(obj.metadata, deletion_timestamp=self.now)
            self.put(msgspec.structs.replace(obj, metadata=gone))
        else:
            self._drop(key)

    def _merge(self, key: Key, patch: Mapping[str, Any], step: Step) -> None:
        obj = self.objects.get(key)
        if obj is None:
            raise ScenarioError(step.line, step.where, f"there is no {_say(key)}")
        merged = merge_patch(msgspec.to_builtins(obj), patch)
        try:
            new = msgspec.convert(merged, KINDS[key[0]])
        except (msgspec.ValidationError, ValueError) as error:
            raise ScenarioError(step.line, f"{step.where}.merge", f"{_say(key)} would not be valid: {error}") from None
        if key_of(new) != key:
            raise ScenarioError(step.line, f"{step.where}.merge", f"{_say(key)} cannot get another name")
        self.put(new)

    def settle(self) -> None:
        """Let go what waits for no pod any more (R10a), and bind what is unbound and fits, in order (R38)."""
        for key, obj in list(self.objects.items()):
            if (
                isinstance(obj, GPUClaim)
                and obj.metadata.deletion_timestamp is not None
                and not self.books.attached(key[1], model.claim_set(obj))
            ):
                self._drop(key)
        for claim in self.books.unbound():
            if claim.metadata.deletion_timestamp is None:
                verdict = decide(self.books, Order.of(claim), self.now)
                if verdict.admitted:
                    self._bind(claim, verdict)

    def put(self, obj: Known) -> None:
        """Store an object, in the place of one of its kind and name."""
        self.objects[key_of(obj)] = obj
        self.books.apply(obj)

    def _drop(self, key: Key) -> None:
        del self.objects[key]
        self.books.remove(KINDS[key[0]], key[1], key[2])


def key_of(obj: Known) -> Key:
    """Kind, namespace and name of the object."""
    return (obj.kind, obj.metadata.namespace, obj.metadata.name)


def result_of(verdict: Verdict) -> Result:
    """The verdict as a step's result."""
    return {
        "verdict": "admitted" if verdict.admitted else "refused",
        "node": verdict.node,
        "reason": verdict.reason.value if verdict.reason is not None else None,
        "message": verdict.message,
        "moves": [f"{move.namespace}/{move.name}" for move in verdict.moves],
    }


def differences(expect: Mapping[str, Any], result: Result) -> list[str]:
    """What of the result is not as expected, a sentence each; a node may be one of a list, moves are in any order."""
    found: list[str] = []
    for what, wanted in expect.items():
        got = result.get(what)
        if what == "holds":
            counts: Mapping[str, int] = got or {}
            wrong = {node: counts.get(node, 0) for node, count in wanted.items() if counts.get(node, 0) != count}
            found += [f"{node} holds {count}, expected {wanted[node]}" for node, count in sorted(wrong.items())]
        elif not _agrees(what, wanted, got):
            found.append(f"{what} is {_plain(got)}, expected {_plain(wanted)}")
    return found


def _agrees(what: str, wanted: Json, got: Json) -> bool:
    if what == "moves":
        return sorted(wanted) == sorted(got or [])
    if what == "node" and isinstance(wanted, list):
        return got in wanted
    return bool(wanted == got)


def merge_patch(target: Json, patch: Json) -> Json:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def _with_uid(meta: core.ObjectMeta) -> core.ObjectMeta:
    return msgspec.structs.replace(meta, uid=f"uid-{meta.namespace}-{meta.name}")


def _say(key: Key) -> str:
    kind, namespace, name = key
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def _plain(value: Json) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return "none" if value is None else str(value)
