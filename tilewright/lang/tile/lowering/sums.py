"""Lowering of sums, scans and products: stages of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, Value, cast, const, fn, index, select, walk
from tilewright.ir.scalar import neutral
from tilewright.ir.types import DType, bf16, f16, f32, i32, i64
from tilewright.kernel.axis import axis_name, first_name
from tilewright.kernel.nest import If, Loop, Stmt, Store, wrap
from tilewright.lang.tile import ir
from tilewright.lang.tile.lowering.carried import Uses
from tilewright.lang.tile.lowering.state import Lowering
from tilewright.lang.tile.lowering.tiles import (
    AnyTile,
    At,
    Tile,
    buffered,
    converted,
    mapped,
    number,
    recast,
    viewed,
)


def lower_reduce(low: Lowering, o: ir.Operation) -> None:
    axis = o.attrs["axis"]
    name = _plain(o.blocks[0])
    if name is not None and len(o.args) == 1:
        t = low.tile(o.args[0])
        shape = o.result.shape
        buffer = stage = low.local(shape, t.dtype)
        axes = [D.var(axis_name(stage, k), n) for k, n in enumerate(shape)]
        over = D.var(axis_name(stage, 0, "r"), t.shape[axis])
        at = tuple(axes)
        zero = const(neutral(name, t.dtype), t.dtype)
        first = [D.var(first_name(stage, k), n) for k, n in enumerate(shape)]
        init = Store(stage, buffer, tuple(first), zero)
        low.out.append(wrap(tuple(map(D.the_sym, first)), init))
        value = t.at((*at[:axis], over, *at[axis:]))
        update = Store(stage, buffer, at, value, name)
        low.out.append(wrap(tuple(map(D.the_sym, (*axes, over))), update))
        low.define(o.result, buffered(buffer, shape, t.dtype))
        return
    halved(low, o, axis)


def halved(low: Lowering, o: ir.Operation, axis: int) -> None:
    """A reduction by a function of the user's: halves combined until one element is left."""
    parts = [copied(low, low.tile(a)) for a in o.args]
    n = o.args[0].shape[axis]
    while n > 1:
        half = n // 2
        rest = n - half
        under = [viewed(t, _resized(t.shape, axis, half), lambda i: i) for t in parts]
        over = [
            viewed(
                t,
                _resized(t.shape, axis, half),
                lambda i, rest=rest: (*i[:axis], i[axis] + rest, *i[axis + 1 :]),
            )
            for t in parts
        ]
        made = combined(low, o.blocks[0], [*under, *over])
        stored = [low.stored(t) if len(made) > 1 else t for t in made]
        for t, k in zip(parts, stored, strict=True):
            low.fill(t.buffer, k)
        n = rest
    for r, t in zip(o.results, parts, strict=True):
        first = viewed(t, r.shape, lambda i: (*i[:axis], 0, *i[axis:]))
        low.define(r, first)


COPIED_FOR = 4  # rows of a product that make a copy of its second operand worth while


def copied(low: Lowering, t: Tile) -> Tile:
    """A new buffer with the elements of a tile."""
    name = low.local(t.shape, t.dtype)
    low.fill(name, t)
    return buffered(name, t.shape, t.dtype)


def combined(low: Lowering, block: ir.Block, args: Sequence[AnyTile]) -> list[Tile]:
    """The results of a combining block for tiles in place of its scalars."""
    shape = args[0].shape
    saved, used = dict(low.tiles), low.uses
    low.uses = Uses.lazy()
    for p, a in zip(block.parameters, args, strict=True):
        low.tiles[p] = a
    widened = _Widened(shape)
    for o in block.operations:
        widened.operation(low, o)
    found = [low.tile(y) for y in block.yields]
    low.tiles, low.uses = saved, used
    return [t if t.shape == shape else viewed(t, shape, lambda i: ()) for t in found]  # type: ignore[misc]


def lower_scan(low: Lowering, o: ir.Operation) -> None:
    """One after the other along the axis. What was combined so far is in cells of its own, so that
    the next element waits for a register and not for memory."""
    if low.threads:
        doubled(low, o)
        return
    axis, shape = o.attrs["axis"], o.args[0].shape
    parts = [low.tile(a) for a in o.args]
    made = [low.local(t.shape, t.dtype) for t in parts]
    if axis == len(shape) - 1:
        # Neighbours depend on each other: one row after the other, one element at a time.
        outer, rest = tuple(D.var(low.fresh("row"), n) for n in shape[:-1]), ()
    else:
        outer, rest = (), shape[:axis] + shape[axis + 1 :]

    def place(i: At, k: Dim) -> At:
        last = shape[axis] - 1
        return (*outer, *i[:axis], last - k if o.attrs.get("reverse") else k, *i[axis:])

    def rows() -> None:
        cells = [low.local(rest, t.dtype) for t in parts]
        so_far = [buffered(c, rest, t.dtype) for c, t in zip(cells, parts, strict=True)]

        def reach(k: Dim, values: Sequence[AnyTile]) -> None:
            for c, t in zip(cells, values, strict=True):
                assert isinstance(t, Tile)
                low.fill(c, t)
            for m, t in zip(made, so_far, strict=True):
                low.loops(rest, lambda s, i, m=m, t=t: Store(s, m, place(i, k), t.at(i)))

        reach(0, [viewed(t, rest, lambda i: place(i, 0)) for t in parts])
        step = D.var(low.fresh("scan"), shape[axis] - 1)

        def body() -> None:
            here = [viewed(t, rest, lambda i: place(i, step + 1)) for t in parts]
            both = combined(low, o.blocks[0], [*so_far, *here])
            reach(step + 1, [low.stored(t) for t in both] if len(both) > 1 else both)

        if shape[axis] > 1:
            scan = Loop(D.the_sym(step), "serial", low.inner(body))
            low.out.append(scan)
            low.has_role("scan", scan.name)

    if outer:
        low.out += nested(outer, low.inner(rows))
    else:
        rows()
    for r, m, t in zip(o.results, made, parts, strict=True):
        low.define(r, buffered(m, t.shape, t.dtype))


def doubled(low: Lowering, o: ir.Operation) -> None:
    """A scan of whole tiles: every element takes in the one 1, 2, 4 … before it, which by then has
    taken in all up to there."""
    axis, n = o.attrs["axis"], o.args[0].shape[o.attrs["axis"]]
    parts = [low.stored(low.tile(a)) for a in o.args]
    back = -1 if o.attrs.get("reverse") else 1
    far = 1
    while far < n:
        moved = [viewed(t, t.shape, lambda i, far=far: _moved(i, axis, -back * far)) for t in parts]
        both = combined(low, o.blocks[0], [*moved, *parts])
        parts = [
            low.stored(_beyond(t, b, axis, far, back)) for t, b in zip(parts, both, strict=True)
        ]
        far *= 2
    for r, t in zip(o.results, parts, strict=True):
        low.define(r, t)


def _moved(i: At, axis: int, by: int) -> At:
    return (*i[:axis], i[axis] + by, *i[axis + 1 :])


def _beyond(t: Tile, both: Tile, axis: int, far: int, back: int) -> Tile:
    """The combined elements where there is one so far before; the others as they are."""
    n = t.shape[axis]

    def at(i: At) -> Value:
        here = index(i[axis])
        there = fn("ge", here, far) if back > 0 else fn("lt", here, n - far)
        return select(there, both.at(i), t.at(i))

    return Tile(t.shape, t.dtype, at)


def nested(axes: tuple[Dim, ...], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Loops, the first one outermost, around statements."""
    for a in reversed(axes):
        body = (Loop(D.the_sym(a), "serial", body),)
    return body


def lower_histogram(low: Lowering, o: ir.Operation) -> None:
    x = low.tile(o.args[0])
    bins = o.result.shape[0]
    counts = low.local((bins,), i32)
    low.fill(counts, number(0, i32, (bins,)))

    def one(s: str, i: At) -> Stmt:
        v = cast(x.at(i), i64)
        ok = fn("and", fn("ge", v, 0), fn("lt", v, bins))
        if len(o.args) > 1:
            ok = fn("and", ok, low.tile(o.args[1]).at(i))
        return If(ok, (Store(s, counts, (v.as_dim(),), const(1, i32), "add"),), ())

    low.loops(x.shape, one)
    low.define(o.result, buffered(counts, (bins,), i32))


def lower_dot(low: Lowering, o: ir.Operation) -> None:
    a, b, c = (low.tile(v) for v in o.args)
    e = f32 if c.dtype in (f16, bf16) else c.dtype
    shape = c.shape
    pairs = rounded_factors(low, o, a, b) or [factors(low, o, (a, b), e)]
    sums = sums_of(low, o.args[2], c, e)
    for first, second in pairs:
        stage = low.fresh("d")
        low.has_role("product", stage)
        axes = [D.var(axis_name(stage, k), n) for k, n in enumerate(shape)]
        over = D.var(axis_name(stage, 0, "r"), first.shape[-1])
        left, right = first.at((*axes[:-1], over)), second.at((*axes[:-2], over, axes[-1]))
        update = Store(stage, sums, tuple(axes), fn("mul", cast(left, e), cast(right, e)), "add")
        low.out.append(wrap(tuple(map(D.the_sym, (*axes, over))), update))
    low.define(o.result, converted(buffered(sums, shape, e), c.dtype, low.positions))


# By input_precision: what factors of float32 are rounded to, and how many such parts they are.
_PARTS = {"tf32": (f32, 1), "tf32x3": (f32, 2), "bf16x3": (bf16, 2), "bf16x6": (bf16, 3)}


def rounded_factors(low: Lowering, o: ir.Operation, a: Tile, b: Tile) -> list[tuple[Tile, Tile]]:
    """The factors of products that add up to one of float32 as precise as the kernel says, the
    least first. None where it is to be exact, or where no instruction has so few rows."""
    to, count = _PARTS.get(o.attrs.get("precision", "ieee"), (f32, 0))
    fits = len(a.shape) == 2 and not any(n % 16 for n in (*a.shape, *b.shape))
    if not (low.rounds and count and a.dtype is f32 and fits):
        return []
    a = low.stored(a)
    parts = [_parts(low, t, to, count) for t in (a, own_copy(low, o, a, b))]
    order = [(k, n - k) for n in reversed(range(count)) for k in range(n + 1)]
    return [(parts[0][x], parts[1][y]) for x, y in order]


def _parts(low: Lowering, t: Tile, to: DType, count: int) -> list[Tile]:
    """Numbers as sums of numbers of fewer bits, the largest first. An infinite one is its first
    part; an instruction rounds to tf32 by itself."""
    out: list[Tile] = []
    for k in range(count):
        part = low.stored(t if to is f32 else converted(t, to, low.positions))
        out.append(replace(part, at=partial(_as_tf32, part)) if to is f32 else part)
        if k + 1 < count:
            t = low.stored(replace(t, at=partial(_rest, t, out[-1]), buffer=""))
    return out


def _as_tf32(t: Tile, i: At) -> Value:
    return fn("tf32", t.at(i))


def _rest(t: Tile, part: Tile, i: At) -> Value:
    x = t.at(i)
    infinite = fn("eq", fn("abs", x), const(float("inf"), f32))
    return select(infinite, const(0.0, f32), fn("sub", x, cast(part.at(i), f32)))


def factors(low: Lowering, o: ir.Operation, both: tuple[Tile, Tile], e: DType) -> tuple[Tile, Tile]:
    """What a product reads. Narrow numbers are in memory of the kernel's own: its schedule lays
    them out as the target's instructions need them (kernel/defaults/tile_operands.py)."""
    a, b = (operand(low, t) if t.dtype is e else t for t in both)
    a = low.stored(a) if a.dtype is not e else a
    if b.dtype is e and a.shape[-2] < COPIED_FOR:
        return a, b
    return a, own_copy(low, o, a, b)


def own_copy(low: Lowering, o: ir.Operation, a: Tile, b: Tile) -> Tile:
    """A second operand that nothing else reads: it will be packed, which suits no other reader."""
    alone = b.buffer and b.buffer != a.buffer and low.uses.count(o.args[1]) == 1
    return b if alone else copied(low, b)


def operand(low: Lowering, t: Tile) -> Tile:
    """What a product reads: memory of the kernel's own."""
    probe = tuple(D.var(f"?{k}", n) for k, n in enumerate(t.shape))
    plain = isinstance(t.at(probe), Load) and not t.reads
    return t if plain else low.stored(t)


def sums_of(low: Lowering, v: ir.Value, c: Tile, e: DType) -> str:
    """The buffer that a product is added to: that of its third operand where this is its last
    use."""
    once = low.uses.count(v) == 1 and low.uses.may_change(v)
    if c.buffer and once and c.dtype is e:
        return c.buffer
    place = in_place(low, c) if once and c.dtype is e else None
    name = place or low.local(c.shape, e)
    low.fill(name, converted(c, e, low.positions))
    return name


def in_place(low: Lowering, c: Tile) -> str | None:
    """A carried buffer that only this tile reads, element by element: the product can reuse it."""
    probe = tuple(D.var(f"?{k}", n) for k, n in enumerate(c.shape))
    found: set[str] = set()
    for x in walk(c.at(probe)):
        if isinstance(x, Load) and x.source in low.uses.carried:
            here = low.buffers[str(x.source)]
            if x.index != probe or here.shape != c.shape or here.dtype is not c.dtype:
                return None
            found.add(here.name)
    once = [b for b in found if low.uses.carried[b] == 1]
    return once[0] if len(once) == len(found) == 1 else None


class _Widened:
    """A combining block is over scalars; its operations are run for whole tiles."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def operation(self, low: Lowering, o: ir.Operation) -> None:
        if o.name == "map":
            args = tuple(low.tile(a) for a in o.args)
            made = mapped(o.attrs["fn"], args, o.result.type.dtype, self.shape, low.positions)
        elif o.name == "cast":
            made = converted(low.tile(o.args[0]), o.result.type.dtype, low.positions)
        elif o.name == "const":
            made = number(o.attrs["value"], o.result.type.dtype, self.shape)
        elif o.name == "bitcast":
            made = recast(low.tile(o.args[0]), o.result.type.dtype)
        elif o.name == "if":
            self.branch(low, o)
            return
        else:
            what = f"{o.name} in a function that combines two results"
            raise Unsupported(what, where=str(o.place or ""), hint="use arithmetic and tl.where")
        low.tiles[o.result] = made

    def branch(self, low: Lowering, o: ir.Operation) -> None:
        """Elements take different branches: both are computed, and each element selects its own."""
        for b in o.blocks:
            for x in b.operations:
                self.operation(low, x)
        for k, r in enumerate(o.results):
            ways = tuple(low.tile(b.yields[k]) for b in o.blocks)
            given = (low.tile(o.args[0]), *ways)
            made = mapped("select", given, r.type.dtype, self.shape, low.positions)
            low.tiles[r] = made


def _resized(shape: tuple[int, ...], axis: int, n: int) -> tuple[int, ...]:
    return (*shape[:axis], n, *shape[axis + 1 :])


_PLAIN = ("add", "mul", "max", "min", "and", "or", "xor", "maxnum", "minnum")


def _plain(b: ir.Block) -> str | None:
    """The scalar function that a combining block is, if it is one of those that reductions know."""
    real = b.operations
    if len(real) != 1 or len(b.parameters) != 2 or real[0].name != "map":
        return None
    o = real[0]
    same = set(o.args) == set(b.parameters) and b.yields == (o.result,)
    return o.attrs["fn"] if same and o.attrs["fn"] in _PLAIN else None
