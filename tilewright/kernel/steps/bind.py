from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.kernel.dependence import Carried, apart_hint, carried
from tilewright.kernel.nest import BLOCKS, THREADS, Loop, Nest, on_loops
from tilewright.kernel.step import Step
from tilewright.kernel.threads import thread_faults


@dataclass(frozen=True)
class Bind(Step):
    """The iterations become the blocks of a grid (block.x, .y, .z) or the threads of a block
    (thread.x, .y, .z). The rules are in kernel/threads.py; Synchronise comes after the last Bind.

    for i.0 in 7:                             block.x i.0 in 7:
      for i.1 in min(16, 100-16*i.0):           thread.x i.1 in min(16, 100-16*i.0):
        y[16*i.0+i.1] = …                         y[16*i.0+i.1] = …

    A reduction over threads combines one value of each; what a thread adds up by itself is a
    partial result of its own (RFactor) before that.
    """

    loop: str
    axis: str

    def apply(self, n: Nest) -> Nest:
        axes = (*BLOCKS, *THREADS)
        self.need(self.axis in axes, f"{self.axis} is not an axis", f"one of {', '.join(axes)}")
        for x, _ in self.loops(n, self.loop):
            self.need(x.kind == "serial", f"{self.loop} is already {x.kind}")
            bad = [f for f in carried(n, x) if not self._combines(n, x, f)]
            self.keep(n, bad, hint=apart_hint(n, bad))
            bounded = self.axis in BLOCKS or D.bounds(x.extent)[1] < D.INF
            self.need(bounded, f"{self.loop} has no constant bound for its threads", "Split first")
        out = on_loops(n, self.loop, lambda s: (replace(s, kind=self.axis),))
        for what, _ in thread_faults(out):
            self.need(False, what, "place and reorder first; bind blocks from the outermost in")
        return out

    def _combines(self, n: Nest, x: Loop, found: Carried) -> bool:
        """Is it a reduction whose values threads combine? Blocks do not, and not where the order of
        a sum may not change. Atomic additions may be anybody's."""
        uses = (found.first, found.second)
        if found.kind == "reduction" and all(u is not None and u.target.atomic for u in uses):
            return True
        if self.axis not in THREADS or found.kind != "reduction" or n.precision == "strict":
            return False
        return all(u is not None and x.var not in _symbols(u.index) for u in uses)


def _symbols(index: tuple[Dim, ...]) -> set[Sym]:
    return set().union(*(D.symbols(i) for i in index))
