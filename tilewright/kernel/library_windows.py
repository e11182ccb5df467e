"""Calls of libraries, and sums of products that are convolutions or gradients of their weights,
recognised by index functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Index, Load, Value, extent
from tilewright.ir.types import DType
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Path

# What may be either is a convolution, unless that has so many times the taps of a gradient.
FEWER = 4


@dataclass(frozen=True)
class View:
    """Elements of a buffer: the place of the first one, and the distance of neighbours along each
    axis, both counted in elements."""

    buffer: str
    dtype: DType
    offset: Dim
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]


@dataclass(frozen=True)
class LibraryCall:
    """A function of two views, whose result is stored in the third.

    product: [batch, m, k] and [batch, k, n] give [batch, m, n]
    convolution: [n, c, *space] and [o, c / groups, *kernel] give [n, o, *space]
    weight gradient: [n, c, *space] and [n, o, *windows] give [o, c, *kernel]
    """

    function: str
    views: tuple[View, View, View]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(v.buffer for v in self.views)


@dataclass(frozen=True)
class Axis:
    """A variable, or several as one: how many values it has, and its stride in each view."""

    size: Dim
    strides: tuple[Dim, Dim, Dim]

    def reads(self, k: int) -> bool:
        return self.strides[k] != 0


class Summed(Protocol):
    """One sum of products: its two operands with their conditions, its loops, its results."""

    loads: list[Load]
    buffers: list[Buffer]
    guards: list[Value | None]
    result: Buffer
    cells: tuple[Sym, ...]
    path: Path


def window_call(region: Summed) -> LibraryCall | None:
    """The call for a convolution or the gradient of its weight; None where it is neither."""
    for apart in (False, True):
        kinds = [k(region, image, apart) for image in (0, 1) for k in (_Windows, _WeightGradient)]
        found = [call for k in kinds if (call := k.call()) is not None]
        if found:  # each is the other with windows for kernels, which are much smaller
            return min(found, key=_taps)
    return None


def _taps(call: LibraryCall) -> int:
    gradient = call.function == "weight gradient"
    kernel = call.views[2 if gradient else 1]
    return D.bounds(prod(kernel.shape[2:]))[1] * (FEWER if gradient else 1)


class _Windows:
    """A sum of products as a convolution, with one of the operands as the images.

    Axes may be several in one (windows as the rows of a matrix, taps and channels as its columns):
    these are taken apart into the digits that index functions are made of.
    """

    def __init__(self, region: Summed, image: int, apart: bool) -> None:
        x, w = region.loads[image], region.loads[1 - image]
        self.source, self.result = region.buffers[image], region.result
        self.guard = region.guards[image]
        self.plain = region.guards[1 - image] is None
        self.weights = region.buffers[1 - image]
        filters = linear_index(self.weights, w.index)
        results = linear_index(region.result, tuple(map(D.as_int, region.cells)))
        every = (*x.index, filters) if apart else ()
        ends: dict[Sym, int] = {}
        if apart and self.guard is not None:
            summed = {p.var for p in region.path} - set(region.cells)
            self.guard, ends = _limits(self.guard, summed)
        own = {p.var: _digits(p.var, every, ends.get(p.var)) for p in region.path}
        table: dict[Sym, Dim] = {
            v: sum((D.as_int(d) * step for d, step in parts), 0) for v, parts in own.items()
        }
        self.index = tuple(D.substitute(i, table) for i in x.index)
        used = set().union(*map(D.symbols, self.index))
        self.cells = [d for v in region.cells for d, _ in own[v] if extent(d) != 1 or d in used]
        every_digit = {d for parts in own.values() for d, _ in parts}
        outer = {d for v in region.cells for d, _ in own[v]}
        self.summed = {d for d in every_digit - outer if extent(d) != 1 or d in used}
        self.filters, self.results = (D.substitute(i, table) for i in (filters, results))
        if self.guard is not None:
            self.guard = self.guard.substitute(table)
        self.along = [*self.cells, *self.summed]

    def call(self) -> LibraryCall | None:
        if not self.plain or not self._linear():
            return None
        channels_out = [v for v in self.cells if self.reads[v] != 0]
        if len(channels_out) != 1 or any(self.reads[v] == 0 for v in self.summed):
            return None
        (o,) = channels_out
        space: list[tuple[int, Sym, Sym]] = []  # place in the image's index, position, tap
        batch: list[tuple[int, Sym]] = []
        channel: list[tuple[int, Sym]] = []
        along = set(self.along)
        for at, i in enumerate(self.index):
            own = D.symbols(i) & along
            taps, cells = [v for v in own if v in self.summed], [v for v in own if v in self.cells]
            if len(taps) == 1 and (not cells or cells == [o]):
                channel.append((at, taps[0]))
            elif len(taps) == 1 and len(cells) == 1:
                space.append((at, cells[0], taps[0]))
            elif not taps and len(cells) == 1 and D.is_sym(i):
                batch.append((at, cells[0]))
            elif not taps and len(cells) == 1:  # windows of one pixel, with others between them
                tap = D.the_sym(D.var(f"tap{at}", 1))
                self.reads[tap] = 1
                space.append((at, cells[0], tap))
            elif own or i != 0:
                return None
        known = {o, *(v for _, v in batch), *(p for _, p, _ in space)}
        if len(channel) != 1 or len(batch) > 1 or not 1 <= len(space) <= 3:
            return None
        taken = {c for _, c in channel} | {t for *_, t in space if t in along}
        if known != set(self.cells) or taken != self.summed:
            return None
        space.sort(key=lambda s: self.cells.index(s[1]))
        return self._made(o, batch, channel[0], space)

    def _linear(self) -> bool:
        """Finds the stride of each variable in the filters and in the results; False where there
        is none."""
        found = linear_axes([self.filters, self.results, self.results], self.along)
        if found is not None:
            self.reads = {v: a.strides[0] for v, a in zip(self.along, found, strict=True)}
            self.places = {v: a.strides[1] for v, a in zip(self.along, found, strict=True)}
        return found is not None

    def _made(
        self,
        o: Sym,
        batch: list[tuple[int, Sym]],
        channel: tuple[int, Sym],
        space: list[tuple[int, Sym, Sym]],
    ) -> LibraryCall | None:
        source, guard = self.source, self.guard
        if guard is not None and guard is not _inside(self.index, source):
            return None
        at, c = channel
        channels, per_group = source.shape[at], extent(c)
        groups = _groups(self.index[at], o, c, channels)
        settings = [self._axis(place, p, t) for place, p, t in space]
        if groups is None or any(s is None for s in settings):
            return None
        if any(not D.known_eq(source.shape[b], extent(v)) for b, v in batch):
            return None
        stride, padding, dilation = zip(*(s for s in settings if s is not None), strict=True)
        strides = source.strides()
        order = (*(b for b, _ in batch), at, *(place for place, *_ in space))
        sizes, steps = tuple(source.shape[k] for k in order), tuple(strides[k] for k in order)
        taps = [t for *_, t in space]
        shape = (extent(o), per_group, *map(extent, taps))
        zero: dict[Sym, Dim] = dict.fromkeys(self.along, 0)
        start = D.substitute(self.filters, zero)
        to = tuple(self.reads[v] for v in (o, c, *taps))
        kernels = View(self.weights.name, self.weights.dtype, start, shape, to)
        axes = (*(v for _, v in batch), o, *(p for _, p, _ in space))
        cells, places = tuple(map(extent, axes)), tuple(self.places[v] for v in axes)
        if not batch:
            sizes, steps = (1, *sizes), (source.size, *steps)
            cells, places = (1, *cells), (self.result.size, *places)
        images = View(source.name, source.dtype, 0, sizes, steps)
        first = D.substitute(self.results, zero)
        out = View(self.result.name, self.result.dtype, first, cells, places)
        views = (images, kernels, out)
        return LibraryCall("convolution", views, stride, padding, dilation, groups)

    def _axis(self, place: int, p: Sym, t: Sym) -> tuple[int, int, int] | None:
        """Stride, padding and dilation of a spatial axis, where it is like any library's."""
        i = self.index[place]
        single = extent(t) == 1
        step, apart = D.coefficient(i, p), 1 if single else D.coefficient(i, t)
        before = -D.substitute(i, {p: 0, t: 0})
        if not (isinstance(step, int) and isinstance(apart, int) and isinstance(before, int)):
            return None
        taps = 0 if single else apart * D.as_int(t)
        exact = (D.substitute(i, {t: 0}) if single else i) == step * D.as_int(p) + taps - before
        if not exact or step <= 0 or apart <= 0 or before < 0:
            return None
        if before and self.guard is None:
            return None
        size = self.source.shape[place] + 2 * before - apart * (extent(t) - 1) - 1
        fits = D.known_eq(D.floordiv(size, step) + 1, extent(p))
        return (step, before, apart) if fits else None


class _WeightGradient(_Windows):
    """The same with positions of windows summed up, and taps as results."""

    def call(self) -> LibraryCall | None:
        if not self.plain or not self._linear():
            return None
        results = [v for v in self.cells if self.reads[v] != 0]
        along = set(self.along)
        batch: list[tuple[int, Sym]] = []
        channel: list[tuple[int, Sym]] = []
        space: list[tuple[int, Sym, Sym]] = []  # place in the image's index, position, tap
        for at, i in enumerate(self.index):
            own = D.symbols(i) & along
            places, taps = [v for v in own if v in self.summed], [v for v in own if v in self.cells]
            if len(places) == 1 and len(taps) == 1:
                space.append((at, places[0], taps[0]))
            elif len(taps) == 1 and not places and D.is_sym(i):
                channel.append((at, taps[0]))
            elif len(places) == 1 and not taps and D.is_sym(i) and not batch:
                batch.append((at, places[0]))
            elif len(places) == 1 and not taps:  # windows of one pixel
                tap = D.the_sym(D.var(f"tap{at}", 1))
                self.places[tap] = 1
                space.append((at, places[0], tap))
            else:
                return None
        known = {v for _, v in (*batch, *channel)} | {v for _, *pair in space for v in pair}
        whole = len(results) == len(channel) == len(batch) == 1 and known | {*results} >= along
        if not whole or results[0] in known or not 1 <= len(space) <= 3:
            return None
        (at, c), (first, n), (o,) = channel[0], batch[0], results
        source, guard = self.source, self.guard
        same = all(D.known_eq(source.shape[k], extent(v)) for k, v in ((at, c), (first, n)))
        settings = [self._axis(place, p, t) for place, p, t in space]
        if not same or any(s is None for s in settings):
            return None
        if guard is not None and guard is not _inside(self.index, source):
            return None
        stride, padding, dilation = zip(*(s for s in settings if s is not None), strict=True)
        strides, order = source.strides(), (first, at, *(place for place, *_ in space))
        images = View(
            source.name,
            source.dtype,
            0,
            tuple(source.shape[k] for k in order),
            tuple(strides[k] for k in order),
        )
        windows = self._view(self.weights, self.filters, (n, o, *(p for _, p, _ in space)))
        taps = self._view(self.result, self.results, (o, c, *(t for *_, t in space)))
        views = (images, windows, taps)
        return LibraryCall("weight gradient", views, stride, padding, dilation)

    def _view(self, b: Buffer, place: Dim, axes: Sequence[Sym]) -> View:
        table = self.reads if b is self.weights else self.places
        start = D.substitute(place, dict.fromkeys(self.along, 0))
        return View(b.name, b.dtype, start, tuple(map(extent, axes)), tuple(table[v] for v in axes))


def _limits(guard: Value, along: set[Sym]) -> tuple[Value | None, dict[Sym, int]]:
    """A condition without the parts that say only where some variables end (terms of a sum beyond
    that are 0), and these ends."""
    rest: list[Value] = []
    ends: dict[Sym, int] = {}
    waiting = [guard]
    while waiting:
        c = waiting.pop()
        if isinstance(c, Fn) and c.name == "and":
            waiting += reversed(c.args)
            continue
        if isinstance(c, Fn) and c.name == "lt" and isinstance(c.args[0], Index):
            i, most = c.args[0].dim, c.args[1]
            a = D.only_atom(i)
            step = a.b if isinstance(a, D.Quo) and a.op == "floordiv" else 1
            v = a.a if isinstance(a, D.Quo) and a.op == "floordiv" else i
            whole = isinstance(most, Const) and isinstance(step, int)
            if whole and D.is_sym(v) and D.the_sym(v) in along:
                ends[D.the_sym(v)] = step * int(most.value)
                continue
        rest.append(c)
    return (E.all_of(*rest) if rest else None), ends


def _digits(v: Sym, functions: Sequence[Dim], end: int | None) -> list[tuple[Sym, int]]:
    """A variable as digits, the first the most significant, with what each counts: where functions
    divide it. One digit where they do not, or where its parts do not divide one another. `end`:
    where it ends before its own end."""
    whole = end or extent(v)
    ends: set[int] = set()
    for f in functions:
        for a in D.atoms(f):
            if not isinstance(a, D.Quo) or not isinstance(a.b, int):
                continue
            inner, size = a.a, a.b
            if isinstance(below := D.only_atom(inner), D.Quo) and below.op == "floordiv":
                inner, size = below.a, size * below.b if isinstance(below.b, int) else 0
            if D.is_sym(inner) and D.the_sym(inner) is v and size > 0:
                ends.add(size)
    if not isinstance(whole, int):
        return [(v, 1)]
    steps = [1, *sorted(e for e in ends if 1 < e < whole)]
    upper = [*steps[1:], whole]
    if any(b % a for a, b in zip(steps, upper, strict=True)):
        steps, upper = [1], [whole]
    if end is None and len(steps) == 1:
        return [(v, 1)]
    pairs = [(a, b // a) for a, b in zip(steps, upper, strict=True)]
    made = [(D.the_sym(D.var(f"{v.name}.d{step}", size)), step) for step, size in pairs]
    return made[::-1]


def _inside(index: Sequence[Dim], b: Buffer) -> Value:
    """The condition that all indices are within the buffer, as padding states it."""
    pairs = zip(index, b.shape, strict=True)
    return E.all_of(*(c for i, d in pairs for c in (E.index(i) >= 0, E.index(i) < d)))


def _groups(i: Dim, o: Sym, c: Sym, channels: Dim) -> int | None:
    """The groups of a convolution, by the channel that it reads for a result's channel."""
    per_group, results = extent(c), extent(o)
    if i == D.as_int(c):
        return 1 if D.known_eq(channels, per_group) else None
    if not (isinstance(channels, int) and isinstance(per_group, int) and isinstance(results, int)):
        return None
    groups = channels // per_group
    if groups < 2 or channels % per_group or results % groups:
        return None
    wanted = D.floordiv(D.as_int(o), results // groups) * per_group + D.as_int(c)
    return groups if i == wanted else None


def linear_axes(lins: Sequence[Dim], along: Sequence[Sym]) -> list[Axis] | None:
    """The stride of each variable in each of three places; None where one is not linear in them."""
    strides: list[list[Dim]] = []
    for lin in lins:
        found: list[Dim] = []
        rest: Dim = D.substitute(lin, dict.fromkeys(along, 0))
        if D.symbols(rest) & set(along):
            return None
        for v in along:
            step = D.coefficient(lin, v)
            if step is None or D.symbols(step) & set(along):
                return None
            found.append(step)
            rest = rest + step * D.as_int(v)
        if rest != lin:
            return None
        strides.append(found)
    a, b, c = strides
    return [Axis(extent(v), (a[k], b[k], c[k])) for k, v in enumerate(along)]
