from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import load
from tilewright.kernel import nest
from tilewright.kernel.nest import Alloc, Loop, Nest, Stmt, inner_vars, on_loops, reads, walk
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Prefetch(Step):
    """Each iteration of a loop asks for the cache line of the first element of a buffer that the
    iteration `distance` later reads. Nothing is read by that, so it may point past the end. Loops
    with something in front are no longer perfectly nested: prefetch last.

    for i in 100:                      for i in 100:
      for j: y[i] += x[i,j]              prefetch x[i+1,0]
                                         for j: y[i] += x[i,j]
    """

    buffer: str
    loop: str
    distance: int = 1

    def apply(self, n: Nest) -> Nest:
        known = any(b.name == self.buffer for b in n.buffers)
        names = ", ".join(b.name for b in n.buffers)
        self.need(known, f"there is no buffer {self.buffer}", f"the buffers are {names}")
        ahead = isinstance(self.distance, int) and self.distance >= 1
        self.need(ahead, f"{self.distance} is not a positive distance")
        found = [x for x, _ in self.loops(n, self.loop) if self._reads(x)]
        self.need(found, f"nothing in {self.loop} reads {self.buffer}")
        for x in found:
            self.need(x.kind in ("serial", "parallel"), f"{self.loop} is already {x.kind}")
            own = any(s == Alloc(self.buffer) for s, _ in walk(x.body))
            self.need(not own, f"{self.buffer} is made anew in every iteration of {self.loop}")
            gathered = any(True for i in self._index(x) for _ in D.data_values(i))
            self.need(not gathered, f"where {self.buffer} is read is itself read from memory")

        def one(x: Loop) -> tuple[Stmt, ...]:
            if not self._reads(x):
                return (x,)
            ask = nest.Prefetch(load(self.buffer, self._index(x), n.buffer(self.buffer).dtype))
            return (replace(x, body=(ask, *x.body)),)

        return on_loops(n, self.loop, one)

    def _reads(self, x: Loop) -> bool:
        return any(r.source == self.buffer for r in reads(x))

    def _index(self, x: Loop) -> tuple[Dim, ...]:
        """Where the first read of a later iteration is."""
        first = next(r for r in reads(x) if r.source == self.buffer)
        table: dict[Sym, Dim] = dict.fromkeys(inner_vars(x), 0)
        table[x.var] = D.as_int(x.var) + self.distance
        return tuple(D.substitute(i, table) for i in first.index)
