"""How gpuclaim.local finds Go and names, builds and reuses what it builds; with a stand-in for Go."""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuclaim.local import build, toolchain

if TYPE_CHECKING:
    from collections.abc import Callable

# Answers as Go does, counts its builds, and "builds" a program that names its arguments.
GO = """#!/bin/sh
case "$1" in
version) echo "go version go{version} linux/amd64" ;;
list) echo one; echo two ;;
build)
  echo "$@" >>"{builds}"
  sleep 0.2
  echo one >&2
  if [ -n "{fails}" ]; then echo "{fails}" >&2; exit 1; fi
  while [ "$1" != -o ]; do shift; done
  echo built >"$2"; chmod +x "$2" ;;
esac
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUCLAIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def put_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    def put(version: str = "1.99.1", fails: str = "") -> Path:
        folder, builds = tmp_path / "path", tmp_path / "builds"
        folder.mkdir(exist_ok=True)
        program = folder / "go"
        program.write_text(GO.format(version=version, builds=builds, fails=fails))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return builds

    return put


@pytest.fixture
def module(tmp_path: Path) -> build.Component:
    folder = tmp_path / "module"
    folder.mkdir()
    (folder / "go.mod").write_text("module x\n\ngo 1.26.0\n")
    (folder / "go.sum").write_text("")
    (folder / "main.go").write_text("package main\n")
    return build.Component("thing", "v1.2.3", folder)


def test_a_program_is_built_once(cache: Path, put_go: Callable[..., Path], module: build.Component) -> None:
    builds = put_go()
    said: list[str] = []
    first = build.ensure(module, said.append)
    assert first.read_text() == "built\n"
    assert build.ensure(module, said.append) == first
    assert len(builds.read_text().splitlines()) == 1
    assert said[-1].startswith("thing v1.2.3: built in ")
    assert [file.name for file in first.parent.iterdir()] == [first.name], "nothing half-built stays"


def test_the_name_tells_what_went_in(cache: Path, module: build.Component) -> None:
    name = build.cached(module)
    assert name.parent == cache / "bin"
    assert name.name.startswith(f"thing-v1.2.3-{sys.platform}-")
    assert name.name.endswith(build.digest(module))


@pytest.mark.parametrize("file", ["main.go", "go.mod", "go.sum", "new.go", "data/embedded.yaml"])
def test_a_change_of_a_source_is_another_program(cache: Path, module: build.Component, file: str) -> None:
    before = build.cached(module)
    changed = module.module / file
    changed.parent.mkdir(exist_ok=True)
    changed.write_text("package main // changed\n")
    assert build.cached(module) != before


@pytest.mark.parametrize("file", ["README.md", "tool.py", "versions/1.1.mod", "versions/1.1.sum"])
def test_what_is_not_built_in_does_not_matter(cache: Path, module: build.Component, file: str) -> None:
    before = build.cached(module)
    changed = module.module / file
    changed.parent.mkdir(exist_ok=True)
    changed.write_text("changed\n")
    assert build.cached(module) == before


def test_processes_that_ask_at_once_build_once(
    cache: Path, put_go: Callable[..., Path], module: build.Component
) -> None:
    builds = put_go()
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        targets = pool.map(build.ensure, [module] * 3)
    assert len(set(targets)) == 1
    assert len(builds.read_text().splitlines()) == 1


def test_a_failed_build_shows_what_go_said_and_leaves_nothing(
    cache: Path, put_go: Callable[..., Path], module: build.Component
) -> None:
    put_go(fails="./main.go:7:1: undefined: nothing")
    with pytest.raises(build.BuildError, match=r"(?s)thing v1.2.3 did not build.*undefined: nothing") as failed:
        build.ensure(module)
    assert "proxy" not in str(failed.value)
    assert not list((cache / "bin").iterdir())


def test_a_failed_download_names_the_proxy(cache: Path, put_go: Callable[..., Path], module: build.Component) -> None:
    put_go(fails="dial tcp: lookup proxy: no such host")
    with pytest.raises(build.BuildError, match="GOPROXY"):
        build.ensure(module)


@pytest.mark.parametrize("on_path", [None, "1.22.5"])
def test_no_go_and_no_registry_says_what_to_do(
    cache: Path,
    put_go: Callable[..., Path],
    module: build.Component,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_path: str | None,
) -> None:
    if on_path:
        put_go(on_path)
    else:
        monkeypatch.setenv("PATH", "/nonexistent")
    installer = tmp_path / "uv"
    installer.write_text("#!/bin/sh\necho 'error: the registry is not in reach' >&2\nexit 2\n")
    installer.chmod(0o755)
    monkeypatch.setenv("UV", str(installer))
    with pytest.raises(toolchain.ToolchainError, match=r"(?s)Install Go 1\.26\.0 or newer and put it on PATH") as none:
        build.ensure(module)
    assert ("Go 1.22.5 on PATH is older" if on_path else "no Go on PATH") in str(none.value)
    assert "the registry is not in reach" in str(none.value)
    assert not list((cache / "go").iterdir())


def test_ready_binaries_stand_for_the_default_version(
    cache: Path, put_go: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = put_go()
    assets = tmp_path / "assets"
    assets.mkdir()
    shutil.copy("/bin/true", assets / "etcd")
    (assets / "kubectl").write_text("not executable")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))

    assert build.command("etcd") == [str(assets / "etcd")]
    assert not builds.exists()
    assert build.command("kubectl")[1:] == ["kubectl"], "what cannot be run there is built"
    assert build.command("etcd", "1.34")[1:] == ["etcd"], "so is a version that is asked for"
    assert len(builds.read_text().splitlines()) == 2


def test_every_version_that_is_locked_can_be_asked_for() -> None:
    versions = build.kubernetes_versions()
    assert versions[-1] == build.DEFAULT_KUBERNETES
    for version in versions:
        component = build.kubernetes(version)
        assert component.version.startswith(f"v{version}.")
        assert (component.module / component.modfile).with_suffix(".sum").is_file()


def test_an_unknown_version_names_the_known() -> None:
    with pytest.raises(build.BuildError, match=r"no Kubernetes 1\.12 .*there is 1\.33, .*1\.37"):
        build.kubernetes("1.12")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go 1.26", (1, 26)),
        ("go version go1.27rc1 linux/amd64", (1, 27)),
        ("godebug default=go1.26", (1, 26)),
        ("nonsense", ()),
    ],
)
def test_go_versions_are_read(text: str, version: tuple[int, ...]) -> None:
    assert toolchain.parse_version(text) == version


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUCLAIM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert toolchain.cache_dir() == tmp_path / ".cache" / "gpuclaim"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert toolchain.cache_dir() == Path("/x/gpuclaim")
    monkeypatch.setenv("GPUCLAIM_CACHE", "/y")
    assert toolchain.cache_dir() == Path("/y")


def test_a_wheel_has_the_go_modules(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=root,
        check=True,
        timeout=120,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path)
    answer = subprocess.run(
        [sys.executable, "-c", "from gpuclaim.local import build; print(build.digest(build.kubernetes()))"],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert answer.stdout.strip() == build.digest(build.kubernetes())
