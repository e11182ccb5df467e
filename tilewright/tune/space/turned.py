"""Maps that read an operand across, turned tile by tile (kernel/defaults/turned.py), also where the
default is another."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.target import Target
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.defaults.turned import turn
from tilewright.kernel.group import Group
from tilewright.kernel.step import Trace
from tilewright.tune.space.tiling import begun


def turned_operands(group: Group, target: Target, applied: Applied) -> Iterator[Trace]:
    s, inner, host = begun(group, target, applied)
    if host is not None and not inner and turn(s, host.name):
        yield tuple(s.trace)
