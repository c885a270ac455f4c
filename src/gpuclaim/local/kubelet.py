"""A real kubelet on this machine, with Kubernetes' fake container runtime under it.

Its device manager, admission and pod-resources API are the real ones: pods get
devices, or are turned away, as on a GPU node. Its containers run no code.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from gpuclaim.local import build, certificates
from gpuclaim.local.process import free_ports
from gpuclaim.local.rest import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuclaim.local.controlplane import ControlPlane
    from gpuclaim.local.process import Process

# Kubelet sets these for the whole machine; it gets files of its own in their place.
_SYSCTLS = {
    "kernel/keys/root_maxbytes": "25000000",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
}


class NotRootError(Exception):
    """A kubelet needs root, on Linux."""


def available() -> bool:
    """Return whether this process may start a kubelet: root on Linux."""
    return sys.platform == "linux" and os.geteuid() == 0


class Kubelet:
    """One kubelet, registered as the Node `name`, in a mount namespace of its own.

    It changes nothing of the machine outside its folder: /var/lib and /var/log are the
    folder's, and the sysctls that it sets are files there.

        with Kubelet(cluster, "node-a") as node:
            plugin.serve(node.device_plugins)

    Attributes:
        name: the Node's name.
        directory: its folder; /var/lib/kubelet is `directory`/lib/kubelet.
        device_plugins: the folder where device plugins put their sockets, and where `kubelet.sock` is.
        pod_resources: the socket of the pod-resources API.
    """

    def __init__(
        self,
        cluster: ControlPlane,
        name: str,
        *,
        version: str | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        configuration: Mapping[str, object] | None = None,
    ) -> None:
        """Prepare a kubelet; nothing starts yet.

        Args:
            cluster: a started control plane; it stops the kubelet when it stops, at the latest.
            name: the Node's name.
            version: the minor version of kubelet, as "1.34"; that of the control plane when None.
            labels: labels of the Node.
            taints: taints of the Node, as `{"key": …, "value": …, "effect": …}`.
            configuration: fields of a KubeletConfiguration beside the generated ones.

        Raises:
            NotRootError: this process may not start one.
        """
        if not available():
            raise NotRootError("a real kubelet needs root on Linux: run this as root, or without kubelets")
        self.name = name
        self._cluster = cluster
        self._version = version or cluster.version
        self._labels = {**(labels or {})}
        self._taints = [{**taint} for taint in taints]
        self._configuration = {**(configuration or {})}
        # Not below the control plane's: the path of a unix socket may have 107 bytes at most.
        self.directory = Path(tempfile.mkdtemp(prefix="gpuclaim-kubelet-"))
        state = self.directory / "lib" / "kubelet"
        self.device_plugins = state / "device-plugins"
        self.pod_resources = state / "pod-resources" / "kubelet.sock"
        self._runtime: Process | None = None
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """The kubelet's process."""
        assert self._process, "not started"
        return self._process

    @property
    def node(self) -> dict[str, Any]:
        """The Node object, as it is now."""
        node: dict[str, Any] = self._cluster.rest.get(f"/api/v1/nodes/{self.name}")
        return node

    def start(self) -> Self:
        """Start runtime and kubelet and return when the Node is Ready and device plugins can register.

        Raises:
            ToolchainError, BuildError: there is no program and none could be built.
            EarlyExitError, NotReadyError: it did not start; the message shows its log.
        """
        endpoint = f"unix://{self.directory / 'cri.sock'}"
        runtime = build.command("fake-runtime", self._version)
        self._runtime = self._cluster.process(f"runtime-{self.name}", [*runtime, f"--listen={endpoint}"])
        self._runtime.start()
        self._runtime.wait_until((self.directory / "cri.sock").exists)
        self._process = self._cluster.process(f"kubelet-{self.name}", self._command(endpoint), binds=self._binds())
        return self._run()

    def restart(self) -> Self:
        """Stop kubelet and start it again; its pods run on in the runtime meanwhile."""
        self.process.stop()
        for socket in self._sockets():
            socket.unlink(missing_ok=True)
        return self._run()

    def stop(self) -> None:
        """End kubelet and runtime, take the Node out of the cluster and remove the folder."""
        for process in (self._process, self._runtime):
            if process:
                process.stop()
                self._cluster.processes.pop(process.name, None)
        try:
            self._cluster.rest.delete(f"/api/v1/nodes/{self.name}")
        except (OSError, RequestError):
            pass  # the Node, or the apiserver, has gone already
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def _run(self) -> Self:
        self.process.start()
        self.process.wait_until(self._ready)
        return self

    def _ready(self) -> bool:
        if not all(socket.exists() for socket in self._sockets()):
            return False
        try:
            conditions = self.node["status"].get("conditions", [])
        except RequestError:
            return False
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _sockets(self) -> tuple[Path, Path]:
        return self.device_plugins / "kubelet.sock", self.pod_resources

    def _binds(self) -> list[tuple[Path, Path]]:
        binds = []
        for part in ("lib", "log"):
            own = self.directory / part
            own.mkdir(exist_ok=True)
            binds.append((own, Path("/var") / part))
        for name, value in _SYSCTLS.items():
            own = self.directory / "sysctl" / name
            own.parent.mkdir(parents=True, exist_ok=True)
            own.write_text(value + "\n")
            target = Path("/proc/sys") / name
            if target.exists():
                binds.append((own, target))
        return binds

    def _command(self, endpoint: str) -> list[str]:
        authority = self._cluster.authority
        certificate, key = authority.issue(f"kubelet-{self.name}", self.name)
        (port,) = free_ports(1)
        resolver = self.directory / "resolv.conf"
        resolver.touch()
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": port,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(authority.file)}},
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "containerRuntimeEndpoint": endpoint,
            # Nothing of this machine is managed or measured.
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "resolvConf": str(resolver),
            "volumePluginDir": str(self.directory / "volume-plugins"),
            # What pods and plugins change is seen in the Node in a second, not in ten.
            "nodeStatusUpdateFrequency": "1s",
            "registerWithTaints": self._taints,
            **self._configuration,
        }
        file = self.directory / "config.yaml"
        certificates.write_private(file, yaml.safe_dump(configuration).encode())
        kubeconfig = self._cluster.kubeconfig_for(f"system:node:{self.name}", ["system:nodes"])
        labels = ",".join(f"{name}={value}" for name, value in self._labels.items())
        return [
            *build.command("kubelet", self._version),
            f"--config={file}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            *([f"--node-labels={labels}"] if labels else []),
        ]
