from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Quo, Sym
from tilewright.kernel.nest import Loop, Nest, Stmt, Store, on_loops, substitute, walk
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Peel(Step):
    """The ragged last iteration of a split loop becomes a copy, so that the others are full.

    for i.0 in 7:                             for i.0 in 6:
      for i.1 in min(16, 100-16*i.0): …         for i.1 in 16: …
                                              for i.1 in 4: …          # i.0 = 6
    """

    loop: str

    def apply(self, n: Nest) -> Nest:
        found = self.loops(n, self.loop)
        for x, _ in found:
            self.need(x.kind == "serial", f"{self.loop} is already {x.kind}", "peel first")
        self.need(any(_full(x) is not None for x, _ in found), f"{self.loop} has no ragged tail")

        def one(s: Loop) -> tuple[Stmt, ...]:
            full = _full(s)
            if full is None:
                return (s,)
            for x, path in walk(s.body):
                inside = any(s.var in D.symbols(p.extent) for p in path)
                self.need(
                    not isinstance(x, Store) or inside,
                    f"{getattr(x, 'stage', '')} is outside the ragged loop",
                )
            tail = tuple(substitute(b, {s.var: full}) for b in s.body)
            tail = tuple(t for t in tail if not (isinstance(t, Loop) and t.extent == 0))
            if full == 0:
                return tail
            main = D.var(self.loop, full)
            body = tuple(substitute(b, {s.var: main}) for b in s.body)
            return (replace(s, var=D.the_sym(main), body=body), *tail)

        return on_loops(n, self.loop, one)


def _full(s: Loop) -> Dim | None:
    """Number of full iterations: N//f from an inner extent min(f, N - f*var)."""
    for x, _ in walk(s.body):
        if isinstance(x, Loop):
            found = _match(x.extent, s.var)
            if found is not None:
                return found
    return None


def _match(e: Dim, v: Sym) -> Dim | None:
    if not isinstance(e, Int):
        return None
    for mono, _ in e.terms:
        for a in mono:
            if isinstance(a, Quo) and a.op == "min":
                for f, rest in ((a.a, a.b), (a.b, a.a)):
                    if isinstance(f, int) and D.coefficient(rest, v) == -f:
                        return D.floordiv(rest + f * D.as_int(v), f)
    return None
