"""Lane loops as vectors: each has as many lanes as a vector, or is not one.

Vectors have a power of two of lanes; LLVM fails on some others. A loop of twelve is two of them:

    lane j in 12:             lane j in 8:
      y: y[j] = x[j]            y: y[j] = x[j]
                              lane j in 4:
                                y: y[8+j] = x[8+j]

A loop that may end early is a whole vector where all of its iterations exist, and written out one
by one where they do not:

    lane j in min(4,n-4*i):   if #(min(4,n-4*i)) >= 4:
      y: y[4*i+j] = x[4*i+j]    lane j in min(4,n-4*i) pragma lanes 4:
                                  y: y[4*i+j] = x[4*i+j]
                              else:
                                unroll j in min(4,n-4*i):
                                  y: y[4*i+j] = x[4*i+j]

`pragma lanes` says how many lanes a loop has whose extent is no constant. Its variable keeps its
bounds, so that indices are still known to be inside their buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.ir import dim as D
from tilewright.ir.expr import const, fn, index
from tilewright.ir.target import Target
from tilewright.ir.types import i64
from tilewright.kernel.nest import LANES, If, Loop, Nest, Stmt, substitute_all, transform, walk


def whole_vectors(n: Nest, target: Target) -> Nest:
    """Every lane loop as loops of vectors, under a test where it may end early."""
    return replace(n, body=transform(n.body, _vectors))


def vector_lanes(s: Loop) -> int | None:
    """The lanes of a vector, if a lane loop is one."""
    count = s.extent if isinstance(s.extent, int) else dict(s.pragmas).get(LANES)
    return count if count is not None and count > 0 and count & (count - 1) == 0 else None


def _vectors(s: Stmt) -> tuple[Stmt, ...]:
    if not isinstance(s, Loop) or s.kind != "lane" or vector_lanes(s) is not None:
        return (s,)
    if isinstance(s.extent, int):
        return _parts(s, s.extent)
    most = D.bounds(s.extent)[1]
    whole = (replace(s, pragmas=(*s.pragmas, (LANES, most))),)
    if most & (most - 1):
        whole = _parts(s, most)
    test = fn("ge", index(s.extent), const(most, i64))
    return (If(test, whole, (replace(s, kind="unroll"),)),)


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
