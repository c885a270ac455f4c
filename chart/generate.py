"""Writes the guard into the chart (`make crds`) as admission/guard.py has it; a test says when it is old."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from gpuclaim.admission import guard

POLICY: Final = Path(__file__).parent / "gpuclaim" / "templates" / "guard" / "policy.yaml"
HEAD: Final = """\
# Turns away pods that ask for GPUs of a class and hold none, for classes that no controller has taken up yet: it holds
# before one ever ran. For the others the controller keeps a policy that costs less. Made by `make crds`.
"""


def text() -> str:
    """The file."""
    return HEAD + yaml.safe_dump(guard.new_classes(), sort_keys=False, width=120)


if __name__ == "__main__":
    POLICY.write_text(text())
