"""The programs of a tile kernel as blocks of threads: how its pieces are rewritten.

Every piece (kernel/pieces.py) is shared by the threads of a block as the layouts of its loops say.
A buffer of which every access has the same layouts along each axis is in registers: each thread has
its own part. All others are in shared memory. What a layout does not share, every thread does, and
has the result; but memory that threads share is changed by one of them only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.atom import Data
from tilewright.ir.combine import identity
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, Rewriter, Value, load
from tilewright.ir.types import DType
from tilewright.kernel.box_copies import box_loops, engine_of
from tilewright.kernel.divisors import Divisors, dim_part, whole_lanes
from tilewright.kernel.group import Buffer
from tilewright.kernel.group_products import group_product_loops, held_steps, is_group
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.layouts import (
    AXES,
    FRAGMENT,
    LANES,
    Digit,
    Layout,
    axes_of,
    axis_parts,
    resized,
    size,
    strides,
    whole,
)
from tilewright.kernel.nest import (
    BLOCKS,
    Alloc,
    Atomic,
    If,
    Loop,
    Nest,
    OnAccess,
    Report,
    Stmt,
    Store,
    While,
    bodies,
    reads,
    substitute,
    substitute_all,
    walk,
    with_bodies,
    writes,
)
from tilewright.kernel.pieces import Piece, choices_in, factors, piece_of, pieces_in, scattered
from tilewright.kernel.report_records import REPORT_WORDS as REPORT_WORDS
from tilewright.kernel.report_records import REPORTS as REPORTS
from tilewright.kernel.report_records import record_of
from tilewright.kernel.shared_again import used_again
from tilewright.kernel.swizzle import Swizzled
from tilewright.kernel.warp_products import Fragments, product_loops

GRID = ("grid0", "grid1", "grid2")
MOST_WRITTEN_OUT = 512  # statements of a piece

Laid = tuple[Loop, Layout]
Digits = Mapping[Sym, list[tuple[Dim, Digit]]]  # of loop variables


def programs_of(n: Nest) -> Loop | None:
    """The loop over the programs of a grid, if that is all of a nest."""
    found = [s for s in n.body if isinstance(s, Loop) and s.kind == "independent"]
    return found[0] if len(n.body) == len(found) == 1 else None


def on_blocks(n: Nest, programs: Loop) -> tuple[tuple[Loop, ...], tuple[Stmt, ...]]:
    """The loops over blocks, and what one of them does."""
    sizes = {s.name: D.as_int(s) for s in n.dims}
    if any(x not in sizes for x in GRID):
        return (Loop(programs.var, BLOCKS[0], ()),), programs.body
    g = [sizes[x] for x in GRID]
    at = [D.var(f"program{k}", x) for k, x in enumerate(g)]
    number = at[0] + g[0] * (at[1] + g[1] * at[2])
    body = substitute_all(programs.body, {programs.var: number})
    kinds = reversed(list(zip(at, BLOCKS, strict=True)))
    return tuple(Loop(D.the_sym(v), kind, ()) for v, kind in kinds), body


@dataclass
class Distribution:
    """One block: its threads along x, y and z, and the layout of every loop by its name."""

    nest: Nest
    body: tuple[Stmt, ...]
    threads: tuple[int, int, int]
    layouts: Mapping[str, Layout]
    products: Mapping[str, str] = field(default_factory=dict)  # stages and their instructions

    def __post_init__(self) -> None:
        self.buffers: dict[str, Buffer] = {b.name: b for b in self.nest.buffers}
        self.widths: dict[str, int] = dict(zip(AXES.values(), self.threads, strict=True))
        self.divisors = Divisors(self.body)
        self.fresh = 0

    def layout(self, x: Loop) -> Layout:
        assert isinstance(x.extent, int)
        return self.layouts.get(x.name, whole(x.extent))

    # ---- where buffers lie

    @cached_property
    def registers(self) -> dict[str, tuple[Layout, ...]]:
        """The buffers whose parts threads have to themselves, with the layouts of their axes."""
        seen: dict[str, list[set[Layout | None]]] = {
            b.name: [set() for _ in b.shape] for b in self.nest.buffers if b.scope == "local"
        }

        def note(name: str, at: tuple[Dim, ...], by: Mapping[Sym, Layout]) -> None:
            for k, (i, d) in enumerate(zip(at, self.buffers[name].shape, strict=True)):
                seen[name][k].add(self._place(i, d, by))

        for p in pieces_in(self.body, self.nest.are("product")):
            # Where a thread adds up a product by itself, registers have no place for its steps.
            steps = p.over() if factors(p) is not None and p.stage not in self.products else ()
            by = {x.var: self.layout(x) for x in p.loops if x not in steps}
            cells = [*p.writes(), *((str(r.source), r.index) for r in p.reads())]
            for name, at in cells:
                if name in seen:
                    note(name, at, by)
            for name in (*self._common(p), *self._operands(p)):
                seen[name] = [{None}, *seen[name][1:]] if seen[name] else [{None}]
        for s in choices_in(self.body):
            own = reads(replace(s, body=())) if isinstance(s, Loop) else _condition(s)
            for r in own:
                if str(r.source) in seen:
                    note(str(r.source), r.index, {})
        out: dict[str, tuple[Layout, ...]] = {}
        for name, axes in seen.items():
            found = [x.copy().pop() if len(x) == 1 else () if not x else None for x in axes]
            if all(x is not None for x in found):
                out[name] = tuple(x for x in found if x is not None)
        return out

    def _place(self, i: Dim, d: Dim, by: Mapping[Sym, Layout]) -> Layout | None:
        """The layout of an axis that is accessed so: all of it, or a part from some place on."""
        if d == 1:
            return ()
        found = _part(i)
        own = by.get(found[0]) if found is not None else None
        if found is None or own is None or not isinstance(d, int):
            return own
        inside = found[1] + size(own) <= d  # scans read neighbours beyond the end, under conditions
        whole = own if size(own) == d else resized(own, d)
        return whole if inside and whole is not None and found[1] % size(own[1:]) == 0 else None

    def _common(self, p: Piece) -> Iterator[str]:
        """Local buffers that one thread writes for all: by an atomic operation, or where data say
        which cell is updated."""
        s = p.statement
        alone = self._missing(map(self.layout, p.loops))
        if isinstance(s, Atomic) and s.result is not None and alone:
            yield s.result[0]
        if isinstance(s, Store) and scattered(s) and self.buffers[s.buffer].scope == "local":
            yield s.buffer

    def _operands(self, p: Piece) -> Iterator[str]:
        """What instructions of a product read in shared memory."""
        found = factors(p) if p.stage in self.products else None
        if found is not None:
            a, b = found
            yield str(b.source)
            held = held_steps(self.products[p.stage])
            if not held(self.layout(p.loops[-1])):
                yield str(a.source)

    def _swizzles(self) -> dict[str, Swizzled]:
        """How the operands that instructions read as tiles of shared memory lie in it."""
        out: dict[str, Swizzled] = {}
        for p in pieces_in(self.body, self.nest.are("product")):
            found = factors(p) if p.stage in self.products else None
            tiles = INTRINSICS[self.products[p.stage]].tiles if found is not None else {}
            for operand, x in zip("ab", found or ()):
                if operand in tiles and str(x.source) not in self.registers:
                    out[str(x.source)] = tiles[operand]
        return out

    def _missing(self, layouts: Iterable[Layout]) -> list[str]:
        """Axes of threads along which all threads would do the same."""
        used = set().union(*map(axes_of, layouts))
        return [a for a, n in self.widths.items() if n > 1 and a not in used]

    # ---- the block

    def done(self) -> tuple[list[Buffer], tuple[Stmt, ...]]:
        made = self._statements(self.body)
        swizzles = self._swizzles()
        out = []
        for b in self.buffers.values():
            if b.scope == "local" and b.name not in self.registers and b.name in self._known:
                b = replace(b, scope="shared", swizzle=swizzles.get(b.name))
            elif b.name in self.registers:
                axes = self.registers[b.name]
                sizes = (prod(axes[k][j].extent for k, j in own) for own in self._order(b.name))
                b = replace(b, shape=tuple(sizes))
            elif b.name in self._read_by_engine():
                b = replace(b, scope="in")
            out.append(b)
        shared = {b.name: b for b in out if b.scope == "shared"}
        made = used_again(made, shared)
        left = {s.buffer for s, _ in walk(made) if isinstance(s, Alloc)}
        return [b for b in out if b.name not in shared or b.name in left], made

    def _read_by_engine(self) -> set[str]:
        """Memory that the copy engine reads, and nothing writes."""
        found = (p for p in pieces_in(self.body) if p.stage in self.products)
        brought = (p for p in found if engine_of(self.products[p.stage]) is not None)
        return {str(x.source) for p in brought for x in p.reads()} - writes(self.body)

    @cached_property
    def _known(self) -> set[str]:
        return {b.name for b in self.nest.buffers}

    def _statements(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            p = piece_of(s, self.nest.are("product"))
            if p is not None:
                out += self._piece(p)
            else:
                if isinstance(s, While):  # for another block: that runs, or did before
                    s = replace(s, waits=False)
                inside = [self._statements(x) for x in bodies(s)]
                out.append(self._registers_read(with_bodies(s, inside)) if inside else s)
        return tuple(out)

    def _registers_read(self, s: Stmt) -> Stmt:
        """A choice, with what it reads of registers: single elements. Its body is done already."""
        hollow = with_bodies(s, [() for _ in bodies(s)])
        return with_bodies(substitute(hollow, {}, self._on_load({}), None), bodies(s))

    def _piece(self, p: Piece) -> list[Stmt]:
        s = p.statement
        loops = self._laid(p.loops)
        if isinstance(s, Report):
            self.fresh += 1
            told = _with_leaf(p.leaf, record_of(s, self.buffers, self.fresh))
            return [self._spread(loops, told, once=True)]
        if isinstance(s, Store) and scattered(s):
            one = Atomic(s.stage, str(s.combine), s.buffer, s.index, s.value, order="relaxed")
            return [self._spread(loops, _with_leaf(p.leaf, one), once=True)]
        over = p.over()
        if p.stage in self.products:
            brought = engine_of(self.products[p.stage]) is not None
            return [box_loops(p, self.products[p.stage])] if brought else [*self._product(p)]
        if any(axes_of(self.layout(x)) for x in over):
            return self._combined(p, over)
        private = isinstance(s, Store) and s.buffer in self.registers
        serial = over if factors(p) is not None else ()
        return [self._spread(loops, p.leaf, once=not private, serial=serial)]

    def _product(self, p: Piece) -> tuple[Stmt, ...]:
        i, j, r = (self.layout(x) for x in p.loops[-3:])
        sums = p.writes()[0][0]
        if sums not in self.registers:
            raise Invalid(f"the sums {sums} of {p.stage} are used with other layouts elsewhere")

        laid = Fragments(i, j, r, self.registers, self._cell)
        name = self.products[p.stage]
        if is_group(name):
            return group_product_loops(p, name, laid)
        return product_loops(p, name, laid, self.buffers)

    def _laid(self, loops: Iterable[Loop]) -> list[Laid]:
        return [(x, self.layout(x)) for x in loops]

    # ---- spreading loops

    def _spread(
        self,
        loops: Sequence[Laid],
        leaf: Stmt,
        once: bool = False,
        serial: tuple[Loop, ...] = (),
        lanes: bool = True,
        into: Callable[[Digits], tuple[str, tuple[Dim, ...]]] | None = None,
    ) -> Stmt:
        """Loops in the order registers, threads, lanes around a statement. It is done by one thread
        of those that would do the same if it is done `once`. `serial` loops stay outside; `into`
        says which cell of registers is written instead."""
        shared = [(x, l) for x, l in loops if x not in serial]
        digits = {x.var: _variables(x, l) for x, l in shared}
        own = self._threads(shared, digits)
        along = self._lanes(shared, leaf) if lanes else None
        for x, l in shared:
            if x is along:
                leaf = self._neighbours(leaf, x, l, digits)
        leaf = self._divisible(leaf)
        leaf = substitute(leaf, {}, self._on_load(digits), self._on_store(digits))
        leaf = substitute(leaf, {v: _sum(found) for v, found in digits.items()})
        if into is not None:
            assert isinstance(leaf, Store)
            buffer, at = into(digits)
            leaf = replace(leaf, buffer=buffer, index=at)
        turns: list[Loop] = []
        lane: Loop | None = None
        for x, _ in shared:
            for v, d in digits[x.var]:
                if d.axis is not None:
                    continue
                if d.at == LANES and x is along:
                    lane = Loop(D.the_sym(v), "lane", ())
                else:
                    turns.append(Loop(D.the_sym(v), "unroll", ()))
        if lane is not None:
            leaf = whole_lanes(leaf, lane.var, self.divisors)
        if prod(D.bounds(x.extent)[1] for x in turns) > MOST_WRITTEN_OUT:
            turns = [replace(x, kind="serial") for x in turns]
        if once:
            for a in self._missing([l for _, l in shared]):
                own[a] = Loop(self._one(a), a, ())
        threads = [own[a] for a in reversed(AXES.values()) if a in own]
        chain = [*serial, *turns, *threads, *([lane] if lane is not None else [])]
        for x in reversed(chain):
            leaf = x.around((leaf,))
        return leaf

    def _threads(
        self, loops: Sequence[Laid], digits: dict[Sym, list[tuple[Dim, Digit]]]
    ) -> dict[str, Loop]:
        """The loops over threads by their axes. Of an axis that several loops have parts of there
        is one, and their digits are those of its number."""
        own: dict[str, Loop] = {}
        loops = _by_lanes(loops)
        for axis, parts in axis_parts(l for _, l in loops).items():
            places = [
                (x.var, k)
                for x, _ in loops
                for k, y in enumerate(digits[x.var])
                if y[1].axis == axis
            ]
            var, at = places[-1]
            number = digits[var][at][0]
            if len(parts) > 1:
                number = D.var(f"{var.name}.{at}.{axis[-1]}", prod(parts))
                step = 1
                for (v, k), n in zip(reversed(places), reversed(parts), strict=True):
                    digits[v][k] = (number // step % n, digits[v][k][1])
                    step *= n
            own[axis] = Loop(D.the_sym(number), axis, ())
        return own

    def other_parts(self, p: Piece, axis: str) -> str | None:
        """A buffer in registers that a piece, whose loops have parts of an axis of threads, uses
        with only some of them, or in another order: its place there is not the thread's number."""
        order = [x.var for x, l in _by_lanes(self._laid(p.loops)) if axis in axes_of(l)]
        for name, at in (*p.writes(), *((str(r.source), r.index) for r in p.reads())):
            axes = self.registers.get(name, ())
            own = [D.the_sym(i) for i, l in zip(at, axes) if axis in axes_of(l)]
            if own not in ([], order):
                return name
        return None

    def _neighbours(self, leaf: Stmt, x: Loop, layout: Layout, digits: dict[Sym, Any]) -> Stmt:
        """Places that are read from memory, of lanes that are neighbours: the first one's and the
        lane."""
        own = digits[x.var]
        (lane, last), width = own[-1], layout[-1].extent
        first = D.sym(f"{x.name}.first", 0, size(layout) - width, width)
        digits[D.the_sym(first)] = [*own[:-1], (0, last)]
        probe = D.the_sym(D.var("lane?", width))
        table: dict[Sym, Dim] = {x.var: D.var("vector?", D.INF) * width + D.as_int(probe)}

        def moved(at: Dim) -> Dim:
            if isinstance(at, int) or x.var not in D.symbols(at) or not D.data_values(at):
                return at
            out: Dim = 0
            for mono, c in at.terms:
                term = D.from_atom(mono[0]) if len(mono) == 1 else None
                part = None
                if term is not None and isinstance(mono[0], Data):
                    part = dim_part(Rewriter(table).dim(term), probe, self.divisors)
                if term is None or part is None or x.var not in D.symbols(term):
                    out = out + c * _product(mono)
                else:
                    out = out + c * (Rewriter({x.var: first}).dim(term) + part[0] * lane)
            return out

        return self._at_pointers(leaf, moved)

    def _one(self, axis: str) -> Sym:
        self.fresh += 1
        return D.the_sym(D.var(f"one{self.fresh}.{axis[-1]}", 1))

    def _lanes(self, loops: Sequence[Laid], leaf: Stmt) -> Loop | None:
        """The loop whose last digit are lanes: of several, the one that moves by one in memory."""
        found = [x for x, l in loops if any(d.at == LANES for d in l)]
        cells = _pointers(self.buffers, leaf) if len(found) > 1 else []
        for x in reversed(found):
            if any(D.coefficient(i[0], x.var) == 1 for i in cells):
                return x
        return found[-1] if found else None

    def _on_load(self, digits: Digits) -> Callable[[Load], Value]:
        def on_load(x: Load) -> Value:
            name = str(x.source)
            if name not in self.registers:
                return x
            return load(name, self._at(name, x.index, digits), x.dtype)

        return on_load

    def _on_store(self, digits: Digits) -> OnAccess:
        def on_store(name: str, at: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
            return name, self._at(name, at, digits) if name in self.registers else at

        return on_store

    def _at(self, name: str, at: tuple[Dim, ...], digits: Digits) -> tuple[Dim, ...]:
        """The place of an element in registers."""
        axes = self.registers[name]
        own: list[list[Dim]] = []
        for i, x in zip(at, axes, strict=True):
            var, begin = _part(i) or (None, 0)
            own.append([v for v, _ in digits[var]] if x and var is not None else [])
            if own[-1] and begin:
                own[-1][0] = own[-1][0] + begin // size(x[1:])
        return self._cell(name, own)

    def _cell(self, name: str, digits: list[list[Dim]]) -> tuple[Dim, ...]:
        """The place of an element in registers, given the digits along each of its axes."""
        axes, out = self.registers[name], list[Dim]()
        for own in self._order(name):
            number: Dim = 0
            for k, j in own:
                number = number * axes[k][j].extent + digits[k][j]
            out.append(number)
        return tuple(out)

    def _order(self, name: str) -> list[list[tuple[int, int]]]:
        """The new axes of a buffer in registers: (axis, digit). Parts of an axis of threads are one
        axis, which is the number of the thread."""
        axes = self.registers[name]
        found = [(k, j) for k, x in enumerate(axes) for j in range(len(x))]

        def place(at: tuple[int, int]) -> tuple[int, int, int]:
            d = axes[at[0]][at[1]]
            # Of an instruction's registers the steps of a sum count more than its rows.
            return d.rank, -at[0] if d.at == FRAGMENT else at[0], at[1]

        out: list[list[tuple[int, int]]] = []
        for k, j in sorted(found, key=place):
            axis = axes[k][j].axis
            if axis is not None and out and axes[out[-1][-1][0]][out[-1][-1][1]].axis == axis:
                out[-1].append((k, j))
            else:
                out.append([(k, j)])
        return out

    def _divisible(self, leaf: Stmt) -> Stmt:
        """Where an argument's memory is accessed at a place that is read from memory, what that is
        known to be a multiple of is written as a factor."""
        return self._at_pointers(leaf, self.divisors.factored)

    def _at_pointers(self, leaf: Stmt, f: Callable[[Dim], Dim]) -> Stmt:
        """Other places in the memory of arguments."""
        pointers = {b.name for b in self.buffers.values() if b.pointer and b.scope != "memory"}

        def on_load(x: Load) -> Value:
            if str(x.source) not in pointers:
                return x
            return load(x.source, tuple(map(f, x.index)), x.dtype)

        def on_store(name: str, at: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
            return name, tuple(map(f, at)) if name in pointers else at

        return substitute(leaf, {}, on_load, on_store)

    # ---- sums over threads

    def _combined(self, p: Piece, over: tuple[Loop, ...]) -> list[Stmt]:
        """A partial result of every thread, then one of all of them, which all have."""
        s = p.statement
        assert isinstance(s, Store) and s is p.leaf and s.combine is not None
        kind = s.value.dtype
        zero = identity(s.combine, kind)
        data = [x for x in self._laid(p.loops) if x[0] not in over]
        among = [_threads_of(self.layout(x)) for x in over]
        part = self._in_registers(f"{s.stage}_own", kind, [*(l for _, l in data), *among])

        def cell(digits: Digits) -> tuple[str, tuple[Dim, ...]]:
            """The partial result of a thread: its places in the loops that are summed over."""
            own = [[v for v, _ in digits[x.var]] for x, _ in data]
            own += [[v for v, d in digits[x.var] if d.axis is not None] for x in over]
            return part, self._cell(part, own)

        first, every = self._copies(data, among, f"{part}.init")
        out: list[Stmt] = [Alloc(part)]
        out.append(self._spread([*first, *every], Store(part, part, _at(first, every), zero)))
        out.append(self._spread(self._laid(p.loops), s, into=cell))
        into, where = s.buffer, dict[Sym, Dim]()
        if s.buffer not in self.registers:  # the result first, as every thread has it
            into = self._in_registers(f"{s.stage}_all", kind, [l for _, l in data])
            first, _ = self._copies(data, [], f"{into}.init")
            out += [Alloc(into), self._spread(first, Store(into, into, _at(first), zero))]
        last, every = self._copies(data, among, f"{s.stage}.all")
        where = {x.var: D.as_int(y.var) for (x, _), (y, _) in zip(data, last, strict=True)}
        target = _at(last)
        if into == s.buffer:
            target = tuple(D.substitute(i, where) for i in s.index)
        value = load(part, _at(last, every), kind)
        final = Store(s.stage, into, target, value, s.combine)
        out.append(self._spread([*last, *every], final, lanes=False))
        if into != s.buffer:
            last, _ = self._copies(data, [], f"{s.stage}.out")
            where = {x.var: D.as_int(y.var) for (x, _), (y, _) in zip(data, last, strict=True)}
            target = tuple(D.substitute(i, where) for i in s.index)
            moved = Store(s.stage, s.buffer, target, load(into, _at(last), kind), s.combine)
            out.append(self._spread(last, moved, once=True))
        return out

    def _in_registers(self, name: str, kind: DType, axes: Sequence[Layout]) -> str:
        """A buffer more."""
        self.buffers[name] = Buffer(name, kind, tuple(map(size, axes)), "local")
        self.registers[name] = tuple(axes)
        return name

    def _copies(
        self, data: Sequence[Laid], among: Sequence[Layout], name: str
    ) -> tuple[list[Laid], list[Laid]]:
        """Loops with the layouts of others, and loops with given layouts."""
        layouts = [*(l for _, l in data), *among]
        made: list[Laid] = []
        for k, l in enumerate(layouts):
            v = D.the_sym(D.var(f"{name}.i{k}", size(l)))
            made.append((Loop(v, "serial", ()), l))
        return made[: len(data)], made[len(data) :]


def _part(i: Dim) -> tuple[Sym, int] | None:
    """A variable and where it begins, if an index is that."""
    begin = D.substitute(i, dict.fromkeys(D.symbols(i), 0))
    rest = i - begin
    if not isinstance(begin, int) or begin < 0 or not D.is_sym(rest):
        return None
    return D.the_sym(rest), begin


def _by_lanes(loops: Sequence[Laid]) -> list[Laid]:
    """Loops with lanes last: neighbouring threads have neighbouring vectors."""
    return sorted(loops, key=lambda x: any(d.at == LANES for d in x[1]))


def _condition(s: Stmt) -> list[Load]:
    return reads(with_bodies(s, [() for _ in bodies(s)])) if bodies(s) else []


def _with_leaf(leaf: Stmt, new: Stmt) -> Stmt:
    """Another statement under the same conditions."""
    if isinstance(leaf, If) and isinstance(leaf.then[0], (If, Store, Atomic, Report)):
        return If(leaf.condition, (_with_leaf(leaf.then[0], new),))
    return new


def _sum(found: list[tuple[Dim, Digit]]) -> Dim:
    out: Dim = 0
    for (v, _), step in zip(found, strides(tuple(d for _, d in found)), strict=True):
        out = out + v * step
    return out


def _product(mono: tuple[D.Atom, ...]) -> Dim:
    out: Dim = 1
    for a in mono:
        out = out * D.from_atom(a)
    return out


def _variables(x: Loop, layout: Layout) -> list[tuple[Dim, Digit]]:
    return [(D.var(f"{x.name}.{k}", d.extent), d) for k, d in enumerate(layout)]


def _at(*loops: Sequence[Laid]) -> tuple[Dim, ...]:
    return tuple(D.as_int(x.var) for part in loops for x, _ in part)


def _threads_of(x: Layout) -> Layout:
    return tuple(d for d in x if d.axis is not None)


def _pointers(buffers: Mapping[str, Buffer], leaf: Stmt) -> list[tuple[Dim, ...]]:
    p = Piece((), leaf)
    cells = [*p.writes(), *((str(r.source), r.index) for r in p.reads())]
    return [at for name, at in cells if name in buffers and buffers[name].pointer]
