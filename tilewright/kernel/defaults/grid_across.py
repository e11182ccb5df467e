"""A product of columns of what other products make, in the kernel that has a tile of its rows: the
gradient of attention's queries, next to those of keys and values.

A block of threads has a part of the sum only, that over its rows. What is multiplied goes from
registers to shared memory, so that all groups of warps read it, with rows of the other operand that
stay there. Results lie in the registers of all groups with their columns as rows; each is added to
memory by an atomic addition. So there are three launches: zeros, the kernel, and what is made of
the sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.types import DType
from tilewright.kernel.defaults.grid_chain_ways import WIDE
from tilewright.kernel.defaults.grid_chains import VECTOR, _Chain
from tilewright.kernel.defaults.grid_group_products import across as orders_of
from tilewright.kernel.defaults.grid_stages import THREADS, flat
from tilewright.kernel.defaults.scheduler import store_reads
from tilewright.kernel.group import Stage
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.nest import Loop
from tilewright.kernel.steps.add_atomically import AddAtomically
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.defer import Defer
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.swizzle import Swizzle
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.kernel.steps.wait_once import WaitOnce

ADDITION = "nvptx.add.f32"  # of a warp's registers to memory, by the copy engine


@dataclass(frozen=True)
class Across:
    chain: _Chain
    stage: str
    out: str
    made: str  # a copy of what products have made, with the step of the sum last
    held: str  # a copy of what it is multiplied by
    part: str  # the sums over one tile of rows

    @staticmethod
    def of(chain: _Chain, stage: Stage, between: list[str]) -> Across:
        s, name = chain.s, stage.name
        inner = [x for x in chain._factors(name) if set(map(str, x.sources)) & set(between)]
        other = [x for x in chain._factors(name) if x not in inner]
        if len(inner) != 1 or len(other) != 1:
            raise Refused(f"{name} is no product of what others make and an argument")
        (out,) = (
            x.name
            for x in s.group.stages
            if s.group.buffer(x.name).scope == "out"
            if any(r.source == name for r in store_reads(s.store(x.name)))
        )
        made, held = chain._copy_of(name, inner[0], "a"), chain._copy_of(name, other[0], "b")
        return Across(chain, name, out, made, held, f"{name}p")

    def split(self) -> None:
        """Sums over one tile of rows each."""
        s, rows = self.chain.s, self.chain.rows
        i, c, deep = s.path(self.stage)[-3:]
        sizes = ((i, WIDE), (c, rows), (deep, rows))
        for x, whole in sizes:
            if x.extent % whole or (x is c and x.extent != whole):
                # Conditions of what is past the end would take registers that there are not.
                raise Refused(f"{x.name} of {x.extent} is not in whole tiles of {whole}")
        s.do(Split(deep.name, rows))
        s.do(RFactor(self.stage, (f"{deep.name}.0",), self.part))

    def place(self, tiles: str, part: str, period: int) -> None:
        """Where its rows of a tile are there."""
        s = self.chain.s
        *batch, i, c, deep = (x.name for x in s.path(self.stage))
        s.do(Split(i, WIDE))
        blocks = [f"{i}.0"]
        if period:
            s.do(Split(f"{i}.0", period // WIDE))
            blocks = [f"{i}.0.0", f"{i}.0.1"]
        s.do(Reorder((*batch, deep, *blocks, f"{i}.1", c)))
        s.do(Defer(self.out))
        s.do(ComputeWith(self.stage, part))
        for x in (self.part, self.made):
            s.do(ComputeAt(x, part))
        s.do(ComputeAt(self.held, tiles))
        s.do(AddAtomically(self.stage))
        for x in (self.made, self.held):
            s.do(SetScope(x, "shared"))

    def bind(self) -> None:
        """The loops of threads, and of the launches before and after."""
        chain, s = self.chain, self.chain.s
        (_, first), (_, update) = chain._stores(self.stage)
        self._rounded()
        self._lay_out()
        self._zeros(first)
        i, c = (x.name for x in update[-2:])
        s.do(Reorder((c, i)))
        turn, (z, y) = chain._row(c)
        blocks, x, pair = chain._column(i)
        s.do(Reorder((z, blocks, turn, y, x, pair)))
        s.do(Bind(z, "thread.z"))

    def _lay_out(self) -> None:
        """Sums in memory as a warp has them in registers: four of a thread one after the other,
        next to those of the next thread."""
        *batch, q, c = (f"n{k}" for k in range(len(self.chain.s.nest.buffer(self.stage).shape)))
        digits = f"{q}//{WIDE}, {c}//16, {q}//8%{WIDE // 8}, {c}%8, {q}//2%4, {c}//8%2, {q}%2"
        places = ", ".join([*batch, digits])
        self.chain.s.do(Relayout(self.stage, f"{', '.join([*batch, q, c])} -> {places}"))

    def _rounded(self) -> None:
        """What is made of the sums, in vectors of its own order: 16 threads read neighbours."""
        s = self.chain.s
        store, loops = self.chain._stores(self.out)[0]
        index = next(x.index for x in store_reads(store) if x.source == self.stage)
        q, c = (next(x.name for x in loops if D.coefficient(d, x.var) == 1) for d in index[-2:])
        s.do(Split(q, 8))
        s.do(Split(c, VECTOR))
        s.do(Split(f"{c}.0", 2))
        outer = [x.name for x in loops if x.name not in (q, c)]
        order = [*outer, f"{q}.0", f"{c}.0.0", f"{q}.1", f"{c}.0.1", f"{c}.1"]
        s.do(Reorder(tuple(order)))
        self._launch(self.out, order)

    def _zeros(self, loops: list[Loop]) -> None:
        """In the order of memory."""
        s = self.chain.s
        *batch, q, c = (x.name for x in loops)
        turn, (z, y) = self.chain._row(c)
        s.do(Split(q, WIDE))
        blocks, x, pair = self.chain._column(f"{q}.1")
        s.do(Reorder((*batch, f"{q}.0", z, blocks, y, x, turn, pair)))
        s.do(Fuse(turn, pair, f"{self.stage}.f"))
        self._launch(self.stage, [*batch, f"{q}.0", z, blocks, y, x, f"{self.stage}.f"])

    def _launch(self, stage: str, loops: list[str]) -> None:
        """A map in a launch of its own; the last loop is a vector."""
        s = self.chain.s
        *others, whole, last = loops
        for k, outer in enumerate(reversed(others)):
            s.do(Fuse(outer, whole, f"{stage}.w{k}"))
            whole = f"{stage}.w{k}"
        flat(s, whole, THREADS)
        s.do(Vectorize(last))

    def multiply(self, kind: DType, boxes: bool) -> None:
        """`boxes`: does the copy engine bring what is held?"""
        chain, s = self.chain, self.chain.s
        chain._copy(self.held, boxes, turned=True)
        self._hand_over()
        instruction = self._instruction(kind)
        (_, first), (_, own) = chain._stores(self.part)
        i, c = (x.name for x in first[-2:])
        s.do(Reorder((c, i)))
        chain._spread(c, i)
        i, c, k = (x.name for x in own[-3:])
        s.do(Split(k, WIDE))
        rows = [c]
        if chain.rows != WIDE:
            s.do(Split(c, WIDE))
            rows = [f"{c}.0", f"{c}.1"]
        s.do(Reorder((f"{k}.0", *rows, i, f"{k}.1")))
        s.do(Unroll(f"{k}.0"))
        self._in_registers()
        (_, _), (_, update) = chain._stores(self.stage)
        s.do(Tensorize(update[-5].name, ADDITION))
        s.do(Tensorize(rows[0], instruction))
        s.do(WaitOnce(f"{k}.0"))

    def _hand_over(self) -> None:
        """What products have made, from the registers of its threads to shared memory."""
        chain, s = self.chain, self.chain.s
        ((_, own),) = chain._stores(self.made)
        i, k = (x.name for x in own[-2:])
        names = [f"n{x}" for x in range(len(s.nest.buffer(self.made).shape))]
        i_, k_ = names[-2:]
        blocks = f"{k_}//{WIDE}, {i_}//{WIDE}, {k_}%{WIDE}, {i_}%{WIDE}"
        s.do(Relayout(self.made, f"{', '.join(names)} -> {', '.join([*names[:-2], blocks])}"))
        s.do(Swizzle(self.made, 3, 3, 3))
        s.do(Reorder((k, i)))
        chain._spread(k, i)

    def _in_registers(self) -> None:
        """The columns of results as rows of the threads' fragments."""
        chain, s = self.chain, self.chain.s
        shape = s.nest.buffer(self.part).shape
        names = [f"n{k}" for k in range(len(shape))]
        wide = [k for k, d in enumerate(shape) if d != 1]
        q, c = (names[k] for k in wide)
        warps = 4 * chain.groups
        places = [x for x in names if x not in (q, c)]
        places.append(f"{c}//{chain.rows}, {c}//16%{warps}, {q}//8, {c}//8%2, {c}%8")
        places.append(f"{q}//2%4, {q}%2")
        s.do(Relayout(self.part, f"{', '.join(names)} -> {', '.join(places)}"))

    def _instruction(self, kind: DType) -> str:
        """Of two operands in shared memory, rows of both of which run across the sum."""
        s = self.chain.s
        for p in s.target.products:
            i = INTRINSICS[p.instruction]
            tiles = set(i.tiles) == {"a", "b"} and orders_of(i) == (True, True)
            if p.a is kind and tiles and i.warps == 4 * self.chain.groups:
                return i.name
        raise Refused("no instruction multiplies columns")
