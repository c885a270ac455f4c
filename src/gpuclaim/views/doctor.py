"""What is wrong with an installation, and how to mend it: findings from what was read. Pure."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpuclaim.api import core, model, names
from gpuclaim.api.core import Outcome
from gpuclaim.api.reasons import NodeConditionType, Refusal
from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.kube.resources import Lease
from gpuclaim.views.text import age, safe

SILENT_AFTER: Final = dt.timedelta(minutes=15)
PROBE_CLASS: Final = "gpuclaim-doctor"
"""The dry-run order that asks whether orders are decided is of this class, which does not exist."""
_SOON: Final = dt.timedelta(days=7)
_PREFIX: Final = f"{names.GROUP}/"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault: what is wrong, and what mends it."""

    check: str
    what: str
    mend: str


@dataclass(kw_only=True)
class Facts:
    """What was read. None: it could not be read, and what depends on it is not judged.

    Attributes:
        crds: stored CustomResourceDefinitions by name; those that are absent are not there.
        webhooks: the configurations named `gpuclaim`, by kind.
        wanted_guard, guard: the admission policies and bindings of this version, and those that are stored, by kind and
            name; of the policy that lists resources the wanted one has no matchConditions.
        authorities: when the authority ends that each webhook is trusted by, by webhook name.
        probe: how the apiserver answered a dry-run order of a class that does not exist; code 201 where it took it.
        leases: the controller's Leases.
    """

    now: dt.datetime
    wanted_crds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    crds: Mapping[str, Mapping[str, Any]] | None = None
    webhooks: Mapping[str, Mapping[str, Any]] | None = None
    wanted_guard: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    guard: Mapping[tuple[str, str], Mapping[str, Any]] | None = None
    authorities: Mapping[str, dt.datetime] = field(default_factory=dict)
    probe: Outcome | None = None
    leases: list[Lease] | None = None
    nodes: list[core.Node] | None = None
    reports: list[GPUNode] | None = None
    classes: list[GPUClass] | None = None
    claims: list[GPUClaim] | None = None
    quotas: list[core.ResourceQuota] | None = None
    pods: list[core.Pod] | None = None


def findings(facts: Facts) -> list[Finding]:
    """Everything that is wrong, what others follow from first."""
    return [found for _, check in CHECKS for found in check(facts)]


def _crds(facts: Facts) -> Iterator[Finding]:
    mend = "gpuclaim crds | kubectl apply --server-side -f -"
    for name, wanted in facts.wanted_crds.items() if facts.crds is not None else ():
        stored = (facts.crds or {}).get(name)
        if stored is None:
            yield Finding("crds", f"the CRD {name} is not installed", mend)
        elif missing := sorted(_fields(_schema(wanted)) - _fields(_schema(stored))):
            yield Finding("crds", f"the CRD {name} is old: it lacks {', '.join(missing[:3])}", mend)


def _schema(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    versions = definition.get("spec", {}).get("versions", ())
    ours: Mapping[str, Any] = next((version for version in versions if version.get("name") == names.VERSION), {})
    return dict(ours.get("schema", {}).get("openAPIV3Schema", {}))


def _fields(schema: Mapping[str, Any], path: str = "") -> set[str]:
    found = set()
    for name, inner in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        found |= {here} | _fields(inner, here)
    return found | (_fields(schema["items"], f"{path}[]") if "items" in schema else set())


def _webhooks(facts: Facts) -> Iterator[Finding]:
    if facts.webhooks is not None:
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            if kind not in facts.webhooks:
                yield Finding(
                    "webhooks",
                    f"there is no {kind} named gpuclaim: orders are not decided, pods are not pinned",
                    "start the controller: it writes the configurations when it leads",
                )
    for name, end in facts.authorities.items():
        if end <= facts.now + _SOON:
            said = f"expired {age(end, facts.now)} ago" if end <= facts.now else f"expires on {end:%Y-%m-%d}"
            yield Finding(
                "webhooks",
                f"the certificate authority of webhook {name} {said}",
                "restart the controllers one after the other: each makes a certificate when it starts",
            )


def _guard(facts: Facts) -> Iterator[Finding]:
    if facts.guard is None:
        return
    write = "start the controller, or restart it: it writes the guard when it leads"
    for (kind, name), wanted in facts.wanted_guard.items():
        stored = facts.guard.get((kind, name))
        if stored is None:
            yield Finding("guard", f"there is no {kind} {name}: pods may take GPUs without a claim", write)
            continue
        spec, found = wanted["spec"], stored.get("spec", {})
        policy, has = spec.get("failurePolicy"), found.get("failurePolicy")
        other = sorted(key for key in spec if key != "failurePolicy" and not _within(spec[key], found.get(key)))
        if policy is not None and policy != has:
            yield Finding("guard", f"the {kind} {name} has failurePolicy {has}, and must have {policy}", write)
        if other:
            what = f"the {kind} {name} is not this version's: it differs in spec.{', spec.'.join(other)}"
            yield Finding("guard", what, write)
    for cls in facts.classes or ():
        resource = model.resource_name(cls)
        if names.GUARDED_LABEL in cls.metadata.labels and not any(
            f"'{resource}'" in condition.get("expression", "")
            for policy in facts.guard.values()
            for condition in policy.get("spec", {}).get("matchConditions", ())
        ):
            yield Finding("guard", f"the guard does not look at {resource}, the resource of {cls.metadata.name}", write)


def _within(wanted: object, stored: object) -> bool:
    """Whether what is stored is what is wanted, with the apiserver's defaults besides."""
    if isinstance(wanted, Mapping):
        return isinstance(stored, Mapping) and all(_within(value, stored.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(stored, list) and len(stored) == len(wanted)
        return same and all(map(_within, wanted, stored if isinstance(stored, list) else ()))
    return wanted == stored


def _orders(facts: Facts) -> Iterator[Finding]:
    probe = facts.probe
    if probe is None or probe.reason == Refusal.UNKNOWN_CLASS:
        return
    if probe.code < 300:
        what = "an order of a class that does not exist would be taken: no webhook decides"
        yield Finding("orders", what, "start the controller, and look at the webhook configurations named gpuclaim")
    elif "x509" in probe.message or "certificate" in probe.message:
        yield Finding(
            "orders",
            f"the apiserver does not trust the controller's certificate: {safe(probe.message)}",
            "another controller, or an old one, wrote the webhook configuration: end it, and restart this one",
        )
    else:
        yield Finding(
            "orders",
            f"orders are not decided: {safe(probe.message)}",
            "see that the controller runs, and that the apiserver reaches its Service or URL",
        )


def _leader(facts: Facts) -> Iterator[Finding]:
    if facts.leases is None:
        return
    mend = "see that the controller runs, and look at its log"
    leading = [lease for lease in facts.leases if lease.spec.holder_identity]
    if not leading:
        yield Finding("leader", "no controller leads: nobody holds the Lease", mend)
    for lease in leading:
        renewed = lease.spec.renew_time
        if renewed is None or renewed + dt.timedelta(seconds=lease.spec.lease_duration_seconds or 15) < facts.now:
            ago = f" {age(renewed, facts.now)} ago" if renewed is not None else ""
            what = f"controller {lease.spec.holder_identity} renewed its Lease last{ago}, and leads no more"
            yield Finding("leader", what, mend)
    if len(leading) > 1:
        where = ", ".join(sorted(lease.metadata.namespace for lease in leading))
        what = f"controllers lead in more than one namespace: {where}"
        yield Finding("leader", what, "end all but one installation: two of them sell the same GPUs twice")


def _agents(facts: Facts) -> Iterator[Finding]:
    if facts.reports is None:
        return
    reported = {report.metadata.name for report in facts.reports}
    offered = {model.resource_name(cls) for cls in facts.classes or ()} - {""}
    for node in facts.nodes or ():
        has = sorted(name for name in offered if node.status.allocatable.get(name, 0) not in {0, "0"})
        if has and node.metadata.name not in reported:
            what = f"node {node.metadata.name} offers {', '.join(has)}, and no agent reports it"
            yield Finding("agents", what, "see that the agents' DaemonSet covers the node: selector and tolerations")
    for report in facts.reports:
        name, at = report.metadata.name, report.status.reported_at
        said = model.condition(report.status.conditions, NodeConditionType.REPORTING)
        if at is None or at + SILENT_AFTER < facts.now:
            since = f"has been silent for {age(at, facts.now)}" if at is not None else "has never reported"
            mend = f"look at the agent's pod on {name}: kubectl get pods -A --field-selector spec.nodeName={name}"
            yield Finding("agents", f"the agent of node {name} {since}; the node takes no new hold", mend)
        elif said is not None and said.status == core.Status.FALSE:
            mend = f"look at the agent's pod on {name}"
            yield Finding("agents", f"node {name} takes no new hold: {said.message}", mend)


def _supply(facts: Facts) -> Iterator[Finding]:
    if facts.reports is None:
        return
    placed: set[str] = set()
    named: dict[str, list[str]] = {}
    for report in facts.reports:
        here = {resource.name for device in report.status.devices for resource in device.resources}
        placed |= here
        for name in sorted(set(report.status.resource_names) - here):
            named.setdefault(name, []).append(report.metadata.name)
    for name, where in sorted(named.items()):
        yield Finding(
            "plugins",
            f"the device plugin of {name} reports no ID that leads to a device, on {', '.join(where[:3])}"
            + (f" and {len(where) - 3} more" if len(where) > 3 else ""),
            "let a plugin for VMs offer the GPU: its IDs are PCI addresses, mdev UUIDs or IOMMU groups",
        )
    for cls in facts.classes or ():
        resource = model.resource_name(cls)
        if not cls.spec.closed and resource not in placed | named.keys():
            yield Finding(
                "classes",
                f"no node offers {resource or 'anything'}, the resource of class {cls.metadata.name}",
                "correct the class's resourceName, or see that the device plugin runs: kubectl gpu nodes -o yaml",
            )


def _quotas(facts: Facts) -> Iterator[Finding]:
    if facts.quotas is None or facts.classes is None:
        return
    known = {cls.metadata.name for cls in facts.classes} | {names.TOTAL}
    for quota in facts.quotas:
        meta = quota.metadata
        for key in sorted(quota.spec.hard):
            if key.startswith(_PREFIX) and key[len(_PREFIX) :] not in known:
                what = f"quota {meta.namespace}/{meta.name} limits {key}, and there is no such class: it binds nothing"
                yield Finding("quotas", what, f"kubectl edit resourcequota {meta.name} -n {meta.namespace}")


def _bypasses(facts: Facts) -> Iterator[Finding]:
    if facts.pods is None or facts.classes is None or facts.claims is None:
        return
    offered = {model.resource_name(cls) for cls in facts.classes} - {""}
    sets = {(claim.metadata.namespace, model.claim_set(claim)) for claim in facts.claims}
    for pod in facts.pods:
        meta = pod.metadata
        asked = sorted(offered & {name for name, count in model.pod_requests(pod).items() if count > 0})
        if asked and model.is_live(pod) and (meta.namespace, model.pod_set(meta.labels) or "") not in sets:
            yield Finding(
                "pods",
                f"pod {meta.namespace}/{meta.name} uses {', '.join(asked)} without a claim",
                f"order for it and start it anew, or delete it: kubectl delete pod {meta.name} -n {meta.namespace}",
            )


CHECKS: Final[tuple[tuple[str, Callable[[Facts], Iterable[Finding]]], ...]] = (
    ("the API is installed", _crds),
    ("webhooks are configured", _webhooks),
    ("pods without claims are turned away", _guard),
    ("orders are decided", _orders),
    ("a controller leads", _leader),
    ("agents report", _agents),
    ("classes have GPUs behind them", _supply),
    ("quotas name classes", _quotas),
    ("pods have claims", _bypasses),
)


def lines(facts: Facts) -> Iterator[tuple[bool, str, list[Finding]]]:
    """Each check: whether all is well, its title, what it found."""
    for title, check in CHECKS:
        found = [dataclasses.replace(each, what=safe(each.what), mend=safe(each.mend)) for each in check(facts)]
        yield not found, title, found
