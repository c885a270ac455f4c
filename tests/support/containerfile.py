"""The Containerfile, read: enough of its language for this one."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

FILE = Path(__file__).parents[2] / "Containerfile"


@dataclasses.dataclass
class Stage:
    """From one FROM to the next: its instructions as (word, rest)."""

    base: str
    name: str
    steps: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def all(self, word: str) -> list[str]:
        return [rest for each, rest in self.steps if each == word]


def stages() -> list[Stage]:
    text = re.sub(r"\\\n", " ", FILE.read_text())
    found: list[Stage] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base, name))
        elif found:
            found[-1].steps.append((word, rest.strip()))
    return found
