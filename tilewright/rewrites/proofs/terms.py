"""Sums of products: a rational number, summed indices, and factors.

A factor is a value that stands for itself, or a test that is 1 or 0: a `Condition` on indices, or a
value of dtype bool. Tests are their own squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.expr import Value, extent, index
from tilewright.ir.value_text import dim_text
from tilewright.rewrites.proofs.element import fresh


@dataclass(frozen=True)
class Condition:
    """1 where `dim` >= 0, else 0."""

    dim: Int

    def negated(self) -> Dim:
        """At least 0 where the condition does not hold."""
        return -self.dim - 1

    def text(self) -> str:
        return f"[{dim_text(self.dim)}>=0]"


Factor = Value | Condition


@dataclass(frozen=True)
class Term:
    number: Fraction
    summed: tuple[Sym, ...]
    factors: tuple[Factor, ...]

    def times(self, o: Term) -> Term:
        return Term(self.number * o.number, self.summed + o.summed, self.factors + o.factors)


Terms = tuple[Term, ...]
ONE: Terms = (Term(Fraction(1), (), ()),)


def number(x: int | Fraction) -> Terms:
    return (Term(Fraction(x), (), ()),) if x else ()


def atom(f: Factor) -> Terms:
    """What stands for itself."""
    return (Term(Fraction(1), (), (f,)),)


def is_test(f: Factor) -> bool:
    return isinstance(f, Condition) or f.dtype.is_bool


def scaled(ts: Terms, by: int | Fraction) -> Terms:
    return tuple(Term(t.number * by, t.summed, t.factors) for t in ts)


def minus(a: Terms, b: Terms) -> Terms:
    return a + scaled(b, -1)


def negated(c: Terms) -> Terms:
    """1 where the truth value is 0."""
    return minus(ONE, c)


def times(a: Terms, b: Terms) -> Terms:
    return tuple(x.times(_apart(y, x)) for x, y in product(a, b))


def _apart(t: Term, other: Term) -> Term:
    """t with summed indices that `other` does not use: a square sums twice, not once."""
    return with_own_indices(t) if set(t.summed) & set(other.summed) else t


def with_own_indices(t: Term) -> Term:
    names: dict[Sym, Dim] = {}
    for s in t.summed:
        names[s] = fresh(D.substitute(extent(s), names))
    renamed = Term(t.number, tuple(D.the_sym(names[s]) for s in t.summed), t.factors)
    return substituted(renamed, names)


def substituted(t: Term, table: dict[Sym, Dim]) -> Term:
    """The term with indices replaced in its factors; 0 times it where a condition becomes false."""
    value = t.number
    factors: list[Factor] = []
    for f in t.factors:
        if not isinstance(f, Condition):
            factors.append(f.substitute(table))
            continue
        x = D.substitute(f.dim, table)
        if isinstance(x, Int):
            factors.append(Condition(x))
        elif x < 0:
            value = Fraction(0)
    return Term(value, t.summed, tuple(factors))


def symbols(f: Factor) -> frozenset[Sym]:
    return D.symbols(f.dim) if isinstance(f, Condition) else f.symbols()


def dim_terms(x: Dim) -> Terms:
    """An index used as a number."""
    if isinstance(x, int):
        return number(x)
    return tuple(
        Term(Fraction(c), (), tuple(index(D.from_atom(a)) for a in mono)) for mono, c in x.terms
    )


def at_least(x: Dim) -> tuple[Terms, Terms]:
    """(1 where x >= 0, 1 where it is not)."""
    if isinstance(x, int):
        return (ONE, ()) if x >= 0 else ((), ONE)
    yes = Condition(x)
    no = yes.negated()
    assert isinstance(no, Int)
    return atom(yes), atom(Condition(no))


# What integers and real numbers have alike, by the names of scalar functions.
RING: dict[str, Callable[..., Terms]] = {
    "add": lambda a, b: a + b,
    "sub": minus,
    "neg": lambda a: scaled(a, -1),
    "mul": times,
}
