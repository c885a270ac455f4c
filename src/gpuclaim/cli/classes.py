"""`kubectl gpu classes` (R75)."""

from __future__ import annotations

import click

from gpuclaim.api.types import GPUClass
from gpuclaim.cli import complete, desk
from gpuclaim.cli.desk import Desk
from gpuclaim.kube.blocking import decoded
from gpuclaim.views import classes as view


@click.command()
@click.argument("names", nargs=-1, metavar="[CLASS]...", shell_complete=complete.objects("gpuclasses"))
@desk.selector
@desk.output
@desk.cluster(namespaced=False)
def classes(at: Desk, names: tuple[str, ...], selector: str, form: str | None) -> None:
    """Show the catalogue: what can be ordered, and whether there is any of it."""
    found = desk.fetch(at, desk.CLASSES, names, selector)
    if not found["items"] and form in {None, "wide"}:
        desk.note("The catalogue is empty: no GPUClass has been published.")
        return
    rows = view.rows(decoded(GPUClass, found["items"]), wide=form == "wide")
    desk.show(found, form, desk.CLASSES, names, view.HEADER, rows)
