"""Where the apiserver is and who we are to it: a kubeconfig, or the ServiceAccount of the pod that this runs in.

The formats are those of client-go: k8s.io/client-go/tools/clientcmd/api/v1 and the ExecCredential of
client.authentication.k8s.io. Our own reader, since the official client's costs 54 MiB and 0.6 s at import
(docs/why/dependencies.md).
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import os
import ssl
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import yaml

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_REREAD_SECONDS: Final = 60.0


class ConfigError(Exception):
    """The credentials cannot be used; the message says which file and what to do."""


@dataclasses.dataclass(kw_only=True)
class Config:
    """A server and an identity.

    `server` is an URL without a trailing slash; `namespace` the one used where a command names none.
    """

    server: str
    tls: ssl.SSLContext | None
    namespace: str = "default"
    token: str | None = None
    token_file: Path | None = None
    exec_command: dict[str, Any] | None = None
    _read_at: float = -_TOKEN_REREAD_SECONDS

    async def headers(self) -> dict[str, str]:
        """The Authorization header of now: a token file is read again every minute, an exec plugin run when it must."""
        if self.exec_command is not None and self.token_file is None and (now := time.monotonic()) >= self._read_at:
            self.token, lifetime = await _exec_token(self.exec_command)
            self._read_at = now + lifetime
        return self._known_headers()

    def headers_now(self) -> dict[str, str]:
        """As `headers`, for a caller without an event loop."""
        if self.exec_command is None:
            return self._known_headers()
        import asyncio

        return asyncio.run(self.headers())

    def _known_headers(self) -> dict[str, str]:
        now = time.monotonic()
        if self.token_file is not None and now - self._read_at >= _TOKEN_REREAD_SECONDS:
            try:
                self.token = self.token_file.read_text().strip()
            except OSError as error:
                raise ConfigError(f"cannot read the token {self.token_file}: {error.strerror}") from None
            self._read_at = now
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def load(kubeconfig: str | Path | None = None, context: str | None = None, *, anonymous: bool = False) -> Config:
    """The kubeconfig named, else that of $KUBECONFIG, else the pod's ServiceAccount, else ~/.kube/config.

    With `anonymous` only where the apiserver is and how it is known, and nobody's credentials.

    Raises:
        ConfigError: there is none, or it cannot be read or used.
    """
    kubeconfig = kubeconfig or _of_environment()
    if kubeconfig is None:
        needed = SERVICE_ACCOUNT / ("ca.crt" if anonymous else "token")
        if os.environ.get("KUBERNETES_SERVICE_HOST") and needed.exists():
            found = in_cluster(SERVICE_ACCOUNT)
            return dataclasses.replace(found, token_file=None) if anonymous else found
        kubeconfig = Path.home() / ".kube" / "config"
        if not kubeconfig.exists():
            raise ConfigError("no cluster to talk to: name a kubeconfig with --kubeconfig or $KUBECONFIG")
    return from_file(Path(kubeconfig), context, anonymous=anonymous)


def contexts(kubeconfig: str | Path | None = None) -> list[str]:
    """The names of the contexts that `load` could be asked for; none where there is no kubeconfig that can be read."""
    path = Path(kubeconfig or _of_environment() or Path.home() / ".kube" / "config")
    try:
        return [str(entry["name"]) for entry in _read(path).get("contexts") or ()]
    except (ConfigError, KeyError, TypeError):
        return []


def _of_environment() -> str | None:
    listed = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return next((part for part in listed if Path(part).exists()), listed[0] if listed else None)


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Config:
    """The ServiceAccount that kubelet mounted into this pod.

    Raises:
        ConfigError: this is no pod, or its token is not mounted.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("this is no pod of a cluster: KUBERNETES_SERVICE_HOST is not set")
    try:
        tls = ssl.create_default_context(cafile=folder / "ca.crt")
        namespace = (folder / "namespace").read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read the ServiceAccount in {folder}: {error}") from None
    host = f"[{host}]" if ":" in host else host
    return Config(server=f"https://{host}:{port}", tls=tls, namespace=namespace, token_file=folder / "token")


def from_file(path: Path, context: str | None = None, *, anonymous: bool = False) -> Config:
    """One context of a kubeconfig, its current one by default; `anonymous` as for `load`.

    Raises:
        ConfigError: the file cannot be read, is no kubeconfig, or has no such context.
    """
    loaded = _read(path)
    wanted = context or loaded.get("current-context")
    try:
        chosen = _named(loaded, "contexts", wanted)["context"]
        cluster = _named(loaded, "clusters", chosen["cluster"])["cluster"]
        user = {} if anonymous else _named(loaded, "users", chosen["user"])["user"] or {}
        server = str(cluster["server"]).rstrip("/")
        texts: list[object] = [chosen.get("namespace"), user.get("token"), user.get("tokenFile")]
    except KeyError as error:
        raise ConfigError(f"the kubeconfig {path} has no usable context {wanted!r}: {error} is missing") from None
    except (TypeError, AttributeError):
        texts = [0]
    if not all(isinstance(each, str | None) for each in texts):
        raise ConfigError(f"{path} is no kubeconfig: a part of context {wanted!r} has another shape")
    if not server.startswith(("https://", "http://")):
        raise ConfigError(f"the kubeconfig {path}: the server {server!r} must begin with https://")
    return Config(
        server=server,
        tls=_tls(path, cluster, user) if server.startswith("https:") else None,
        namespace=chosen.get("namespace") or "default",
        token=user.get("token"),
        token_file=path.parent / user["tokenFile"] if "tokenFile" in user else None,
        exec_command=user.get("exec"),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except OSError as error:
        raise ConfigError(f"cannot read the kubeconfig {path}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1}: {error.problem})" if error.problem_mark is not None else ""
        raise ConfigError(f"the kubeconfig {path} is no YAML{line}") from None
    except (yaml.YAMLError, ValueError):
        raise ConfigError(f"the kubeconfig {path} is no YAML") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} is no kubeconfig: name one with --kubeconfig or $KUBECONFIG")
    return loaded


def _named(loaded: dict[str, Any], section: str, name: object) -> dict[str, Any]:
    found = next((entry for entry in loaded.get(section) or () if entry.get("name") == name), None)
    if found is None:
        raise KeyError(f"{name!r} in {section}")
    return dict(found)


def _tls(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    try:
        authority = _content(path, cluster, "certificate-authority")
        tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        certificate, key = _content(path, user, "client-certificate"), _content(path, user, "client-key")
        if certificate and key:
            # ssl takes a chain from a file only; the folder is gone before this function is.
            with tempfile.TemporaryDirectory() as folder:
                pem = Path(folder, "client.pem")
                pem.touch(mode=0o600)
                pem.write_bytes(key + b"\n" + certificate)
                tls.load_cert_chain(pem)
    except OSError as error:
        raise ConfigError(f"a certificate of the kubeconfig {path} cannot be used: {error}") from None
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"a certificate in the kubeconfig {path} is no base64: {error}") from None
    return tls


def _content(path: Path, entry: dict[str, Any], key: str) -> bytes | None:
    if data := entry.get(f"{key}-data"):
        return base64.b64decode("".join(data.split()), validate=True)
    if name := entry.get(key):
        return Path(path.parent, name).read_bytes()
    return None


async def _exec_token(command: dict[str, Any]) -> tuple[str, float]:
    """The token that an exec plugin prints, and for how many seconds to keep it."""
    import asyncio  # 60 ms, a fifth of what a command may need to start: only where there is a plugin

    env = os.environ | {item["name"]: item["value"] for item in command.get("env") or ()}
    request = {"apiVersion": command.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
    env["KUBERNETES_EXEC_INFO"] = json.dumps(request)
    name = command["command"]
    try:
        process = await asyncio.create_subprocess_exec(
            name, *(command.get("args") or ()), env=env, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()
        if process.returncode:
            raise ConfigError(f"the credential plugin {name} ended with status {process.returncode}")
        status = json.loads(printed)["status"]
        return str(status["token"]), _TOKEN_REREAD_SECONDS if "expirationTimestamp" in status else float("inf")
    except OSError as error:
        hint = command.get("installHint") or ""
        raise ConfigError(f"the credential plugin {name} does not start: {error.strerror}. {hint}".strip()) from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"the credential plugin {name} printed no token") from None
