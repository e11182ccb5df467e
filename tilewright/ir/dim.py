"""Symbolic integers: dimensions, loop extents and index functions are one thing.

An `Int` is a polynomial with integer coefficients over *atoms*, in canonical form and interned, so
equal functions are one object. A constant is a plain Python int: static shapes are the special case
that costs nothing. Atoms are symbols with bounds (`Sym`: a dimension, or a loop variable whose
bound may itself be symbolic), the quotient, remainder, minimum or maximum of two Ints, and `Data`,
an integer that is read from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.ir.atom import Atom, Data, Quo, Sym, interned, of_two
from tilewright.ir.polynomial import (
    INF,
    Dim,
    Int,
    OnData,
    atoms,
    bounds,
    data_values,
    divisor,
    floordiv,
    from_atom,
    known_eq,
    known_le,
    known_lt,
    known_ne,
    linear,
    mod,
    nonneg,
    only_atom,
    quo,
    remembered,
    symbols,
)

__all__ = [
    "INF",
    "Atom",
    "Data",
    "Dim",
    "Int",
    "OnData",
    "Quo",
    "Sym",
    "as_int",
    "atoms",
    "bounds",
    "ceildiv",
    "coefficient",
    "data",
    "data_values",
    "divisor",
    "evaluate",
    "floordiv",
    "from_atom",
    "is_sym",
    "known_eq",
    "known_le",
    "known_lt",
    "known_ne",
    "maximum",
    "minimum",
    "mod",
    "nonneg",
    "only_atom",
    "substitute",
    "sym",
    "symbols",
    "the_sym",
    "var",
    "wrapped_coefficient",
]


def sym(name: str, lo: Dim = 0, hi: Dim | None = None, multiple: int = 1) -> Int:
    """A dimension or variable with inclusive bounds. One name and equal bounds: one symbol."""
    x = from_atom(interned((name, lo, hi, multiple), lambda: Sym(name, lo, hi, multiple), name))
    assert isinstance(x, Int)
    return x


def var(name: str, extent: Dim) -> Int:
    """A loop variable over [0, extent)."""
    return sym(name, 0, extent - 1)


def data(value: Any) -> Int:
    """An index that is read from memory. `value` is an integer ir.expr.Value."""
    x = from_atom(interned(("data", value), lambda: Data(value), f"${{{value.label()}}}"))
    assert isinstance(x, Int)
    return x


def the_sym(x: Dim) -> Sym:
    """The symbol that `x` is."""
    atom = only_atom(x)
    if isinstance(atom, Sym):
        return atom
    raise ValueError(f"{x} is not a single symbol")


def is_sym(x: Dim) -> bool:
    return isinstance(only_atom(x), Sym)


def as_int(s: Sym) -> Int:
    x = from_atom(s)
    assert isinstance(x, Int)
    return x


def ceildiv(a: Dim, n: Dim) -> Dim:
    return floordiv(a + n - 1, n)


@remembered
def minimum(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if known_le(a, b):
        return a
    if known_le(b, a):
        return b
    return from_atom(quo("min", *sorted((a, b), key=str)))


@remembered
def maximum(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if known_le(a, b):
        return b
    if known_le(b, a):
        return a
    return from_atom(quo("max", *sorted((a, b), key=str)))


# ---- traversal

_COMBINE: dict[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
}


def substitute(
    x: Dim,
    table: Mapping[Sym, Dim],
    on_data: OnData = None,
    memo: dict[Int, Dim] | None = None,
) -> Dim:
    """Replace symbols, simplifying again. `on_data` rewrites the value inside a Data atom. `memo`
    caches what was substituted; use one `memo` per table."""
    if isinstance(x, int) or (on_data is None and symbols(x).isdisjoint(table)):
        return x
    if memo is None:
        memo = {}
    elif (found := memo.get(x)) is not None:
        return found
    total: Dim = 0
    for mono, c in x.terms:
        p: Dim = c
        for atom in mono:
            p = p * _sub_atom(atom, table, on_data, memo)
        total = total + p
    memo[x] = total
    return total


def _sub_atom(atom: Atom, table: Mapping[Sym, Dim], on_data: OnData, memo: dict[Int, Dim]) -> Dim:
    if isinstance(atom, Sym):
        return table.get(atom, from_atom(atom))
    if isinstance(atom, Quo):
        return _COMBINE[atom.op](*(substitute(e, table, on_data, memo) for e in (atom.a, atom.b)))
    assert isinstance(atom, Data)
    value = on_data(atom.value) if on_data else atom.value.substitute(table)
    return value.as_dim()


@remembered
def coefficient(x: Dim, s: Sym) -> Dim | None:
    """The coefficient of s where x is affine in it; None where it hides (quotient, data, power)."""
    if isinstance(x, int) or s not in symbols(x):
        return 0
    for mono, _ in x.terms:
        for a in mono:
            if not isinstance(a, Sym) and s in symbols(from_atom(a)):
                return None
    return linear(x, s)[1]


@remembered
def wrapped_coefficient(x: Dim, s: Sym) -> Dim | None:
    """The coefficient of s where x is affine in it or in remainders of what is: by how much x
    grows from one value of s to the next, as long as no remainder wraps around."""
    if isinstance(x, int):
        return 0
    total: Dim = 0
    for mono, c in x.terms:
        step: Dim | None = None
        rest: Dim = c
        for a in mono:
            if s not in symbols(from_atom(a)):
                rest = rest * from_atom(a)
            elif step is not None:
                return None
            elif a is s:
                step = 1
            elif isinstance(a, Quo) and a.op == "mod" and s not in symbols(a.b):
                step = wrapped_coefficient(a.a, s)
                if step is None:
                    return None
            else:
                return None
        total = total + rest * step if step is not None else total
    return total


def evaluate(
    x: Dim,
    env: Mapping[str, Any],
    on_data: OnData = None,
    memo: dict[Int, Any] | None = None,
) -> Any:
    """The number for the given values of symbols by name (numpy arrays work too). `memo` is for
    what quotients share."""
    if isinstance(x, int):
        return x
    if memo is None:
        memo = {}
    elif x in memo:
        return memo[x]
    # Neither times 1 nor plus 0: with arrays each of them is one more array.
    total: Any = None
    for mono, c in x.terms:
        p: Any = c if c != 1 or not mono else None
        for a in mono:
            v = env[a.name] if type(a) is Sym else _eval_atom(a, env, on_data, memo)
            p = v if p is None else p * v
        total = p if total is None else total + p
    total = 0 if total is None else total
    memo[x] = total
    return total


def _eval_atom(a: Atom, env: Mapping[str, Any], on_data: OnData, memo: dict[Int, Any]) -> Any:
    if isinstance(a, Sym):
        return env[a.name]
    if isinstance(a, Data):
        if on_data is None:
            raise ValueError(f"{a} depends on data")
        return on_data(a.value)
    assert isinstance(a, Quo)
    return of_two(a.op, *(evaluate(e, env, on_data, memo) for e in (a.a, a.b)))
