"""`kubectl gpu nodes` (R75)."""

from __future__ import annotations

import click

from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.cli import complete, desk
from gpuclaim.cli.desk import Desk
from gpuclaim.kube.blocking import decoded
from gpuclaim.views import nodes as view


@click.command()
@click.argument("names", nargs=-1, metavar="[NODE]...", shell_complete=complete.objects("gpunodes"))
@desk.selector
@desk.output
@desk.cluster(namespaced=False)
def nodes(at: Desk, names: tuple[str, ...], selector: str, form: str | None) -> None:
    """Show every node's GPUs, a letter each: what is free, held, used, broken or taken out.

    Kubelet chooses the device when a pod starts: of what is held without a VM the number is true, and not the place.
    """
    found = desk.fetch(at, desk.NODES, names, selector)
    if form in {"json", "yaml", "name"}:
        desk.show(found, form, desk.NODES, names, (), ())
    elif not found["items"]:
        desk.note("No GPUNode found: no agent has reported yet.")
    else:
        resources = view.resources_of(at.client.objects(GPUClass))
        drawn = view.drawn(decoded(GPUNode, found["items"]), at.client.objects(GPUClaim), resources)
        desk.show_table(view.HEADER, view.rows(drawn))
        desk.note(view.LEGEND)
