"""The real Kubernetes components that tests run against.

A test asks for `cluster` (or `old_cluster`): a control plane that is started once and is
emptied after each test; for `kubelet`: a real node of it. When a test fails, what the
components logged meanwhile stands in its report.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuclaim.kube import config
from gpuclaim.kube.client import Client
from gpuclaim.local import kubelet as local_kubelet
from gpuclaim.local import offers
from gpuclaim.local.controlplane import CONTROLLERS, ControlPlane
from gpuclaim.local.kubevirt import KubeVirt
from gpuclaim.local.slate import Slate
from support import cloud, guards

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

OLD_VERSION = "1.34"
_LOG_LINES = 40

_running: list[ControlPlane] = []
_log_sizes: dict[Path, int] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def progress(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Prints past pytest's capture: the first run builds Kubernetes, for minutes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    terminal = request.config.pluginmanager.getplugin("terminalreporter")

    def say(line: str) -> None:
        if terminal is not None:
            with capture.global_and_fixture_disabled():
                terminal.ensure_newline()
                terminal.write_line(line)

    return say


@pytest.fixture(scope="session")
def control_plane(progress: Callable[[str], None]) -> Iterator[ControlPlane]:
    """The newest Kubernetes, with scheduler and the usual controllers."""
    with ControlPlane(scheduler=True, controllers=CONTROLLERS, progress=progress) as running:
        _running.append(running)
        yield running
        _running.remove(running)


@pytest.fixture(scope="session")
def old_control_plane(progress: Callable[[str], None]) -> Iterator[ControlPlane]:
    """An older Kubernetes, the apiserver only."""
    with ControlPlane(version=OLD_VERSION, progress=progress) as running:
        _running.append(running)
        yield running
        _running.remove(running)


@pytest.fixture(scope="session")
def slate(control_plane: ControlPlane) -> Slate:
    """What `control_plane` has when no test runs. What a wider fixture installs for several tests, it keeps here."""
    return Slate(control_plane)


@pytest.fixture(scope="session")
def old_slate(old_control_plane: ControlPlane) -> Slate:
    return Slate(old_control_plane)


@pytest.fixture(scope="session")
def crds(control_plane: ControlPlane, slate: Slate) -> None:
    """gpuclaim's CRDs, kept from test to test."""
    _install_crds(control_plane)
    slate.keep()


@pytest.fixture(scope="session")
def old_crds(old_control_plane: ControlPlane, old_slate: Slate) -> None:
    """The same on the older Kubernetes."""
    _install_crds(old_control_plane)
    old_slate.keep()


@pytest.fixture(scope="session")
def kubevirt(control_plane: ControlPlane, slate: Slate, progress: Callable[[str], None]) -> KubeVirt:
    """virt-controller and KubeVirt's CRDs, kept from test to test; VMs may have GPUs of `cloud` and of `offers`."""
    permitted = [cloud.H200, *(offer.resource for offer in offers.CATALOGUE)]
    installed = asyncio.run(KubeVirt(control_plane, permitted, progress).start())
    slate.keep()
    return installed


def _install_crds(cluster: ControlPlane) -> None:
    async def install() -> None:
        async with Client(config.load(cluster.kubeconfig)) as client:
            await cloud.install_crds(client)

    asyncio.run(install())


@pytest.fixture
def cluster(control_plane: ControlPlane, slate: Slate) -> Iterator[ControlPlane]:
    """`control_plane`, emptied after the test."""
    yield control_plane
    guarded = guards.resources(control_plane)
    guards.until_in_force(control_plane, guarded)
    slate.wipe()
    guards.until_forgotten(control_plane, guarded)


@pytest.fixture
def old_cluster(old_control_plane: ControlPlane, old_slate: Slate) -> Iterator[ControlPlane]:
    """`old_control_plane`, emptied after the test."""
    yield old_control_plane
    old_slate.wipe()


@pytest.fixture
def kubelet(cluster: ControlPlane) -> Iterator[local_kubelet.Kubelet]:
    """A real kubelet, registered and Ready as the Node `node-a`."""
    if not local_kubelet.available():
        pytest.skip("a real kubelet needs root on Linux")
    with local_kubelet.Kubelet(cluster, "node-a") as running:
        yield running


def _logs() -> Iterator[tuple[str, Path]]:
    for number, running in enumerate(_running):
        for name, process in running.processes.items():
            yield f"{name} ({running.version or 'newest'}, {number})", process.log


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _log_sizes.update((file, file.stat().st_size) for _, file in _logs() if file.exists())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for title, file in _logs():
            if not file.exists():
                continue
            with file.open("rb") as opened:
                opened.seek(_log_sizes.get(file, 0))
                lines = opened.read().decode(errors="replace").splitlines()
            if lines:
                report.sections.append((f"log of {title}", "\n".join(lines[-_LOG_LINES:])))
    return report
