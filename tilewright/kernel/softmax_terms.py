"""Which terms of sums are those of a softmax: exp(x - top), where top is the largest of the same x.

The largest of such terms is 1. What a small one is off by counts for little in their sum, so that a
machine may compute them with less. Tiles of such terms may also be results, all of them multiplied
by one number: what a small one is off by counts for little beside the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Load, Value, fn, load, loads, walk
from tilewright.ir.types import f32
from tilewright.ir.value_text import value_text
from tilewright.kernel.nest import (
    Alloc,
    If,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    While,
    bodies,
    own_values,
    writes,
)
from tilewright.kernel.nest import walk as walk_nest

Stores = Mapping[str, list[tuple[Store, Path]]]
Points = list[tuple[Value, Path]]


def softmax_terms(n: Nest, launch: tuple[Stmt, ...]) -> frozenset[Value]:
    """The values exp(x - top) of a launch that are added up over all x that top is the largest of.
    Without tiles, none in a branch: a term may then be left out."""
    found = list(walk_nest(launch))
    if not _uses_exp(found):
        return frozenset()
    branches = (x for s, _ in found if isinstance(s, (If, While)) for x in bodies(s))
    branched = {x for body in branches for x in writes(body)}
    depths = {s.buffer: len(path) for s, path in found if isinstance(s, Alloc)}
    stores: dict[str, list[tuple[Store, Path]]] = {}
    for s, path in found:
        if isinstance(s, Store) and s.buffer in depths and s.buffer not in branched:
            stores.setdefault(s.buffer, []).append((s, path))
    out: set[Value] = set()
    for name, those in stores.items():
        sums = [(s.value, path) for s, path in those if s.function == "add"]
        parts = [_term(v) for v, _ in sums]
        terms = [(x[0], path) for x, (_, path) in zip(parts, sums, strict=True) if x is not None]
        tops = {x[1] for x in parts if x is not None}
        if len(terms) != len(parts) or len(tops) != 1:
            continue
        (top,) = tops
        depth = depths.get(top)
        if depth == depths[name] and depth is not None:
            largest = _largest(n, top, stores)
            if largest is not None and _told_apart(terms, depth) == _told_apart(largest, depth):
                out |= {v for v, _ in sums}
    return frozenset(out | set(_Tiles(n, launch).terms()))


def _uses_exp(found: list[tuple[Stmt, Path]]) -> bool:
    values = (x for s, _ in found for v in own_values(s) for x in walk(v))
    return any(isinstance(x, Fn) and x.name == "exp" for x in values)


def _term(v: Value) -> tuple[Value, str] | None:
    """x, and the buffer of one number that is subtracted, of exp(x - top)."""
    if not isinstance(v, Fn) or v.name != "exp" or v.dtype is not f32:
        return None
    (d,) = v.args
    if not isinstance(d, Fn) or d.name != "sub" or not isinstance(d.args[1], Load):
        return None
    top = d.args[1]
    return (d.args[0], str(top.source)) if all(i == 0 for i in top.index) else None


def _largest(n: Nest, name: str, stores: Stores) -> Points | None:
    """What a buffer is the largest of. Results of threads, all of which are compared, are followed
    to what those are the largest of."""
    out: Points = []
    for s, path in stores.get(name, []):
        v = s.value
        if s.function is None and isinstance(v, Const) and v.value == float("-inf"):
            continue
        if s.function != "max":
            return None
        if not isinstance(v, Load) or str(v.source) not in stores or len(v.index) != 1:
            out.append((v, path))
            continue
        own = path[-1] if path else None
        (size,) = n.buffer(str(v.source)).shape
        part = _largest(n, str(v.source), stores)
        if own is None or part is None or not D.known_eq(own.extent, size):
            return None
        if not D.known_eq(v.index[0], D.as_int(own.var)):
            return None
        out += part
    return out or None


def _told_apart(values: Points, depth: int) -> list[tuple[str, ...]]:
    """Values with the loops that they run over, whatever the names of those loops."""
    made = []
    for v, path in values:
        own = path[depth:]
        table = {p.var: D.sym(f"at{k}") for k, p in enumerate(own)}
        extents = (str(D.substitute(p.extent, table)) for p in own)
        made.append((value_text(v.substitute(table)), *extents, *(p.kind for p in own)))
    return sorted(made)


# ---- tiles that threads have in registers


@dataclass(frozen=True)
class _Placed:
    """A statement, the loops around it, and the conditions."""

    statement: Stmt
    path: Path
    tests: tuple[Value, ...]


def _placed(
    body: tuple[Stmt, ...], path: Path = (), tests: tuple[Value, ...] = ()
) -> Iterator[_Placed]:
    for s in body:
        yield _Placed(s, path, tests)
        if isinstance(s, Loop):
            yield from _placed(s.body, (*path, s), tests)
        elif isinstance(s, While):
            yield from _placed(s.body, path, (*tests, s.condition))
        elif isinstance(s, If):
            yield from _placed(s.then, path, (*tests, s.condition))
            yield from _placed(s.other, path, (*tests, fn("not", s.condition)))


# What is no more than any number, by how numbers are compared.
_LEAST = {"max": "-inf", "maxnum": "nan"}


class _Tiles:
    """The tiles of a launch, and which of them are terms of a softmax."""

    def __init__(self, n: Nest, launch: tuple[Stmt, ...]) -> None:
        self.n, self.all = n, list(_placed(launch))
        self.where = {
            p.statement.buffer: p.path for p in self.all if isinstance(p.statement, Alloc)
        }
        self.stores: dict[str, list[int]] = {}
        for k, p in enumerate(self.all):
            if isinstance(p.statement, Store):
                self.stores.setdefault(p.statement.buffer, []).append(k)

    def terms(self) -> Iterator[Value]:
        for k, p in enumerate(self.all):
            s = p.statement
            if isinstance(s, Store) and s.combine is None and not p.tests:
                results = self._results(k, s)
                if results is not None:
                    yield s.value
                    yield from (x for v in results for x in walk(v) if _is(x, "div"))

    def _results(self, k: int, s: Store) -> list[Value] | None:
        """What is stored of terms exp(a - top); None where a statement does not make such terms, or
        something else is done with them."""
        v = s.value
        d = v.args[0] if _is(v, "exp") and v.dtype is f32 else v
        a, top = d.args if _is(d, "sub") and d is not v else (d, d)
        if not isinstance(a, Load) or not isinstance(top, Load) or a is top:
            return None
        at, own = self._all_of(a, k), self._all_of(load(s.buffer, s.index, f32), k)
        found = self._largest_of(str(top.source), k)
        if at is None or own is None or found is None or self.stores[s.buffer] != [k]:
            return None
        row = tuple(at.index(i) if i in at else -1 for i in map(_variable, top.index))
        axes = [at.index(v) for v in own]
        return (
            self._scaled(s.buffer, str(a.source), axes, row) if found == (a.source, row) else None
        )

    def _all_of(self, x: Load, k: int) -> tuple[Sym, ...] | None:
        """The variables along the axes of a tile, if the loops around a statement run over all of
        its elements, each once."""
        name = str(x.source)
        if name not in self.where:
            return None
        outside, path = self.where[name], self.all[k].path
        if path[: len(outside)] != outside:
            return None
        loops = {q.var: q.extent for q in path[len(outside) :] if q.extent != 1}
        axes = [(_variable(i), d) for i, d in zip(x.index, self.n.buffer(name).shape, strict=True)]
        own = [(v, d) for v, d in axes if d != 1]
        if len(own) != len(loops) or not all(v in loops and loops[v] == d for v, d in own):
            return None
        return tuple(v for v, _ in axes if v is not None)

    def _largest_of(self, name: str, before: int) -> tuple[object, tuple[int, ...]] | None:
        """The tile of which a buffer has the largest of all elements, or of each row, and which of
        the tile's axes are its own."""
        known = [k for k in self.stores.get(name, ()) if not self._is_first(k)]
        if len(known) != 1 or max(self.stores[name]) >= before or name not in self.where:
            return None
        (k,) = known
        s = self.all[k].statement
        assert isinstance(s, Store)
        if s.combine not in _LEAST or not isinstance(s.value, Load) or self.all[k].tests:
            return None
        at, source = self._all_of(s.value, k), str(s.value.source)
        if at is None or any(v is None or v not in at for v in map(_variable, s.index)):
            return None
        row = tuple(at.index(v) for v in map(_variable, s.index) if v is not None)
        if self.where[source] != self.where[name]:
            return None
        if len(self.stores[source]) == 1:
            return (source, row) if self.stores[source][0] < k else None
        inner = self._largest_of(source, k)  # of every thread
        return None if inner is None else (inner[0], tuple(inner[1][j] for j in row))

    def _is_first(self, k: int) -> bool:
        """Is it what a buffer has before anything is compared?"""
        s = self.all[k].statement
        if not isinstance(s, Store) or s.combine is not None or not isinstance(s.value, Const):
            return False
        return str(s.value.value) in _LEAST.values()

    def _scaled(
        self, name: str, source: str, axes: list[int], row: tuple[int, ...]
    ) -> list[Value] | None:
        """The results that terms are: multiplied by one number in each row. Else they are only
        added up. Where some are no results, they are those of which the logarithm is minus
        infinity. Axes are those of the tile whose exponentials they are."""
        out: list[Value] = []
        for k, p in enumerate(self.all):
            s = p.statement
            used = [x for v in own_values(s) for x in loads(v) if str(x.source) == name]
            if not used:
                continue
            if not isinstance(s, Store) or len(used) != 1:
                return None
            x = used[0]
            if s.combine == "add" and s.value is x and not p.tests:
                continue
            here = self._all_of(x, k)
            if here is None or s.combine is not None or not self.n.buffer(s.buffer).pointer:
                return None
            fixed = {here[axes.index(j)] for j in row}
            table = {v: D.sym(f"at{j}") for v, j in zip(here, axes, strict=True)}
            masks = {t.substitute(table) for t in p.tests}
            if not _times(s.value, x, set(here) - fixed) or masks - self._present(source):
                return None
            out.append(s.value)
        return out

    def _present(self, name: str) -> set[Value]:
        """The conditions under which elements of a tile are more than minus infinity, as functions
        of the places along its axes."""
        (k,) = self.stores[name]
        s = self.all[k].statement
        assert isinstance(s, Store)
        at = self._all_of(load(name, s.index, f32), k)
        v = s.value
        if at is None or not isinstance(v, Fn) or v.name != "select" or not _is_lowest(v.args[2]):
            return set()
        return {v.args[0].substitute({x: D.sym(f"at{j}") for j, x in enumerate(at)})}


def _variable(i: Dim) -> Sym | None:
    return D.the_sym(i) if D.is_sym(i) else None


def _is(v: Value, name: str) -> bool:
    return isinstance(v, Fn) and v.name == name


def _is_lowest(v: Value) -> bool:
    return isinstance(v, Const) and v.value == float("-inf")


def _times(v: Value, x: Load, moving: set[Sym]) -> bool:
    """Is it x, or x times or by something that is the same wherever these variables are?"""
    if v is x:
        return True
    if not isinstance(v, Fn) or v.name not in ("mul", "div", "cast") or not v.dtype.is_float:
        return False
    if v.name == "cast":
        return _times(v.args[0], x, moving)
    a, b = v.args
    a, b = (b, a) if v.name == "mul" and x in walk(b) else (a, b)
    return not moving & b.symbols() and _times(a, x, moving)
