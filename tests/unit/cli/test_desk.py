"""The commands of `kubectl gpu` where there is no cluster."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from gpuclaim.cli import complete, desk, main
from gpuclaim.kube import config
from support import terminal


@pytest.mark.parametrize(("given", "seconds"), [("30s", 30), ("5m", 300), ("1h", 3600), ("7", 7)])
def test_durations(given: str, seconds: float) -> None:
    assert desk.Seconds().convert(given, None, None) == seconds


@pytest.mark.parametrize("given", ["", "0s", "m", "-3s", "1.5h", "soon"])
def test_what_is_no_duration(given: str) -> None:
    with pytest.raises(click.BadParameter, match="30s"):
        desk.Seconds().convert(given, None, None)


def test_resources_are_named_as_kubectl_names_them() -> None:
    assert desk.full(desk.CLAIMS) == "gpuclaim.gpu.cozystack.io"
    assert desk.full(desk.CLASSES) == "gpuclass.gpu.cozystack.io"


def kubeconfig(folder: Path, server: str) -> str:
    file = folder / "config"
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    file.write_text(yaml.safe_dump(content))
    return str(file)


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as once:
        once.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{once.getsockname()[1]}"


@pytest.mark.parametrize("command", [["classes"], ["claims", "-A"], ["order", "h200"], ["release", "-y", "x"]])
def test_an_apiserver_that_is_away(command: list[str], nobody: str, tmp_path: Path) -> None:
    given = [*command, "--kubeconfig", kubeconfig(tmp_path, f"http://{nobody}")]
    result = CliRunner().invoke(main.kubectl_gpu, given)
    assert result.exit_code == 1
    assert f"no answer from the apiserver at http://{nobody}" in result.output
    assert "is it running" in result.output
    assert "object at" not in result.output


def test_no_kubeconfig(tmp_path: Path) -> None:
    result = CliRunner().invoke(main.kubectl_gpu, ["claims"], env={"HOME": str(tmp_path), "KUBECONFIG": ""})
    assert result.exit_code == 1
    assert "--kubeconfig" in result.output


def test_kubectl_gpu_has_the_user_s_half_only() -> None:
    listed = CliRunner().invoke(main.kubectl_gpu, ["--help"]).output
    assert all(f"  {name} " in listed for name in main.USERS)
    assert "controller" not in listed
    assert CliRunner().invoke(main.kubectl_gpu, ["controller"]).exit_code == 2
    assert set(main.USERS) < set(main.COMMANDS)


def test_a_shell_completes_commands_and_options() -> None:
    env = {"_KUBECTL_GPU_COMPLETE": "bash_complete", "COMP_WORDS": "kubectl-gpu order --dr", "COMP_CWORD": "2"}
    assert "--dry-run" in terminal.run([], env=env).text


@pytest.mark.parametrize(
    ("words", "wanted", "files"),
    [
        (["cl"], ["classes", "claims"], False),
        (["nodes", "-o", "w"], ["wide"], False),
        (["usage", "--prices", ""], [], True),
        (["order", "h200", "--cou"], ["--count"], False),
        (["claims", "--context", "h"], ["here"], False),
        (["claims", "--context", "t"], [], False),
        # An apiserver that is away completes nothing, and says nothing.
        (["order", ""], [], False),
        ([], list(main.USERS), False),
    ],
)
def test_completion(
    words: list[str], wanted: list[str], files: bool, nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, f"http://{nobody}"))
    found, may_be_files = complete.candidates(main.kubectl_gpu, words)
    assert ([item.value for item in found], may_be_files) == (wanted, files)


def test_kubectl_s_program_prints_what_kubectl_reads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl_complete-gpu", "bud"])
    complete.kubectl()
    assert capsys.readouterr().out == "budget\tShow how much may be ordered, and how much is used.\n:4\n"


@pytest.mark.parametrize("content", ["", "[]", "contexts: 7", "{", "contexts: [{}]"])
def test_a_broken_kubeconfig_completes_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(content)
    assert config.contexts(tmp_path / "config") == []
    assert config.contexts(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: [\n b", r"is no YAML \(line 3: did not find expected ',' or '\]'\)"),
        (b"\x00\xff", "is no YAML"),
        (b"- 7", "is no kubeconfig: name one with --kubeconfig"),
        (b"", "is no kubeconfig: name one"),
        (b"contexts: [x]", "has another shape"),
        (b"contexts: [{name: here, context: {cluster: c, user: u}}]", "'c' in clusters"),
        (
            b"KNOWN\nclusters: [{name: c, cluster: {server: nonsense}}]\nusers: [{name: u, user: {}}]",
            "begin with https://",
        ),
        (
            b"KNOWN\nclusters: [{name: c, cluster: {server: 'https://h'}}]\nusers: [{name: u, user: [1]}]",
            "another shape",
        ),
        (
            b"KNOWN\nclusters: [{name: c, cluster: {server: 'https://h'}}]\nusers: [{name: u, user: {token: 1}}]",
            "shape",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_gets_a_sentence(content: bytes, said: str, tmp_path: Path) -> None:
    known = b"current-context: here\ncontexts: [{name: here, context: {cluster: c, user: u}}]"
    content = content.replace(b"KNOWN", known)
    (tmp_path / "config").write_bytes(content)
    given = [
        "claims",
        "--kubeconfig",
        str(tmp_path / "config"),
        *(["--context", "here"] if known not in content else []),
    ]
    result = CliRunner().invoke(main.kubectl_gpu, given)
    assert (result.exit_code, isinstance(result.exception, SystemExit)) == (1, True)
    assert re.search(said, result.output)
    assert len(result.output.splitlines()) == 1
