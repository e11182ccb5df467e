"""Tensors that are defined by values: a tensor is a function of its index."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.parts import loads, walk
from tilewright.ir.types import DType, f32, i64
from tilewright.ir.values import Reduce, Scalarish, Value, cast, load, value


class Tensor:
    """A named function of its index.

    placeholder  body None: an input
    compute      body over `axes`, one value per index
    scan         like compute, but the body may read the tensor itself at an earlier index along
                 `ordered` axes
    update       starts as `base`, then for every point of `axes`, in order:
                 self[where] combine= body (combine None: assignment, the last one wins); the body
                 may read the tensor itself, as the points before have left it (`revise`)
    """

    __slots__ = (
        "name",
        "shape",
        "dtype",
        "axes",
        "body",
        "ordered",
        "base",
        "where",
        "combine",
        "__weakref__",
    )

    def __init__(self, name: str, shape: tuple[Dim, ...], dtype: DType) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.axes: tuple[Sym, ...] = ()
        self.body: Value | None = None
        self.ordered: tuple[int, ...] = ()
        self.base: Tensor | None = None
        self.where: tuple[Dim, ...] | None = None
        self.combine: str | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def kind(self) -> str:
        if self.body is None:
            return "placeholder"
        return "update" if self.where is not None else "scan" if self.ordered else "compute"

    def __getitem__(self, idx: Dim | Value | tuple[Dim | Value, ...]) -> Value:
        i = idx if isinstance(idx, tuple) else (idx,)
        if len(i) != len(self.shape):
            raise IndexError(f"{self.name} has {len(self.shape)} axes, indexed with {len(i)}")
        return load(self, i, self.dtype)

    def __call__(self, *idx: Dim | Value) -> Value:
        return self[tuple(idx)]

    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors read by the definition, in order of first use, without itself."""
        out: dict[Tensor, None] = {}
        if self.base is not None:
            out[self.base] = None
        if self.body is not None:
            values = [self.body, *(v for w in self.where or () for v in D.data_values(w))]
            for v in values:
                for x in reversed(list(loads(v))):
                    if isinstance(x.source, Tensor) and x.source is not self:
                        out[x.source] = None
        return tuple(out)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join(map(str, self.shape))}]"


def placeholder(shape: Sequence[Dim], dtype: DType = f32, name: str = "x") -> Tensor:
    return Tensor(name, tuple(shape), dtype)


def _axes(shape: Sequence[Dim]) -> tuple[list[Dim], tuple[Sym, ...]]:
    axes = [D.var(f"i{k}", d) for k, d in enumerate(shape)]
    return list(axes), tuple(D.the_sym(a) for a in axes)


def compute(
    shape: Sequence[Dim],
    body: Callable[..., Scalarish],
    dtype: DType | None = None,
    name: str = "t",
) -> Tensor:
    idx, axes = _axes(shape)
    v = body(*idx)
    v = value(v, dtype or (i64 if isinstance(v, (int, Int)) and not isinstance(v, bool) else f32))
    if dtype is not None:
        v = cast(v, dtype)
    t = Tensor(name, tuple(shape), v.dtype)
    t.axes, t.body = axes, v
    return t


def scan(
    shape: Sequence[Dim],
    axis: int,
    body: Callable[..., Value],
    dtype: DType,
    name: str = "scan",
) -> Tensor:
    """`body(self, *index)` may read self at smaller indices along `axis`, outside of reductions:
    these are computed before the scan begins."""
    idx, axes = _axes(shape)
    t = Tensor(name, tuple(shape), dtype)
    t.axes, t.ordered = axes, (axis,)
    t.body = cast(body(t, *idx), dtype)
    if any(isinstance(x, Reduce) and any(r.source is t for r in loads(x)) for x in walk(t.body)):
        raise Invalid(f"{name}: a reduction within a scan reads the scan itself")
    return t


def update(
    base: Tensor,
    domain: Sequence[Dim],
    where: Callable[..., Sequence[Dim | Value]],
    body: Callable[..., Scalarish],
    combine: str | None = None,
    name: str = "u",
) -> Tensor:
    """base, then in order of the domain: self[where(*d)] combine= body(*d).

    Out-of-range targets must not occur.
    """
    idx, axes = _axes(domain)
    t = Tensor(name, base.shape, base.dtype)
    t.axes, t.base, t.combine = axes, base, combine
    t.where = tuple(w.as_dim() if isinstance(w, Value) else w for w in where(*idx))
    t.body = cast(value(body(*idx), base.dtype), base.dtype)
    return t


def revise(
    base: Tensor,
    domain: Sequence[Dim],
    where: Callable[..., Sequence[Dim | Value]],
    body: Callable[..., Scalarish],
    name: str = "u",
) -> Tensor:
    """base, then in order of the domain: self[where(*d)] = body(self, *d). The body reads what the
    points before have left. Points of different first indices write and read different ones."""
    idx, axes = _axes(domain)
    t = Tensor(name, base.shape, base.dtype)
    t.axes, t.base = axes, base
    t.where = tuple(w.as_dim() if isinstance(w, Value) else w for w in where(*idx))
    t.body = cast(value(body(t, *idx), base.dtype), base.dtype)
    first = D.as_int(axes[0])
    rows = [x.index[0] for x in loads(t.body) if x.source is t]
    if any(r != first for r in (t.where[0], *rows)):
        raise Invalid(
            f"{name}: a point of an update reads or writes another row than its first index"
        )
    return t
