"""The Containerfile's build stage, run without a container engine.

Its steps are run by a shell as they stand, on this machine's Python and not on the base image, with the folders of the
image moved below a temporary one. What only an engine can show is not tested here: that the base image has what the
steps use, and the layers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuclaim import __version__
from support import sbom
from support.containerfile import FILE, stages

MOVED = re.compile(r"(?<![\w./])/(?=(opt|src|tmp)\b)")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root below which the first stage was run."""
    root = tmp_path_factory.mktemp("image")
    (root / "bin").mkdir()
    # A Python that has pip, as the base image's: the one that this environment was made of.
    (root / "bin" / "python").symlink_to(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))
    environment = {**os.environ, "PATH": f"{root / 'bin'}:{os.environ['PATH']}", "PYTHONNOUSERSITE": "1"}
    here = root
    for word, rest in stages()[0].steps:
        moved = MOVED.sub(f"{root}/", rest)
        if word == "ENV":
            environment |= dict(each.split("=", 1) for each in moved.split())
        elif word == "WORKDIR":
            here = Path(moved)
            here.mkdir(parents=True)
        elif word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                _copy(FILE.parent / source, here / target / ("" if source.endswith("/") else Path(source).name))
        elif word == "RUN":
            done = subprocess.run(
                moved, shell=True, cwd=here, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{rest}\n{done.stdout}{done.stderr}"
        else:
            pytest.fail(f"what does {word} do?")
    return root


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def test_the_program_runs(image: Path) -> None:
    program = image / "opt/gpuclaim/bin/gpuclaim"
    empty = {"PATH": "/nowhere"}
    printed = subprocess.run((program, "--version"), capture_output=True, text=True, check=True, env=empty).stdout
    assert __version__ in printed
    for command in ("agent", "console", "controller", "crds"):
        subprocess.run((program, command, "--help"), capture_output=True, check=True, env=empty)
    # The page's templates and files are part of it.
    page = "from gpuclaim.console.render import Renderer; print(*Renderer('').statics)"
    printed = subprocess.run(
        (program.with_name("python"), "-c", page), capture_output=True, text=True, check=True, env=empty
    ).stdout
    assert len(printed.split()) == 3


def test_it_has_no_tools_and_all_bytecode(image: Path) -> None:
    packages = next((image / "opt/gpuclaim/lib").glob("python3*/site-packages"))
    installed = {each.name.partition("-")[0].lower() for each in packages.glob("*.dist-info")}
    assert {"gpuclaim", "aiohttp"} <= installed
    # Nothing is in it that the bill of materials does not name.
    assert installed <= {name.replace("-", "_") for name in sbom.locked()} | {"gpuclaim"}
    assert not installed & {"pip", "setuptools", "wheel", "hatchling", "pytest", "mypy", "ruff", "grpcio_tools"}
    sources = list(packages.rglob("*.py"))
    cached = {each.name.partition(".")[0] for each in packages.rglob("*.pyc")}
    assert {each.stem for each in sources} <= cached
    megabytes = sum(each.stat().st_size for each in (image / "opt/gpuclaim").rglob("*") if each.is_file()) / 1e6
    print(f"{megabytes:.0f} MB beside the base image")
