"""What the agent reports while pods, plugins, kubelets and apiservers come and go, and what it never reports between.

Nothing here waits for a time to pass: passes of the agent and versions of the GPUNode are what is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuclaim.agent.podresources import PodResources
from gpuclaim.agent.pulse import Problem, Result
from gpuclaim.api import core
from gpuclaim.api.types import GPUNode, Health
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.kubelet import Kubelet, available
from gpuclaim.local.sysfs_tree import Mdev, SimulatedFunction, SysfsTree
from support import agents, cloud
from support.agents import Reports, RunningPod, assert_each_changed_once
from support.device_plugin import DevicePlugin

if TYPE_CHECKING:
    from support.agents import SeenAgent, Summary

ADDRESS, GROUP, VGPU = "nvidia.com/GA102GL_A10", "nvidia.com/GH100_H200", "nvidia.com/NVIDIA_L40S-8Q"
A, B, C = "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"
UUIDS = ("a0b1c2d3-0001-4a11-8a11-000000000001", "a0b1c2d3-0001-4a11-8a11-000000000002")
PODS = "/api/v1/namespaces/default/pods"
HEALTHY, UNHEALTHY = Health.HEALTHY, Health.UNHEALTHY

pytestmark = [
    pytest.mark.usefixtures("crds"),
    pytest.mark.skipif(not available(), reason="a real kubelet needs root on Linux"),
]


@dataclasses.dataclass
class Scene:
    """A kubelet, three GPUs that plugins name in three ways, and a watch of what the agent reports."""

    kubelet: Kubelet
    client: Client
    tree: SysfsTree
    reports: Reports
    plugins: dict[str, DevicePlugin]

    def agent(self, **settings: Any) -> contextlib.AbstractAsyncContextManager[SeenAgent]:
        return agents.running(self.kubelet, self.tree, self.client, **settings)

    async def add_pod(self, name: str, devices: dict[str, int], **spec: Any) -> None:
        await self.client.request("POST", PODS, body=agents.pod(name, devices, self.kubelet.name, **spec))

    async def add_running_pod(self, name: str, devices: dict[str, int]) -> RunningPod:
        await self.add_pod(name, devices)
        return await cloud.until(self.client, RunningPod, name, "default", lambda each: each.status.phase == "Running")

    async def remove_pod(self, name: str) -> None:
        await self.client.request("DELETE", f"{PODS}/{name}")
        await cloud.until_gone(self.client, core.Pod, name, "default")

    async def listed(self) -> list[str]:
        """The pods that kubelet lists now."""
        with PodResources(self.kubelet.pod_resources) as asked:
            return [each.name for each in (await asked.read()).pods]


def state(a: tuple[Any, ...] = (), b: tuple[Any, ...] = (), c: tuple[Any, ...] = ()) -> Summary:
    """A report of the three GPUs; each as (health, allocatable, used, names of users), and as when idle by default."""
    given = {A: (ADDRESS, a or (HEALTHY, 1, 0)), B: (GROUP, b or (HEALTHY, 1, 0)), C: (VGPU, c or (HEALTHY, 2, 0))}
    return {
        address: (health, {resource: (allocatable, used)}, tuple(users))
        for address, (resource, (health, allocatable, used, *users)) in given.items()
    }


IDLE = state()


@contextlib.asynccontextmanager
async def scene_on(kubelet: Kubelet, cluster: ControlPlane, folder: Path) -> AsyncIterator[Scene]:
    tree = SysfsTree(
        folder,
        [
            SimulatedFunction(address=A, driver="vfio-pci", group=12, numa=0),
            SimulatedFunction(address=B, driver="vfio-pci", group=13, numa=1),
            SimulatedFunction(address=C, driver="nvidia", mdevs=tuple(Mdev(uuid=each, type="t-1") for each in UUIDS)),
        ],
    )
    offered = {ADDRESS: [A.upper()], GROUP: ["13"], VGPU: list(UUIDS)}
    plugins = {name: DevicePlugin(kubelet.device_plugins, name, devices) for name, devices in offered.items()}
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(config.load(cluster.kubeconfig)))
        reports = await stack.enter_async_context(Reports(client, kubelet.name))
        for plugin in plugins.values():
            await stack.enter_async_context(plugin)
        yield Scene(kubelet, client, tree, reports, plugins)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelets are started in an empty folder.

    When a container goes, kubelet removes all files whose names begin as its log's does; the fake runtime names no log,
    so that would be the files of the folder that kubelet was started in.
    """
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))


@pytest.fixture(params=["1.37", "1.33"])
def any_kubelet(request: pytest.FixtureRequest, empty_folder: None, cluster: ControlPlane) -> Iterator[Kubelet]:
    with Kubelet(cluster, "node-a", version=None if request.param == "1.37" else request.param) as running:
        yield running


@pytest.fixture
def old_kubelet(empty_folder: None, cluster: ControlPlane) -> Iterator[Kubelet]:
    with Kubelet(cluster, "node-a", version="1.33") as running:
        yield running


@pytest.fixture
def kubelet(empty_folder: None, cluster: ControlPlane) -> Iterator[Kubelet]:
    with Kubelet(cluster, "node-a") as running:
        yield running


async def test_pods_take_devices_and_end(any_kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path) -> None:
    async with scene_on(any_kubelet, cluster, tmp_path) as scene, scene.agent():
        reports = scene.reports
        node = await reports.until_says(IDLE)
        assert node.status.resource_names == sorted([ADDRESS, GROUP, VGPU])
        assert node.status.unplaced == []
        assert node.status.boot_id == any_kubelet.node["status"]["nodeInfo"]["bootID"]
        start = len(reports.seen) - 1

        held = state((HEALTHY, 1, 1, "all"), (HEALTHY, 1, 1, "all"), (HEALTHY, 2, 1, "all"))
        every = {ADDRESS: 1, GROUP: 1, VGPU: 1}
        await scene.add_pod("all", every, activeDeadlineSeconds=3)
        await reports.until_says(held)
        await cloud.until(scene.client, core.Pod, "all", "default", lambda each: each.status.phase == "Failed")
        await reports.until_says(IDLE)
        assert_each_changed_once(reports.said_since(start), IDLE, held, IDLE)

        # The mediated devices are two of one function: the second pod takes the other one.
        start = len(reports.seen) - 1
        one = await scene.add_running_pod("one", {VGPU: 1})
        await reports.until_says(state(c=(HEALTHY, 2, 1, "one")))
        await scene.add_running_pod("two", {VGPU: 1})
        await reports.until_says(state(c=(HEALTHY, 2, 2, "one", "two")))
        await agents.end_containers(any_kubelet, one)
        await cloud.until(scene.client, core.Pod, "one", "default", lambda each: each.status.phase == "Succeeded")
        await reports.until_says(state(c=(HEALTHY, 2, 1, "two")))
        await scene.remove_pod("two")
        await reports.until_says(IDLE)
        steps = ((0,), (1, "one"), (2, "one", "two"), (1, "two"), (0,))
        assert_each_changed_once(reports.said_since(start), *(state(c=(HEALTHY, 2, *step)) for step in steps))


async def test_a_name_that_is_used_again(old_kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path) -> None:
    # R26: up to 1.33 kubelet goes on listing a pod that has ended, for a while with its device.
    async with scene_on(old_kubelet, cluster, tmp_path) as scene, scene.agent():
        reports = scene.reports
        await reports.until_says(IDLE)
        start = len(reports.seen) - 1
        first, second = state(b=(HEALTHY, 1, 1, "p")), state(b=(HEALTHY, 1, 1, "q"))

        ended = await scene.add_running_pod("p", {GROUP: 1})
        await reports.until_says(first)
        await agents.end_containers(old_kubelet, ended)
        await cloud.until(scene.client, core.Pod, "p", "default", lambda each: each.status.phase == "Succeeded")
        await reports.until_says(IDLE)
        assert await scene.listed() == ["p"]

        ended = await scene.add_running_pod("q", {GROUP: 1})
        await reports.until_says(second)
        await agents.end_containers(old_kubelet, ended)
        await reports.until_says(IDLE)

        await scene.remove_pod("p")
        await scene.add_running_pod("p", {GROUP: 1})
        await reports.until_says(first)
        await scene.remove_pod("q")
        await scene.remove_pod("p")
        await reports.until_says(IDLE)
        assert_each_changed_once(reports.said_since(start), IDLE, first, IDLE, second, IDLE, first, IDLE)


async def test_devices_fail_and_mend(kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path) -> None:
    async with scene_on(kubelet, cluster, tmp_path) as scene, scene.agent():
        reports = scene.reports
        await scene.add_pod("p", {ADDRESS: 1})
        well = state(a=(HEALTHY, 1, 1, "p"))
        await reports.until_says(well)
        start = len(reports.seen) - 1
        broken: dict[str, Summary] = {
            A.upper(): state(a=(UNHEALTHY, 0, 1, "p")),
            "13": state(a=(HEALTHY, 1, 1, "p"), b=(UNHEALTHY, 0, 0)),
            UUIDS[0]: state(a=(HEALTHY, 1, 1, "p"), c=(HEALTHY, 1, 0)),
        }
        owner = {A.upper(): ADDRESS, "13": GROUP, UUIDS[0]: VGPU}
        for device, expected in broken.items():
            scene.plugins[owner[device]].set_health(device, healthy=False)
            await reports.until_says(expected)
            scene.plugins[owner[device]].set_health(device, healthy=True)
            await reports.until_says(well)
        for device in UUIDS:
            scene.plugins[VGPU].set_health(device, healthy=False)
        await reports.until_says(state(a=(HEALTHY, 1, 1, "p"), c=(UNHEALTHY, 0, 0)))
        said = reports.said_since(start)
        assert [each[A] for each in said][:3] == [well[A], broken[A.upper()][A], well[A]]
        assert all(each[A] == well[A] for each in said[2:])
        assert all(set(each[B][1]) == {GROUP} and set(each[C][1]) == {VGPU} for each in said)


async def test_a_gpu_falls_off_the_bus_and_comes_back(kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path) -> None:
    gone = state(a=(UNHEALTHY, 0, 0))
    async with scene_on(kubelet, cluster, tmp_path) as scene:
        reports, plugin = scene.reports, scene.plugins[ADDRESS]
        async with scene.agent():
            await reports.until_says(IDLE)
            start = len(reports.seen) - 1
            scene.tree.remove(A)
            # The plugin has not noticed yet: kubelet may give to a pod what is not there.
            node = await reports.until_says(gone)
            assert [(each.name, each.allocatable, each.used) for each in node.status.unplaced] == [(ADDRESS, 1, 0)]
            plugin.set_health(A.upper(), healthy=False)
            await reports.until(lambda node: agents.summary(node) == gone and not node.status.unplaced)
            plugin.remove(A.upper())
        # An agent that starts anew has only the GPUNode to know it from (R25).
        async with scene.agent() as agent:
            await agent.until_passes(Result.REPORTED)
            await agent.until_passes(Result.UNCHANGED)
            scene.tree.add(SimulatedFunction(address=A, driver="vfio-pci", group=12, numa=0))
            plugin.add(A.upper())
            await reports.until_says(IDLE)
        assert_each_changed_once(reports.said_since(start), IDLE, gone, IDLE)


async def test_a_gpu_with_two_ids_is_one(kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path) -> None:
    async with scene_on(kubelet, cluster, tmp_path) as scene, scene.agent():
        reports, plugin = scene.reports, scene.plugins[ADDRESS]
        await reports.until_says(IDLE)
        start = len(reports.seen) - 1
        plugin.add("12")
        # Kubelet counts two; they are one GPU, and in use when a pod has either.
        await cloud.until(
            scene.client, core.Node, "node-a", "", lambda node: node.status.allocatable.get(ADDRESS) == "2"
        )
        plugin.prefer = ["12"]
        await scene.add_running_pod("p", {ADDRESS: 1})
        held = state(a=(HEALTHY, 1, 1, "p"))
        await reports.until_says(held)
        assert plugin.allocated[-1] == ["12"]
        plugin.set_health("12", healthy=False)
        await scene.add_running_pod("q", {ADDRESS: 1})
        both = state(a=(HEALTHY, 1, 1, "p", "q"))
        await reports.until_says(both)
        plugin.set_health(A.upper(), healthy=False)
        await reports.until_says(state(a=(UNHEALTHY, 0, 1, "p", "q")))
        assert_each_changed_once(reports.said_since(start), IDLE, held, both, state(a=(UNHEALTHY, 0, 1, "p", "q")))


async def test_an_agent_that_starts_together_with_kubelet(
    kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path
) -> None:
    async with scene_on(kubelet, cluster, tmp_path) as scene:
        async with scene.agent():
            await scene.reports.until_says(IDLE)
        start = len(scene.reports.seen) - 1
        await asyncio.to_thread(kubelet.restart)
        async with scene.agent(settle=3600) as agent:
            # It has seen no kubelet before this one, whose socket tells that it is young.
            await agent.until_passes(Result.SETTLING, count=2)
            for plugin in scene.plugins.values():
                await plugin.start()
            await agent.until_passes(Result.REPORTED)
        assert_each_changed_once(scene.reports.said_since(start), IDLE)


async def test_a_plugin_dies_and_comes_back(kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path) -> None:
    well, gone = state(b=(HEALTHY, 1, 1, "p")), state(b=(UNHEALTHY, 0, 1, "p"))
    both_gone = state(a=(UNHEALTHY, 0, 0), b=(UNHEALTHY, 0, 1, "p"))
    async with scene_on(kubelet, cluster, tmp_path) as scene:
        reports = scene.reports
        async with scene.agent():
            await scene.add_pod("p", {GROUP: 1})
            await reports.until_says(well)
            start = len(reports.seen) - 1
            await scene.plugins[GROUP].stop()
            await reports.until_says(gone)
            await scene.plugins[GROUP].start()
            await reports.until_says(well)
            for name in (ADDRESS, GROUP):
                await scene.plugins[name].stop()
            await reports.until_says(both_gone)
        # An agent that starts anew knows from the report of before that the device was once offered (R25).
        async with scene.agent() as agent:
            await agent.until_passes(Result.REPORTED)
            await agent.until_passes(Result.UNCHANGED)
            for name in (ADDRESS, GROUP):
                await scene.plugins[name].start()
            await reports.until_says(well)
        assert_each_changed_once(reports.said_since(start), well, gone, well, both_gone, well)


async def test_a_plugin_s_socket_is_seen_before_the_interval_is_over(
    kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path
) -> None:
    # Within the patience of a test only the folder's event can make it read again.
    async with scene_on(kubelet, cluster, tmp_path) as scene, scene.agent(interval=3600):
        await scene.reports.until_says(IDLE)
        scene.tree.add(SimulatedFunction(address="0000:af:00.0", driver="vfio-pci", group=14))
        async with DevicePlugin(kubelet.device_plugins, "nvidia.com/new", ["0000:af:00.0"]):
            await scene.reports.until(lambda node: "nvidia.com/new" in node.status.resource_names)


async def test_kubelet_goes_and_comes_back(kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path) -> None:
    held = state(b=(HEALTHY, 1, 1, "p"))
    async with scene_on(kubelet, cluster, tmp_path) as scene, scene.agent(heartbeat=1, settle=3600) as agent:
        reports = scene.reports
        await scene.add_running_pod("p", {GROUP: 1})
        await reports.until_says(held)
        start = len(reports.seen) - 1
        await asyncio.to_thread(kubelet.process.stop)
        await agent.until_passes(Result.READING_FAILED, count=3)
        assert "is kubelet running?" in agent.pulse.problems[Problem.READING][0]
        silent = len(reports.seen)

        await asyncio.to_thread(kubelet.restart)
        # It calls every device unhealthy until the plugins have registered with it.
        await agent.until_passes(Result.SETTLING, count=2)
        assert len(reports.seen) == silent, "something was reported while nothing could be known"
        for plugin in scene.plugins.values():
            await plugin.start()
        await agent.until_passes(Result.REPORTED, count=2)
        await reports.until(lambda node: len(reports.seen) > silent)
        assert_each_changed_once(reports.said_since(start), held)


async def test_a_plugin_that_does_not_come_back_after_kubelet_did(
    kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path
) -> None:
    async with scene_on(kubelet, cluster, tmp_path) as scene, scene.agent(settle=1) as agent:
        await scene.reports.until_says(IDLE)
        start = len(scene.reports.seen) - 1
        await asyncio.to_thread(kubelet.restart)
        for name in (ADDRESS, VGPU):
            await scene.plugins[name].start()
        lost = state(b=(UNHEALTHY, 0, 0))
        await scene.reports.until_says(lost)
        await agent.until_passes(Result.UNCHANGED)
        assert scene.reports.said_since(start)[-1] == lost
        assert all(each[B] in (IDLE[B], lost[B]) for each in scene.reports.said_since(start))


async def test_a_gpunode_that_somebody_deletes(kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path) -> None:
    async with scene_on(kubelet, cluster, tmp_path) as scene, scene.agent(heartbeat=1) as agent:
        reports = scene.reports
        await reports.until_says(IDLE)
        scene.plugins[GROUP].set_health("13", healthy=False)
        sick = state(b=(UNHEALTHY, 0, 0))
        before = await reports.until_says(sick)
        start = len(reports.seen) - 1
        await scene.client.delete(GPUNode, "node-a")
        after = await reports.until(
            lambda node: node.metadata.uid != before.metadata.uid and node.status.reported_at, since=start
        )
        assert agents.summary(after) == sick
        assert owners(after) == owners(before) == [("Node", "node-a", kubelet.node["metadata"]["uid"])]
        await agent.until_passes(Result.REPORTED)
        assert None in reports.seen[start:]
        assert_each_changed_once(reports.said_since(start), sick)
        assert agent.pulse.write_errors == 0


async def test_a_node_that_is_deleted_and_registers_again(
    kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path
) -> None:
    async with scene_on(kubelet, cluster, tmp_path) as scene, scene.agent(heartbeat=1, settle=3600) as agent:
        reports = scene.reports
        old = owners(await reports.until_says(IDLE))
        await scene.client.request("DELETE", "/api/v1/nodes/node-a")
        # The garbage collector takes the GPUNode with its owner; the agent must not bring it back without one.
        await reports.until_gone()
        await agent.until_passes(Result.WRITING_FAILED)
        assert "the cluster has no Node node-a" in agent.pulse.problems[Problem.WRITING][0]
        assert reports.last is None

        gone = len(reports.seen)
        await asyncio.to_thread(kubelet.restart)
        for plugin in scene.plugins.values():
            await plugin.start()
        new = await reports.until(lambda node: node.status.reported_at, since=gone)
        assert owners(new) == [("Node", "node-a", kubelet.node["metadata"]["uid"])] != old
        await agent.until_passes(Result.REPORTED, Result.UNCHANGED)
        assert_each_changed_once(reports.said_since(gone), IDLE)
        assert None not in reports.seen[gone:]


async def test_the_apiserver_goes_and_comes_back(tmp_path: Path) -> None:
    sick = state(b=(UNHEALTHY, 0, 0))
    async with ControlPlane() as cluster:
        async with Client(config.load(cluster.kubeconfig)) as client:
            await cloud.install_crds(client)
        async with Kubelet(cluster, "node-a") as kubelet, scene_on(kubelet, cluster, tmp_path) as scene:
            apiserver = cluster.processes["kube-apiserver"]
            async with scene.agent() as agent:
                await scene.reports.until_says(IDLE)
                await asyncio.to_thread(apiserver.stop, 0.5)
                scene.plugins[GROUP].set_health("13", healthy=False)
                await agent.until_passes(Result.WRITING_FAILED)
                # As in a rolling update, the next agent starts meanwhile. It waits for the report of before, without
                # which it could not know that the device was once offered (R25).
                async with scene.agent() as successor:
                    await successor.until_passes(Result.WRITING_FAILED)
                    await asyncio.to_thread(start_again, cluster)
                    await successor.until_passes(Result.REPORTED)
                    await scene.reports.until_says(sick)
                    await agent.until_passes(Result.UNCHANGED)
            assert agent.pulse.passes[Result.REPORTED] == 2
            assert_each_changed_once(scene.reports.said_since(), IDLE, sick)


async def test_a_token_that_is_rotated(
    kubelet: Kubelet, cluster: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The file is read again every minute; here, before each request.
    monkeypatch.setattr(config, "_TOKEN_REREAD_SECONDS", 0.0)
    sysfs, secrets = tmp_path / "sys", tmp_path / "secrets"
    secrets.mkdir()
    async with scene_on(kubelet, cluster, sysfs) as scene:
        tokens = [await account_with_all_rights(scene.client, name) for name in ("before", "after")]
        kubeconfig, file = agents.token_kubeconfig(cluster.kubeconfig, secrets, tokens[0])
        async with (
            Client(config.load(kubeconfig)) as own,
            agents.running(kubelet, scene.tree, own, heartbeat=1) as agent,
        ):
            await scene.reports.until_says(IDLE)
            agents.rotate(file, tokens[1])
            # A request that was on its way has the old token yet.
            await agent.until_passes(Result.REPORTED)
            await scene.client.request("DELETE", f"{BINDINGS}/before")
            scene.plugins[GROUP].set_health("13", healthy=False)
            await scene.reports.until_says(state(b=(UNHEALTHY, 0, 0)))
            await agent.until_passes(Result.REPORTED)
            assert agent.pulse.write_errors == 0

            # Half of a rotation: the file is away for a moment.
            file.unlink()
            await agent.until_passes(Result.WRITING_FAILED)
            assert "cannot read the token" in agent.pulse.problems[Problem.WRITING][0]
            agents.rotate(file, tokens[1])
            await agent.until_passes(Result.REPORTED)

            # And the old one is really of no use any more.
            agents.rotate(file, tokens[0])
            await agent.until_passes(Result.WRITING_FAILED)
            with pytest.raises(ApiError, match="forbidden"):
                await own.get(GPUNode, "node-a")


async def test_the_program(cluster: ControlPlane, kubelet: Kubelet, tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path, [SimulatedFunction(address=A, driver="vfio-pci", group=12, numa=0)])
    argv = ["--node", "node-a", "--sysfs", tree.root, "--pod-resources", kubelet.pod_resources]
    argv += ["--kubeconfig", cluster.kubeconfig, "--interval", "0.5"]
    async with (
        Client(config.load(cluster.kubeconfig)) as client,
        Reports(client, "node-a") as reports,
        DevicePlugin(kubelet.device_plugins, ADDRESS, [A]),
    ):
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "gpuclaim", "agent", *map(str, argv))
        try:
            await reports.until_says({A: (HEALTHY, {ADDRESS: (1, 0)}, ())})
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 5) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


async def account_with_all_rights(client: Client, name: str) -> str:
    """A token of a new ServiceAccount that may do everything, until the ClusterRoleBinding of its name is deleted."""
    accounts, meta = "/api/v1/namespaces/default/serviceaccounts", {"name": name, "namespace": "default"}
    await client.request("POST", accounts, body={"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", **meta}],
    }
    await client.request("POST", BINDINGS, body=binding)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    made = await client.request("POST", f"{accounts}/{name}/token", body=body)
    return str(msgspec.json.decode(made)["status"]["token"])


def start_again(cluster: ControlPlane) -> None:
    apiserver = cluster.processes["kube-apiserver"]
    apiserver.start()
    apiserver.wait_until(lambda: cluster.rest.answers("/readyz"))


def owners(node: GPUNode) -> list[tuple[str, str, str]]:
    return [(each.kind, each.name, each.uid) for each in node.metadata.owner_references]
