from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import takewhile
from math import ceil, prod
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, load, loads
from tilewright.kernel import nest
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    on_loops,
    reads,
    transform,
    walk,
    writes,
)
from tilewright.kernel.step import Step
from tilewright.kernel.variables import inner_vars

CACHE_LINE = 64
LEVELS = (1, 2, 3)  # of caches
FIRST_RUNS = 8  # of a loop that runs an unknown number of times


@dataclass(frozen=True)
class Prefetch(Step):
    """Each iteration of a loop prefetches the cache line of the first element of a buffer that the
    iteration `distance` later reads, or writes where it reads none: a line that is written has to
    be there first. Nothing is read by that, so it may point past the end. Loops
    with something in front are no longer perfectly nested: prefetch last.

    for i in 100:                      for i in 100:
      for j: y[i] += x[i,j]              prefetch x[i+1,0]
                                         for j: y[i] += x[i,j]

    With `over`, a loop inside, all that the later iteration reads is prefetched, a share in each
    iteration of that loop. If `over` reads the buffer itself, this has to lie in one piece; if
    another loop does (one that copies what `over` works on), rows along its lanes are prefetched,
    wherever they are. `over` may be the loop itself: then each iteration prefetches all of a later
    one, in one piece or in rows. Lines go to the cache of a
    `level`. Of loops that run an unknown number of times, the first FIRST_RUNS iterations share the
    lines.
    """

    stays: ClassVar[bool] = True  # nothing is computed by it

    buffer: str
    loop: str
    distance: int = 1
    over: str = ""
    level: int = 1

    def apply(self, n: Nest) -> Nest:
        known = any(b.name == self.buffer for b in n.buffers)
        names = ", ".join(b.name for b in n.buffers)
        self.need(known, f"there is no buffer {self.buffer}", f"the buffers are {names}")
        ahead = isinstance(self.distance, int) and self.distance >= 1
        self.need(ahead, f"{self.distance} is not a positive distance")
        known = self.level in LEVELS
        self.need(known, f"there is no cache of level {self.level} to prefetch into", "1 to 3")
        around = {x: p for x, p in self.loops(n, self.loop) if self._reads(x)}
        found = list(around)
        self.need(found, f"nothing in {self.loop} reads or writes {self.buffer}")
        for x in found:
            self.need(x.kind in ("serial", "parallel"), f"{self.loop} is already {x.kind}")
            own = any(s == Alloc(self.buffer) for s, _ in walk(x.body))
            self.need(not own, f"{self.buffer} is a new one in every iteration of {self.loop}")
            if not self.over or self._inside(x):
                gathered = any(D.data_values(i) for i in self._index(x))
                self.need(not gathered, self._gathered())

        if self.over:

            def spread(x: Loop) -> tuple[Stmt, ...]:
                if x not in found:
                    return (x,)
                piece = self._inside(x) and not self._in_rows(n, x)
                return (self._spread(n, x) if piece else self._rows(n, x, around[x]),)

            return on_loops(n, self.loop, spread)

        def one(x: Loop) -> tuple[Stmt, ...]:
            if not self._reads(x):
                return (x,)
            where = load(self.buffer, self._index(x), n.buffer(self.buffer).dtype)
            ask = nest.Prefetch(where, level=self.level)
            return (replace(x, body=(ask, *x.body)),)

        return on_loops(n, self.loop, one)

    def _gathered(self) -> str:
        return f"where {self.buffer} is read is itself read from memory"

    def _inside(self, x: Loop) -> bool:
        """Does the loop that shares are taken in read the buffer itself?"""
        named = (s for s, _ in walk((x,)) if isinstance(s, Loop) and s.name == self.over)
        return any(map(self._reads, named))

    def _in_rows(self, n: Nest, x: Loop) -> bool:
        """Does each iteration prefetch what lies in several pieces?"""
        return self.over == self.loop and self._piece(x, n.buffer(self.buffer)) is None

    def _shares(self, x: Loop, reading: bool) -> tuple[Loop, int, Dim]:
        """The loop `over`, how often it runs for each iteration of x, and the number of a run."""
        if self.over == self.loop:
            return x, 1, 0
        inside = [
            (s, (*p, s))
            for s, p in walk(x.body)
            if isinstance(s, Loop) and s.name == self.over and (self._reads(s) or not reading)
        ]
        self.need(inside, f"{self.over} is no loop inside {self.loop}")

        def times(path: Path) -> int:
            return prod(map(_runs, path))

        # Of several copies the one that does most: a tail is short.
        over, around = max(inside, key=lambda found: times(found[1]))
        shares = times(around)
        fixed = all(q.kind == "serial" for q in around) and shares > 0
        self.need(fixed, f"{self.over} does not run a constant number of times")
        number: Dim = 0
        for q in around:
            number = number * _runs(q) + D.minimum(D.as_int(q.var), _runs(q) - 1)
        return over, shares, number

    def _line(self, b: Buffer) -> int:
        return CACHE_LINE // b.dtype.bytes

    def _spread(self, n: Nest, x: Loop) -> Loop:
        """The loop with a share of the lines prefetched right before `over` uses the buffer."""
        over, shares, number = self._shares(x, True)
        b, first = n.buffer(self.buffer), self._index(x)
        self.need(first, f"{self.buffer} is one element")
        size, line = self._piece(x, b), self._line(b)
        self.need(
            size is not None and line > 0, f"what {self.loop} reads of {self.buffer} is scattered"
        )
        assert size is not None
        lines = ceil(ceil(size / line) / shares)
        at = (*first[:-1], first[-1] + number * lines * line)
        ask = nest.Prefetch(load(self.buffer, at, b.dtype), lines, self.level)
        user = next(k for k, s in enumerate(over.body) if self._uses(s))
        fresh = replace(over, body=(*over.body[:user], ask, *over.body[user:]))
        if over is x:
            return fresh
        return replace(x, body=transform(x.body, lambda s: (fresh if s is over else s,)))

    def _later(self, x: Loop, around: Path) -> dict[Sym, Dim]:
        """The iteration to prefetch for: after the last one of a loop comes the first one of the
        next iteration of the loop around it."""
        table: dict[Sym, Dim] = {}
        step: Dim = self.distance
        chain = list(takewhile(lambda q: q.kind == "serial", (x, *reversed(around)))) or [x]
        for q in chain:
            at = D.as_int(q.var) + step
            wraps = q is not chain[-1] and isinstance(q.extent, int)
            table[q.var] = at % q.extent if wraps else at
            if not wraps:
                break
            step = at // q.extent
        return table

    def _rows(self, n: Nest, x: Loop, around: Path) -> Loop:
        """The loop with a share of what a copy inside it reads prefetched at the beginning of
        `over`."""
        over, shares, number = self._shares(x, False)
        b = n.buffer(self.buffer)
        copies = (
            (r, p)
            for s, p in walk(x.body)
            if isinstance(s, Store)
            for r in _reads(s)
            if r.source == self.buffer
        )
        found = next(copies, None)
        copied = found is not None and found[0].index and found[1]
        self.need(copied, f"no loop in {self.loop} copies {self.buffer}")
        assert found is not None
        at, path = found
        # A prefetch may point anywhere, but where it points is really read: not from memory that a
        # later iteration would read, which may not be there, and not from what is yet to be made.
        made = writes(x.body)
        for data in (v for i in at.index for v in D.data_values(i)):
            known = x.var not in data.symbols() and not any(r.source in made for r in loads(data))
            self.need(known, self._gathered())
        lanes = path[-1]
        axis = re.sub(r"(\.\d+)+$", "", lanes.name)
        along = [q for q in path if re.sub(r"(\.\d+)+$", "", q.name) == axis]
        others = [q for q in path if q not in along]
        extents = [q.extent for q in path if isinstance(q.extent, int)]
        self.need(len(extents) == len(path), f"how much is read of {self.buffer} is not constant")
        stride = D.wrapped_coefficient(linear_index(b, at.index), lanes.var)
        data = any(lanes.var in v.symbols() for i in at.index for v in D.data_values(i))
        self.need(stride == 1 or data, f"{lanes.name} does not read neighbours in {self.buffer}")
        size = prod(q.extent for q in along if isinstance(q.extent, int))
        rows = prod(q.extent for q in others if isinstance(q.extent, int))
        line = self._line(b)
        self.need(line > 0, f"an element of {self.buffer} is longer than a cache line")
        lines = ceil(size / line)
        each = ceil(rows * lines / shares)
        asks: list[Stmt] = []
        many = ceil(each / lines)  # rows
        parts = ceil(lines / min(each, lines))
        for k in range(many):
            row = number * many + k if parts == 1 else number // parts
            part = 0 if parts == 1 else number % parts * each * line
            row = D.minimum(row, rows - 1)
            table: dict[Sym, Dim] = {q.var: 0 for q in along} | self._later(x, around)
            for q in reversed(others):
                table[q.var] = row if q is others[0] else row % q.extent
                row = row // q.extent
            index = tuple(D.substitute(i, table) for i in at.index)
            where = load(self.buffer, (*index[:-1], index[-1] + part), b.dtype)
            asks.append(nest.Prefetch(where, min(each, lines), self.level))
        fresh = replace(over, body=(*asks, *over.body))
        if over is x:
            return fresh
        return replace(x, body=transform(x.body, lambda s: (fresh if s is over else s,)))

    def _uses(self, s: Stmt) -> bool:
        return any(r.source == self.buffer for r in _reads(s))

    def _piece(self, x: Loop, b: Buffer) -> int | None:
        """How many elements one iteration reads, where they lie in one piece."""
        found = next(r for r in _reads(x) if r.source == self.buffer)
        at = linear_index(b, found.index)
        last, count = 0, 1
        for s, _ in walk(x.body):
            if not isinstance(s, Loop) or s.var not in D.symbols(at):
                continue
            step = D.coefficient(at, s.var)
            if not isinstance(step, int) or step < 0 or not isinstance(s.extent, int):
                return None
            at = D.substitute(at, {s.var: 0})
            last, count = last + step * (s.extent - 1), count * s.extent
        return last + 1 if last + 1 <= 2 * count else None

    def _reads(self, x: Loop) -> bool:
        return any(r.source == self.buffer for r in _reads(x))

    def _index(self, x: Loop) -> tuple[Dim, ...]:
        """Where the first read of a later iteration is."""
        first = next(r for r in _reads(x) if r.source == self.buffer)
        table: dict[Sym, Dim] = dict.fromkeys(inner_vars(x), 0)
        table[x.var] = D.as_int(x.var) + self.distance
        return tuple(D.substitute(i, table) for i in first.index)


def _runs(q: Loop) -> int:
    """The iterations of a loop among which lines are shared. Of an unknown number it is the first
    ones: those that follow ask for the lines of the last of these again, which are there."""
    return q.extent if isinstance(q.extent, int) else min(D.bounds(q.extent)[1], FIRST_RUNS)


def _reads(s: Stmt) -> list[Load]:
    """What a statement and those inside read, then what they write."""
    stores = (x for x, _ in walk((s,)) if isinstance(x, Store))
    return [*reads(s), *(load(x.buffer, x.index, x.value.dtype) for x in stores)]
