"""Reducers of the user's own: a combine over one or several components and its neutral element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir import expr as E
from tilewright.ir.combine import combiner
from tilewright.ir.reader import is_plain_name
from tilewright.ir.scalar import SCALARS
from tilewright.ir.types import DType

from .expression import Axes, Reduction, reduction_axes
from .scalars import Expr, IterVar, Operand, dtype_of, isnan, lifted, select


def const(value: float | int | bool, dtype: str | DType = "float32") -> Expr:
    """A number of a dtype."""
    return Expr(E.const(value, dtype_of(dtype)))


def min_value(dtype: str | DType) -> Expr:
    """The least number of a dtype."""
    return const(dtype_of(dtype).lowest, dtype)


def max_value(dtype: str | DType) -> Expr:
    """The greatest number of a dtype."""
    return const(dtype_of(dtype).highest, dtype)


def comm_reducer(
    fcombine: Callable[[Any, Any], Any],
    fidentity: Callable[..., Any],
    name: str = "reducer",
) -> Callable[..., Reduction]:
    """`reducer(expr, axis=k)`, or `reducer((a, b), axis=k)` for several components at once.

    `fcombine(x, y)` puts two partial results together, `fidentity(*dtypes)` changes nothing; both
    take and give tuples where there are several components. That `fcombine` is associative and
    commutative is not checked: steps rely on it.
    """
    if not is_plain_name(name) or name in SCALARS:
        raise Invalid(f"{name!r} is not a name for a reducer", hint="use letters, digits and _")

    def reducer(expr: Any, axis: Axes, where: Operand | None = None) -> Reduction:
        several = isinstance(expr, (tuple, list))
        values = [lifted(x) for x in (expr if several else (expr,))]
        dtypes = [v.dtype for v in values]
        neutral = _neutral(name, fidentity(*dtypes), dtypes)

        def combine(left: tuple[E.Value, ...], right: tuple[E.Value, ...]) -> list[E.Value]:
            x, y = tuple(map(Expr, left)), tuple(map(Expr, right))
            found = fcombine(x, y) if several else (fcombine(x[0], y[0]),)
            if not isinstance(found, (tuple, list)) or len(found) != len(values):
                raise Invalid(f"{name} combines {len(values)} components into {found!r}")
            return [lifted(v) for v in found]

        try:
            made = combiner(name, combine, neutral)
        except TypeError as why:
            raise Invalid(str(why), hint="cast what the combine gives") from None
        if where is not None:
            holds = lifted(where)
            values = [E.select(holds, v, z) for v, z in zip(values, neutral, strict=True)]
        value = E.tuple_of(*values) if several else values[0]
        axes = reduction_axes(axis)
        return Reduction(E.make_reduce(made, tuple(a.sym for a in axes), value), axes)

    return reducer


def argmax(expr: Operand, axis: IterVar, where: Operand | None = None) -> Reduction:
    """The first place of the greatest value along one axis, and that value: te.compute gives two
    tensors, int64 places and values. The first NaN wins."""
    return _arg_extreme("argmax", lambda x, y: x > y, min_value, expr, axis, where)


def argmin(expr: Operand, axis: IterVar, where: Operand | None = None) -> Reduction:
    """The first place of the least value along one axis, and that value."""
    return _arg_extreme("argmin", lambda x, y: x < y, max_value, expr, axis, where)


def _arg_extreme(
    name: str,
    better: Callable[[Any, Any], Expr],
    worst: Callable[[DType], Expr],
    expr: Operand,
    axis: IterVar,
    where: Operand | None,
) -> Reduction:
    (only,) = reduction_axes(axis)
    nowhere = (1 << 63) - 1  # later than any place: it loses against every point

    def fcombine(x: Any, y: Any) -> tuple[Expr, Expr]:
        earlier = x[0] < y[0]
        wins = better(x[1], y[1]) | ((x[1] == y[1]) & earlier)
        if x[1].dtype.is_float:
            lost, odd = isnan(y[1]), isnan(x[1])
            wins = (odd & (~lost | earlier)) | (wins & ~lost)
        return select(wins, x[0], y[0]), select(wins, x[1], y[1])

    def fidentity(place: DType, value: DType) -> tuple[Expr, Expr]:
        return const(nowhere, place), worst(value)

    return comm_reducer(fcombine, fidentity, name)((only + 0, expr), axis, where)


def _neutral(name: str, given: Any, dtypes: Sequence[DType]) -> list[E.Const]:
    found = list(given) if isinstance(given, (tuple, list)) else [given]
    if len(found) != len(dtypes):
        raise Invalid(f"{name} has {len(dtypes)} components, its identity has {len(found)}")
    out = []
    for x, d in zip(found, dtypes, strict=True):
        v = E.cast(lifted(x), d)
        if not isinstance(v, E.Const):
            raise Invalid(f"the identity of {name} is no number: {x!r}")
        out.append(v)
    return out
