"""Parts of values: what one reads, one with a part replaced; choices and joined conditions."""

from __future__ import annotations

from collections.abc import Iterator, Set

from tilewright.base.traverse import operands_first
from tilewright.ir.types import b1
from tilewright.ir.values import Fn, Load, Scalarish, Value, const, fn, walk, with_args


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
