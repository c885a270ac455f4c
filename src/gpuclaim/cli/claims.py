"""`kubectl gpu claims` (R75)."""

from __future__ import annotations

import click

from gpuclaim.api.types import GPUClaim
from gpuclaim.cli import complete, desk
from gpuclaim.cli.desk import Desk
from gpuclaim.kube.blocking import decoded
from gpuclaim.views import claims as view


@click.command()
@click.argument("names", nargs=-1, metavar="[CLAIM]...", shell_complete=complete.objects("gpuclaims"))
@desk.selector
@desk.output
@desk.cluster(everywhere=True)
def claims(at: Desk, names: tuple[str, ...], selector: str, form: str | None) -> None:
    """Show what is ordered, what it holds and whether a VM uses it."""
    found = desk.fetch(at, desk.CLAIMS, names, selector)
    if not found["items"] and form in {None, "wide"}:
        desk.nothing(at, "claims")
        return
    wide = form == "wide"
    rows = view.rows(decoded(GPUClaim, found["items"]), desk.now(), namespaces=at.everywhere, wide=wide)
    desk.show(found, form, desk.CLAIMS, names, view.HEADER, rows)
