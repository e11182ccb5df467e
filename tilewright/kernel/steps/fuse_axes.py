from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, Value, load
from tilewright.kernel.nest import Nest, find, substitute_all
from tilewright.kernel.step import Step
from tilewright.kernel.steps.fuse import Fuse


@dataclass(frozen=True)
class FuseAxes(Step):
    """Neighbouring axes of a stage's own buffer, two or `count`, become one, and so do the stage's
    loops over them (`stage.p`).

    for h in 4: for w in 5: t[h,w] = …          for p in 20: t[p] = …(p//5, p%5)
    … t[h,w]                                    … t[5*h+w]
    """

    stage: str
    axis: int
    count: int = 2

    def apply(self, n: Nest) -> Nest:
        b = self.internal(n, self.stage)
        k, last = self.axis, self.axis + self.count - 1
        self.need(self.count >= 2, "one axis is one already")
        self.need(0 <= k and last < len(b.shape), f"{self.stage} has no axes {self._named()}")
        for stem in (self.stage, f"{self.stage}.init"):
            inner = f"{stem}.i{last}"
            for j in range(last - 1, k - 1, -1):
                outer, into = f"{stem}.i{j}", f"{stem}.p" if j == k else f"{stem}.p{j}"
                if find(n, outer):
                    n = Fuse(outer, inner, into).apply(n)
                inner = into

        def merge(idx: tuple[Dim, ...]) -> tuple[Dim, ...]:
            one = idx[k]
            for j in range(k + 1, last + 1):
                one = one * b.shape[j] + idx[j]
            return (*idx[:k], one, *idx[last + 1 :])

        def on_load(x: Load) -> Value:
            return load(x.source, merge(x.index), x.dtype) if x.source == self.stage else x

        def on_store(name: str, idx: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
            return (name, merge(idx)) if name == self.stage else (name, idx)

        whole: Dim = 1
        for d in b.shape[k : last + 1]:
            whole = whole * d
        shape = (*b.shape[:k], whole, *b.shape[last + 1 :])
        body = substitute_all(n.body, {}, on_load, on_store, self.stage)
        return replace(n, body=body).with_buffer(replace(b, shape=shape))

    def _named(self) -> str:
        return " and ".join(str(k) for k in range(self.axis, self.axis + self.count))
