"""Each file of tests/cases/agent: through the command, a sysfs tree and a real socket; and through the pure half."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpuclaim.agent import pciids, resolve
from gpuclaim.agent.report import body, report
from gpuclaim.agent.sysfs import Scanner
from gpuclaim.cli.main import main
from gpuclaim.local.podresources_server import PodResourcesServer
from gpuclaim.local.sysfs_tree import SysfsTree
from support import agent_cases

CASES = agent_cases.files()


@pytest.fixture
def folder() -> Iterator[Path]:
    # pytest's own folders may be too deep for the path of a unix socket.
    with tempfile.TemporaryDirectory(prefix="gpuclaim-") as name:
        yield Path(name)


def test_there_are_cases() -> None:
    assert len(CASES) >= 13


@pytest.mark.parametrize("file", CASES, ids=lambda path: path.stem)
def test_pure(file: Path, tmp_path: Path) -> None:
    case = agent_cases.load(file)
    tree = SysfsTree(tmp_path, case.functions)
    functions = Scanner(tree.root).scan(resolve.groups_named(case.answers.device_ids()))
    status = report(
        functions,
        case.answers,
        case.phases,
        case.previous,
        boot_id="b",
        name_model=pciids.namer({}),
        now=dt.datetime.now(dt.UTC),
    )
    agent_cases.check(body(status), case.expect)


@pytest.mark.parametrize("file", CASES, ids=lambda path: path.stem)
async def test_command(file: Path, folder: Path) -> None:
    case = agent_cases.load(file)
    argv = arguments(case, folder, "yaml")
    async with PodResourcesServer(folder / "kubelet.sock", case.answers.allocatable, case.answers.pods):
        # The command runs a loop of its own.
        result = await asyncio.to_thread(CliRunner().invoke, main, argv)
    assert result.exit_code == 0, result.output
    check(yaml.safe_load(result.stdout), case)


async def test_program(folder: Path) -> None:
    case = agent_cases.load(next(file for file in CASES if file.name.startswith("09")))
    argv = arguments(case, folder, "json")
    async with PodResourcesServer(folder / "kubelet.sock", case.answers.allocatable, case.answers.pods):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gpuclaim", *argv, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()
    assert process.returncode == 0
    check(json.loads(printed), case)


def arguments(case: agent_cases.Case, folder: Path, output: str) -> list[str]:
    SysfsTree(folder / "sys", case.functions)
    (folder / "pods").write_text(yaml.safe_dump(case.pod_list()))
    argv = ["agent", "--once", "--node", "node-a", "--sysfs", f"{folder}/sys", "-o", output]
    argv += ["--pod-resources", f"unix://{folder}/kubelet.sock", "--pods", f"{folder}/pods"]
    if case.previous is not None:
        previous = {"kind": "GPUNode", "metadata": {"name": "node-a"}, "status": body(case.previous)}
        (folder / "previous").write_text(json.dumps(previous))
        argv += ["--previous", f"{folder}/previous"]
    return argv


def check(node: dict[str, Any], case: agent_cases.Case) -> None:
    assert (node["apiVersion"], node["kind"]) == ("gpu.cozystack.io/v1alpha1", "GPUNode")
    assert node["metadata"]["name"] == "node-a"
    agent_cases.check(node["status"], case.expect)
