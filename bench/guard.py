"""What the guard costs pods that ask for no GPU, on a real apiserver. Prints a table; needs the built Kubernetes."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from gpuclaim.admission import guard
from gpuclaim.api import names
from gpuclaim.api.types import GPUClass
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.local.controlplane import CONTROLLERS, ControlPlane
from support import cloud

POLICIES = "/apis/admissionregistration.k8s.io/v1/"
PODS = "/api/v1/namespaces/default/pods"


def pod(name: str, resource: str = "devices.kubevirt.io/kvm") -> dict[str, Any]:
    """A pod as small as a launcher pod is not; what an evaluation costs beside it is at its largest."""
    container = {"name": "main", "image": "any", "resources": {"limits": {resource: "1"}}}
    spec = {"automountServiceAccountToken": False, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def cpu_seconds(process: int) -> float:
    """The CPU time that a process has had."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def burst(client: Client, apiserver: int, tag: str, pods: int, at_once: int) -> tuple[float, float]:
    """Pods created a second, and milliseconds of the apiserver's CPU for each."""
    numbers: Iterator[int] = iter(range(pods))

    async def work() -> None:
        for number in numbers:
            await client.request("POST", PODS, body=pod(f"{tag}-{number}"))

    started, before = time.perf_counter(), cpu_seconds(apiserver)
    await asyncio.gather(*(work() for _ in range(at_once)))
    seconds, cpu = time.perf_counter() - started, cpu_seconds(apiserver) - before
    await client.request("DELETE", PODS, body={"gracePeriodSeconds": 0})
    return pods / seconds, cpu / pods * 1000


async def install(client: Client, classes: int, *, taken_up: bool) -> None:
    """The guard and so many classes, in force: listed, or (not taken up) as parameters."""
    resources = [f"nvidia.com/model-{number}" for number in range(classes)]
    for number, resource in enumerate(resources):
        await client.create(cloud.gpu_class(f"class-{number}", resource))
        if taken_up:
            label = {"metadata": {"labels": {names.GUARDED_LABEL: "true"}}}
            await client.patch(GPUClass, f"class-{number}", label)
    for each in guard.policies(resources if taken_up else ()):
        await client.apply(each)
    await _until(client, pod("probe", resources[-1]), refused=True)


async def remove(client: Client) -> None:
    """No guard and no class."""
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        for name in (guard.KNOWN, guard.NEW):
            try:
                await client.request("DELETE", f"{POLICIES}{kind}/{name}")
            except ApiError as error:
                if error.code != 404:
                    raise
    await _until(client, pod("probe", "nvidia.com/model-0"), refused=False)
    await client.request("DELETE", f"/apis/{names.API_VERSION}/gpuclasses")


async def _until(client: Client, body: dict[str, Any], *, refused: bool) -> None:
    while True:
        try:
            await client.request("POST", PODS, body=body, params={"dryRun": "All"})
        except ApiError:
            if refused:
                return
        else:
            if not refused:
                return
        await asyncio.sleep(0.1)


async def measure(client: Client, apiserver: int, sizes: Sequence[int], rounds: int, pods: int, at_once: int) -> None:
    """Print the table: every setting in every round, so that all see the same machine."""
    await cloud.install_crds(client)
    await _until(client, pod("probe"), refused=False)
    await burst(client, apiserver, "warm", pods, at_once)
    settings: list[tuple[str, int, bool]] = [("no guard", 0, False)]
    settings += [(f"guard, {size} classes", size, True) for size in sizes]
    settings += [(f"{size} classes as parameters", size, False) for size in sizes]
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in range(rounds):
        for number, (what, size, taken_up) in enumerate(settings):
            if size:
                await install(client, size, taken_up=taken_up)
            found.setdefault(what, []).append(await burst(client, apiserver, f"p{turn}-{number}", pods, at_once))
            if size:
                await remove(client)
    print(f"pods without GPUs, {at_once} at once, median of {rounds} rounds of {pods} (least to most)")
    print(f"{'':28}{'created a second':>26}{'apiserver CPU, ms a pod':>28}")
    for what, figures in found.items():
        cells = "".join(
            f"{statistics.median(each):{width}.{digits}f} ({min(each):.{digits}f} to {max(each):.{digits}f})"
            for each, width, digits in zip(zip(*figures, strict=True), (12, 14), (0, 2), strict=True)
        )
        print(f"{what:28}{cells}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pods", type=int, default=1500)
    parser.add_argument("--at-once", type=int, default=32)
    options = parser.parse_args()

    async def run(cluster: ControlPlane) -> None:
        async with Client(config.load(cluster.kubeconfig)) as client:
            apiserver = cluster.processes["kube-apiserver"].pid
            await measure(client, apiserver, options.classes, options.rounds, options.pods, options.at_once)

    with ControlPlane(controllers=CONTROLLERS) as cluster:
        asyncio.run(run(cluster))


if __name__ == "__main__":
    main()
