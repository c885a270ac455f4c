"""A real PostgreSQL for tests, of the machine's own packages (Debian: postgresql), in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def binaries() -> Path | None:
    """The folder of initdb and pg_ctl: Debian keeps them off PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name), reverse=True)
    found = next((folder for folder in versions if (folder / "initdb").exists()), None)
    on_path = shutil.which("initdb")
    return found or (Path(on_path).resolve().parent if on_path else None)


class Server:
    """A PostgreSQL that can be stopped and started again, at the same address."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._programs = programs
        # PostgreSQL does not run as root.
        self._user = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        if os.getuid() == 0:
            shutil.chown(folder, self._user)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = int(taken.getsockname()[1])
        self._run("initdb", "--pgdata=data", "--auth=trust", "--username=gpuclaim", "--no-sync", "--encoding=UTF8")
        settings = {
            "port": self.port,
            "listen_addresses": "'127.0.0.1'",
            "unix_socket_directories": "''",
            "fsync": "off",
            "shared_buffers": "16MB",
        }
        with (folder / "data" / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    @property
    def url(self) -> str:
        return f"postgresql://gpuclaim@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        self._run("pg_ctl", "start", "--wait", "--pgdata=data", "--log=log")

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--wait", "--mode=immediate", "--pgdata=data")

    def _run(self, program: str, *arguments: str) -> None:
        as_user = {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid} if os.getuid() == 0 else {}
        subprocess.run(
            [self._programs / program, *arguments],
            cwd=self._folder,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"LC_ALL": "C"},
            **as_user,  # type: ignore[call-overload]
        )


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """A server; skips the test where PostgreSQL is not installed."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with tempfile.TemporaryDirectory(prefix="gpuclaim-postgresql-") as folder:
        Path(folder).chmod(0o755)
        server = Server(Path(folder), programs)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                server.stop()
