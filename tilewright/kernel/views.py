"""Boxes of arrays: what the copy engine brings at a time.

An argument says what array it is. Only addresses are known of a pointer: a copy out of it is
`select(i < M & k < N, p[s*i+k], 0)`. The conditions say where the axes of an array end, and the
index how far apart their elements are. What remains of the index is where the array begins. So a
copy that a kernel wrote by a tensor descriptor is known again, and no less one that it wrote out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.ir import dim as D
from tilewright.ir.conditions import parts_of
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Fn, Load, Value
from tilewright.kernel.group import Buffer
from tilewright.kernel.swizzle import multiple

# An axis of an array has no more elements, so that places past its end are numbers of 32 bits too.
FARTHEST = 2**31 - 512
UNIT = 16  # bytes: the copy engine takes rows at multiples of them


@dataclass(frozen=True)
class View:
    """An array behind a pointer, and the element of it that is read. Axes of the copy's loops come
    last, in their order. Sizes, strides and the first element are known at a launch."""

    first: Dim
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]  # in elements
    index: tuple[Dim, ...]


@dataclass(frozen=True)
class Box:
    """The first element of a box, and how many it has along each axis."""

    first: tuple[Dim, ...]
    box: tuple[int, ...]
    view: View | None = None


def box_in(
    b: Buffer, index: tuple[Dim, ...], along: Sequence[Dim], loops: Collection[Sym], axes: int
) -> Box | str:
    """The box of an argument that is read along these places, if they are axes of the argument, in
    order, the last one its columns."""
    if b.scope != "in" or len(index) != axes:
        return f"{b.name} is no argument of {axes} axes"
    inside: dict[Sym, Dim] = dict.fromkeys(loops, 0)
    first = tuple(D.substitute(d, inside) for d in index)
    left = [d for d in along if d != 0]
    box: list[int] = []
    for k, (at, start) in enumerate(zip(index, first, strict=True)):
        here = left[0] if left and not D.known_eq(at, start) else 0
        columns = k == len(index) - 1
        if not D.known_eq(at - start, here) or (len(left) == 1 and here != 0 and not columns):
            return f"axis {k} of {b.name} is read at {at}, which is no box"
        box.append(D.bounds(here)[1] + 1)
        left = left[1:] if here != 0 else left
    return f"{b.name} is not read along {left[0]}" if left else Box(first, tuple(box))


def box_behind(
    b: Buffer,
    x: Load,
    given: Sequence[Value],
    loops: Sequence[Sym],
    dims: Collection[Sym],
    axes: int,
) -> Box | str:
    """The box of an array behind a pointer that is read in these loops, along its last axes."""
    found = view_of(x, given, loops, dims)
    if isinstance(found, str):
        return found
    wrong = misfit(found, b, axes)
    if wrong is not None:
        return wrong
    inside: dict[Sym, Dim] = dict.fromkeys(loops, 0)
    first = tuple(D.substitute(d, inside) for d in found.index)
    sizes = [D.bounds(D.as_int(v))[1] + 1 for v in loops]
    return Box(first, (*[1] * (axes - len(sizes)), *sizes), found)


def view_of(
    x: Load, given: Sequence[Value], loops: Sequence[Sym], dims: Collection[Sym]
) -> View | str:
    """The array that a copy reads, where conditions hold, in these loops; or why it is none."""
    (rest,) = x.index
    known = frozenset(dims)
    found = _conditions(given)
    if isinstance(found, str):
        return found
    ends, begins = found
    axes: list[tuple[Dim, Dim, Dim]] = []  # place, size, stride
    own: dict[Sym, tuple[Dim, Dim, Dim]] = {}
    # Axes of loops first: what they leave is that of the others.
    for place, size in sorted(ends, key=lambda x: D.symbols(x[0]).isdisjoint(loops)):
        if not _fixed(size, known):
            return f"an axis ends at {size}, which differs between programs"
        if not D.nonneg(place) and place not in begins:
            return f"{place} may be less than 0"
        inside = [v for v in loops if v in D.symbols(place)]
        if not inside:
            stride = _quotient(rest, place, known)
        elif len(inside) > 1 or D.coefficient(place, inside[0]) != 1:
            return f"{place} is no place along one axis"
        elif inside[0] in own:
            return f"two conditions are on {inside[0].name}"
        else:
            stride = D.coefficient(rest, inside[0])
        if stride is None or stride == 0:
            return f"{rest} does not move with {place}"
        if inside:
            own[inside[0]] = (place, size, stride)
        else:
            axes.append((place, size, stride))
        rest = rest - place * stride
    if begins - {place for place, _ in ends}:
        return "a place has a beginning and no end"
    for v in loops:
        if v not in own:
            stride = D.coefficient(rest, v)
            if stride is None:
                return f"{x!r} is not walked through evenly along {v.name}"
            offset = _multiples(rest, stride, v, known)
            place = D.as_int(v) + offset
            low, high = D.bounds(place)
            if low < 0 or high >= FARTHEST:
                return f"where {v.name} ends is not known"
            own[v] = (place, high + 1, stride)
            rest = rest - place * stride
    axes += [own[v] for v in loops]
    if not _fixed(rest, known) or not all(_fixed(stride, known) for _, _, stride in axes):
        return f"where the array begins or its strides differ between programs: {rest}"
    places, shape, strides = zip(*axes, strict=True)
    return View(rest, shape, strides, places)


def misfit(v: View, b: Buffer, axes: int) -> str | None:
    """Why the copy engine does not take an array behind a pointer; None: it does."""
    if len(v.shape) != axes:
        return f"it has {len(v.shape)} axes, not {axes}"
    if b.scope != "in":
        return f"{b.name} may be written meanwhile"
    if v.strides[-1] != 1:
        return f"elements along the last axis are {v.strides[-1]} apart"
    steps = [v.first, *v.strides[:-1]]
    if b.alignment % UNIT or not all(multiple(d * b.dtype.bytes, UNIT) for d in steps):
        return f"its rows are not known to be at multiples of {UNIT} bytes"
    least = [D.bounds(d)[0] for d in (*v.shape, *v.strides)]
    return None if min(least) > 0 else "its sizes and strides are not known to be positive"


def _conditions(given: Sequence[Value]) -> tuple[list[tuple[Dim, Dim]], set[Dim]] | str:
    """Places that are less than something, and those that are at least 0."""
    ends: list[tuple[Dim, Dim]] = []
    begins: set[Dim] = set()
    for c in (part for v in given for part in parts_of(v)):
        whole = isinstance(c, Fn) and all(v.dtype.is_int for v in c.args)
        if whole and c.name == "lt":
            ends.append((c.args[0].as_dim(), c.args[1].as_dim()))
        elif whole and c.name == "le" and c.args[0].as_dim() == 0:
            begins.add(c.args[1].as_dim())
        else:
            return f"it is read where {c!r}"
    return ends, begins


def _fixed(x: Dim, known: frozenset[Sym]) -> bool:
    return not D.data_values(x) and D.symbols(x) <= known


def _terms(x: Dim) -> list[tuple[tuple[D.Atom, ...], int]]:
    return [((), x)] if isinstance(x, int) else list(x.terms)


def _product(c: int, atoms: Sequence[D.Atom]) -> Dim:
    out: Dim = c
    for a in atoms:
        out = out * D.from_atom(a)
    return out


def _without(mono: Sequence[D.Atom], part: Sequence[D.Atom]) -> list[D.Atom] | None:
    """A monomial divided by another one."""
    left = list(mono)
    for a in part:
        if a not in left:
            return None
        left.remove(a)
    return left


def _quotient(x: Dim, place: Dim, known: frozenset[Sym]) -> Dim | None:
    """What a place is multiplied by in an index, by a part of it that is not known before."""
    moving = [(m, c) for m, c in _terms(place) if m and not _fixed(_product(1, m), known)]
    if not moving:
        return None
    part, by = moving[0]
    total: Dim = 0
    for mono, c in _terms(x):
        left = _without(mono, part)
        if left is not None:
            if c % by:
                return None
            total = total + _product(c // by, left)
    return total


def _multiples(x: Dim, stride: Dim, v: Sym, known: frozenset[Sym]) -> Dim:
    """What an index has beside v of multiples of v's stride, but for what a launch knows: that is
    where the array begins. Numbers are part of the place, which may be any."""
    if len(_terms(stride)) != 1 or stride == 0:
        return 0
    ((part, by),) = _terms(stride)
    total: Dim = 0
    for mono, c in _terms(x):
        left = _without(mono, part)
        if left is not None and c % by == 0 and v not in left:
            found = _product(c // by, left)
            own = isinstance(found, int) and found > 0
            total = total + (found if own or not _fixed(found, known) else 0)
    return total
