"""`kubectl gpu order` (R75)."""

from __future__ import annotations

import click
import msgspec

from gpuclaim.api import names as shapes
from gpuclaim.api.types import GPUClaim
from gpuclaim.cli import complete, desk
from gpuclaim.cli.desk import Desk
from gpuclaim.kube.blocking import Object
from gpuclaim.views import claims, text


@click.command()
@click.argument("class_name", metavar="CLASS", shell_complete=complete.objects("gpuclasses"))
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many GPUs.")
@click.option("--name", help="The claim's name; a VM of this name uses it. By default one made from the class's.")
@click.option("--set", "set_name", metavar="SET", help="The VM that uses it together with other claims of this set.")
@click.option("--dry-run", is_flag=True, help="Only say whether it would fit, and if not why (exit code 1).")
@click.option("--wait", is_flag=True, help="Return once the GPUs are held.")
@click.option(
    "--timeout", type=desk.Seconds(), default="1m", show_default=True, help="How long --wait waits: 30s, 5m, 1h."
)
@desk.output
@desk.cluster()
def order(
    at: Desk,
    class_name: str,
    count: int,
    name: str | None,
    set_name: str | None,
    form: str | None,
    timeout: float,
    *,
    dry_run: bool,
    wait: bool,
) -> None:
    """Order GPUs of a class: they are held, VM on or off, until the claim is released.

    An order that does not fit is refused, with the reason and exit code 1.
    """
    spec: Object = {"className": class_name, "count": count} | ({"set": set_name} if set_name else {})
    metadata = {"name": name} if name else {"generateName": f"{class_name[:50]}-"}
    body: Object = {
        "apiVersion": shapes.API_VERSION,
        "kind": "GPUClaim",
        "metadata": metadata | {"namespace": at.namespace},
        "spec": spec,
    }
    made = at.client.create(desk.CLAIMS, body, at.namespace, dry_run=dry_run)
    asked = f"{text.gpus(count)} of class {text.safe(class_name)}"
    if dry_run:
        if form in {"json", "yaml", "name"}:
            _show(made, form)
        else:
            click.echo(f"It would fit: {asked} could be held now. Nothing was ordered.")
        return
    claim_name = str(made["metadata"]["name"])
    if wait:
        made = _wait(at, claim_name, timeout)
    if form in {"json", "yaml", "name"}:
        _show(made, form)
    else:
        click.echo(f"{desk.full(desk.CLAIMS)}/{claim_name} {'holds' if wait else 'ordered:'} {asked}")


def _show(made: Object, form: str) -> None:
    if form == "name":
        click.echo(f"{desk.full(desk.CLAIMS)}/{made['metadata']['name']}")
    else:
        desk.dump(made, form)


def _wait(at: Desk, name: str, timeout: float) -> Object:
    last: Object | None = None
    for _, last in at.client.follow(desk.CLAIMS, at.namespace, name, timeout):
        if last is None:
            raise click.ClickException(f"claim {name} was deleted before it held its GPUs")
        if last.get("status", {}).get("nodeName"):
            return last
    why = claims.why(msgspec.convert(last, GPUClaim)) if last is not None else ""
    reason = f": {text.safe(why)}" if why else ""
    raise click.ClickException(f"claim {name} is stored and does not hold its GPUs after {timeout:g} s{reason}")
