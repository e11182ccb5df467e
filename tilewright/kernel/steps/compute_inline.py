from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, Value, rewrite
from tilewright.kernel.nest import (
    Alloc,
    Nest,
    Prefetch,
    Stmt,
    Store,
    seek,
    sources,
    stages_in,
    substitute_all,
    transform,
    walk,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class ComputeInline(Step):
    """A stage without reduction disappears into its readers; one that nothing reads, of any kind,
    is removed.

    for i: t[i] = exp(x[i])          for i: y[i] = exp(x[i]) + 1
    for i: y[i] = t[i] + 1
    """

    stage: str

    def apply(self, n: Nest) -> Nest:
        found = [(s, p) for s, p in seek(n.body, ("stage", self.stage)) if isinstance(s, Store)]
        self.need(found, f"there is no stage {self.stage}")
        self.need(n.buffer(self.stage).scope not in ("in", "out"), f"{self.stage} is an output")
        readers = (s for s, _ in walk(n.body) if isinstance(s, Store) and self.stage in sources(s))
        if all(s.stage == self.stage for s in readers):
            return self._without(n)
        self.need(
            len(found) == 1 and found[0][0].combine is None,
            "only a stage with one plain store can be inlined",
        )
        s, path = found[0]
        assert isinstance(s, Store)
        self.need(
            all(D.is_sym(i) for i in s.index),
            f"{self.stage} is already split or placed",
            "inline first",
        )
        axes = [D.the_sym(i) for i in s.index]
        own_loops = len(set(axes)) == len(axes) and {p.var for p in path} == set(axes)
        self.need(own_loops, f"{self.stage} is placed inside other loops", "inline first")
        guests = set().union(*(stages_in(p) for p in path)) - {self.stage}
        self.need(not guests, f"{', '.join(sorted(guests))} is placed inside it", "inline first")
        self.need(self.stage not in s.value.sources, f"{self.stage} reads itself")

        def on_load(x: Load) -> Value:
            if x.source != self.stage:
                return x
            table: dict[Sym, Dim] = dict(zip(axes, x.index, strict=True))
            return rewrite(s.value, table)

        rest = self._without(n)
        body = substitute_all(rest.body, {}, on_load, only=self.stage)
        return replace(rest, body=body)

    def _without(self, n: Nest) -> Nest:
        """The nest without the stage; loops left without a body go too."""

        def drop(x: Stmt) -> tuple[Stmt, ...]:
            gone = (
                (isinstance(x, Alloc) and x.buffer == self.stage)
                or (isinstance(x, Store) and x.stage == self.stage)
                or (isinstance(x, Prefetch) and x.load.source == self.stage)
            )
            return () if gone else (x,)

        return replace(n, body=transform(n.body, drop)).without_buffer(self.stage)
