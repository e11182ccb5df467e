from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.expr import Load, Value, load
from tilewright.kernel.dependence import Carried
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    Alloc,
    Nest,
    Stmt,
    Store,
    reads,
    stages_in,
    substitute,
    wrap,
)
from tilewright.kernel.overlap import uses
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class CacheRead(Step):
    """A stage (or several, which share it) reads a copy `into` of a buffer instead of the buffer;
    ComputeAt then places and narrows the copy.

    for i: y[i] = x[i] + 1        for j: xc[j] = x[j]
                                  for i: y[i] = xc[i] + 1
    """

    buffer: str
    stage: str | tuple[str, ...]
    into: str

    @property
    def readers(self) -> tuple[str, ...]:
        return (self.stage,) if isinstance(self.stage, str) else self.stage

    def apply(self, n: Nest) -> Nest:
        self.fresh(n, self.into)
        self.need(
            any(b.name == self.buffer for b in n.buffers), f"there is no buffer {self.buffer}"
        )
        b = n.buffer(self.buffer)
        self.need(self.readers, "name a stage that reads the copy")
        places = []
        for stage in self.readers:
            own = [k for k, s in enumerate(n.body) if self._reads_buffer(stage, s)]
            self.need(own, f"{stage} does not read {self.buffer} in a nest of its own")
            places += own
        first = min(places)
        found = [u for u in uses(n.body[first:]) if u.buffer == self.buffer]
        writes = [u for u in found if u.writes]
        if writes:
            read = next(u for u in found if not u.writes)
            saying = f"{self.buffer} is written while {', '.join(self.readers)} runs: "
            self.keep(n, [Carried("order", None, writes[0], read)], saying)
        whole = b.scope in ("in", "out") or Alloc(self.buffer) in n.body
        self.need(whole, f"{self.buffer} is placed inside a loop")
        axes = tuple(D.the_sym(D.var(f"{self.into}.i{k}", d)) for k, d in enumerate(b.shape))
        idx = tuple(map(D.as_int, axes))
        copy = wrap(axes, Store(self.into, self.into, idx, load(self.buffer, idx, b.dtype)))

        def through(x: Load) -> Value:
            return load(self.into, x.index, x.dtype) if x.source == self.buffer else x

        def one(s: Stmt) -> Stmt:
            return substitute(s, {}, through) if stages_in(s) & {*self.readers} else s

        body = (*n.body[:first], Alloc(self.into), copy, *(one(s) for s in n.body[first:]))
        return replace(n, body=body).with_buffer(Buffer(self.into, b.dtype, b.shape, "local"))

    def _reads_buffer(self, stage: str, s: Stmt) -> bool:
        """Is the statement where the stage stands, and does it read the buffer?"""
        return stage in stages_in(s) and any(x.source == self.buffer for x in reads(s))
