"""The bill of materials as `make sbom` makes it, and the lock that it is made from."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def make(file: Path) -> dict[str, Any]:
    """What `make sbom` writes there."""
    subprocess.run(("make", "sbom", f"SBOM={file}"), cwd=ROOT, check=True, capture_output=True)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def locked() -> dict[str, tuple[str, set[str]]]:
    """Each package of the image → its version and the hashes that it may have."""
    text = (ROOT / "requirements" / "runtime.txt").read_text().replace("\\\n", " ")
    found: dict[str, tuple[str, set[str]]] = {}
    for line in text.splitlines():
        if package := re.match(r"([a-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", line):
            found[package[1]] = (package[2], set(re.findall(r"--hash=sha256:([0-9a-f]{64})", line)))
    return found
