"""Pages from templates: whatever the words of others are, they stay words."""

from __future__ import annotations

import datetime as dt
import html.parser
import unicodedata
from typing import Any

import jinja2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuclaim.api import core
from gpuclaim.api.core import Status
from gpuclaim.api.types import Attachment, Condition, GPUNode, HistoryEntry, NodeRefusal
from gpuclaim.console import render
from gpuclaim.console.render import Renderer
from gpuclaim.console.tenant_pages import Verdict, Wanted
from gpuclaim.console.views import chart, drain, fleet, overview, tenant
from gpuclaim.console.views.tenant import Machine, MachineStatus
from gpuclaim.placement.books import Known
from unit.placement.build import GPU, NOW, claim, cls, device, node, quota, report

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> \u202egnorw\u202c\u200b {{7*7}} {% raw %}"
SHOWN = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> �gnorw�� {{7*7}} {% raw %}"
RENDERER = Renderer("/desk")


class Reader(html.parser.HTMLParser):
    """What a browser makes of a page: its elements, their attributes, its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile(words: str) -> dict[str, Any]:
    """The context of every part, from objects whose every free text is these words."""
    soon = NOW + dt.timedelta(hours=1)

    def said(type_: str) -> Condition:
        return Condition(type=type_, status=Status.FALSE, reason="Because", message=words, last_transition_time=NOW)

    offer = msgspec.structs.replace(
        cls(), spec=msgspec.structs.replace(cls().spec, display_name=words, description=words)
    )
    held = claim("train", "gpu-1")
    held = msgspec.structs.replace(
        held,
        status=msgspec.structs.replace(
            held.status,
            conditions=[said("Bound"), said("Healthy")],
            held_since=NOW - dt.timedelta(days=2),
            attachment=Attachment(pod_name=words, pod_uid="p", since=NOW),
            refusals=[NodeRefusal(node_name="gpu-2", reason=words, message=words, refused_at=NOW, expires_at=soon)],
            history=[HistoryEntry(at=NOW, from_node="gpu-2", to_node="gpu-1", reason="Moved", message=words)],
        ),
    )
    gpu = msgspec.structs.replace(device(1, (GPU, 1, 1), users=[(words, words)]), model=words, driver=words)
    seen = report("gpu-1", [gpu], excluded=[1])
    seen = GPUNode(
        metadata=seen.metadata,
        spec=msgspec.structs.replace(
            seen.spec, excluded=[msgspec.structs.replace(seen.spec.excluded[0], reason=words)]
        ),
        status=msgspec.structs.replace(seen.status, conditions=[said("Reporting")]),
    )
    machine = Machine(metadata=core.ObjectMeta(name="train"), status=MachineStatus(printable_status=words))
    state: list[Known] = [offer, held, seen, node("gpu-1"), node("gpu-2")]
    records = chart.records([], [held], NOW)
    (hold,) = tenant.holds([held], [machine], NOW)
    return {
        "now": NOW,
        "csrf": "token",
        "title": words,
        "section": "nodes",
        "live": True,
        "notices": [words],
        "visitor": words,
        "context": words,
        "contexts": [words, "other"],
        "hoster": True,
        "namespace": "tenant-a",
        "name": "gpu-1",
        "notes": [words],
        "seen": True,
        "wanted": words,
        "trouble": True,
        "fleet": fleet.fleet([seen], [held], [offer], None, NOW),
        "node": fleet.detail(seen, [held], [offer], None, NOW),
        "blind": False,
        "rows": drain.plan(state, "gpu-1", NOW),
        "classes": overview.classes([offer], [held], [seen]),
        "silent": overview.silent_agents([seen], NOW),
        "refusals": overview.refusals([held], NOW),
        "waiting": overview.troubled([held]),
        "budgets": tenant.budgets([quota({"h200": 4})], "tenant-a"),
        "left_out": 1,
        "offers": tenant.offers([offer]),
        "catalogue_note": words,
        "holds": [hold],
        "hold": hold,
        "more_holds": 1,
        "holds_note": words,
        "machines_note": words,
        "budget_notes": [words],
        "may_order": False,
        "may_release": True,
        "verdict": Verdict(fits=False, message=words),
        "note": words,
        "chart": chart.chart(records, NOW),
        "sums": chart.sums(records, NOW),
        "claims": chart.by_claim([held], NOW),
        "choices": ["tenant-a"],
        "more": True,
        "login": "token",
        "next": words,
        "fault": words,
        "token_of_form": "token",
        "message": words,
        "again": "/desk/",
        "to": words,
    }


def pages() -> list[str]:
    """Every template that a browser gets, whole or as a part."""
    folder = render._HERE / "templates"
    found = [str(path.relative_to(folder)) for path in folder.rglob("*.html")]
    return sorted(set(found) - {"base.html", "plain.html", "macros.html"})


def context(template: str, words: str) -> dict[str, Any]:
    found = hostile(words)
    if template == "tenant.html":
        found["wanted"] = Wanted(class_name=words, count=words, name=words, set_name=words)
    if template == "parts/catalogue.html":
        found["wanted"] = Wanted(class_name="h200")
    return found


@pytest.mark.parametrize("template", pages())
def test_the_words_of_others_stay_words(template: str) -> None:
    page = RENDERER.page(template, context(template, HOSTILE))
    read, harmless = Reader(page), Reader(RENDERER.page(template, context(template, "harmless")))
    assert read.tags == harmless.tags, "no element but ours"
    assert [name for name, _ in read.attributes] == [name for name, _ in harmless.attributes], "no attribute but ours"
    assert not [name for name, _ in read.attributes if name.startswith(("on", "style"))]
    assert [char for char in page if unicodedata.category(char) == "Cf"] == []
    for name, value in harmless.attributes:
        if name in {"href", "src", "action"} and "harmless" not in value:
            assert value.startswith(("/desk/", "#")), value
    if "harmless" in harmless.text:
        assert SHOWN in read.text, "and they can be read as they are"


def test_a_template_that_names_what_is_not_there_is_a_fault() -> None:
    with pytest.raises(jinja2.UndefinedError):
        RENDERER.page("parts/verdict.html", {})


@given(st.text())
def test_any_text_is_one_line_that_turns_nothing(words: str) -> None:
    read = Reader(str(render.bdi(words)))
    assert read.tags == {"bdi"}
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Cs"} for char in read.text)


def test_moments_are_told_short_and_exact() -> None:
    assert str(render._ago(NOW - dt.timedelta(minutes=5), NOW)) == (
        '<time datetime="2026-12-01T11:55:00+00:00" title="2026-12-01T11:55:00+00:00">5m ago</time>'
    )
    assert str(render._ago(None, NOW)) == "never"
    assert ">60m</time>" in str(render._ahead(NOW + dt.timedelta(hours=1), NOW))


def test_a_file_is_served_by_a_name_that_changes_with_it() -> None:
    assert all(name.count(".") == 2 for name in RENDERER.statics)
    page = RENDERER.page("login.html", context("login.html", "x"))
    for attribute, value in Reader(page).attributes:
        if attribute in {"href", "src"} and "/static/" in value:
            assert value.removeprefix("/desk/static/") in RENDERER.statics
