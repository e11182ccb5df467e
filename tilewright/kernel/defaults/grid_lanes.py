"""How many neighbours a thread of a GPU reads and writes at a time."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dim as D
from tilewright.ir.dim import Sym
from tilewright.ir.expr import Index, walk
from tilewright.kernel.defaults.scheduler import Scheduler, accesses
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Buffer

VECTOR = 16  # bytes of one access to memory, at most


def vector_lanes(s: Scheduler, stages: list[str], *along: Sym) -> int:
    """Lanes of 16 bytes, fewer where addresses are not multiples of that; 1 where neighbours are
    not adjacent in memory. `along` are the loops that they run over, one for each stage."""
    found = _adjacent(s, stages, along)
    if not found:
        return 1
    lanes = _most(found)
    while lanes > 1 and any(c % lanes for x in found for c in x.others(s)):
        lanes //= 2
    return lanes


def aligned_lanes(s: Scheduler, stages: list[str], at: Sym, width: int, *along: Sym) -> int:
    """Lanes of 16 bytes for rows of `width` elements that begin anywhere in memory, the one of
    iteration `at` at a multiple of its width; 1 where what is stored, or all that is read, does not
    lie so."""
    found = _adjacent(s, stages, along)
    rows = [x for x in found if D.known_eq(x.index - D.as_int(x.along), width * D.as_int(at))]
    if not any(x.buffer.scope == "in" for x in rows):
        return 1
    if any(x.buffer.scope == "out" and x not in rows for x in found):
        return 1
    return _most(found)


@dataclass(frozen=True)
class _Access:
    """An argument of which a loop touches neighbours, one after the other."""

    buffer: Buffer
    index: D.Dim  # in elements
    along: Sym

    def others(self, s: Scheduler) -> list[int]:
        """The coefficients of what else its index is made of."""
        terms = [] if isinstance(self.index, int) else self.index.terms
        if any(isinstance(a, Sym) and a in s.nest.dims for m, _ in terms for a in m):
            return [1]
        return [c for mono, c in terms if D.as_int(self.along) != _product(mono)]


def _most(found: list[_Access]) -> int:
    return VECTOR // min(x.buffer.dtype.bytes for x in found)


def _adjacent(s: Scheduler, stages: list[str], along: tuple[Sym, ...]) -> list[_Access]:
    """Accesses along these loops; none where some of them are not adjacent in memory."""
    found: list[_Access] = []
    for stage, var in zip(stages, along, strict=True):
        only: dict[Sym, D.Dim] = {p.var: 0 for p in s.path(stage) if p.extent == 1}
        for b, index in accesses(s, s.store(stage)):
            lin = D.substitute(linear_index(b, index), only)
            step = D.coefficient(lin, var)
            if step is None or step not in (0, 1):
                return []
            if step == 1 and b.scope in ("in", "out"):
                found.append(_Access(b, lin, var))
        if any(isinstance(v, Index) and var in v.symbols() for v in walk(s.store(stage).value)):
            return []
    return found


def _product(mono: tuple[D.Atom, ...]) -> D.Dim:
    out: D.Dim = 1
    for atom in mono:
        out = out * D.from_atom(atom)
    return out
