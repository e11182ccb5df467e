"""Choices that do not depend on each other.

A class is closed where all that it may be computed of is needed through it alone. What is cheapest
for a closed class is then cheapest wherever the class is used, so it is chosen apart from the rest:
the layers of a network that run one after the other are as many small choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.node import Node

Options = dict[Node, dict[Node, tuple[Node, ...]]]
"""By the leader of each class its members, and the classes that these need."""


@dataclass(frozen=True)
class Region:
    """The classes that are chosen together, those first that are asked for; and closed classes that
    they need, of which other regions are about."""

    roots: tuple[Node, ...]
    options: Mapping[Node, Mapping[Node, tuple[Node, ...]]]
    closed: tuple[Node, ...]


def regions(roots: Sequence[Node], options: Options) -> list[Region]:
    """What has to be chosen for the roots, each region after those that it needs. Members that need
    what is computed of them are left out."""
    while True:
        below = _below(roots, options)
        names: list[Node | None] = [None, *below]
        number = {c: k for k, c in enumerate(names)}
        edges = [[number[r] for r in roots], *([number[y] for y in ys] for ys in below.values())]
        up = dominators(edges)
        above = {c: set(_chain(up, number[c])) for c in below}
        options, before = (
            {
                c: {
                    m: ys
                    for m, ys in options[c].items()
                    if all(y in below and number[y] not in above[c] for y in ys)
                }
                for c in below
            },
            {c: options[c] for c in below},
        )
        options = {c: ms for c, ms in options.items() if ms}
        if options == before:
            break
    return list(_cut(tuple(dict.fromkeys(roots)), options, names, edges, up))


def _below(roots: Sequence[Node], options: Options) -> dict[Node, dict[Node, None]]:
    """The classes that may be needed, and those that each of them may need. Members that need a
    class without members cannot be taken."""
    found: dict[Node, dict[Node, None]] = {}
    stack = list(reversed(roots))
    while stack:
        c = stack.pop()
        if c not in found:
            ways = (ys for ys in options[c].values() if all(y in options for y in ys))
            found[c] = {y: None for ys in ways for y in ys}
            stack += reversed(found[c])
    return found


def _chain(up: Sequence[int], k: int) -> Iterator[int]:
    """A node and those that dominate it."""
    while k:
        yield k
        k = up[k]


def _cut(
    roots: tuple[Node, ...],
    options: Options,
    names: Sequence[Node | None],
    edges: Sequence[Sequence[int]],
    up: Sequence[int],
) -> Iterator[Region]:
    children: list[list[int]] = [[] for _ in names]
    for k in range(1, len(names)):
        children[up[k]].append(k)
    order, depth = [0], [0] * len(names)
    for k in order:
        for child in children[k]:
            depth[child] = depth[k] + 1
            order.append(child)
    # How far up the ways lead that leave what a node dominates.
    far = [min((depth[up[y]] for y in ys), default=len(names)) for ys in edges]
    for k in reversed(order[1:]):
        far[up[k]] = min(far[up[k]], far[k])
    closed = [far[k] >= depth[k] for k in range(len(names))]
    for k in reversed(order):
        name = names[k]
        if not closed[k]:
            continue
        inside, leaves = ([] if name is None else [name]), []
        stack = list(reversed(children[k]))
        while stack:
            child = stack.pop()
            c = names[child]
            assert c is not None
            (leaves if closed[child] else inside).append(c)
            if not closed[child]:
                stack += reversed(children[child])
        asked = roots if name is None else (name,)
        yield Region(asked, {c: options[c] for c in inside}, tuple(leaves))


def dominators(below: Sequence[Sequence[int]]) -> list[int]:
    """For each node that is reached from node 0 the last one that all ways there lead through
    (Cooper, Harvey and Kennedy)."""
    order: list[int] = []
    seen = [False] * len(below)
    stack = [(0, iter(below[0]))]
    seen[0] = True
    while stack:
        k, ways = stack[-1]
        for y in ways:
            if not seen[y]:
                seen[y] = True
                stack.append((y, iter(below[y])))
                break
        else:
            stack.pop()
            order.append(k)
    place = {k: at for at, k in enumerate(order)}
    users: list[list[int]] = [[] for _ in below]
    for k in order:
        for y in below[k]:
            users[y].append(k)
    up = [-1] * len(below)
    up[0] = 0
    changing = True
    while changing:
        changing = False
        for k in reversed(order[:-1]):
            found = -1
            for user in users[k]:
                if up[user] >= 0:
                    found = user if found < 0 else _common(up, place, found, user)
            changing |= up[k] != found
            up[k] = found
    return up


def _common(up: Sequence[int], place: Mapping[int, int], a: int, b: int) -> int:
    while a != b:
        while place[a] < place[b]:
            a = up[a]
        while place[b] < place[a]:
            b = up[b]
    return a
