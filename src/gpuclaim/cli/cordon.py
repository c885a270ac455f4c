"""`kubectl gpu cordon`, `uncordon`, `exclude` and `include` (R13, R75)."""

from __future__ import annotations

import click
import msgspec

from gpuclaim.api.types import GPUNode
from gpuclaim.cli import complete, desk
from gpuclaim.cli.desk import Desk
from gpuclaim.kube.blocking import AnswerError, Object
from gpuclaim.views import text

_CONFLICT = 409
_TRIES = 5


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NODE...", shell_complete=complete.objects("gpunodes"))
@desk.cluster(namespaced=False)
def cordon(at: Desk, names: tuple[str, ...]) -> None:
    """Take nodes out of new placement; what they hold stays held."""
    _set(at, names, cordoned=True)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NODE...", shell_complete=complete.objects("gpunodes"))
@desk.cluster(namespaced=False)
def uncordon(at: Desk, names: tuple[str, ...]) -> None:
    """Let nodes take new holds again."""
    _set(at, names, cordoned=False)


def _set(at: Desk, names: tuple[str, ...], *, cordoned: bool) -> None:
    for name in names:
        at.client.patch(desk.NODES, name, {"spec": {"cordoned": cordoned}})
        click.echo(f"{desk.full(desk.NODES)}/{name} {'cordoned' if cordoned else 'uncordoned'}")


@click.command()
@click.argument("node", shell_complete=complete.objects("gpunodes"))
@click.argument("address")
@click.option("--reason", default="", help="Why, for people.")
@desk.cluster(namespaced=False)
def exclude(at: Desk, node: str, address: str, reason: str) -> None:
    """Take one GPU, by its PCI address, out of new placement."""
    _change(at, node, address, {"address": address, "reason": reason})
    click.echo(f"{desk.full(desk.NODES)}/{node} {address} excluded")


@click.command()
@click.argument("node", shell_complete=complete.objects("gpunodes"))
@click.argument("address")
@desk.cluster(namespaced=False)
def include(at: Desk, node: str, address: str) -> None:
    """Let a GPU that was excluded be held again."""
    _change(at, node, address, None)
    click.echo(f"{desk.full(desk.NODES)}/{node} {address} included")


def _change(at: Desk, node: str, address: str, entry: Object | None) -> None:
    """Replaces the entry of one address; a merge patch writes the whole list, so only onto the list that was read."""
    for last in range(_TRIES - 1, -1, -1):
        found = at.client.get(desk.NODES, node)
        _check(msgspec.convert(found, GPUNode), address, there=entry is None)
        kept = [each for each in found.get("spec", {}).get("excluded", ()) if each["address"] != address]
        excluded = [*kept, entry] if entry is not None else kept
        version = found["metadata"]["resourceVersion"]
        try:
            at.client.patch(
                desk.NODES, node, {"metadata": {"resourceVersion": version}, "spec": {"excluded": excluded}}
            )
        except AnswerError as error:
            if error.status.code != _CONFLICT or not last:
                raise
        else:
            return


def _check(node: GPUNode, address: str, *, there: bool) -> None:
    known = [each.address for each in (node.spec.excluded if there else node.status.devices)]
    if address not in known:
        what = "excluded" if there else "reported"
        listed = f"these are {what}: {', '.join(known)}" if known else f"none is {what}"
        raise click.ClickException(f"node {node.metadata.name} has no such GPU {text.safe(address)!r}; {listed}")
