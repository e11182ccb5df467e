from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import load
from tilewright.kernel import nest
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Stmt,
    inner_vars,
    on_loops,
    reads,
    transform,
    walk,
)
from tilewright.kernel.step import Step

CACHE_LINE = 64


@dataclass(frozen=True)
class Prefetch(Step):
    """Each iteration of a loop asks for the cache line of the first element of a buffer that the
    iteration `distance` later reads. Nothing is read by that, so it may point past the end. Loops
    with something in front are no longer perfectly nested: prefetch last.

    for i in 100:                      for i in 100:
      for j: y[i] += x[i,j]              prefetch x[i+1,0]
                                         for j: y[i] += x[i,j]

    With `over`, a loop inside, all that the later iteration reads is asked for, a share in each
    iteration of that loop; what is read has to lie in one piece.
    """

    buffer: str
    loop: str
    distance: int = 1
    over: str = ""

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

        if self.over:
            return on_loops(n, self.loop, lambda x: (self._spread(n, x) if x in found else x,))

        def one(x: Loop) -> tuple[Stmt, ...]:
            if not self._reads(x):
                return (x,)
            ask = nest.Prefetch(load(self.buffer, self._index(x), n.buffer(self.buffer).dtype))
            return (replace(x, body=(ask, *x.body)),)

        return on_loops(n, self.loop, one)

    def _spread(self, n: Nest, x: Loop) -> Loop:
        """The loop with a share of the lines asked for right before `over` uses the buffer."""
        inside = [
            (s, (*p, s))
            for s, p in walk(x.body)
            if isinstance(s, Loop) and s.name == self.over and self._reads(s)
        ]
        self.need(inside, f"{self.over} is no loop inside {self.loop} that reads {self.buffer}")

        def times(path: tuple[Loop, ...]) -> int:
            return prod(q.extent if isinstance(q.extent, int) else 0 for q in path)

        # Of several copies the one that does most: a tail is short.
        over, around = max(inside, key=lambda found: times(found[1]))
        shares = times(around)
        fixed = all(q.kind == "serial" for q in around) and shares > 0
        self.need(fixed, f"{self.over} does not run a constant number of times")
        b, first = n.buffer(self.buffer), self._index(x)
        self.need(first, f"{self.buffer} is one element")
        size = self._piece(x, b)
        line = CACHE_LINE // b.dtype.bytes
        self.need(
            size is not None and line > 0, f"what {self.loop} reads of {self.buffer} is scattered"
        )
        assert size is not None
        lines = ceil(ceil(size / line) / shares)
        number: Dim = 0
        for q in around:
            number = number * q.extent + D.as_int(q.var)
        at = (*first[:-1], first[-1] + number * lines * line)
        ask = nest.Prefetch(load(self.buffer, at, b.dtype), lines)
        user = next(k for k, s in enumerate(over.body) if self._uses(s))
        fresh = replace(over, body=(*over.body[:user], ask, *over.body[user:]))
        body = transform(x.body, lambda s: (fresh if s is over else s,))
        return replace(x, body=body)

    def _uses(self, s: Stmt) -> bool:
        return any(r.source == self.buffer for r in reads(s))

    def _piece(self, x: Loop, b: Buffer) -> int | None:
        """How many elements one iteration reads, where they lie in one piece."""
        found = next(r for r in reads(x) if r.source == self.buffer)
        at = linear_index(b, found.index)
        last, count = 0, 1
        for s, _ in walk(x.body):
            if not isinstance(s, Loop) or s.var not in D.symbols(at):
                continue
            step = D.coefficient(at, s.var)
            if not isinstance(step, int) or step < 0 or not isinstance(s.extent, int):
                return None
            at = D.substitute(at, {s.var: 0})
            last, count = last + step * (s.extent - 1), count * s.extent
        return last + 1 if last + 1 <= 2 * count else None

    def _reads(self, x: Loop) -> bool:
        return any(r.source == self.buffer for r in reads(x))

    def _index(self, x: Loop) -> tuple[Dim, ...]:
        """Where the first read of a later iteration is."""
        first = next(r for r in reads(x) if r.source == self.buffer)
        table: dict[Sym, Dim] = dict.fromkeys(inner_vars(x), 0)
        table[x.var] = D.as_int(x.var) + self.distance
        return tuple(D.substitute(i, table) for i in first.index)
