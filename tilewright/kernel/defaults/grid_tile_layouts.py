"""Layouts for the loops of a tile kernel on a GPU: which thread of a block has which elements.

Loops over tiles that are used element by element with each other get one layout, so that what they
pass on stays in registers. Products choose first, then the largest tiles: neighbours in memory go
to the lanes of a vector and to neighbouring threads, rows to other threads and warps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Rewriter
from tilewright.kernel.divisors import Divisors, comparisons, dim_part, settled
from tilewright.kernel.group_products import group_layouts, held_steps, is_group
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.layouts import Digit, Layout, axes_of, axis_parts, resized
from tilewright.kernel.nest import Loop, Nest, Stmt
from tilewright.kernel.pieces import Cell, Piece, factors, pieces_in
from tilewright.kernel.steps.gather_store import ROLE as GATHERED
from tilewright.kernel.warp_products import columns_layout, rows_layout

VECTOR = 16  # bytes of one access to memory, at most
PLAIN = 4  # elements of a vector where memory does not say
PARTS = True  # may loops of a copy have parts of an axis of threads?
THREAD_AXES = ("x", "y", "z")


@dataclass
class Layouts:
    """Layouts for the loops of a block."""

    nest: Nest
    body: tuple[Stmt, ...]
    widths: Mapping[str, int]  # of a block: its threads along x, y and z
    wanted: Mapping[str, str]  # products and the instructions of warps that should do them
    both: bool = False  # may warps share rows and columns of a product?
    products: dict[str, str] = field(default_factory=dict)  # those that do
    parent: dict[str, str] = field(default_factory=dict)  # loops of one layout, as a forest

    def __post_init__(self) -> None:
        self.pieces = list(pieces_in(self.body, self.nest.are("product")))
        self.buffers = {b.name: b for b in self.nest.buffers}
        self.divisors = Divisors(self.body)
        self.gathered = self.nest.are(GATHERED)
        self.extents: dict[str, int] = {}
        for p in self.pieces:
            for x in p.loops:
                assert isinstance(x.extent, int)
                self.extents[x.name] = x.extent
                self.parent[x.name] = x.name
        self.members = {name: {name} for name in self.parent}
        self.piece = {x.name: k for k, p in enumerate(self.pieces) for x in p.loops}

    # ---- loops of one layout

    def root(self, name: str) -> str:
        while self.parent[name] != name:
            name = self.parent[name]
        return name

    def _join(self, a: str, b: str) -> None:
        """Two loops get one layout, unless a piece would have it twice."""
        a, b = self.root(a), self.root(b)
        if a == b or self.extents[a] != self.extents[b]:
            return
        if {self.piece[x] for x in self.members[a]} & {self.piece[x] for x in self.members[b]}:
            return
        self.parent[b] = a
        self.members[a] |= self.members.pop(b)

    def _unite(self) -> None:
        first: dict[tuple[str, int], str] = {}
        for p in self.pieces:
            own = {x.var: x.name for x in p.loops}
            product = factors(p)
            cells = [*p.writes()]
            if product is None:
                cells += [(str(r.source), r.index) for r in p.reads()]
            for name, at in cells:
                if self.buffers[name].scope != "local" or self._regathered(p, name):
                    continue
                for k, i in enumerate(at):
                    loop = own.get(D.the_sym(i)) if D.is_sym(i) else None
                    if loop is not None:
                        self._join(first.setdefault((name, k), loop), loop)

    def _regathered(self, p: Piece, name: str) -> bool:
        """Is it a tile that is gathered so that it is read with another layout?"""
        return name in self.gathered and p.stage != name

    # ---- what memory says

    def vector(self, p: Piece, x: Loop) -> int:
        """Elements along a loop that one access to memory may have; 0 where no access is along
        it."""
        cells = [c for c in self._cells(p) if any(x.var in D.symbols(i) for i in c[1])]
        if not cells:
            return 0
        lanes = min(VECTOR // self.buffers[name].dtype.bytes for name, _ in cells)
        lanes = min(lanes, self.extents[x.name])
        while lanes > 1 and not self._fits(p, cells, x, lanes):
            lanes //= 2
        return lanes

    def _fits(self, p: Piece, cells: list[Cell], x: Loop, lanes: int) -> bool:
        """Are so many elements neighbours that begin at a multiple of their size, and do they all
        fulfil the same conditions?"""
        lane = D.the_sym(D.var("lane?", lanes))
        table: dict[Sym, Dim] = {x.var: D.var("vector?", D.INF) * lanes + D.as_int(lane)}
        for name, at in cells:
            b = self.buffers[name]
            moved = Rewriter(table).dim(at[0])
            part = dim_part(moved, lane, self.divisors)
            if part is None or part[0] != b.unit or part[1] % lanes:
                return False
            if b.scope == "memory" or b.alignment % (lanes * b.dtype.bytes):
                return False
        for value in p.values():
            if x.var in value.symbols():
                for one in comparisons(value.substitute(table), lane):
                    if not settled(one, lane, lanes, self.divisors):
                        return False
        return True

    def _cells(self, p: Piece) -> Iterator[Cell]:
        for name, at in (*p.writes(), *((str(r.source), r.index) for r in p.reads())):
            if self.buffers[name].pointer:
                yield name, at

    def inner(self, p: Piece) -> Loop:
        """The loop along which neighbours in memory lie, or the last one."""
        own = [x for x in p.loops if x not in p.over()] or list(p.loops)
        best, most = p.loops[-1] if p.loops[-1] in p.over() else own[-1], 0
        for x in reversed(p.loops):
            found = 0
            for name, at in self._cells(p):
                part = dim_part(at[0], x.var, self.divisors)
                part = part or self._in_pairs(at[0], x)
                found += part is not None and part[0] == self.buffers[name].unit
            if found > most:
                best, most = x, found
        return best

    def _in_pairs(self, at: Dim, x: Loop) -> tuple[int, int] | None:
        """How an index moves within two neighbours, if not along the whole loop."""
        lane = D.the_sym(D.var("lane?", 2))
        table: dict[Sym, Dim] = {x.var: D.var("vector?", D.INF) * 2 + D.as_int(lane)}
        return dim_part(Rewriter(table).dim(at), lane, self.divisors)

    # ---- choosing

    def chosen(self) -> dict[str, Layout]:
        self._unite()
        order = sorted(
            (p for p in self.pieces if p.loops),
            key=lambda p: -prod(self.extents[x.name] for x in p.loops if x not in _serial(p)),
        )
        found: dict[str, Layout] = {}
        for p in self.pieces:
            self._fragments(p, found)
        for p in self.pieces:
            self._parts_of_sums(p, found)
        for p in self.pieces:
            self._by_threads(p, found)
        for p in order:
            self._choose(p, found)
        out: dict[str, Layout] = {}
        for p in self.pieces:
            taken: set[str] = set()
            loops = [x for x in p.loops if x not in _serial(p)]
            parts = axis_parts(found.get(self.root(x.name), ()) for x in loops)
            whole = {a for a, n in parts.items() if prod(n) > self.widths[a[-1]]}
            for x in loops:
                layout = found.get(self.root(x.name), ())
                if taken & axes_of(layout) & whole:
                    layout = self._apart(p, x, taken, found)
                taken |= axes_of(layout)
                out[x.name] = layout
        for p in self.pieces:
            if p.stage in self.products:
                out[p.loops[-1].name] = self._steps(p, out)
        return {name: x for name, x in out.items() if x}

    # ---- products

    def _fragments(self, p: Piece, found: dict[str, Layout]) -> None:
        """The layouts of a product that an instruction of warps does."""
        name = self.wanted.get(p.stage)
        if name is None:
            return
        i, j = (self.root(x.name) for x in p.loops[:2])
        for rows, columns in self._of_warps(name, self.extents[i], self.extents[j]):
            if (found.get(i, rows), found.get(j, columns)) == (rows, columns) and i != j:
                found[i], found[j] = rows, columns
                self.products[p.stage] = name
                return

    def _by_threads(self, p: Piece, found: dict[str, Layout]) -> None:
        """The layouts of a product that threads add up by themselves. In each step a thread reads
        an element for each of its rows and columns: there are as few of both as may be."""
        if factors(p) is None or p.stage in self.products or len(p.loops) != 3:
            return
        i, j = (self.root(x.name) for x in p.loops[:2])
        if {i, j} & found.keys() or i == j:
            return
        users = [self.pieces[self.piece[x]] for x in self.members[i]]
        if any(self.root(self.inner(q).name) == i for q in users if any(self._cells(q))):
            i, j = j, i  # neighbours in memory are along rows
        lanes = min(self._vector_of(j), self.extents[j])
        best: tuple[int, dict[str, int]] | None = None
        for some in range(1, 2 ** len(THREAD_AXES) - 1):
            along = {a: self.widths[a] for k, a in enumerate(THREAD_AXES) if some >> k & 1}
            others = {a: n for a, n in self.widths.items() if a not in along}
            rows = self.extents[i] // prod(others.values())
            columns = self.extents[j] // prod(along.values())
            if rows and columns >= lanes and (best is None or rows + columns < best[0]):
                best = rows + columns, along
        if best is not None:
            others = {a: n for a, n in self.widths.items() if a not in best[1]}
            found[j] = self._layout(self.extents[j], best[1], lanes)
            found[i] = self._layout(self.extents[i], others, 1)

    def _parts_of_sums(self, p: Piece, found: dict[str, Layout]) -> None:
        """Loops over a part of the columns of a product's sums have a part of their layout."""
        own = {x.var: x for x in p.loops}
        for r in p.reads():
            made = next((q for q in self.pieces if self._sums_of(q, str(r.source))), None)
            for i, x in zip(r.index, made.loops if made is not None else ()):
                var = next((v for v in D.symbols(i) if v in own), None)
                root = self.root(own[var].name) if var is not None else ""
                if not root or root in found or self.extents[root] == self.extents[x.name]:
                    continue
                part = resized(found.get(self.root(x.name), ()), self.extents[root])
                if part is not None:
                    found[root] = part

    def _sums_of(self, p: Piece, name: str) -> bool:
        return p.stage in self.products and p.writes()[0][0] == name

    def _of_warps(self, name: str, m: int, n: int) -> Iterator[tuple[Layout, Layout]]:
        """The layouts of rows and columns that an instruction may have, the best first."""
        warps = self.widths["z"]
        if is_group(name):
            both = group_layouts(m, n, warps)
            if both is not None:
                yield both
            return
        shared = [(k, warps // k) for k in range(2, warps) if warps % k == 0] if self.both else []
        # What warps read for a step of the sum are the rows and the columns of each.
        shared.sort(key=lambda x: m // x[0] + n // x[1])
        for along in (*shared, (warps, 1), (1, warps), (1, 1)):
            rows, columns = rows_layout(m, along[0]), columns_layout(n, along[1])
            if rows is not None and columns is not None:
                yield rows, columns

    def _steps(self, p: Piece, out: dict[str, Layout]) -> Layout:
        """The layout along the sum of a first operand that is in registers as it has to be; none
        where it is in shared memory."""
        operands, does = factors(p), self.products[p.stage]
        assert operands is not None
        a = operands[0]
        if is_group(does) and "a" not in INTRINSICS[does].fragments:
            return ()
        i, _, r = p.loops
        if a.index != (D.as_int(i.var), D.as_int(r.var)):
            return ()
        users = [q for q in self.pieces if q is not p and self._uses(q, str(a.source))]
        wanted: set[tuple[Layout, ...]] = set()
        for q in users:
            own = {x.var: out.get(x.name, ()) for x in q.loops}
            cells = [*q.writes(), *((str(x.source), x.index) for x in q.reads())]
            for name, at in cells:
                if name == str(a.source):
                    wanted.add(tuple(own.get(D.the_sym(k), ()) if D.is_sym(k) else () for k in at))
        if len(wanted) != 1:
            return ()
        rows, steps = wanted.pop()
        fits = held_steps(does)
        return steps if rows == out[i.name] and fits(steps) else ()

    @staticmethod
    def _uses(p: Piece, name: str) -> bool:
        return name in {x for x, _ in p.writes()} | {str(x.source) for x in p.reads()}

    def _vector_of(self, root: str) -> int:
        """Lanes of all loops of one layout: what each access allows."""
        out = 0
        for name in self.members[root]:
            p = self.pieces[self.piece[name]]
            x = next(x for x in p.loops if x.name == name)
            allowed = self.vector(p, x)
            if allowed and (x is self.inner(p) or allowed > 1):
                out = min(out, allowed) if out else allowed
        return out or PLAIN

    def _choose(self, p: Piece, found: dict[str, Layout]) -> None:
        """Layouts for the loops of a piece that have none yet."""
        loops = [x for x in p.loops if x not in _serial(p)]
        open_ = [x for x in loops if self.root(x.name) not in found]
        taken = set().union(*(axes_of(found.get(self.root(x.name), ())) for x in loops))
        free = [a for a in THREAD_AXES if f"thread.{a}" not in taken]
        inner = self.inner(p)
        rows = [x for x in open_ if x is not inner]
        left = {a: self.widths[a] for a in free}
        if inner in open_:
            threads = prod(left.values())
            lanes = self._vector_of(self.root(inner.name))
            size, others = self.extents[inner.name], prod(self.extents[x.name] for x in rows)
            while lanes > 1 and size * others // lanes < threads:
                lanes //= 2
            lanes = min(lanes, size)
            use = self._columns(size // lanes, others, left, self._to_shared(p))
            found[self.root(inner.name)] = self._layout(size, use, lanes)
            left = {a: n // use.get(a, 1) for a, n in left.items() if n > use.get(a, 1)}
        for x in rows:
            use = self._fitting(self.extents[x.name], left)
            found[self.root(x.name)] = self._layout(self.extents[x.name], use, 1)
            left = {a: n for a, n in left.items() if a not in use}

    def _to_shared(self, p: Piece) -> bool:
        """Is it a copy to what an instruction reads in shared memory, of which nothing but another
        such operand is made, or from what is gathered there?"""
        operands = [
            str(x.source) for q in self.pieces if q.stage in self.products for x in factors(q) or ()
        ]
        others = {self.piece[y] for x in p.loops for y in self.members[self.root(x.name)]}
        alone = all(self.pieces[k] is p or self._among(self.pieces[k], operands) for k in others)
        stored = any(str(x.source) in self.gathered for x in p.reads())
        return alone and PARTS and (stored or all(name in operands for name, _ in p.writes()))

    def _among(self, p: Piece, operands: list[str]) -> bool:
        """Does a piece make one operand of another, and nothing else?"""
        used = [name for name, _ in p.writes()] + [str(x.source) for x in p.reads()]
        own = [name for name in used if self.buffers[name].scope == "local"]
        return all(name in operands for name in own)

    def _columns(
        self, vectors: int, rows: int, free: Mapping[str, int], parts: bool
    ) -> dict[str, int]:
        """Threads along a row: a whole warp where it is long enough; warps go to rows where there
        are enough of those. Where an axis may be had in `parts`, the threads that are served
        together read one row: of a whole one of 128 bytes memory is asked once."""
        out: dict[str, int] = {}
        for a, n in free.items():
            if vectors < n:
                if parts and 1 < vectors and a != "z" and n % vectors == 0:
                    out[a] = vectors
                break
            if a == "z" and rows >= n:
                continue
            out[a] = n
            vectors //= n
        return out

    def _fitting(self, size: int, free: Mapping[str, int]) -> dict[str, int]:
        out: dict[str, int] = {}
        for a in reversed(list(free)):
            if size >= free[a]:
                out[a] = free[a]
                size //= free[a]
        return {a: out[a] for a in free if a in out}

    def _layout(self, size: int, axes: Mapping[str, int], lanes: int) -> Layout:
        digits = [Digit(lanes, "v")] if lanes > 1 else []
        left = size // lanes
        for a, n in axes.items():
            if n > 1:
                digits.insert(0, Digit(n, a))
                left //= n
        return tuple([Digit(left)] * (left > 1) + digits)

    def _apart(self, p: Piece, x: Loop, taken: set[str], found: dict[str, Layout]) -> Layout:
        """A layout for one loop of one piece, whose own is that of another loop there too."""
        later = p.loops[p.loops.index(x) + 1 :]
        used = taken.union(*(axes_of(found.get(self.root(y.name), ())) for y in later))
        free = {a: self.widths[a] for a in THREAD_AXES if f"thread.{a}" not in used}
        return self._layout(self.extents[x.name], self._fitting(self.extents[x.name], free), 1)


def _serial(p: Piece) -> tuple[Loop, ...]:
    """Of a product that no instruction does: each thread adds up all of its sums."""
    return p.over() if factors(p) is not None else ()
