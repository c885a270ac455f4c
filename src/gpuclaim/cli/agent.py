"""`gpuclaim agent` (R71): the node agent, or with --once one report and no apiserver (R29)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from gpuclaim.agent import pciids
from gpuclaim.agent.machine import READ_ERRORS, Machine
from gpuclaim.agent.podresources import DEFAULT_SOCKET, DEVICE_PLUGINS
from gpuclaim.agent.report import Phases, body, report
from gpuclaim.agent.sysfs import BOOT_ID
from gpuclaim.api.core import ObjectMeta, PodStatus, Struct
from gpuclaim.api.names import API_VERSION
from gpuclaim.api.types import GPUNodeStatus
from gpuclaim.cli import logs, options

if TYPE_CHECKING:
    # Loaded by the daemon only: the apiserver's client is half of its memory.
    from gpuclaim.agent.loop import AgentConfig
    from gpuclaim.kube.config import Config

T = TypeVar("T")

_SCHEME: Final = "unix://"


class _Pod(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    status: PodStatus = PodStatus()


class _PodList(Struct, frozen=True, kw_only=True):
    kind: str
    items: list[_Pod]


class _Previous(Struct, frozen=True, kw_only=True):
    kind: str
    status: GPUNodeStatus = GPUNodeStatus()


def _socket(_ctx: click.Context, _param: click.Parameter, value: str) -> Path:
    path = value.removeprefix(_SCHEME)
    if "://" in path or (value.startswith(_SCHEME) and not path.startswith("/")):
        raise click.BadParameter("must be a path, or unix:///PATH")
    return Path(path)


@click.command()
@click.option(
    "--node", envvar="NODE_NAME", required=True, show_envvar=True, help="The name of the Node that this machine is."
)
@click.option(
    "--sysfs",
    type=click.Path(path_type=Path),
    default="/sys",
    show_default=True,
    help="The root of the sysfs to read, as mounted.",
)
@click.option(
    "--pod-resources",
    callback=_socket,
    metavar="SOCKET",
    default=str(DEFAULT_SOCKET),
    show_default=True,
    help="Kubelet's pod-resources socket: a path, or unix:///PATH.",
)
@click.option(
    "--device-plugins",
    type=click.Path(path_type=Path),
    default=DEVICE_PLUGINS,
    show_default=True,
    help="The folder of the device plugins' sockets, where it is in sight: what comes or goes there is read at once.",
)
@click.option("--once", is_flag=True, help="Print the GPUNode of one reading and end; needs no apiserver.")
@click.option(
    "--pods", type=click.Path(path_type=Path), help="With --once: a PodList (YAML or JSON) with the pods' phases."
)
@click.option(
    "--previous", type=click.Path(path_type=Path), help="With --once: the GPUNode of the reading before (YAML or JSON)."
)
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="With --once."
)
@options.kubeconfig
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=10,
    show_default=True,
    help="Seconds from one reading to the next; a new kubelet is read at once.",
)
@click.option(
    "--heartbeat",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    help="Seconds after which a report that did not change is written again, at the latest.",
)
@click.option(
    "--settle",
    type=click.FloatRange(min=0),
    default=20,
    show_default=True,
    help="Seconds that device plugins have to register after a start of kubelet, before a loss of devices is reported.",
)
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=10, show_default=True, help="Seconds for kubelet's answer."
)
@click.option(
    "--pci-ids",
    type=click.Path(path_type=Path),
    help="A PCI ID database for model names; else the system's, where it has one.",
)
@click.option(
    "--boot-id",
    type=click.Path(path_type=Path),
    default=BOOT_ID,
    show_default=True,
    help="The file with the ID of this boot.",
)
@click.option(
    "--pod-phases/--no-pod-phases",
    default=True,
    show_default=True,
    help="Ask for the phases of pods: kubelets before 1.34 list pods that have ended as well.",
)
@click.option(
    "--listen",
    callback=options.address,
    metavar="ADDRESS:PORT",
    help="Serve /healthz, /readyz and /metrics there; :PORT is every address. Not with --once.",
)
@logs.options
def agent(
    node: str,
    sysfs: Path,
    pod_resources: Path,
    device_plugins: Path,
    once: bool,
    pods: Path | None,
    previous: Path | None,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
    interval: float,
    heartbeat: float,
    settle: float,
    timeout: float,
    pci_ids: Path | None,
    boot_id: Path,
    pod_phases: bool,
    listen: tuple[str, int] | None,
    log_level: str,
    log_format: str,
) -> None:
    """Run the node agent: report the node's GPUs, and what kubelet makes of them, as the node's GPUNode.

    It runs on every node, as a user who may read sysfs and open kubelet's socket. It needs an identity that may
    create and patch the status of its own GPUNode, get its Node, and list pods.

    \b
    One reading, printed, without any cluster:
      gpuclaim agent --once --node "$(hostname)"
    """  # noqa: D301 - \b keeps click from filling the lines
    if not once and (pods is not None or previous is not None):
        raise click.UsageError("--pods and --previous go with --once; running, the agent asks the apiserver")
    if not sysfs.is_dir():
        raise click.ClickException(f"there is no folder {sysfs}: --sysfs must be the root of a sysfs, such as /sys")
    try:
        name_model = pciids.load(pci_ids)
    except OSError as error:
        raise click.ClickException(f"cannot read the PCI ID database {pci_ids}: {error.strerror}") from None
    if once:
        machine = Machine(sysfs, pod_resources, boot_id=boot_id, timeout=timeout)
        click.echo(_printed(_once(machine, node, name_model, _phases(pods), _status(previous)), output), nl=False)
        return
    from gpuclaim.agent.http import ListenError
    from gpuclaim.agent.loop import AgentConfig
    from gpuclaim.kube.config import ConfigError, load

    logs.start(log_level, log_format)
    config = AgentConfig(
        node=node,
        sysfs=sysfs,
        pod_resources=pod_resources,
        device_plugins=device_plugins,
        boot_id=boot_id,
        pci_ids=pci_ids,
        interval=interval,
        heartbeat=heartbeat,
        settle=settle,
        timeout=timeout,
        pod_phases=pod_phases,
        listen=listen,
    )
    try:
        api = load(kubeconfig, context)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    try:
        asyncio.run(_until_signal(api, config))
    except ListenError as error:
        raise click.ClickException(str(error)) from None


def _once(
    machine: Machine, node: str, name_model: pciids.Model, phases: Phases, previous: GPUNodeStatus | None
) -> dict[str, Any]:
    async def read() -> dict[str, Any]:
        with machine:
            reading = await machine.read()
        for fault in reading.functions.faults:
            click.echo(f"Warning: {fault}", err=True)
        status = report(
            reading.functions,
            reading.answers,
            phases,
            previous,
            boot_id=reading.boot_id,
            name_model=name_model,
            now=dt.datetime.now(dt.UTC),
        )
        return {"apiVersion": API_VERSION, "kind": "GPUNode", "metadata": {"name": node}, "status": body(status)}

    try:
        return asyncio.run(read())
    except READ_ERRORS as error:
        raise click.ClickException(str(error)) from None


def _printed(value: dict[str, Any], output: str) -> str:
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False))


def _phases(path: Path | None) -> Phases:
    if path is None:
        return {}
    listed = _decoded(path, _PodList, "--pods", "PodList")
    if listed.kind not in ("PodList", "List"):
        raise click.ClickException(f"{path} is a {listed.kind}: --pods must be a PodList")
    return {(pod.metadata.namespace, pod.metadata.name): pod.status.phase for pod in listed.items}


def _status(path: Path | None) -> GPUNodeStatus | None:
    if path is None:
        return None
    node = _decoded(path, _Previous, "--previous", "GPUNode")
    if node.kind != "GPUNode":
        raise click.ClickException(f"{path} is a {node.kind}: --previous must be a GPUNode")
    return node.status


def _decoded(path: Path, type_: type[T], option: str, kind: str) -> T:
    import yaml

    try:
        # JSON is YAML; times come as such from YAML's own reader, and as strings from JSON's.
        loaded = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
        return msgspec.convert(loaded, type_, strict=False)
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}; {option} must be a {kind}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise click.ClickException(f"{path} is neither YAML nor JSON: {option} must be a {kind}") from None
    except msgspec.ValidationError as error:
        raise click.ClickException(f"{path} is no {kind}: {error}") from None


async def _until_signal(api: Config, config: AgentConfig) -> None:
    from gpuclaim.agent.loop import run
    from gpuclaim.kube.client import Client

    async with Client(api) as client:
        task = asyncio.ensure_future(run(config, client))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task
