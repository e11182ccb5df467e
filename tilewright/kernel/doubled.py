"""A group in float64: what it would compute if floats were not rounded, as far as a machine can
say. Every float is twice or four times as wide, and casts between floats round nothing."""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.errors import Unsupported
from tilewright.base.traverse import operands_first
from tilewright.ir.expr import Const, Fn, Load, Value, cast, const, fn, load
from tilewright.ir.scalar import SCALARS
from tilewright.ir.types import DType, f64
from tilewright.kernel.group import Group, Stage


def doubled(group: Group) -> Group:
    """The same stages in float64. Raises Unsupported where values are tuples, or where the bits of
    a narrower float are computed with."""
    buffers = tuple(replace(b, dtype=_wide(b.dtype)) for b in group.buffers)
    return replace(group, buffers=buffers, stages=tuple(map(_stage, group.stages)))


def _wide(dtype: DType) -> DType:
    return f64 if dtype.is_float else dtype


def _stage(s: Stage) -> Stage:
    if not isinstance(s.combine, str | None):
        raise Unsupported(f"{s.name} reduces tuples, which have no form in float64")
    return replace(s, value=_value(s.value), init=s.init and _value(s.init))


def _value(v: Value) -> Value:
    made: dict[Value, Value] = {}
    for x in operands_first(v, lambda x: x.args, made):
        made[x] = _one(x, made)
    return made[v]


def _one(x: Value, made: dict[Value, Value]) -> Value:
    if not isinstance(x.dtype, DType) or x.dtype.kind == "t":
        raise Unsupported("tuples have no form in float64")
    if isinstance(x, Load):
        return load(x.source, x.index, _wide(x.dtype))
    if isinstance(x, Const):
        return const(x.value, _wide(x.dtype))
    if not isinstance(x, Fn):
        return x
    args = tuple(made[a] for a in x.args)
    if x.name == "cast":
        return cast(args[0], _wide(x.dtype))
    if SCALARS[x.name].takes is not None:
        raise Unsupported(f"{x.name} is a function of the bits of one dtype")
    return fn(x.name, *args)
