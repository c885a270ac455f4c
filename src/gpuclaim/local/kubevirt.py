"""KubeVirt on a local control plane: the real virt-controller and CRDs, and a stand-in for virt-handler.

virt-controller makes VirtualMachineInstances of VirtualMachines, and launcher pods of these. There is no virt-api, so
that nothing is defaulted, or checked beyond the CRDs: a VirtualMachine must say `architecture: amd64` in its template,
and `virtctl`, which calls virt-api, does not work: `spec.runStrategy` switches a VM on and off.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import http.client
import json
import logging
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from gpuclaim.api.core import ObjectMeta, Struct
from gpuclaim.kube import config, resources
from gpuclaim.kube.client import ApiError, Client, Content, UnreachableError
from gpuclaim.kube.informer import Informer
from gpuclaim.kube.resources import Resource
from gpuclaim.local import build, toolchain
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.process import Process, free_ports
from gpuclaim.local.toolchain import Progress

VERSION: Final = "v1.8.0"

NODE_LABELS: Final[Mapping[str, str]] = {"kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true"}
"""The labels that a launcher pod's node selector asks for, beside those that the VM itself asks for.

virt-handler keeps the second one, with a heartbeat in the annotation `kubevirt.io/heartbeat`. A node without that
annotation is taken for alive; one whose heartbeat is minutes old is made unschedulable."""

NODE_DEVICES: Final[Mapping[str, int]] = dict.fromkeys(
    ("devices.kubevirt.io/kvm", "devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-net"), 1000
)
"""The resources, beside GPUs, that a launcher pod asks for one of each, and how many virt-handler offers of them."""

_log: Final = logging.getLogger(__name__)
_DEFINITIONS: Final = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False)
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_FINALIZER: Final = "kubevirt.io/foregroundDeleteVirtualMachine"  # virt-controller takes it away again
_RETRY_SECONDS: Final = 0.5
_ESTABLISHED_SECONDS: Final = 60


class KubeVirtError(Exception):
    """KubeVirt's CRDs cannot be had or are not served; the message says why."""


def component() -> build.Component:
    """Return the component that is virt-controller and the CRDs in one program."""
    return build.Component("kubevirt", VERSION, toolchain.localkube_dir() / "kubevirt")


class KubeVirt:
    """virt-controller on a started control plane, which stops it when it stops, at the latest.

        async with KubeVirt(cluster, ["nvidia.com/GH100_H200"]):
            ...

    Attributes:
        namespace: where the KubeVirt object is.
    """

    def __init__(
        self, cluster: ControlPlane, resource_names: Sequence[str], progress: Progress = toolchain.silent
    ) -> None:
        """Prepare it; nothing starts yet.

        Args:
            cluster: a started control plane; pods need its `CONTROLLERS`.
            resource_names: the extended resources that VMs may name as `deviceName`.
            progress: told what is going on.
        """
        # virt-controller takes its own pod's namespace where it runs in one, and this machine may be one.
        self.namespace = _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.exists() else "kubevirt"
        self._cluster = cluster
        self._resource_names = tuple(resource_names)
        self._progress = progress
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """virt-controller's process."""
        assert self._process, "not started"
        return self._process

    async def start(self) -> Self:
        """Install what is not there yet, start virt-controller and return when it leads.

        Raises:
            ToolchainError, BuildError: there is no program and none could be built.
            KubeVirtError: the CRDs are not served.
            ApiError, UnreachableError: the apiserver takes an object not, or does not answer.
            EarlyExitError, NotReadyError: virt-controller did not start; the message shows its log.
        """
        program = await asyncio.to_thread(build.ensure, component(), self._progress)
        async with Client(config.load(self._cluster.kubeconfig)) as client:
            definitions = await asyncio.to_thread(_definitions, program)
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
            await asyncio.gather(client.apply(namespace), _install(client, definitions))
            configuration = _configuration(self.namespace, self._resource_names)
            await client.apply(configuration)
            # virt-operator would say so; virt-controller takes no configuration from an object without a phase.
            deployed = {key: configuration[key] for key in ("apiVersion", "kind", "metadata")}
            await client.apply(deployed | {"status": {"phase": "Deployed"}}, subresource="status")
        await asyncio.to_thread(self._run, program)
        return self

    async def stop(self) -> None:
        """End virt-controller; the objects stay."""
        if self._process:
            await asyncio.to_thread(self._process.stop)
            self._cluster.processes.pop(self._process.name, None)
            self._process = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _run(self, program: Path) -> None:
        certificate, key = self._cluster.authority.issue("virt-controller", "virt-controller")
        (port,) = free_ports(1)
        self._process = self._cluster.process(
            "virt-controller",
            [
                *(str(program), "virt-controller"),
                f"--kubeconfig={self._cluster.kubeconfig}",
                "--listen=127.0.0.1",
                f"--port={port}",
                f"--prom-cert-file={certificate}",
                f"--prom-key-file={key}",
            ],
        )
        self._process.start()
        self._process.wait_until(lambda: _leads(port, self._cluster.authority.file))


class VirtualMachineInstanceCondition(Struct, frozen=True, kw_only=True):
    """kubevirt.io/v1 VirtualMachineInstanceCondition."""

    type: str
    reason: str = ""


class VirtualMachineInstanceStatus(Struct, frozen=True, kw_only=True):
    """kubevirt.io/v1 VirtualMachineInstanceStatus."""

    phase: str = ""
    conditions: list[VirtualMachineInstanceCondition] = []


class VirtualMachineInstance(Struct, frozen=True, kw_only=True):
    """kubevirt.io/v1 VirtualMachineInstance, as far as the stand-in looks."""

    metadata: ObjectMeta
    status: VirtualMachineInstanceStatus = VirtualMachineInstanceStatus()


resources.TYPED[VirtualMachineInstance] = Resource("kubevirt.io/v1", "virtualmachineinstances", namespaced=True)


class VirtHandlerStandIn:
    """A stand-in for virt-handler on every node: it says that guests run, which do not exist.

    virt-handler starts the guest once the launcher pod is ready (phase Scheduled), and shuts it down when its
    VirtualMachineInstance is deleted. The stand-in says the same of it, at once: Running, then Succeeded; and Failed
    where the pod ends under it, also where that is deleted, which a real guest may survive long enough to shut down. It
    also adds the finalizer that virt-api would add. All else (pods, conditions, a VM's status) is the real
    virt-controller's.
    """

    def __init__(self) -> None:
        self._due: asyncio.Queue[VirtualMachineInstance] = asyncio.Queue()

    async def run(self, client: Client) -> None:
        """Run until cancelled; requests that fail are repeated."""
        async with asyncio.TaskGroup() as group:
            group.create_task(Informer(client, VirtualMachineInstance, self).run())
            while True:
                await self._sync(client, await self._due.get())

    def changed(self, obj: VirtualMachineInstance) -> None:
        """A VirtualMachineInstance is new or has changed."""
        self._due.put_nowait(obj)

    def gone(self, namespace: str, name: str) -> None:
        """It is no more; nothing is left to do."""

    async def _sync(self, client: Client, vmi: VirtualMachineInstance) -> None:
        phase = _next_phase(vmi)
        if phase is None:
            return
        meta = vmi.metadata
        # virt-controller writes to the same object: only what was seen may change.
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": meta.uid},
            {"op": "test", "path": "/status/phase", "value": vmi.status.phase},
            {"op": "replace", "path": "/status/phase", "value": phase},
            # A VM that was never seen running is taken for one that fails to start: its next start is put off.
            {
                "op": "add",
                "path": "/status/phaseTransitionTimestamps/-",
                "value": {"phase": phase, "phaseTransitionTimestamp": now},
            },
        ]
        if phase == "Running" and _FINALIZER not in meta.finalizers:
            # virt-api would have set it: the instance stays until its pods are gone, and is not started anew before.
            patch += [
                {"op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version},
                {"op": "add", "path": "/metadata/finalizers", "value": [*meta.finalizers, _FINALIZER]},
            ]
        try:
            await client.patch(VirtualMachineInstance, meta.name, patch, meta.namespace, content=Content.JSON)
        except (ApiError, UnreachableError) as error:
            if isinstance(error, ApiError) and error.code in {404, 409, 422}:
                return  # gone, or changed: the informer tells
            _log.warning("virtual machine instance %s/%s: %s", meta.namespace, meta.name, error)
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._due.put_nowait, vmi)


def _next_phase(vmi: VirtualMachineInstance) -> str | None:
    """What virt-handler would say next of the guest; None where it has nothing to say."""
    if vmi.status.phase not in {"Scheduled", "Running"}:
        return None
    if vmi.metadata.deletion_timestamp is not None:
        return "Succeeded"
    # virt-controller's word for a pod that is in a final phase or being deleted; it leaves the phase to virt-handler.
    if any((each.type, each.reason) == ("Ready", "PodTerminating") for each in vmi.status.conditions):
        return "Failed"
    return "Running" if vmi.status.phase == "Scheduled" else None


def _configuration(namespace: str, resource_names: Sequence[str]) -> dict[str, Any]:
    # virt-controller looks at the resource's name only; which device it is, virt-handler's plugin would look at.
    devices = [
        {"pciVendorSelector": f"FFFF:{number:04X}", "resourceName": name, "externalResourceProvider": True}
        for number, name in enumerate(resource_names)
    ]
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": namespace},
        "spec": {
            "configuration": {
                "developerConfiguration": {"featureGates": ["GPU", "HostDevices"]},
                "permittedHostDevices": {"pciHostDevices": devices},
            }
        },
    }


def _definitions(program: Path) -> list[dict[str, Any]]:
    answer = subprocess.run((program, "crds"), capture_output=True, check=False)
    if answer.returncode != 0:
        raise KubeVirtError(f"{program.name} prints no CRDs: {answer.stderr.decode(errors='replace').strip()}")
    return [msgspec.json.decode(line) for line in answer.stdout.splitlines()]


async def _install(client: Client, definitions: Sequence[dict[str, Any]]) -> None:
    """Apply CRDs, all at once, and return when they are served."""
    applied = await asyncio.gather(*(client.apply(each) for each in definitions))
    missing = {each["metadata"]["name"] for each in applied if not _established(each)}
    try:
        async with asyncio.timeout(_ESTABLISHED_SECONDS):
            while missing:
                await _watch_definitions(client, missing)
    except TimeoutError:
        raise KubeVirtError(f"not served after {_ESTABLISHED_SECONDS} s: {', '.join(sorted(missing))}") from None


async def _watch_definitions(client: Client, missing: set[str]) -> None:
    """Take the CRDs that are served out of `missing`; return when none is left, or when the watch ends."""
    listed, version = await client.list_raw(_DEFINITIONS)
    missing -= {each["metadata"]["name"] for each in map(_decoded, listed) if _established(each)}
    if not missing:
        return
    async with contextlib.aclosing(client.watch(_DEFINITIONS, since=version)) as events:
        async for _, item in events:
            each = _decoded(item)
            if _established(each):
                missing.discard(each["metadata"]["name"])
            if not missing:
                return


def _decoded(item: msgspec.Raw) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(item)
    return found


def _established(definition: Mapping[str, Any]) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _leads(port: int, authority: Path) -> bool:
    # Not `Rest`: virt-controller knows no authority that a client's certificate could be of, and refuses each.
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
    try:
        connection.request("GET", "/leader")
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return bool(answer["apiserver"]["leader"] == "true")
