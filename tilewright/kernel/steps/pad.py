from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.expr import const, fn, index
from tilewright.kernel.dependence import carried
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Stmt,
    Store,
    find,
    on_loops,
    store_loads,
    substitute_all,
    transform,
    walk,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Pad(Step):
    """A stage is computed on a multiple of `factor` points along an axis; the extra ones are
    never read.

    for j in 64: t[j] = w[j//12, j%12]        for j in 72: t[j] = w[j//12, j%12]

    With `zeros` those hold zeros, and nothing is read for them, so that sums may run over them
    (PadSum).

    for j in 60: t[j] = w[j]                  for j in 64: t[j] = select(j < 60, w[j], 0)
    """

    stage: str
    axis: int
    factor: int
    zeros: bool = False

    def apply(self, n: Nest) -> Nest:
        b = self.internal(n, self.stage)
        self.need(0 <= self.axis < len(b.shape), f"{self.stage} has no axis {self.axis}")
        positive = isinstance(self.factor, int) and self.factor >= 1
        self.need(positive, f"{self.factor} is not a positive factor")
        grown: list[str] = []
        for s, p in walk(n.body):
            if isinstance(s, Store) and s.buffer == self.stage:
                at = s.index[self.axis]
                along = [q.name for q in p if D.known_eq(D.as_int(q.var), at)]
                grown += along
                what = f"{self.stage} is not written along one loop per axis"
                self.need(along or at == 0, what, "pad first")
        grown = list(dict.fromkeys(grown))
        several = f"{self.stage} is updated, which zeros cannot be"
        own = [s for s, _ in walk(n.body) if isinstance(s, Store) and s.buffer == self.stage]
        self.need(not self.zeros or all(s.combine is None for s in own), several)
        size = D.ceildiv(b.shape[self.axis], self.factor) * self.factor
        for name in grown:
            for x, _ in find(n, name):
                self.need(
                    D.known_eq(x.extent, b.shape[self.axis]),
                    f"{name} is already split or placed",
                    "pad first",
                )
                fresh = {s.buffer for s, _ in walk(x.body) if isinstance(s, Alloc)} | {self.stage}
                for s, _ in walk(x.body):
                    mine = not isinstance(s, Store) or s.buffer in fresh
                    what = f"{getattr(s, 'stage', '')} shares {name} and would be computed for more"
                    self.need(mine, what, "pad first")

            def grow(x: Loop, name: str = name) -> tuple[Stmt, ...]:
                v = D.var(name, size)
                body = substitute_all(x.body, {x.var: v})
                return (replace(x, var=D.the_sym(v), body=body),)

            n = on_loops(n, name, grow)
            for x, _ in find(n, name):
                bad = [] if x.kind == "serial" else carried(n, x)
                what = f"{name} is {x.kind}, and longer: {bad[0].reason}" if bad else ""
                self.need(not bad, what, "pad first")
        if self.zeros:
            n = replace(n, body=transform(n.body, lambda s: (self._guarded(s, b),)))
        n = n.with_buffer(
            replace(b, shape=(*b.shape[: self.axis], size, *b.shape[self.axis + 1 :]))
        )
        for s, p in walk(n.body):
            guarded = self.zeros and isinstance(s, Store) and s.buffer == self.stage
            if isinstance(s, Store) and any(q.name in grown for q in p) and not guarded:
                touched = [(s.buffer, s.index), *((str(x.source), x.index) for x in store_loads(s))]
                for source, index in touched:
                    shape = n.buffer(source).shape
                    inside = all(D.nonneg(i) and D.known_lt(i, d) for i, d in zip(index, shape))
                    at = ",".join(map(str, index))
                    self.need(inside, f"{s.stage} would touch {source}[{at}] outside {source}")
        return n

    def _guarded(self, s: Stmt, b: Buffer) -> Stmt:
        """A store of the stage, of zero past the end that its axis had."""
        if not isinstance(s, Store) or s.buffer != self.stage:
            return s
        inside = fn("lt", index(s.index[self.axis]), index(b.shape[self.axis]))
        return replace(s, value=fn("select", inside, s.value, const(0, b.dtype)))
