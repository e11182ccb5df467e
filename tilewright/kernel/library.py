"""Stages that a library of the GPU's maker computes too: products and convolutions.

They are recognised by their index functions, never by names. Loops of kind "library" (the step is
steps/library.py) say what is computed, and run where there is no library; a program has one call in
their place, which is recognised once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Index, Load, Value, extent
from tilewright.ir.types import DType
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Alloc, Loop, Nest, Path, Stmt, Store, walk

LIBRARY = "library"
FLOATS = ("bf16", "f16", "f32", "f64")


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


def library_loops(n: Nest) -> tuple[Loop, ...]:
    """The loops that a library call stands for."""
    return tuple(s for s in n.body if isinstance(s, Loop) and s.kind == LIBRARY)


def without_library(n: Nest) -> Nest:
    """The statements that stay ours, and the buffers that they use."""
    gone = library_loops(n)
    if not gone:
        return n
    body = tuple(s for s in n.body if not any(s is x for x in gone))
    used = {name for s in body if not isinstance(s, Alloc) for name in _mentioned(s)}
    body = tuple(s for s in body if not isinstance(s, Alloc) or s.buffer in used)
    arguments = ("in", "out")
    buffers = tuple(b for b in n.buffers if b.name in used or b.scope in arguments)
    return replace(n, body=body, buffers=buffers)


def library_calls(n: Nest) -> tuple[LibraryCall, ...]:
    """The call of a nest's library loops, which comes before everything else."""
    loops = library_loops(n)
    return (recognised(n, loops),) if loops else ()


def recognised(n: Nest, loops: Sequence[Stmt]) -> LibraryCall:
    """What a library is called for in place of some loops; Refused where it computes no such
    thing."""
    found = _Region(n, loops)
    product = found.product()
    if product is not None:
        return product
    call = found.convolution()
    if call is None:
        raise Refused(
            "no library function computes this: it is neither a product of matrices nor a "
            "convolution over memory with constant strides"
        )
    return call


def _mentioned(s: Stmt) -> set[str]:
    found: set[str] = set()
    for x, _ in walk((s,)):
        if isinstance(x, Store):
            found |= {x.buffer, *(str(r.source) for r in E.loads(x.value))}
        elif isinstance(x, Alloc):
            found.add(x.buffer)
    return found


@dataclass(frozen=True)
class _Axis:
    """A variable, or several as one: how many values it has, and its stride in each view."""

    size: Dim
    strides: tuple[Dim, Dim, Dim]

    def reads(self, k: int) -> bool:
        return self.strides[k] != 0


class _Region:
    """One sum of products, its initial value before it, and a conversion of the result after it."""

    def __init__(self, n: Nest, loops: Sequence[Stmt]) -> None:
        self.n = n
        stores = [(s, p) for s, p in walk(tuple(loops)) if isinstance(s, Store)]
        sums = [(s, p) for s, p in stores if s.combine is not None]
        _need(len(sums) == 1 and sums[0][0].combine == "add", "there is not one sum of products")
        self.store, self.path = sums[0]
        at = next(k for k, (s, _) in enumerate(stores) if s is self.store)
        self._check_start(stores[:at])
        self.result = self._result(stores[at + 1 :])
        self.cells = self._cells()
        _need(isinstance(self.store.value, Fn) and self.store.value.name == "mul", "no product")
        operands = [_operand(x) for x in self.store.value.operands()]
        _need(len(operands) == 2, "the product does not have two operands")
        self.guards = [g for g, _ in operands]
        self.loads = [x for _, x in operands]
        self.buffers = [self._plain(n.buffer(str(x.source))) for x in self.loads]
        dtypes = {b.dtype for b in self.buffers}
        _need(len(dtypes) == 1, "the operands are of different dtypes")
        self.dtype = dtypes.pop()
        _need(self.dtype.name in FLOATS, f"there is no library function of {self.dtype}")
        wide = self.dtype.accumulator
        known = self.result.dtype in (self.dtype, wide)
        _need(known, f"products of {self.dtype} are stored as {self.result.dtype}")
        same = n.buffer(self.store.buffer).dtype is wide
        _need(same, "sums are not as wide as the library's")

    def _check_start(self, before: Sequence[tuple[Store, Path]]) -> None:
        _need(len(before) == 1, "sums begin with more than an initial value")
        first, path = before[0]
        zero = isinstance(first.value, Const) and first.value.value == 0
        whole = _is_whole(self.n.buffer(first.buffer), first, path)
        _need(first.buffer == self.store.buffer and zero and whole, "sums do not begin with 0")

    def _result(self, after: Sequence[tuple[Store, Path]]) -> Buffer:
        """Where the sums are in the end: in their own buffer, or converted in another one."""
        own = self.n.buffer(self.store.buffer)
        if not after:
            return self._plain(own)
        _need(len(after) == 1, "more is done to the sums than a conversion")
        copy, path = after[0]
        b = self.n.buffer(copy.buffer)
        same = is_conversion(copy.index, copy.value, own, b)
        same = same and copy.combine is None and b.shape == own.shape
        _need(same and _is_whole(b, copy, path), "more is done to the sums than a conversion")
        return self._plain(b)

    def _cells(self) -> tuple[Sym, ...]:
        """The variables of the result's axes, in their order."""
        cells = tuple(D.the_sym(i) for i in self.store.index if D.is_sym(i))
        own = {p.var for p in self.path}
        plain = len(cells) == len(self.store.index) == len(set(cells)) and set(cells) <= own
        shape = self.n.buffer(self.store.buffer).shape
        whole = plain and all(D.known_eq(extent(v), d) for v, d in zip(cells, shape, strict=True))
        _need(whole, "the sums are not stored element by element")
        fixed = all(D.symbols(p.extent) <= set(self.n.dims) for p in self.path)
        _need(fixed, "loops depend on each other")
        return cells

    @staticmethod
    def _plain(b: Buffer) -> Buffer:
        laid_out = b.packed_as or b.layout or b.swizzle or b.pointer
        _need(not laid_out, f"{b.name} is packed")
        return b

    # ---- products

    def product(self) -> LibraryCall | None:
        if any(g is not None for g in self.guards):
            return None
        lins = [linear_index(b, x.index) for b, x in zip(self.buffers, self.loads, strict=True)]
        lins.append(linear_index(self.result, tuple(map(D.as_int, self.cells))))
        axes = _linear(lins, [p.var for p in self.path])
        if axes is None:
            return None
        axes = [a for a in axes if a.size != 1]
        if any(not (a.reads(0) or a.reads(1)) for a in axes):
            return None
        k = _merged([a for a in axes if not a.reads(2)])
        if any(not (a.reads(0) and a.reads(1)) for a in k) or len(k) > 1:
            return None
        kept = [a for a in axes if a.reads(2)]
        batch = _merged([a for a in kept if a.reads(0) and a.reads(1)])
        m = _merged([a for a in kept if not a.reads(1)])
        n = _merged([a for a in kept if not a.reads(0)])
        # What does not become one axis is a batch of products that share an operand.
        if not batch and len(m) == 2 and len(n) <= 1:
            batch, m = m[:1], m[1:]
        elif not batch and len(n) == 2 and len(m) <= 1:
            batch, n = n[:1], n[1:]
        if max(map(len, (batch, m, n))) > 1:
            return None
        one = _Axis(1, (0, 0, 0))
        rows, columns, deep = (x[0] if x else one for x in (m, n, k))
        zero: dict[Sym, Dim] = {p.var: 0 for p in self.path}
        views = []
        for number, pair in enumerate(((rows, deep), (deep, columns), (rows, columns))):
            b = (*self.buffers, self.result)[number]
            whole = [*batch, *pair]
            strides = [a.strides[number] for a in whole]
            # An axis of one element has the stride that it would have in a plain matrix.
            first, second = len(whole) - 2, len(whole) - 1
            if pair[1].size == 1:
                strides[second] = 1 if strides[first] != 1 else pair[0].size
            if pair[0].size == 1:
                strides[first] = pair[1].size * strides[second]
            offset = D.substitute(lins[number], zero)
            shape = tuple(a.size for a in whole)
            views.append(View(b.name, b.dtype, offset, shape, tuple(strides)))
        a, b, c = views
        return LibraryCall("product", (a, b, c))

    # ---- convolutions

    def convolution(self) -> LibraryCall | None:
        if self.result.dtype is not self.dtype:
            return None
        for apart in (False, True):
            for image in (0, 1):
                found = _Windows(self, image, apart).call()
                if found is not None:
                    return found
        return None


class _Windows:
    """A sum of products as a convolution, with one of the operands as the images.

    Axes may be several in one (windows as the rows of a matrix, taps and channels as its columns):
    these are taken apart into the digits that index functions are made of.
    """

    def __init__(self, region: _Region, image: int, apart: bool) -> None:
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
        if not self.plain:
            return None
        found = _linear([self.filters, self.results, self.results], self.along)
        if found is None:
            return None
        self.reads = {v: a.strides[0] for v, a in zip(self.along, found, strict=True)}
        self.places = {v: a.strides[1] for v, a in zip(self.along, found, strict=True)}
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


def is_conversion(index: Sequence[Dim], value: Value, of: Buffer, to: Buffer) -> bool:
    """Is a value the element of a buffer at this index, converted?"""
    single: dict[Sym, Dim] = {
        D.the_sym(i): 0 for i in index if D.is_sym(i) and extent(D.the_sym(i)) == 1
    }
    at = [D.substitute(i, single) for i in index]
    return value.substitute(single) is E.cast(E.load(of.name, at, of.dtype), to.dtype)


def _need(condition: object, why: str) -> None:
    if not condition:
        raise Refused(f"no library function computes this: {why}")


def _operand(v: Value) -> tuple[Value | None, Load]:
    """What an operand reads, through conversions, and the condition under which it is not 0."""
    v = _uncast(v)
    guard: Value | None = None
    if isinstance(v, Fn) and v.name == "select":
        condition, inside, outside = v.operands()
        outside = _uncast(outside)
        _need(isinstance(outside, Const) and outside.value == 0, "an operand is no plain read")
        guard, v = condition, _uncast(inside)
    _need(isinstance(v, Load) and isinstance(v.source, str), "an operand is no plain read")
    assert isinstance(v, Load)
    return guard, v


def _uncast(v: Value) -> Value:
    """Conversions to a wider dtype lose nothing."""
    while isinstance(v, Fn) and v.name == "cast" and v.dtype is v.operands()[0].dtype.accumulator:
        v = v.operands()[0]
    return v


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


def _is_whole(b: Buffer, s: Store, path: Path) -> bool:
    """Is every element stored once, by loops over all of them?"""
    own = [D.the_sym(i) for i in s.index if D.is_sym(i)]
    plain = len(own) == len(s.index) and own == [p.var for p in path]
    return plain and all(D.known_eq(extent(v), d) for v, d in zip(own, b.shape, strict=True))


def _linear(lins: Sequence[Dim], along: Sequence[Sym]) -> list[_Axis] | None:
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
    return [_Axis(extent(v), (a[k], b[k], c[k])) for k, v in enumerate(along)]


def _merged(axes: list[_Axis]) -> list[_Axis]:
    """Axes that lie one inside the other in all views become one."""

    def far(a: _Axis) -> int:
        known = [s for s in a.strides if isinstance(s, int)]
        return -max(known, default=0)

    if all(isinstance(s, int) for a in axes for s in a.strides):
        axes = sorted(axes, key=far)
    out: list[_Axis] = []
    for a in axes:
        if out and all(
            D.known_eq(p, s * a.size) for p, s in zip(out[-1].strides, a.strides, strict=True)
        ):
            out[-1] = _Axis(out[-1].size * a.size, a.strides)
        else:
            out.append(a)
    return out
