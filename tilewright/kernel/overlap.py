"""Do two uses of memory overlap: is there a cell which both touch, in iterations that stand in a
given relation to each other?

The answer is first sought in symbols, for any extents: along some axis the two indices differ by
something that is never zero. Where that is not proved and the extents are small constants, all
iterations are listed, conditions of `select` included, so the answer is exact. Otherwise, and where
an index is read from memory, the two are assumed to overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count
from math import gcd
from typing import Any

import numpy as np

from tilewright.base.traverse import operands_first
from tilewright.ir import dim as D
from tilewright.ir.combine import Combine
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Index, Load, Value, loads, loads_among
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import If, Loop, Path, Stmt, Store, bodies, own_values

# More iterations of one use, or pairs of two, than these are not listed.
MAX_POINTS = 1 << 15
MAX_PAIRS = 1 << 20
# Digits of a number that are put together again.
MAX_DIGITS = 16

# How the second iteration lies to the first, per loop: the same, later, earlier, not the same.
# Loops that are not mentioned take any values.
SAME, LATER, EARLIER, OTHER = "=", "+", "-", "!"
Relation = Mapping[Sym, str]


@dataclass(frozen=True)
class Use:
    """One place that touches memory: what a store writes, or something that it reads; also what an
    If reads to choose, and a loop to know its end."""

    store: Store | If | Loop
    load: Load | None  # None: the store's own cell
    path: Path  # the loops around it, as far as the caller needs them
    place: int  # which statement it is, in the order of the text
    sure: bool = True  # no branch is around it

    @property
    def target(self) -> Store:
        """Where it writes."""
        assert isinstance(self.store, Store)
        return self.store

    @property
    def buffer(self) -> str:
        return self.target.buffer if self.load is None else str(self.load.source)

    @property
    def index(self) -> tuple[Dim, ...]:
        return self.target.index if self.load is None else self.load.index

    @property
    def writes(self) -> bool:
        return self.load is None

    @property
    def combine(self) -> Combine | None:
        return self.target.combine if self.load is None else None

    def __str__(self) -> str:
        return f"{self.buffer}[{','.join(map(str, self.index))}]"


def uses(body: tuple[Stmt, ...], among: Set[str] | None = None) -> list[Use]:
    """Everything that statements touch; of what they read, only some buffers where these are
    given."""
    out: list[Use] = []
    places = count()
    found = loads if among is None else lambda v: loads_among(v, among)

    def visit(body: tuple[Stmt, ...], path: Path, sure: bool) -> None:
        for s in body:
            values = own_values(s)
            if isinstance(s, (Store, If, Loop)) and (values or isinstance(s, Store)):
                k = next(places)
                seen = dict.fromkeys(x for v in values for x in found(v))
                out.extend(Use(s, x, path, k, sure) for x in seen)
                if isinstance(s, Store):
                    out.append(Use(s, None, path, k, sure))
            around = (*path, s) if isinstance(s, Loop) else path
            for inside in bodies(s):
                visit(inside, around, sure and isinstance(s, Loop))

    visit(body, (), True)
    return out


def overlap(b: Buffer, first: Use, second: Use, relation: Relation, written: set[str]) -> bool:
    """May both touch one cell of the buffer, where the loops of the second stand in the relation to
    those of the first? What is in `written` changes meanwhile: no index read from it is known."""
    elsewhere = (q for q in second.path if relation.get(q.var, SAME) != SAME)
    if any(D.bounds(q.extent)[1] <= 1 for q in elsewhere):
        return False  # a loop of one iteration has no other
    axes = [
        (i, j)
        for i, j in zip(first.index, second.index, strict=True)
        if not (_reads(i) | _reads(j)) & written
    ]
    whole = len(axes) == len(b.shape)
    # Quotient and remainder of one loop say together what neither says alone.
    flat = None
    if whole and len(axes) > 1:
        flat = _flat(b, [i for i, _ in axes]), _flat(b, [j for _, j in axes])
    for one in _directions(relation):
        table = _elsewhere(second.path, one)
        differences = [D.substitute(j, table) - i for i, j in axes]
        if flat is not None:
            differences.append(D.substitute(flat[1], table) - flat[0])
        if len(axes) > 1:
            there = [D.substitute(j, table) for _, j in axes]
            here, other = _joined([i for i, _ in axes]), _joined(there)
            differences += [other[how] - x for how, x in here.items() if how in other]
        fresh = set().union(*(D.symbols(x) for x in table.values()))
        if not _never_zero(differences, fresh | {q.var for q in first.path}):
            break
    else:
        return False
    found = _listed(axes, first, second, relation)
    return True if found is None else found


def _flat(b: Buffer, index: Sequence[Dim]) -> Dim:
    """Where in the buffer an element is."""
    total: Dim = 0
    for i, s in zip(index, b.strides(), strict=True):
        total = total + i * s
    return _without_remainders(total)


def _without_remainders(x: Dim) -> Dim:
    """x with a - b*(a//b) in place of a % b: digits of one number, each times what it counts, are
    that number again. Quotients are reduced, so that those of equal numbers cancel."""
    for _ in range(MAX_DIGITS):
        terms = [] if isinstance(x, int) else x.terms
        alone = ((c, m[0]) for m, c in terms if len(m) == 1)
        digits = ((c, q) for c, q in alone if isinstance(q, D.Quo) and q.op == "mod")
        digit = next(((c, q) for c, q in digits if isinstance(q.b, int)), None)
        if digit is None:
            break
        c, q = digit
        x = x - c * D.from_atom(q) + c * (q.a - D.floordiv(q.a, q.b) * q.b)
    terms = [] if isinstance(x, int) else x.terms
    for m, c in terms:
        q = m[0] if len(m) == 1 else None
        if isinstance(q, D.Quo) and q.op == "floordiv" and isinstance(q.b, int):
            x = x + c * (_reduced(q.a, q.b) - D.from_atom(q))
    return x


def _reduced(a: Dim, b: int) -> Dim:
    """a//b by the smallest divisor: (g*x + r)//(g*b) is (x + r//g)//b."""
    terms = [] if isinstance(a, int) else a.terms
    g = max((gcd(c, b) for m, c in terms if m), default=1)
    if g == 1 or g == b:
        return D.floordiv(a, b)
    whole: Dim = 0
    for m, c in terms:
        if c % g == 0 and m:
            part: Dim = c // g
            for atom in m:
                part = part * D.from_atom(atom)
            whole = whole + part
    return D.floordiv(whole + _reduced(a - whole * g, g), b // g)


def _joined(index: Sequence[Dim]) -> dict[tuple[object, ...], Dim]:
    """Numbers of which axes are digits, by how they are put together: equal cells have equal ones.
    Of an axis that is a multiple of a digit and less than that, such as pixels of a tile, the digit
    counts: with 4*(x//w) + i and 4*(x%w) + j, where i and j are less than 4, x is known."""
    found: list[tuple[tuple[object, ...], Dim]] = []
    for k, i in enumerate(index):
        for m, c in i.terms if isinstance(i, D.Int) else ():
            rest = i - c * D.from_atom(m[0]) if len(m) == 1 and c > 0 else 0
            digit = len(m) == 1 and isinstance(m[0], D.Quo) and m[0].op in ("floordiv", "mod")
            if digit and c > 0 and D.nonneg(rest) and D.known_lt(rest, c):
                found.append(((k, c), D.from_atom(m[0])))
    out: dict[tuple[object, ...], Dim] = {}
    while pair := next(((x, y) for x in found for y in found if _high(x[1]) == y[1]), None):
        (low, x), (high, _) = pair
        q = next(D.atoms(x))
        assert isinstance(q, D.Quo)
        joined = (low, high, q.b), q.a
        found = [y for y in found if y not in pair]
        found.append(joined)
        out[joined[0]] = joined[1]
    return out


def _high(x: Dim) -> Dim | None:
    """The digit above a remainder."""
    q = next(D.atoms(x), None) if isinstance(x, D.Int) else None
    if not isinstance(q, D.Quo) or q.op != "mod" or x != D.from_atom(q):
        return None
    return D.floordiv(q.a, q.b)


def _reads(x: Dim) -> set[str]:
    return {str(y.source) for v in D.data_values(x) for y in loads(v)}


def _directions(relation: Relation) -> Iterator[dict[Sym, str]]:
    """Without OTHER: it is later or earlier."""
    free = next((v for v, how in relation.items() if how == OTHER), None)
    if free is None:
        yield dict(relation)
        return
    for how in (LATER, EARLIER):
        yield from _directions({**relation, free: how})


def _elsewhere(path: Path, relation: Relation) -> dict[Sym, Dim]:
    """The loop variables of the second use, expressed with those of the first."""
    table: dict[Sym, Dim] = {}
    for q in path:
        how = relation.get(q.var)
        if how == SAME:
            continue
        extent = D.substitute(q.extent, table)
        if how is None:
            table[q.var] = D.var(f"{q.name}'", extent)
            continue
        most = D.bounds(extent)[1]
        gap = D.sym(f"{q.name}'", 1, None if most >= D.INF else max(1, most - 1))
        table[q.var] = D.as_int(q.var) + gap if how == LATER else D.as_int(q.var) - gap
    return table


# ---- in symbols


def _never_zero(differences: list[Dim], free: set[Sym]) -> bool:
    """Is one of them surely not zero where the others are? What an equation says of a variable is
    put into the others."""
    left = list(differences)
    while left:
        if any(_nonzero(x) for x in left):
            return True
        solved = next(((x, s) for x in left for s in _unit_symbols(x) if s in free), None)
        if solved is None:
            return False
        x, s = solved
        c = D.coefficient(x, s)
        assert isinstance(c, int)
        value = (x - c * D.as_int(s)) * -c  # c is 1 or -1
        left = [D.substitute(y, {s: value}) for y in left if y is not x]
    return False


def _nonzero(x: Dim) -> bool:
    if isinstance(x, int):
        return x != 0
    if D.nonneg(x - 1) or D.nonneg(-x - 1):
        return True
    divisor = 0
    rest = 0
    for mono, c in x.terms:
        if mono:
            divisor = gcd(divisor, c)
        else:
            rest = c
    return divisor > 1 and rest % divisor != 0


def _unit_symbols(x: Dim) -> Iterator[Sym]:
    """Symbols that the equation x = 0 gives as a whole number of the others."""
    for mono, c in x.terms if isinstance(x, D.Int) else ():
        if len(mono) == 1 and c in (1, -1) and isinstance(s := mono[0], D.Sym):
            if D.coefficient(x, s) == c:
                yield s


# ---- point by point


def _listed(
    axes: list[tuple[Dim, Dim]], first: Use, second: Use, relation: Relation
) -> bool | None:
    """The same question, answered by listing all iterations; None where they are too many."""
    axes = [(i, j) for i, j in axes if not D.data_values(i) and not D.data_values(j)]
    related = {q.var: q for q in (*first.path, *second.path) if q.var in relation}
    private = {q.var for q in (*first.path, *second.path)} - set(related)
    sides: list[dict[Sym, np.ndarray]] = []
    cells: list[list[np.ndarray]] = []
    for use, index in ((first, [i for i, _ in axes]), (second, [j for _, j in axes])):
        tests = _conditions(use)
        known = set(related).union(*(D.symbols(i) for i in index), *(t.symbols() for t, _ in tests))
        points = _points(known)
        if points is None:
            return None
        env: dict[str, Any] = {s.name: x for s, x in points.items()}
        size = len(next(iter(points.values()))) if points else 1
        taken = np.ones(size, bool)
        for test, want in tests:
            holds = _truth(test, env)
            if holds is not None:
                taken &= np.broadcast_to(holds, (size,)) == want
        sides.append({s: x[taken] for s, x in points.items()})
        here = (np.broadcast_to(D.evaluate(i, env), (size,)) for i in index)
        cells.append([x[taken] for x in here])
    if not all(_size(s, c) for s, c in zip(sides, cells)):
        return False
    common = [s for s in sides[0] if s in sides[1] and s not in private and s not in related]
    equal = common + [v for v in related if relation[v] == SAME]
    keys = [[*c, *(s[v] for v in equal)] for s, c in zip(sides, cells)]
    moved = [(v, relation[v]) for v in related if relation[v] != SAME]
    return _pairs(keys, sides, moved)


def same_last(use: Use, old: Sequence[Sym], new: Sequence[Sym]) -> bool:
    """Is the last iteration to touch a cell the same in both orders of the loops? (False where that
    is not known.)"""
    if any(D.data_values(i) for i in use.index):
        return False
    points = _points({*old, *(s for i in use.index for s in D.symbols(i))})
    if points is None:
        return False
    size = len(next(iter(points.values())))
    env: dict[str, Any] = {s.name: x for s, x in points.items()}
    inner = {q.var for q in use.path} - set(old)
    keys = [np.broadcast_to(D.evaluate(i, env), (size,)) for i in use.index]
    keys += (x for s, x in points.items() if s not in old and s not in inner)
    cells = np.unique(np.stack(keys, 1), axis=0, return_inverse=True)[1].reshape(-1)
    # Sorted by cell and then in order: the last row of every cell.
    last: list[np.ndarray] = []
    for order in (old, new):
        rows = np.lexsort((*(points[v] for v in reversed(order)), cells))
        ends = np.flatnonzero(np.append(np.diff(cells[rows]), 1))
        last.append(np.stack([points[v][rows[ends]] for v in old]))
    return np.array_equal(last[0], last[1])


def _size(side: Mapping[Sym, np.ndarray], cells: list[np.ndarray]) -> int:
    return min((len(x) for x in (*side.values(), *cells)), default=1)


def _pairs(
    keys: list[list[np.ndarray]],
    sides: list[dict[Sym, np.ndarray]],
    moved: list[tuple[Sym, str]],
) -> bool | None:
    """Is there a pair of rows with equal keys whose moved variables stand in the given relation?"""
    first, second = (
        [np.asarray(x, np.int64) for x in (*k, *(s[v] for v, _ in moved))]
        for k, s in zip(keys, sides)
    )
    if not first:
        return True
    n, count = len(keys[0]), len(first[0])
    rows = np.unique(np.stack(first, 1), axis=0)
    others = np.unique(np.stack(second, 1), axis=0)
    if not count or not len(second[0]):
        return False
    if n:
        both = np.concatenate([rows[:, :n], others[:, :n]])
        group = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
        mine, theirs = group[: len(rows)], group[len(rows) :]
    else:
        mine, theirs = np.zeros(len(rows), np.int64), np.zeros(len(others), np.int64)
    order = np.argsort(theirs, kind="stable")
    theirs, others = theirs[order], others[order]
    begin, end = np.searchsorted(theirs, mine, "left"), np.searchsorted(theirs, mine, "right")
    counts = end - begin
    total = int(counts.sum())
    if total > MAX_PAIRS:
        return None
    left = np.repeat(np.arange(len(rows)), counts)
    right = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    right = right + np.repeat(begin, counts)
    fits = np.ones(total, bool)
    for k, (_, how) in enumerate(moved):
        a, b = rows[left, n + k], others[right, n + k]
        fits &= b > a if how == LATER else b < a if how == EARLIER else b != a
    return bool(fits.any())


def _points(known: set[Sym]) -> dict[Sym, np.ndarray] | None:
    """All values which the symbols, and those that bound them, take together; None where some have
    no constant bound, or one read from memory, or there are too many."""
    ends: dict[Sym, tuple[Dim, Dim]] = {}
    todo = sorted(known, key=lambda s: s.name)
    for s in todo:
        if s.hi is None or D.data_values(s.lo) or D.data_values(s.hi):
            return None
        ends[s] = s.lo, s.hi
        todo += (x for x in D.symbols(s.lo) | D.symbols(s.hi) if x not in todo)
    if len({s.name for s in ends}) < len(ends):
        return None  # loops of one name with different extents
    out: dict[Sym, np.ndarray] = {}
    total = 1
    while len(out) < len(ends):
        left = (s for s in ends if s not in out)
        s = next(s for s in left if set().union(*map(D.symbols, ends[s])) <= out.keys())
        env = {s.name: x for s, x in out.items()}
        low, high = (np.asarray(D.evaluate(x, env)) for x in ends[s])
        counts = np.broadcast_to(np.maximum(high - low + 1, 0), (total,))
        total = int(counts.sum())
        if total > MAX_POINTS:
            return None
        starts = np.cumsum(counts) - counts
        out = {s: np.repeat(x, counts) for s, x in out.items()}
        begin = np.repeat(np.broadcast_to(low, counts.shape), counts)
        out[s] = np.arange(total) - np.repeat(starts, counts) + begin
    return out


# ---- conditions under which something is read


def _conditions(use: Use) -> tuple[tuple[Value, bool], ...]:
    if use.load is None:
        return ()
    return _guards(tuple(own_values(use.store))).get(use.load, ())


def _guards(roots: tuple[Value, ...]) -> dict[Value, tuple[tuple[Value, bool], ...]]:
    """Per value, the conditions that hold wherever it is used."""
    known: dict[Value, None] = {}
    for r in roots:
        for v in operands_first(r, lambda x: x.operands(), known):
            known[v] = None
    found: dict[Value, tuple[tuple[Value, bool], ...]] = dict.fromkeys(roots, ())
    for v in reversed(known):  # users of a value come before it
        now = found[v]
        under = [(x, now) for x in v.operands()]
        if isinstance(v, Fn) and v.name == "select":
            test, yes, no = v.args
            under = [(test, now), (yes, (*now, (test, True))), (no, (*now, (test, False)))]
        for x, conditions in under:
            before = found.get(x)
            if before is None:
                found[x] = conditions
            elif before:
                also = set(conditions)
                found[x] = tuple(g for g in before if g in also)
    return found


_COMPARE = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def _truth(v: Value, env: Mapping[str, Any]) -> Any:
    """A condition over index functions at every point; None where it depends on data."""
    known: dict[Value, Any] = {}
    for x in operands_first(v, lambda x: x.args, known):
        known[x] = _truth_of(x, [known[a] for a in x.args], env)
    return known[v]


def _truth_of(v: Value, args: list[Any], env: Mapping[str, Any]) -> Any:
    if isinstance(v, Const):
        return v.value
    if isinstance(v, Index):
        return None if D.data_values(v.dim) else D.evaluate(v.dim, env)
    if not isinstance(v, Fn) or any(x is None for x in args):
        return None
    if v.name in _COMPARE:
        return _COMPARE[v.name](*args)
    if v.name in ("and", "or") and v.dtype.is_bool:
        return (np.logical_and if v.name == "and" else np.logical_or)(*args)
    return np.logical_not(args[0]) if v.name == "not" and v.dtype.is_bool else None
