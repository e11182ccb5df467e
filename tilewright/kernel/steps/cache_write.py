from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, Value, load
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Stmt,
    Store,
    stages_in,
    substitute,
    wrap,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class CacheWrite(Step):
    """A stage is computed in a buffer `into` of its own and copied from there when it is done;
    ComputeAt then places and narrows the computation.

    for i: for k: y[i] += x[i,k]        for i: for k: c[i] += x[i,k]
                                        for i: y[i] = c[i]
    """

    stage: str
    into: str

    def apply(self, n: Nest) -> Nest:
        self.fresh(n, self.into)
        own = [k for k, s in enumerate(n.body) if self.stage in stages_in(s)]
        self.need(own, f"there is no stage {self.stage}")
        b = n.buffer(self.stage)
        alone = all(stages_in(n.body[k]) == {self.stage} for k in own)
        self.need(alone, f"{self.stage} shares its loops with others", "cache first, then place")
        between = [s for s in n.body[own[0] : own[-1]] if self.stage not in stages_in(s)]
        self.need(not between, f"other stages are computed in the middle of {self.stage}")
        partly = f"{self.stage} does not write all of {b.name}, or is split already"
        self.need(self._writes_all(n.body[own[0]], b), partly, "cache first, then split")
        axes = tuple(D.the_sym(D.var(f"{self.stage}.i{k}", d)) for k, d in enumerate(b.shape))
        at = tuple(map(D.as_int, axes))
        copy = wrap(axes, Store(self.stage, self.stage, at, load(self.into, at, b.dtype)))
        moved = [self._moved(n.body[k], {}) for k in own]
        body = list(n.body)
        body[own[0] : own[-1] + 1] = [Alloc(self.into), *moved, copy]
        made = Buffer(self.into, b.dtype, b.shape, "local")
        return replace(n, body=tuple(body)).with_buffer(made).with_role(self.stage, self.into)

    def _writes_all(self, s: Stmt, b: Buffer) -> bool:
        """Does the first nest of the stage give every cell a value, whatever was there?"""
        extents: dict[Sym, Dim] = {}
        while isinstance(s, Loop) and len(s.body) == 1:
            extents[s.var] = s.extent
            s = s.body[0]
        if not isinstance(s, Store) or s.combine is not None:
            return False
        plain = [D.the_sym(i) for i in s.index if D.is_sym(i)]
        if len(plain) != len(s.index) or len(set(plain)) != len(plain):
            return False
        ends = zip(plain, b.shape, strict=True)
        return all(v in extents and D.known_eq(extents[v], d) for v, d in ends)

    def _moved(self, s: Stmt, table: dict[Sym, Dim]) -> Stmt:
        """A statement of the stage as one of the buffer which it is computed in."""
        if isinstance(s, Loop):
            v = D.var(str(s.axis.of(self.into)), D.substitute(s.extent, table))
            table = {**table, s.var: v}
            body = tuple(self._moved(x, table) for x in s.body)
            return replace(s, var=D.the_sym(v), body=body, of=None)
        if isinstance(s, Store):
            moved = substitute(s, table, self._through, lambda _, index: (self.into, index))
            assert isinstance(moved, Store)
            return replace(moved, stage=self.into)
        return substitute(s, table, self._through)

    def _through(self, x: Load) -> Value:
        return load(self.into, x.index, x.dtype) if x.source == self.stage else x
