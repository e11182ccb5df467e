"""Tiles that lie in the registers of threads: which thread has which element.

Instructions of a whole warp take operands from the private memory of its 32 threads, those of a
group of four warps from that of its 128. Which element is whose is a fragment: a list of the last
coordinates of the private buffer as functions of the instruction's axes, where some are a thread's
place,

    k//8, i//8, thread.y: i%8, thread.x: k//2%4, k%2

All else are places in the memory of that thread. A warp is 4 threads along x and 8 along y, a group
has 4 warps along z. The coordinates are digits of loop variables, so that a layout is compared with
a declaration by comparing index functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.maps import Map

# Threads of a warp along each axis of a block that has instructions of whole warps.
WARP = {"thread.x": 4, "thread.y": 8}
PLACES = (*WARP, "thread.z")
LANES = 32
LANE = D.the_sym(D.var("lane", LANES))


@dataclass(frozen=True)
class Coordinate:
    """One axis of a private buffer: an index function of an instruction's axes, and the thread
    axis along which it determines the owner."""

    at: Dim
    thread: str | None


@lru_cache(maxsize=256)
def parse_fragment(text: str, axes: tuple[str, ...]) -> tuple[Coordinate, ...]:
    """The coordinates of a declared fragment, as functions of symbols with the axes' names."""
    parts = [p.strip() for p in text.split(",")]
    threads = [p.partition(":")[0].strip() if ":" in p else None for p in parts]
    strange = [t for t in threads if t is not None and t not in PLACES]
    owners = [t for t in threads if t is not None]
    if strange or len(set(owners)) != len(owners):
        raise Invalid(
            f"the fragment {text!r} has threads along {', '.join(owners)}",
            hint=f"at most one coordinate for each of {', '.join(PLACES)}",
        )
    functions = ", ".join(p.partition(":")[2] if ":" in p else p for p in parts)
    found = Map.parse(f"{', '.join(axes)} -> {functions}").target
    return tuple(Coordinate(d, t) for d, t in zip(found, threads, strict=True))


@lru_cache(maxsize=256)
def lane_function(text: str) -> Dim:
    """An index function of `lane`, the number of a thread in its warp."""
    (found,) = Map.parse(f"lane -> {text}").target
    return D.substitute(found, {D.the_sym(D.sym("lane")): D.as_int(LANE)})


def without_zeros(fragment: tuple[Coordinate, ...], axes: dict[str, Dim]) -> tuple[Coordinate, ...]:
    """The fragment without its first coordinates that are 0 for these axes: what a buffer has there
    says where the fragment begins, as any axis before it does."""
    table: dict[Sym, Dim] = {D.the_sym(D.sym(a)): v for a, v in axes.items()}
    first = 0
    for c in fragment:
        if c.thread is not None or D.bounds(D.substitute(c.at, table)) != (0, 0):
            break
        first += 1
    return fragment[first:]


def placed(
    fragment: tuple[Coordinate, ...], index: tuple[Dim, ...], axes: dict[str, Dim]
) -> str | None:
    """What is wrong with an index as a place in a fragment: its last coordinates have to be the
    declared ones, and those before must not move with the axes. The first one in a thread's own
    memory may begin anywhere: what is further inside lies as it does from 0 on."""
    table: dict[Sym, Dim] = {D.the_sym(D.sym(a)): v for a, v in axes.items()}
    moving = set().union(*(D.symbols(v) for v in axes.values()))
    before, last = index[: -len(fragment)], index[-len(fragment) :]
    if len(last) < len(fragment):
        return f"it has {len(index)} axes, the fragment {len(fragment)}"
    for k, i in enumerate(before):
        if D.symbols(i) & moving and D.bounds(i) != (0, 0):
            return f"axis {k}, before those of the fragment, is {i}"
    for k, (i, c) in enumerate(zip(last, fragment, strict=True)):
        want = D.substitute(c.at, table)
        both = D.symbols(i) | D.symbols(want)
        once: dict[Sym, Dim] = {s: 0 for s in both if D.bounds(D.as_int(s)) == (0, 0)}
        gap = D.substitute(i, once) - D.substitute(want, once)
        if k == outermost(fragment) and not D.symbols(gap) & moving:
            continue
        if not D.known_eq(gap, 0):
            return f"axis {k + len(before)} is {i}, the fragment has {want} there"
    return None


def outermost(fragment: tuple[Coordinate, ...]) -> int:
    """The first coordinate that is a place in a thread's own memory."""
    own = [k for k, c in enumerate(fragment) if c.thread is None]
    return own[0] if own else -1
