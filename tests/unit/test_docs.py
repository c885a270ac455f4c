"""The docs name what there is: files, commands, options, reasons, fields."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from gpuclaim.api import reasons
from gpuclaim.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("localkube/**/*.md")])
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_COMMAND = re.compile(r"gpuclaim (?P<name>[a-z]+)(?P<rest>[^\n`|]*)")


def commands(text: str) -> Iterator[tuple[str, str]]:
    for block in re.findall(r"`([^`\n]+)`|^\s*[$#] (.+)$", text, re.MULTILINE):
        line = block[0] or block[1]
        if line.startswith("kubectl"):  # its `gpuclaim` is a kind
            continue
        for found in _COMMAND.finditer(line):
            yield found["name"], found["rest"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_exists(page: Path) -> None:
    context = click.Context(main)
    for name, rest in commands(page.read_text()):
        assert name in COMMANDS, f"{page.name} names `gpuclaim {name}`"
        command = main.get_command(context, name)
        assert command is not None
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        named = set(re.findall(r"(?<!\S)--[a-z-]+", rest))
        assert named <= known | {"--help"}, f"{page.name}: gpuclaim {name}"


def test_every_target_that_the_docs_name_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z]+)[ `]", page.read_text())}
    assert {"check", "test", "docs"} <= named <= targets


def test_the_reasons_page_has_every_word_of_the_vocabularies() -> None:
    text = (ROOT / "docs" / "reference" / "reasons.md").read_text()
    words = [
        word
        for vocabulary in (
            reasons.Refusal,
            reasons.PodRefusal,
            reasons.ClaimCondition,
            reasons.BoundReason,
            reasons.AttachedReason,
            reasons.HealthyReason,
            reasons.NodeConditionType,
            reasons.NodeReason,
        )
        for word in vocabulary
    ]
    assert [word for word in words if f"`{word}`" not in text] == []


def generator() -> ModuleType:
    file = ROOT / "docs" / "reference" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_api_page_is_that_of_the_crds() -> None:
    written = (ROOT / "docs" / "reference" / "api.md").read_text()
    assert generator().page() == written, "the types have changed: run `make docs` and commit what it writes"
