"""Which terms of sums are those of a softmax: exp(x - top), where top is the largest of the same x.

The largest of such terms is 1. What a small one is off by counts for little in their sum, so that a
machine may compute them with less.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir import dim as D
from tilewright.ir.expr import Const, Fn, Load, Value, walk
from tilewright.ir.types import f32
from tilewright.ir.value_text import value_text
from tilewright.kernel.nest import Alloc, If, Nest, Path, Stmt, Store, While, own_values
from tilewright.kernel.nest import walk as walk_nest

Stores = Mapping[str, list[tuple[Store, Path]]]
Points = list[tuple[Value, Path]]


def softmax_terms(n: Nest, launch: tuple[Stmt, ...]) -> frozenset[Value]:
    """The values exp(x - top) of a launch that are added up over all x that top is the largest of.
    None where it has branches: a term may then be left out."""
    found = list(walk_nest(launch))
    if any(isinstance(s, (If, While)) for s, _ in found) or not _uses_exp(found):
        return frozenset()
    depths = {s.buffer: len(path) for s, path in found if isinstance(s, Alloc)}
    stores: dict[str, list[tuple[Store, Path]]] = {}
    for s, path in found:
        if isinstance(s, Store) and s.buffer in depths:
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
    return frozenset(out)


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
