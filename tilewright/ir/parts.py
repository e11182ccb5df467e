"""Values made of others: sums, tuples, choices. What is inside one: its parts, what it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from itertools import count
from typing import TYPE_CHECKING

from tilewright.base.traverse import operands_first
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.types import TupleDType, b1, i64, tuple_dtype
from tilewright.ir.values import (
    Fn,
    Load,
    Reduce,
    Scalarish,
    Value,
    const,
    fn,
    make_fn,
    make_reduce,
    with_args,
)

if TYPE_CHECKING:  # combiners are made of values
    from tilewright.ir.combine import Combine

_fresh = count()


def reduce(combine: Combine, extents: Sequence[Dim], body: Callable[..., Value]) -> Value:
    """`reduce("add", (k,), lambda r: a[i, r] * b[r, j])`. The innermost one binds r0, r1, …"""
    temps = [D.var(f"?{next(_fresh)}", e) for e in extents]
    inner = body(*temps)
    depth = sum(len(r.axes) for r in walk(inner) if isinstance(r, Reduce))
    axes = [D.var(f"r{depth + k}", e) for k, e in enumerate(extents)]
    table: dict[Sym, Dim] = {D.the_sym(t): a for t, a in zip(temps, axes, strict=True)}
    table_axes = tuple(D.the_sym(a) for a in axes)
    return make_reduce(combine, table_axes, inner.substitute(table))


def tuple_of(*items: Value) -> Value:
    """Several components as one value."""
    return make_fn("tuple", items, tuple_dtype(tuple(x.dtype for x in items)))


def item(v: Value, k: int) -> Value:
    """One component of a tuple."""
    if not isinstance(v.dtype, TupleDType) or not 0 <= k < len(v.dtype.items):
        raise TypeError(f"{v.dtype} has no component {k}")
    return make_fn("item", (v, const(k, i64)), v.dtype.items[k])


def walk(v: Value, source: str | None = None) -> Iterator[Value]:
    """Every distinct value under v, data inside indices included; or those that read a source."""
    seen: set[int] = set()
    stack = [v]
    while stack:
        x = stack.pop()
        if id(x) in seen or (source is not None and source not in x.sources):
            continue
        seen.add(id(x))
        yield x
        stack += x.operands()


def loads_among(v: Value, sources: Set[str]) -> Iterator[Load]:
    """Every distinct load under v of one of some buffers; no value is visited that reads none."""
    seen: set[Value] = set()
    stack = [v]
    while stack:
        x = stack.pop()
        if x in seen or x.sources.isdisjoint(sources):
            continue
        seen.add(x)
        if isinstance(x, Load) and x.source in sources:
            yield x
        stack += x.operands()


def loads(v: Value, source: str | None = None) -> Iterator[Load]:
    """Every distinct load under v, or those of one source."""
    if source is None:
        return (x for x in walk(v) if isinstance(x, Load)) if v.sources else iter(())
    return (x for x in walk(v, source) if isinstance(x, Load) and x.source == source)


def replaced(v: Value, old: Value, new: Value) -> Value:
    """The value with another one in place of a part of it."""
    memo = {old: new}
    for x in operands_first(v, lambda x: x.args if isinstance(x, Fn) else (), memo):
        memo[x] = with_args(x, tuple(memo[a] for a in x.args)) if isinstance(x, Fn) else x
    return memo[v]


def all_of(*conditions: Value) -> Value:
    out: Value = const(True, b1)
    for c in conditions:
        out = fn("and", out, c)
    return out


def select(c: Value, a: Scalarish, b: Scalarish) -> Value:
    return fn("select", c, a, b)
