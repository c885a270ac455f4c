"""The control plane and the kubelet of gpuclaim.local are real: they answer, schedule, run and turn away."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuclaim.agent.podresources import PodResources
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.rest import RequestError
from gpuclaim.local.slate import Slate
from support.device_plugin import DevicePlugin
from support.wait import until, until_async

if TYPE_CHECKING:
    from gpuclaim.local.kubelet import Kubelet

PODS = "/api/v1/namespaces/default/pods"
GPU = "nvidia.com/GA102GL_A10"


def pod(name: str, gpus: int = 0, **spec: object) -> dict[str, object]:
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": resources}], **spec},
    }


def ended_or_running(cluster: ControlPlane, name: str) -> dict[str, Any] | None:
    found = cluster.rest.get(f"{PODS}/{name}")
    return found if found["status"]["phase"] in {"Running", "Failed"} else None


def allocatable(kubelet: Kubelet, count: int) -> bool:
    return bool(kubelet.node["status"]["allocatable"].get(GPU) == str(count))


def test_apiserver_answers(cluster: ControlPlane) -> None:
    assert cluster.rest.get("/version")["minor"] == "37"


def test_older_apiserver_answers(old_cluster: ControlPlane) -> None:
    assert old_cluster.rest.get("/version")["minor"] == "34"


def test_kubeconfig_works_with_kubectl_and_is_private(cluster: ControlPlane) -> None:
    answer = subprocess.run(
        [*cluster.kubectl(), "get", "namespace", "default", "-o", "json"], check=True, capture_output=True
    )
    assert json.loads(answer.stdout)["status"]["phase"] == "Active"
    assert stat.S_IMODE(cluster.kubeconfig.stat().st_mode) == 0o600


def test_other_identities_have_only_the_rights_they_are_given(cluster: ControlPlane) -> None:
    with cluster.client("alice", ["tenants"]) as alice:
        with pytest.raises(RequestError) as refused:
            alice.get(PODS)
        assert refused.value.code == 403
        cluster.rest.post(
            "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
            {
                "metadata": {"name": "tenants"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "tenants"}],
            },
        )
        until(lambda: alice.answers(PODS), "the right to list pods")


def test_state_is_kept_in_a_directory_and_switches_are_passed_on(tmp_path: Path) -> None:
    switches: dict[str, Any] = {
        "runtime_config": {"admissionregistration.k8s.io/v1alpha1": "true"},
        "feature_gates": {"MutatingAdmissionPolicy": True},
    }
    namespace = "/api/v1/namespaces/kept"
    with ControlPlane(tmp_path, **switches) as first:
        assert first.rest.answers("/apis/admissionregistration.k8s.io/v1alpha1")
        first.rest.post("/api/v1/namespaces", {"metadata": {"name": "kept"}})
    with ControlPlane(tmp_path) as second:
        assert second.rest.answers(namespace)
        assert not second.rest.answers("/apis/admissionregistration.k8s.io/v1alpha1")


async def test_starts_and_stops_beside_a_loop() -> None:
    async with ControlPlane() as running:
        directory, process = running.directory, running.processes["etcd"]
        process.check()
        assert directory.exists()
    assert not process.running
    assert not directory.exists()


def test_slate_removes_what_came_and_keeps_what_was(cluster: ControlPlane, slate: Slate) -> None:
    cluster.rest.post("/api/v1/namespaces", {"metadata": {"name": "tenant"}})
    stuck = {"metadata": {"name": "stuck", "finalizers": ["gpu.cozystack.io/usage"]}}
    cluster.rest.post("/api/v1/namespaces/tenant/configmaps", stuck)
    cluster.rest.delete("/api/v1/namespaces/tenant")
    assert slate.wipe() > 0
    until(lambda: not cluster.rest.answers("/api/v1/namespaces/tenant"), "the namespace is gone")
    # The name is free at once, and the object that its finalizer held is gone with it.
    cluster.rest.post("/api/v1/namespaces", {"metadata": {"name": "tenant"}})
    with pytest.raises(RequestError) as missing:
        cluster.rest.get("/api/v1/namespaces/tenant/configmaps/stuck")
    assert missing.value.code == 404
    assert cluster.rest.answers("/api/v1/namespaces/default")


def test_pod_is_scheduled_and_runs(cluster: ControlPlane, kubelet: Kubelet) -> None:
    cluster.rest.post(PODS, pod("plain"))
    found = until(lambda: ended_or_running(cluster, "plain"), "the pod runs")
    assert found["status"]["phase"] == "Running"
    assert found["spec"]["nodeName"] == kubelet.name


def test_kubelet_changes_nothing_of_the_machine(kubelet: Kubelet) -> None:
    ours = {Path("/proc/sys/vm/overcommit_memory"), Path("/proc/sys/kernel/panic")}
    theirs = Path(f"/proc/{kubelet.process.pid}/mountinfo").read_text()
    mine = Path("/proc/self/mountinfo").read_text()
    for file in ours:
        assert f" {file} " in theirs
        assert f" {file} " not in mine
    assert str(kubelet.directory) not in mine


async def test_pod_gets_a_device_and_a_failing_one_turns_it_away(cluster: ControlPlane, kubelet: Kubelet) -> None:
    devices = ["0000:3b:00.0", "0000:86:00.0"]
    async with DevicePlugin(kubelet.device_plugins, GPU, devices) as plugin:
        await until_async(lambda: allocatable(kubelet, 2), "two GPUs in the Node's status")

        plugin.prefer = ["0000:86:00.0"]
        cluster.rest.post(PODS, pod("vm-1", gpus=1))
        found = await until_async(lambda: ended_or_running(cluster, "vm-1"), "vm-1 runs")
        assert found["status"]["phase"] == "Running"
        assert plugin.allocated == [["0000:86:00.0"]]

        with PodResources(kubelet.pod_resources) as pod_resources:
            answers = await pod_resources.read()
        assert set(answers.allocatable[GPU]) == set(devices)
        assert [(each.name, list(each.devices[GPU])) for each in answers.pods if each.devices] == [
            ("vm-1", ["0000:86:00.0"])
        ]

        plugin.fail_allocate = "the driver is stuck"
        cluster.rest.post(PODS, pod("vm-2", gpus=1))
        found = await until_async(lambda: ended_or_running(cluster, "vm-2"), "vm-2 is turned away")
        assert (found["status"]["phase"], found["status"]["reason"]) == ("Failed", "UnexpectedAdmissionError")
        assert "the driver is stuck" in found["status"]["message"]

        plugin.fail_allocate = None
        plugin.set_health("0000:3b:00.0", healthy=False)
        await until_async(lambda: allocatable(kubelet, 1), "the unhealthy GPU is taken off")
        # By naming its node it passes the scheduler by, as a pod does that was bound a moment too early.
        cluster.rest.post(PODS, pod("vm-3", gpus=1, nodeName=kubelet.name))
        found = await until_async(lambda: ended_or_running(cluster, "vm-3"), "vm-3 is turned away")
        assert (found["status"]["phase"], found["status"]["reason"]) == ("Failed", "UnexpectedAdmissionError")


async def test_devices_and_pods_survive_a_restart_of_kubelet(cluster: ControlPlane, kubelet: Kubelet) -> None:
    async with DevicePlugin(kubelet.device_plugins, GPU, ["0000:3b:00.0"]) as plugin:
        await until_async(lambda: allocatable(kubelet, 1), "a GPU in the Node's status")
        cluster.rest.post(PODS, pod("vm", gpus=1))
        before = await until_async(lambda: ended_or_running(cluster, "vm"), "vm runs")
        kubelet.restart()
        await plugin.start()
        await until_async(lambda: allocatable(kubelet, 1), "the GPU is back in the Node's status")
        after = cluster.rest.get(f"{PODS}/vm")
        containers = [each["status"]["containerStatuses"][0]["containerID"] for each in (before, after)]
        assert containers[0] == containers[1]
