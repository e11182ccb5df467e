"""Elementwise groups over one axis of any length: tensors of all shapes, and any part of one, then
have one kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.expr import Load, Value, extent, load, rewrite
from tilewright.kernel.axis import axis_name
from tilewright.kernel.group import Group, Stage

LENGTH = "n"  # the size that such a kernel takes


@dataclass(frozen=True)
class Flat:
    """The group, and which of its arguments have an element for each place (others have one)."""

    group: Group
    long: tuple[bool, ...]


def flattened(group: Group) -> Flat | None:
    """None where an element depends on others than those at its own place."""
    outputs = group.outputs
    shape = outputs[0].shape
    long = {b.name for b in group.buffers if b.shape == shape}
    others = [b for b in group.buffers if b.name not in long]
    if outputs[0].size == 1 or any(b.size != 1 for b in others):
        return None
    if any(b.packed_as or b.layout or b.pointer for b in group.buffers):
        return None
    stages: list[Stage] = []
    for st in group.stages:
        made = _stage(st, long)
        if made is None:
            return None
        stages.append(made)
    n = D.sym(LENGTH, 1)
    shapes = {b.name: (n,) if b.name in long else () for b in group.buffers}
    buffers = tuple(replace(b, shape=shapes[b.name]) for b in group.buffers)
    arguments = (*group.inputs, *outputs)
    return Flat(
        replace(group, buffers=buffers, stages=tuple(stages)),
        tuple(b.name in long for b in arguments),
    )


def _stage(st: Stage, long: set[str]) -> Stage | None:
    own = tuple(D.as_int(a) for a in st.axes)
    if not st.is_map or st.where != own:
        return None
    axes = (D.the_sym(D.var(axis_name(st.name, 0), D.sym(LENGTH, 1))),) if st.name in long else ()
    here = tuple(map(D.as_int, axes))
    ones = {a: 0 for a in st.axes if extent(a) == 1}
    place = tuple(0 if a in ones else D.as_int(a) for a in st.axes)
    apart = False

    def moved(x: Load) -> Value:
        nonlocal apart
        if x.source not in long:
            return load(str(x.source), (), x.dtype)
        apart = apart or x.index != place or not axes
        return load(str(x.source), here, x.dtype)

    value = rewrite(st.value, ones, moved)
    if apart or not set(value.symbols()) <= set(axes):
        return None
    return replace(st, axes=axes, where=here, value=value)
