"""The story of gpuclaim, played on a running cloud: real commands, real answers, each outcome checked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from gpuclaim.admission import guard
from gpuclaim.api import core, model, names
from gpuclaim.api.reasons import ClaimCondition, Refusal
from gpuclaim.api.types import GPUClaim
from gpuclaim.kube.resources import resource_of
from gpuclaim.local import cloud, offers
from gpuclaim.local.cloud import BUDGET, TENANTS, Cloud

T = TypeVar("T", bound=msgspec.Struct)
Found = TypeVar("Found")

_WIDTH: Final = 80
_PATIENCE: Final = 60.0
_NAME: Final = "train"  # of the claim and the VM in examples/
_ALICE, _BOB = TENANTS
_PODS: Final = "custom-columns=POD:metadata.name,NODE:spec.nodeName,PHASE:status.phase"

_POD: Final = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: grab, namespace: {_BOB}}}
spec:
  containers:
  - name: main
    image: busybox
    resources: {{limits: {{{offers.H200.resource}: 1}}}}
"""


class TourError(Exception):
    """The story did not go as told; the message says where."""


async def play(stands: Cloud, say: Callable[[str], None], *, pause: bool = False) -> None:
    """Play the story and clean up after it.

    Args:
        stands: a cloud that nobody has ordered from yet.
        say: prints lines.
        pause: whether to wait for Enter before each step; standard input must be a terminal.

    Raises:
        TourError: an outcome was another than the one told.
    """
    await _Tour(stands, say, pause=pause).play()


class _Tour:
    def __init__(self, stands: Cloud, say: Callable[[str], None], *, pause: bool) -> None:
        self._cloud = stands
        self._say = say
        self._pause = pause
        self._step = 0

    async def play(self) -> None:
        await self._catalogue()
        node = await self._order()
        await self._refusal()
        await self._budget()
        await self._start(node)
        await self._switch_off(node)
        await self._last_gpu()
        await self._start_again(node)
        await self._release()
        self._say("\nThat was the tour: all of it went as told.\n")

    # --- the story ------------------------------------------------------------------------------------------------

    async def _catalogue(self) -> None:
        await self._tell("The catalogue: what the hoster offers, and tenants order from.")
        answer = await self._kubectl("get", "gpuclasses")
        _check("h200" in answer and "a16" in answer, "the catalogue does not list h200 and a16")

    async def _order(self) -> str:
        await self._tell(
            "Tenant A orders one H200. There is no pod yet, no VM: the order itself is bound to a node at once, and"
            " holds its GPU there."
        )
        began = time.monotonic()
        await self._kubectl("create", "-n", _ALICE, "-f", self._example("order.yaml"))
        claim = await self._claim(_ALICE, lambda claim: claim.status.node_name is not None, "is bound to a node")
        took = time.monotonic() - began
        await self._kubectl("get", "gpuclaims", "-n", _ALICE)
        _check(not await self._launchers(), "a pod exists before any VM does")
        node = claim.status.node_name or ""
        self._note(f"Bound to {node}; from the command to the node's name it took {took * 1000:.0f} ms.")
        return node

    async def _refusal(self) -> None:
        most = max(plan.orderable for plan in self._h200())
        await self._tell(
            f"No node has the {most + 1} H200 that tenant B asks for. Kubernetes would take such a pod and leave it"
            " Pending; an order is refused when it is made, with the reason and with what would fit."
        )
        answer = await self._kubectl("create", "-f", "-", given=_claims([("big", most + 1)], _BOB), refused=True)
        _check(Refusal.INSUFFICIENT_CAPACITY in answer, "the order is not refused for want of capacity")

    async def _budget(self) -> None:
        await self._tell(
            f"Tenant A's budget is {BUDGET} H200: a ResourceQuota, as for anything else in Kubernetes. {BUDGET} more"
            " would be one too many."
        )
        answer = await self._kubectl("create", "-f", "-", given=_claims([("more", BUDGET)], _ALICE), refused=True)
        _check(Refusal.OVER_BUDGET in answer, "the order is not refused for want of budget")

    async def _start(self, node: str) -> None:
        await self._tell("Tenant A starts a VM of the order's name. Its launcher pod is sent to the node of the hold.")
        await self._kubectl("create", "-n", _ALICE, "-f", self._example("vm.yaml"))
        await self._runs_on(node)
        claim = await self._claim(_ALICE, _is_attached, "is attached to the VM's pod")
        _check(_is(claim, ClaimCondition.HEALTHY), "the claim of a VM that runs on a node that is well reads unhealthy")
        await self._kubectl("get", "gpuclaims", "-n", _ALICE)

    async def _switch_off(self, node: str) -> None:
        await self._tell("The VM is switched off for the night. Its pod is gone; the hold stays.")
        await self._switch("Halted")
        await self._pods_until(lambda pods: not pods, "the launcher pod ends")
        claim = await self._claim(_ALICE, lambda claim: not _is_attached(claim), "is no longer attached")
        _check(claim.status.node_name == node, f"the hold did not stay on {node}")
        await self._kubectl("get", "vm", "-n", _ALICE)
        await self._kubectl("get", "gpuclaims", "-n", _ALICE)

    async def _last_gpu(self) -> None:
        await self._tell(
            "Meanwhile tenant B orders every other H200 of the cloud, and then wants one more: the one that tenant A's"
            " VM does not use right now. To plain Kubernetes it would be free."
        )
        rest = await self._free()
        orders = [(f"rest-{number}", count) for number, count in enumerate(rest, 1)]
        if orders:
            await self._kubectl("create", "-f", "-", given=_claims(orders, _BOB))
            await self._kubectl("get", "gpuclaims", "-n", _BOB)
        answer = await self._kubectl("create", "-f", "-", given=_claims([("one-more", 1)], _BOB), refused=True)
        _check(Refusal.INSUFFICIENT_CAPACITY in answer, "tenant B's order is not refused for want of capacity")
        await self._tell("Nor can tenant B take it past all orders, by a pod that simply asks for it.")
        answer = await self._kubectl("create", "-f", "-", given=_POD, refused=True)
        _check(guard.KNOWN in answer, "a pod without an order is not refused for that")

    async def _start_again(self, node: str) -> None:
        await self._tell("In the morning tenant A's VM comes back: on the same node, with its GPU.")
        await self._switch("Always")
        await self._runs_on(node)

    async def _release(self) -> None:
        await self._tell("Tenant A is done, and gives the GPU back. Now tenant B's order is taken.")
        await self._kubectl("delete", "vm", _NAME, "-n", _ALICE)
        await self._kubectl("delete", "gpuclaim", _NAME, "-n", _ALICE)
        await self._kubectl("create", "-f", "-", given=_claims([("one-more", 1)], _BOB))
        await self._kubectl("delete", "gpuclaims", "--all", "-n", _BOB)

    # --- what it is made of -----------------------------------------------------------------------------------------

    async def _switch(self, strategy: str) -> None:
        patch = json.dumps({"spec": {"runStrategy": strategy}}, separators=(",", ":"))
        await self._kubectl("patch", "vm", _NAME, "-n", _ALICE, "--type=merge", "-p", patch)

    async def _runs_on(self, node: str) -> None:
        pods = await self._pods_until(
            lambda pods: any(pod.status.phase == "Running" for pod in pods), "the launcher pod runs"
        )
        await self._kubectl("get", "pods", "-n", _ALICE, "-o", _PODS)
        where = {pod.spec.node_name for pod in pods if model.is_live(pod)}
        _check(where == {node}, f"the launcher pod runs on {', '.join(sorted(where))}, the hold is on {node}")

    def _h200(self) -> list[offers.NodePlan]:
        return [plan for plan in self._cloud.plans if plan.offer is offers.H200]

    async def _free(self) -> list[int]:
        """How many H200 each node has that nobody holds, the most first; nodes without are left out."""
        claims, _ = await self._cloud.client.list(GPUClaim)
        held = {plan.name: 0 for plan in self._h200()}
        for claim in claims:
            if claim.status.node_name in held:
                held[claim.status.node_name] += claim.spec.count
        return sorted(filter(None, (plan.orderable - held[plan.name] for plan in self._h200())), reverse=True)

    async def _launchers(self) -> list[core.Pod]:
        pods, _ = await self._cloud.client.list(core.Pod, _ALICE, label_selector=f"{names.VM_NAME_LABEL}={_NAME}")
        return pods

    async def _claim(self, namespace: str, holds: Callable[[GPUClaim], object], what: str) -> GPUClaim:
        """Tenant A's claim, once `holds` is true of it."""

        def look(claims: Sequence[GPUClaim]) -> GPUClaim | None:
            return next((claim for claim in claims if claim.metadata.name == _NAME and holds(claim)), None)

        return await self._until(GPUClaim, namespace, look, f"claim {_NAME} {what}")

    async def _pods_until(self, holds: Callable[[Sequence[core.Pod]], object], what: str) -> Sequence[core.Pod]:
        def look(pods: Sequence[core.Pod]) -> Sequence[core.Pod] | None:
            mine = [pod for pod in pods if pod.metadata.labels.get(names.VM_NAME_LABEL) == _NAME]
            return mine if holds(mine) else None

        return await self._until(core.Pod, _ALICE, look, what)

    async def _until(
        self, type_: type[T], namespace: str, look: Callable[[Sequence[T]], Found | None], what: str
    ) -> Found:
        """What `look` answers first that is not None, of all objects of a kind; watched, not polled."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while True:
                    listed, version = await self._cloud.client.list(type_, namespace)
                    if (found := look(listed)) is not None:
                        return found
                    changes = self._cloud.client.watch(resource_of(type_), namespace, since=version)
                    async with contextlib.aclosing(changes):
                        await anext(changes, None)
        except TimeoutError:
            raise TourError(f"The tour ends here: it has waited {_PATIENCE:.0f} s until {what}.") from None

    async def _tell(self, sentence: str) -> None:
        self._step += 1
        if self._pause and self._step > 1:
            await _enter()
        self._say("\n" + textwrap.fill(f"{self._step}. {sentence}", _WIDTH, subsequent_indent="   ") + "\n")

    def _note(self, sentence: str) -> None:
        text = textwrap.fill(
            sentence,
            _WIDTH,
            initial_indent="   ",
            subsequent_indent="   ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        self._say(text)

    def _example(self, name: str) -> str:
        return str(self._cloud.examples / name)

    async def _kubectl(self, *arguments: str, given: str = "", refused: bool = False) -> str:
        """Run kubectl, showing command and answer.

        Args:
            arguments: kubectl's.
            given: its standard input, shown as a here-document.
            refused: whether the apiserver must refuse.

        Raises:
            TourError: it does not end as it must.
        """
        files = {str(each): cloud.shown(each) for each in self._cloud.examples.iterdir()}
        shown = " ".join(files.get(each) or _quoted(each) for each in arguments)
        here = f" <<EOF\n{textwrap.indent(given, '     ')}     EOF" if given else ""
        lines = textwrap.wrap(
            f"$ kubectl {shown}",
            _WIDTH - 2,
            initial_indent="   ",
            subsequent_indent="       ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        self._say(" \\\n".join(lines) + here)
        process = await asyncio.create_subprocess_exec(
            self._cloud.kubectl,
            f"--kubeconfig={self._cloud.control_plane.kubeconfig}",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            printed, _ = await process.communicate(given.encode())
        finally:
            if process.returncode is None:
                process.kill()
        answer = printed.decode(errors="replace")
        for line in answer.splitlines():
            # A sentence is folded, a table's row is not.
            if len(line) > _WIDTH - 3 and "   " not in line:
                self._note(line)
            else:
                self._say(f"   {line}".rstrip())
        if bool(process.returncode) != refused:
            raise TourError(f"The tour ends here: 'kubectl {shown}' was to be {'refused' if refused else 'taken'}.")
        return answer


def _is(claim: GPUClaim, condition: ClaimCondition) -> bool:
    found = model.condition(claim.status.conditions, condition)
    return found is not None and found.status is core.Status.TRUE


def _is_attached(claim: GPUClaim) -> bool:
    return _is(claim, ClaimCondition.ATTACHED)


def _claims(orders: Sequence[tuple[str, int]], namespace: str) -> str:
    """A YAML stream of orders of h200, (name, count) each."""
    each = (
        f"apiVersion: {names.API_VERSION}\n"
        "kind: GPUClaim\n"
        "metadata: {{name: {}, namespace: {}}}\n"
        "spec: {{className: h200, count: {}}}\n"
    )
    return "---\n".join(each.format(name, namespace, count) for name, count in orders)


def _check(holds: object, otherwise: str) -> None:
    if not holds:
        raise TourError(f"The tour ends here: {otherwise}.")


def _quoted(argument: str) -> str:
    return f"'{argument}'" if set(argument) & set(' {}"$') else argument


async def _enter() -> None:
    """Wait for Enter on the terminal."""
    sys.stdout.write("\n   Enter goes on. ")
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    pressed = asyncio.Event()
    descriptor = sys.stdin.fileno()
    loop.add_reader(descriptor, pressed.set)
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(descriptor)
    os.read(descriptor, 4096)
