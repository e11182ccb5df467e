"""Which integers of a kernel are taken not to overflow, and for which launches that is so.

An integer of 32 bits that is computed from arguments, program ids and loop variables is an index
function: a number without a width. A kernel is lowered as if these numbers fitted into 32 bits, and
each that is not proved to fit is noted here with the largest magnitude that it can have, a
polynomial of the arguments and of the grid. A launch for which one of them is too large runs
another variant of the kernel, in which such numbers are wrapped around like all others.

A divisor such as `min(rows - first, 8)` is positive in every program that has something to do. It
is taken to be, and the launch computes the least that it can be; where that is not positive, the
other variant runs, in which quotients and remainders have the signs that they have in C.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from tilewright.ir import dim as D
from tilewright.ir.atom import Atom, Quo, Sym
from tilewright.ir.dim import Dim
from tilewright.ir.types import DType, i32

# A multiplier of this size or more is no stride: a hash, whose products are meant to wrap around.
LARGE = 1 << 24
LIMIT = (1 << 31) - 1  # of magnitudes
# Of more terms than this the sum would be slow to compute in every launch.
LONGEST = 32

# The names of symbols that a launch knows -> factor. All of them count as their magnitudes.
Polynomial = dict[tuple[str, ...], Fraction]


@dataclass(frozen=True)
class Bound:
    """The sum of these terms, a factor times the magnitudes of some symbols, must not be more than
    `most` in a launch."""

    terms: tuple[tuple[int, tuple[str, ...]], ...]
    most: int


@dataclass
class Positions:
    wraps: bool = False  # is whatever is not proved to fit wrapped around?
    assumed: dict[Dim, None] = field(default_factory=dict)  # to fit into 32 bits, without a proof
    known: Mapping[Atom, str] = field(default_factory=dict)  # what a launch knows, and program ids
    least: dict[Dim, None] = field(default_factory=dict)  # has to be positive in a launch
    # Of loops that count upwards: what they count, and that as a symbol which ends where they do.
    counted: dict[Sym, tuple[Dim, Dim]] = field(default_factory=dict)

    def most(self) -> tuple[Dim, ...]:
        """Functions of a launch's symbols that must not be more than LIMIT, of those numbers whose
        magnitude no polynomial is near to: there are quotients by sizes in them."""
        found = [e for x in self.assumed if (e := self._exact(x)) is not None]
        return tuple(
            x
            for k, x in enumerate(found)
            if not any(
                j != k and D.nonneg(y - x) and (j < k or y != x) for j, y in enumerate(found)
            )
        )

    def count(self, loop: Sym, first: Dim, by: Dim, end: Dim) -> None:
        """Notes a loop that counts first, first + by, … up to an end."""
        if D.bounds(by)[0] > 0 and not D.data_values(first + by + end):
            own = D.sym(f"{loop.name}?", first, end - 1)
            self.counted[loop] = first + by * D.as_int(loop), own

    def _exact(self, x: Dim) -> Dim | None:
        return self._end(x, True) if _by_sizes(x) and D.nonneg(x) else None

    def fits(self, x: Dim, dtype: DType) -> bool:
        """Is an index function a number of its dtype? One that has large numbers in it has to be
        proved to be; others are taken for positions, and noted."""
        low, high = D.bounds(x)
        most = min(1 << (dtype.bits - 1), D.INF // 2)  # from there on nothing is known
        if -most <= low and high < most:
            return True
        if not small(x, LARGE if dtype is i32 else 1 << 56):
            return False
        if dtype is i32:
            if self.wraps:
                return False
            self.assumed[x] = None
        return True

    def positive(self, x: Dim) -> bool:
        """Is an index function positive? If that is not known, a launch can tell, in terms of its
        sizes."""
        if D.bounds(x)[0] > 0:
            return True
        found = None if self.wraps else self._end(x, False)
        if found is None or D.bounds(found)[1] <= 0:
            return False
        self.least[found] = None
        return True

    def bounds(self) -> tuple[Bound, ...]:
        """What has to hold in a launch, in terms of what it knows. Numbers that depend on data are
        left out: they are not known before the kernel runs."""
        found: list[Polynomial] = []
        for x in self.assumed:
            p = _magnitude(x, self.known) if self._exact(x) is None else None
            if p is not None and len(p) <= LONGEST and p not in found:
                found.append(p)
        largest = [p for p in found if not any(q is not p and _at_most(p, q) for q in found)]
        return tuple(map(_bound, largest))

    def _end(self, x: Dim, high: bool) -> Dim | None:
        """The most or the least that an index function can be in any program, as a function of what
        a launch knows; None where its parts do not move one way."""
        x = self._by_counts(x)
        total: Dim = 0
        for atoms, c in () if isinstance(x, int) else x.terms:
            moving = [a for a in atoms if not (isinstance(a, Sym) and a in self.known)]
            part: Dim = c
            for a in atoms:
                if a not in moving:
                    part = part * D.from_atom(a)
            if moving and not D.nonneg(part * (1 if c > 0 else -1)):
                return None
            for a in moving:
                one = self._atom_end(a, high == (c > 0))
                alone = len(moving) == 1 or D.nonneg(D.from_atom(a))
                if one is None or not alone:
                    return None
                part = part * one
            total = total + part
        return x if isinstance(x, int) else total

    def _by_counts(self, x: Dim) -> Dim:
        """An index function of what loops count, where it is one: that ends where they do, while
        the last iteration of a program and the last program together would be more."""
        for loop, (number, own) in self.counted.items():
            c, by = D.coefficient(x, loop), D.coefficient(number, loop)
            if isinstance(c, int) and isinstance(by, int):
                times = c // by if c % by == 0 else 0
            else:
                times = int(c == by)
            if c != 0 and times:
                x = x - times * number + times * own
        return x

    def _atom_end(self, a: Atom, high: bool) -> Dim | None:
        if a in self.known:  # the number of a program
            return D.sym(self.known[a], 1) - 1 if high else 0
        if isinstance(a, Sym):  # a variable of a loop, or an index of a tile
            end = a.hi if high else a.lo
            return None if end is None else self._end(end, high)
        if not isinstance(a, Quo):
            return None
        first = self._end(a.a, high)
        if a.op in ("min", "max"):
            second = self._end(a.b, high)
            pick = D.minimum if a.op == "min" else D.maximum
            return None if first is None or second is None else pick(first, second)
        by = self._end(a.b, high if a.op == "mod" else not high)
        if by is None or not D.known_lt(0, a.b) or not D.nonneg(a.a):
            return None
        if a.op == "mod":
            return by - 1 if high else 0
        return None if first is None else D.floordiv(first, D.maximum(by, 1))


def _by_sizes(x: Dim) -> bool:
    """Are there quotients by what is no number in an index function?"""
    for atoms, _ in () if isinstance(x, int) else x.terms:
        for a in atoms:
            if isinstance(a, Quo):
                other = a.op == "floordiv" and not isinstance(a.b, int)
                if other or _by_sizes(a.a) or _by_sizes(a.b):
                    return True
    return False


def small(x: Dim, limit: int = LARGE) -> bool:
    """Are all numbers in a polynomial less than a limit?"""
    return abs(x) < limit if isinstance(x, int) else all(abs(c) < limit for _, c in x.terms)


def _bound(p: Polynomial) -> Bound:
    whole = math.lcm(*(c.denominator for c in p.values()))
    return Bound(tuple((int(c * whole), names) for names, c in sorted(p.items())), LIMIT * whole)


def _at_most(p: Polynomial, q: Polynomial) -> bool:
    """Is p never more than q, as magnitudes are not negative?"""
    return all(c <= q.get(names, 0) for names, c in p.items())


def _sum(parts: Iterable[Polynomial]) -> Polynomial:
    out: Polynomial = {}
    for p in parts:
        for names, c in p.items():
            out[names] = out.get(names, Fraction(0)) + c
    return out


def _number(n: int) -> Polynomial:
    return {(): Fraction(abs(n))} if n else {}


def _magnitude(x: Dim, known: Mapping[Atom, str]) -> Polynomial | None:
    """No element of an index function is larger than this, or smaller than its negative; None
    where that is not known."""
    if isinstance(x, int):
        return _number(x)
    parts: list[Polynomial] = []
    for atoms, c in x.terms:
        product: Polynomial = _number(c)
        for atom in atoms:
            p = _atom_magnitude(atom, known)
            if p is None or len(p) * len(product) > LONGEST:
                return None
            product = _sum(
                {tuple(sorted((*a, *b))): m * n} for a, m in product.items() for b, n in p.items()
            )
        parts.append(product)
    return _sum(parts)


def _atom_magnitude(atom: Atom, known: Mapping[Atom, str]) -> Polynomial | None:
    if atom in known:
        return {(known[atom],): Fraction(1)}
    if isinstance(atom, Sym):  # a variable of a loop, or an index of a tile
        if atom.hi is None or not D.nonneg(atom.lo):
            return None
        return _magnitude(atom.hi, known)
    if not isinstance(atom, Quo):
        return None
    a, b = _magnitude(atom.a, known), _magnitude(atom.b, known)
    if atom.op in ("floordiv", "mod") and not D.known_lt(0, atom.b):
        return None
    if atom.op == "mod":
        return b if b is not None else a
    if atom.op == "min" and D.nonneg(atom.a) and D.nonneg(atom.b):
        either = [p for p in (a, b) if p is not None]
        return min(either, key=lambda p: (len(p), sum(p.values())), default=None)
    if a is None:
        return None
    if atom.op == "floordiv":
        by = atom.b if isinstance(atom.b, int) else 1
        below = {} if D.nonneg(atom.a) else _number(1)  # it is rounded down
        return _sum(({names: c / by for names, c in a.items()}, below))
    if b is None:
        return None
    return b if _at_most(a, b) else a if _at_most(b, a) else _sum((a, b))
