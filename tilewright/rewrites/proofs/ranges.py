"""Reductions over an axis that has parts: over each part, or over the axes that it was made of.

    sum over i < m + n of x[i] = sum over i < m of x[i] + sum over i < n of x[m + i]
    sum over i < m n of x[i]   = sum over i < m and j < n of x[n i + j]

In which order parts or axes lie is not known of an extent: all orders are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from itertools import permutations, product
from math import factorial, prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Reduce, Value, extent, fn, make_reduce, rewrite, walk
from tilewright.rewrites.proofs.element import fresh

# Orders of the parts of all extents that are tried.
MAX_ORDERS = 24
# Equal parts of one extent.
MAX_PARTS = 4
# Of an extent, in one order: parts that are added or axes that are multiplied.
Way = tuple[str, tuple[Dim, ...]]


def in_parts(a: Value, b: Value) -> Iterator[tuple[Value, Value]]:
    """Two values with reductions over all extents that have parts taken apart, in every order."""
    reductions = [x for v in (a, b) for x in walk(v) if isinstance(x, Reduce)]
    extents = dict.fromkeys(extent(s) for x in reductions for s in x.axes)
    found = {d: ways for d in extents if (ways := list(_ways(d)))}
    if not found or prod(map(len, found.values())) > MAX_ORDERS:
        return
    for chosen in product(*found.values()):
        on_reduce = partial(_apart, table=dict(zip(found, chosen, strict=True)))
        yield rewrite(a, on_reduce=on_reduce), rewrite(b, on_reduce=on_reduce)


def _ways(size: Dim) -> Iterator[Way]:
    yield from (("add", parts) for parts in orders_of_parts(size))
    if isinstance(size, int) or len(size.terms) > 1:
        return
    ((mono, c),) = size.terms
    factors = [D.from_atom(a) for a in mono] + ([c] if c > 1 else [])
    if 1 < len(factors) and factorial(len(factors)) <= MAX_ORDERS:
        yield from (("mul", order) for order in permutations(factors))


def orders_of_parts(size: Dim) -> Iterator[tuple[Dim, ...]]:
    """The parts that add up to an extent, in every order; nothing where it has none."""
    if isinstance(size, int):
        return
    parts: list[Dim] = []
    for mono, c in size.terms:
        if not 0 < c <= MAX_PARTS:
            return
        parts += [_product(mono, 1)] * c if mono else [c]
    if 1 < len(parts) <= MAX_PARTS and all(D.nonneg(p) for p in parts):
        yield from dict.fromkeys(permutations(parts))


def _product(mono: tuple[D.Atom, ...], number: int) -> Dim:
    return reduce(lambda a, b: a * b, map(D.from_atom, mono), number)


def _apart(r: Reduce, table: dict[Dim, Way]) -> Value:
    """The reduction with its first axis that has parts taken apart, and then the others."""
    for s in r.axes:
        way = table.get(extent(s))
        if way is not None and isinstance(r.combine, str):
            how, sizes = way
            if how == "mul":
                return _again(_over_axes(r, s, sizes), table)
            pieces = [_again(piece, table) for piece in _over_parts(r, s, sizes)]
            return reduce(lambda a, b: fn(str(r.combine), a, b), pieces)
    return r


def _again(v: Value, table: dict[Dim, Way]) -> Value:
    return _apart(v, table) if isinstance(v, Reduce) else v


def _over_parts(r: Reduce, s: Sym, sizes: tuple[Dim, ...]) -> Iterator[Value]:
    before: Dim = 0
    for size in sizes:
        i = fresh(size)
        yield _replaced(r, s, i + before, (D.the_sym(i),))
        before = before + size


def _over_axes(r: Reduce, s: Sym, sizes: tuple[Dim, ...]) -> Value:
    axes = [fresh(n) for n in sizes]
    at: Dim = 0
    for i, n in zip(axes, sizes, strict=True):
        at = at * n + i
    return _replaced(r, s, at, tuple(map(D.the_sym, axes)))


def _replaced(r: Reduce, s: Sym, at: Dim, axes: tuple[Sym, ...]) -> Value:
    """The reduction over other axes, with what they make in the place of one."""
    others = tuple(a for a in r.axes if a is not s)
    return make_reduce(r.combine, axes + others, r.body.substitute({s: at}))
