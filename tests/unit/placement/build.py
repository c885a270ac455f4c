"""Objects for placement's tests, as short as they can be written."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

from gpuclaim.api import core, types
from gpuclaim.placement.books import Books, Known, Settings
from gpuclaim.placement.orders import Order, Verdict
from gpuclaim.placement.verdict import decide

NOW = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
SOON = NOW + dt.timedelta(seconds=30)
GPU = "nvidia.com/GH100_H200"


def cls(
    name: str = "h200",
    resource: str = GPU,
    *,
    mode: str = "passthrough",
    most: int | None = None,
    closed: bool = False,
    tolerations: Sequence[types.Toleration] = (),
) -> types.GPUClass:
    return types.GPUClass(
        metadata=core.ObjectMeta(name=name),
        spec=types.GPUClassSpec(
            mode=types.Mode(mode),
            source=types.Source(device_plugin=types.DevicePluginSource(resource_name=resource)),
            max_count=most,
            closed=closed,
            tolerations=list(tolerations),
        ),
    )


def node(
    name: str,
    allocatable: Mapping[str, str | int] | None = None,
    *,
    ready: bool = True,
    taints: Sequence[core.Taint] = (),
    unschedulable: bool = False,
    boot: str = "",
) -> core.Node:
    return core.Node(
        metadata=core.ObjectMeta(name=name),
        spec=core.NodeSpec(taints=list(taints), unschedulable=unschedulable),
        status=core.NodeStatus(
            allocatable=dict(allocatable if allocatable is not None else {GPU: 8}),
            conditions=[core.NodeCondition(type="Ready", status="True" if ready else "False")],
            node_info=core.NodeSystemInfo(boot_id=boot),
        ),
    )


def device(
    number: int,
    *resources: tuple[str, int, int],
    health: types.Health = types.Health.HEALTHY,
    users: Iterable[tuple[str, str]] = (),
) -> types.Device:
    return types.Device(
        address=f"0000:{number:02x}:00.0",
        health=health,
        resources=[types.ResourceCount(name=name, allocatable=count, used=used) for name, count, used in resources],
        users=[types.DeviceUser(namespace=namespace, name=name) for namespace, name in users],
    )


def report(
    name: str,
    devices: Sequence[types.Device] | int = 8,
    *,
    at: dt.datetime | None = NOW,
    excluded: Sequence[int] = (),
    cordoned: bool = False,
    boot: str = "",
) -> types.GPUNode:
    found = [device(n, (GPU, 1, 0)) for n in range(devices)] if isinstance(devices, int) else list(devices)
    out = [types.Exclusion(address=f"0000:{n:02x}:00.0") for n in excluded]
    return types.GPUNode(
        metadata=core.ObjectMeta(name=name),
        spec=types.GPUNodeSpec(cordoned=cordoned, excluded=out),
        status=types.GPUNodeStatus(devices=found, reported_at=at, boot_id=boot),
    )


def gpus(name: str, count: int) -> list[Known]:
    """A good node with so many GPUs."""
    return [node(name, {GPU: count}), report(name, count)]


def claim(
    name: str,
    on: str | None = None,
    count: int = 1,
    *,
    of: str = "h200",
    set_name: str | None = None,
    namespace: str = "tenant-a",
    refused: Mapping[str, dt.datetime] | None = None,
    created: dt.datetime = NOW,
    deleted: bool = False,
) -> types.GPUClaim:
    refusals = [types.NodeRefusal(node_name=n, refused_at=NOW, expires_at=at) for n, at in (refused or {}).items()]
    return types.GPUClaim(
        metadata=core.ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"uid-{namespace}-{name}",
            creation_timestamp=created,
            deletion_timestamp=NOW if deleted else None,
        ),
        spec=types.GPUClaimSpec(class_name=of, count=count, set=set_name),
        status=types.GPUClaimStatus(node_name=on, refusals=refusals),
    )


def pod(
    name: str,
    set_name: str | None = None,
    on: str = "",
    requests: Mapping[str, int] | None = None,
    *,
    namespace: str = "tenant-a",
    phase: str = "Running",
    uid: str = "",
) -> core.Pod:
    labels = {"vm.kubevirt.io/name": set_name} if set_name else {}
    resources = core.ResourceRequirements(limits=dict(requests if requests is not None else {GPU: 1}))
    return core.Pod(
        metadata=core.ObjectMeta(name=name, namespace=namespace, uid=uid or f"uid-pod-{name}", labels=labels),
        spec=core.PodSpec(node_name=on, containers=[core.Container(resources=resources)]),
        status=core.PodStatus(phase=phase),
    )


def quota(hard: Mapping[str, str | int], name: str = "gpu", namespace: str = "tenant-a") -> core.ResourceQuota:
    full: dict[str, str | int] = {f"gpu.cozystack.io/{key}": value for key, value in hard.items()}
    meta = core.ObjectMeta(name=name, namespace=namespace)
    return core.ResourceQuota(metadata=meta, spec=core.ResourceQuotaSpec(hard=full))


def namespace(name: str, *inside: str) -> core.Namespace:
    labels = {f"tenant.cozystack.io/{outer}": "" for outer in inside}
    return core.Namespace(metadata=core.ObjectMeta(name=name, labels=labels))


def books(*objects: Known | Iterable[Known], settings: Settings | None = None) -> Books:
    found = Books(settings or Settings())
    for obj in objects:
        for one in obj if isinstance(obj, Iterable) else [obj]:
            found.apply(one)
    return found


def order(
    count: int = 1, *, of: str = "h200", name: str = "new", set_name: str | None = None, namespace: str = "tenant-a"
) -> Order:
    return Order(namespace, name, f"uid-{namespace}-{name}", of, count, set_name or name)


def ask(into: Books, count: int = 1, now: dt.datetime = NOW, **more: str) -> Verdict:
    """Decide an order of so many; `more` as for `order`."""
    return decide(into, order(count, **more), now)
