"""The arithmetic of symbolic integers: polynomials over atoms, their bounds and quotients.

ir/dim.py says what they are for. Sums, products, bounds and division need each other: a quotient is
simplified by what is known of its bounds, and those of a product by its factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Union

from tilewright.base.interned import Interned
from tilewright.ir.atom import (
    Atom,
    Data,
    Monomial,
    Quo,
    Sym,
    has_mod,
    interned,
    short_key,
    terms_text,
)

INF = 1 << 62
# The same functions are added, multiplied and compared over and over while kernels are scheduled:
# results are cached, enough of each kind for a large program.
remembered = lru_cache(maxsize=1 << 16)
_ints: Interned[Int] = Interned()


class Int:
    """A canonical polynomial, never a constant; `terms`: sorted (monomial, coefficient) pairs."""

    __slots__ = ("terms", "tree", "_str", "_bounds", "_syms", "_data", "__weakref__")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self.tree: int | None = None  # how large its text is without names (ir/value_print.py)
        self._str: str | None = None
        self._bounds: tuple[int, int] | None = None
        self._syms: frozenset[Sym] | None = None
        self._data: tuple[Any, ...] | None = None

    def __add__(self, other: Dim) -> Dim:
        return _add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return _subtract(self, other)

    def __rsub__(self, other: Dim) -> Dim:
        return _subtract(other, self)

    def __neg__(self) -> Dim:
        return _mul(self, -1)

    def __mul__(self, other: Dim) -> Dim:
        return _mul(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of symbolic {self} is not known; use known_* from ir.dim")

    def __repr__(self) -> str:
        if self._str is None:
            self._str = terms_text(self.terms)
        return self._str


Dim = Union[int, Int]
OnData = Union[Callable[[Any], Any], None]


def _make(terms: dict[Monomial, int]) -> Dim:
    """The only constructor of polynomials."""
    clean = {m: c for m, c in terms.items() if c}
    if has_mod(clean):
        _join_divmod(clean)
    if not clean:
        return 0
    if len(clean) == 1 and () in clean:
        return clean[()]
    return _of_terms(tuple(sorted(clean.items()) if len(clean) > 1 else clean.items()))


def _of_terms(terms: tuple[tuple[Monomial, int], ...]) -> Int:
    """The polynomial of terms that are in canonical form already."""
    found = _ints.get(terms)
    if found is None:
        found = _ints.add(terms, Int(terms))
    return found


def _join_divmod(terms: dict[Monomial, int]) -> None:
    """n*(x//n) + x%n = x, in place; x may be such a remainder in turn."""
    while any(_joined(terms, mono) for mono in list(terms)):
        pass


def _joined(terms: dict[Monomial, int], mono: Monomial) -> bool:
    """Joins a remainder in this monomial with its quotient; False where there is none."""
    for k, atom in enumerate(mono):
        if not (isinstance(atom, Quo) and atom.op == "mod"):
            continue
        c = terms[mono]
        rest = mono[:k] + mono[k + 1 :]
        quo = _quotient(atom)
        others = {tuple(sorted((*rest, quo, *m))): factor for m, factor in _terms(atom.b)}
        if any(terms.get(m) != c * factor for m, factor in others.items()):
            continue
        for m in (*others, mono):
            del terms[m]
        for m, v in _terms(atom.a):
            key = tuple(sorted((*m, *rest)))
            terms[key] = terms.get(key, 0) + v * c
            if not terms[key]:
                del terms[key]
        return True
    return False


def _quotient(atom: Quo) -> Atom:
    """The quotient that belongs to a remainder; that of x//m by n is x//(m*n)."""
    inner = only_atom(atom.a)
    if isinstance(inner, Quo) and inner.op == "floordiv":
        if isinstance(inner.b, int) and isinstance(atom.b, int):
            found = only_atom(floordiv(inner.a, inner.b * atom.b))
            if found is not None:
                return found
    return quo("floordiv", atom.a, atom.b)


def _terms(x: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(x, Int):
        return x.terms
    return (((), x),) if x else ()


@remembered
def _add(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        return _plus(a, b)
    assert isinstance(a, Int)
    out = dict(a.terms)
    for m, c in b.terms:
        out[m] = out.get(m, 0) + c
    return _make(out)


def _plus(a: Dim, number: int) -> Dim:
    """Another constant changes nothing else in a canonical form, and comes first."""
    if isinstance(a, int):
        return a + number
    terms = a.terms
    if not terms[0][0]:
        number, terms = number + terms[0][1], terms[1:]
    return _of_terms((((), number), *terms) if number else terms)


@remembered
def _subtract(a: Dim, b: Dim) -> Dim:
    if isinstance(b, int):
        return _plus(a, -b)
    out = dict(_terms(a))
    for m, c in b.terms:
        out[m] = out.get(m, 0) - c
    return _make(out)


@remembered
def _mul(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int):
        a, b = b, a
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    assert isinstance(a, Int)
    if isinstance(b, int):
        return _of_terms(tuple((m, c * b) for m, c in a.terms)) if b else 0
    out: dict[Monomial, int] = {}
    for m, c in _terms(a):
        for n, d in _terms(b):
            key = tuple(sorted((*m, *n)))
            out[key] = out.get(key, 0) + c * d
    return _make(out)


@remembered
def from_atom(atom: Atom) -> Dim:
    return _make({(atom,): 1})


def quo(op: str, a: Dim, b: Dim) -> Quo:
    sign = {"floordiv": "//", "mod": "%"}.get(op)
    text = f"({_wrap(a)}{sign}{_wrap(b)})" if sign else f"{op}({a},{b})"
    atom = interned((op, a, b), lambda: Quo(op, a, b), short_key(op, text))
    assert isinstance(atom, Quo)
    if atom._bounds is None:  # a new one: known from its parts, without recursion
        _atom_bounds(atom)
        for x in (a, b):
            symbols(x)
            data_values(x)
    return atom


def _wrap(x: Dim) -> str:
    return f"({x})" if isinstance(x, Int) and only_atom(x) is None else str(x)


def only_atom(x: Dim) -> Atom | None:
    """The atom that `x` is, if it is nothing more."""
    if isinstance(x, Int) and len(x.terms) == 1:
        mono, c = x.terms[0]
        if c == 1 and len(mono) == 1:
            return mono[0]
    return None


# ---- bounds


def bounds(x: Dim) -> tuple[int, int]:
    """Numeric inclusive bounds; ±INF where unknown."""
    if isinstance(x, int):
        return x, x
    if x._bounds is None:
        lo = hi = 0
        for mono, c in x.terms:
            a = b = c
            for atom in mono:
                l, h = _atom_bounds(atom)
                ends = [_sat(a * l), _sat(a * h), _sat(b * l), _sat(b * h)]
                a, b = min(ends), max(ends)
            lo, hi = _sat(lo + a), _sat(hi + b)
        x._bounds = _closer(x, lo, hi)
    return x._bounds


def _closer(x: Int, lo: int, hi: int) -> tuple[int, int]:
    """Bounds at both values of a factor that has two."""
    for atom in (a for mono, _ in x.terms if len(mono) > 1 for a in mono):
        rest, coef = linear(x, atom)
        if coef is not None and _atom_bounds(atom) == (0, 1):
            (a, b), (c, d) = bounds(rest), bounds(rest + coef)
            return max(lo, min(a, c)), min(hi, max(b, d))
    return lo, hi


def _sat(v: int) -> int:
    """Anything near infinity is infinite: INF - 1 is no bound."""
    return INF if v >= INF // 2 else -INF if v <= -(INF // 2) else v


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if atom._bounds is None:
        atom._bounds = _compute_bounds(atom)
    return atom._bounds


def _compute_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Sym):
        hi = INF if atom.hi is None else bounds(atom.hi)[1]
        return bounds(atom.lo)[0], hi
    if not isinstance(atom, Quo):
        return -INF, INF
    (la, ha), (lb, hb) = bounds(atom.a), bounds(atom.b)
    if atom.op == "min":
        return min(la, lb), min(ha, hb)
    if atom.op == "max":
        return max(la, lb), max(ha, hb)
    if lb < 0:
        return -INF, INF
    lb, hb = max(lb, 1), max(hb, 1)  # where it is 0 the quotient has no meaning
    if atom.op == "mod":
        return 0, min(hb - 1, ha) if la >= 0 else hb - 1
    lo = -INF if la <= -INF else la // (lb if la < 0 else hb)
    hi = INF if ha >= INF else ha // (hb if ha < 0 else lb)
    return lo, hi


@remembered
def nonneg(x: Dim, depth: int = 6) -> bool:
    """Is x >= 0 proved? Variables with symbolic bounds are eliminated at their worst end."""
    if isinstance(x, int):
        return x >= 0
    if bounds(x)[0] >= 0:
        return True
    if depth == 0:
        return False
    # In the order of the terms: a set's would differ from run to run, and so the proof. Variables
    # with symbolic bounds first: these mention the extents that appear next to them.
    atoms = dict.fromkeys(a for m, _ in x.terms for a in m)
    for atom in sorted(atoms, key=_is_bounded_by_numbers) if len(atoms) > 1 else atoms:
        if isinstance(atom, Sym) and _is_bounded_by_numbers(atom):
            continue
        rest, coef = linear(x, atom)
        if coef is None:
            continue
        if isinstance(atom, Quo) and atom.op in ("min", "max"):
            down, up = nonneg(coef, 0), nonneg(-coef, 0)
            both = (atom.op == "min") == down  # the worst case must hold for either argument
            ends = (nonneg(rest + coef * e, depth - 1) for e in (atom.a, atom.b))
            if (down or up) and both:
                return all(ends)
            if (down or up) and any(ends):  # at least as much as with either argument
                return True
        elif isinstance(atom, Quo) and atom.op == "floordiv" and isinstance(coef, int):
            if isinstance(n := atom.b, int):
                # n*(a//n) lies in [a-n+1, a]: the worst end. Of whole x, n*x > -n is enough.
                worst = atom.a if coef < 0 else atom.a - n + 1
                if coef % n == 0:
                    return nonneg(rest + coef // n * worst, depth - 1)
                open_end = not all(map(_is_bounded, symbols(worst)))
                if open_end and nonneg(n * rest + coef * worst + n - 1, depth - 1):
                    return True
            elif coef == -1 and bounds(n)[0] >= 0:  # a//n <= rest is a < (rest+1)*n
                if nonneg((rest + 1) * n - 1 - atom.a, depth - 1):
                    return True
        elif isinstance(atom, Quo) and atom.op == "mod" and isinstance(n := atom.b, Int):
            if bounds(n)[0] >= 0 and nonneg(-coef, 0) and nonneg(rest + coef * (n - 1), depth - 1):
                return True
        elif isinstance(atom, Sym) and nonneg(coef, depth - 1):
            return nonneg(rest + coef * atom.lo, depth - 1)
        elif isinstance(atom, Sym) and atom.hi is not None and nonneg(-coef, depth - 1):
            return nonneg(rest + coef * atom.hi, depth - 1)
    return False


def _is_bounded_by_numbers(atom: Atom) -> bool:
    return not isinstance(atom, Sym) or not (isinstance(atom.lo, Int) or isinstance(atom.hi, Int))


def _is_bounded(atom: Atom) -> bool:
    """By numbers on both sides?"""
    return _is_bounded_by_numbers(atom) and _atom_bounds(atom)[1] < INF


def linear(x: Int, atom: Atom) -> tuple[Dim, Dim | None]:
    """x = rest + coef*atom, or coef None where x is not linear in it."""
    rest: dict[Monomial, int] = {}
    coef: dict[Monomial, int] = {}
    for mono, c in x.terms:
        n = mono.count(atom)
        if n > 1 or any(isinstance(a, Quo) and a is not atom and _mentions(a, atom) for a in mono):
            return 0, None
        if n:
            k = mono.index(atom)
            coef[mono[:k] + mono[k + 1 :]] = c
        else:
            rest[mono] = c
    return _make(rest), _make(coef)


def _mentions(q: Quo, atom: Atom) -> bool:
    return any(a is atom for e in (q.a, q.b) for a in atoms(e))


def known_lt(a: Dim, b: Dim) -> bool:
    return nonneg(b - a - 1)


def known_le(a: Dim, b: Dim) -> bool:
    rest = b - a
    return nonneg(rest) or (isinstance(rest, Int) and _nonneg_multiple(rest))


def _nonneg_multiple(x: Int) -> bool:
    """Is x >= 0 proved, once it is known that all but its constant comes in steps of some number?
    Where x is a multiple of 4, x > -4 is enough."""
    steps = 0
    const = 0
    for mono, c in x.terms:
        if mono:
            steps = math.gcd(steps, _term_divisor(mono, c))
        else:
            const = c
    if steps <= 1:
        return False
    more = steps - 1 - const % steps  # the largest constant with which x >= 0 says the same
    return more > 0 and nonneg(x + more)


def known_eq(a: Dim, b: Dim) -> bool:
    """Are the two proved equal? (Canonical forms: mostly `is`.)"""
    return a is b or a == b


def known_ne(a: Dim, b: Dim) -> bool:
    return known_lt(a, b) or known_lt(b, a)


def divisor(x: Dim) -> int:
    """The greatest known divisor of x (0 for 0)."""
    if isinstance(x, int):
        return abs(x)
    return math.gcd(*(_term_divisor(mono, c) for mono, c in x.terms))


def _term_divisor(mono: Monomial, c: int) -> int:
    d = abs(c)
    for a in mono:
        if isinstance(a, Sym):
            d *= a.multiple
        elif isinstance(a, Quo) and a.op in ("min", "max", "mod"):
            d *= math.gcd(divisor(a.a), divisor(a.b))
    return d


# ---- quotient, remainder


@remembered
def floordiv(a: Dim, n: Dim) -> Dim:
    if isinstance(a, int) and isinstance(n, int):
        return a // n
    if isinstance(n, int) and n == 1:
        return a
    q, rest = _divide(a, n)
    if rest is None:
        return q
    part = _reduce_gcd(rest, n)
    if part is not None:
        return q + floordiv(part[0], part[1])
    inner = only_atom(rest)
    if isinstance(inner, Quo) and inner.op == "floordiv":
        if isinstance(inner.b, int) and isinstance(n, int):
            return q + floordiv(inner.a, inner.b * n)
    return q + from_atom(quo("floordiv", rest, n))


@remembered
def mod(a: Dim, n: Dim) -> Dim:
    if isinstance(a, int) and isinstance(n, int):
        return a % n
    if isinstance(n, int) and n == 1:
        return 0
    q, rest = _divide(a, n)
    if rest is None:
        return a - q * n
    part = _reduce_gcd(rest, n)
    if part is not None:
        return mod(part[0], part[1]) * part[2] + part[3]
    whole = _without_remainders(rest, n)
    return from_atom(quo("mod", rest, n)) if Int in (type(whole), type(n)) else whole % n


def _without_remainders(a: Dim, n: Dim) -> Dim:
    """What has the same remainder: (x % m) * c is x * c where n divides m * c."""
    out: Dim = 0
    for mono, c in _terms(a):
        term: Dim = _make({mono: c})
        inner = mono[0] if len(mono) == 1 else None
        if isinstance(inner, Quo) and inner.op == "mod":
            if isinstance(inner.b, int) and isinstance(n, int) and c * inner.b % n == 0:
                term = c * inner.a
        out = out + term
    return out


def _divide(a: Dim, n: Dim) -> tuple[Dim, Dim | None]:
    """a = q*n + rest with everything divisible taken out; rest None where proved in [0, n)."""
    q: dict[Monomial, int] = {}
    for mono, c in _terms(a):
        if isinstance(n, int):
            if c % n == 0 or not mono:
                q[mono] = c // n
        elif len(n.terms) == 1:
            nm, nc = n.terms[0]
            left = list(mono)
            if c % nc == 0 and all(x in left and not left.remove(x) for x in nm):
                q[tuple(left)] = c // nc
    quotient = _make(q)
    if isinstance(n, Int) and len(n.terms) > 1 and isinstance(a, Int):
        # a = k*n exactly, for a polynomial divisor: compare the leading terms
        if (k := _ratio(a, n)) is not None:
            return k, None
    rest = a - quotient * n
    if nonneg(rest) and known_lt(rest, n):
        return quotient, None
    lo, hi = bounds(rest)
    if isinstance(n, int) and max(hi, -lo) < INF and lo // n == hi // n:
        return quotient + lo // n, None
    return quotient, rest


def _ratio(a: Int, n: Int) -> Dim | None:
    (m0, c0), (m1, c1) = a.terms[0], n.terms[0]
    left = list(m0)
    if c0 % c1 or not all(x in left and not left.remove(x) for x in m1):
        return None
    k = _make({tuple(left): c0 // c1})
    return k if known_eq(k * n, a) else None


def _reduce_gcd(rest: Dim, n: Dim) -> tuple[Dim, Dim, int, Dim] | None:
    """rest = g*part + small with 0 <= small < g and g | n: then rest//n = part//(n/g)."""
    if not isinstance(rest, Int):
        return None
    size = n if isinstance(n, int) else math.gcd(*(c for _, c in n.terms))
    gs = {math.gcd(size, abs(c)) for m, c in rest.terms if m}
    for g in sorted(gs, reverse=True):
        if g <= 1:
            break
        part = {m: c // g for m, c in rest.terms if c % g == 0}
        if not part:
            continue
        small = rest - _make({m: c for m, c in rest.terms if c % g == 0})
        lo, hi = bounds(small)
        if 0 <= lo and hi < g:
            return _make(part), _make({m: c // g for m, c in _terms(n)}), g, small
    return None


# ---- what they are made of


def symbols(x: Dim) -> frozenset[Sym]:
    """Every symbol that x mentions, inside quotients and data too."""
    if isinstance(x, int):
        return frozenset()
    if x._syms is None:
        out: set[Sym] = set()
        for mono, _ in x.terms:
            for a in mono:
                if isinstance(a, Sym):
                    out.add(a)
                elif isinstance(a, Quo):
                    out |= symbols(a.a) | symbols(a.b)
                elif isinstance(a, Data):
                    out |= a.value.symbols()
        x._syms = frozenset(out)
    return x._syms


def data_values(x: Dim) -> tuple[Any, ...]:
    """The distinct values read from memory that x mentions."""
    if isinstance(x, int):
        return ()
    if x._data is None:
        out: dict[Any, None] = {}
        for mono, _ in x.terms:
            for a in mono:
                if isinstance(a, Data):
                    out[a.value] = None
                elif isinstance(a, Quo):
                    out.update(dict.fromkeys((*data_values(a.a), *data_values(a.b))))
        x._data = tuple(out)
    return x._data


def atoms(x: Dim) -> Iterator[Atom]:
    """Every distinct atom of x, inside quotients too."""
    seen: set[Atom] = set()
    stack = _own_atoms(x)
    while stack:
        a = stack.pop()
        if a not in seen:
            seen.add(a)
            yield a
            if isinstance(a, Quo):
                stack += _own_atoms(a.b)
                stack += _own_atoms(a.a)


def _own_atoms(x: Dim) -> list[Atom]:
    """Last first."""
    return [] if isinstance(x, int) else [a for mono, _ in reversed(x.terms) for a in mono[::-1]]
