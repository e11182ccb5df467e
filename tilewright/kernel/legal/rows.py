"""A row to which many rows are added, one after the other, in registers.

    for i in 100 pragma runs 1:              stack r0: i64[1], r1: f32[64]
      lane l in 64:                          r0[0] = a[0]
        y[${a[i]},l] add= x[i,l]        →    lane l in 64: r1[l] = y[${r0[0]},l]
                                             for i in 100:
                                               if a[i] != r0[0]:
                                                 lane l in 64: y[${r0[0]},l] = r1[l]
                                                 r0[0] = a[i]
                                                 lane l in 64: r1[l] = y[${r0[0]},l]
                                               lane l in 64: r1[l] add= x[i,l]
                                             lane l in 64: y[${r0[0]},l] = r1[l]

A row that was just written comes back from memory after some ten cycles, and of rows of one bag
each waits for the one before. This is done where places that follow each other are mostly equal
(pragma `runs`): elsewhere it takes longer. The order of sums stays.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from math import prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import fn, load
from tilewright.ir.target import Target
from tilewright.ir.types import DType, i64
from tilewright.ir.values import index as as_value
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import RUNS, Alloc, If, Loop, Nest, Stmt, Store, transform

MOST = 8  # vectors of a row, which are registers


def keep_rows(n: Nest, target: Target) -> Nest:
    """Rows that data place, in loops that run one after the other. Threads of a grid have their own
    rows."""
    if target.grid is not None:
        return n
    k = _Rows(n, target)
    body = transform(n.body, k.rewritten)
    return replace(n, buffers=(*n.buffers, *k.made), body=body) if k.made else n


class _Rows:
    def __init__(self, n: Nest, target: Target) -> None:
        self.n, self.target = n, target
        self.names = {b.name for b in n.buffers}
        self.made: list[Buffer] = []

    def rewritten(self, s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, Loop) or not dict(s.pragmas).get(RUNS):
            return (s,)
        inner: list[Loop] = []
        store: Stmt = s
        while isinstance(store, Loop) and len(store.body) == 1:
            store = store.body[0]
            inner += [store] if isinstance(store, Loop) else []
        if not isinstance(store, Store) or not self._fits(s, inner, store):
            return (s,)
        (axis,) = (k for k, d in enumerate(store.index) if any(D.data_values(d)))
        dtype = store.value.dtype
        at = self._buffer(i64, (1,))
        row = self._buffer(dtype, tuple(x.extent for x in inner))
        place = as_value(store.index[axis])
        kept = load(at, (0,), i64)
        index = (*store.index[:axis], D.data(kept), *store.index[axis + 1 :])
        own = tuple(D.as_int(x.var) for x in inner)

        def around(body: Store) -> Stmt:
            made: Stmt = body
            for x in reversed(inner):
                made = x.around((made,))
            return made

        read = around(Store(store.stage, row, own, load(store.buffer, index, dtype)))
        write = around(Store(store.stage, store.buffer, index, load(row, own, dtype)))
        take = Store(store.stage, at, (0,), place)
        other = If(fn("ne", place, kept), (write, take, read))
        add = around(replace(store, buffer=row, index=own))
        first = Store(store.stage, at, (0,), place.substitute({s.var: 0}))
        return Alloc(at), Alloc(row), first, read, s.around((other, add)), write

    def _fits(self, s: Loop, inner: list[Loop], store: Store) -> bool:
        """Is it a row that data place, with what it combines made of others?"""
        sizes = [x.extent for x in inner]
        if not inner or inner[-1].kind != "lane" or store.combine is None or store.atomic:
            return False
        if s.kind != "serial" or D.bounds(s.extent)[0] < 1:
            return False
        if not all(x.kind in ("unroll", "lane") and isinstance(x.extent, int) for x in inner):
            return False
        placed = [k for k, d in enumerate(store.index) if any(D.data_values(d))]
        b = self.n.buffer(store.buffer)
        if len(placed) != 1 or b.pointer or store.buffer in store.value.sources:
            return False
        own = {x.var for x in inner}
        for k, d in enumerate(store.index):
            if k == placed[0]:
                if D.symbols(d) & own or any(store.buffer in v.sources for v in D.data_values(d)):
                    return False
            elif s.var in D.symbols(d):
                return False
        rest = [d for k, d in enumerate(store.index) if k != placed[0]]
        size = prod(x for x in sizes if isinstance(x, int)) * store.value.dtype.bytes
        return size <= MOST * self.target.vector_bits // 8 and _each_its_own(rest, inner)

    def _buffer(self, dtype: DType, shape: tuple[Dim, ...]) -> str:
        name = next(x for k in count() if (x := f"r{k}") not in self.names)
        self.names.add(name)
        self.made.append(Buffer(name, dtype, shape, "stack"))
        return name


def _each_its_own(index: list[Dim], inner: list[Loop]) -> bool:
    """Do the iterations of inner loops write an element each?"""
    left = {x.var: x.extent for x in inner}
    for d in index:
        steps: list[tuple[int, int]] = []  # how far one of a loop's iterations goes, and how many
        for v in [v for v in left if v in D.symbols(d)]:
            step, extent = D.coefficient(d, v), left.pop(v)
            if not isinstance(step, int) or not isinstance(extent, int):
                return False
            steps.append((step, extent))
        reach = 1
        for step, extent in sorted(steps):
            if step < reach:
                return False
            reach = step * extent
    return not left
