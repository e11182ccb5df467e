"""Lowering of what touches memory or the outside world, in the order of the program."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.errors import Unsupported
from tilewright.base.traverse import operands_first
from tilewright.ir import dim as D
from tilewright.ir.conditions import parts_of
from tilewright.ir.dim import Dim
from tilewright.ir.expr import (
    Fn,
    Load,
    Value,
    cast,
    const,
    index,
    load,
    select,
    walk,
    with_args,
)
from tilewright.ir.types import i32, i64
from tilewright.kernel.group import memory_buffer
from tilewright.kernel.nest import Atomic, If, Report, Stmt, Store
from tilewright.lang.tile import ir
from tilewright.lang.tile.lowering.state import MEMORY, Lowering, Site
from tilewright.lang.tile.lowering.tiles import (
    At,
    Pointers,
    Tile,
    buffered,
    number,
    whole,
)


def place(low: Lowering, p: Pointers) -> tuple[str, Callable[[At], At]]:
    at = p.at
    if p.buffer is not None:
        return p.buffer, lambda i: (at(i),)
    name = f"{MEMORY}_{p.to}"
    low.buffers.setdefault(name, memory_buffer(name, p.to))
    return name, lambda i: (at(i),)


def lower_load(low: Lowering, o: ir.Operation) -> None:
    p, e = low.pointers(o.args[0]), o.result.element
    if isinstance(e, ir.Pointer):
        raise Unsupported("a load of pointers")
    if o.attrs.get("volatile"):
        lower_volatile(low, o)
        return
    name, where = place(low, p)
    if o.attrs.get("described") and p.buffer is not None:
        low.has_role("described", name)
    mask = low.tile(o.args[1]) if len(o.args) > 1 else None
    other = low.tile(o.args[2]) if len(o.args) > 2 else number(0, e, o.result.shape)

    def at(i: At) -> Value:
        x = load(name, where(i), e)
        return x if mask is None else select(mask.at(i), x, other.at(i))

    reads = {MEMORY if p.buffer is None else name, *p.reads}
    for t in (mask, other):
        reads |= t.reads if t is not None else set()
    low.define(o.result, Tile(o.result.shape, e, at, reads=frozenset(reads)))


def lower_volatile(low: Lowering, o: ir.Operation) -> None:
    """A load that is executed at its place in the program order: other programs may write what it
    reads."""
    p, r = low.pointers(o.args[0]), o.result
    name, where = place(low, low.stored_offsets(p) if p.reads else p)
    old = low.local(r.shape, r.type.dtype)
    mask = low.stored(low.tile(o.args[1])) if len(o.args) > 1 else None
    if mask is not None:
        other = low.tile(o.args[2]) if len(o.args) > 2 else number(0, r.type.dtype, r.shape)
        low.fill(old, other)
    nothing = const(0, r.type.dtype)

    def one(s: str, i: At) -> Stmt:
        a = Atomic(s, "load", name, where(i), nothing, None, (old, i), "acquire")
        return a if mask is None else If(mask.at(i), (a,), ())

    low.loops(r.shape, one)
    low.define(r, buffered(old, r.shape, r.type.dtype))


def lower_store(low: Lowering, o: ir.Operation) -> None:
    low.uses.consumed(o, ahead=True)
    if low.waiting and not o.args[1].shape and len(o.args) == 2:
        publish(low, o)
        return
    low.store_readers(low.pointers(o.args[0]).buffer or MEMORY)
    p, value = low.pointers(o.args[0]), low.tile(o.args[1])
    mask = low.tile(o.args[2]) if len(o.args) > 2 else None
    name, where = place(low, p)
    if p.reads and low.overlaps(p.buffer or MEMORY, p.reads):
        name, where = place(low, low.stored_offsets(p))
    if overlaps(low, name, where, value):
        value = low.stored(value)
    if mask is not None and overlaps(low, name, where, mask):
        mask = low.stored(mask)

    def one(s: str, i: At) -> Stmt:
        if mask is None:
            return Store(s, name, where(i), value.at(i))
        holds = mask.at(i)
        return If(holds, (Store(s, name, where(i), assuming(value.at(i), holds)),), ())

    low.loops(value.shape, one)


def publish(low: Lowering, o: ir.Operation) -> None:
    """A store of one number where programs wait for each other: it may be what they wait for, so
    all that was stored before it is seen before it."""
    low.store_readers(None)
    p, value = low.pointers(o.args[0]), low.tile(o.args[1])
    value = low.stored(value) if value.reads else value
    name, where = place(low, low.stored_offsets(p) if p.reads else p)
    low.loops((), lambda s, i: Atomic(s, "xchg", name, where(i), value.at(i), order="release"))


def assuming(v: Value, condition: Value) -> Value:
    """A value simplified under the assumption that a condition holds."""
    known = set(parts_of(condition))
    simplified: dict[Value, Value] = {}
    for x in operands_first(v, lambda x: x.args if isinstance(x, Fn) else (), simplified):
        simplified[x] = x
        if isinstance(x, Fn) and x.name == "select" and known.issuperset(parts_of(x.args[0])):
            simplified[x] = simplified[x.args[1]]
        elif isinstance(x, Fn):
            simplified[x] = with_args(x, tuple(simplified[a] for a in x.args))
    return simplified[v]


def overlaps(low: Lowering, name: str, where: Callable[[At], At], value: Tile) -> bool:
    """Does a tile read what storing by its elements changes, at other places than its own?"""
    changed = MEMORY if low.buffers[name].scope == "memory" else name
    if not low.overlaps(changed, value.reads):
        return False
    probe = tuple(D.var(f"?{k}", n) for k, n in enumerate(value.shape))
    for x in walk(value.at(probe)):
        if not isinstance(x, Load) or not low.buffers[str(x.source)].pointer:
            continue
        source = str(x.source)
        if source == name and x.index == where(probe) and apart(where(probe)[0], probe):
            continue
        read = MEMORY if low.buffers[source].scope == "memory" else source
        if low.overlaps(changed, frozenset((read,))):
            return True
    return False


def apart(place: Dim, probe: At) -> bool:
    """Is every element at a place of its own? Then reading it just before it is written is reading
    it before all are."""
    steps: list[tuple[int, int]] = []
    for k in probe:
        if isinstance(k, int):
            continue
        c = D.coefficient(place, D.the_sym(k))
        if not isinstance(c, int):
            return False
        steps.append((abs(c), D.bounds(k)[1]))
    reach = 0
    for c, last in sorted(steps):
        if c <= reach:
            return False
        reach += c * last
    return True


def lower_atomic(low: Lowering, o: ir.Operation) -> None:
    atomically(low, o, o.attrs["kind"], None, o.args[1], o.args[2] if len(o.args) > 2 else None)


def lower_cas(low: Lowering, o: ir.Operation) -> None:
    atomically(low, o, "cas", o.args[1], o.args[2], None)


def atomically(
    low: Lowering,
    o: ir.Operation,
    kind: str,
    expected: ir.Value | None,
    v: ir.Value,
    mask: ir.Value | None,
) -> None:
    low.uses.consumed(o, ahead=True)
    low.store_readers(None)

    def before(x: ir.Value | None) -> Tile | None:
        """What is read before any element changes."""
        t = low.tile(x) if x is not None else None
        return low.stored(t) if t is not None and t.reads else t

    p = low.pointers(o.args[0])
    name, where = place(low, low.stored_offsets(p) if p.reads else p)
    value, compare, chosen = before(v), before(expected), before(mask)
    assert value is not None
    r = o.result
    old = low.local(r.shape, r.type.dtype) if low.uses.count(r) else None
    if old is not None and mask is not None:
        low.fill(old, number(0, r.type.dtype, r.shape))

    def one(s: str, i: At) -> Stmt:
        to = (old, i) if old is not None else None
        expects = compare.at(i) if compare is not None else None
        a = Atomic(
            s, kind, name, where(i), value.at(i), expects, to, o.attrs.get("order") or "acq_rel"
        )
        return a if chosen is None else If(chosen.at(i), (a,), ())

    low.loops(value.shape, one)
    if old is not None:
        low.define(r, buffered(old, r.shape, r.type.dtype))


def lower_print(low: Lowering, o: ir.Operation) -> None:
    shape = o.args[0].shape if o.args else ()
    site = new_site(low, o, "print", o.attrs.get("prefix") or "")
    values = [printable(low, a) for a in o.args]
    where = [whole((), i32, lambda i, p=p: p) for p in low.pids]

    def one(s: str, i: At) -> Stmt:
        ids = [w.at(()) for w in where]
        steps = [index(k) if not isinstance(k, int) else const(k, i64) for k in i]
        return Report("print", site, (*ids, *steps, *(v.at(i) for v in values)), None)

    low.loops(shape, one)


def printable(low: Lowering, v: ir.Value) -> Tile:
    t = low.tiles[v]
    return low.addresses_of(t) if isinstance(t, Pointers) else t


def lower_assert(low: Lowering, o: ir.Operation) -> None:
    report_failure(low, o, "assert", o.attrs.get("message") or "", low.tile(o.args[0]))


def report_failure(low: Lowering, o: ir.Operation, kind: str, message: str, t: Tile) -> None:
    """The program is reported where an element of a tile is false."""
    site = new_site(low, o, kind, message)
    ids = [cast(index(p), i64) for p in low.pids]
    low.loops(t.shape, lambda s, i: Report("assert", site, tuple(ids), t.at(i)))


def new_site(low: Lowering, o: ir.Operation, kind: str, message: str) -> int:
    low.sites.append(Site(kind, message, tuple(a.type for a in o.args), o.place))
    return len(low.sites) - 1
