"""Attention on a GPU as one kernel: a product, work on its rows, and a product of these, over
blocks of keys.

A block of threads has a tile of rows and walks over the blocks of keys. Queries stay in shared
memory; keys and values come there some blocks ahead. Scores are the sums of the first product, in
registers, and so are the weights that they become: these are the first operand of the second
product where they are. Running maxima and sums are in the registers of the four threads of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Fn, Value
from tilewright.ir.types import DType
from tilewright.ir.value_text import value_text
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.grid_chain_ways import (
    PLAIN,
    REGISTERS,
    ROWS,
    WIDE,
    Way,
    groups_of,
    tried,
)
from tilewright.kernel.defaults.grid_group_products import across as orders_of
from tilewright.kernel.defaults.grid_row_results import place_rows
from tilewright.kernel.defaults.scheduler import Scheduler, cost, store_reads
from tilewright.kernel.fragments import LANES, WARP
from tilewright.kernel.group import Stage
from tilewright.kernel.guards import copied
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.nest import Loop, Store, own_loops, seek
from tilewright.kernel.nest import walk as walk_nest
from tilewright.kernel.steps.add_into import AddInto
from tilewright.kernel.steps.backwards import Backwards
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.bring_once import BringOnce
from tilewright.kernel.steps.complete import Complete
from tilewright.kernel.steps.components import Components
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.delay import Delay
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.join_copies import JoinCopies
from tilewright.kernel.steps.materialise import Materialise
from tilewright.kernel.steps.mirror import Mirror
from tilewright.kernel.steps.pad import Pad
from tilewright.kernel.steps.pad_sum import PadSum
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.steps.pragma import Pragma
from tilewright.kernel.steps.rebase import Rebase
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.reverse import Reverse
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.roles import Roles
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.swizzle import Swizzle
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.steps.trim import Trim
from tilewright.kernel.steps.unmask import Unmask
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.kernel.steps.wait_once import WaitOnce
from tilewright.kernel.steps.walk import Walk

VECTOR = 8  # elements of 16 bytes
MOST_ALONG_Y = 65535  # blocks of a grid
AHEAD: int = 1  # blocks of keys


@dataclass(frozen=True)
class Parts:
    """What a group is made of, if it is a chain."""

    scores: Stage
    weights: Stage
    sums: Stage
    end: Stage
    out: Stage
    each: tuple[Stage, ...] = ()  # results with one value for each row


def chain_of(s: Scheduler) -> Parts | None:
    g = s.group
    found = [g.role(x) for x in ("scores", "weights", "sums", "end")]
    outs = [x for x in g.stages if g.buffer(x.name).scope == "out"]
    scores, weights, sums, end = found
    if scores is None or weights is None or sums is None or end is None:
        return None
    size = g.buffer(end.name).size
    whole = [x for x in outs if D.known_eq(g.buffer(x.name).size, size)]
    each = tuple(x for x in outs if x not in whole)
    if len(whole) != 1 or not all(x.is_map for x in outs):
        return None
    return Parts(scores, weights, sums, end, whole[0], each)


def schedule_chain(s: Scheduler) -> bool:
    parts = chain_of(s)
    if parts is None or s.target.grid is None or s.group.precision == "strict":
        return False
    grid = s.target.grid
    return by_ways(s, lambda way: _Chain(s, parts, groups_of(s.group, grid, way), way).schedule())


def by_ways(s: Scheduler, schedule: Callable[[Way], None]) -> bool:
    """By the first of the ways of its group that is not refused."""
    before, ways = (s.nest, list(s.trace)), tried(s.group, s.choices.tile or 0)
    for way in ways:
        try:
            schedule(way)
            return True
        except Refused:
            s.nest, s.trace[:] = before
            if way == ways[-1]:
                raise
    return False


class _Chain:
    def __init__(self, s: Scheduler, p: Parts, groups: int, way: Way = PLAIN) -> None:
        self.s, self.p, self.groups, self.way = s, p, groups, way
        self.rows = ROWS * groups
        self.summed = {p.sums.name}  # products of rows in registers

    def schedule(self) -> None:
        s, p, way = self.s, self.p, self.way
        between = self._inlined()
        found = instructions(s, self._factors(p.sums.name)[0].dtype, self.groups)
        if found is None:
            raise Refused("no instruction multiplies rows in registers")
        first, second = found
        q, k = self._operands(p.scores.name)
        v = self._operand(p.sums.name, p.weights.name)
        end, out = p.end.name, p.out.name
        self._pad(q, k, v, [p.scores.name, *between, p.sums.name, end])
        s.do(Reorder(tuple(x.name for x in (*p.end.axes[:-2], *p.end.raxes, *p.end.axes[-2:]))))
        outer, tiles, results = self._tiles(out)
        each = [place_rows(s, x.name, tiles, self.rows) for x in p.each]
        s.do(ComputeAt(end, tiles))
        (part,) = (x.name for x in p.end.raxes)
        for name in (p.sums.name, *reversed(between), p.scores.name):
            s.do(ComputeAt(name, part))
        s.do(ComputeAt(q, tiles))
        for x in (v, k):
            s.do(ComputeAt(x, part))
        for x in (q, k, v):
            s.do(SetScope(x, "shared"))
        trimmed = s.attempt(Trim(part))
        if way.slack > 1:  # the first block of keys is apart then: so that has the masks
            s.do(Backwards(part))
        before = {b.name for b in s.nest.buffers}
        s.do(Components(end, len(p.end.axes) - 1))
        self._rebase(before)
        # What is known of the keys so far, and what it takes to add a block to it.
        running = [b.name for b in s.nest.buffers if b.name not in before]
        grid = self._blocks(outer, tiles, trimmed)
        self._results(*results)
        for rows, once in each:
            turn, threads = self._row(rows)
            self._bind((turn,), (*threads, once))
        self._between(between)
        for name in running:
            self._map(name)
            self._in_registers(name)
        by_engine = self._copy(q)
        self._copy(k)
        self._copy(v, turned=True)
        self._product(p.scores.name, first)
        self._product(p.sums.name, second)
        if way.roles:
            s.do(Roles(part, way.roles))
            s.do(Pragma(grid, "registers", REGISTERS))
            if way.cluster > 1 and not trimmed:
                s.attempt(Pragma(grid, "cluster", way.cluster))
        else:
            for x in (k, v):
                slack = min(way.slack, 1) if x == v else 0
                s.do(Pipeline(part, x, AHEAD, asynchronous=True, slack=slack))
            s.do(JoinCopies(q))
        if way.slack > 1:
            s.do(Delay(part, p.sums.name))
        if way.roles and by_engine:
            s.do(BringOnce((q,)))
        s.do(Synchronise())
        s.attempt(Unmask(part))
        if trimmed and not way.walks:  # later tiles take longer, so they begin first
            s.do(Reverse(tiles))

    # ---- what is stored

    def _inlined(self) -> list[str]:
        """Maps become part of what reads them, but for weights, and powers that several stages
        read; the stages between both products that are left."""
        s, p = self.s, self.p
        own = {p.scores.name, p.sums.name, p.end.name, p.out.name, *(x.name for x in p.each)}
        left: list[str] = []
        for st in s.group.stages:
            if st.name in own:
                continue
            if st.is_map and st.name != p.weights.name:
                value = s.store(st.name).value
                often = cost(value) and self._readers(st.name) > 1
                if not often and not self._masks(st.name) and s.attempt(ComputeInline(st.name)):
                    continue
            left.append(st.name)
        return [x for name in left for x in (*self._mask_of(name), name)]

    def _masks(self, stage: str) -> bool:
        """Does a stage put scores and an argument together? It is read once."""
        read = store_reads(self.s.store(stage))
        inputs = any(self.s.nest.buffer(str(x.source)).scope == "in" for x in read)
        return inputs and any(x.source == self.p.scores.name for x in read)

    def _mask_of(self, stage: str) -> list[str]:
        """A copy of what a stage reads of an argument, where tiles of rows go past its end."""
        s = self.s
        rows = s.nest.buffer(self.p.end.name).shape[-2]
        if not self._masks(stage) or (isinstance(rows, int) and rows % self.rows == 0):
            return []
        row = s.axes(stage)[0][-2].var
        read = store_reads(s.store(stage))
        of_rows = [x for x in read if s.nest.buffer(str(x.source)).scope == "in"]
        made: list[str] = []
        for k, x in enumerate(x for x in dict.fromkeys(of_rows) if row in x.symbols()):
            made.append(f"{stage}_m{k}")
            s.do(Materialise(stage, value_text(x), made[-1]))
        return made

    def _readers(self, name: str) -> int:
        stores = [x for x, _ in walk_nest(self.s.nest.body) if isinstance(x, Store)]
        return sum(any(r.source == name for r in store_reads(x)) for x in stores)

    def _operands(self, stage: str) -> tuple[str, str]:
        """Copies of both operands of a product: the one with its rows, the one with its columns."""
        row = self.s.axes(stage)[0][-2].var
        found = sorted(self._factors(stage), key=lambda x: row not in x.symbols())
        return self._copy_of(stage, found[0], "a"), self._copy_of(stage, found[1], "b")

    def _operand(self, stage: str, other: str) -> str:
        """A copy of the operand that a product has besides another one."""
        (found,) = (x for x in self._factors(stage) if other not in x.sources)
        return self._copy_of(stage, found, "b")

    def _factors(self, stage: str) -> list[Value]:
        value = self.s.store(stage).value
        parts = value.args if isinstance(value, Fn) and value.name == "mul" else ()
        inner = [x.args[0] if isinstance(x, Fn) and x.name == "cast" else x for x in parts]
        found = [x for x in inner if copied(x) is not None]
        if len(found) != 2 or any(x.dtype.bits != 16 for x in found):
            raise Refused(f"{stage} is no product of two 16-bit floats")
        return found

    def _copy_of(self, stage: str, x: Value, which: str) -> str:
        into = f"{stage}_{which}"
        self.s.do(Materialise(stage, value_text(x), into))
        return into

    def _rebase(self, before: set[str]) -> None:
        """Weights are relative to the maximum so far: so the second product adds to the sums so
        far, once these are."""
        s, p = self.s, self.p
        powers = next(x.source for x in store_reads(s.store(p.weights.name)))
        made = [b.name for b in s.nest.buffers if b.name not in before]
        if any(s.attempt(Rebase(str(powers), x)) for x in made):
            s.attempt(AddInto(p.sums.name))

    # ---- whole tiles

    def _pad(self, q: str, k: str, v: str, stages: list[str]) -> None:
        """Rows and widths that no tile divides: zeros are copied and multiplied there."""
        s, p = self.s, self.p
        rows, width = s.nest.buffer(p.end.name).shape[-2:]
        deep = s.reduced(p.scores.name)[0]
        if not isinstance(rows, int) or not isinstance(width, int):
            raise Refused(f"{rows} rows of {width}: how many there are is not known")
        sizes = [(q, -2, rows, self.rows), (q, -1, deep.extent, WIDE), (k, -1, deep.extent, WIDE)]
        sizes += [(v, -2, width, WIDE)]
        for stage, axis, size, whole in sizes:
            if size % whole:
                rank = len(s.nest.buffer(stage).shape)
                s.do(Pad(stage, rank + axis, whole, zeros=True))
        if deep.extent % WIDE:
            s.do(PadSum(deep.name, WIDE))
        for stage in stages:
            rank = len(s.nest.buffer(stage).shape)
            if rows % self.rows and not s.attempt(Pad(stage, rank - 2, self.rows)):
                s.do(Pad(stage, rank - 2, self.rows, zeros=True))
            if width % WIDE and stage in (p.sums.name, p.end.name):
                s.do(Pad(stage, rank - 1, WIDE))

    def _tiles(self, out: str) -> tuple[list[str], str, tuple[str, str, str]]:
        """The loops over results: those around, that over tiles, and those of a tile: rows, pairs
        of columns, the two of a pair."""
        s = self.s
        outer, (i, j) = self._axes(out)
        width = s.loops(j)[0].extent
        assert isinstance(width, int)
        pairs = -(-width // WIDE) * WIDE // 2
        s.do(Split(i, self.rows))
        s.do(Split(j, 2))
        s.do(Split(f"{j}.0", pairs))
        rows, columns, lanes = f"{i}.1", f"{j}.0.1", f"{j}.1"
        s.do(Reorder((*outer, f"{i}.0", f"{j}.0.0", rows, columns, lanes)))
        for loop, size in ((columns, pairs), (rows, self.rows)):
            if s.loops(loop)[0].extent != size:
                s.do(Complete(loop, size))
        if s.loops(f"{rows}.there"):
            s.do(Reorder((rows, columns, f"{rows}.there")))
        s.do(Fuse(f"{i}.0", f"{j}.0.0", f"{out}.t"))
        return outer, f"{out}.t", (rows, columns, lanes)

    def _axes(self, out: str) -> tuple[list[str], tuple[str, str]]:
        """The loops over results, those over a tile's rows and columns last: these may be stored
        with their axes in another order."""
        s, end = self.s, self.p.end.name
        self._rows_as_one(out)
        read = {x.index for x in store_reads(s.store(out)) if x.source == end}
        names: dict[Dim, str] = {D.as_int(x.var): x.name for x in s.path(out)}
        own = [names.get(d) for d in read.pop()[-2:]] if len(read) == 1 else []
        i, j = own if len(own) == 2 else (None, None)
        if i is None or j is None or i == j:
            raise Refused(f"{out} is not made of one row of {end} at a time")
        return [x for x in names.values() if x not in (i, j)], (i, j)

    def _rows_as_one(self, out: str) -> None:
        """Rows of several heads next to each other, where results have an axis of their heads: one
        loop over both."""
        s, end = self.s, self.p.end.name
        path = s.path(out)
        for row in {x.index[-2] for x in store_reads(s.store(out)) if x.source == end}:
            own = [x for x in path if x.var in D.symbols(row)]
            inner = [x for x in own if D.coefficient(row, x.var) == 1]
            if len(own) != 2 or len(inner) != 1:
                continue
            (head,) = (x for x in own if x is not inner[0])
            times = D.coefficient(row, head.var)
            if times is not None and D.known_eq(times, inner[0].extent):
                others = [x.name for x in path if x not in own]
                both = (head.name, inner[0].name)
                s.do(Reorder((*others[:-1], *both, *others[-1:])))
                s.do(Fuse(*both, f"{out}.rows"))

    def _results(self, rows: str, pairs: str, lanes: str) -> None:
        s = self.s
        turn, (z, y) = self._row(rows)
        s.do(Split(pairs, 4))
        self._bind((f"{pairs}.0", turn), (z, y, f"{pairs}.1"))
        s.do(Vectorize(lanes))

    # ---- loops and registers

    def _blocks(self, outer: list[str], tiles: str, trimmed: bool = False) -> str:
        """The loop over blocks of threads that is outermost, or the tiles' own."""
        s, out = self.s, self.p.out.name
        if self.way.walks:
            return self._walk(outer, tiles, trimmed)
        for k in range(len(outer) - 1):
            s.do(Fuse(outer[0], outer[1], f"{out}.z{k}"))
            outer = [f"{out}.z{k}", *outer[2:]]
        # Tiles of one head run at the same time: they read the same keys.
        heads = D.bounds(s.loops(outer[0])[0].extent)[1] if outer else 1
        along, across = ("block.x", "block.y") if heads <= MOST_ALONG_Y else ("block.y", "block.x")
        for loop in outer:
            s.do(Bind(loop, across))
        s.do(Bind(tiles, along))
        return tiles

    def _walk(self, outer: list[str], tiles: str, trimmed: bool) -> str:
        """As many blocks of threads as there are multiprocessors walk over all tiles. Where these
        differ in how many keys they see, over pairs of them, of which all see as many."""
        s, out, grid = self.s, self.p.out.name, self.s.target.grid
        assert grid is not None
        of_head = s.loops(tiles)[0].extent
        for k, loop in enumerate(reversed(outer)):
            s.do(Fuse(loop, tiles, f"{out}.w{k}"))
            tiles = f"{out}.w{k}"
        s.do(Bind(tiles, "block.x"))
        if trimmed and isinstance(of_head, int):
            s.do(Mirror(tiles, of_head))
            tiles = f"{tiles}.0"
        count = s.loops(tiles)[0].extent
        rounds = -(-count // grid.multiprocessors) if isinstance(count, int) else 1
        if not isinstance(count, int) or rounds < 2:
            raise Refused(f"{count} tiles are no more than there are multiprocessors")
        s.do(Walk(tiles, -(-count // rounds)))
        return f"{tiles}.1"

    def _row(self, loop: str) -> tuple[str, tuple[str, str]]:
        """(turns, (warps, threads along y)) of the loop over rows."""
        s = self.s
        s.do(Split(loop, 16))
        s.do(Split(f"{loop}.1", 8))
        return f"{loop}.1.0", (f"{loop}.0", f"{loop}.1.1")

    def _column(self, loop: str) -> tuple[str, str, str]:
        """(turns, threads along x, lanes) of the loop over columns."""
        s = self.s
        s.do(Split(loop, 8))
        s.do(Split(f"{loop}.1", 2))
        return f"{loop}.0", f"{loop}.1.0", f"{loop}.1.1"

    def _bind(self, turns: tuple[str, ...], threads: tuple[str, ...], *more: str) -> None:
        """Loops in the order turns, threads, others; the threads along z, y and x."""
        s = self.s
        s.do(Reorder((*turns, *threads, *more)))
        for loop, axis in zip(threads, ("thread.z", "thread.y", "thread.x"), strict=False):
            s.do(Bind(loop, axis))
        for loop in turns:
            s.do(Unroll(loop))

    def _spread(self, i: str, j: str) -> None:
        """The loops over a tile to the threads that have its elements."""
        turn, (z, y) = self._row(i)
        blocks, x, lanes = self._column(j)
        self._bind((blocks, turn), (z, y, x), lanes)
        self.s.do(Vectorize(lanes))

    def _spread_row(self, i: str) -> None:
        turn, threads = self._row(i)
        self._bind((turn,), threads)

    def _stores(self, stage: str) -> list[tuple[Store, list[Loop]]]:
        """The stores of a stage with the loops that are its own."""
        found = seek(self.s.nest.body, ("stage", stage))
        return [(x, own_loops(p, stage)) for x, p in found if isinstance(x, Store)]

    def _between(self, stages: list[str]) -> None:
        """What is done to rows of a block, by the threads that have their elements."""
        for name in stages:
            if self.s.store(name).combine is not None:
                self._reduction(name)
            else:
                self._map(name)
            self._in_registers(name)

    def _map(self, stage: str) -> None:
        for _, own in self._stores(stage):
            names = [x.name for x in own]
            if len(names) == 1:
                self._spread_row(*names)
            elif len(names) == 2:
                self._spread(*names)
            else:
                raise Refused(f"{stage} is neither over rows nor over a tile of them")

    def _reduction(self, stage: str) -> None:
        """A partial result of every thread of a row, then one of all of them, which all have."""
        s = self.s
        (row,), (column,) = (tuple(x.name for x in loops) for loops in s.axes(stage))
        (first,) = (x.name for x in self._stores(stage)[0][1])
        blocks, own, lanes = self._column(column)
        part = f"{stage}p"
        s.do(RFactor(stage, (own,), part))
        self._spread_row(first)
        turn, threads = self._row(row)
        self._bind((turn,), (*threads, own))
        (_, init), (_, _) = self._stores(part)
        turn, threads = self._row(init[0].name)
        self._bind((turn,), (*threads, init[1].name))
        turn, threads = self._row(moved(row, part))
        self._bind((turn, moved(blocks, part)), (*threads, moved(own, part)), moved(lanes, part))
        s.do(Unroll(moved(lanes, part)))
        s.do(Relayout(part, "i, x -> i//16, i//8%2, i%8, x"))

    def _in_registers(self, buffer: str) -> None:
        """A tile, or a value for each of its rows, where its threads have it."""
        shape = self.s.nest.buffer(buffer).shape
        names = [f"n{k}" for k in range(len(shape))]
        wide = [k for k, d in enumerate(shape) if d != 1]
        i = names[wide[0]]
        places = list(names)
        if len(wide) == 1:
            places[wide[0]] = f"{i}//16, {i}//8%2, {i}%8"
        else:
            j, warps = names[wide[1]], 4 * self.groups
            places[wide[0]] = f"{i}//{self.rows}, {i}//16%{warps}, {j}//8, {i}//8%2, {i}%8"
            places[wide[1]] = f"{j}//2%4, {j}%2"
        self.s.do(Relayout(buffer, f"{', '.join(names)} -> {', '.join(places)}"))

    # ---- shared memory and products

    def _copy(self, stage: str, boxes: bool = True, turned: bool = False) -> bool:
        """A tile of an operand in shared memory: rows of 128 bytes, swizzled, of which wide heads
        have several next to each other. Is it brought by the copy engine, where that is possible?
        """
        s = self.s
        ((store, own),) = self._stores(stage)
        rank = len(s.nest.buffer(stage).shape)
        names = [f"n{k}" for k in range(rank)]
        rows, columns = (x.name for x in own)
        # Arguments with heads side by side have an axis of those between rows and columns.
        axes = [next(k for k, d in enumerate(store.index) if x.var in D.symbols(d)) for x in own]
        i, j = (names[k] for k in axes)
        if turned:
            rows, columns, i, j = columns, rows, j, i
            s.do(Reorder((rows, columns)))
        blocks = f"{i}//{WIDE}, {j}//{WIDE}, {i}%{WIDE}" if turned else f"{j}//{WIDE}, {i}"
        others = [x for x in names if x not in (i, j)]
        places = ", ".join([*others, blocks, f"{j}%{WIDE}"])
        s.do(Relayout(stage, f"{', '.join(names)} -> {places}"))
        s.do(Swizzle(stage, 3, 3, 3))
        source = copied(store.value)
        width = s.loops(columns)[0].extent
        assert isinstance(width, int)
        before = s.nest, list(s.trace)
        if boxes and source is not None:
            outer: list[str] = []
            box = [rows, columns]
            high = s.loops(rows)[0].extent
            for k, size in enumerate((high if turned else WIDE, width)):
                if size != WIDE:
                    s.do(Split(box[k], WIDE))
                    outer.append(f"{box[k]}.0")
                    box[k] = f"{box[k]}.1"
            if outer:
                s.do(Reorder((*outer, *box)))
            for loop in outer:
                s.do(Unroll(loop))
            if s.attempt(Tensorize(box[0], f"nvptx.bulk.{len(source.index)}.{source.dtype}")):
                return True
            s.nest, s.trace[:] = before
        flat = f"{stage}.v"
        s.do(Split(columns, VECTOR))
        s.do(Fuse(rows, f"{columns}.0", flat))
        s.do(Split(flat, LANES * 4 * self.groups))
        s.do(Split(f"{flat}.1", WARP["thread.x"]))
        s.do(Split(f"{flat}.1.0", WARP["thread.y"]))
        s.do(Bind(f"{flat}.1.0.0", "thread.z"))
        s.do(Bind(f"{flat}.1.0.1", "thread.y"))
        s.do(Bind(f"{flat}.1.1", "thread.x"))
        s.do(Unroll(f"{flat}.0"))
        s.do(Vectorize(f"{columns}.1"))
        return False

    def _product(self, stage: str, instruction: str) -> None:
        s = self.s
        *before, (update, own) = self._stores(stage)
        i, j, k = (x.name for x in own[-3:])
        for _, first in before:
            self._spread(*(x.name for x in first))
        inner = [i, j]
        if stage in self.summed and s.loops(j)[0].extent != WIDE:
            s.do(Split(j, WIDE))
            inner = [i, f"{j}.0", f"{j}.1"]
        several = s.loops(k)[0].extent != WIDE
        if several:
            s.do(Split(k, WIDE))
            s.do(Reorder((f"{k}.0", *inner, f"{k}.1")))
            s.do(Unroll(f"{k}.0"))
        if update.buffer == stage:  # else it adds to a running value, which is there already
            self._in_registers(stage)
        s.do(Tensorize(i, instruction))
        if several:
            s.do(WaitOnce(f"{k}.0"))


def instructions(s: Scheduler, kind: DType, groups: int) -> tuple[str, str] | None:
    """Products of groups of warps: of two operands in shared memory whose rows run along the sum,
    and of one in registers with one whose rows run across it."""
    of_target = [INTRINSICS[p.instruction] for p in s.target.products if p.a is kind]
    first = [i for i in of_target if set(i.tiles) == {"a", "b"} and orders_of(i) == (False, False)]
    second = [
        i
        for i in INTRINSICS.values()
        if set(i.fragments) == {"a", "c"} and set(i.tiles) == {"b"} and len(i.maps["b"]) == 3
        if i.group.buffer("a").dtype is kind and all(s.target.has(f) for f in i.features)
    ]
    found = [[i.name for i in which if i.warps == 4 * groups] for which in (first, second)]
    return (found[0][0], found[1][0]) if all(found) else None
