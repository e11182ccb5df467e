"""A library's call in place of a kernel's sum of products; what else the kernel does stays ours."""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.errors import Refused
from tilewright.ir.expr import Fn, Load, Value, loads
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.library import is_conversion
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.library import Library


def call_library(s: Scheduler) -> Group | None:
    """Takes the steps that make the sum of products a library's. What is left of the group, if
    anything is, reads the result. Refused where no library computes it."""
    group = s.group
    sums = sums_of_products(group)
    if len(sums) != 1:
        raise Refused(f"{group.name} has {len(sums)} sums of products, and a library is for one")
    (acc,) = sums
    gone = _views(group, acc)
    for name in gone:
        s.do(ComputeInline(name))
    region = (acc.name, *_conversion(group, acc))
    s.do(Library(region))
    left = tuple(x for x in group.stages if x.name not in (*region, *gone))
    return _rest(group, left, region[-1]) if left else None


def sums_of_products(group: Group) -> list[Stage]:
    """The stages that a library may be called for, and that instructions may multiply."""
    sums = [x for x in group.stages if x.combine == "add" and x.raxes]
    return [x for x in sums if isinstance(x.value, Fn) and x.value.name == "mul"]


def _views(group: Group, acc: Stage) -> list[str]:
    """Stages that do nothing but say where the operands are; the last first."""
    by_name = {x.name: x for x in group.stages}
    found: list[str] = []
    waiting = [str(x.source) for x in loads(acc.value)]
    while waiting:
        stage = by_name.get(waiting.pop())
        if stage is None:
            continue
        readers = [x for x in group.stages if any(r.source == stage.name for r in loads(x.value))]
        local = group.buffer(stage.name).scope == "local"
        if len(readers) == 1 and local and stage.is_map and _is_read(stage.value):
            found.append(stage.name)
            waiting += [str(x.source) for x in loads(stage.value)]
    return found


def _is_read(v: Value) -> bool:
    """An element, or 0 beyond the edges."""
    while isinstance(v, Fn) and v.name in ("cast", "select"):
        v = v.operands()[1 if v.name == "select" else 0]
    return isinstance(v, Load)


def _conversion(group: Group, acc: Stage) -> tuple[str, ...]:
    """The stage that converts the sums, where only that reads them."""
    readers = [x for x in group.stages if any(r.source == acc.name for r in loads(x.value))]
    if len(readers) != 1 or not readers[0].is_map:
        return ()
    (reader,) = readers
    own, to = group.buffer(acc.name), group.buffer(reader.name)
    return (reader.name,) if is_conversion(reader.where, reader.value, own, to) else ()


def _rest(group: Group, left: tuple[Stage, ...], result: str) -> Group:
    used = {x.name for x in left} | {
        str(r.source) for x in left for v in (x.value, x.init) if v is not None for r in loads(v)
    }
    buffers = tuple(
        replace(b, scope="in") if b.name == result else b
        for b in group.buffers
        if b.name in used or b.scope in ("in", "out")
    )
    return replace(group, buffers=buffers, stages=left, roles=())
