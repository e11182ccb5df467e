from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.ir.expr import load
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    Alloc,
    If,
    Nest,
    Stmt,
    Store,
    bodies,
    with_bodies,
)
from tilewright.kernel.pieces import Piece, piece_of, pieces_in
from tilewright.kernel.step import Step

ROLE = "gathered"


@dataclass(frozen=True)
class GatherStore(Step):
    """A tile that a tile kernel stores to an argument's memory is gathered in a buffer first. There
    the threads that compute it and those that store it may be different ones (Distribute), so that
    each stores neighbours.

    for s.i0 in 64:                        alloc s_out
      for s.i1 in 64:                      for …: s_out[i0,i1] = f(t[i0,i1])
        if …: s: p[…] = f(t[s.i0,s.i1])    for s.i0 …: if …: s: p[…] = s_out[s.i0,s.i1]
    """

    stays: ClassVar[bool] = True
    stage: str

    def apply(self, n: Nest) -> Nest:
        found = [p for p in pieces_in(n.body) if p.stage == self.stage and p.loops]
        self.need(len(found) == 1, f"{self.stage} is no single tile that is stored")
        (p,) = found
        s = p.statement
        self.need(isinstance(s, Store), f"{self.stage} is no plain store")
        assert isinstance(s, Store)
        memory = n.buffer(s.buffer).scope != "local" and s.combine is None
        self.need(memory, f"{self.stage} does not store to an argument's memory")
        # Where the condition fails there may be nothing to read.
        others = sorted(str(x) for x in s.value.sources if n.buffer(str(x)).scope != "local")
        self.need(not others, f"{self.stage} reads the memory of {', '.join(others)}")
        shape = tuple(x.extent for x in p.loops)
        b = Buffer(f"{self.stage}_out", s.value.dtype, shape, "local")
        made = replace(n, body=self._rebuilt(n.body, self._parts(p, s, b)))
        roles = (*n.roles, (ROLE, b.name))
        return replace(made, buffers=(*n.buffers, b), roles=roles)

    def _parts(self, p: Piece, s: Store, b: Buffer) -> tuple[Stmt, ...]:
        own = [D.var(f"{b.name}.i{k}", x.extent) for k, x in enumerate(p.loops)]
        table = {x.var: v for x, v in zip(p.loops, own, strict=True)}
        first: Stmt = Store(b.name, b.name, tuple(own), s.value.substitute(table))
        for x, v in reversed(list(zip(p.loops, own, strict=True))):
            first = replace(x, var=D.the_sym(v), body=(first,))
        at = tuple(D.as_int(x.var) for x in p.loops)
        second: Stmt = self._stored(p.leaf, replace(s, value=load(b.name, at, b.dtype)))
        for x in reversed(p.loops):
            second = x.around((second,))
        return Alloc(b.name), first, second

    def _stored(self, leaf: Stmt, s: Store) -> Stmt:
        if isinstance(leaf, If):
            return replace(leaf, then=(self._stored(leaf.then[0], s),))
        return s

    def _rebuilt(self, body: tuple[Stmt, ...], new: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            p = piece_of(s)
            if p is not None and p.loops and p.stage == self.stage:
                out += new
            elif p is None and bodies(s):
                out.append(with_bodies(s, [self._rebuilt(x, new) for x in bodies(s)]))
            else:
                out.append(s)
        return tuple(out)
