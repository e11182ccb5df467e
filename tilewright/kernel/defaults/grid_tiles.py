"""Tile kernels on a GPU: a program is a block, its threads share every tile.

Loops over tiles that are used element by element with each other get one layout, so that what they
pass on stays in registers. The largest tiles choose first: neighbours in memory go to the lanes of
a vector and to neighbouring threads, rows to other threads and warps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Rewriter
from tilewright.ir.target import Target
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.distribution import Distribution, on_blocks, programs_of
from tilewright.kernel.divisors import Divisors, comparisons, dim_part, settled
from tilewright.kernel.fragments import WARP
from tilewright.kernel.guards import copied
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.layouts import Digit, Layout, axes_of, layout_text
from tilewright.kernel.nest import Alloc, Loop, Nest, Stmt, Store, reads, walk
from tilewright.kernel.pieces import Cell, Piece, factors, pieces_in
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.distribute import Distribute
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.swizzle import Swizzle
from tilewright.kernel.warp_products import DEEP, columns_layout, is_step, rows_layout

VECTOR = 16  # bytes of one access to memory, at most
PLAIN = 4  # elements of a vector where memory does not say
WARPS = 4
SPARE = 4096  # bytes of shared memory that sums over threads may take
THREAD_AXES = ("x", "y", "z")


def schedule_tile_grid(
    n: Nest, target: Target, warps: int = WARPS, stages: int = 3, near: tuple[str, ...] = ()
) -> tuple[Trace, Nest]:
    """The default trace of a tile kernel for a GPU and the nest that it leads to. `near` are pairs
    of arguments that may be into the same memory."""
    grid = target.grid
    assert grid is not None
    programs = programs_of(n)
    if programs is None:
        raise Unsupported(f"{n.name} is no tile kernel: there is no loop over its programs")
    if warps * grid.warp > grid.block_threads:
        raise Unsupported(
            f"{n.name} is launched with {warps} warps, {target.name} has at most "
            f"{grid.block_threads // grid.warp} in a block",
            hint="num_warps=4 is the usual number",
        )
    s = Scheduler(n, target)
    x, y = WARP["thread.x"], WARP["thread.y"]
    threads = (x, y, warps * grid.warp // (x * y))
    turn_operands(s)
    programs = programs_of(s.nest)
    assert programs is not None
    _, body = on_blocks(s.nest, programs)
    widths: dict[str, int] = dict(zip(THREAD_AXES, threads, strict=True))
    refused: frozenset[str] = frozenset()
    while True:
        found = Layouts(s.nest, body, widths, target, refused)
        layouts = found.chosen()
        lost = _lost_sums(Distribution(s.nest, body, threads, layouts, found.products), body)
        if not lost:
            break
        refused |= lost
    said = tuple(f"{name} = {layout_text(x)}" for name, x in layouts.items() if x)
    products = tuple(f"{stage} = {name}" for stage, name in found.products.items())
    s.do(Distribute(threads, said, products))
    fetch_ahead(s, stages - 1)
    swizzle_operands(s)
    s.do(Synchronise(near, tiles=True))
    return tuple(s.trace), s.nest


@dataclass
class Layouts:
    """Layouts for the loops of a block."""

    nest: Nest
    body: tuple[Stmt, ...]
    widths: dict[str, int]  # of a block: its threads along x, y and z
    target: Target
    refused: frozenset[str] = frozenset()  # products that no instruction of warps can do
    products: dict[str, str] = field(default_factory=dict)  # stages and their instructions
    parent: dict[str, str] = field(default_factory=dict)  # loops of one layout, as a forest

    def __post_init__(self) -> None:
        self.pieces = list(pieces_in(self.body, self.nest.are("product")))
        self.buffers = {b.name: b for b in self.nest.buffers}
        self.divisors = Divisors(self.body)
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
                if self.buffers[name].scope != "local":
                    continue
                for k, i in enumerate(at):
                    loop = own.get(D.the_sym(i)) if D.is_sym(i) else None
                    if loop is not None:
                        self._join(first.setdefault((name, k), loop), loop)

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
        for p in order:
            self._choose(p, found)
        out: dict[str, Layout] = {}
        for p in self.pieces:
            taken: set[str] = set()
            for x in p.loops:
                if x in _serial(p):
                    continue
                layout = found.get(self.root(x.name), ())
                if taken & axes_of(layout):
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
        name = product_of(p, self.target)
        if name is None or len(p.loops) != 3 or p.stage in self.refused:
            return
        i, j, _ = p.loops
        m, n, warps = self.extents[i.name], self.extents[j.name], self.widths["z"]
        for along in ((warps, 1), (1, warps), (1, 1)):
            rows, columns = rows_layout(m, along[0]), columns_layout(n, along[1])
            if rows is None or columns is None:
                continue
            known = found.get(self.root(i.name), rows), found.get(self.root(j.name), columns)
            if known == (rows, columns) and self.root(i.name) != self.root(j.name):
                found[self.root(i.name)], found[self.root(j.name)] = rows, columns
                self.products[p.stage] = name
                return

    def _steps(self, p: Piece, out: dict[str, Layout]) -> Layout:
        """The layout along the sum of a first operand that is in registers as it has to be; none
        where it is in shared memory."""
        operands = factors(p)
        assert operands is not None
        a = operands[0]
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
        return steps if rows == out[i.name] and is_step(steps) else ()

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
        if inner in open_:
            threads = prod(self.widths[a] for a in free)
            lanes = self._vector_of(self.root(inner.name))
            size, others = self.extents[inner.name], prod(self.extents[x.name] for x in rows)
            while lanes > 1 and size * others // lanes < threads:
                lanes //= 2
            lanes = min(lanes, size)
            use = self._columns(size // lanes, others, free)
            found[self.root(inner.name)] = self._layout(size, use, lanes)
            free = [a for a in free if a not in use]
        for x in rows:
            use = self._fitting(self.extents[x.name], free)
            found[self.root(x.name)] = self._layout(self.extents[x.name], use, 1)
            free = [a for a in free if a not in use]

    def _columns(self, vectors: int, rows: int, free: list[str]) -> list[str]:
        """Threads along a row: a whole warp where it is long enough; warps go to rows where there
        are enough of those."""
        out: list[str] = []
        for a in free:
            n = self.widths[a]
            if vectors < n:
                break
            if a == "z" and rows >= n:
                continue
            if a == "y" and vectors < n and rows >= n:
                continue
            out.append(a)
            vectors //= n
        return out

    def _fitting(self, size: int, free: list[str]) -> list[str]:
        out: list[str] = []
        for a in reversed(free):
            if size >= self.widths[a]:
                out.append(a)
                size //= self.widths[a]
        return sorted(out)

    def _layout(self, size: int, axes: list[str], lanes: int) -> Layout:
        digits = [Digit(lanes, "v")] if lanes > 1 else []
        left = size // lanes
        for a in axes:
            if self.widths[a] > 1:
                digits.insert(0, Digit(self.widths[a], a))
                left //= self.widths[a]
        return tuple([Digit(left)] * (left > 1) + digits)

    def _apart(self, p: Piece, x: Loop, taken: set[str], found: dict[str, Layout]) -> Layout:
        """A layout for one loop of one piece, whose own is that of another loop there too."""
        later = p.loops[p.loops.index(x) + 1 :]
        used = taken.union(*(axes_of(found.get(self.root(y.name), ())) for y in later))
        free = [a for a in THREAD_AXES if f"thread.{a}" not in used]
        return self._layout(self.extents[x.name], self._fitting(self.extents[x.name], free), 1)


def _lost_sums(d: Distribution, body: tuple[Stmt, ...]) -> frozenset[str]:
    """Products whose sums would not be in registers: others use them with another layout."""
    return frozenset(
        p.stage
        for p in pieces_in(body)
        if p.stage in d.products and p.writes()[0][0] not in d.registers
    )


def product_of(p: Piece, target: Target) -> str | None:
    """The instruction of warps that does a product, if there is one."""
    found = factors(p)
    s = p.statement
    if found is None or not isinstance(s, Store):
        return None
    a, b = found
    deep = p.loops[-1].extent
    kinds = a.dtype, b.dtype, s.value.dtype
    for x in target.products:
        plain = INTRINSICS[x.instruction].team == WARP
        if x.dtypes == kinds and plain and a.dtype.bits == 16 and isinstance(deep, int):
            return x.instruction if deep % DEEP == 0 else None
    return None


def turn_operands(s: Scheduler) -> None:
    """Operands of products lie in shared memory in the order in which they are read when it is
    filled: neighbours are adjacent."""
    programs = programs_of(s.nest)
    assert programs is not None
    pieces = list(pieces_in(programs.body, s.nest.are("product")))
    layouts = Layouts(s.nest, programs.body, {}, s.target)
    turned: set[str] = set()
    for p in pieces:
        if product_of(p, s.target) is None:
            continue
        for x in factors(p) or ():
            name = str(x.source)
            writers = [q for q in pieces if q.loops and q.writes()[:1] and q.writes()[0][0] == name]
            first = [q.writes()[0][1][0] for q in writers if len(q.writes()[0][1]) == 2]
            across = [
                D.is_sym(k) and D.the_sym(k) is layouts.inner(q).var
                for q, k in zip(writers, first, strict=False)
            ]
            if across and all(across) and name not in turned:
                s.attempt(Relayout(name, "a, b -> b, a"))
                turned.add(name)


def fetch_ahead(s: Scheduler, ahead: int) -> None:
    """Operands of products that a loop copies from memory are on their way some iterations before
    they are needed, as many as fit."""
    for loop in [x for x, _ in walk(s.nest.body) if isinstance(x, Loop) and x.kind == "serial"]:
        made = [x.buffer for x in loop.body if isinstance(x, Alloc)]
        wanted = [b for b in made if s.nest.buffer(b).scope == "shared" and _copied(loop, b)]
        taken = sum(bytes_of(s.nest, b) for b in _shared(s.nest))
        own = sum(bytes_of(s.nest, b) for b in wanted)
        grid = s.target.grid
        assert grid is not None
        while ahead > 0 and own and taken + own * ahead > grid.block_shared - SPARE:
            ahead -= 1
        for b in wanted if ahead > 0 else ():
            s.attempt(Pipeline(loop.name, b, ahead, asynchronous=True))


def _copied(loop: Loop, buffer: str) -> bool:
    """Is a buffer filled by one copy out of an argument's memory and read by instructions only?"""
    stores = [x for x, _ in walk(loop.body) if isinstance(x, Store) and x.buffer == buffer]
    return len(stores) == 1 and copied(stores[0].value) is not None


def _shared(n: Nest) -> list[str]:
    return [b.name for b in n.buffers if b.scope == "shared"]


def bytes_of(n: Nest, name: str) -> int:
    b = n.buffer(name)
    return D.bounds(b.size)[1] * b.dtype.bytes


def swizzle_operands(s: Scheduler) -> None:
    """Rows that instructions read by the addresses of their threads are in different banks."""
    used: set[str] = set()
    for x, _ in walk(s.nest.body):
        if isinstance(x, Loop) and x.instruction and INTRINSICS[x.instruction].addresses:
            used |= {str(r.source) for r in reads(x)}
    for name in sorted(used):
        b = s.nest.buffer(name)
        width = b.shape[-1]
        vectors = width // 8 if isinstance(width, int) else 1
        bits = min(3, vectors.bit_length() - 1)
        if b.scope == "shared" and bits and vectors & (vectors - 1) == 0 and _beside(s.nest, name):
            s.attempt(Swizzle(name, bits, 3, max(vectors.bit_length() - 1, 3)))


def _beside(n: Nest, name: str) -> bool:
    """Are all lanes that touch a buffer neighbours in it, in whole vectors?"""
    b = n.buffer(name)
    for x, path in walk(n.body):
        lanes = [q for q in path if q.kind == "lane"]
        if not lanes or not isinstance(x, Store):
            continue
        cells = [(x.buffer, x.index), *((str(r.source), r.index) for r in reads(x))]
        for found, at in cells:
            if found == name:
                step = D.coefficient(linear_index(b, at), lanes[-1].var)
                if step != 1 or lanes[-1].extent not in (2, 4, 8):
                    return False
    return True


def _serial(p: Piece) -> tuple[Loop, ...]:
    """Of a product that no instruction does: each thread adds up all of its sums."""
    return p.over() if factors(p) is not None else ()
