"""A part of a graph as a picture (SVG): operands above those who use them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

from tilewright.ir.node import Graph, Input, Node

LETTER, LINE, ROW, GAP, EDGE = 6.6, 15, 62, 18, 10  # pixels
COLORS = {"marked": "#ffe3b3", "plain": "#ffffff", "input": "#eef1f5", "weight": "#dfe9d8"}


def around(graph: Graph, marked: Collection[Node], most: int) -> list[Node]:
    """The first of the marked operators with their operands and users, in an order in which they
    are computed; `most` of the marked ones."""
    order = graph.nodes()
    some = set([n for n in order if n in marked][:most])
    beside = {x for n in some for x in n.inputs} | {n for n in order if some & {*n.inputs}}
    return [n for n in order if n in some or n in beside]


def picture(shown: Sequence[Node], marked: Collection[Node]) -> str:
    """Boxes for nodes, the marked ones in color, and lines from operands to users."""
    if not shown:
        return ""
    rows = _rows(shown)
    boxes: dict[Node, tuple[float, float, float]] = {}  # middle, top, width
    for k, row in enumerate(rows):
        _place(row, EDGE + k * ROW, boxes)
    width = max(x + w / 2 for x, _, w in boxes.values()) + EDGE
    height = EDGE * 2 + (len(rows) - 1) * ROW + 2 * LINE + 8
    parts = [
        _line(boxes[x], boxes[n]) for n in shown for x in dict.fromkeys(n.inputs) if x in boxes
    ]
    parts += [_box(n, boxes[n], n in marked) for n in shown]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="monospace" font-size="11">'
        + "".join(parts)
        + "</svg>"
    )


def _rows(shown: Sequence[Node]) -> list[list[Node]]:
    """Nodes by the longest way to them; what has no operand here stands just above its first
    user."""
    depth: dict[Node, int] = {}
    for n in shown:
        depth[n] = max((depth[x] + 1 for x in n.inputs if x in depth), default=0)
    first: dict[Node, int] = {}
    for n in shown:
        for x in n.inputs:
            if x in depth:
                first[x] = min(first.get(x, depth[n]), depth[n])
    for n in shown:
        if not any(x in depth for x in n.inputs) and n in first:
            depth[n] = first[n] - 1
    rows: list[list[Node]] = [[] for _ in range(max(depth.values()) + 1)]
    for n in shown:
        rows[depth[n]].append(n)
    return [r for r in rows if r]


def _place(row: list[Node], top: float, boxes: dict[Node, tuple[float, float, float]]) -> None:
    """Each below the middle of its operands, as far as its neighbours leave room."""

    def wanted(n: Node) -> float:
        above = [boxes[x][0] for x in n.inputs if x in boxes]
        return sum(above) / len(above) if above else 0.0

    left = float(EDGE)
    for n in sorted(row, key=wanted):
        width = max(map(len, _texts(n))) * LETTER + 14
        middle = max(wanted(n), left + width / 2)
        boxes[n] = (middle, top, width)
        left = middle + width / 2 + GAP


def _texts(n: Node) -> tuple[str, str]:
    if isinstance(n.op, Input):
        return n.op.label, str(n.type)
    attributes = str(n.op)
    return attributes if len(attributes) <= 34 else attributes[:33] + "…", str(n.type)


def _box(n: Node, box: tuple[float, float, float], marked: bool) -> str:
    middle, top, width = box
    kind = "marked" if marked else "plain"
    if isinstance(n.op, Input):
        kind = "weight" if n.op.role == "weight" else "input"
    name, type_ = (escape(t) for t in _texts(n))
    return (
        f'<rect x="{middle - width / 2:.1f}" y="{top}" width="{width:.1f}" height="{2 * LINE + 6}" '
        f'rx="5" fill="{COLORS[kind]}" stroke="#667"/>'
        f'<text x="{middle:.1f}" y="{top + LINE}" text-anchor="middle">{name}</text>'
        f'<text x="{middle:.1f}" y="{top + 2 * LINE}" text-anchor="middle" fill="#667">'
        f"{type_}</text>"
    )


def _line(start: tuple[float, float, float], end: tuple[float, float, float]) -> str:
    (x1, top, _), (x2, y2, _) = start, end
    y1 = top + 2 * LINE + 6
    bend = (y1 + y2) / 2
    return (
        f'<path d="M{x1:.1f} {y1:.1f} C{x1:.1f} {bend:.1f} {x2:.1f} {bend:.1f} {x2:.1f} {y2:.1f}" '
        'fill="none" stroke="#99a"/>'
    )
