"""How many neighbours a thread of a GPU reads and writes at a time."""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.ir.dim import Sym
from tilewright.ir.expr import Index, walk
from tilewright.kernel.defaults.scheduler import Scheduler, accesses
from tilewright.kernel.dependence import linear_index

VECTOR = 16  # bytes of one access to memory, at most


def vector_lanes(s: Scheduler, stages: list[str], *along: Sym) -> int:
    """Lanes of 16 bytes, fewer where addresses are not multiples of that; 1 where neighbours are
    not adjacent in memory. `along` are the loops that they run over, one for each stage."""
    found: list[tuple[int, list[int]]] = []
    for stage, var in zip(stages, along, strict=True):
        only: dict[Sym, D.Dim] = {p.var: 0 for p in s.path(stage) if p.extent == 1}
        for b, index in accesses(s, s.store(stage)):
            lin = D.substitute(linear_index(b, index), only)
            step = D.coefficient(lin, var)
            if step is None or step not in (0, 1):
                return 1
            if step == 1 and b.scope in ("in", "out"):
                terms = [] if isinstance(lin, int) else lin.terms
                rest = [c for mono, c in terms if D.as_int(var) != _product(mono)]
                sized = any(isinstance(a, Sym) and a in s.nest.dims for m, _ in terms for a in m)
                found.append((b.dtype.bytes, [1] if sized else rest))
        if any(isinstance(v, Index) and var in v.symbols() for v in walk(s.store(stage).value)):
            return 1
    if not found:
        return 1
    lanes = VECTOR // min(size for size, _ in found)
    while lanes > 1 and any(c % lanes for _, rest in found for c in rest):
        lanes //= 2
    return lanes


def _product(mono: tuple[D.Atom, ...]) -> D.Dim:
    out: D.Dim = 1
    for atom in mono:
        out = out * D.from_atom(atom)
    return out
