"""How lanes touch memory that a condition or an address may exclude, as pragmas of their loops.

    lane j in 4:                              lane j in 4 pragma edges 1:
      y: y[j] = select(#(j) < n, x[j], 1.0)     y: y[j] = select(#(j) < n, x[j], 1.0)

edges: what is read under a condition is one vector where all lanes are inside its buffer, and else
one under a mask, or for each lane at an index that is clamped; without it the latter only. zeros:
where one condition decides for all lanes between a vector of memory and zeros, the address is
chosen (the condition costs no branch, and the vector is read in any case). adjacent: addresses of
lanes that are known only when they are computed are tested for being next to each other, and are
one vector then. gather: what is read at indices that are data, another one for each lane, is read
by the machine's instruction for that. cold: the machine has no masked accesses, so that each is a
branch per lane, in a function that is called. Where a pragma changes nothing it is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Const, Fn, Load, Value
from tilewright.ir.target import Target
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Buffer
from tilewright.kernel.legal.lanes import vector_lanes
from tilewright.kernel.nest import If, Loop, Nest, Stmt, Store, own_values, transform, walk

EDGES, ZEROS, ADJACENT, GATHER, COLD = "edges", "zeros", "adjacent", "gather", "cold"


ORDER = (EDGES, ZEROS, ADJACENT, GATHER, COLD)


def mark_accesses(n: Nest, target: Target) -> Nest:
    """Lane loops with the pragmas that say how they touch memory."""
    lanes = _Lanes(n, target)
    return replace(n, body=transform(n.body, lanes.marked))


class _Lanes:
    def __init__(self, n: Nest, target: Target) -> None:
        self.buffers: dict[str, Buffer] = {b.name: b for b in n.buffers}
        self.pointers = frozenset(b.name for b in n.buffers if b.pointer)
        # A GPU's thread has its own tiles in registers: it chooses between these without a branch.
        held = ("let",) if target.grid is None else ("let", "local")
        self.memory = frozenset(b.name for b in n.buffers if not b.pointer and b.scope not in held)
        self.masks = target.has_masks or target.grid is not None
        self.gathers = target.gathers
        self.zeros = target.grid is None  # those of a GPU's thread would be its own, and no faster

    def marked(self, s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, Loop) or s.kind != "lane" or (vector_lanes(s) or 1) == 1:
            return (s,)
        found = {key for x, _ in walk(s.body) for key in self._found(x, s.var)}
        new = [key for key in ORDER if key in found - {*dict(s.pragmas)}]
        return (replace(s, pragmas=(*s.pragmas, *((key, 1) for key in new))) if new else s,)

    def _found(self, s: Stmt, lane: D.Sym) -> Iterator[str]:
        """The pragmas that a statement inside lanes needs."""
        if isinstance(s, If) and lane in s.condition.symbols():
            yield EDGES
            if not self.masks:
                yield COLD
        if isinstance(s, Store) and self._is_open(s.buffer, s.index, lane):
            yield ADJACENT
        seen: set[Value] = set()
        stack = own_values(s)
        while stack:
            v = stack.pop()
            if not v.sources or v in seen or lane not in v.symbols():
                continue
            seen.add(v)
            stack += v.operands()
            if isinstance(v, Load) and self._is_open(str(v.source), v.index, lane):
                yield ADJACENT
            elif isinstance(v, Load) and self.gathers and self._is_gathered(v, lane):
                yield GATHER
            elif isinstance(v, Fn) and v.name == "select":
                yield from self._choice(v, lane)

    def _is_open(self, buffer: str, index: tuple[Dim, ...], lane: D.Sym) -> bool:
        """Is it behind a pointer, with a distance between lanes that is not known?"""
        if buffer not in self.pointers:
            return False
        step = D.coefficient(linear_index(self.buffers[buffer], index), lane)
        return not isinstance(step, int)

    def _is_gathered(self, v: Load, lane: D.Sym) -> bool:
        """Is it read from memory at an index that is data, another one for each lane?"""
        if str(v.source) not in self.memory or v.dtype.bytes not in (4, 8):
            return False
        return any(lane in x.symbols() for i in v.index for x in D.data_values(i))

    def _choice(self, v: Fn, lane: D.Sym) -> Iterator[str]:
        condition, *arms = v.args
        differs = lane in condition.symbols()
        if any(lane in x.symbols() and x.sources & self.memory for x in arms):
            yield EDGES
        zero = isinstance(arms[1], Const) and arms[1].value == 0
        if self.zeros and not differs and zero and isinstance(arms[0], Load):
            yield ZEROS
        if not self.masks and differs and any(x.sources & self.pointers for x in arms):
            yield COLD
