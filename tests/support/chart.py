"""The chart, rendered by the real Helm."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from gpuclaim.local import build, toolchain

CHART = Path(__file__).parents[2] / "chart" / "gpuclaim"
NAMESPACE = "gpuclaim-system"
_PACKAGE = "helm.sh/helm/v4"


class HelmError(Exception):
    """Helm ended with an error; the message is what it said."""


def required(module: Path, package: str) -> str:
    """The version of a package that the module's go.mod requires."""
    found = re.search(rf"^\s*{re.escape(package)} (v\S+)", (module / "go.mod").read_text(), re.MULTILINE)
    assert found, f"{module}/go.mod requires no {package}"
    return found[1]


def component() -> build.Component:
    """Helm in one program."""
    module = toolchain.localkube_dir() / "helm"
    version = required(module, _PACKAGE)
    variables = ((f"{_PACKAGE}/internal/version.version", version),)
    return build.Component("helm", version, module, package=f"{_PACKAGE}/cmd/helm", variables=variables)


class Helm:
    """Runs Helm with folders of its own and, where one is given, a cluster's kubeconfig."""

    def __init__(self, program: Path, folder: Path, kubeconfig: Path | None = None) -> None:
        self._program = program
        self._environment = {
            "HELM_CACHE_HOME": str(folder / "cache"),
            "HELM_CONFIG_HOME": str(folder / "config"),
            "HELM_DATA_HOME": str(folder / "data"),
            "HOME": str(folder),
            # Not the cluster of who runs the tests.
            "KUBECONFIG": str(kubeconfig or folder / "none"),
            "PATH": "/nowhere",
        }

    @classmethod
    def build(cls, folder: Path, progress: Callable[[str], None], kubeconfig: Path | None = None) -> Helm:
        """Helm, built first where the cache has none."""
        return cls(build.ensure(component(), progress), folder, kubeconfig)

    def run(self, *arguments: str | Path) -> str:
        """What it printed.

        Raises:
            HelmError: it failed.
        """
        command = [str(each) for each in (self._program, *arguments)]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HelmError(done.stderr + done.stdout)
        return done.stdout

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """What a release `gpuclaim` in NAMESPACE would have, with these further arguments of `helm template`."""
        printed = self.run(
            "template", "gpuclaim", CHART, "--namespace", NAMESPACE, "--kube-version", "1.32", *arguments
        )
        return [each for each in yaml.safe_load_all(printed) if each]
