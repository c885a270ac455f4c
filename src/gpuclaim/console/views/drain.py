"""What a drain of a node would do: the state that placement plans on, and its answer in words (R36, R74)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from gpuclaim.api import core, model, names
from gpuclaim.api.types import GPUClaim, GPUNode
from gpuclaim.console.views.tenant import Said
from gpuclaim.placement.books import Known
from gpuclaim.placement.drain import drain
from gpuclaim.placement.scenario import Scenario, Simulation


@dataclass(frozen=True, slots=True)
class LeavingRow:
    """A set on the node: where it would go, or why it stays."""

    set_name: str
    gpus: int
    goes: Said
    message: str


def plan(state: Iterable[Known], node: str, now: dt.datetime) -> list[LeavingRow] | None:
    """As `gpuclaim plan --drain` has it; None where there is no such node."""
    listed = list(state)
    simulation = Simulation(Scenario(now=now, state=[(obj, 0, "") for obj in [*listed, *unseen(listed)]]))
    if node not in simulation.books.nodes:
        return None
    return [
        LeavingRow(
            set_name=f"{leaving.namespace}/{leaving.set_name}",
            gpus=leaving.gpus,
            goes=Said(f"to {leaving.verdict.node}", "green") if leaving.verdict.node else Said("stays", "yellow"),
            message=leaving.verdict.message,
        )
        for leaving in drain(simulation.books, node, now)
    ]


def unseen(state: Iterable[Known]) -> list[core.Pod]:
    """Pods that the state lacks, from what claims and agents say of them: a hoster need not read pods to plan.

    Of a claim's pod only that it lives is told. What pods without a claim use of a function is shared out among them
    evenly, the first taking the rest.
    """
    listed = list(state)
    known = {(each.metadata.namespace, each.metadata.name) for each in listed if isinstance(each, core.Pod)}
    found: dict[tuple[str, str], core.Pod] = {}
    for claim in listed:
        attachment = claim.status.attachment if isinstance(claim, GPUClaim) else None
        if isinstance(claim, GPUClaim) and attachment is not None:
            key = (claim.metadata.namespace, attachment.pod_name)
            labels = {names.SET_LABEL: model.claim_set(claim)}
            found[key] = _pod(key, claim.status.node_name or "", labels, {}, attachment.pod_uid)
    asked: dict[tuple[str, str], dict[str, int]] = {}
    where: dict[tuple[str, str], str] = {}
    for report in listed:
        for device in report.status.devices if isinstance(report, GPUNode) else ():
            users = [(user.namespace, user.name) for user in device.users]
            for resource in device.resources:
                for index, key in enumerate(users):
                    share = resource.used // len(users) + (resource.used % len(users) if index == 0 else 0)
                    mine = asked.setdefault(key, {})
                    mine[resource.name] = mine.get(resource.name, 0) + share
                    where[key] = report.metadata.name
    for key, requests in asked.items():
        if key not in found:
            found[key] = _pod(key, where[key], {}, {name: count for name, count in requests.items() if count}, "")
    return [pod for key, pod in found.items() if key not in known]


def _pod(key: tuple[str, str], node: str, labels: dict[str, str], requests: dict[str, int], uid: str) -> core.Pod:
    limits: dict[str, str | int] = dict(requests.items())
    return core.Pod(
        metadata=core.ObjectMeta(namespace=key[0], name=key[1], uid=uid or f"{key[0]}/{key[1]}", labels=labels),
        spec=core.PodSpec(
            node_name=node, containers=[core.Container(resources=core.ResourceRequirements(limits=limits))]
        ),
        status=core.PodStatus(phase="Running"),
    )
