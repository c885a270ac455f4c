#!/usr/bin/env python3
"""Write versions/<minor>.mod and .sum for a Kubernetes release.

    python localkube/kubernetes/add_version.py v1.35.4

A release's go.mod points its staging modules (k8s.io/api and the like) at
folders that a module download does not have. Their published twins are
v0.<minor>.<patch>, so each gets a `replace` to that. Everything else is what
the release itself locks. Needs Go on PATH and a Go module proxy.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HEADER = """\
// Written by add_version.py for Kubernetes {version}; do not edit.
module gpuclaim.local/kubernetes

go {go}

godebug default=go{language}

require k8s.io/kubernetes {version}

replace (
{replaces}
)
"""


def _go(*arguments: str, cwd: Path = HERE) -> str:
    return subprocess.run(("go", *arguments), cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


def _json(*arguments: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(_go(*arguments))
    return value


def mod_text(version: str, release: dict[str, Any]) -> str:
    """Return the go.mod to start from; `release` is `go mod edit -json` of the release's own."""
    staging = "v0" + version.removeprefix("v1")
    replaces = "\n".join(
        f"\t{name} => {name} {staging}"
        for name in sorted(
            entry["Old"]["Path"] for entry in release["Replace"] if entry["New"]["Path"].startswith("./staging/")
        )
    )
    language = ".".join(release["Go"].split(".")[:2])
    return HEADER.format(version=version, go=release["Go"], language=language, replaces=replaces)


def main(version: str) -> None:
    """Write the two files for `version`."""
    match = re.fullmatch(r"v1\.(\d+)\.\d+", version)
    if not match:
        sys.exit(f"{version!r} is no Kubernetes release: expected v1.MINOR.PATCH")
    download = _json("mod", "download", "-json", f"k8s.io/kubernetes@{version}")
    release = _json("mod", "edit", "-json", download["GoMod"])
    target = HERE / "versions" / f"1.{match[1]}.mod"
    target.with_suffix(".sum").unlink(missing_ok=True)
    target.write_text(mod_text(version, release))
    _go("mod", "tidy", f"-modfile={target}")
    print(f"{target.relative_to(HERE)} and {target.with_suffix('.sum').name} are for {version}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
