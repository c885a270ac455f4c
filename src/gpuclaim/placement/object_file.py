"""Kubernetes objects as kubectl prints them, and orders as one hands them to it: YAML text to values (R74)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, Final

from gpuclaim.api.types import GPUClaim, GPUNode
from gpuclaim.placement.scenario import KINDS, NewOrder, Scenario, ScenarioError, Step
from gpuclaim.placement.scenario_file import File, Path, field_of, known

_DEFAULT_NAME: Final = "order"


def dump(text: str, now: dt.datetime) -> Scenario:
    """The state that `kubectl get … -A -o yaml` printed; kinds that placement does not read are passed over.

    The time is that of the newest report in it, else `now`: no agent is silent because the dump is read an hour later.

    Raises:
        ScenarioError: it is no YAML, or an object has a value of a wrong type or shape; or there is none to read.
    """
    file = File(text, several=True)
    paths = [path for path in _objects(file, file.data, ()) if str(file.at(path).get("kind")) in KINDS]
    if not paths:
        raise ScenarioError(1, "", f"there is no object of a kind that matters here: {', '.join(KINDS)}")
    state = [(known(file, path, strict=False), file.line(path), field_of(path)) for path in paths]
    reported = [obj.status.reported_at for obj, _, _ in state if isinstance(obj, GPUNode) and obj.status.reported_at]
    return Scenario(now=max(reported, default=now), state=state)


def orders(text: str, namespace: str) -> list[Step]:
    """GPUClaims as `kubectl create -f` takes them, as orders in `namespace` where they name none.

    Raises:
        ScenarioError: it is no YAML, or something in it is no GPUClaim.
    """
    file = File(text, several=True)
    return [_order(file, path, namespace, number) for number, path in enumerate(_objects(file, file.data, ()), 1)]


def _order(file: File, path: Path, namespace: str, number: int) -> Step:
    kind = file.at(path).get("kind")
    if kind != "GPUClaim":
        raise file.fault((*path, "kind"), f"an order is a GPUClaim, and this is {kind or 'nothing'}")
    claim = file.typed(path, GPUClaim)
    meta, spec = claim.metadata, claim.spec
    name = meta.name or f"{meta.generate_name or _DEFAULT_NAME + '-'}{number}"
    order = NewOrder(meta.namespace or namespace, name, spec.class_name, spec.count, spec.set)
    return Step(order, file.line(path), field_of(path))


def _objects(file: File, part: Any, path: Path) -> Iterator[Path]:  # noqa: ANN401 - any YAML
    """Where the objects stand: alone, in a list, in a List, in several documents."""
    if part is None:
        return
    if isinstance(part, list):
        for index, item in enumerate(part):
            yield from _objects(file, item, (*path, index))
    elif not isinstance(part, dict):
        raise file.fault(path, "expected Kubernetes objects, as kubectl prints them with -o yaml")
    elif str(part.get("kind", "")).endswith("List") and isinstance(part.get("items"), list):
        yield from _objects(file, part["items"], (*path, "items"))
    else:
        yield path
