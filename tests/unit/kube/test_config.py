"""Credentials: what a kubeconfig may say, and what is said of one that cannot be used."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuclaim.kube import config, pki
from gpuclaim.kube.config import ConfigError

AUTHORITY = pki.Authority.new("test")


def kubeconfig(folder: Path, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None) -> Path:
    server = {"server": "https://127.0.0.1:6443/", "certificate-authority-data": b64(AUTHORITY.pair.certificate)}
    file = folder / "kubeconfig"
    file.write_text(
        yaml.safe_dump(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "tenant-a"}}],
                "clusters": [{"name": "c", "cluster": server | (cluster or {})}],
                "users": [{"name": "u", "user": user or {}}],
            }
        )
    )
    return file


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_a_token_and_a_namespace(tmp_path: Path) -> None:
    found = config.load(kubeconfig(tmp_path, {"token": "secret"}))
    assert (found.server, found.namespace) == ("https://127.0.0.1:6443", "tenant-a")
    assert await found.headers() == {"Authorization": "Bearer secret"}


async def test_a_client_certificate_needs_no_header(tmp_path: Path) -> None:
    pair = AUTHORITY.issue("admin", groups=["system:masters"])
    user = {"client-certificate-data": b64(pair.certificate), "client-key-data": b64(pair.key)}
    found = config.load(kubeconfig(tmp_path, user))
    assert found.tls is not None
    assert await found.headers() == {}


async def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    found = config.load(kubeconfig(tmp_path, {"tokenFile": "token"}))
    assert await found.headers() == {"Authorization": "Bearer one"}
    (tmp_path / "token").write_text("two\n")
    found._read_at -= 61
    assert await found.headers() == {"Authorization": "Bearer two"}
    (tmp_path / "token").unlink()
    found._read_at -= 61
    with pytest.raises(ConfigError, match="cannot read the token"):
        await found.headers()


async def test_an_exec_plugin(tmp_path: Path) -> None:
    script = "import json; print(json.dumps({'kind': 'ExecCredential', 'status': {'token': 'minted'}}))"
    command = {"command": sys.executable, "args": ["-c", script], "apiVersion": "client.authentication.k8s.io/v1"}
    found = config.load(kubeconfig(tmp_path, {"exec": command}))
    assert await found.headers() == {"Authorization": "Bearer minted"}
    missing = {"command": "no-such-plugin", "installHint": "Install it."}
    with pytest.raises(ConfigError, match=r"no-such-plugin does not start: .*\. Install it\."):
        await config.load(kubeconfig(tmp_path, {"exec": missing})).headers()
    silent = {"command": sys.executable, "args": ["-c", ""]}
    with pytest.raises(ConfigError, match="printed no token"):
        await config.load(kubeconfig(tmp_path, {"exec": silent})).headers()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "is no kubeconfig"),
        ("a: [", "is no YAML"),
        ("current-context: x", "has no usable context 'x'"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}]}", "'c' in clusters"),
    ],
)
def test_what_is_no_kubeconfig(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        config.load(file)


def test_no_file_no_certificate_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        config.load(tmp_path / "none")
    with pytest.raises(ConfigError, match="is no base64"):
        config.load(kubeconfig(tmp_path, cluster={"certificate-authority-data": "!"}))
    with pytest.raises(ConfigError, match="cannot be used"):
        config.load(kubeconfig(tmp_path, cluster={"certificate-authority-data": "", "certificate-authority": "ca.crt"}))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    with pytest.raises(ConfigError, match="--kubeconfig or \\$KUBECONFIG"):
        config.load()
    with pytest.raises(ConfigError, match="no pod of a cluster"):
        config.in_cluster()


async def test_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in (("ca.crt", AUTHORITY.pair.certificate), ("namespace", b"gpuclaim"), ("token", b"t")):
        (tmp_path / name).write_bytes(content)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = config.in_cluster(tmp_path)
    assert (found.server, found.namespace) == ("https://[fd00::1]:443", "gpuclaim")
    assert await found.headers() == {"Authorization": "Bearer t"}


async def test_in_a_pod_without_a_token_the_apiserver_is_known_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("ca.crt", AUTHORITY.pair.certificate), ("namespace", b"gpuclaim")):
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(config, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = config.load(anonymous=True)
    assert (found.server, await found.headers()) == ("https://10.0.0.1:443", {})
    with pytest.raises(ConfigError, match="no cluster to talk to"):
        config.load()
    # Where there is a token, it is another's: it is not sent.
    (tmp_path / "token").write_bytes(b"t")
    assert await config.load(anonymous=True).headers() == {}
    assert await config.load().headers() == {"Authorization": "Bearer t"}
