"""Tuples taken apart: a nest over components, for whatever runs or prints code.

Steps see one buffer and one store for all that a reduction carries, so none of them has to know of
tuples. Here a buffer of a tuple becomes one per component, and `t[i] argmax= tuple(k, x)` becomes
the assignments that the combiner says: all are computed before any of them is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir import dim as D
from tilewright.ir.combine import Combiner
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, Value, item, load, tuple_of
from tilewright.ir.types import TupleDType
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    BRANCHES,
    Alloc,
    Loop,
    Nest,
    Prefetch,
    Stmt,
    Store,
    bodies,
    substitute,
    walk,
    with_bodies,
)


def untuple(n: Nest) -> Nest:
    """The same nest without tuples and without combiners of a user's own."""
    own = any(isinstance(s, Store) and isinstance(s.combine, Combiner) for s, _ in walk(n.body))
    if not own and not any(isinstance(b.dtype, TupleDType) for b in n.buffers):
        return n
    return _Apart(n).nest()


def component(name: str, k: int) -> str:
    return f"{name}_{k}"


class _Apart:
    def __init__(self, n: Nest) -> None:
        self.n = n
        self.tuples = {b.name: b.dtype for b in n.buffers if isinstance(b.dtype, TupleDType)}
        self.temporaries: list[Buffer] = []

    def nest(self) -> Nest:
        body = self._body(self.n.body, ())
        buffers: list[Buffer] = []
        for b in self.n.buffers:
            d = self.tuples.get(b.name)
            if d is None:
                buffers.append(b)
            else:
                parts = enumerate(d.items)
                buffers += (replace(b, name=component(b.name, k), dtype=x) for k, x in parts)
        return replace(self.n, body=body, buffers=(*buffers, *self.temporaries))

    def _body(self, body: tuple[Stmt, ...], lanes: tuple[Loop, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop):
                if s.kind == "lane" and self._gathers(s):
                    s = replace(s, kind="unroll")  # every lane adds to one cell: one by one
                inside = (*lanes, s) if s.kind == "lane" else lanes
                out.append(replace(s, body=self._body(s.body, inside)))
            elif isinstance(s, BRANCHES):
                inside = [self._body(x, lanes) for x in bodies(s)]
                plain = substitute(with_bodies(s, [()] * len(inside)), {}, self._load)
                out.append(with_bodies(plain, inside))
            elif isinstance(s, Store):
                out += self._store(s, lanes)
            elif isinstance(s, Alloc) and s.buffer in self.tuples:
                count = len(self.tuples[s.buffer].items)
                out += (Alloc(component(s.buffer, k)) for k in range(count))
            elif isinstance(s, Prefetch) and s.load.source in self.tuples:
                name, d = str(s.load.source), self.tuples[str(s.load.source)]
                parts = (load(component(name, k), s.load.index, x) for k, x in enumerate(d.items))
                out += (replace(s, load=x) for x in parts)
            else:
                out.append(s)
        return tuple(out)

    def _gathers(self, loop: Loop) -> bool:
        """Does a combiner of a user's own reduce over the lanes?"""
        for s, _ in walk(loop.body):
            if isinstance(s, Store) and isinstance(s.combine, Combiner):
                if not any(loop.var in D.symbols(i) for i in s.index):
                    return True
        return False

    def _store(self, s: Store, lanes: tuple[Loop, ...]) -> list[Stmt]:
        plain = substitute(s, {}, self._load)
        assert isinstance(plain, Store)
        d = self.tuples.get(s.buffer)
        if d is None and not isinstance(s.combine, Combiner):
            return [plain]
        names = [s.buffer] if d is None else [component(s.buffer, k) for k in range(len(d.items))]
        values = [plain.value] if d is None else [item(plain.value, k) for k in range(len(names))]
        if isinstance(s.combine, Combiner):
            old = [load(x, plain.index, v.dtype) for x, v in zip(names, values, strict=True)]
            values = list(s.combine(old, values))
        made = [
            replace(plain, buffer=x, value=v, combine=None)
            for x, v in zip(names, values, strict=True)
        ]
        if len(made) == 1 or not isinstance(s.combine, Combiner):
            return list(made)
        return self._at_once(made, lanes)

    def _at_once(self, stores: Sequence[Store], lanes: tuple[Loop, ...]) -> list[Stmt]:
        """Assignments that read what the others write, through temporaries."""
        shape: tuple[Dim, ...] = (1,)
        at: tuple[Dim, ...] = (0,)
        if lanes:
            shape, at = (D.bounds(lanes[-1].extent)[1],), (D.as_int(lanes[-1].var),)
        first: list[Stmt] = []
        then: list[Stmt] = []
        for s in stores:
            name = f"{s.buffer}_new{len(self.temporaries)}"
            self.temporaries.append(Buffer(name, s.value.dtype, shape, "local"))
            first += [Alloc(name), replace(s, buffer=name, index=at)]
            then.append(replace(s, value=load(name, at, s.value.dtype)))
        return first + then

    def _load(self, x: Load) -> Value:
        d = self.tuples.get(str(x.source))
        if d is None:
            return x
        parts = enumerate(d.items)
        return tuple_of(*(load(component(str(x.source), k), x.index, p) for k, p in parts))
