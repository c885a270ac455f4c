"""Each planted fault is found, alone; what could not be read is not judged."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
from typing import Any

import msgspec
import pytest

from gpuclaim.admission import guard
from gpuclaim.api import core, crd, names
from gpuclaim.api.core import ObjectMeta, Outcome
from gpuclaim.api.types import (
    Device,
    DevicePluginSource,
    GPUClaim,
    GPUClaimSpec,
    GPUClass,
    GPUClassSpec,
    GPUNode,
    GPUNodeStatus,
    Health,
    Mode,
    ResourceCount,
    Source,
)
from gpuclaim.cli.doctor import wanted_guard
from gpuclaim.kube.resources import Lease, LeaseSpec
from gpuclaim.views import doctor
from gpuclaim.views.doctor import Facts

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
H200 = "nvidia.com/h200"
CRDS = {definition["metadata"]["name"]: definition for definition in crd.definitions()}
LISTED = ("ValidatingAdmissionPolicy", guard.KNOWN)
STORED_GUARD = {(each["kind"], each["metadata"]["name"]): each for each in guard.policies([H200], ["kube-system"])}
for each in STORED_GUARD.values():
    if "matchConstraints" in each["spec"]:  # as the apiserver fills it in
        each["spec"]["matchConstraints"] |= {"matchPolicy": "Equivalent", "namespaceSelector": {}}
LEASE = Lease(
    metadata=ObjectMeta(name="gpuclaim-controller", namespace="gpuclaim-system"),
    spec=LeaseSpec(holder_identity="c-1", lease_duration_seconds=15, renew_time=NOW - dt.timedelta(seconds=3)),
)

OLD_LEASE = Lease(
    metadata=LEASE.metadata,
    spec=LeaseSpec(holder_identity="c-1", lease_duration_seconds=15, renew_time=NOW - dt.timedelta(minutes=9)),
)


def gpu_class(name: str = "h200", resource: str = H200, **spec: Any) -> GPUClass:
    source = Source(device_plugin=DevicePluginSource(resource_name=resource))
    return GPUClass(metadata=ObjectMeta(name=name), spec=GPUClassSpec(mode=Mode.PASSTHROUGH, source=source, **spec))


def report(name: str = "gpu-1", minutes: float = 1, resources: tuple[str, ...] = (H200,)) -> GPUNode:
    counts = [ResourceCount(name=H200, allocatable=1, used=0)]
    device = Device(address="0000:01:00.0", health=Health.HEALTHY, resources=counts)
    reported = NOW - dt.timedelta(minutes=minutes)
    status = GPUNodeStatus(devices=[device], resource_names=list(resources), reported_at=reported)
    return GPUNode(metadata=ObjectMeta(name=name), status=status)


def node(name: str = "gpu-1") -> core.Node:
    return core.Node(metadata=ObjectMeta(name=name), status=core.NodeStatus(allocatable={H200: "1"}))


def pod(name: str = "vm", phase: str = "Running", **labels: str) -> core.Pod:
    container = core.Container(resources=core.ResourceRequirements(limits={H200: "1"}))
    found = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    return core.Pod(
        metadata=ObjectMeta(name=name, namespace="tenant-a", labels=found),
        spec=core.PodSpec(containers=[container]),
        status=core.PodStatus(phase=phase),
    )


def quota(key: str) -> core.ResourceQuota:
    meta = ObjectMeta(name="gpus", namespace="tenant-a")
    return core.ResourceQuota(metadata=meta, spec=core.ResourceQuotaSpec(hard={key: "1", "cpu": "4"}))


CLAIM = GPUClaim(metadata=ObjectMeta(name="vm", namespace="tenant-a"), spec=GPUClaimSpec(class_name="h200"))


def well(**changes: Any) -> Facts:
    facts = Facts(
        now=NOW,
        wanted_crds=CRDS,
        crds=CRDS,
        webhooks={"MutatingWebhookConfiguration": {}, "ValidatingWebhookConfiguration": {}},
        wanted_guard=wanted_guard(),
        guard=STORED_GUARD,
        authorities={"orders.gpu.cozystack.io": NOW + dt.timedelta(days=300)},
        probe=Outcome(code=403, reason="UnknownClass"),
        leases=[LEASE],
        nodes=[node()],
        reports=[report()],
        classes=[gpu_class()],
        claims=[CLAIM],
        quotas=[quota(names.budget_key("h200")), quota(names.budget_key(names.TOTAL))],
        pods=[pod(vm_kubevirt_io__name="vm"), pod("done", "Succeeded")],
    )
    return dataclasses.replace(facts, **changes)


def guarded(resource: str) -> GPUClass:
    cls = gpu_class(resource=resource)
    labelled = msgspec.structs.replace(cls.metadata, labels={names.GUARDED_LABEL: "true"})
    return msgspec.structs.replace(cls, metadata=labelled)


def changed(key: tuple[str, str], **spec: Any) -> dict[tuple[str, str], Any]:
    return STORED_GUARD | {key: STORED_GUARD[key] | {"spec": STORED_GUARD[key]["spec"] | spec}}


def old_crds() -> dict[str, Any]:
    old = copy.deepcopy(CRDS)
    schema = old[f"gpuclaims.{names.GROUP}"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["refusals"]
    return old


def test_a_good_installation_has_no_findings() -> None:
    assert doctor.findings(well()) == []


def test_what_could_not_be_read_is_not_judged() -> None:
    assert doctor.findings(Facts(now=NOW, wanted_crds=CRDS)) == []


@pytest.mark.parametrize(
    ("changes", "check", "words"),
    [
        ({"crds": {k: v for k, v in CRDS.items() if "gpunodes" not in k}}, "crds", ["gpunodes", "not installed"]),
        ({"crds": old_crds()}, "crds", ["gpuclaims", "old", "status.refusals"]),
        ({"webhooks": {"MutatingWebhookConfiguration": {}}}, "webhooks", ["ValidatingWebhookConfiguration"]),
        ({"authorities": {"orders": NOW - dt.timedelta(days=3)}}, "webhooks", ["orders", "expired 3d ago"]),
        ({"authorities": {"orders": NOW + dt.timedelta(days=3)}}, "webhooks", ["expires on 2026-01-04"]),
        ({"guard": {k: v for k, v in STORED_GUARD.items() if k != LISTED}}, "guard", ["no", guard.KNOWN]),
        ({"guard": changed(LISTED, failurePolicy="Ignore")}, "guard", [guard.KNOWN, "Ignore", "must have Fail"]),
        ({"guard": changed(LISTED, validations=[])}, "guard", [guard.KNOWN, "differs in spec.validations"]),
        (
            {"guard": changed(("ValidatingAdmissionPolicyBinding", guard.NEW), validationActions=["Warn"])},
            "guard",
            [guard.NEW, "spec.validationActions"],
        ),
        ({"guard": changed(LISTED, matchConditions=[]), "classes": [guarded(H200)]}, "guard", ["not look at", H200]),
        ({"probe": Outcome(code=201)}, "orders", ["no webhook decides"]),
        ({"probe": Outcome(code=500, message="failed calling webhook: connection refused")}, "orders", ["refused"]),
        ({"probe": Outcome(code=500, message="tls: x509: signed by unknown authority")}, "orders", ["not trust"]),
        ({"leases": []}, "leader", ["nobody holds"]),
        ({"leases": [OLD_LEASE]}, "leader", ["c-1", "9m ago"]),
        ({"reports": [report(minutes=20)]}, "agents", ["gpu-1", "silent for 20m"]),
        ({"nodes": [node(), node("gpu-2")]}, "agents", ["gpu-2", H200, "no agent"]),
        ({"classes": [gpu_class(), gpu_class("b200", "nvidia.com/b200")]}, "classes", ["b200", "no node offers"]),
        ({"reports": [report(resources=(H200, "nvidia.com/gpu"))]}, "plugins", ["nvidia.com/gpu", "gpu-1"]),
        ({"quotas": [quota(names.budget_key("h20"))]}, "quotas", ["tenant-a/gpus", "h20", "no such class"]),
        ({"pods": [pod("thief")]}, "pods", ["tenant-a/thief", H200]),
        ({"claims": [], "pods": [pod(vm_kubevirt_io__name="vm")]}, "pods", ["tenant-a/vm"]),
    ],
)
def test_a_planted_fault_is_found(changes: dict[str, Any], check: str, words: list[str]) -> None:
    (found,) = doctor.findings(well(**changes))
    assert found.check == check
    assert [word for word in words if word not in found.what] == []
    assert found.mend


def test_two_leaders_sell_twice() -> None:
    other = Lease(metadata=ObjectMeta(name="gpuclaim-controller", namespace="default"), spec=LEASE.spec)
    (found,) = doctor.findings(well(leases=[LEASE, other]))
    assert "default, gpuclaim-system" in found.what


def test_a_closed_class_needs_no_gpus() -> None:
    assert doctor.findings(well(classes=[gpu_class(), gpu_class("old", "nvidia.com/old", closed=True)])) == []


def test_a_hostile_name_is_made_safe() -> None:
    lines = [found for _, _, several in doctor.lines(well(pods=[pod("x\x1b[2J")])) for found in several]
    assert lines
    assert all("\x1b" not in each.what + each.mend for each in lines)
