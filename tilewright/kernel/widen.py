"""A group in which 16-bit floats stay float32 until they are stored: `round_between=False`.

By default every function of 16-bit floats is rounded, as eager rounds each operator's result.
`widened` writes the other choice into the types, so that printed groups, the interpreter and
native code go on agreeing: values and stages inside the kernel become float32, casts to 16 bits
disappear, and what the caller or an ordered update reads is rounded where it is stored.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import dim as D
from tilewright.ir.expr import Const, Fn, Load, Value, cast, const, fn, load, rewrite, walk
from tilewright.ir.scalar import SCALARS
from tilewright.ir.types import DType, bf16, f16, f32
from tilewright.kernel.group import Group, Stage

HALVES = (f16, bf16)


def widened(group: Group) -> Group:
    """The group with float32 between its 16-bit inputs and outputs."""
    if not any(x.dtype in HALVES for s in group.stages for x in walk(s.value)):
        return group
    wide = _wide_stages(group)
    buffers = tuple(replace(b, dtype=f32) if b.name in wide else b for b in group.buffers)
    return replace(group, buffers=buffers, stages=tuple(_stage(s, wide) for s in group.stages))


def _wide_stages(group: Group) -> set[str]:
    """Stages inside the kernel whose buffers can hold float32 instead."""
    in_indices = {
        x.source
        for s in group.stages
        for v in walk(s.value)
        for i in (*(v.index if isinstance(v, Load) else ()), *s.where)
        if not isinstance(i, int)
        for d in D.data_values(i)
        for x in walk(d)
        if isinstance(x, Load)
    }
    plain = {s.name for s in group.stages if not s.ordered and isinstance(s.combine, str | None)}
    return {
        b.name
        for b in group.buffers
        if b.dtype in HALVES and b.scope not in ("in", "out") and b.name in plain - in_indices
    }


def _stage(s: Stage, wide: set[str]) -> Stage:
    own = s.name in wide
    value, init = _value(s.value, wide, own), s.init
    if init is not None:
        init = _value(init, wide, own)
    return replace(s, value=value, init=init)


def _value(v: Value, wide: set[str], as_wide: bool) -> Value:
    """A value computed in float32; left so, or rounded to its dtype."""
    if not isinstance(v.dtype, DType) or v.dtype.kind == "t":
        # Several components at once: only what they read changes its dtype.
        return rewrite(v, on_load=lambda x: _read(x, wide, x.dtype))
    made: dict[Value, Value] = {}
    todo = [v]
    while todo:
        x = todo[-1]
        missing = [a for a in x.args if a not in made] if isinstance(x, Fn) else []
        if missing:
            todo += missing
            continue
        todo.pop()
        made[x] = _one(x, made, wide)
    return made[v] if as_wide else cast(made[v], v.dtype)


def _read(x: Load, wide: set[str], dtype: DType) -> Value:
    stored = f32 if x.source in wide else x.dtype
    return cast(load(x.source, x.index, stored), dtype)


def _one(x: Value, made: dict[Value, Value], wide: set[str]) -> Value:
    """A value without 16-bit floats, of arguments that have none."""
    half = x.dtype in HALVES
    if isinstance(x, Load):
        return _read(x, wide, f32 if half else x.dtype)
    if isinstance(x, Const) and half:
        return const(x.value, f32)
    if not isinstance(x, Fn):
        return x
    args = tuple(made[a] for a in x.args)
    if x.name == "cast":
        return cast(args[0], f32 if half else x.dtype)
    if SCALARS[x.name].takes is not None:  # the bits of one dtype
        args = tuple(cast(a, b.dtype) for a, b in zip(args, x.args, strict=True))
    out = fn(x.name, *args)
    return cast(out, f32) if half else out
