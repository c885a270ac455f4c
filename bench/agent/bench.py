"""The agent on a node of 16 GPUs with 32 virtual functions each, beside go-nvlib's nvpci. Nothing is asserted.

    python bench/agent/bench.py [--passes N] [--idle SECONDS] [--no-process]

How each figure is made: docs/reference/agent-bench.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from gpuclaim.agent import pciids
from gpuclaim.agent.machine import Machine
from gpuclaim.agent.report import report, says_the_same
from gpuclaim.agent.sysfs import Scanner
from gpuclaim.agent.values import Answers, Functions
from gpuclaim.api import crd
from gpuclaim.local import toolchain
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.podresources_server import PodResourcesServer
from gpuclaim.local.rest import RequestError
from gpuclaim.local.sysfs_tree import SimulatedFunction, SysfsTree

GPUS, VFS, OTHERS = 16, 32, 72
RESOURCE = "nvidia.com/NVIDIA_L40S-8Q"
HERE = Path(__file__).parent
MIB = 2**20


def tree(root: Path) -> list[str]:
    """The node's functions: GPUs, their virtual functions, bridges and network cards; the virtual ones' addresses."""
    made = SysfsTree(root)
    virtual = []
    for gpu in range(GPUS):
        bus, numa = 0x10 + gpu * 4, gpu // 8
        physical = f"0000:{bus:02x}:00.0"
        group = 1 + gpu * (VFS + 1)
        made.add(SimulatedFunction(address=physical, device="0x26b9", driver="nvidia", group=group, numa=numa))
        for number in range(1, VFS + 1):
            address = f"0000:{bus:02x}:{number // 8:02x}.{number % 8}"
            virtual.append(address)
            made.add(
                SimulatedFunction(
                    address=address,
                    device="0x26b9",
                    driver="nvidia",
                    group=group + number,
                    numa=numa,
                    physical_function=physical,
                )
            )
    for number in range(OTHERS):
        address = f"0000:{0x80 + number:02x}:1f.{number % 8}"
        class_code, vendor = ("0x060400", "0x8086") if number % 2 else ("0x020000", "0x15b3")
        made.add(SimulatedFunction(address=address, class_code=class_code, vendor=vendor, driver="pcieport"))
    # What nvpci reads beside what the agent does.
    for function in (root / "bus/pci/devices").iterdir():
        (function / "config").write_bytes(bytes(64))
        (function / "resource").write_text("0x0 0x0 0x0\n" * 13)
        for name in ("subsystem_vendor", "subsystem_device"):
            (function / name).write_text("0x10de\n")
        if not (function / "physfn").exists():
            (function / "sriov_totalvfs").write_text(f"{VFS}\n")
            (function / "sriov_numvfs").write_text(f"{VFS}\n")
    return virtual


def median(passes: int, work: Callable[[], object]) -> float:
    """Microseconds of one call, after one that is not counted."""
    work()
    took = []
    for _ in range(passes):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1e6)
    return statistics.median(took)


def floor(root: Path, functions: Functions) -> Callable[[], None]:
    """The system calls of a steady scan, and nothing else."""
    folder = root / "bus/pci/devices"

    def work() -> None:
        bus = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with os.scandir(bus) as entries:
            for _ in entries:
                pass
        for address in functions.gpus:
            os.readlink(f"{address}/driver", dir_fd=bus)
            os.readlink(f"{address}/iommu_group", dir_fd=bus)
        os.close(bus)

    return work


def compose(functions: Functions, answers: Answers) -> None:
    """From a reading to the decision that nothing is to be written."""
    now, name_model = dt.datetime.now(dt.UTC), pciids.namer({})
    made = report(functions, answers, {}, None, boot_id="b", name_model=name_model, now=now)
    assert says_the_same(made, made)


@contextlib.contextmanager
def kubelet(folder: Path, devices: list[str]) -> Iterator[Path]:
    """A stand-in of kubelet's pod-resources API in a process of its own."""
    socket = folder / "kubelet.sock"
    script = folder / "devices"
    script.write_text("\n".join(devices))
    process = subprocess.Popen([sys.executable, __file__, "--serve", str(socket), str(script)])
    try:
        while not socket.exists():
            time.sleep(0.02)
            assert process.poll() is None
        yield socket
    finally:
        process.terminate()
        process.wait()


async def serve(socket: Path, devices: list[str]) -> None:
    async with PodResourcesServer(socket, {RESOURCE: devices}):
        await asyncio.Event().wait()


def with_kubelet(root: Path, socket: Path, passes: int) -> float:
    """Microseconds of both of kubelet's answers, a steady scan and the report."""
    took = []

    async def work() -> None:
        with Machine(root, socket) as machine:
            for number in range(passes + 1):
                began = time.perf_counter()
                reading = await machine.read()
                compose(reading.functions, reading.answers)
                if number:
                    took.append((time.perf_counter() - began) * 1e6)

    asyncio.run(work())
    return statistics.median(took)


def nvpci(root: Path, passes: int) -> tuple[float, float] | None:
    """Microseconds of one GetGPUs without its database of names and with it; None where it cannot be built."""
    try:
        go = toolchain.find((1, 26))
    except toolchain.ToolchainError as error:
        print(f"no Go, so no nvpci: {error}", file=sys.stderr)
        return None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "nvpci")
        environment = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
        command = [str(go), "build", "-trimpath", "-mod=readonly", "-o", str(program), "."]
        subprocess.run(command, cwd=HERE / "nvpci", env=environment, check=True)

        def took(passes: int, *options: str) -> list[int]:
            command = [str(program), str(root), str(passes), *options]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found, *each = map(int, printed.split())
            assert found == GPUS, found
            return each

        return statistics.median(took(passes + 1, "plain")[1:]), took(1)[0]


def system_calls(root: Path) -> float | None:
    """System calls of one steady scan, counted by strace; None where there is none."""
    if shutil.which("strace") is None:
        return None
    script = (
        "import sys; from pathlib import Path; from gpuclaim.agent.sysfs import Scanner\n"
        "s = Scanner(Path(sys.argv[1])); [s.scan() for _ in range(int(sys.argv[2]))]"
    )

    def calls(passes: int) -> int:
        command = ["strace", "-f", "-c", "-S", "calls", sys.executable, "-c", script, str(root), str(passes)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        return int(re.findall(r"^100\.00\s+\S+\s+(?:\S+\s+)?(\d+)", printed, re.MULTILINE)[0])

    return (calls(21) - calls(1)) / 20


def imports() -> list[tuple[str, float]]:
    """Resident MiB that each import of the agent adds, in this order, in a fresh process."""
    modules = (
        "asyncio",
        "click",
        "msgspec",
        "yaml",
        "google.protobuf.message",
        "grpclib.client",
        "tenacity",
        "aiohttp",
    )
    ours = ("gpuclaim.cli.agent", "gpuclaim.agent.loop")
    script = (
        "import importlib, sys\n"
        "def rss(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "last = rss(); print('python', last)\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name); now = rss(); print(name, now - last); last = now\n"
    )
    command = [sys.executable, "-c", script, *modules, *ours]
    environment = os.environ | {"SSL_CERT_FILE": os.devnull}
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return [(name, int(size) / MIB) for name, size in (line.split() for line in printed.splitlines())]


def status(pid: int) -> dict[str, float]:
    """The kernel's account of a process's memory, in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {
        name: int(size) / 1024 for name, size in re.findall(r"^(VmRSS|RssAnon|RssFile):\s+(\d+) kB", text, re.MULTILINE)
    }


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process so far, of all of its threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


@contextlib.asynccontextmanager
async def running_agent(cluster: ControlPlane, root: Path, socket: Path) -> AsyncIterator[int]:
    """`gpuclaim agent` as a process; its ID once it has reported."""
    command = [sys.executable, "-m", "gpuclaim", "agent", "--node", "bench", "--sysfs", str(root)]
    command += ["--pod-resources", str(socket), "--kubeconfig", str(cluster.kubeconfig), "--listen", "127.0.0.1:0"]
    # As the DaemonSet has it.
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | {"SSL_CERT_FILE": os.devnull})
    try:
        path = "/apis/gpu.cozystack.io/v1alpha1/gpunodes/bench"
        while True:
            with contextlib.suppress(RequestError):
                if (await asyncio.to_thread(cluster.rest.get, path)).get("status", {}).get("reportedAt"):
                    break
            assert process.returncode is None, "the agent ended"
            await asyncio.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


async def measured(root: Path, socket: Path, idle: float) -> tuple[dict[str, float], float]:
    """Memory of the running agent after `idle` seconds, and the CPU seconds of those."""
    async with ControlPlane(progress=print) as cluster:
        rest = cluster.rest
        for definition in crd.definitions():
            rest.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        rest.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bench"}})
        async with running_agent(cluster, root, socket) as pid:
            await asyncio.sleep(2)  # past its start
            began = cpu_seconds(pid)
            await asyncio.sleep(idle)
            return status(pid), cpu_seconds(pid) - began


def passes_table(root: Path, virtual: list[str], socket: Path, passes: int) -> None:
    scanner = Scanner(root)
    functions = scanner.scan()
    answers = Answers({RESOURCE: virtual})
    other = nvpci(root, passes)

    def scan_and_compose() -> None:
        compose(scanner.scan(), answers)

    rows = [
        ("a steady scan of sysfs", median(passes, scanner.scan)),
        ("  its system calls alone", median(passes, floor(root, functions))),
        ("a scan afresh (each heartbeat, and the first)", median(passes, lambda: scanner.scan(afresh=True))),
        (f"a steady scan and the report of {GPUS * (VFS + 1)} devices", median(passes, scan_and_compose)),
        ("the same with kubelet's two answers", with_kubelet(root, socket, passes)),
    ]
    if other is not None:
        rows += [("nvpci GetGPUs, no database of names", other[0]), ("nvpci GetGPUs as it is", other[1])]
    total = GPUS * (VFS + 1) + OTHERS
    print(f"\n{f'one pass, {total} functions':48} {'ms (median)':>12} {'x nvpci, no names':>18}")
    for name, took in rows:
        print(f"{name:48} {took / 1000:12.2f} " + (f"{took / other[0]:18.2f}" if other else ""))
    calls = system_calls(root)
    if calls is not None:
        print(f"system calls of a steady scan: {calls:.0f}; {calls / total:.2f} a function")


def process_table(root: Path, socket: Path, idle: float) -> None:
    memory, seconds = asyncio.run(measured(root, socket, idle))
    print(f"\n{'resident memory':48} {'MiB':>12}")
    for name, size in memory.items():
        print(f"{f'the running agent, {name}':48} {size:12.1f}")
    for name, size in imports():
        print(f"{f'  import {name}':48} {size:12.1f}")
    print(f"\nCPU seconds of an idle hour: {seconds / idle * 3600:.1f} ({seconds:.2f} in {idle:g} s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=50, help="passes of each kind; the median is shown")
    parser.add_argument("--idle", type=float, default=60, help="seconds of the running agent that are looked at")
    parser.add_argument("--no-process", action="store_true", help="leave out what needs a control plane")
    parser.add_argument("--serve", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        with contextlib.suppress(KeyboardInterrupt):
            socket, devices = arguments.serve
            asyncio.run(serve(socket, devices.read_text().split()))
        return
    with tempfile.TemporaryDirectory(prefix="gpuclaim-") as folder:
        root = Path(folder, "sys")
        virtual = tree(root)
        with kubelet(Path(folder), virtual) as socket:
            passes_table(root, virtual, socket, arguments.passes)
            if not arguments.no_process:
                process_table(root, socket, arguments.idle)


if __name__ == "__main__":
    main()
