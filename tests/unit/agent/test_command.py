"""What `gpuclaim agent` says when it cannot do what it is asked (R29)."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuclaim.cli.agent import agent
from gpuclaim.local.sysfs_tree import SysfsTree


def run(*argv: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(agent, [str(each) for each in argv])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return SysfsTree(tmp_path / "sys").root


def test_no_sysfs(tmp_path: Path) -> None:
    code, said = run("--once", "--node", "a", "--sysfs", tmp_path / "none")
    assert code == 1
    assert said == f"Error: there is no folder {tmp_path}/none: --sysfs must be the root of a sysfs, such as /sys\n"


@pytest.mark.parametrize("prefix", ["", "unix://"])
def test_no_socket(tree: Path, prefix: str) -> None:
    code, said = run("--once", "--node", "a", "--sysfs", tree, "--pod-resources", f"{prefix}/nowhere/s")
    assert code == 1
    assert said == "Error: there is no socket /nowhere/s: is kubelet running, and its pod-resources folder mounted?\n"


@pytest.mark.parametrize("socket", ["http://x", "unix://relative"])
def test_no_path(tree: Path, socket: str) -> None:
    code, said = run("--once", "--node", "a", "--sysfs", tree, "--pod-resources", socket)
    assert code == 2
    assert "must be a path, or unix:///PATH" in said


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot read"),
        ("{", "is neither YAML nor JSON"),
        ("\0", "is neither YAML nor JSON"),
        ("- a", "is no PodList"),
        ("kind: Pod\nitems: []", "is a Pod: --pods must be a PodList"),
        ("kind: PodList", "is no PodList"),
        ("kind: PodList\nitems: [1]", "is no PodList"),
        ("", "is no PodList"),
    ],
)
def test_no_pod_list(tree: Path, tmp_path: Path, text: str | None, complaint: str) -> None:
    file = tmp_path / "file"
    if text is not None:
        file.write_text(text)
    code, said = run("--once", "--node", "a", "--sysfs", tree, "--pods", file)
    assert code == 1
    assert complaint in said
    assert said.startswith("Error: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("text", ["kind: Node", "status: {devices: 1}", "kind: GPUNode\nstatus: {devices: [{}]}", "x"])
def test_no_gpunode(tree: Path, tmp_path: Path, text: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    code, said = run("--once", "--node", "a", "--sysfs", tree, "--previous", file)
    assert code == 1
    assert "GPUNode" in said


def test_files_go_with_once(tree: Path, tmp_path: Path) -> None:
    code, said = run("--node", "a", "--sysfs", tree, "--pods", tmp_path)
    assert code == 2
    assert "go with --once" in said


def test_no_database(tree: Path, tmp_path: Path) -> None:
    code, said = run("--once", "--node", "a", "--sysfs", tree, "--pci-ids", tmp_path / "none")
    assert code == 1
    assert "cannot read the PCI ID database" in said


def test_no_cluster(tree: Path, tmp_path: Path) -> None:
    code, said = run("--node", "a", "--sysfs", tree, "--kubeconfig", tmp_path / "none")
    assert code == 1
    assert "kubeconfig" in said
