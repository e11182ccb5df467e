"""What a scan of lanes carries from one vector to the next, in a number of its own.

    for i in 4:                                      stack y.last0: f32[1]
      for l in 8 pragma scan 1:                      y.last0[0] = -inf
        y[8*i+l] = select(#(8*i+l) > 0,          →   for i in 4:
          max(y[8*i+l-1], x[8*i+l]), x[8*i+l])         for l in 8 pragma scan 1:
                                                         y.last0[0] max= x[8*i+l]
                                                         y[8*i+l] = y.last0[0]

A number that was just written as part of a vector comes back from memory after some ten cycles, and
each vector of a row waits for it; a stack buffer of one number is a register.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from tilewright.ir import dim as D
from tilewright.ir.expr import Rewriter, load, loads
from tilewright.ir.target import Target
from tilewright.ir.types import DType
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Alloc, Loop, Nest, Stmt, Store, transform, writes
from tilewright.kernel.scans import SCAN, scan_of


def carry_in_registers(n: Nest, target: Target) -> Nest:
    """Scans of lanes inside a loop that takes one vector of a row after the other. Threads of a
    grid run no lanes."""
    if target.grid is not None:
        return n
    c = _Carries(n)
    body = transform(n.body, c.rewritten)
    return replace(n, buffers=(*n.buffers, *c.made), body=body) if c.made else n


class _Carries:
    def __init__(self, n: Nest) -> None:
        self.names = {b.name for b in n.buffers}
        self.made: list[Buffer] = []

    def rewritten(self, s: Stmt) -> tuple[Stmt, ...]:
        """A loop over vectors, with what is carried before the first of them."""
        if not isinstance(s, Loop) or s.kind != "serial":
            return (s,)
        before: list[Stmt] = []
        inside: list[Stmt] = []
        for x in s.body:
            first, made = self._carried(s, x)
            before += first
            inside.append(made)
        return (*before, s.around(tuple(inside))) if before else (s,)

    def _carried(self, s: Loop, lanes: Stmt) -> tuple[tuple[Stmt, ...], Stmt]:
        """What is done before the loop, and what takes the place of a statement in it."""
        if not isinstance(lanes, Loop) or not dict(lanes.pragmas).get(SCAN):
            return (), lanes
        store = lanes.body[0]
        scan = scan_of(store, lanes.var) if isinstance(store, Store) else None
        if scan is None or len(lanes.body) > 1 or not isinstance(store, Store):
            return (), lanes
        alone = sum(store.buffer in writes((x,)) for x in s.body) == 1
        if not alone or not _next_vector(store, s, lanes):
            return (), lanes
        begin = Rewriter({s.var: 0, lanes.var: 0})(scan.before)
        if any(True for _ in loads(begin)) and D.bounds(s.extent)[0] < 1:
            return (), lanes  # where there is no vector, nothing may lie before the first
        last = self._buffer(store.value.dtype)
        carried = load(last, (0,), store.value.dtype)
        both = (
            Store(store.stage, last, (0,), scan.value, scan.function),
            replace(store, value=carried),
        )
        return (Alloc(last), Store(store.stage, last, (0,), begin)), lanes.around(both)

    def _buffer(self, dtype: DType) -> str:
        """One number: what the last element of a row has so far."""
        name = next(x for k in count() if (x := f"c{k}") not in self.names)
        self.names.add(name)
        self.made.append(Buffer(name, dtype, (1,), "stack"))
        return name


def _next_vector(store: Store, outer: Loop, lanes: Loop) -> bool:
    """Does each iteration of the outer loop go on after the last lane of the one before?"""
    for i in store.index:
        along, step = D.coefficient(i, lanes.var), D.coefficient(i, outer.var)
        if along is None or step is None or step != (lanes.extent if along == 1 else 0):
            return False
    return True
