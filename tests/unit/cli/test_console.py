"""`gpuclaim console` where it is told what cannot be."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuclaim.cli import main
from gpuclaim.kube import config
from unit.cli.test_desk import kubeconfig

PUBLIC = ["--public-url", "https://gpu.example"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--listen", "0.0.0.0:8090"], "listens on 127.0.0.1 or ::1 only"),
        (["--login", "token", "--listen", "0.0.0.0:8090"], "say by --public-url what browsers call it"),
        (["--login", "token", "--public-url", "http://gpu.example"], "must be https"),
        (["--login", "token", "--public-url", "gpu.example"], "must be https://HOST"),
        (["--login", "token", "--context", "a", "--context", "b"], "several --context"),
        (["--login", "proxy", *PUBLIC, "--tls-key", "k"], "go together"),
        (["--login", "magic"], "'magic' is not one of"),
        (["--listen", "nowhere"], "must be ADDRESS:PORT"),
    ],
)
def test_what_cannot_be(given: list[str], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main.main, ["console", "--kubeconfig", kubeconfig(tmp_path, "http://x"), *given])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_what_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(main.main, ["console", "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "none" in result.output
    here = kubeconfig(tmp_path, "http://x")
    result = CliRunner().invoke(main.main, ["console", "--kubeconfig", here, "--context", "gone"])
    assert result.exit_code == 1
    assert "gone" in result.output


def test_a_port_that_another_program_has(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        here = kubeconfig(tmp_path, "http://x")
        result = CliRunner().invoke(main.main, ["console", "--kubeconfig", here, "--listen", listen])
    assert result.exit_code == 1
    assert f"cannot listen on {listen}" in result.output


def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    here = kubeconfig(tmp_path, "http://x")
    nothing = tmp_path / "tls.crt"
    nothing.write_text("")
    given = ["--listen", "127.0.0.1:0", "--tls-certificate", str(nothing), "--tls-key", str(nothing)]
    result = CliRunner().invoke(main.main, ["console", "--kubeconfig", here, *given])
    assert result.exit_code == 1
    assert f"the certificate {nothing}" in result.output


def test_where_the_apiserver_is_says_nothing_of_whose_credentials_there_are(tmp_path: Path) -> None:
    found = config.load(kubeconfig(tmp_path, "http://x"), anonymous=True)
    assert (found.server, found.token, found.token_file, found.exec_command) == ("http://x", None, None, None)
    assert config.load(kubeconfig(tmp_path, "http://x")).token == "t"
