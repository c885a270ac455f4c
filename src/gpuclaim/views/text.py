"""Text of others made safe for a terminal, and moments made short. Pure."""

from __future__ import annotations

import datetime as dt
import unicodedata
from typing import Final

_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: str) -> str:
    """The text on one line, with nothing in it that a terminal obeys: escapes, controls, changes of direction."""
    return "".join("�" if unicodedata.category(char) in _UNSAFE else char for char in " ".join(text.split()))


def width(text: str) -> int:
    """How many columns the text takes: wide characters two, combining ones none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def cut(text: str, columns: int) -> str:
    """The text in at most so many columns, an ellipsis in the place of what is left out."""
    if width(text) <= columns:
        return text
    kept = ""
    for char in text:
        if width(kept + char) > columns - 1:
            break
        kept += char
    return kept + "…" if columns > 0 else ""


def folded(sentence: str, columns: int | None) -> list[str]:
    """The sentence on lines of at most so many columns; on one where there is no width to keep to."""
    import textwrap

    return textwrap.wrap(sentence, columns, break_on_hyphens=False) if columns else [sentence]


def age(since: dt.datetime | None, now: dt.datetime) -> str:
    """How long ago, as kubectl writes it, in the two largest units that say something."""
    if since is None:
        return ""
    seconds = max(0, int((now - since).total_seconds()))
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 180:
        return f"{minutes}m"
    return f"{hours}h" if hours < 48 else f"{days}d"


def gpus(count: int) -> str:
    """A number of GPUs in words."""
    return "1 GPU" if count == 1 else f"{count} GPUs"
