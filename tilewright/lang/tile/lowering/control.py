"""Lowering of branches and loops: what they carry lives in buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, cast, fn, load, select, walk
from tilewright.ir.types import DType, b1, i64
from tilewright.kernel.nest import If, Loop, While
from tilewright.lang.tile import ir
from tilewright.lang.tile.lowering.carried import before, increments, invariants
from tilewright.lang.tile.lowering.memory import report_failure
from tilewright.lang.tile.lowering.state import Lowering
from tilewright.lang.tile.lowering.tiles import (
    AnyTile,
    Pointers,
    Tile,
    buffered,
    whole,
)
from tilewright.lang.tile.lowering.waiting import ends_by_itself


def lower_if(low: Lowering, o: ir.Operation) -> None:
    condition = low.tile(o.args[0]).at(())
    low.store_readers(None)
    buffers = [result(low, r) for r in o.results]
    bodies = []
    for b in o.blocks:

        def run(b: ir.Block = b) -> None:
            low.block(b)
            assign(low, buffers, [low.tiles[y] for y in b.yields])

        bodies.append(low.inner(run))
    low.out.append(If(condition, bodies[0], bodies[1]))
    for r, name in zip(o.results, buffers, strict=True):
        low.tiles[r] = of_buffer(low, r, name)


def result(low: Lowering, r: ir.Value) -> str:
    e = r.element
    return low.local(r.shape, i64 if isinstance(e, ir.Pointer) else e)


def of_buffer(low: Lowering, r: ir.Value, name: str) -> AnyTile:
    e = r.element
    if isinstance(e, ir.Pointer):
        offsets = buffered(name, r.shape, i64)
        return Pointers(r.shape, e.to, None, offsets.index)
    return buffered(name, r.shape, e)


def assign(low: Lowering, names: Iterable[str], values: Sequence[AnyTile]) -> None:
    """A parallel assignment: all values are read before any buffer is written."""
    pairs: list[tuple[str, Tile]] = []
    for name, t in zip(names, values, strict=True):
        t = low.addresses_of(t) if isinstance(t, Pointers) else t
        if t.buffer != name:
            pairs.append((name, t))
    written: set[str] = set()
    stores: list[tuple[str, Tile]] = []
    for name, t in pairs:
        probe = tuple(D.var(f"?{k}", n) for k, n in enumerate(t.shape))
        crossed = any(
            isinstance(x, Load) and (x.source in written or (x.source == name and x.index != probe))
            for x in walk(t.at(probe))
        )
        stores.append((name, low.stored(replace(t, buffer="")) if crossed else t))
        written.add(name)
    for name, t in stores:
        low.fill(name, t)


def lower_for(low: Lowering, o: ir.Operation) -> None:
    start, high, step = (low.tile(v) for v in o.args[:3])
    start, high = as_number(low, start), as_number(low, high)
    first, end, by = start.index(()), high.index(()), step.index(())
    up = D.bounds(by)[0] > 0 and not D.data_values(by)
    if (up or isinstance(by, int)) and not far_apart(first, end, start.dtype):
        trips = D.ceildiv(end - first, by) if up else D.ceildiv(first - end, -by) if by else 0
    else:
        trips = count_of(low, start, high, step)
    low.store_readers(None)
    block, carried = o.blocks[0], o.args[3:]
    loop = D.var(low.fresh("for"), trips)
    low.positions.count(D.the_sym(loop), first, by, end)
    if o.attrs.get("specialised"):
        low.has_role("specialised", D.the_sym(loop).name)
    steps = steps_of(low, block, carried)
    names: list[str | None] = []
    for k, v in enumerate(carried):
        by_loop = steps.get(k)
        if by_loop is not None and moves(low, v, by_loop, trips):
            low.tiles[block.parameters[k + 1]] = moved(low, low.tiles[v], by_loop, loop)
            low.tiles[o.results[k]] = moved(low, low.tiles[v], by_loop, D.maximum(trips, 0))
            names.append(None)
            continue
        t = low.tiles[v]
        name = result(low, v)
        low.fill(name, low.addresses_of(t) if isinstance(t, Pointers) else t)
        names.append(name)
        low.tiles[block.parameters[k + 1]] = of_buffer(low, v, name)
        low.tiles[o.results[k]] = of_buffer(low, v, name)
        low.uses.carry(name, block.parameters[k + 1])
    low.tiles[block.parameters[0]] = whole((), start.dtype, lambda i: first + loop * by)

    def body() -> None:
        low.block(block)
        ends = [(n, low.tiles[y]) for n, y in zip(names, block.yields, strict=True) if n]
        assign(low, [n for n, _ in ends], [t for _, t in ends])

    low.out.append(Loop(D.the_sym(loop), "serial", low.inner(body)))
    for n in filter(None, names):
        low.uses.carried.pop(n, None)  # from here on it holds a result, which others may read


def as_number(low: Lowering, t: Tile) -> Tile:
    """A bound of a loop. One that is computed from numbers out of memory may have overflowed: it is
    the wrapped number, not a sum whose terms the other bound may cancel."""
    return t if is_number(t) else low.stored(t)


def is_number(t: Tile) -> bool:
    """Is the index function of a tile its value? One that was computed with 32 bits from numbers
    out of memory may have wrapped around, which its index function does not say."""
    probe = tuple(D.var(f"?{k}", n) for k, n in enumerate(t.shape))
    x = t.index(probe)
    return not D.data_values(x) or x == cast(t.at(probe), i64).as_dim()


def far_apart(first: Dim, end: Dim, dtype: DType) -> bool:
    """May the distance between two bounds overflow? Numbers of 64 bits out of memory may be any."""
    return dtype is i64 and first != 0 and bool(D.data_values(first) or D.data_values(end))


def count_of(low: Lowering, first: Tile, end: Tile, step: Tile) -> Dim:
    """The number of iterations, of bounds that are compared before they are subtracted."""
    a, b, s = (cast(t.at(()), i64) for t in (first, end, step))
    up = fn("add", fn("floordiv", fn("sub", fn("sub", b, a), 1), s), 1)
    down = fn("add", fn("floordiv", fn("add", fn("sub", b, a), 1), s), 1)
    up, down = select(fn("lt", a, b), up, 0), select(fn("lt", b, a), down, 0)
    name = low.local((), i64)
    low.fill(name, Tile((), i64, lambda i: select(fn("gt", s, 0), up, down)))
    return load(name, (), i64).as_dim()


def steps_of(low: Lowering, block: ir.Block, carried: Sequence[ir.Value]) -> dict[int, Dim]:
    """How far each induction variable of a loop moves in an iteration. Steps that the body computes
    are computed before the loop as well."""
    found = increments(block, low.uses)
    values = {v for v in found.values() if isinstance(v, ir.Value)}
    for o in before(block, values, invariants(block, low.uses)):
        low.operations[o.name](low, o)
    steps: dict[int, Dim] = {}
    for k, by in found.items():
        if isinstance(by, int):
            steps[k] = by
        else:
            t = low.tile(by)
            places = isinstance(low.tiles[carried[k]], Pointers)
            steps[k] = (t if places else as_number(low, t)).index(())
    return steps


def moves(low: Lowering, v: ir.Value, by: Dim, times: Dim) -> bool:
    """Can an induction variable be computed from the number of the iteration? Positions do not
    overflow. A number that would is data, and is wrapped in every iteration."""
    t = low.tiles[v]
    if isinstance(t, Pointers):
        return True
    if t.dim is None or not is_number(t):
        return False
    first = t.dim(tuple(D.var(f"?{k}", n) for k, n in enumerate(t.shape)))
    return all(low.positions.fits(x, t.dtype) for x in (first, by, first + by * times))


def moved(low: Lowering, t: AnyTile, by: Dim, times: Dim) -> AnyTile:
    if isinstance(t, Pointers):
        return t.moved(lambda i: by * times)
    dim = t.dim
    assert dim is not None
    return whole(t.shape, t.dtype, lambda i: dim(i) + by * times)


def lower_while(low: Lowering, o: ir.Operation) -> None:
    low.store_readers(None)
    condition, body = o.blocks
    names = [result(low, v) for v in o.args]
    for n, v in zip(names, o.args, strict=True):
        t = low.tiles[v]
        low.fill(n, low.addresses_of(t) if isinstance(t, Pointers) else t)
    going = low.local((), b1)
    for b in o.blocks:
        for p, n, v in zip(b.parameters, names, o.args, strict=True):
            low.tiles[p] = of_buffer(low, v, n)
    for r, n in zip(o.results, names, strict=True):
        low.tiles[r] = of_buffer(low, r, n)

    def test() -> None:
        low.block(condition)
        low.fill(going, low.tile(condition.yields[0]))

    def turn() -> None:
        low.block(body)
        assign(low, names, [low.tiles[y] for y in body.yields])
        low.uses.again(condition)
        test()

    test()
    waits = o in low.waiting
    low.out.append(While(low.fresh("while"), load(going, (), b1), low.inner(turn), waits))
    if waits and not ends_by_itself(o, low.made):
        ended = fn("not", load(going, (), b1))
        report_failure(low, o, "wait", "", Tile((), b1, lambda i: ended))
