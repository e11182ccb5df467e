from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.ir.expr import Load, Value, load
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Stmt,
    Store,
    bodies,
    marks,
    mentions,
    seek,
    stages_in,
    substitute,
    with_bodies,
    wrap,
    writes,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class CopyOperand(Step):
    """A stage reads a copy of a buffer, which is made as soon as nothing is stored to it any more.
    The copy can then be laid out and typed for this stage alone.

    for t.i: t[t.i] = x[t.i]              for t.i: t[t.i] = x[t.i]
    for j:                                alloc u
      for d.i: c[d.i] add= t[d.i]         for u.i0: u[u.i0] = t[u.i0]
                                          for j:
                                            for d.i: c[d.i] add= u[d.i]
    """

    stays: ClassVar[bool] = True

    buffer: str
    stage: str
    into: str

    def apply(self, n: Nest) -> Nest:
        self.fresh(n, self.into)
        b = self.internal(n, self.buffer)
        self.need(b.scope == "local", f"{self.buffer} is in {b.scope} memory")
        found = seek(n.body, ("stage", self.stage))
        stores = [x for x, _ in found if isinstance(x, Store)]
        self.need(len(stores) == 1, f"{self.stage} is not one statement")
        body = self._copied(n.body, b)
        copy = Buffer(self.into, b.dtype, b.shape, "local")
        return replace(n, body=body, buffers=(*n.buffers, copy))

    def _copied(self, body: Sequence[Stmt], b: Buffer) -> tuple[Stmt, ...]:
        at = next(k for k, s in enumerate(body) if ("stage", self.stage) in marks(s))
        s, before = body[at], body[:at]
        own = stages_in(s) == {self.stage}
        if not isinstance(s, Loop) or (self.buffer in writes((s,)) and not own):
            self.need(bodies(s), f"{self.stage} does not read {self.buffer} in loops of its own")
            # Not before a branch or a loop that changes the buffer: inside.
            inside = [
                self._copied(x, b) if any(("stage", self.stage) in marks(y) for y in x) else x
                for x in bodies(s)
            ]
            return (*before, with_bodies(s, inside), *body[at + 1 :])
        self.need(not own or self.buffer not in writes((s,)), f"{self.stage} stores to it")
        last = [k for k, x in enumerate(before) if _stores(x, b.name)]
        here = last[-1] + 1 if last else at

        def through(x: Load) -> Value:
            return load(self.into, x.index, x.dtype) if x.source == self.buffer else x

        def reads_copy(x: Stmt) -> Stmt:
            if ("stage", self.stage) not in marks(x):
                return x
            if isinstance(x, Store):
                return substitute(x, {}, through, only=self.buffer)
            return with_bodies(x, [tuple(map(reads_copy, y)) for y in bodies(x)])

        rest = (*body[here:at], reads_copy(s), *body[at + 1 :])
        return (*body[:here], Alloc(self.into), self._copy(b), *rest)

    def _copy(self, b: Buffer) -> Stmt:
        axes = tuple(D.the_sym(D.var(f"{self.into}.i{k}", d)) for k, d in enumerate(b.shape))
        at = tuple(map(D.as_int, axes))
        return wrap(axes, Store(self.into, self.into, at, load(self.buffer, at, b.dtype)))


def _stores(s: Stmt, buffer: str) -> bool:
    """Does a statement make a buffer, or store to it?"""
    return buffer in mentions(s) and (isinstance(s, Alloc) or buffer in writes((s,)))
