"""`gpuclaim render` (R76)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gpuclaim.admission import machines
from gpuclaim.api.core import wire
from gpuclaim.api.types import Mode
from gpuclaim.cli.render import render
from support.cloud import gpu_class


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Classes as `kubectl get -o yaml` lists them, one beside them, and something else."""
    listed = {"apiVersion": "v1", "kind": "List", "items": [wire(gpu_class("other", "x.io/other")), wire(gpu_class())]}
    single = wire(gpu_class("slice", "x.io/slice", mode=Mode.VGPU))
    written = tmp_path / "classes.yaml"
    written.write_text(yaml.safe_dump_all([listed, {"kind": "Namespace"}, None, single]))
    return written


def test_it_prints_the_template_as_yaml_and_json(file: Path) -> None:
    wanted = machines.template(gpu_class(), 2)
    for output, read in (("yaml", yaml.safe_load), ("json", json.loads)):
        done = CliRunner().invoke(render, ["--class", "h200", "--count", "2", "-f", str(file), "-o", output])
        assert done.exit_code == 0, done.output
        assert read(done.stdout) == wanted


def test_it_reads_standard_input_and_makes_a_template_of_a_set(file: Path) -> None:
    done = CliRunner().invoke(render, ["--class", "slice", "--set", "s", "-f", "-"], input=file.read_text())
    assert yaml.safe_load(done.stdout) == machines.template(gpu_class("slice", "x.io/slice", mode=Mode.VGPU), 1, "s")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--class", "none"], "no GPUClass 'none' in it (of classes, it has: h200, other, slice)"),
        (["--class", "slice", "--count", "2"], "at most 1 GPUs of class 'slice', and 2 are asked for"),
        (["--class", "h200", "--count", "0"], "not in the range"),
        (["--class", "h200", "--set", "a b"], "no name of a set"),
        (["--class", "h200", "--context", "x"], "either --file, or --kubeconfig and --context"),
    ],
)
def test_it_says_what_is_wrong(file: Path, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(render, [*arguments, "-f", str(file)])
    assert done.exit_code != 0
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "not valid YAML"),
        ("\x00", "not valid YAML"),
        ("", "it has: none"),
        (yaml.safe_dump(wire(gpu_class()) | {"spec": {"mode": "passthrough"}}), "source"),
        ("kind: GPUClass\napiVersion: gpu.cozystack.io/v1alpha1\nmetadata: 3\n", "it has: none"),
    ],
)
def test_a_file_that_has_no_class(tmp_path: Path, text: str, said: str) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(text)
    done = CliRunner().invoke(render, ["--class", "h200", "-f", str(bad)])
    assert done.exit_code == 1, done.output
    assert said in done.stderr
    missing = CliRunner().invoke(render, ["--class", "h200", "-f", str(tmp_path / "none")])
    assert "No such file" in missing.stderr


def test_a_class_that_is_closed_is_rendered_with_a_warning(tmp_path: Path) -> None:
    written = tmp_path / "closed.yaml"
    written.write_text(yaml.safe_dump(wire(gpu_class(closed=True))))
    done = CliRunner().invoke(render, ["--class", "h200", "-f", str(written)])
    assert done.exit_code == 0
    assert "closed to new orders" in done.stderr
