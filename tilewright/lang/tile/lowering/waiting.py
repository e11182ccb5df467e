"""Which loops of a kernel wait for another program: they poll memory until it changes.

A lock is not such a loop. A program that polls it changes it as soon as it gets it
(`atomic_cas(lock, 0, 1)`, `atomic_xchg(lock, 1)`), and the program that holds it is running: it is
released sooner or later, however few programs run at a time. A loop that only reads (a volatile
load, `atomic_cas(flag, 1, 1)`, `atomic_add(flag, 0)`) may wait for a program that has not started.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lang.tile import ir
from tilewright.lang.tile.lowering.carried import Makers


def waiting_loops(kernel: ir.Kernel) -> frozenset[ir.Operation]:
    made = ir.makers(kernel)
    return frozenset(o for o in ir.walk(kernel.body) if o.name == "while" and _polls(o, made))


def ends_by_itself(loop: ir.Operation, made: Makers) -> bool:
    """Does a waiting loop also count its polls? Then one of two conditions that must both hold
    depends on no memory."""
    todo = list(loop.blocks[0].yields)
    while todo:
        v = todo.pop()
        if not any(_only_looks(o, made) for o in _deciding(loop, v)):
            return True
        o = made.get(v)
        if o is not None and o.name == "map" and o.attrs["fn"] == "and":
            todo += o.args
    return False


def _polls(loop: ir.Operation, made: Makers) -> bool:
    """Does the loop's condition depend on memory that the loop itself only reads?"""
    return any(_only_looks(o, made) for o in _deciding(loop, loop.blocks[0].yields[0]))


def _deciding(loop: ir.Operation, of: ir.Value) -> Iterator[ir.Operation]:
    """The operations inside a loop that one of its values depends on, in this iteration or in
    those before."""
    body = loop.blocks[1]
    inside = {r: o for b in loop.blocks for o in ir.walk(b) for r in o.results}
    # A parameter is what the body yields for it in the iteration before.
    comes_from = {p: y for b in loop.blocks for p, y in zip(b.parameters, body.yields, strict=True)}
    todo, seen = [of], set[ir.Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        if v in comes_from:
            todo.append(comes_from[v])
        o = inside.get(v)
        if o is not None:
            yield o
            todo += o.args
            todo += (y for b in o.blocks for y in b.yields)


def _only_looks(o: ir.Operation, made: Makers) -> bool:
    if o.name == "load":
        return bool(o.attrs.get("volatile"))
    if o.name == "cas":
        expected, new = o.args[1], o.args[2]
        if expected is new:
            return True
        one, other = _constant(expected, made), _constant(new, made)
        return one is None or other is None or one == other
    if o.name == "atomic":
        kind = o.attrs["kind"]
        if kind in ("add", "or", "xor"):
            return _constant(o.args[1], made) == 0
        return kind != "xchg"
    return False


def _constant(v: ir.Value, made: Makers) -> float | None:
    """The number that a value is, through conversions and broadcasts."""
    o = made.get(v)
    while o is not None and o.name in ("cast", "broadcast", "reshape"):
        o = made.get(o.args[0])
    return o.attrs["value"] if o is not None and o.name == "const" else None
