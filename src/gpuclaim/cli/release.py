"""`kubectl gpu release` (R75)."""

from __future__ import annotations

import sys

import click
import msgspec

from gpuclaim.api.types import GPUClaim
from gpuclaim.cli import complete, desk
from gpuclaim.cli.desk import Desk
from gpuclaim.views import claims as view


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="CLAIM...", shell_complete=complete.objects("gpuclaims"))
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--wait", is_flag=True, help="Return once the GPUs are free for others.")
@click.option(
    "--timeout", type=desk.Seconds(), default="1m", show_default=True, help="How long --wait waits: 30s, 5m, 1h."
)
@desk.cluster()
def release(at: Desk, names: tuple[str, ...], timeout: float, *, yes: bool, wait: bool) -> None:
    """Give GPUs back: delete claims, after asking.

    A claim whose VM runs goes when the VM has ended, and holds its GPUs until then.
    """
    found = desk.fetch(at, desk.CLAIMS, names)
    claims = [msgspec.convert(item, GPUClaim) for item in found["items"]]
    if not yes:
        for claim in claims:
            click.echo(view.what(claim))
        if not sys.stdin.isatty():
            raise click.ClickException("nobody can be asked here: say -y to release without a question")
        many = "them" if len(claims) > 1 else "it"
        if not click.confirm(f"Release {many}? Others may take the GPUs at once"):
            click.echo("Nothing was released.")
            raise click.exceptions.Exit(1)
    for claim in claims:
        # The one that was shown, not another that has taken its name meanwhile.
        at.client.delete(desk.CLAIMS, claim.metadata.name, at.namespace, uid=claim.metadata.uid)
    for claim in claims:
        if wait and not _gone(at, claim, timeout):
            raise click.ClickException(
                f"claim {claim.metadata.name} still holds its GPUs after {timeout:g} s: it goes when its VM has ended"
            )
        click.echo(f"{desk.full(desk.CLAIMS)}/{claim.metadata.name} {'released' if wait else 'is being released'}")


def _gone(at: Desk, claim: GPUClaim, timeout: float) -> bool:
    changes = at.client.follow(desk.CLAIMS, at.namespace, claim.metadata.name, timeout)
    return any(obj is None or obj["metadata"]["uid"] != claim.metadata.uid for _, obj in changes)
