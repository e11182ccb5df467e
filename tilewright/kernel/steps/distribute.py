from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tilewright.base.errors import Invalid
from tilewright.kernel.distribution import Distribution, on_blocks, programs_of
from tilewright.kernel.intrinsic import INTRINSICS, tensor_faults
from tilewright.kernel.layouts import Layout, axis_parts, parse_layout, size
from tilewright.kernel.nest import Nest
from tilewright.kernel.pieces import pieces_in
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Distribute(Step):
    """The programs of a tile kernel become the blocks of a grid, and the elements of its tiles are
    shared by the `threads` of a block along x, y and z, as the layouts of loops say
    (kernel/layouts.py). Of a loop without one every thread has all iterations.

    independent program in grid0*grid1*grid2:   block.z program2 in grid2: …
      alloc t                                       alloc t
      for s.i0 in 512:                              unroll s.i0.0 in 2: thread.z s.i0.1 in 2: …
        s: t[s.i0] = …                                lane s.i0.4 in 4: s: t[s.i0.0,s.i0.1,…] = …

    A product (`d = nvptx.mma.bf16`) is done by an instruction of whole warps, on layouts which are
    those of its fragments (kernel/warp_products.py).

    A buffer with the same layouts wherever it is used is in registers, others are shared memory.
    Elements of a tile have no order in the language, so this needs no proof of independence; what
    is ordered are whole tiles. Synchronise comes next: it places the barriers that say so.
    """

    stays: ClassVar[bool] = True
    threads: tuple[int, ...]
    layouts: tuple[str, ...] = ()
    products: tuple[str, ...] = ()

    def apply(self, n: Nest) -> Nest:
        programs = programs_of(n)
        self.need(programs is not None, "it is no tile kernel: there is no loop over its programs")
        assert programs is not None
        good = len(self.threads) == 3 and min(self.threads) >= 1
        self.need(good, f"a block has three numbers of threads, not {self.threads}")
        layouts = self._layouts(n)
        products = dict(text.split(" = ") for text in self.products)
        for name in products.values():
            self.need(name in INTRINSICS, f"there is no instruction {name}")
        grid, body = on_blocks(n, programs)
        x, y, z = self.threads
        widths = {"thread.x": x, "thread.y": y, "thread.z": z}
        shared = Distribution(n, body, (x, y, z), layouts, products)
        for p in pieces_in(body):
            # Along the sum of a product a layout is that of its first operand.
            loops = p.loops[:-1] if p.stage in products else p.loops
            for axis, parts in axis_parts(layouts.get(q.name, ()) for q in loops).items():
                said = (
                    f"{p.stage} has {parts} threads along {axis[-1]} of a block of {self.threads}"
                )
                self.need(prod(parts) == widths[axis], said)
                wrong = shared.other_parts(p, axis) if len(parts) > 1 else None
                self.need(wrong is None, f"{said}, of which {wrong} in registers has other parts")
        buffers, made = shared.done()
        for loop in reversed(grid):
            made = (loop.around(made),)
        out = replace(n, buffers=tuple(buffers), body=made)
        for what, _ in tensor_faults(out, n):
            self.need(False, what)
        return out

    def _layouts(self, n: Nest) -> dict[str, Layout]:
        out: dict[str, Layout] = {}
        for text in self.layouts:
            name, _, layout = (part.strip() for part in text.partition("="))
            try:
                out[name] = parse_layout(layout)
            except Invalid as wrong:
                self.need(False, f"{name}: {wrong.what}", wrong.hint)
            for loop, _ in self.loops(n, name):
                same = loop.extent == size(out[name])
                self.need(same, f"{name} has {loop.extent} iterations, {layout} {size(out[name])}")
            twice = [a for a, parts in axis_parts([out[name]]).items() if len(parts) > 1]
            self.need(not twice, f"{layout} has an axis of threads twice")
        return out
