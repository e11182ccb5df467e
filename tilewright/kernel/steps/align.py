from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, Value, load
from tilewright.kernel.nest import Loop, Nest, Stmt, on_loops, reads, substitute_all, walk
from tilewright.kernel.nest import Store as Assignment
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Align(Step):
    """Loops along rows that begin anywhere in memory, as vectors of `lanes` elements that begin at
    multiples of it. Iteration r of `at` has the row that begins at element r * extent; the elements
    before its first whole vector, and those after its last one, are single.

    for r in 9:                             for r in 9:   # first = -67*r % 8
      for c in 67: y[r,c] = x[r,c]            for c.0.1 in first: y[r,c.0.1] = …
                                              for c.0.0 in 1: for c.0.1 in 7: for c.1 in 8:
                                                y[r,first+8*c.0.1+c.1] = …
                                              for c.0.1 in 11-first: y[r,first+56+c.0.1] = …

    There are as many whole vectors in every row, in turns of `threads`. Internal buffers along the
    row are laid out in turns, too: vector by vector, then a turn for the single elements at either
    end.
    """

    loops_along: tuple[str, ...]
    at: str
    lanes: int
    threads: int

    def apply(self, n: Nest) -> Nest:
        self.need(self.loops_along, "name the loops along the row")
        self.need(self.lanes > 1, f"{self.lanes} elements are no vector")
        self.need(self.threads > 0, f"{self.threads} is not a positive number of threads")
        found: list[Loop] = []
        for name in self.loops_along:
            for x, path in self.loops(n, name):
                self.need(x.kind == "serial", f"{name} is already {x.kind}", "align first")
                inside = any(p.name == self.at for p in path)
                self.need(inside, f"{name} is not inside {self.at}", "ComputeAt first")
                found.append(x)
        width = found[0].extent
        same = all(x.extent == width for x in found)
        self.need(isinstance(width, int) and same, "the loops have no constant extent in common")
        assert isinstance(width, int)
        whole = (width - self.lanes + 1) // self.lanes
        self.need(whole > 0, f"rows of {width} elements have no vector of {self.lanes} in each")
        single = width - self.lanes * whole
        enough = single <= self.threads
        self.need(enough, f"{self.threads} threads are too few for {single} single elements")
        along = self._along(n, {x.var for x in found})
        (row, _), *_ = self.loops(n, self.at)
        first = D.mod(-width * D.as_int(row.var), self.lanes)

        def parts(s: Loop) -> tuple[Stmt, ...]:
            return self._parts(s, along, first, whole, single)

        for name in dict.fromkeys(x.name for x in found):
            n = on_loops(n, name, parts)
        turns = -(-whole // self.threads) + 2
        for b in (b for b in n.buffers if b.name in along):
            shape = (*b.shape[:-1], self.lanes * self.threads * turns)
            n = n.with_buffer(replace(b, shape=shape, layout=None))
        return n

    def _along(self, n: Nest, own: set[Sym]) -> set[str]:
        """Internal buffers whose last axis is the row, used by these loops alone."""
        used: dict[str, list[bool]] = {}
        for s, _ in walk(n.body):
            stored = [(s.buffer, s.index)] if isinstance(s, Assignment) else []
            read = [(str(r.source), r.index) for r in reads(s)] if not isinstance(s, Loop) else []
            for name, index in (*stored, *read):
                last = index[-1] if index else 0
                used.setdefault(name, []).append(D.is_sym(last) and D.the_sym(last) in own)
        inner = {b.name for b in n.buffers if b.scope not in ("in", "out") and not b.pointer}
        along = {x for x, found in used.items() if x in inner and any(found)}
        other = sorted(x for x in along if not all(used[x]))
        self.need(not other, f"{', '.join(other)} is used by other loops than these, too")
        return along

    def _parts(
        self, s: Loop, along: set[str], first: Dim, whole: int, single: int
    ) -> tuple[Stmt, ...]:
        """The elements before the first whole vector, the vectors, and those after them."""
        turns = -(-whole // self.threads)
        k, t, lane = f"{s.name}.0.0", f"{s.name}.0.1", f"{s.name}.1"
        turn = D.var(k, turns)
        left = D.minimum(self.threads, whole - self.threads * turn)
        vector = D.var(t, whole if turns == 1 else left)
        element = D.var(lane, self.lanes)
        place = self.lanes * (self.threads * turn + vector) + element
        axis = s.of
        parts = None if axis is None else (*(axis.part(0).part(k) for k in (0, 1)), axis.part(1))

        def copy(names: tuple[Dim, ...], at: Dim, into: Dim, loops: tuple[int, ...]) -> Stmt:
            body = self._moved(s, along, into, at)
            for v, j in reversed(list(zip(names, loops, strict=True))):
                of = parts[j] if parts is not None else None
                body = (Loop(D.the_sym(v), "serial", body, pragmas=s.pragmas, of=of),)
            return body[0]

        before, after = D.var(t, first), D.var(t, single - first)
        ends = [
            self.lanes * (self.threads * (turns + j) + e) for j, e in enumerate((before, after))
        ]
        return (
            copy((before,), before, ends[0], (1,)),
            copy((turn, vector, element), first + place, place, (0, 1, 2)),
            copy((after,), first + self.lanes * whole + after, ends[1], (1,)),
        )

    def _moved(self, s: Loop, along: set[str], into: Dim, at: Dim) -> tuple[Stmt, ...]:
        """The body for the element `at` of the row, which has the place `into` in buffers."""

        def on_load(x: Load) -> Value:
            return load(x.source, (*x.index[:-1], into), x.dtype) if x.source in along else x

        def on_store(name: str, index: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
            return (name, (*index[:-1], into)) if name in along else (name, index)

        return substitute_all(substitute_all(s.body, {}, on_load, on_store), {s.var: at})
