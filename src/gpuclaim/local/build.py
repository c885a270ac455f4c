"""Building the Go modules of localkube/ once, into the cache, under a name that says what went in."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import subprocess
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuclaim.local import toolchain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuclaim.local.toolchain import Progress

DEFAULT_KUBERNETES = "1.37"
"""The minor version that is built when none is named: the newest of localkube/kubernetes/versions."""

_REPORT_EVERY = 5.0  # seconds between two lines of progress
_NOT_SOURCES = {".md", ".py"}
_NETWORK = re.compile(r"dial tcp|proxy|lookup |timeout|connection")
_PACKAGE = re.compile(r"\S+\n")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class BuildError(Exception):
    """A Go module did not build; the message holds the end of what Go said."""


@dataclass(frozen=True)
class Component:
    """A program that a Go module of localkube/ builds.

    Attributes:
        name: what the built file is called.
        version: the release that is built, as `v1.37.2`; for reading, and part of the file's name.
        module: the module's folder.
        modfile: the go.mod to build with, relative to `module`. Its go.sum has the same name with `.sum`.
        package: the package of the program, relative to `module`.
        variables: what the linker sets, Go variable to value.
        tags: build tags.
    """

    name: str
    version: str
    module: Path
    modfile: str = "go.mod"
    package: str = "."
    variables: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of `go build`; they leave this machine's paths and names out of the program."""
        linker = ["-s", "-w", *(f"-X={name}={value}" for name, value in self.variables)]
        chosen = [] if self.modfile == "go.mod" else [f"-modfile={self.modfile}"]
        if self.tags:
            chosen.append(f"-tags={','.join(self.tags)}")
        return ("-trimpath", "-buildvcs=false", "-mod=readonly", *chosen, f"-ldflags={' '.join(linker)}")


def kubernetes_versions() -> tuple[str, ...]:
    """Return the minor versions that can be built, oldest first, as `("1.34", "1.37")`."""
    files = (toolchain.localkube_dir() / "kubernetes" / "versions").glob("*.mod")
    return tuple(sorted((file.stem for file in files), key=_numbers))


def kubernetes(minor: str | None = None) -> Component:
    """Return the component that is all of Kubernetes `minor` (`"1.34"`; the newest when None) in one program.

    Raises:
        BuildError: there is no go.mod for that version.
    """
    minor = minor or DEFAULT_KUBERNETES
    module = toolchain.localkube_dir() / "kubernetes"
    modfile = Path("versions") / f"{minor}.mod"
    try:
        text = (module / modfile).read_text()
    except FileNotFoundError:
        known = ", ".join(kubernetes_versions())
        raise BuildError(
            f"no Kubernetes {minor} in {module / 'versions'}: there is {known};"
            f" localkube/kubernetes/add_version.py adds one"
        ) from None
    match = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", text, re.MULTILINE)
    if not match:
        raise BuildError(f"{module / modfile} requires no k8s.io/kubernetes")
    version = match[1]
    # What the release's own build sets; `kubectl version` and feature gates' emulation read it.
    values = {
        "gitVersion": version,
        "gitMajor": minor.split(".")[0],
        "gitMinor": minor.split(".")[1],
        "gitTreeState": "clean",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    variables = tuple((f"{package}.{name}", value) for package in packages for name, value in values.items())
    return Component("kubernetes", version, module, modfile=str(modfile), variables=variables)


def digest(component: Component) -> str:
    """Return 16 hex digits of the component's sources and flags: the same in, the same program out."""
    hasher = hashlib.sha256(shlex.join((component.package, *component.flags)).encode())
    for file in _sources(component):
        content = file.read_bytes()
        hasher.update(f"\0{file.relative_to(component.module).as_posix()}\0{len(content)}\0".encode())
        hasher.update(content)
    return hasher.hexdigest()[:16]


def cached(component: Component) -> Path:
    """Return where the component's program is, or will be once it is built."""
    machine = _MACHINES.get(platform.machine(), platform.machine())
    where = f"{platform.system().lower()}-{machine}"
    return toolchain.cache_dir() / "bin" / f"{component.name}-{component.version}-{where}-{digest(component)}"


def ensure(component: Component, progress: Progress = toolchain.silent) -> Path:
    """Return the component's program, built first if the cache has none.

    Several processes may ask at once: one builds, the others wait for it.

    Raises:
        ToolchainError: there is no Go, and none could be installed.
        BuildError: it does not build, or what it is built from cannot be downloaded.
    """
    target = cached(component)
    if target.is_file():
        return target
    title = f"{component.name} {component.version}"
    lock = toolchain.cache_dir() / "locks" / target.name
    with toolchain.locked(lock, lambda: progress(f"{title}: waiting for another process that builds it")):
        if not target.is_file():
            go = toolchain.find(_go_version(component), progress)
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as temporary:
                built = Path(temporary) / target.name
                _build(component, go, built, title, progress)
                built.replace(target)
    return target


def command(program: str, minor: str | None = None, progress: Progress = toolchain.silent) -> list[str]:
    """Return how to start a Kubernetes program (`etcd`, `kube-apiserver`, `kubectl`, `fake-runtime`, …).

    `KUBEBUILDER_ASSETS` may name a folder of ready ones, which stand for the default version; what
    it lacks, and any version that is asked for by name, is built.

    Raises:
        ToolchainError, BuildError: as `ensure`.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and minor is None:
        ready = Path(assets) / program
        if os.access(ready, os.X_OK) and ready.is_file():
            return [str(ready)]
    return [str(ensure(kubernetes(minor), progress)), program]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _sources(component: Component) -> Iterator[Path]:
    modfile = component.module / component.modfile
    locks = {modfile, modfile.with_suffix(".sum")}
    for file in sorted(component.module.rglob("*")):
        # The locks of other versions do not matter to this one.
        other_lock = file.suffix in {".mod", ".sum"} and file not in locks
        if file.is_file() and not other_lock and file.suffix not in _NOT_SOURCES and "__pycache__" not in file.parts:
            yield file


def _go_version(component: Component) -> tuple[int, ...]:
    text = (component.module / component.modfile).read_text()
    line = re.search(r"^go \S+", text, re.MULTILINE)
    return toolchain.parse_version(line[0]) if line else ()


def _build(component: Component, go: Path, target: Path, title: str, progress: Progress) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    began = time.monotonic()

    def run(say: str, *arguments: str) -> int:
        """Run Go and return how many lines it printed; say every few seconds how many so far."""
        lines = 0
        ending: deque[str] = deque(maxlen=30)
        done = threading.Event()

        def report() -> None:
            while not done.wait(_REPORT_EVERY):
                progress(f"{title}: {say.format(lines)}, {_duration(time.monotonic() - began)}")

        with subprocess.Popen(
            (str(go), *arguments),
            cwd=component.module,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            reporter = threading.Thread(target=report, daemon=True)
            reporter.start()
            try:
                assert process.stdout
                for line in process.stdout:
                    lines += 1
                    # Of thousands of packages' names nothing is learnt; what went wrong may stand before them.
                    if not _PACKAGE.fullmatch(line):
                        ending.append(line.rstrip())
            except BaseException:
                process.kill()
                raise
            finally:
                done.set()
                reporter.join()
        if process.returncode != 0:
            said = "\n".join(f"  {line}" for line in ending)
            hint = "\nThe first build downloads Go modules: is the module proxy that GOPROXY names in reach?"
            raise BuildError(
                f"{title} did not build: go {arguments[0]} ended with exit code {process.returncode}.\n{said}"
                + (hint if _NETWORK.search(said) else "")
            )
        return lines

    progress(f"{title}: building, once; minutes on a small machine")
    total = run("reading sources ({} packages)", "list", "-deps", *component.flags, component.package)
    run(
        f"{{}} of at most {total} packages compiled",
        *("build", "-v", *component.flags, "-o", str(target), component.package),
    )
    progress(f"{title}: built in {_duration(time.monotonic() - began)}")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
