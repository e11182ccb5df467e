"""What type rules share: broadcasting over symbolic dims, axes, sentences for what does not fit."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.types import DTYPES, DType, TensorType, i64, u32, u64

Shape = tuple[Dim, ...]


def broadcast_shapes(*shapes: Shape, what: str = "broadcast") -> Shape:
    """The numpy rule: aligned at the right, dims are equal or 1."""
    out: list[Dim] = []
    for k in range(max((len(s) for s in shapes), default=0)):
        size: Dim = 1
        for s in shapes:
            d = s[-1 - k] if k < len(s) else 1
            if d == 1 or D.known_eq(d, size):
                continue
            if size != 1:
                raise Invalid(
                    f"{what}: shapes {', '.join(map(show_shape, shapes))} do not broadcast: "
                    f"{size} and {d} meet at axis {-1 - k}",
                    hint="dims that meet must be equal or 1; reshape or expand one operand",
                )
            size = d
        out.append(size)
    return tuple(reversed(out))


def at(x: Tensor, idx: Sequence[Dim]) -> Value:
    """Element of x for an index of the shape that x is broadcast to."""
    own = idx[len(idx) - x.rank :]
    return x[tuple(0 if d == 1 else i for d, i in zip(x.shape, own, strict=True))]


def show_shape(shape: Sequence[Dim]) -> str:
    return f"[{','.join(map(str, shape))}]"


def same_dtype(what: str, *types: TensorType) -> DType:
    """The one dtype of all operands."""
    if any(t.dtype is not types[0].dtype for t in types):
        listed = ", ".join(repr(t) for t in types)
        raise Invalid(f"{what}: operands {listed} differ in dtype", hint="cast them to one dtype")
    return types[0].dtype


def want_kind(what: str, t: TensorType, kinds: str) -> None:
    """Refuse a dtype whose kind is not among `kinds` (letters of DType.kind)."""
    if t.dtype.kind not in kinds:
        names = {"f": "floats", "i": "signed integers", "u": "unsigned integers", "b": "booleans"}
        listed = ", ".join(names[k] for k in kinds)
        raise Invalid(f"{what} is not defined on {t!r}", hint=f"it takes {listed}; cast first")


def axis_of(what: str, axis: int, rank: int) -> int:
    """A non-negative axis. A 0-d tensor has the axis 0 (and -1), as in torch."""
    n = max(rank, 1)
    if not -n <= axis < n:
        raise Invalid(f"{what}: axis {axis} of a tensor with {rank} axes does not exist")
    return axis % n


def axes_of(what: str, axes: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Sorted non-negative axes; None is all of them."""
    if axes is None:
        return tuple(range(rank))
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    out = sorted(axis_of(what, a, rank) for a in given)
    if len(set(out)) != len(out):
        raise Invalid(f"{what}: axes {given} name one axis twice")
    return tuple(out) if rank else ()


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """What is left of a shape when `axes` are reduced."""
    kept = [1 if k in axes else d for k, d in enumerate(shape)]
    return tuple(d for k, d in enumerate(kept) if keepdims or k not in axes)


def count(shape: Shape, axes: Sequence[int]) -> Dim:
    """The number of elements along `axes`."""
    n: Dim = 1
    for a in axes:
        n = n * shape[a]
    return n


def place_of_index(axes: Sequence[int]) -> int:
    """Where the index's dims go: at the first indexed axis if all are adjacent, else in front."""
    adjacent = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    return axes[0] if adjacent else 0


def compared_as(n: Dim) -> DType:
    """How an index into an axis of n elements is compared with n where it is known to be inside.
    With half as many bits twice as many lanes compare and read at once; what is outside may become
    another one, inside."""
    return u32 if D.known_lt(n, 1 << 31) else u64


def in_range(raw: Value, n: Dim, known: str) -> Dim:
    """The index that data gives, counted from the end where negative, clamped into [0, n). What is
    `known` of it: see ops/indexing.py."""
    i = E.cast(raw, i64)
    size = E.index(n)
    if known == "proved":
        return i.as_dim()
    if known not in ("within", "sorted"):
        i = E.select(i < 0, i + size, i)
    if known == "any" or not D.known_lt(0, n):
        return E.fn("max", E.fn("min", i, size - 1), E.const(0, i64)).as_dim()
    # As an unsigned number a negative one is large: one comparison is enough.
    kind = compared_as(n)
    return E.cast(E.fn("min", E.cast(i, kind), E.cast(size - 1, kind)), i64).as_dim()


def order_of(x: Value, descending: bool) -> Value:
    """An unsigned number of as many bits that is smaller for what comes first. NaN counts as larger
    than every number, and both zeros are equal."""
    bits = x.dtype.bits
    whole = DTYPES[f"u{bits}"]
    top = E.const(1 << (bits - 1), whole)
    if x.dtype.is_float:
        plain = E.fn(f"bits_of_{x.dtype}", E.select(x.eq(0), E.const(0.0, x.dtype), x))
        turned = E.select((plain & top).ne(0), ~plain, plain | top)
        key = E.select(x.ne(x), E.const((1 << bits) - 1, whole), turned)
    else:
        key = E.cast(x, whole)
        key = key ^ top if x.dtype.kind == "i" else key
    return ~key if descending else key
