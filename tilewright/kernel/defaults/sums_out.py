"""Outputs that are reductions. Fusion makes none: each of its outputs is a plain store, which is
where a default schedule places everything else. Groups that users write have them, and get one."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import extent, load
from tilewright.kernel.axis import axis_name, first_name
from tilewright.kernel.group import Buffer, Group, Stage
from tilewright.kernel.steps.cache_write import CacheWrite


def with_plain_outputs(group: Group) -> tuple[tuple[CacheWrite, ...], Group]:
    """The steps that compute such outputs in buffers of their own, and the group as if it had been
    written so: loops have the same names after the steps."""
    steps: list[CacheWrite] = []
    buffers, stages = list(group.buffers), list[Stage]()
    for st in group.stages:
        b = group.buffer(st.name)
        if b.scope != "out" or not st.is_reduce or st.ordered:
            stages.append(st)
            continue
        into = _unused(f"{st.name}_sums", buffers)
        steps.append(CacheWrite(st.name, into))
        buffers.append(Buffer(into, b.dtype, b.shape, "local"))
        stages += [_moved(st, into, b), _copy(st, into, b)]
    return tuple(steps), replace(group, buffers=tuple(buffers), stages=tuple(stages))


def _unused(name: str, buffers: list[Buffer]) -> str:
    while any(b.name == name for b in buffers):
        name += "_"
    return name


def _moved(st: Stage, into: str, b: Buffer) -> Stage:
    """The reduction, of another buffer."""
    kinds = (("i", st.axes), ("r", st.raxes))
    table: dict[Sym, Dim] = {
        a: D.var(axis_name(into, k, kind), extent(a))
        for kind, axes in kinds
        for k, a in enumerate(axes)
    }
    axes, raxes = (tuple(D.the_sym(table[a]) for a in group) for _, group in kinds)
    where = tuple(D.substitute(w, table) for w in st.where)
    first: dict[Sym, Dim] = {
        D.the_sym(D.var(first_name(st.name, k), d)): D.var(first_name(into, k), d)
        for k, d in enumerate(b.shape)
    }
    init = None if st.init is None else st.init.substitute(first)
    return replace(
        st,
        name=into,
        axes=axes,
        raxes=raxes,
        where=where,
        value=st.value.substitute(table),
        init=init,
    )


def _copy(st: Stage, into: str, b: Buffer) -> Stage:
    axes = tuple(D.the_sym(D.var(axis_name(st.name, k), d)) for k, d in enumerate(b.shape))
    at = tuple(map(D.as_int, axes))
    return Stage(st.name, axes, (), at, load(into, at, b.dtype))
