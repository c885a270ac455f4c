"""What a simulated kubelet takes, turns away and says, held against the words of the real one (k8s.io/kubernetes)."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest

from gpuclaim.local import simulated_kubelet
from gpuclaim.local.simulated_kubelet import DeviceLedger, Pod, Rejection

GPU = "nvidia.com/GH100"
KVM = "devices.kubevirt.io/kvm"
NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
LABELS = {"zone": "1", "size": "7"}


def pod(uid: str = "1", gpus: int = 0, status: dict[str, Any] | None = None, **spec: Any) -> Pod:
    limits = {GPU: str(gpus)} if gpus else {}
    body = {
        "metadata": {"name": f"pod-{uid}", "namespace": "t", "uid": uid},
        "spec": {"containers": [{"name": "compute", "image": "i", "resources": {"limits": limits}}]} | spec,
        "status": status or {},
    }
    return msgspec.convert(body, Pod)


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def field(*names: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": list(names)}]}


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.fixture
def ledger() -> DeviceLedger:
    return DeviceLedger({GPU: ("a", "b", "c"), KVM: ("kvm0",)})


def admit(pod_: Pod, ledger: DeviceLedger) -> Rejection | None:
    return simulated_kubelet.admit(pod_, "gpu-1", LABELS, ledger)


def test_pods_get_different_devices_until_none_is_left(ledger: DeviceLedger) -> None:
    assert admit(pod("1", gpus=2), ledger) is None
    assert ledger.given("1") == {GPU: ("a", "b")}
    assert admit(pod("2", gpus=1), ledger) is None
    assert ledger.given("2") == {GPU: ("c",)}
    assert admit(pod("3", gpus=1), ledger) == Rejection(
        "UnexpectedAdmissionError",
        f"Allocate failed due to requested number of devices unavailable for {GPU}. Requested: 1, Available: 0,"
        " which is unexpected",
    )
    assert ledger.given("3") is None
    ledger.take_back("1")
    assert admit(pod("3", gpus=1), ledger) is None


def test_all_or_nothing_over_several_resources(ledger: DeviceLedger) -> None:
    both = {"limits": {GPU: "1", KVM: "2"}}
    refused = admit(pod("1", containers=[{"name": "c", "resources": both}]), ledger)
    assert refused is not None
    assert KVM in refused.message
    assert admit(pod("2", gpus=3), ledger) is None


def test_a_pod_that_is_asked_for_again_keeps_its_devices(ledger: DeviceLedger) -> None:
    admit(pod("1", gpus=1), ledger)
    admit(pod("1", gpus=1), ledger)
    assert ledger.given("1") == {GPU: ("a",)}


def test_an_unhealthy_device_is_no_longer_allocatable_and_stays_where_it_is(ledger: DeviceLedger) -> None:
    admit(pod("1", gpus=1), ledger)
    assert ledger.set_unhealthy(["a", "no such device"])
    assert not ledger.set_unhealthy(["a"])
    assert ledger.allocatable == {GPU: ("b", "c"), KVM: ("kvm0",)}
    assert ledger.devices[GPU] == ("a", "b", "c")
    assert ledger.given("1") == {GPU: ("a",)}
    assert admit(pod("2", gpus=2), ledger) is None
    assert ledger.given("2") == {GPU: ("b", "c")}


def test_no_healthy_device_at_all_is_said_in_other_words(ledger: DeviceLedger) -> None:
    ledger.set_unhealthy(["a", "b", "c"])
    refused = admit(pod("1", gpus=1), ledger)
    assert refused is not None
    assert "no healthy devices present; cannot allocate unhealthy devices" in refused.message


def test_a_resource_that_no_plugin_offers_here_is_ignored(ledger: DeviceLedger) -> None:
    other = {"limits": {"example.com/other": "1"}}
    assert admit(pod("1", containers=[{"name": "c", "resources": other}]), ledger) is None


def test_init_containers_devices_are_used_again(ledger: DeviceLedger) -> None:
    three = [{"name": "i", "resources": {"limits": {GPU: "3"}}}]
    assert admit(pod("1", gpus=1, initContainers=three), ledger) is None
    assert len((ledger.given("1") or {})[GPU]) == 3


def test_a_pod_for_another_node_is_turned_away_and_takes_nothing(ledger: DeviceLedger) -> None:
    refused = admit(pod("1", gpus=3, affinity=affinity(field("gpu-2"))), ledger)
    assert refused == Rejection(
        "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
    )
    assert admit(pod("2", gpus=3), ledger) is None


@pytest.mark.parametrize(
    ("spec", "matches"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "1"}}, True),
        ({"nodeSelector": {"zone": "2"}}, False),
        ({"nodeSelector": {"missing": ""}}, False),
        ({"affinity": {}}, True),
        ({"affinity": affinity()}, False),
        ({"affinity": affinity({})}, False),
        ({"affinity": affinity(field("gpu-1"))}, True),
        ({"affinity": affinity(field("gpu-2"), label("zone", "In", "1"))}, True),
        ({"affinity": affinity(field("gpu-1") | label("zone", "In", "2"))}, False),
        ({"affinity": affinity(label("zone", "NotIn", "1"))}, False),
        ({"affinity": affinity(label("missing", "NotIn", "1"))}, True),
        ({"affinity": affinity(label("zone", "Exists"))}, True),
        ({"affinity": affinity(label("zone", "DoesNotExist"))}, False),
        ({"affinity": affinity(label("size", "Gt", "6"))}, True),
        ({"affinity": affinity(label("size", "Lt", "7"))}, False),
        ({"affinity": affinity(label("missing", "Lt", "7"))}, False),
        ({"affinity": affinity(label("zone", "Like", "1"))}, False),
        ({"affinity": affinity(field("gpu-1")), "nodeSelector": {"zone": "2"}}, False),
    ],
)
def test_selector_and_affinity(spec: dict[str, Any], matches: bool) -> None:
    assert simulated_kubelet.selects(pod(**spec).spec, "gpu-1", LABELS) is matches


def test_a_running_pod_is_ready_once_its_gates_are() -> None:
    gates = [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}]
    waiting = pod(readinessGates=gates)
    assert not simulated_kubelet.gates_open(waiting)
    status = simulated_kubelet.running(waiting, NOW, "10.0.0.1", "10.0.0.2")
    assert {each["type"]: each["status"] for each in status["conditions"]}["Ready"] == "False"
    unpaused = {"conditions": [{"type": "kubevirt.io/virtual-machine-unpaused", "status": "True"}]}
    assert simulated_kubelet.gates_open(pod(status=unpaused, readinessGates=gates))


def test_a_running_pod_says_what_its_containers_do() -> None:
    sidecar = {"name": "s", "image": "i", "restartPolicy": "Always"}
    status = simulated_kubelet.running(
        pod(initContainers=[{"name": "i", "image": "i"}, sidecar]), NOW, "10.0.0.1", "10.0.0.2"
    )
    assert status["phase"] == "Running"
    assert status["startTime"] == "2026-01-02T03:04:05Z"
    assert [list(each["state"]) for each in status["initContainerStatuses"]] == [["terminated"], ["running"]]
    (container,) = status["containerStatuses"]
    assert (container["name"], container["ready"]) == ("compute", True)


def test_a_rejected_pod_has_no_containers() -> None:
    status = simulated_kubelet.rejected(Rejection("NodeAffinity", "no"), NOW)
    assert status == {
        "phase": "Failed",
        "reason": "NodeAffinity",
        "message": "Pod was rejected: no",
        "startTime": "2026-01-02T03:04:05Z",
    }


def test_an_ended_pod_succeeded() -> None:
    status = simulated_kubelet.ended(pod(), NOW)
    assert status["phase"] == "Succeeded"
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
