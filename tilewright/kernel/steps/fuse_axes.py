from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, Value, load
from tilewright.kernel.nest import Nest, find, substitute_all
from tilewright.kernel.step import Step
from tilewright.kernel.steps.fuse import Fuse


@dataclass(frozen=True)
class FuseAxes(Step):
    """Two neighbouring axes of a stage's own buffer become one, and so do the stage's loops over
    them (`stage.p`).

    for h in 4: for w in 5: t[h,w] = …          for p in 20: t[p] = …(p//5, p%5)
    … t[h,w]                                    … t[5*h+w]
    """

    stage: str
    axis: int

    def apply(self, n: Nest) -> Nest:
        b = self.internal(n, self.stage)
        k = self.axis
        self.need(0 <= k < len(b.shape) - 1, f"{self.stage} has no axes {k} and {k + 1}")
        for stem in (self.stage, f"{self.stage}.init"):
            outer, inner = f"{stem}.i{k}", f"{stem}.i{k + 1}"
            if find(n, outer):
                n = Fuse(outer, inner, f"{stem}.p").apply(n)

        def merge(idx: tuple[Dim, ...]) -> tuple[Dim, ...]:
            return (*idx[:k], idx[k] * b.shape[k + 1] + idx[k + 1], *idx[k + 2 :])

        def on_load(x: Load) -> Value:
            return load(x.source, merge(x.index), x.dtype) if x.source == self.stage else x

        def on_store(name: str, idx: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
            return (name, merge(idx)) if name == self.stage else (name, idx)

        body = substitute_all(n.body, {}, on_load, on_store, self.stage)
        return replace(n, body=body).with_buffer(replace(b, shape=merge_shape(b.shape, k)))


def merge_shape(shape: tuple[Dim, ...], k: int) -> tuple[Dim, ...]:
    return (*shape[:k], shape[k] * shape[k + 1], *shape[k + 2 :])
