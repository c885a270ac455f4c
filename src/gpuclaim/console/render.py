"""Pages from templates: escaped, texts of others made safe, files of ours under names that change with them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from gpuclaim.views import text

_HERE: Final = Path(__file__).parent
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclasses.dataclass(frozen=True, slots=True)
class Static:
    """A file that browsers may keep."""

    body: bytes
    content_type: str


def _statics() -> dict[str, tuple[str, Static]]:
    """Each file by its name: the name that it is served by, and the file."""
    found = {}
    for path in sorted((_HERE / "static").iterdir()):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            served = f"{path.stem}.{hashlib.sha256(body).hexdigest()[:12]}{path.suffix}"
            found[path.name] = (served, Static(body, _TYPES[path.suffix]))
    return found


class Renderer:
    """The templates, and the files that they name.

    Attributes:
        statics: files by the name that they are served by.
    """

    def __init__(self, base: str) -> None:
        """Sets up; `base` is the path that all of the page's begin with, without a slash at its end."""
        named = _statics()
        self.statics = dict(named.values())
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            finalize=_safe,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals |= {
            "base": base,
            "static": lambda name: f"{base}/static/{named[name][0]}",
        }
        self._environment.filters |= {
            "bdi": bdi,
            "ago": _ago,
            "ahead": _ahead,
            "gpus": text.gpus,
        }

    def page(self, template: str, context: Mapping[str, Any]) -> str:
        """A page, or a part of one.

        Raises:
            jinja2.UndefinedError: the context lacks what the template names.
        """
        return self._environment.get_template(template).render(context)


def bdi(value: object) -> Markup:
    """Text of others: nothing in it that turns the direction of what stands beside it, or that cannot be seen."""
    return Markup("<bdi>{}</bdi>").format(text.safe(str(value)))


def _safe(value: object) -> object:
    """Whatever a template writes: text that is no markup yet loses what turns directions or cannot be seen."""
    return text.safe(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _ago(moment: dt.datetime | None, now: dt.datetime) -> Markup:
    return _moment(moment, text.age(moment, now), " ago")


def _ahead(moment: dt.datetime, now: dt.datetime) -> Markup:
    return _moment(moment, text.age(now, moment), "")


def _moment(moment: dt.datetime | None, words: str, after: str) -> Markup:
    if moment is None:
        return Markup("never")
    exact = moment.astimezone(dt.UTC).isoformat(timespec="seconds")
    return Markup('<time datetime="{}" title="{}">{}{}</time>').format(exact, exact, words, after)
