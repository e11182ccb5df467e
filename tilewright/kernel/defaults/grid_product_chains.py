"""Products of what other products make, as one kernel of a GPU: the gradients of attention.

A block of threads has a tile of rows and walks over blocks of columns. The first products, whose
rows stay in shared memory, are in registers, and so is what is made of them; that is the first
operand of the last products where it is. These add up over all blocks. graph/product_chains.py says
which products are one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Quo, Sym
from tilewright.ir.expr import Index, Load, Value
from tilewright.ir.parts import walk as walk_values
from tilewright.kernel.defaults import grid_chains
from tilewright.kernel.defaults.grid_across import Across
from tilewright.kernel.defaults.grid_chain_ways import WIDE, Way, groups_of
from tilewright.kernel.defaults.grid_chains import Parts, _Chain, by_ways, instructions
from tilewright.kernel.defaults.scheduler import Scheduler, cost, store_reads
from tilewright.kernel.group import Stage
from tilewright.kernel.steps.backwards import Backwards
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.hasten import Hasten
from tilewright.kernel.steps.join_copies import JoinCopies
from tilewright.kernel.steps.pad import Pad
from tilewright.kernel.steps.pad_sum import PadSum
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.reverse import Reverse
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.trim import Trim
from tilewright.kernel.steps.unmask import Unmask


@dataclass(frozen=True)
class Products:
    firsts: tuple[Stage, ...]
    lasts: tuple[Stage, ...]
    outs: tuple[Stage, ...]  # of each last one, and of the one across
    across: Stage | None = None  # a product of columns, whose sums are over all tiles of rows


def products_of(s: Scheduler) -> Products | None:
    g = s.group
    roles = dict(g.roles)
    firsts, lasts = (
        tuple(x for x in g.stages if x.name in {v for r, v in roles.items() if r.startswith(name)})
        for name in ("first", "last")
    )
    across = g.role("across0")
    outs = [x for x in g.stages if g.buffer(x.name).scope == "out"]
    count = len(lasts) + (across is not None)
    if not firsts or not lasts or len(outs) != count or not all(x.is_map for x in outs):
        return None
    return Products(firsts, lasts, tuple(outs), across)


def schedule_products(s: Scheduler) -> bool:
    found = products_of(s)
    if found is None or s.target.grid is None or s.group.precision == "strict":
        return False
    grid = s.target.grid
    return by_ways(
        s, lambda way: _Products(s, found, groups_of(s.group, grid, way), way).schedule()
    )


class _Products(_Chain):
    def __init__(self, s: Scheduler, found: Products, groups: int, way: Way) -> None:
        last, out = found.lasts[0], found.outs[0]
        # Of the parts of a chain, those that its helpers ask for.
        super().__init__(s, Parts(found.firsts[0], last, last, last, out), groups, way)
        self.found = found
        self.summed = {x.name for x in found.lasts}

    def schedule(self) -> None:
        s, f = self.s, self.found
        between = self._maps_left()
        kind = self._factors(f.lasts[0].name)[0].dtype
        kinds = instructions(s, kind, self.groups)
        if kinds is None:
            raise Refused("no instruction multiplies rows in registers")
        # Copies of operands: for all blocks of columns, and for one.
        rows: list[str] = []
        blocks: dict[str, bool] = {}
        shared = self._shared_copies(between)
        for x in f.firsts:
            a, b = self._by_rows(x.name)
            rows.append(self._copy_of(x.name, a, "a"))
            blocks[_one_of(b, shared) or self._copy_of(x.name, b, "b")] = False
        for x in f.lasts:
            b = self._right(x.name, between)
            if _one_of(b, shared) is None:
                blocks[self._copy_of(x.name, b, "b")] = True
        across = Across.of(self, f.across, between) if f.across is not None else None
        outs = self._outs()
        self._whole_tiles(rows, list(blocks), between)
        if across is not None:
            across.split()
        placed = [
            self._tiles_of(last.name, out.name) for last, out in zip(f.lasts, outs, strict=True)
        ]
        outer, tiles, _ = placed[-1]  # what the others use is computed before it
        for out in outs[:-1]:
            s.do(ComputeWith(out.name, tiles))
        period = self._period(between)
        for x in f.lasts:
            s.do(ComputeAt(x.name, tiles))
            i, c, k = (p.name for p in s.own(x.name))
            s.do(Split(k, WIDE))
            s.do(Reorder((f"{k}.0", i, c, f"{k}.1")))
            if period:
                s.do(Split(f"{k}.0", period // WIDE))
        part = s.reduced(f.lasts[0].name)[1 if period else 0].name
        for x in f.lasts[1:]:
            s.do(ComputeWith(x.name, part))
        if across is not None:
            across.place(tiles, part, period)
        for name in (*reversed(between), *(x.name for x in reversed(f.firsts))):
            s.do(ComputeAt(name, part))
        for x in rows:
            s.do(ComputeAt(x, tiles))
        for x in blocks:
            s.do(ComputeAt(x, part))
        for x in (*rows, *blocks):
            s.do(SetScope(x, "shared"))
        s.attempt(Trim(part))
        longer = D.coefficient(s.loops(part)[0].extent, s.loops(tiles)[0].var)
        if isinstance(longer, int) and longer < 0:
            s.do(Backwards(part))  # its first blocks have masks, and Unmask takes the last ones
        self._blocks(outer, tiles)
        for _, _, results in placed:
            self._results(*results)
        self._between(between)
        if across is not None:
            across.bind()
        # With a product across, one block of threads has a multiprocessor: nothing else goes on
        # while its rows come, so the copy engine brings them, along with the first columns.
        runs = D.bounds(s.loops(part)[0].extent)[0] > 0  # where it does not, nothing waits
        joined = across is not None and not period and runs
        for x in rows:
            self._copy(x, boxes=joined)
        for x, turned in blocks.items():
            self._copy(x, turned=turned)
        for x in f.firsts:
            self._product(x.name, kinds[0])
        for x in f.lasts:
            self._product(x.name, kinds[1])
        if across is not None:
            across.multiply(kind, joined)
        for x in blocks:
            s.do(Pipeline(part, x, grid_chains.AHEAD, asynchronous=True))
        if across is not None:
            for x in (*rows, across.held) if joined else ():
                s.do(JoinCopies(x))
            s.do(Hasten(part))  # registers of what is done with are free then, too
        s.do(Synchronise())
        s.attempt(Unmask(part))
        if isinstance(longer, int) and longer > 0:
            s.do(Reverse(tiles))  # later tiles take longer, so they begin first

    def _period(self, between: list[str]) -> int:
        """After how many columns conditions begin again, such as those of a causal mask where
        several heads of queries share keys; 0: never. Then the columns are two loops."""
        s = self.s
        columns = s.nest.buffer(self.found.firsts[0].name).shape[-1]
        found: set[int] = set()
        for name in between:
            last = s.axes(name)[0][-1].var
            for x in walk_values(s.store(name).value):
                terms = x.dim.terms if isinstance(x, Index) and isinstance(x.dim, D.Int) else ()
                atoms = [a for mono, _ in terms for a in mono]
                found |= {
                    a.b
                    for a in atoms
                    if isinstance(a, Quo) and a.op == "mod" and isinstance(a.b, int)
                    if last in D.symbols(a.a)
                }
        several = [c for c in found if c % WIDE == 0 and D.known_lt(c, columns)]
        return several[0] if len(several) == 1 else 0

    # ---- what is stored

    def _maps_left(self) -> list[str]:
        """Maps become part of what reads them, but for what the last products multiply, and for
        powers that several stages read."""
        s, f = self.s, self.found
        own = {x.name for x in (*f.firsts, *f.lasts, *f.outs)}
        own |= {f.across.name} if f.across is not None else set()
        multiplied = {x.source for last in f.lasts for x in store_reads(s.store(last.name))}
        left: list[str] = []
        for st in s.group.stages:
            if st.name in own:
                continue
            if not st.is_map:
                raise Refused(f"{st.name} is neither a map nor one of the products")
            often = cost(s.store(st.name).value) and self._readers(st.name) > 1
            tile = st.name in multiplied and self._of_products(st.name, left)
            if not often and not tile and s.attempt(ComputeInline(st.name)):
                continue
            left.append(st.name)
        return left

    def _of_products(self, stage: str, left: list[str]) -> bool:
        """Is a map made of what the first products make, or of what is left of that?"""
        own = {x.name for x in self.found.firsts} | set(left)
        return any(x.source in own for x in store_reads(self.s.store(stage)))

    def _by_rows(self, stage: str) -> list[Value]:
        """Both operands of a product, the one with its rows first."""
        row = self.s.axes(stage)[0][-2].var
        return sorted(self._factors(stage), key=lambda x: row not in x.symbols())

    def _right(self, stage: str, between: list[str]) -> Value:
        """What a last product multiplies rows by."""
        (found,) = (x for x in self._factors(stage) if not set(map(str, x.sources)) & set(between))
        return found

    def _shared_copies(self, between: list[str]) -> set[str]:
        """Copies of arguments that are columns of a first product and what a last one multiplies
        by: both read the same tile, along the sum and across it."""
        s, f = self.s, self.found
        made: set[str] = set()
        for x in f.firsts:
            a, b = self._by_rows(x.name)
            for y in f.lasts:
                right = self._right(y.name, between)
                if not isinstance(b, Load) or not isinstance(right, Load):
                    continue
                same = b.source == right.source and self._same_tile(x, b, y, right)
                once = same and b.source not in a.sources
                into = f"{b.source}_c"
                if once and s.attempt(CacheRead(str(b.source), (x.name, y.name), into)):
                    made.add(into)
                    break
        return made

    @staticmethod
    def _same_tile(x: Stage, columns: Load, y: Stage, right: Load) -> bool:
        """Are the columns of a first product, element by element, what a last one multiplies by?"""
        *batch, _, j = x.axes
        *others, _, c = y.axes
        if len(batch) != len(others):
            return False
        table: dict[Sym, Dim] = {a: D.as_int(b) for a, b in zip(batch, others, strict=True)}
        table |= {j: D.as_int(y.raxes[0]), x.raxes[0]: D.as_int(c)}
        return tuple(D.substitute(i, table) for i in columns.index) == right.index

    def _outs(self) -> list[Stage]:
        """The result of each last product."""
        found: list[Stage] = []
        for last in self.found.lasts:
            (out,) = (
                x
                for x in self.found.outs
                if any(r.source == last.name for r in store_reads(self.s.store(x.name)))
            )
            found.append(out)
        return found

    # ---- whole tiles

    def _whole_tiles(self, rows: list[str], blocks: list[str], between: list[str]) -> None:
        """Rows, columns and widths that no tile divides: zeros are copied and multiplied there."""
        s, f = self.s, self.found
        many, columns = s.nest.buffer(f.firsts[0].name).shape[-2:]
        if not isinstance(many, int) or not isinstance(columns, int):
            raise Refused(f"{many} rows of {columns}: how many there are is not known")
        sizes = [(x, self.rows) for x in rows] + [(x, WIDE) for x in blocks]
        for stage, high in sizes:
            shape = s.nest.buffer(stage).shape
            for axis, whole in ((len(shape) - 2, high), (len(shape) - 1, WIDE)):
                size = shape[axis]
                if isinstance(size, int) and size % whole:
                    s.do(Pad(stage, axis, whole, zeros=True))
        for x in (*f.firsts, *f.lasts):
            deep = s.reduced(x.name)[0]
            if deep.extent % WIDE and x in f.firsts:
                s.do(PadSum(deep.name, WIDE))
        for stage in (*(x.name for x in f.firsts), *between):
            rank = len(s.nest.buffer(stage).shape)
            # What is in rows past the end is stored nowhere; columns are added up.
            if many % self.rows and not s.attempt(Pad(stage, rank - 2, self.rows)):
                s.do(Pad(stage, rank - 2, self.rows, zeros=True))
            if columns % WIDE and (stage in between or not s.attempt(Pad(stage, rank - 1, WIDE))):
                s.do(Pad(stage, rank - 1, WIDE, zeros=True))
        for x in f.lasts:
            deep = s.reduced(x.name)[0]
            if columns % WIDE:
                s.do(PadSum(deep.name, WIDE))
            rank = len(s.nest.buffer(x.name).shape)
            for axis, whole in ((rank - 2, self.rows), (rank - 1, WIDE)):
                size = s.nest.buffer(x.name).shape[axis]
                if isinstance(size, int) and size % whole:
                    s.do(Pad(x.name, axis, whole))

    def _tiles_of(self, last: str, out: str) -> tuple[list[str], str, tuple[str, str, str]]:
        end = next(x for x in self.found.lasts if x.name == last)
        p = self.p
        self.p = Parts(p.scores, p.weights, p.sums, end, p.out)
        made = self._tiles(out)
        self.p = p
        return made


def _one_of(x: Value, buffers: set[str]) -> str | None:
    return next((str(b) for b in x.sources if b in buffers), None)
