"""The picture of a plan."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from gpuclaim.views import picture
from gpuclaim.views.nodes import State
from gpuclaim.views.plan import Change, changes
from unit.placement.build import claim, cls, gpus

SVG = "{http://www.w3.org/2000/svg}"


def states(letters: str) -> tuple[State, ...]:
    return tuple(State(letter) for letter in letters)


def drawn(*nodes: Change, title: str = "t", said: tuple[str, ...] = ()) -> ET.Element:
    return ET.fromstring(picture.svg(title, said, nodes))


def cells(root: ET.Element) -> list[str]:
    return [found.text or "" for found in root.iter(f"{SVG}title")]


def kinds(root: ET.Element, kind: str) -> int:
    return sum(found.get("class") == kind for found in root.iter(f"{SVG}rect"))


def test_each_gpu_is_a_cell_that_says_what_it_is_and_a_changed_one_has_a_ring() -> None:
    root = drawn(Change("gpu-1", states("h.AFUx-"), states("hhAFUx-")), Change("new", (), states("..")))
    assert len(cells(root)) == 7 + 7 + 2 + 7  # before, after, the new node, the legend
    assert kinds(root, "ring") == 1
    letters = [found.text for found in root.iter(f"{SVG}text") if (found.get("class") or "").endswith(" in")]
    assert set(letters) == {"h", "A", "F", "U", "x", "-"}


def test_the_legend_has_what_is_shown_and_nothing_else() -> None:
    assert cells(drawn(Change("n", states("."), states("h")))) == ["free", "held, no VM", "free", "held, no VM"]


def test_everything_is_within_the_page() -> None:
    long = Change("a-very-long-name-of-a-node-that-nobody-could-read-" * 3, states("h" * 40), states("." * 40))
    root = drawn(long, Change("n", states("h.AFUx-"), states("h.AFUx-")), said=("x" * 150,))
    width, height = (float(root.get(side) or 0) for side in ("width", "height"))
    for rect in root.iter(f"{SVG}rect"):
        x, y, wide, high = (float(rect.get(name) or 0) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= width
        assert 0 <= y <= y + high <= height
    for text in root.iter(f"{SVG}text"):
        letters = 0 if text.get("text-anchor") else len(text.text or "") * 7
        assert float(text.get("x") or 0) + (letters if not (text.get("class") or "").endswith("in") else 0) <= width
        assert float(text.get("y") or 0) <= height


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"/><x y="', "a\x1b[2J\x00b", "\u202eevil", "&amp;"])
def test_hostile_names_do_no_harm(hostile: str) -> None:
    root = drawn(Change(hostile, states("."), states(".")), title=hostile, said=(hostile,))
    assert {found.tag.removeprefix(SVG) for found in root.iter()} <= {
        "svg",
        "style",
        "rect",
        "text",
        "line",
        "g",
        "title",
    }
    assert not any(ord(char) < 32 and char != "\n" for char in picture.svg(hostile, (hostile,), ()))
    assert "\u202e" not in picture.svg(hostile, (hostile,), ())


def test_of_very_many_nodes_those_that_change_are_drawn() -> None:
    nodes = [Change(f"n-{n:04}", states("."), states("h" if n == 900 else ".")) for n in range(1000)]
    root = drawn(*nodes)
    said = [found.text for found in root.iter(f"{SVG}text")]
    assert "n-0900" in said
    assert f"and {1000 - picture.ROWS_MAX} nodes more" in said


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_letters_can_be_read_in_light_and_dark(dark: bool) -> None:
    style = next(found.text or "" for found in drawn(Change("n", states("."), states("."))).iter(f"{SVG}style"))
    light, _, rest = style.partition("@media(prefers-color-scheme:dark)")
    palette = rest if dark else light
    colour = {
        kind: re.findall(rf"\.{kind}{{fill:(#\w+)", palette)[0] for kind in ("page", "held", "attached", "foreign")
    }
    colour |= {kind: re.findall(rf"\.{kind}{{fill:(#\w+)", palette)[0] for kind in ("unhealthy", "excluded", "in")}
    (ink,) = re.findall(r"text{fill:(#\w+)", palette)
    (soft,) = re.findall(r"\.soft,\.head{fill:(#\w+)", palette)
    assert contrast(ink, colour["page"]) >= 7
    assert contrast(soft, colour["page"]) >= 4.5
    for kind in ("held", "attached", "foreign", "unhealthy", "excluded"):
        assert contrast(colour["in"], colour[kind]) >= 4.5, kind


def test_nodes_are_drawn_from_the_objects_of_both_states() -> None:
    before = [cls(), *gpus("n-1", 2), *gpus("n-2", 2), claim("a", "n-1", 2), claim("waits", None, 1)]
    after = [cls(), *gpus("n-2", 2), *gpus("n-3", 1), claim("a", "n-2", 2)]
    assert changes(before, after) == [
        Change("n-1", states("hh"), ()),
        Change("n-2", states(".."), states("hh")),
        Change("n-3", (), states(".")),
    ]
