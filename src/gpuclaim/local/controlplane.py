"""A Kubernetes control plane on 127.0.0.1: the released components, ready in seconds."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import yaml

from gpuclaim.local import build, certificates, toolchain
from gpuclaim.local.process import PortInUseError, Process, check_port, free_ports
from gpuclaim.local.rest import Rest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuclaim.local.toolchain import Progress

CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
)
"""The controllers that pods, quotas, owners and roles need. Others, such as `node-lifecycle-controller`,
`pod-garbage-collector-controller`, `deployment-controller`, are named beside these by who wants them."""

ADMIN = ("gpuclaim-admin", "system:masters")
_START_ATTEMPTS = 3  # a port that was free may be taken before it is used
_SERVICE_RANGE = "10.0.0.0/24"
_UNTAINTED = "--disable-admission-plugins=TaintNodesByCondition"
_QPS = 5000  # far above what this machine does, so that no client's own limit is what is seen


class ControlPlane:
    """etcd and kube-apiserver, and where wanted kube-scheduler and kube-controller-manager.

    Its methods block; `async with` moves starting and stopping off the loop.

        with ControlPlane(scheduler=True) as cluster:
            cluster.rest.get("/api/v1/nodes")

    A `directory` that an earlier control plane of the same version was stopped in goes on from its state.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        version: str | None = None,
        port: int = 0,
        scheduler: bool = False,
        controllers: Sequence[str] = (),
        feature_gates: Mapping[str, bool] | None = None,
        runtime_config: Mapping[str, str] | None = None,
        apiserver_arguments: Sequence[str] = (),
        scheduler_configuration: Mapping[str, object] | None = None,
        progress: Progress = toolchain.silent,
    ) -> None:
        """Prepare a control plane; nothing starts yet.

        Args:
            directory: where state, certificates and logs go; a temporary one that `stop` removes when None.
            version: the minor version of Kubernetes, as "1.34"; the newest when None.
            port: the apiserver's port; a free one when 0.
            scheduler: whether kube-scheduler runs.
            controllers: which controllers kube-controller-manager runs (`CONTROLLERS`); it does not run with none.
            feature_gates: feature gates of all components.
            runtime_config: API groups and versions to switch, as `{"resource.k8s.io/v1": "true"}`.
            apiserver_arguments: further arguments of kube-apiserver.
            scheduler_configuration: fields of a KubeSchedulerConfiguration beside the generated ones.
            progress: told what is going on.
        """
        self.version = version
        self.directory = Path(directory or tempfile.mkdtemp(prefix="gpuclaim-")).absolute()
        self.processes: dict[str, Process] = {}
        self._temporary = directory is None
        self._wanted_port = port
        self._with_scheduler = scheduler
        self._controllers = tuple(controllers)
        self._gates = {**(feature_gates or {})}
        self._runtime_config = {**(runtime_config or {})}
        self._apiserver_arguments = tuple(apiserver_arguments)
        self._scheduler_configuration = {**(scheduler_configuration or {})}
        self._progress = progress
        self._port = self._etcd_port = 0
        self.authority = certificates.Authority.load(self.directory / "pki")
        self._admin = self.authority.issue("admin", *_subject(ADMIN))
        self._serving = self.authority.issue("serving", "kube-apiserver")
        self._rest: Rest | None = None
        self._etcd: Rest | None = None

    # What callers use of a running one.

    @property
    def url(self) -> str:
        """The apiserver's URL."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.directory / "kubeconfig"

    @property
    def rest(self) -> Rest:
        """The administrator's blocking client."""
        assert self._rest, "not started"
        return self._rest

    @property
    def etcd(self) -> Rest:
        """A client of etcd's JSON gateway (`/v3/kv/range`), for what no API offers."""
        assert self._etcd, "not started"
        return self._etcd

    def kubectl(self) -> list[str]:
        """Return how to run a kubectl of this version as the administrator."""
        return [*build.command("kubectl", self.version, self._progress), f"--kubeconfig={self.kubeconfig}"]

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Return a new kubeconfig of a user with a client certificate, readable by its owner only.

        Args:
            user: the user's name, as `system:node:a` or `alice`.
            groups: the user's groups; `system:authenticated` is always added by the apiserver.
        """
        # The digest keeps names apart that a file name cannot.
        readable = "".join(each if each.isalnum() or each in "-." else "-" for each in user)[:40]
        name = f"{readable}-{hashlib.sha256(repr((user, *groups)).encode()).hexdigest()[:8]}"
        file = self.directory / "kubeconfigs" / name
        self._write_kubeconfig(file, user, self.authority.issue(f"user-{name}", user, groups))
        return file

    def client(self, user: str, groups: Sequence[str] = ()) -> Rest:
        """Return a blocking client of a user with a client certificate; close it after use."""
        name = f"client-{hashlib.sha256(repr((user, *groups)).encode()).hexdigest()[:8]}"
        return Rest(self.url, self.authority.file, self.authority.issue(name, user, groups))

    # Starting and stopping.

    def start(self) -> Self:
        """Start what is wanted and return when all of it answers.

        Raises:
            ToolchainError, BuildError: there are no programs and none could be built.
            PortInUseError: `port` is taken.
            EarlyExitError, NotReadyError: a component did not start; the message shows its log.
        """
        # First, so that the time to ready is that of the components.
        for program in ("etcd", "kube-apiserver"):
            build.command(program, self.version, self._progress)
        if self._wanted_port:
            check_port(self._wanted_port, "kube-apiserver")
        began = time.monotonic()
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._start_storage_and_api()
                break
            except PortInUseError:
                self._stop_processes()
                if attempt == _START_ATTEMPTS or self._wanted_port:
                    raise
            except BaseException:
                self._stop_processes()
                raise
        ready_api = time.monotonic() - began
        try:
            self._start_the_rest()
        except BaseException:
            self._stop_processes()
            raise
        self._progress(
            f"Kubernetes {self.rest.get('/version')['gitVersion']}: apiserver ready in {ready_api:.1f} s,"
            f" all in {time.monotonic() - began:.1f} s"
        )
        return self

    def stop(self) -> None:
        """End every component, and remove the directory if it is a temporary one."""
        self._stop_processes()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def process(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        binds: Sequence[tuple[Path, Path]] = (),
    ) -> Process:
        """Return a new process that is stopped with the control plane; its log is in `directory`/logs.

        It is not started. What is added last is stopped first.
        """
        process = Process(name, command, self.directory / "logs" / f"{name}.log", environment=environment, binds=binds)
        self.processes[name] = process
        return process

    def start_scheduler(self) -> Process:
        """Start kube-scheduler and return when it is ready."""
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.kubeconfig), "qps": _QPS, "burst": 2 * _QPS},
            **self._scheduler_configuration,
        }
        file = self.directory / "scheduler.yaml"
        certificates.write_private(file, yaml.safe_dump(configuration).encode())
        return self._start_client("kube-scheduler", f"--config={file}")

    def start_controller_manager(self) -> Process:
        """Start kube-controller-manager with the wanted controllers and return when pods can be created."""
        process = self._start_client(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            f"--controllers={','.join(self._controllers)}",
            f"--root-ca-file={self.authority.file}",
            f"--service-account-private-key-file={self.authority.signing_key('service-accounts')}",
            f"--kube-api-qps={_QPS}",
            f"--kube-api-burst={2 * _QPS}",
            # A quota's status follows at once, not at the next full pass of minutes.
            "--resource-quota-sync-period=10s",
        )
        # A pod in the default namespace is refused until its ServiceAccount is there.
        needed = {
            "serviceaccount-controller": "/api/v1/namespaces/default/serviceaccounts/default",
            "root-ca-certificate-publisher-controller": "/api/v1/namespaces/default/configmaps/kube-root-ca.crt",
        }
        for controller, path in needed.items():
            if controller in self._controllers:
                process.wait_until(lambda path=path: self.rest.answers(path))  # type: ignore[misc]
        return process

    def _start_storage_and_api(self) -> None:
        self._etcd_port, *others = free_ports(2)
        self._port = self._wanted_port or others[0]
        etcd_url = f"https://127.0.0.1:{self._etcd_port}"
        certificate, key = self._serving
        etcd = self.process(
            "etcd",
            [
                *build.command("etcd", self.version, self._progress),
                f"--data-dir={self.directory / 'etcd'}",
                f"--listen-client-urls={etcd_url}",
                f"--advertise-client-urls={etcd_url}",
                "--listen-peer-urls=http://127.0.0.1:0",
                f"--cert-file={certificate}",
                f"--key-file={key}",
                f"--trusted-ca-file={self.authority.file}",
                "--client-cert-auth",
                # State of a test or a trial: what a power cut would lose is no loss.
                "--unsafe-no-fsync",
                # The one member elects itself as soon as these let it.
                "--heartbeat-interval=20",
                "--election-timeout=200",
                f"--quota-backend-bytes={8 << 30}",
                "--log-level=warn",
            ],
        )
        token_key = self.authority.signing_key("service-accounts")
        apiserver = self.process(
            "kube-apiserver",
            [
                *build.command("kube-apiserver", self.version, self._progress),
                f"--etcd-servers={etcd_url}",
                f"--etcd-cafile={self.authority.file}",
                f"--etcd-certfile={certificate}",
                f"--etcd-keyfile={key}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self._port}",
                f"--tls-cert-file={certificate}",
                f"--tls-private-key-file={key}",
                f"--client-ca-file={self.authority.file}",
                # Nobody has this name; without a front proxy's CA the other components complain without end.
                f"--requestheader-client-ca-file={self.authority.file}",
                "--requestheader-allowed-names=front-proxy",
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                f"--kubelet-certificate-authority={self.authority.file}",
                f"--kubelet-client-certificate={self._admin[0]}",
                f"--kubelet-client-key={self._admin[1]}",
                "--authorization-mode=Node,RBAC",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-signing-key-file={token_key}",
                f"--service-account-key-file={token_key}",
                f"--service-cluster-ip-range={_SERVICE_RANGE}",
                # Endpoints on a loopback address are invalid, and nothing here reads them.
                "--endpoint-reconciler-type=none",
                "--allow-privileged=true",
                "--profiling=false",
                # Admission taints new nodes, and only this controller takes the taint away again.
                *([] if "node-lifecycle-controller" in self._controllers else [_UNTAINTED]),
                *self._gate_arguments(),
                *(f"--runtime-config={name}={value}" for name, value in self._runtime_config.items()),
                *self._apiserver_arguments,
            ],
        )
        self._close_clients()
        self._etcd = Rest(etcd_url, self.authority.file, self._admin)
        self._rest = Rest(self.url, self.authority.file, self._admin)
        self._write_kubeconfig(self.kubeconfig, ADMIN[0], self._admin)
        etcd.start()
        apiserver.start()  # it takes longer to come to its first need of etcd than etcd takes to be ready
        etcd.wait_until(lambda: self.etcd.answers("/health"))
        # It answers after a second, and has its own roles two later: it waits one before it makes them.
        apiserver.wait_until(lambda: self.rest.answers("/readyz"))

    def _start_the_rest(self) -> None:
        if self._controllers:
            self.start_controller_manager()
        if self._with_scheduler:
            self.start_scheduler()

    def _start_client(self, program: str, *arguments: str) -> Process:
        (port,) = free_ports(1)
        certificate, key = self._serving
        process = self.process(
            program,
            [
                *build.command(program, self.version, self._progress),
                *arguments,
                *self._gate_arguments(),
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--tls-cert-file={certificate}",
                f"--tls-private-key-file={key}",
                f"--authentication-kubeconfig={self.kubeconfig}",
                f"--authorization-kubeconfig={self.kubeconfig}",
                "--profiling=false",
            ],
        )
        process.start()
        with Rest(f"https://127.0.0.1:{port}", self.authority.file, self._admin) as rest:
            process.wait_until(lambda: rest.answers("/healthz"))
        return process

    def _gate_arguments(self) -> list[str]:
        gates = ",".join(f"{name}={str(on).lower()}" for name, on in self._gates.items())
        return [f"--feature-gates={gates}"] if gates else []

    def _write_kubeconfig(self, file: Path, user: str, certificate: tuple[Path, Path]) -> None:
        def encoded(part: Path) -> str:
            return base64.b64encode(part.read_bytes()).decode()

        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "gpuclaim",
                    "cluster": {"server": self.url, "certificate-authority-data": encoded(self.authority.file)},
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": encoded(certificate[0]),
                        "client-key-data": encoded(certificate[1]),
                    },
                }
            ],
            "contexts": [{"name": "gpuclaim", "context": {"cluster": "gpuclaim", "user": user}}],
            "current-context": "gpuclaim",
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        certificates.write_private(file, yaml.safe_dump(content, sort_keys=False).encode())

    def _stop_processes(self) -> None:
        self._close_clients()
        for name, process in reversed(tuple(self.processes.items())):
            # An apiserver waits for its watchers to go away; nobody waits for that here.
            process.stop(grace=0.5 if name == "kube-apiserver" else 5.0)
        self.processes.clear()

    def _close_clients(self) -> None:
        for client in (self._rest, self._etcd):
            if client:
                client.close()


def _subject(identity: tuple[str, str]) -> tuple[str, tuple[str, ...]]:
    return identity[0], (identity[1],)
