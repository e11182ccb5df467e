"""Truth values: where a value is decided by conditions, and what it is in either case."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.ir.dim import Sym
from tilewright.ir.expr import Const, Fn, Reduce, Value, const, fn, make_reduce, select, with_args
from tilewright.ir.scalar import applied
from tilewright.ir.types import b1

# Of truth values: what these make of truth values is one.
CONNECTIVES = frozenset("and or xor not add mul max min select eq ne lt le gt ge".split())


def is_connective(v: Value) -> bool:
    """Is v made of truth values only?"""
    return (
        isinstance(v, Fn)
        and v.dtype is b1
        and v.name in CONNECTIVES
        and all(a.dtype is b1 for a in v.args)
    )


def _tests(v: Value) -> Iterator[Value]:
    """The tests that a truth value is made of."""
    if is_connective(v):
        for a in v.args:
            yield from _tests(a)
    elif not isinstance(v, Const):
        yield v


def decided_by(v: Value) -> Value | None:
    """A test that decides what is below v, and does not depend on what is summed on the way."""
    seen: set[tuple[Value, frozenset[Sym]]] = set()
    stack: list[tuple[Value, frozenset[Sym]]] = [(v, frozenset())]
    while stack:
        x, bound = stack.pop()
        if (x, bound) in seen:
            continue
        seen.add((x, bound))
        if isinstance(x, Reduce):
            inside = bound | set(x.axes)
            if x.body.dtype is not b1:
                stack.append((x.body, inside))
            continue
        for a in x.args:
            if a.dtype is not b1:
                stack.append((a, bound))
                continue
            for t in _tests(a):
                if not t.symbols() & bound:
                    return t
    return None


def assumed(v: Value, test: Value, holds: bool) -> Value:
    """The value where a test holds, or where it does not."""
    memo: dict[Value, Value] = {test: const(holds, b1)}

    def go(x: Value) -> Value:
        found = memo.get(x)
        if found is None:
            if isinstance(x, Fn):
                found = _decided(with_args(x, tuple(map(go, x.args))))
            elif isinstance(x, Reduce) and not test.symbols() & set(x.axes):
                found = make_reduce(x.combine, x.axes, go(x.body))
            else:
                found = x
            memo[x] = found
        return found

    return go(v)


def _decided(v: Value) -> Value:
    """Connectives of constants, computed."""
    if isinstance(v, Fn) and is_connective(v) and all(isinstance(a, Const) for a in v.args):
        arrays = [np.array(a.value) for a in v.args if isinstance(a, Const)]
        return const(bool(applied(v.name, arrays, b1)), b1)
    return v


def without_neutral(v: Value, neutral: Value) -> tuple[Value, Value]:
    """A value that conditions choose to be `neutral` here and there: what it is elsewhere, and the
    condition of that."""
    if v is neutral:
        return const(0, v.dtype), const(False, b1)
    if not isinstance(v, Fn) or v.name != "select":
        return v, const(True, b1)
    c, yes, no = v.args
    (a, where_a), (b, where_b) = without_neutral(yes, neutral), without_neutral(no, neutral)
    # Where it is neutral, any number does.
    if no is neutral:
        return a, fn("and", c, where_a)
    if yes is neutral:
        return b, fn("and", fn("not", c), where_b)
    either = fn("or", fn("and", c, where_a), fn("and", fn("not", c), where_b))
    return select(c, a, b), either
