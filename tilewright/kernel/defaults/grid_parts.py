"""Sums of a GPU in parts, where there are too few tiles of results for all multiprocessors.

Other blocks compute each part; a second launch adds them up, always in the same order.
"""

from __future__ import annotations

from math import gcd

from tilewright.kernel.defaults.grid_totals import BANDWIDTH, LAUNCH
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.group import Stage
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

ADDING = 256  # threads of a block that adds up parts
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # into which a sum is taken apart


def added_up(parts: int, results: int) -> float:
    """Cycles that parts take: they are written and read, in 4 bytes each, by another launch."""
    return LAUNCH + 8 * parts * results / BANDWIDTH if parts > 1 else 0.0


def take_apart(s: Scheduler, stage: Stage, k: str, size: int) -> tuple[str, str]:
    """Parts of `size` steps of the sum over k; (what computes one, where it goes)."""
    c = stage.name
    into, own = f"{c}_p", f"{c}_o"
    s.do(Split(k, size))
    s.do(RFactor(c, (f"{k}.0",), into))
    names = [f"n{k}" for k in range(len(stage.axes))]
    s.do(Relayout(into, f"{', '.join([*names, 'p'])} -> {', '.join(['p', *names])}"))
    s.do(CacheWrite(into, own))
    return own, into


def add_up(s: Scheduler, stage: Stage, out: str) -> None:
    """Results as sums of their parts, in a launch of their own."""
    c = stage.name
    *outer, i, j = (p.name for p in s.path(out))
    last = s.loops(j)[0].extent
    assert isinstance(last, int)
    wide, flat = gcd(4, last), j
    if wide > 1:
        s.do(Split(j, wide))
        flat = f"{j}.0"
    s.do(ComputeAt(c, flat))
    *_, along, part = (p.name for p in s.path(c))
    if wide > 1:
        s.do(Reorder((part, along)))
        for loop in (along, f"{c}.init.i{len(stage.axes) - 1}", f"{j}.1"):
            s.do(Vectorize(loop))
    s.do(Unroll(part))
    for k, loop in enumerate(reversed([*outer, i])):
        s.do(Fuse(loop, flat, f"{out}.f{k}"))
        flat = f"{out}.f{k}"
    s.do(Split(flat, ADDING))
    s.do(Bind(f"{flat}.0", "block.x"))
    s.do(Bind(f"{flat}.1", "thread.x"))
