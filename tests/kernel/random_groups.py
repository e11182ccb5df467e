"""Random groups: maps with broadcast, transposed, strided, padded and gathered reads, reductions
over any axes, contractions, scans and scatters, with ragged and symbolic extents.

Floats hold small whole numbers unless a group says that it is inexact, so that any order of
additions gives the same bits and results can be compared for equality.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.combine import identity
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Fn, Value, all_of, cast, const, fn, index, load, loads, select, walk
from tilewright.ir.types import DType, as_dtype, b1, bf16, f16, f32, f64, i8, i16, i32, i64, u8
from tilewright.kernel.group import Buffer, Group, Stage, readers

# Every stage and every reduction has at most this many points: the interpreter runs them all.
MAX_POINTS = 1500
# Read values are this small, so that products and sums of them are exact in float32.
SMALL = 30
INEXACT = ("exp", "sqrt", "div", "tanh")
# Operands that instructions multiply and add up to these.
NARROW = {
    i32: [(i8, i8), (u8, u8), (u8, i8), (i8, u8), (i16, i8), (i16, u8)],
    f32: [(bf16, bf16), (f16, f16)],
}


@dataclass(frozen=True)
class Sample:
    """A group with values for its symbolic dimensions."""

    group: Group
    sizes: tuple[tuple[tuple[str, int], ...], ...]

    @property
    def dims(self) -> list[dict[str, int]]:
        return [dict(s) for s in self.sizes]


def is_exact(g: Group) -> bool:
    """May results be compared for equality?"""
    vals = [v for s in g.stages for v in walk(s.value)]
    rough = any(isinstance(v, Fn) and v.name in INEXACT for v in vals)
    return not rough and not any(b.dtype in (f16, bf16) for b in g.buffers)


def arrays(g: Group, dims: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Contents for the inputs (and for outputs that are updated in place): small whole numbers,
    some outside any index range; any numbers where the precision is strict."""
    rng = np.random.default_rng(seed)
    out = {}
    updated = {s.name for s in g.stages if s.ordered and s.init is None and not self_reading(s)}
    for b in (*g.inputs, *(b for b in g.outputs if b.name in updated)):
        shape = tuple(int(D.evaluate(d, dims)) for d in b.shape)
        low = 0 if b.dtype.kind in "ub" else -3
        high = 25 if b.dtype in (i64,) else 2 if b.dtype.is_bool else 4
        whole = rng.integers(low, high, shape)
        # Where the order may not change, a change must be visible.
        broken = g.precision == "strict" and b.dtype.is_float
        out[b.name] = as_dtype(whole * rng.random(shape) if broken else whole, b.dtype)
    return out


def sample(seed: int, first: str = "") -> Sample:
    """A group by its seed; `first` is the kind of its first stage, where it matters."""
    return _Maker(random.Random(seed), first).make()


def self_reading(s: Stage) -> bool:
    return any(x.source == s.name for x in loads(s.value))


def alive(g: Group) -> Group:
    """Without stages that nothing reads."""
    dead = {b.name for b in g.buffers if b.scope == "local" and not readers(g, b.name)}
    if not dead:
        return g
    stages = tuple(s for s in g.stages if s.name not in dead)
    return alive(
        replace(g, buffers=tuple(b for b in g.buffers if b.name not in dead), stages=stages)
    )


@dataclass
class _Maker:
    rng: random.Random
    first: str = ""
    buffers: list[Buffer] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    values: dict[str, list[int]] = field(default_factory=dict)  # of symbolic dims
    unread: list[str] = field(default_factory=list)

    def make(self) -> Sample:
        r = self.rng
        self.dtype = r.choice([i32] * 8 + [f32] * 6 + [f64] * 4 + [i64, u8, f16, bf16])
        self.rough = self.dtype.is_float and r.random() < 0.2
        self.extents = self._extents()
        for k in range(r.randint(1, 3)):
            dtype = (
                self.dtype if k == 0 or r.random() < 0.7 else r.choice([i64, i32, b1, self.dtype])
            )
            shape = self._shape(r.choice([0, 1, 1, 2, 2, 2, 3]) if k else r.choice([1, 2, 2, 3]))
            self.buffers.append(Buffer(f"a{k}", dtype, shape, "in"))
        count = r.choice([1, 2, 3, 3, 4, 4, 5])
        outs = 0
        for k in range(count):
            out = k == count - 1 or r.random() < 0.2
            name = f"y{outs}" if out else f"t{k}"
            outs += out
            kinds = ["map"] * 10 + ["reduce"] * 8 + ["contract"] * 4 + ["scan", "scatter"] * 2
            kinds += ["product"] * 5
            if k == count - 1 and self.unread:
                kinds = ["map"] * 6 + ["reduce", "scan", "scatter"]
            kind = r.choice(kinds)
            kind = self.first if self.first and k == 0 else kind
            getattr(self, f"_{kind}")(name, "out" if out else "local")
            if not out:
                self.unread.append(name)
        order = {"in": 0, "out": 1}
        bufs = tuple(sorted(self.buffers, key=lambda b: order.get(b.scope, 2)))
        name = f"g{self.rng.randint(0, 999)}"
        precision = "strict" if self.dtype.is_float and r.random() < 0.25 else "reassociate"
        g = alive(Group(name, bufs, tuple(self.stages), precision))
        names = g.dims()
        sizes = [tuple((n, self.values[n][j]) for n in names) for j in range(2 if names else 1)]
        return Sample(g, tuple(sizes))

    # ---- shapes

    def _extents(self) -> list[Dim]:
        r = self.rng
        out: list[Dim] = [
            r.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 20]) for _ in range(3)
        ]
        if r.random() < 0.3:
            for name in ["S", "T"][: r.choice([1, 1, 2])]:
                top = r.choice([None, 20, 64])
                self.values[name] = [r.randint(1, 20), r.randint(1, 20)]
                out[r.randrange(3)] = D.sym(name, 1, top)
        return out

    def _points(self, shape: tuple[Dim, ...]) -> int:
        n = 1
        for d in shape:
            n *= d if isinstance(d, int) else 20
        return n

    def _shape(self, rank: int, limit: int = MAX_POINTS) -> tuple[Dim, ...]:
        shape = tuple(self.rng.choice([*self.extents, *self.extents, 1]) for _ in range(rank))
        while shape and self._points(shape) > limit:
            shape = shape[1:]
        return shape

    def _axes(self, name: str, shape: tuple[Dim, ...], kind: str = "i") -> tuple[Sym, ...]:
        return tuple(D.the_sym(D.var(f"{name}.{kind}{k}", d)) for k, d in enumerate(shape))

    # ---- reads

    def _source(self) -> Buffer:
        if self.unread and self.rng.random() < 0.8:
            name = self.unread.pop(0)
            return next(b for b in self.buffers if b.name == name)
        return self.rng.choice(self.buffers)

    def _read(self, axes: tuple[Sym, ...], source: Buffer | None = None) -> Value:
        """A value of the group's dtype, read somewhere inside (or guarded)."""
        b = source or self._source()
        guards: list[Value] = []
        free = list(axes)
        idx = []
        for d in b.shape:
            i, ok = self._index(d, axes, free)
            idx.append(i)
            guards += ok
        v: Value = load(b.name, idx, b.dtype)
        if b.dtype is not self.dtype:
            v = cast(v, self.dtype)
        if guards:
            v = select(all_of(*guards), v, const(self.rng.randint(-2, 2), self.dtype))
        if self.dtype.is_float and b.scope != "in":
            v = fn("min", fn("max", v, -SMALL), SMALL)
        elif self.dtype.is_float and b.dtype.is_int:
            v = fn("min", fn("max", v, -SMALL), SMALL)
        return v

    def _index(self, d: Dim, axes: tuple[Sym, ...], free: list[Sym]) -> tuple[Dim, list[Value]]:
        """An index into an axis of d, and the conditions under which it is inside."""
        r = self.rng
        fits = [a for a in free if D.known_eq(_extent(a), d)]
        if fits and r.random() < 0.75:
            a = r.choice(fits) if r.random() < 0.5 else fits[0]
            free.remove(a)
            i = D.as_int(a)
            return (d - 1 - i if r.random() < 0.1 else i), []
        inside = [a for a in axes if D.known_le(_extent(a), d)]
        if inside and r.random() < 0.4:
            a = r.choice(inside)
            gap = d - _extent(a)
            off = r.randint(0, gap) if isinstance(gap, int) else 0
            return D.as_int(a) + off, []
        if axes and r.random() < 0.75:
            a = r.choice(axes)
            kind = r.choice(["shift", "stride", "quotient", "modulo", "gather", "sum"])
            x: Dim = D.as_int(a)
            if kind == "quotient" and D.known_le(_extent(a), d):
                return x // r.randint(2, 4), []
            if kind == "modulo" and isinstance(d, int):
                return (x + r.randint(0, 3)) % d, []
            if kind == "gather":
                found = self._gathered(d, axes)
                if found is not None:
                    return found, []
            if kind == "stride":
                x = 2 * x + r.choice([0, 1, -1])
            elif kind == "sum" and len(axes) > 1:
                x = x + D.as_int(r.choice([b for b in axes if b is not a]))
            else:
                x = x + r.choice([-1, -1, 1, 2, -2])
            return x, [index(x) >= 0, index(x) < index(d)]
        return (r.randrange(d) if isinstance(d, int) else r.choice([0, d - 1])), []

    def _gathered(self, d: Dim, axes: tuple[Sym, ...]) -> Dim | None:
        """An index read from an integer buffer, clamped."""
        ints = [b for b in self.buffers if b.dtype in (i32, i64)]
        if not ints:
            return None
        b = self.rng.choice(ints)
        idx = []
        for n in b.shape:
            fits = [a for a in axes if D.known_le(_extent(a), n)]
            idx.append(D.as_int(self.rng.choice(fits)) if fits else 0)
        x = cast(load(b.name, idx, b.dtype), i64)
        return fn("max", fn("min", x, index(d - 1)), 0).as_dim()

    def _expression(self, axes: tuple[Sym, ...]) -> Value:
        r = self.rng
        v = self._read(axes)
        for _ in range(r.choice([0, 1, 1, 2])):
            op = r.choice(["add", "sub", "mul", "max", "min", "add"])
            other = self._read(axes) if r.random() < 0.8 else const(r.randint(-2, 3), self.dtype)
            if op == "mul" and self.dtype.is_float:
                v = fn("min", fn("max", v, -SMALL), SMALL)
            v = fn(op, v, other) if r.random() < 0.5 else fn(op, other, v)
        if r.random() < 0.15 and axes:
            i = index(D.as_int(r.choice(axes)))
            v = select(i < r.randint(0, 9), v, self._read(axes))
        if r.random() < 0.1 and axes:
            v = fn("add", v, cast(index(D.as_int(r.choice(axes))), self.dtype))
        if self.rough and r.random() < 0.5:
            v = self._rough(v)
        return v

    def _rough(self, v: Value) -> Value:
        match self.rng.choice(INEXACT):
            case "exp":
                return fn("exp", fn("min", fn("mul", v, 0.125), 2))
            case "sqrt":
                return fn("sqrt", fn("abs", v))
            case "div":
                return fn("div", v, fn("add", fn("abs", v), 1.5))
            case name:
                return fn(name, v)

    # ---- stages

    def _add(self, s: Stage, shape: tuple[Dim, ...], scope: str) -> None:
        self.stages.append(s)
        self.buffers.append(Buffer(s.name, self.dtype, shape, scope))

    def _map(self, name: str, scope: str) -> None:
        likely = [b.shape for b in self.buffers if b.shape and self._points(b.shape) <= MAX_POINTS]
        shape = self._shape(self.rng.randint(0, 3))
        if likely and self.rng.random() < 0.6:
            shape = self.rng.choice(likely)
        if self.rng.random() < 0.2:
            shape = shape[::-1]
        axes = self._axes(name, shape)
        v = self._expression(axes)
        self._add(Stage(name, axes, (), tuple(map(D.as_int, axes)), v), shape, scope)

    def _reduce(self, name: str, scope: str) -> None:
        source = self.rng.choice([b for b in self.buffers if b.shape] or self.buffers)
        keep = [d for d in source.shape if self.rng.random() < 0.5]
        over = [d for d in source.shape if d not in keep] or [self.rng.choice(self.extents)]
        if self._points((*keep, *over)) > MAX_POINTS:
            keep, over = keep[:1], over[:1]
        shape = tuple(keep)
        axes, raxes = self._axes(name, shape), self._axes(name, tuple(over), "r")
        combine = self.rng.choice(["add", "add", "max", "min"])
        v = self._read((*axes, *raxes), source)
        if self.rng.random() < 0.3:
            v = fn(self.rng.choice(["add", "max"]), v, self._read((*axes, *raxes)))
        zero = identity(combine, self.dtype)
        where = tuple(map(D.as_int, axes))
        self._add(Stage(name, axes, raxes, where, v, combine, zero), shape, scope)

    def _contract(self, name: str, scope: str) -> None:
        m, n, k = (self.rng.choice(self.extents) for _ in range(3))
        if self._points((m, n, k)) > 2 * MAX_POINTS:
            m = 3
        axes, raxes = self._axes(name, (m, n)), self._axes(name, (k,), "r")
        a = self._read((axes[0], raxes[0]))
        b = self._read((raxes[0], axes[1]) if self.rng.random() < 0.5 else (axes[1], raxes[0]))
        zero = identity("add", self.dtype)
        where = tuple(map(D.as_int, axes))
        self._add(Stage(name, axes, raxes, where, fn("mul", a, b), "add", zero), (m, n), scope)

    def _product(self, name: str, scope: str) -> None:
        """What some instruction computes: tiles of floats, dot products of groups of 32 bits, tiles
        of those."""
        r = self.rng
        columns = r.choice([4, 8, 12, 16, 16])
        narrow = NARROW.get(self.dtype) if self.dtype is i32 or r.random() < 0.25 else None
        if narrow is None:
            m, k = r.randint(1, 8), r.choice([1, 3, 5, 8])
            axes, raxes = self._axes(name, (m, columns)), self._axes(name, (k,), "r")
            (i, j), (p,) = map(D.as_int, axes), map(D.as_int, raxes)
            a, b = (
                self._input(self.dtype, (m, k), (i, p)),
                self._input(self.dtype, (k, columns), (p, j)),
            )
        elif r.random() < 0.5:
            one, other = r.choice(narrow)
            n = 4 // one.bytes
            axes, raxes = self._axes(name, (columns,)), self._axes(name, (n,), "r")
            (j,), (p,) = map(D.as_int, axes), map(D.as_int, raxes)
            a, b = self._input(one, (n,), (p,)), self._input(other, (columns, n), (j, p))
        else:
            one, other = r.choice(narrow)
            n, m, k = 4 // one.bytes, r.choice([1, 1, 2, 5]), r.choice([1, 3, 16])
            m = m if m * columns * k * n <= MAX_POINTS else 1
            axes, raxes = self._axes(name, (m, columns)), self._axes(name, (k, n), "r")
            (i, j), (q, p) = map(D.as_int, axes), map(D.as_int, raxes)
            a = self._input(one, (m, k * n), (i, n * q + p))
            b = self._input(other, (k, columns, n), (q, j, p))
        zero = identity("add", self.dtype)
        where = tuple(map(D.as_int, axes))
        shape = tuple(map(_extent, axes))
        self._add(Stage(name, axes, raxes, where, fn("mul", a, b), "add", zero), shape, scope)

    def _windows(self, name: str, scope: str) -> None:
        """Places of windows that overlap or touch."""
        r = self.rng
        count, width = r.choice([2, 3, 5]), r.choice([2, 3, 4])
        step = r.randint(1, width)
        axes = self._axes(name, (count, width))
        j, s = where = tuple(map(D.as_int, axes))
        x = self._input(self.dtype, (step * (count - 1) + width,), (step * j + s,))
        self._add(Stage(name, axes, (), where, fn("mul", x, x)), (count, width), scope)

    def _input(self, d: DType, shape: tuple[Dim, ...], at: tuple[Dim, ...]) -> Value:
        """An element of one more input."""
        name = f"a{len(self.buffers)}"
        self.buffers.append(Buffer(name, d, shape, "in"))
        v = load(name, at, d)
        return v if d is self.dtype else cast(v, self.dtype)

    def _scan(self, name: str, scope: str) -> None:
        shape = self._shape(self.rng.choice([1, 2, 2]), 200) or (3,)
        axes = self._axes(name, shape)
        k = self.rng.randrange(len(shape))
        before: list[Dim] = [D.as_int(a) for a in axes]
        before[k] = D.maximum(before[k] - 1, 0)
        x = self._read(axes)
        op = self.rng.choice(["add", "max"])
        more = fn(op, load(name, before, self.dtype), x)
        v = select(index(D.as_int(axes[k])).eq(0), x, more)
        where = tuple(map(D.as_int, axes))
        self._add(Stage(name, axes, (), where, v, ordered=True), shape, scope)

    def _scatter(self, name: str, scope: str) -> None:
        shape = self._shape(self.rng.choice([1, 2]), 400) or (5,)
        domain = self._shape(self.rng.choice([1, 2]), 200) or (4,)
        axes = self._axes(name, domain)
        where: list[Dim] = []
        for d in shape:
            i = self._gathered(d, axes) if self.rng.random() < 0.7 else None
            fits = [a for a in axes if D.known_le(_extent(a), d)]
            where.append(i if i is not None else D.as_int(fits[0]) if fits else 0)
        v = self._read(axes)
        combine = self.rng.choice(["add", "max", None, None])
        over = self._axes(f"{name}.init", shape)
        init: Value | None = const(1, self.dtype) if self.rng.random() < 0.5 else self._read(over)
        if scope == "out" and self.rng.random() < 0.3:
            init = None  # in place
        self._add(Stage(name, axes, (), tuple(where), v, combine, init, True), shape, scope)


def _extent(a: Sym) -> Dim:
    assert a.hi is not None
    return a.hi + 1
