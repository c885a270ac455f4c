"""Scenario files: YAML text to a `Scenario`, every fault with its line and field."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import yaml

from gpuclaim.api import names
from gpuclaim.api.core import Struct
from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.placement.books import Known
from gpuclaim.placement.scenario import (
    KINDS,
    Action,
    Clock,
    Delete,
    Holds,
    Json,
    Key,
    Merge,
    NewOrder,
    Scenario,
    ScenarioError,
    Step,
)

Path: TypeAlias = tuple[str | int, ...]
T = TypeVar("T")

_OBJECT_KEYS: Final = ("apiVersion", "kind", "metadata", "spec", "status")
_STEPS: Final = ("order", "delete", "now", "set", "holds")
_EXPECT: Final = ("verdict", "node", "reason", "moves")
_OURS: Final = frozenset({GPUClass, GPUClaim, GPUNode})
_CLUSTER_SCOPED: Final = frozenset({"GPUClass", "GPUNode", "Node", "Namespace"})


class _Loader(yaml.SafeLoader):
    """A safe loader that leaves times as they are written: msgspec reads them."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Fast(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same by libyaml: eight times as fast, with other words for what is wrong. For files of megabytes."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def read(text: str) -> Scenario:
    """Read a scenario: `now`, `state`, `steps` and, for people, `why`. O(text).

    Raises:
        ScenarioError: it is no YAML, has an unknown or a missing key, or a value of a wrong type or shape.
    """
    file = File(text)
    if not isinstance(file.data, dict):
        raise ScenarioError(1, "", "a scenario is a mapping with now, state and steps")
    file.keys((), required=("now",), optional=("why", "state", "steps"))
    if "why" in file.data:
        file.typed(("why",), str)
    return Scenario(
        now=_moment(file, ("now",)),
        state=[(known(file, path), file.line(path), field_of(path)) for path in file.items("state")],
        steps=[_step(file, path) for path in file.items("steps")],
    )


class File:
    """The text's data, and the line of every part of it; of several documents, where there may be, a list.

    Raises:
        ScenarioError: it is no YAML.
    """

    def __init__(self, text: str, *, several: bool = False) -> None:
        self._lines: dict[Path, int] = {}
        try:
            loader = _Fast(text) if several else _Loader(text)
            nodes = list(_documents(loader)) if several else [loader.get_single_node()]
            alone = len(nodes) == 1
            for index, node in enumerate(nodes):
                if node is not None:
                    self._walk(node, () if alone else (index,), ())
            found = [loader.construct_document(node) if node is not None else None for node in nodes]
            self.data: Any = found[0] if alone else found
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            why = error.problem or error.context or "it cannot be read"
            raise ScenarioError(mark.line + 1 if mark is not None else 0, "", f"not valid YAML: {why}") from None
        except ScenarioError:
            raise
        except RecursionError:
            raise ScenarioError(0, "", "it is nested too deeply") from None
        except (yaml.YAMLError, ValueError) as error:
            raise ScenarioError(0, "", f"not valid YAML: {' '.join(str(error).split())}") from None

    def _walk(self, node: yaml.Node, path: Path, above: tuple[yaml.Node, ...]) -> None:
        self._lines.setdefault(path, node.start_mark.line + 1)
        if node in above:
            raise ScenarioError(node.start_mark.line + 1, field_of(path), "it contains itself")
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    raise ScenarioError(line, field_of(path), "a key must be a word")
                if key.value in seen:
                    raise ScenarioError(line, field_of((*path, key.value)), "it is there twice")
                seen.add(key.value)
                self._lines[(*path, key.value)] = line
                self._walk(value, (*path, key.value), (*above, node))
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self._walk(value, (*path, index), (*above, node))

    def line(self, path: Path) -> int:
        """The line of the part, or of the nearest part around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 0)

    def fault(self, path: Path, why: str) -> ScenarioError:
        """What is wrong there."""
        return ScenarioError(self.line(path), field_of(path), why)

    def at(self, path: Path) -> Json:
        """The part."""
        part = self.data
        for step in path:
            part = part[step]
        return part

    def typed(self, path: Path, wanted: type[T]) -> T:
        """The part as a value of the type; a fault names the very field."""
        try:
            return msgspec.convert(self.at(path), wanted)
        except msgspec.ValidationError as error:
            why, _, inner = str(error).partition(" - at `$")
            raise self.fault((*path, *_steps_of(inner.rstrip("`"))), why[:1].lower() + why[1:]) from None

    def keys(self, path: Path, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()) -> Mapping[str, Any]:
        """The part, a mapping of these keys and no others; without any, of words."""
        part = self.at(path)
        known = (*required, *optional)
        if not isinstance(part, dict):
            raise self.fault(path, f"expected a mapping, got {_type(part)}")
        for key in part:
            if not isinstance(key, str):
                raise self.fault((*path, str(key)), "a key must be a word")
            if known and key not in known:
                raise self.fault((*path, str(key)), f"unknown key; known here are {', '.join(known)}")
        for key in required:
            if key not in part:
                raise self.fault(path, f"{key} is missing")
        return part

    def items(self, key: str) -> Iterator[Path]:
        """The paths of the entries of the list at the top-level key; none where it is absent or empty."""
        part = self.data.get(key)
        if part is None:
            return
        if not isinstance(part, list):
            raise self.fault((key,), f"expected a list, got {_type(part)}")
        yield from ((key, index) for index in range(len(part)))


def _documents(loader: Any) -> Iterator[yaml.Node]:  # noqa: ANN401 - either of the two
    while loader.check_node():
        node = loader.get_node()
        assert node is not None
        yield node


def known(file: File, path: Path, *, strict: bool = True) -> Known:
    """An object of the state. Of Kubernetes' own kinds only what placement reads is looked at.

    Args:
        file: what it is written in.
        path: where it stands.
        strict: whether our own kinds may have no keys but those of their types.

    Raises:
        ScenarioError: it is of no known kind, or has a value of a wrong type or shape.
    """
    obj = file.at(path)
    if not isinstance(obj, dict):
        raise file.fault(path, f"expected a Kubernetes object, got {_type(obj)}")
    for key in ("apiVersion", "kind", "metadata"):
        if key not in obj:
            raise file.fault(path, f"{key} is missing")
    kind = file.typed((*path, "kind"), str)
    if kind not in KINDS:
        raise file.fault((*path, "kind"), f"unknown kind {kind}; known are {', '.join(KINDS)}")
    struct = KINDS[kind]
    if strict:
        file.keys(path, optional=_OBJECT_KEYS)
    if strict and struct in _OURS:
        _strict(file, path, struct)
    found = file.typed(path, struct)
    if not found.metadata.name:
        raise file.fault((*path, "metadata"), "name is missing")
    namespaced = kind not in _CLUSTER_SCOPED
    if namespaced is not bool(found.metadata.namespace):
        why = "namespace is missing" if namespaced else f"a {kind} has no namespace"
        raise file.fault((*path, "metadata"), why)
    return found


def _strict(file: File, path: Path, struct: type[Struct]) -> None:
    """Our own kinds have no keys but those of their types."""
    part = file.at(path)
    if not isinstance(part, dict):
        return
    fields = {f.encode_name: f.type for f in msgspec.structs.fields(struct)}
    for key, value in part.items():
        inner = (*path, key)
        if key not in fields:
            raise file.fault(inner, f"unknown key; known here are {', '.join(fields)}")
        found = _struct_in(fields[key])
        # A real object's metadata has more than is read of it.
        if found is None or key == "metadata":
            continue
        if isinstance(value, list):
            for index in range(len(value)):
                _strict(file, (*inner, index), found)
        else:
            _strict(file, inner, found)


def _struct_in(hint: object) -> type[Struct] | None:
    """The struct that the annotation is, or is a list or an optional of."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint
    arguments = getattr(hint, "__args__", ())
    return next((found for argument in arguments if (found := _struct_in(argument)) is not None), None)


def _step(file: File, path: Path) -> Step:
    part = file.keys(path, optional=(*_STEPS, *_EXPECT, "why"))
    kinds = [key for key in _STEPS if key in part]
    if len(kinds) != 1:
        raise file.fault(path, f"a step is exactly one of {', '.join(_STEPS)}; this is {' and '.join(kinds) or 'none'}")
    kind = kinds[0]
    where = (*path, kind)
    expect = {key: part[key] for key in _EXPECT if key in part}
    if expect and kind != "order":
        raise file.fault((*path, next(iter(expect))), f"it is expected of an order, and this step is a {kind}")
    if kind == "order":
        _expectations(file, path, expect)
    if kind == "holds":
        expect = {"holds": {node: file.typed((*where, node), int) for node in file.keys(where)}}
    return Step(_ACTIONS[kind](file, where), file.line(path), field_of(where), expect)


def _order(file: File, path: Path) -> NewOrder:
    part = file.keys(path, required=("namespace", "name", "className"), optional=("count", "set"))
    for key in ("namespace", "name", "className"):
        if not file.typed((*path, key), str):
            raise file.fault((*path, key), "must not be empty")
    count = file.typed((*path, "count"), int) if "count" in part else 1
    if count < 1:
        raise file.fault((*path, "count"), f"must be 1 or more, is {count}")
    set_name = file.typed((*path, "set"), str) if "set" in part else None
    if set_name is not None and re.fullmatch(names.NAMED_LABEL_VALUE, set_name) is None:
        raise file.fault((*path, "set"), "must be a label value: letters, digits, '-', '_' and '.'")
    return NewOrder(part["namespace"], part["name"], part["className"], count, set_name)


def _delete(file: File, path: Path) -> Delete:
    file.keys(path, required=("name",), optional=("kind", "namespace"))
    return Delete(_key(file, path, default="GPUClaim"))


def _clock(file: File, path: Path) -> Clock:
    return Clock(_moment(file, path))


def _merge(file: File, path: Path) -> Merge:
    part = file.keys(path, required=("kind", "name", "merge"), optional=("namespace",))
    if not isinstance(part["merge"], dict):
        raise file.fault((*path, "merge"), f"expected a mapping, got {_type(part['merge'])}")
    for key in part["merge"]:
        if key not in _OBJECT_KEYS:
            raise file.fault((*path, "merge", str(key)), f"unknown key; known here are {', '.join(_OBJECT_KEYS)}")
    key = _key(file, path)
    if KINDS[key[0]] in _OURS:
        _strict(file, (*path, "merge"), KINDS[key[0]])
    return Merge(key, part["merge"])


def _holds(_file: File, _path: Path) -> Holds:
    return Holds()


_ACTIONS: Final[Mapping[str, Callable[[File, Path], Action]]] = {
    "order": _order,
    "delete": _delete,
    "now": _clock,
    "set": _merge,
    "holds": _holds,
}


def _key(file: File, path: Path, default: str = "") -> Key:
    part = file.at(path)
    kind = file.typed((*path, "kind"), str) if "kind" in part else default
    if kind not in KINDS:
        raise file.fault((*path, "kind"), f"unknown kind {kind}; known are {', '.join(KINDS)}")
    name = file.typed((*path, "name"), str)
    namespace = file.typed((*path, "namespace"), str) if "namespace" in part else ""
    if (kind in _CLUSTER_SCOPED) is bool(namespace):
        raise file.fault(path, f"a {kind} has no namespace" if namespace else "namespace is missing")
    return (kind, namespace, name)


def _expectations(file: File, path: Path, expect: Mapping[str, Any]) -> None:
    if "verdict" in expect and expect["verdict"] not in ("admitted", "refused"):
        raise file.fault((*path, "verdict"), f"must be admitted or refused, is {expect['verdict']}")
    if "reason" in expect:
        file.typed((*path, "reason"), str)
    if "node" in expect and not isinstance(expect["node"], str):
        file.typed((*path, "node"), list[str])
    if "moves" in expect:
        file.typed((*path, "moves"), list[str])


def _moment(file: File, path: Path) -> dt.datetime:
    moment = file.typed(path, dt.datetime)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


def field_of(path: Path) -> str:
    """The field as people write it: steps[0].order.count."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def _steps_of(inner: str) -> Path:
    """Msgspec's path, without its $: `.spec.devices[0]`; `[...]` is some value of a mapping."""
    found = re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", inner)
    return tuple(word or int(index) for word, index in found)


def _type(value: object) -> str:
    if value is None:
        return "nothing"
    return {dict: "a mapping", list: "a list", str: "text", int: "a number", bool: "true or false"}.get(
        type(value), type(value).__name__
    )
