"""Nodes before and after as one SVG, for light and dark surroundings. Pure.

What a GPU is stands in its cell as a letter too, so that nobody needs the colours; a cell that changed has a ring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from gpuclaim.views import text
from gpuclaim.views.nodes import State
from gpuclaim.views.plan import Change

ROWS_MAX: Final = 64
"""So many nodes are drawn; beyond, those that change first, and the rest is counted."""
SAID: Final = {
    State.FREE: ("free", "free"),
    State.HELD: ("held", "held, no VM"),
    State.ATTACHED: ("attached", "attached"),
    State.FOREIGN: ("foreign", "used without a claim"),
    State.UNHEALTHY: ("unhealthy", "unhealthy"),
    State.EXCLUDED: ("excluded", "excluded"),
    State.UNMANAGED: ("unmanaged", "not offered"),
}
"""The class of a state's cell in CSS, and its words."""
_CELL, _GAP, _PER_LINE, _MARGIN = 20, 6, 8, 24
_STEP: Final = _CELL + _GAP
_PANEL: Final = _PER_LINE * _STEP
_HEAD, _LINE, _ROW_GAP = 30, 19, 10
_LETTER_WIDTH: Final = 7.4
_NAME_LETTERS: Final = 28

# Page, ink, soft ink, lines, free, edges; then what fills held, attached, foreign, unhealthy and excluded cells, the
# letter on these, and the ring. Both hold a contrast of at least 4.5 between a letter and its cell.
_LIGHT: Final = (
    "#ffffff #0f172a #475569 #e2e8f0 #f1f5f9 #94a3b8 #1d4ed8 #b45309 #7e22ce #b91c1c #64748b #ffffff #0f172a"
)
_DARK: Final = "#0b1220 #e2e8f0 #94a3b8 #1e293b #1e293b #475569 #93c5fd #fbbf24 #d8b4fe #fca5a5 #94a3b8 #0b1220 #f8fafc"


def _colours(palette: str) -> str:
    """Plain colours and no variables, which viewers other than browsers do not know."""
    page, ink, soft, line, free, edge, held, attached, foreign, unhealthy, out, on, ring = palette.split()
    return (
        f".page{{fill:{page}}}text{{fill:{ink}}}.soft,.head{{fill:{soft}}}.line{{stroke:{line}}}"
        f".free{{fill:{free};stroke:{edge}}}.held{{fill:{held}}}.attached{{fill:{attached}}}"
        f".foreign{{fill:{foreign}}}.unhealthy{{fill:{unhealthy}}}.excluded{{fill:{out}}}"
        f".unmanaged{{fill:none;stroke:{edge}}}.in{{fill:{on}}}.unmanaged.in{{fill:{soft};stroke:none}}"
        f".ring{{fill:none;stroke:{ring}}}"
    )


_STYLE: Final = (
    'text{font-family:ui-sans-serif,system-ui,"DejaVu Sans",Verdana,sans-serif;font-size:13px}'
    ".title{font-size:17px;font-weight:600}.head{font-weight:600}.in{font-size:12px;font-weight:600;text-anchor:middle}"
    ".unmanaged{stroke-dasharray:3 2}.ring{stroke-width:1.5}"
    f"{_colours(_LIGHT)}@media(prefers-color-scheme:dark){{{_colours(_DARK)}}}"
)


def svg(title: str, said: Sequence[str], nodes: Sequence[Change]) -> str:
    """The picture: a title, sentences below it, a row a node, and what the cells mean."""
    shown = _shown(nodes)
    name_width = 12 + _LETTER_WIDTH * max((text.width(_name(each)) for each in shown), default=4)
    left, right = _MARGIN + name_width, _MARGIN + name_width + _PANEL + 44
    width = max(right + _PANEL + _MARGIN, _MARGIN * 2 + _LETTER_WIDTH * max(map(text.width, [*said, title]), default=0))
    parts: list[str] = []
    y = float(_MARGIN + 16)
    parts.append(_text(_MARGIN, y, title, "title"))
    for line in said:
        y += _LINE
        parts.append(_text(_MARGIN, y, line, "soft"))
    y += _HEAD
    parts += [_text(_MARGIN, y, "node", "head"), _text(left, y, "before", "head"), _text(right, y, "after", "head")]
    y += 10
    for node in shown:
        parts.append(f'<line class="line" x1="{_MARGIN}" y1="{y:g}" x2="{width - _MARGIN:g}" y2="{y:g}"/>')
        y += _ROW_GAP
        parts.append(_text(_MARGIN, y + 15, _name(node), ""))
        parts += _cells(left, y, node.before, ())
        parts += _cells(right, y, node.after, node.before)
        y += max(_lines(node.before), _lines(node.after)) * _STEP + _ROW_GAP - _GAP
    if len(shown) < len(nodes):
        y += _LINE
        parts.append(_text(_MARGIN, y, f"and {len(nodes) - len(shown)} nodes more", "soft"))
    y += _HEAD
    legend, y = _legend(y, width, {state for node in shown for state in (*node.before, *node.after)})
    parts += legend
    height = y + _MARGIN
    label = quoteattr(". ".join(text.safe(each).rstrip(".") for each in (title, *said)))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
            f' height="{height:g}" role="img" aria-label={label}>',
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{width:g}" height="{height:g}" rx="12"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _shown(nodes: Sequence[Change]) -> list[Change]:
    if len(nodes) <= ROWS_MAX:
        return list(nodes)
    return sorted(sorted(nodes, key=lambda each: not each.changed)[:ROWS_MAX], key=lambda each: each.name)


def _name(node: Change) -> str:
    return text.cut(text.safe(node.name), _NAME_LETTERS)


def _lines(states: Sequence[State]) -> int:
    return max(1, -(-len(states) // _PER_LINE))


def _cells(x: float, y: float, states: Sequence[State], before: Sequence[State]) -> Iterator[str]:
    for index, state in enumerate(states):
        line, column = divmod(index, _PER_LINE)
        yield _cell(x + column * _STEP, y + line * _STEP, state)
        if before and (index >= len(before) or before[index] is not state):
            left, top = x + column * _STEP - 2, y + line * _STEP - 2
            yield f'<rect class="ring" x="{left:g}" y="{top:g}" width="{_CELL + 4}" height="{_CELL + 4}" rx="7"/>'


def _cell(x: float, y: float, state: State) -> str:
    kind, said = SAID[state]
    drawn = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{_CELL}" height="{_CELL}" rx="5"/>'
    if state is not State.FREE:
        drawn += f'<text class="{kind} in" x="{x + _CELL / 2:g}" y="{y + 14.5:g}">{state.value}</text>'
    return f"<g><title>{said}</title>{drawn}</g>"


def _legend(y: float, width: float, states: set[State]) -> tuple[list[str], float]:
    parts: list[str] = []
    x = float(_MARGIN)
    for state, (_, said) in SAID.items():
        if state not in states:
            continue
        room = _CELL + 8 + _LETTER_WIDTH * len(said) + 18
        if x + room > width - _MARGIN and x > _MARGIN:
            x, y = float(_MARGIN), y + _STEP + 4
        parts += [_cell(x, y - 15, state), _text(x + _CELL + 8, y, said, "soft")]
        x += room
    return parts, y


def _text(x: float, y: float, value: str, kind: str) -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x:g}" y="{y:g}">{escape(text.safe(value))}</text>'
