"""When two nodes are equal for all inputs and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import lcm, prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.expr import Index, Load, Value, extent, walk
from tilewright.ir.node import Node
from tilewright.ir.types import DType
from tilewright.rewrites.proofs.element import Elements
from tilewright.rewrites.proofs.form import Forms
from tilewright.rewrites.proofs.terms import Condition, Term, Terms, minus, symbols

# More conditions on free indices are too many cases.
MAX_CASES = 8
# And more remainders of indices.
MAX_REMAINDERS = 64
# Elements of a short sum.
WRITTEN_OUT = 4


def equal(a: Value, b: Value, reading: str, written_out: int = 1) -> bool:
    """Are the values equal for all inputs and sizes? False: not proved."""
    if a.dtype is not b.dtype:
        return False
    forms = Forms(reading, written_out)
    return _vanishes(forms, minus(forms.terms(a), forms.terms(b)), a.dtype, MAX_CASES)


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
    """The terms where the condition holds or does not, with what follows from that."""
    known = c.dim if holds else c.negated()  # is >= 0
    out = []
    for t in ts:
        tests = [f for f in t.factors if isinstance(f, Condition)]
        if any(D.nonneg(f.negated() - known) for f in tests):
            continue
        kept = tuple(
            f for f in t.factors if not (isinstance(f, Condition) and D.nonneg(f.dim - known))
        )
        out.append(Term(t.number, t.summed, kept))
    return tuple(out)


def nodes_equal(a: Node, b: Node, reading: str = "bits") -> bool:
    """Do two nodes over the same inputs have the same elements, for all sizes? How floats are read
    is one of `form.READINGS`. False: not proved."""
    if a.type != b.type:
        return False
    at = [0 if D.known_eq(d, 1) else D.var(f"@{k}", d) for k, d in enumerate(a.shape)]
    elements = Elements()
    left, right = elements.at(a, at), elements.at(b, at)
    if equal(left, right, reading):
        return True
    # Not as they are: with indices split by their remainders, and short sums written out.
    cases = remainders([D.the_sym(i) for i in at if isinstance(i, Int)], left, right)
    return bool(cases) and all(
        equal(left.substitute(c), right.substitute(c), reading, WRITTEN_OUT) for c in cases
    )


def remainders(indices: Sequence[Sym], *values: Value) -> list[dict[Sym, Dim]]:
    """The indices that are divided by constants as multiples of those and each remainder: together
    all values of the indices."""
    found = {s: lcm(*_divisors(s, values)) for s in indices}
    found = {s: n for s, n in found.items() if n > 1}
    if prod(found.values()) > MAX_REMAINDERS:
        return []
    cases: list[dict[Sym, Dim]] = []
    for rests in product(*map(range, found.values())):
        case: dict[Sym, Dim] = {}
        for (s, n), rest in zip(found.items(), rests, strict=True):
            case[s] = n * D.var(f"{s.name}.{n}.{rest}", D.ceildiv(extent(s) - rest, n)) + rest
        cases.append(case)
    return cases


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
