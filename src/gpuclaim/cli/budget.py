"""`kubectl gpu budget` (R75)."""

from __future__ import annotations

import click
import msgspec

from gpuclaim.api import core
from gpuclaim.cli import desk
from gpuclaim.cli.desk import Desk
from gpuclaim.kube.blocking import AnswerError, Object, decoded
from gpuclaim.kube.resources import resource_of
from gpuclaim.views import budget as view
from gpuclaim.views import text

_QUOTAS = resource_of(core.ResourceQuota)
_NAMESPACES = resource_of(core.Namespace)
_FORBIDDEN = 403


@click.command()
@click.option(
    "--ancestor-label-prefix",
    default="tenant.cozystack.io/",
    show_default=True,
    help="Namespace labels that name the tenants around a tenant begin with this; as the controller has it.",
)
@desk.output
@desk.cluster(everywhere=True)
def budget(at: Desk, ancestor_label_prefix: str, form: str | None) -> None:
    """Show how much may be ordered, and how much of it is used: own budgets and inherited ones.

    Every row binds: an order must fit into all of them.
    """
    listed = at.client.list(_QUOTAS, at.namespace)
    items: list[Object] = listed["items"]
    for ancestor in [] if at.everywhere else _ancestors(at, ancestor_label_prefix):
        try:
            items += at.client.list(_QUOTAS, ancestor)["items"]
        except AnswerError as error:
            if error.status.code != _FORBIDDEN:
                raise
            desk.note(f"The budget of {text.safe(ancestor)} binds too, and you may not read it.")
    bind = {quota.metadata.uid for quota in view.binding(decoded(core.ResourceQuota, items))}
    found = listed | {"items": [item for item in items if item["metadata"].get("uid", "") in bind]}
    if not found["items"] and form in {None, "wide"}:
        place = "any namespace" if at.everywhere else f"namespace {at.namespace}"
        desk.note(f"No budget binds {place}: orders are limited by what there is.")
        return
    desk.show(
        found, form, _QUOTAS, (), view.HEADER, view.rows(decoded(core.ResourceQuota, found["items"]), at.namespace)
    )


def _ancestors(at: Desk, prefix: str) -> list[str]:
    try:
        namespace = msgspec.convert(at.client.get(_NAMESPACES, at.namespace), core.Namespace)
    except AnswerError as error:
        if error.status.code != _FORBIDDEN:
            raise
        desk.note(f"You may not read namespace {at.namespace}, which says whose budgets bind it beside its own.")
        return []
    return view.ancestors(namespace, prefix)
