"""Where two programs of one shape agree, box by box.

Each axis is cut into pieces: positions at one distance, along which every condition stays as it is
and every input is read with one step, the same in all products of both programs. In a box of such
pieces the polynomial of a program at one position is that at another with all elements moved by the
same distance. So both programs agree at all positions of a box or at none, and one position says
which. (Where steps differ, each position is a piece of its own.)

At that position both polynomials are evaluated modulo a prime p on random remainders. Where they
differ, the programs do. Polynomials of degree d that differ modulo p have equal values with a
chance of at most d / p (Schwartz and Zippel), in t draws of at most (d / p)^t: that is the chance
that a box is wrongly said to agree, and times the number of boxes it bounds the chance for any of
them. Coefficients count how often a product occurs, which is far less than p.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm, prod

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Quo, Sym
from tilewright.ir.expr import Index, Value, extent, walk
from tilewright.ir.interpret import Evaluator
from tilewright.ir.node import Node
from tilewright.ir.positions import static
from tilewright.superopt.partial.sums import PRIME, Sums, drawn, sums_of

DRAWS = 2
BOXES = 20_000  # that are looked at
GRID = 1 << 22  # values of one condition or index function
PERIOD = 64  # of positions: with a longer one, each is looked at


@dataclass(frozen=True, eq=False)
class Region:
    """Where two programs agree: for each axis the piece that a position is in, and for each box of
    pieces whether they agree there."""

    pieces: tuple[np.ndarray, ...]
    agrees: np.ndarray
    chance: float  # at most, that one of the boxes is wrongly said to agree

    @cached_property
    def mask(self) -> np.ndarray:
        """For every position of the result."""
        return self.agrees[np.ix_(*self.pieces)]

    @property
    def part(self) -> float:
        """Of all positions, those that agree."""
        sizes = [np.bincount(p) for p in self.pieces]
        found = self.agrees.astype(float)
        for s in reversed(sizes):
            found = found @ s
        return float(found) / prod(len(p) for p in self.pieces)

    def everywhere(self, box: Sequence[tuple[int, int]]) -> bool:
        """Do the programs agree at all positions of a box, of a start and a stop per axis?"""
        within = (np.unique(p[a:b]) for p, (a, b) in zip(self.pieces, box, strict=True))
        return bool(self.agrees[np.ix_(*within)].all())

    def cuts(self, axis: int) -> list[int]:
        """Positions along an axis before which the region changes."""
        rows = np.moveaxis(self.agrees, axis, 0)[self.pieces[axis]]
        return [k for k in range(1, len(rows)) if not np.array_equal(rows[k - 1], rows[k])]


def sampled(f: Node, g: Node, count: int = 16, seed: int = 0) -> float:
    """The part of so many random positions at which two programs agree."""
    rng = np.random.default_rng(seed)
    both = sums_of((f, g))
    memory = drawn((f, g), both, rng)
    at = np.stack([rng.integers(0, n, count) for n in both[0].shape], 1)
    a, b = (x.values(memory, at) for x in both)
    return float(np.mean(a == b))


def agreement(f: Node, g: Node, seed: int = 0, draws: int = DRAWS) -> Region:
    """Where two programs of the same inputs agree, whatever these are. Unsupported where one is no
    sum of products, or there are too many boxes."""
    if f.shape != g.shape:
        raise Invalid(f"{f!r} and {g!r} have different shapes: they cannot be compared")
    if not f.shape or not all(isinstance(d, int) and d > 0 for d in f.shape):
        raise Unsupported(f"{f!r} has no axes, no elements, or sizes that are not known")
    both = sums_of((f, g))
    pieces = tuple(_pieces(both, axis) for axis in range(len(both[0].shape)))
    counts = tuple(int(p.max()) + 1 for p in pieces)
    boxes = prod(counts)
    if boxes > BOXES:
        raise Unsupported(f"{boxes} boxes are too many to look at")
    degree = max(x.degree for x in both)
    firsts = [np.array([np.argmax(p == k) for k in range(n)]) for p, n in zip(pieces, counts)]
    corners = np.stack(np.meshgrid(*firsts, indexing="ij"), -1).reshape(boxes, -1)
    agrees = np.ones(boxes, bool)
    rng = np.random.default_rng(seed)
    for _ in range(draws):
        memory = drawn((f, g), both, rng)
        a, b = (x.values(memory, corners[agrees]) for x in both)
        agrees[agrees] = a == b
    return Region(pieces, agrees.reshape(counts), boxes * (degree / PRIME) ** draws)


def _pieces(both: Sequence[Sums], axis: int) -> np.ndarray:
    """The number of the piece of each position along an axis."""
    size, name = both[0].shape[axis], both[0].at[axis]
    conditions = [c for x in both for c in x.conditions]
    atoms = [i for x in both for r in x.reads for i in r.index]
    period = _period((*_dims(conditions), *atoms), name)
    if size <= period or period > PERIOD:
        return np.arange(size)
    same = np.ones(size - period, bool)  # as so many positions further on
    for c in conditions:
        if any(s.name == name for s in c.symbols()):
            found = _grid(c, name, size)
            if found is None:
                return np.arange(size)
            same &= (found[period:] == found[:-period]).all(1)
    steps: dict[tuple[str, int], np.ndarray] = {}  # of an input's axis, at each position
    for x in both:
        for r in x.reads:
            for k, i in enumerate(r.index):
                low, high = _steps(i, name, size, period)
                same &= low == high
                known = steps.setdefault((str(r.source), k), low)
                same &= known == low
    out = np.empty(size, int)
    count = 0
    for first in range(period):
        for t in range(first, size, period):
            before = t - period
            goes_on = t > first and same[before]
            # A step is that of the piece, once there are two positions.
            if goes_on and before > first and out[before] == out[before - period]:
                goes_on = all(s[before] == s[before - period] for s in steps.values())
            if not goes_on:
                count += 1
            out[t] = count - 1
    return out


def _dims(conditions: Sequence[Value]) -> Iterator[Dim]:
    return (v.dim for c in conditions for v in walk(c) if isinstance(v, Index))


def _period(dims: Sequence[Dim], name: str) -> int:
    """Of positions along an axis that are divided with remainder: each of them apart, quotients
    and remainders are linear."""
    found = 1
    stack: list[Dim] = list(dims)
    while stack:
        x = stack.pop()
        for mono, _ in x.terms if isinstance(x, Int) else ():
            for a in mono:
                if isinstance(a, Quo) and any(s.name == name for s in D.symbols(D.from_atom(a))):
                    stack += (a.a, a.b)
                    if a.op in ("floordiv", "mod"):
                        found = lcm(found, a.b) if isinstance(a.b, int) else PERIOD + 1
    return found


def _steps(i: Dim, name: str, size: int, period: int) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest step of an index function from each position to that a period
    later, whatever the other positions are."""
    mine = next((s for s in D.symbols(i) if s.name == name), None)
    one = 0 if mine is None else D.coefficient(i, mine)
    if isinstance(one, int):
        found = np.full(size - period, one * period)
        return found, found
    values = _grid(i, name, size)
    if values is None:
        return np.zeros(size - period, int), np.ones(size - period, int)
    moved = values[period:] - values[:-period]
    return moved.min(1), moved.max(1)


def _grid(x: Value | Dim, name: str, size: int) -> np.ndarray | None:
    """[position along the axis, all other positions]: the values of a condition or an index
    function; None where they are too many."""
    symbols: list[Sym] = sorted(D.symbols(x) if isinstance(x, (int, Int)) else x.symbols())
    others = [s for s in symbols if s.name != name]
    sizes = static([extent(s) for s in others])
    if size * prod(sizes) > GRID:
        return None
    env = {name: np.arange(size).reshape(-1, *(1,) * len(others))}
    for k, (s, n) in enumerate(zip(others, sizes, strict=True)):
        env[s.name] = np.arange(n).reshape((1,) * (k + 1) + (-1,) + (1,) * (len(others) - k - 1))
    ev = Evaluator({}, {}, env)
    found = ev.dim(x) if isinstance(x, (int, Int)) else ev(x)
    return np.broadcast_to(found, (size, *sizes)).reshape(size, -1)
