"""`kubectl gpu doctor` (R75): reads what `views.doctor` judges."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
import textwrap
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import click
import msgspec

from gpuclaim.api import core, names
from gpuclaim.api.core import Outcome
from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.cli import desk
from gpuclaim.cli.desk import Desk
from gpuclaim.kube.blocking import AnswerError, Blocking, Object
from gpuclaim.kube.resources import Lease, Resource
from gpuclaim.views import doctor as view
from gpuclaim.views.doctor import Facts

T = TypeVar("T", bound=msgspec.Struct)
K = TypeVar("K")

_CRDS: Final = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False)
_CONFIGURATIONS: Final = {
    f"{half}WebhookConfiguration": Resource(
        "admissionregistration.k8s.io/v1", f"{half.lower()}webhookconfigurations", namespaced=False
    )
    for half in ("Mutating", "Validating")
}
_GUARD: Final = {
    kind: Resource("admissionregistration.k8s.io/v1", plural, namespaced=False)
    for kind, plural in (
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    )
}
_NAME: Final = "gpuclaim"


@click.command()
@click.option("--lease-name", default="gpuclaim-controller", show_default=True, help="The controller's Lease.")
@click.option("-o", "--output", "form", type=click.Choice(["json"]), help="The findings as JSON.")
@desk.cluster()
def doctor(at: Desk, lease_name: str, form: str | None) -> None:
    """Say what is wrong with the installation, and how to mend it. It changes nothing.

    Exit code 0: all is well; 1: something is wrong; 3: something could not be looked at, and nothing else is wrong.
    """
    reader = _Reader(at.client)
    facts = reader.read(at.namespace, lease_name)
    found = view.findings(facts)
    if form:
        click.echo(json.dumps({"findings": [dataclasses.asdict(each) for each in found], "unread": reader.unread}))
    else:
        for line in _page(facts, reader.unread):
            click.echo(line, color=desk.colours())
    if found or reader.unread:
        raise click.exceptions.Exit(1 if found else 3)


def _page(facts: Facts, unread: list[str]) -> Iterator[str]:
    room = (desk.columns() or 1000) - 1

    def folded(lead: str, text: str) -> str:
        return textwrap.fill(
            text, max(room, 16), initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False
        )

    for well, title, found in view.lines(facts):
        mark = "ok   " if well else "WRONG"
        yield desk.paint(mark, "green" if well else "red") + folded(" " * 6, title)[len(mark) :]
        for each in found:
            yield folded("  - ", each.what)
            yield folded("    mend: ", each.mend)
    for what in unread:
        yield folded("not looked at: ", what)


class _Reader:
    """Reads everything that may be read; what may not be is listed in `unread`."""

    def __init__(self, client: Blocking) -> None:
        self._client = client
        self.unread: list[str] = []

    def read(self, namespace: str, lease_name: str) -> Facts:
        """What the checks need."""
        from gpuclaim.api import crd

        wanted = {definition["metadata"]["name"]: definition for definition in crd.definitions()}
        webhooks = self._named({kind: (resource, _NAME) for kind, resource in _CONFIGURATIONS.items()})
        crds = self._named({name: (_CRDS, name) for name in wanted})
        facts = Facts(now=desk.now(), wanted_crds=wanted, crds=crds, webhooks=webhooks)
        facts.authorities = _authorities(webhooks or {})
        facts.wanted_guard = wanted_guard()
        facts.guard = self._named({key: (_GUARD[key[0]], key[1]) for key in facts.wanted_guard})
        facts.leases = self._list(Lease, fields=f"metadata.name={lease_name}")
        facts.nodes, facts.quotas, facts.pods = (
            self._list(core.Node),
            self._list(core.ResourceQuota),
            self._list(core.Pod),
        )
        if crds is not None and set(crds) < set(wanted):
            return facts  # of what has no API nothing can be asked
        facts.reports, facts.classes, facts.claims = (
            self._list(GPUNode),
            self._list(GPUClass),
            self._list(GPUClaim),
        )
        facts.probe = self._probe(namespace)
        return facts

    def _list(self, type_: type[T], fields: str = "") -> list[T] | None:
        try:
            return self._client.objects(type_, fields=fields)
        except AnswerError as error:
            self._note(f"{type_.__name__} objects", error)
            return None

    def _named(self, wanted: dict[K, tuple[Resource, str]]) -> dict[K, Any] | None:
        found: dict[K, Any] = {}
        for key, (resource, name) in wanted.items():
            try:
                found[key] = self._client.get(resource, name)
            except AnswerError as error:
                if error.status.code != 404:
                    self._note(resource.plural, error)
                    return None
        return found

    def _probe(self, namespace: str) -> Outcome | None:
        """Asks the apiserver itself to call the webhook, as for an order, and stores nothing."""
        body: Object = {
            "apiVersion": names.API_VERSION,
            "kind": "GPUClaim",
            "metadata": {"generateName": "doctor-", "namespace": namespace},
            "spec": {"className": view.PROBE_CLASS},
        }
        try:
            self._client.create(desk.CLAIMS, body, namespace, dry_run=True)
        except AnswerError as error:
            if error.status.reason in {"Forbidden", "NotFound"}:
                self._note(f"whether orders are decided, by one in namespace {namespace}", error)
                return None
            return error.status
        return Outcome(code=201)

    def _note(self, what: str, error: AnswerError) -> None:
        if error.status.code == 401:
            raise error
        self.unread.append(f"{what} ({error.status.reason or error.status.code})")


def wanted_guard() -> dict[tuple[str, str], dict[str, Any]]:
    """The admission policies and bindings of this version, by kind and name, as `Facts` has them."""
    from gpuclaim.admission import guard

    wanted = {(policy["kind"], policy["metadata"]["name"]): policy for policy in guard.policies(())}
    # Which resources it lists is the classes' affair.
    del wanted["ValidatingAdmissionPolicy", guard.KNOWN]["spec"]["matchConditions"]
    return wanted


def _authorities(webhooks: dict[str, Any]) -> dict[str, dt.datetime]:
    """When the authority in each webhook's caBundle ends; of several the last that does."""
    from cryptography import x509

    found = {}
    for configuration in webhooks.values():
        for webhook in configuration.get("webhooks", ()):
            bundle = base64.b64decode(webhook["clientConfig"].get("caBundle", ""))
            if bundle:
                ends = [each.not_valid_after_utc for each in x509.load_pem_x509_certificates(bundle)]
                found[str(webhook["name"])] = max(ends)
    return found
