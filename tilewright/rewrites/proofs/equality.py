"""When two nodes are equal for all inputs and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import factorial, lcm, prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.expr import Fn, Index, Load, Value, extent, walk
from tilewright.ir.node import Node
from tilewright.ir.types import DType
from tilewright.rewrites.proofs import reals
from tilewright.rewrites.proofs.element import Elements
from tilewright.rewrites.proofs.form import Forms
from tilewright.rewrites.proofs.ranges import in_parts, orders_of_parts
from tilewright.rewrites.proofs.terms import Condition, Term, Terms, minus, symbols

# More conditions on free indices are too many cases.
MAX_CASES = 8
# And more remainders of indices.
MAX_REMAINDERS = 64
# Orders of the factors of flattened axes.
MAX_ORDERS = 24
# Elements of a short sum.
WRITTEN_OUT = 4


def equal(
    a: Value,
    b: Value,
    reading: str,
    written_out: int = 1,
    never_negative: frozenset[str] = frozenset(),
) -> bool:
    """Are the values equal for all inputs and sizes? False: not proved."""
    if a.dtype is not b.dtype:
        return False
    forms = Forms(reading, written_out, never_negative)
    if forms.real and reals.domain(forms, a) != reals.domain(forms, b):
        return False
    if _vanishes(forms, minus(forms.terms(a), forms.terms(b)), a.dtype, MAX_CASES):
        return True
    if not forms.real or not any(_is_extreme(x) for v in (a, b) for x in walk(v)):
        return False
    forms = Forms(reading, written_out, never_negative, flat=False)
    return _vanishes(forms, minus(forms.terms(a), forms.terms(b)), a.dtype, MAX_CASES)


def _is_extreme(v: Value) -> bool:
    return isinstance(v, Fn) and v.name in ("max", "min")


def _vanishes(forms: Forms, ts: Terms, dtype: DType, cases: int) -> bool:
    left = tuple(forms.collected(ts, dtype).values())
    if not left:
        return True
    free = sorted({c for t in left for c in _free(t)}, key=Condition.text)
    if not free or cases == 0:
        return False
    # A condition on free indices holds or does not: the difference has to vanish either way.
    return all(
        _vanishes(forms, _assuming(left, free[0], holds), dtype, cases - 1)
        for holds in (True, False)
    )


def _free(t: Term) -> list[Condition]:
    """Conditions on what is not summed."""
    conditions = (f for f in t.factors if isinstance(f, Condition))
    return [c for c in conditions if not symbols(c) & set(t.summed)]


def _assuming(ts: Terms, c: Condition, holds: bool) -> Terms:
    """The terms under the assumption that the condition holds, or that it does not."""
    known = c.dim if holds else c.negated()  # is >= 0
    out = []
    for t in ts:
        tests = [f for f in t.factors if isinstance(f, Condition)]
        if any(D.nonneg(f.negated() - known) for f in tests):
            continue
        factors = tuple(
            f for f in t.factors if not (isinstance(f, Condition) and D.nonneg(f.dim - known))
        )
        out.append(Term(t.number, t.summed, factors))
    return tuple(out)


def nodes_equal(
    a: Node, b: Node, reading: str = "bits", never_negative: frozenset[str] = frozenset()
) -> bool:
    """Do two nodes over the same inputs have the same elements, for all sizes? How floats are read
    is one of `form.READINGS`; elements of some inputs are known not to be negative. False: not
    proved."""
    if a.type != b.type:
        return False
    at = [0 if D.known_eq(d, 1) else D.var(f"@{k}", d) for k, d in enumerate(a.shape)]
    elements = Elements()
    left, right = elements.at(a, at), elements.at(b, at)
    if equal(left, right, reading, never_negative=never_negative):
        return True
    # Not as they are: with short reductions as operations on their terms.
    written = Elements(WRITTEN_OUT)
    if equal(written.at(a, at), written.at(b, at), reading, never_negative=never_negative):
        return True
    # With reductions taken apart, short sums written out, and indices written as others.
    pairs = [(left, right), *(in_parts(left, right) if reading == "reals" else ())]
    if any(equal(x, y, reading, 1, never_negative) for x, y in pairs[1:]):
        return True
    indices = [D.the_sym(i) for i in at if isinstance(i, Int)]
    return any(
        all(
            equal(x.substitute(c), y.substitute(c), reading, WRITTEN_OUT, never_negative)
            for c in cases
        )
        for x, y in pairs
        for cases in (
            short(indices),
            remainders(indices, x, y),
            *products(indices),
            *sections(indices),
        )
        if cases
    )


Cases = list[dict[Sym, Dim]]  # each writes indices as others: together all their values


def short(indices: Sequence[Sym]) -> Cases:
    """Every value of the indices of axes of a few elements, such as a kernel's."""
    few = {s: n for s in indices if isinstance(n := extent(s), int) and n <= WRITTEN_OUT}
    if not few or prod(few.values()) > MAX_REMAINDERS:
        return []
    return [dict(zip(few, at, strict=True)) for at in product(*map(range, few.values()))]


def remainders(indices: Sequence[Sym], *values: Value) -> Cases:
    """Indices that are divided by constants as multiples of those, and each remainder."""
    found = {s: lcm(*_divisors(s, values)) for s in indices}
    found = {s: n for s, n in found.items() if n > 1}
    if prod(found.values()) > MAX_REMAINDERS:
        return []
    cases: Cases = []
    for rests in product(*map(range, found.values())):
        case: dict[Sym, Dim] = {}
        for (s, n), rest in zip(found.items(), rests, strict=True):
            case[s] = n * D.var(f"{s.name}.{n}.{rest}", D.ceildiv(extent(s) - rest, n)) + rest
        cases.append(case)
    return cases


def products(indices: Sequence[Sym]) -> Iterator[Cases]:
    """Indices of a flattened axis, whose extent is a product, as one index for each of its factors:
    in every order of them, for that of the axes is not known."""
    found = {s: _factors(extent(s)) for s in indices}
    found = {s: factors for s, factors in found.items() if len(factors) > 1}
    if not found or prod(factorial(len(f)) for f in found.values()) > MAX_ORDERS:
        return
    for orders in product(*map(permutations, found.values())):
        case: dict[Sym, Dim] = {}
        made: list[Sym] = []
        for s, order in zip(found, orders, strict=True):
            at: Dim = 0
            for k, size in enumerate(order):
                i = D.var(f"{s.name}.{k}", size)
                made.append(D.the_sym(i))
                at = at * size + i
            case[s] = at
        # An axis of a few elements, such as one of groups, by each of them.
        few = short(made) or [{}]
        yield [{s: D.substitute(at, values) for s, at in case.items()} for values in few]


def sections(indices: Sequence[Sym]) -> Iterator[Cases]:
    """Indices of an axis of several parts, whose extent is a sum, in each of these: in every order
    of them, for that is not known."""
    found = {s: orders for s in indices if (orders := list(orders_of_parts(extent(s))))}
    if not found or prod(map(len, found.values())) > MAX_ORDERS:
        return
    for chosen in product(*found.values()):
        if prod(map(len, chosen)) > MAX_REMAINDERS:
            continue
        each: list[list[dict[Sym, Dim]]] = []
        for s, sizes in zip(found, chosen, strict=True):
            firsts = [sum(sizes[:k], start=0) for k in range(len(sizes))]
            each.append(
                [
                    {s: D.var(f"{s.name}.{k}", size) + first}
                    for k, (size, first) in enumerate(zip(sizes, firsts, strict=True))
                ]
            )
        yield [{s: at for case in cases for s, at in case.items()} for cases in product(*each)]


def _factors(x: Dim) -> list[Dim]:
    if isinstance(x, int) or len(x.terms) != 1:
        return [x]
    ((atoms, number),) = x.terms
    return [D.from_atom(a) for a in atoms] + ([number] if number > 1 else [])


def _divisors(s: Sym, values: Sequence[Value]) -> Iterator[int]:
    """Constants by which index functions of s are divided."""
    dims = [d for v in values for x in walk(v) for d in _dims(x)]
    for a in {a for d in dims for a in D.atoms(d)}:
        if isinstance(a, D.Quo) and a.op in ("floordiv", "mod") and isinstance(a.b, int):
            if s in D.symbols(a.a):
                yield a.b


def _dims(v: Value) -> tuple[Dim, ...]:
    if isinstance(v, Load):
        return v.index
    return (v.dim,) if isinstance(v, Index) else ()
