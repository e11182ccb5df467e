"""When two nodes are equal for all inputs and sizes."""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.ir.expr import Value
from tilewright.ir.node import Node
from tilewright.ir.types import DType
from tilewright.rewrites.proofs.element import Elements
from tilewright.rewrites.proofs.form import Forms
from tilewright.rewrites.proofs.terms import Condition, Term, Terms, minus, symbols

# More conditions on free indices are too many cases.
MAX_CASES = 8


def equal(a: Value, b: Value, reading: str) -> bool:
    """Are the values equal for all inputs and sizes? False: not proved."""
    if a.dtype is not b.dtype:
        return False
    forms = Forms(reading)
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
    return equal(elements.at(a, at), elements.at(b, at), reading)
