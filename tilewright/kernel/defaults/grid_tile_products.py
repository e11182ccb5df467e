"""Products of a tile kernel on a GPU: which instruction does each, and how operands lie for it.

Groups of four warps (wgmma) come first. They read operands in shared memory, in blocks of 128 bytes
of what is adjacent in memory; of single warps (mma.sync) every operand has to be a matrix whose
rows are adjacent. What no instruction does, each thread adds up by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.ir import dim as D
from tilewright.ir.expr import Load
from tilewright.ir.target import Target
from tilewright.ir.types import DType
from tilewright.kernel.defaults.grid_tile_layouts import Layouts
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.distribution import programs_of
from tilewright.kernel.fragments import WARP
from tilewright.kernel.group_products import across, depth, group_layouts, is_group, row_of
from tilewright.kernel.guards import copied
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.nest import Nest, Stmt, Store, reads, walk
from tilewright.kernel.pieces import Piece, factors, is_rounded, pieces_in
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.swizzle import multiple
from tilewright.kernel.warp_products import DEEP

Refusals = frozenset[tuple[str, str]]  # a stage and an instruction that cannot do it


@dataclass(frozen=True)
class Products:
    """The products of a nest, before their operands are laid out."""

    nest: Nest
    target: Target
    warps: int

    @property
    def pieces(self) -> list[Piece]:
        programs = programs_of(self.nest)
        assert programs is not None
        return list(pieces_in(programs.body, self.nest.are("product")))

    def chosen(self, refused: Refusals) -> dict[str, str]:
        """The instruction of each product, by its stage."""
        pieces = self.pieces
        first = self.adjacent(pieces)
        while True:
            out: dict[str, str] = {}
            for p in pieces:
                found = [x for x in self.options(p, first) if (p.stage, x) not in refused]
                if found:
                    out[p.stage] = found[0]
            wanted = self.maps(pieces, out, first)
            several = {s for x in wanted.values() if len(set(x.values())) > 1 for s in x}
            mixed = {(s, out[s]) for s in several if s in out and is_group(out[s])}
            if not mixed:
                return out
            refused |= mixed

    def maps(
        self, pieces: list[Piece], chosen: Mapping[str, str], adjacent: Mapping[str, int]
    ) -> dict[str, dict[str, str]]:
        """How each operand should lie, as a map of its axes, by the products that read it."""
        out: dict[str, dict[str, str]] = {}
        for p in pieces:
            for operand, x in zip("ab", factors(p) or ()):
                name = str(x.source)
                axis = adjacent[name]
                made = f"{'ab'[1 - axis]}, {'ab'[axis]}"
                if p.stage in chosen and is_group(chosen[p.stage]):
                    i = INTRINSICS[chosen[p.stage]]
                    row = row_of(i, operand, x.dtype)
                    made = self._blocks(x, axis, row, depth(i), p)
                    made = "a, b" if operand in i.fragments else made
                out.setdefault(name, {})[p.stage] = made
        return out

    def _blocks(self, x: Load, axis: int, row: int, deep: int, p: Piece) -> str:
        """Rows of so many elements, those of a block of such columns together; across the sum,
        those of as many steps as one use of the instruction has."""
        columns, rows = "ab"[axis], "ab"[1 - axis]
        shape = self.nest.buffer(str(x.source)).shape
        if shape[axis] == row:
            return f"{rows}, {columns}"
        steps = self._along(x, axis, p) is False and shape[1 - axis] != deep
        first, last = (f"{rows}//{deep}, ", f"{rows}%{deep}") if steps else ("", rows)
        return f"{first}{columns}//{row}, {last}, {columns}%{row}"

    def adjacent(self, pieces: list[Piece]) -> dict[str, int]:
        """By operand, the axis along which neighbours in memory lie when it is filled."""
        layouts = Layouts(self.nest, _body(self.nest), {}, {})
        out: dict[str, int] = {}
        for p in pieces:
            for x in factors(p) or ():
                name = str(x.source)
                own = [q for q in pieces if q.loops and q.writes()[:1]]
                writers = [q for q in own if q.writes()[0][0] == name]
                first = [q.writes()[0][1][0] for q in writers if len(q.writes()[0][1]) == 2]
                turned = [
                    D.is_sym(k) and D.the_sym(k) is layouts.inner(q).var
                    for q, k in zip(writers, first, strict=False)
                ]
                out[name] = 0 if turned and all(turned) else 1
        return out

    def options(self, p: Piece, adjacent: Mapping[str, int]) -> Iterator[str]:
        """Instructions that may do a product, the best first."""
        found = factors(p)
        s = p.statement
        if found is None or not isinstance(s, Store) or len(p.loops) != 3:
            return
        kinds = (*(x.dtype for x in found), s.value.dtype)
        deep = p.loops[-1].extent
        assert isinstance(deep, int)
        for name in self._groups(kinds):
            if self._grouped(p, name, adjacent):
                yield name
        if is_rounded(s.value):
            yield from (x for x in self._rounding() if deep % depth(INTRINSICS[x]) == 0)
            return
        for x in self.target.products:
            single = INTRINSICS[x.instruction].team == WARP and x.dtypes == kinds
            if single and found[0].dtype.bits == 16 and deep % DEEP == 0:
                yield x.instruction

    def _rounding(self) -> Iterator[str]:
        """Instructions of single warps that round their factors."""
        for name, i in INTRINSICS.items():
            if i.team == WARP and all(self.target.has(f) for f in i.features):
                if any(is_rounded(x.value) for x in i.group.stages):
                    yield name

    def _groups(self, kinds: tuple[DType, ...]) -> list[str]:
        """Instructions of groups of so many warps: those whose first operand is in registers
        before others, then those of more steps of the sum."""
        found: list[tuple[bool, int, str]] = []
        for name, i in INTRINSICS.items():
            if i.warps != self.warps or self.warps == 1 or not i.asynchronous:
                continue
            types = {b.name: b.dtype for b in i.group.buffers}
            same = (types["a"], types["b"], types["c"]) == kinds
            if same and all(self.target.has(f) for f in i.features):
                found.append(("a" not in i.fragments, -depth(i), name))
        return [name for _, _, name in sorted(found)]

    def _copied(self, name: str) -> bool:
        """Is a buffer filled out of an argument's memory?"""
        stores = [x for x, _ in walk(self.nest.body) if isinstance(x, Store) and x.buffer == name]
        return any(copied(x.value) is not None for x in stores)

    def _grouped(self, p: Piece, name: str, adjacent: Mapping[str, int]) -> bool:
        """Can groups of warps do a product by this instruction?"""
        i, found = INTRINSICS[name], factors(p)
        assert found is not None
        rows, columns, deep = (x.extent for x in p.loops)
        assert isinstance(rows, int) and isinstance(columns, int) and isinstance(deep, int)
        even = columns % i.multiples.get("j", 1) == 0 and deep % depth(i) == 0
        if not even or group_layouts(rows, columns, self.warps) is None:
            return False
        for operand, x in zip("ab", found, strict=True):
            if operand in i.fragments:
                if self._copied(str(x.source)) or len(x.index) != 2:
                    return False
                continue
            along = self._along(x, adjacent.get(str(x.source), 1), p)
            if along is None or along == across(i, operand):
                return False
            size = self.nest.buffer(str(x.source)).shape[adjacent.get(str(x.source), 1)]
            if not isinstance(size, int) or size % row_of(i, operand, x.dtype):
                return False
        return True

    def _along(self, x: Load, axis: int, p: Piece) -> bool | None:
        """Do the rows of an operand run along the sum? None where it is no plain matrix."""
        if len(x.index) != 2 or not all(map(D.is_sym, x.index)) or x.index[0] == x.index[1]:
            return None
        at = D.the_sym(x.index[axis])
        return at is p.loops[-1].var


def _body(n: Nest) -> tuple[Stmt, ...]:
    programs = programs_of(n)
    assert programs is not None
    return programs.body


def lay_out_operands(s: Scheduler, products: Mapping[str, str]) -> None:
    """Operands of products lie in shared memory in the order in which they are read when it is
    filled: neighbours are adjacent. Those of groups of warps are in blocks of 128 bytes."""
    known = Products(s.nest, s.target, 0)
    pieces = known.pieces
    wanted = known.maps(pieces, products, known.adjacent(pieces))
    for name, by in wanted.items():
        found = [text for stage, text in by.items() if stage in products]
        if found and found[0] != "a, b":
            s.attempt(Relayout(name, f"a, b -> {found[0]}"))


def beside(n: Nest, name: str) -> bool:
    """Are all lanes that touch a buffer neighbours in it, in whole vectors, or all at one place?"""
    b = n.buffer(name)
    for x, path in walk(n.body):
        lanes = [q for q in path if q.kind == "lane"]
        if not lanes or not isinstance(x, Store):
            continue
        cells = [(x.buffer, x.index), *((str(r.source), r.index) for r in reads(x))]
        for found, at in cells:
            if found == name:
                lin, v, count = linear_index(b, at), lanes[-1].var, D.bounds(lanes[-1].extent)[1]
                step = D.coefficient(lin, v)
                whole = count in (2, 4, 8, 16) and count * b.dtype.bytes <= 16
                if step != 0 and not (step == 1 and whole and multiple(lin - D.as_int(v), count)):
                    return False
    return True
