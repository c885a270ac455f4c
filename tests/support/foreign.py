"""The kinds of others that the chart has objects of: the Prometheus operator's and cert-manager's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from gpuclaim.kube.client import Client
from gpuclaim.local import toolchain
from support import cloud

_FILES = {
    "github.com/prometheus-operator/prometheus-operator": (
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    "github.com/cert-manager/cert-manager": ("deploy/crds/cert-manager.io_certificates.yaml",),
}


def definitions() -> list[dict[str, Any]]:
    """Their CRDs, from Go modules that go.sum locks."""
    module = toolchain.localkube_dir() / "crds"
    go = toolchain.find((1, 26), toolchain.silent)
    environment = {**os.environ, "GOWORK": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    found: list[dict[str, Any]] = []
    for name, files in _FILES.items():
        done = subprocess.run(
            (go, "mod", "download", "-json", name),
            cwd=module,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        folder = Path(json.loads(done.stdout)["Dir"])
        found += [each for file in files for each in yaml.safe_load_all((folder / file).read_text()) if each]
    return found


async def install(client: Client) -> None:
    """Has the apiserver serve them."""

    await cloud.install_crds(client, await asyncio.to_thread(definitions))
