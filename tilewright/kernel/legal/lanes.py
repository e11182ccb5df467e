"""Lane loops as vectors: each has as many lanes as a vector, or is not one.

Vectors have a power of two of lanes; LLVM fails on some others. A loop of twelve is two of them:

    lane j in 12:             lane j in 8:
      y: y[j] = x[j]            y: y[j] = x[j]
                              lane j in 4:
                                y: y[8+j] = x[8+j]

A loop that may end early is a whole vector where all of its iterations exist, and a vector under a
mask where they do not:

    lane j in min(4,n-4*i):   if #(min(4,n-4*i)) >= 4:
      y: y[4*i+j] = x[4*i+j]    lane j in min(4,n-4*i) pragma lanes 4:
                                  y: y[4*i+j] = x[4*i+j]
                              else:
                                lane j in min(4,n-4*i) pragma lanes 4 ragged 1 masked 1:
                                  y: y[4*i+j] = x[4*i+j]

`pragma lanes` says how many lanes a loop has whose extent is no constant. Its variable keeps its
bounds, so that indices are still known to be inside their buffers. `ragged`: only lanes below the
extent exist, which is at least one, and others touch no memory. What is wider than a vector of the
machine goes through such vectors, so that no more of them are computed than are needed. On GPUs,
whose lanes are elements of one thread, what is left over is written out one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.ir import dim as D
from tilewright.ir.expr import Const, Value, const, fn, index
from tilewright.ir.target import Target
from tilewright.ir.types import i64
from tilewright.kernel.nest import (
    LANES,
    MASKED,
    RAGGED,
    If,
    Loop,
    Nest,
    Stmt,
    Store,
    substitute_all,
    transform,
    walk,
)


def whole_vectors(n: Nest, target: Target) -> Nest:
    """Every lane loop as loops of vectors, under a test where it may end early."""
    bits = {b.name: max(8, b.dtype.bits) for b in n.buffers}

    def vectors(s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, Loop) or s.kind != "lane" or vector_lanes(s) is not None:
            return (s,)
        if isinstance(s.extent, int):
            return _parts(s, s.extent)
        if target.grid is not None:
            return _one_by_one(s)
        stored = [bits[x.buffer] for x, _ in walk(s.body) if isinstance(x, Store)]
        return _ragged(s, target.lanes(min(stored, default=32)))

    return replace(n, body=transform(n.body, vectors))


def vector_lanes(s: Loop) -> int | None:
    """The lanes of a vector, if a lane loop is one."""
    count = s.extent if isinstance(s.extent, int) else dict(s.pragmas).get(LANES)
    return count if count is not None and count > 0 and count & (count - 1) == 0 else None


def _one_by_one(s: Loop) -> tuple[Stmt, ...]:
    most = D.bounds(s.extent)[1]
    whole = _parts(s, most) if most & (most - 1) else (_whole(s, most),)
    return (If(_at_least(s, most), whole, (replace(s, kind="unroll"),)),)


def _ragged(s: Loop, width: int) -> tuple[Stmt, ...]:
    """Lanes of which some may not exist, as vectors of at most so many."""
    most = D.bounds(s.extent)[1]
    if most <= 1:
        return (If(_at_least(s, 1), (_whole(s, 1),)),)
    if most <= width:
        lanes = 1 << (most - 1).bit_length()
        pragmas = (*s.pragmas, (LANES, lanes), (RAGGED, 1), (MASKED, 1))
        rest: tuple[Stmt, ...] = (replace(s, pragmas=pragmas),)
        some = _at_least(s, 1)
        if not isinstance(some, Const):
            rest = (If(some, rest),)
    else:
        many = D.var(f"{s.name}.v", D.ceildiv(s.extent, width))
        inner = D.var(s.name, D.minimum(width, s.extent - width * many))
        body = substitute_all(s.body, {s.var: width * many + inner})
        part = replace(s, var=D.the_sym(inner), body=body)
        rest = (Loop(D.the_sym(many), "serial", _ragged(part, width), of=s.of),)
    if most & (most - 1):
        return rest
    return (If(_at_least(s, most), (_whole(s, most),), rest),)


def _whole(s: Loop, lanes: int) -> Loop:
    return replace(s, pragmas=(*s.pragmas, (LANES, lanes)))


def _at_least(s: Loop, count: int) -> Value:
    return fn("ge", index(s.extent), const(count, i64))


def _parts(s: Loop, count: int) -> tuple[Stmt, ...]:
    """So many iterations as vectors, the widest first."""
    out: list[Stmt] = []
    at = 0
    while at < count:
        width = 1 << ((count - at).bit_length() - 1)
        part = D.var(s.name, width)
        body = substitute_all(s.body, {s.var: part + at})
        out.append(replace(s, var=D.the_sym(part), body=body))
        at += width
    return tuple(out)


def ragged(n: Nest, target: Target) -> Iterator[str]:
    """Lane loops that are no vectors."""
    for s, _ in walk(n.body):
        if isinstance(s, Loop) and s.kind == "lane" and vector_lanes(s) is None:
            yield f"lane {s.name} in {s.extent} is no vector: its lanes are not a power of two"
