"""The run folder of `gpuclaim up`: one process at a time, clean at the start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuclaim.local import cloud
from gpuclaim.local.cloud import CloudError


def test_a_run_folder_is_emptied_and_held_alone(tmp_path: Path) -> None:
    folder = tmp_path / "up"
    (folder / "etcd").mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "etcd" / "state").write_text("old")
    (folder / "kubeconfig").write_text("old")
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "link").symlink_to(outside)
    with cloud.run_folder(folder):
        assert [each.name for each in folder.iterdir()] == ["lock"]
        with pytest.raises(CloudError, match=rf"runs already \(process {os.getpid()}\).*KUBECONFIG=\S+/kubeconfig"):
            cloud.run_folder(folder).__enter__()
    with cloud.run_folder(folder):
        pass
    assert outside.is_dir()


def test_a_run_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CloudError, match=r"the run folder .* cannot be used: Not a directory"):
        cloud.run_folder(tmp_path / "file" / "up").__enter__()


def test_a_folder_of_the_users_that_is_no_run_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(CloudError, match="is not empty"):
        cloud.run_folder(tmp_path).__enter__()
    assert (tmp_path / "precious").read_text() == "mine"


def test_paths_are_shown_as_one_can_type_them_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert cloud.shown(tmp_path / "examples") == str(tmp_path / "examples")
    assert cloud.shown(tmp_path / "home" / ".cache" / "up") == "~/.cache/up"
    assert cloud.shown(Path("/my runs/up")) == "'/my runs/up'"
