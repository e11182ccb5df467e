from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, Value, load
from tilewright.kernel.nest import Nest, substitute_all
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Permute(Step):
    """The axes of a local buffer in another order, so that lanes lie next to each other. Loops stay
    as they are.

    alloc t: f32[12,8]               alloc t: f32[8,12]
    t[j,i] = …                       t[i,j] = …
    """

    buffer: str
    order: tuple[int, ...]

    def apply(self, n: Nest) -> Nest:
        b = self.internal(n, self.buffer)
        self.need(
            sorted(self.order) == list(range(len(b.shape))),
            f"{self.order} is not an order of {len(b.shape)} axes",
        )

        def move(idx: tuple[Dim, ...]) -> tuple[Dim, ...]:
            return tuple(idx[k] for k in self.order)

        def on_load(x: Load) -> Value:
            return load(x.source, move(x.index), x.dtype) if x.source == self.buffer else x

        def on_store(name: str, idx: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
            return (name, move(idx)) if name == self.buffer else (name, idx)

        body = substitute_all(n.body, {}, on_load, on_store)
        return replace(n, body=body).with_buffer(replace(b, shape=move(b.shape)))
