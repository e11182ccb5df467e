from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.base.errors import Invalid
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, Value, load
from tilewright.ir.maps import Map
from tilewright.kernel.group import PackedAs
from tilewright.kernel.nest import Nest, substitute_all
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Relayout(Step):
    """A buffer laid out by a map: blocked, permuted, its last blocks padded. Loops stay as they
    are. An input is not copied: the caller has to pass it in this layout (weights are packed once;
    see graph/packed_inputs.py).

    in b: f32[64,48]                       in b: f32[3,64,16] as k, j -> j//16, k, j%16 of [64,48]
    … b[k,j]                               … b[j//16,k,j%16]
    """

    stays: ClassVar[bool] = True

    buffer: str
    map: str

    def apply(self, n: Nest) -> Nest:
        found = [b for b in n.buffers if b.name == self.buffer]
        names = ", ".join(b.name for b in n.buffers)
        self.need(found, f"there is no buffer {self.buffer}", f"the buffers are {names}")
        b = found[0]
        self.need(not b.pointer, f"{self.buffer} is memory of which only the address is known")
        self.need(b.scope != "out", f"{self.buffer} is an output, whose layout the caller decides")
        self.need(
            b.packed_as is None,
            f"{self.buffer} is laid out by {b.packed_as and b.packed_as.map} already",
        )
        try:
            by = Map.parse(self.map)
            shape = by.shape(b.shape)
        except Invalid as wrong:
            self.need(False, wrong.what, wrong.hint)
            raise

        def on_load(x: Load) -> Value:
            return load(x.source, by.apply(x.index), x.dtype) if x.source == self.buffer else x

        def on_store(name: str, index: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
            return (name, by.apply(index)) if name == self.buffer else (name, index)

        body = substitute_all(n.body, {}, on_load, on_store, self.buffer)
        packed_as = PackedAs(by, b.shape) if b.scope == "in" else None
        return replace(n, body=body).with_buffer(
            replace(b, shape=shape, packed_as=packed_as, layout=None)
        )
