"""The docs name what there is: files, commands, options, reasons, fields."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from gpuclaim.api import names, reasons
from gpuclaim.cli.main import COMMANDS, main
from gpuclaim.placement import scenario, scenario_file

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("localkube/**/*.md")])
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
# A line or span of code that begins with the program, or comes to it after a path, && or |.
_COMMAND = re.compile(r"(?:^|/|&& |\| )gpuclaim (?P<name>[a-z]+)(?P<rest>[^\n`|]*)")


def commands(text: str) -> Iterator[tuple[str, str]]:
    for block in re.findall(r"`([^`\n]+)`|^\s*[$#] (.+)$|^ {4,}(gpuclaim .+)$", text, re.MULTILINE):
        for found in _COMMAND.finditer("".join(block)):
            yield found["name"], found["rest"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_commands_are_found_where_they_are() -> None:
    text = (
        "`gpuclaim up --exit`, `helm install gpuclaim chart/`\n$ .venv/bin/gpuclaim crds\n    gpuclaim agent --once\n"
    )
    assert list(commands(text)) == [("up", " --exit"), ("crds", ""), ("agent", " --once")]


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
            reasons.MachineRefusal,
            reasons.PodRefusal,
            reasons.ClaimCondition,
            reasons.BoundReason,
            reasons.AttachedReason,
            reasons.HealthyReason,
            reasons.MoveReason,
            reasons.EventReason,
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


def test_the_generated_pages_are_those_of_the_types_and_the_commands() -> None:
    generate = generator()
    old = "run `make docs` and commit what it writes"
    assert generate.API.read_text() == generate.page(), old
    assert generate.COMMAND_LINE.read_text() == generate.command_line(), old
    assert generate.METRICS.read_text() == generate.metrics(), old


@pytest.mark.parametrize("page", ["api.md", "command-line.md"])
def test_of_every_field_and_option_something_is_said(page: str) -> None:
    rows = [line for line in (ROOT / "docs" / "reference" / page).read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_rule_that_is_cited_is_on_the_page_of_rules() -> None:
    rules = re.findall(r"^\| (R\d+\w?) \|", (ROOT / "docs" / "reference" / "rules.md").read_text(), re.MULTILINE)
    assert len(rules) == len(set(rules)) > 60
    files = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
    ]
    cited = {
        (rule, path.name)
        for path in files
        for rule in re.findall(r"(?<![\w/.-])R\d{1,2}[a-z]?(?![\w-])", path.read_text())
    }
    assert sorted((rule, name) for rule, name in cited if rule not in rules) == []


def test_the_names_page_has_every_name_of_ours() -> None:
    text = (ROOT / "docs" / "reference" / "names.md").read_text()
    ours = (
        names.SET_LABEL,
        names.CLASS_LABEL,
        names.COUNT_LABEL,
        names.GUARDED_LABEL,
        names.HOLD_FINALIZER,
        names.VM_NAME_LABEL,
    )
    assert [name for name in (*ours, names.budget_key(names.TOTAL)) if f"`{name}`" not in text] == []


def test_the_scenario_page_s_example_plays_as_it_says() -> None:
    text = (ROOT / "docs" / "reference" / "scenario.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    played = scenario_file.read(example)
    results = scenario.Simulation(played).run()
    found = [scenario.differences(step.expect, result) for step, result in zip(played.steps, results, strict=True)]
    assert found == [[] for _ in played.steps]


def test_the_scenario_page_has_every_key_of_the_format() -> None:
    text = (ROOT / "docs" / "reference" / "scenario.md").read_text()
    words = {*scenario_file._STEPS, *scenario_file._EXPECT, "why", "now", "state", "steps"}
    assert [word for word in sorted(words) if f"`{word}" not in text] == []
    assert [kind for kind in scenario.KINDS if kind not in text] == []
