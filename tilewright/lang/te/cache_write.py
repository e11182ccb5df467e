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
        axes = tuple(D.the_sym(D.var(f"{self.stage}.i{k}", d)) for k, d in enumerate(b.shape))
        at = tuple(map(D.as_int, axes))
        copy = wrap(axes, Store(self.stage, self.stage, at, load(self.into, at, b.dtype)))
        moved = [self._moved(n.body[k], {}) for k in own]
        body = list(n.body)
        body[own[0] : own[-1] + 1] = [Alloc(self.into), *moved, copy]
        return replace(n, body=tuple(body)).with_buffer(
            Buffer(self.into, b.dtype, b.shape, "local")
        )

    def _moved(self, s: Stmt, table: dict[Sym, Dim]) -> Stmt:
        """A statement of the stage as one of the buffer which it is computed in."""
        if isinstance(s, Loop):
            v = D.var(self._renamed(s.name), D.substitute(s.extent, table))
            table = {**table, s.var: v}
            body = tuple(self._moved(x, table) for x in s.body)
            return replace(s, var=D.the_sym(v), body=body)
        if isinstance(s, Store):
            moved = substitute(s, table, self._through, lambda _, index: (self.into, index))
            assert isinstance(moved, Store)
            return replace(moved, stage=self.into)
        return s

    def _renamed(self, loop: str) -> str:
        return self.into + loop.removeprefix(self.stage)

    def _through(self, x: Load) -> Value:
        return load(self.into, x.index, x.dtype) if x.source == self.stage else x
