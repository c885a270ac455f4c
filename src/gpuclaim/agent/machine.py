"""Both sources of one node, read together: its sysfs and its kubelet."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from gpuclaim.agent import resolve, sysfs
from gpuclaim.agent.podresources import DEFAULT_SOCKET, DEVICE_PLUGINS, PodResources, PodResourcesError
from gpuclaim.agent.sysfs import SysfsError
from gpuclaim.agent.values import Answers, Functions

READ_ERRORS: Final = (SysfsError, PodResourcesError)
"""What `Machine.read` raises."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One reading of both sources, and the boot that it is of."""

    functions: Functions
    answers: Answers
    boot_id: str


class KubeletRun(NamedTuple):
    """What tells one run of kubelet from the next: the socket that it made, and when (Unix time in nanoseconds)."""

    inode: int
    made_ns: int


class Machine:
    """The node's sysfs and kubelet; a context manager."""

    def __init__(
        self,
        root: Path = Path("/sys"),
        socket: Path = DEFAULT_SOCKET,
        *,
        boot_id: Path = sysfs.BOOT_ID,
        device_plugins: Path = DEVICE_PLUGINS,
        timeout: float = 10.0,
    ) -> None:
        """Take the root of a sysfs, kubelet's socket, and the file with the boot's ID; `timeout` is seconds a call.

        `device_plugins` is the folder of the plugins' sockets, which need not be in sight.
        """
        self._scanner = sysfs.Scanner(root)
        self._kubelet = PodResources(socket, timeout=timeout)
        self._socket = socket
        self._boot_id = boot_id
        self._device_plugins = device_plugins

    async def read(self, *, afresh: bool = False) -> Reading:
        """Everything as it is now; `afresh` as `Scanner.scan` has it.

        Raises:
            SysfsError, PodResourcesError: a source cannot be read at all.
        """
        answers = await self._kubelet.read()
        functions = self._scanner.scan(resolve.groups_named(answers.device_ids()), afresh=afresh)
        return Reading(functions, answers, sysfs.read_boot_id(self._boot_id))

    def kubelet(self) -> KubeletRun | None:
        """The kubelet that runs, by its socket, at the price of one system call; None: there is none."""
        try:
            found = self._socket.stat()
        except OSError:
            return None
        return KubeletRun(found.st_ino, found.st_ctime_ns)

    def plugins(self) -> int | None:
        """What changes when a device plugin comes or goes, for one system call; None: it is out of sight."""
        try:
            return self._device_plugins.stat().st_mtime_ns
        except OSError:
            return None

    def close(self) -> None:
        """Close the connection to kubelet."""
        self._kubelet.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
