from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.expr import loads
from tilewright.ir.types import f32, f64
from tilewright.kernel.nest import Atomic, Loop, Nest, Stmt, Store, on_loops
from tilewright.kernel.step import Step
from tilewright.kernel.threads import thread_faults


@dataclass(frozen=True)
class AddAtomically(Step):
    """Additions to places that are read from memory, in any order: a loop of them and the one
    inside it become blocks and threads, and each addition an atomic. Sums of floats round in
    another order at every call, so a strict nest keeps its own.

    for i.0 in 4:                       block.x i.0 in 4:
      for i.1 in 256:                     thread.x i.1 in 256:
        y[at[256*i.0+i.1]] += x[…]          y: add relaxed y[at[256*i.0+i.1]] with x[…]
    """

    loop: str
    inner: str

    def apply(self, n: Nest) -> Nest:
        found = self.loops(n, self.loop)
        self.need(len(found) == 1 and not found[0][1], f"{self.loop} is not an outermost loop")
        ((outer, _),) = found
        (inner, *more) = outer.body
        alone = not more and isinstance(inner, Loop) and inner.name == self.inner
        self.need(alone, f"{self.inner} is not the only thing in {self.loop}", "Split first")
        assert isinstance(inner, Loop)
        for x in (outer, inner):
            self.need(x.kind == "serial", f"{x.name} is already {x.kind}")
        bounded = D.bounds(inner.extent)[1] < D.INF
        self.need(bounded, f"{self.inner} has no constant bound for its threads", "Split first")
        self.need(len(inner.body) == 1, f"{self.inner} does more than one addition")
        s = inner.body[0]
        self.need(isinstance(s, Store) and s.combine == "add", f"{self.inner} is no addition")
        assert isinstance(s, Store)
        b = n.buffer(s.buffer)
        self.need(n.precision != "strict", "the order of sums may not change")
        self.need(b.scope == "out", f"{b.name} is no result", "atomics work on results")
        known = b.dtype in (f32, f64) or (not b.dtype.is_float and b.dtype.bits in (32, 64))
        self.need(known, f"sums of {b.dtype} are not added up one by one", "sum up wider numbers")
        reads = any(str(x.source) == b.name for x in loads(s.value))
        self.need(not reads, f"{s.stage} reads what it adds to")
        one = Atomic(s.stage, "add", s.buffer, s.index, s.value, order="relaxed")

        def bound(x: Loop) -> tuple[Stmt, ...]:
            threads = replace(inner, kind="thread.x", body=(one,))
            return (replace(x, kind="block.x", body=(threads,)),)

        out = on_loops(n, self.loop, bound)
        for what, _ in thread_faults(out):
            self.need(False, what)
        return out
