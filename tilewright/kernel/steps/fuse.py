from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.kernel.axis import Axis, axis_named
from tilewright.kernel.nest import Loop, Nest, Stmt, on_loops, substitute_all
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Fuse(Step):
    """Two perfectly nested loops become one, named `into`.

    for i in 8:              for f in 48:
      for j in 6:              y[f//6, f%6] = …
        y[i,j] = …
    """

    stays: ClassVar[bool] = True
    outer: str
    inner: str
    into: str

    def apply(self, n: Nest) -> Nest:
        self.fresh(n, self.into)
        for found, _ in self.loops(n, self.outer):
            child = found.body[0]
            ok = len(found.body) == 1 and isinstance(child, Loop) and child.name == self.inner
            self.need(ok, f"{self.inner} is not the only thing inside {self.outer}")
            assert isinstance(child, Loop)
            plain = found.kind == child.kind == "serial"
            self.need(
                plain, "both loops must be serial", "fuse before vectorize, unroll and parallel"
            )
            free = found.var not in D.symbols(child.extent)
            self.need(free, f"the extent of {self.inner} depends on {self.outer}")
            self.need(child.extent != 0, f"{self.inner} is never run")

        def one(s: Loop) -> tuple[Stmt, ...]:
            child = s.body[0]
            assert isinstance(child, Loop)
            f = D.var(self.into, s.extent * child.extent)
            table = {s.var: f // child.extent, child.var: f % child.extent}
            body = substitute_all(child.body, table)
            hints = tuple({**dict(s.pragmas), **dict(child.pragmas)}.items())
            of = _common(s.axis.stage, child.axis.stage, self.into)
            return (Loop(D.the_sym(f), "serial", body, pragmas=hints, of=of),)

        return self.bounded(on_loops(n, self.outer, one))


def _common(outer: str, inner: str, into: str) -> Axis | None:
    """The axis that a fused loop is, if both are of one stage that its name does not say."""
    says = axis_named(into).stage
    return Axis(outer, into) if outer == inner and outer and not says else None
