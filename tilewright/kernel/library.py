"""Stages that a library of the GPU's maker computes too: products and convolutions.

They are recognised by their index functions, never by names. Loops of kind "library" (the step is
steps/library.py) say what is computed, and run where there is no library; a program has one call in
their place, which is recognised once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Load, Value, extent
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Buffer
from tilewright.kernel.library_windows import Axis, View, linear_axes, window_call
from tilewright.kernel.library_windows import LibraryCall as LibraryCall
from tilewright.kernel.nest import Alloc, Loop, Nest, Path, Stmt, Store, walk

LIBRARY = "library"
FLOATS = ("bf16", "f16", "f32", "f64")


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
        axes = linear_axes(lins, [p.var for p in self.path])
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
        one = Axis(1, (0, 0, 0))
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
        return window_call(self)


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


def _is_whole(b: Buffer, s: Store, path: Path) -> bool:
    """Is every element stored once, by loops over all of them?"""
    own = [D.the_sym(i) for i in s.index if D.is_sym(i)]
    plain = len(own) == len(s.index) and own == [p.var for p in path]
    return plain and all(D.known_eq(extent(v), d) for v, d in zip(own, b.shape, strict=True))


def _merged(axes: list[Axis]) -> list[Axis]:
    """Axes that lie one inside the other in all views become one."""

    def far(a: Axis) -> int:
        known = [s for s in a.strides if isinstance(s, int)]
        return -max(known, default=0)

    if all(isinstance(s, int) for a in axes for s in a.strides):
        axes = sorted(axes, key=far)
    out: list[Axis] = []
    for a in axes:
        if out and all(
            D.known_eq(p, s * a.size) for p, s in zip(out[-1].strides, a.strides, strict=True)
        ):
            out[-1] = Axis(out[-1].size * a.size, a.strides)
        else:
            out.append(a)
    return out
