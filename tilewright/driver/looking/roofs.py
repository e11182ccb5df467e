"""Kernels against their roof: what they cannot be faster than, by the numbers of the target.

Both sides are of the cost model (kernel/cost.py): the roof of a kernel has its multiply-adds
without delay, or each byte that it touches brought in once from where all of them fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from tilewright.base.errors import TilewrightError
from tilewright.graph.classify import guess
from tilewright.ir.target import Target
from tilewright.kernel.cost import SHARE, Cost, cost
from tilewright.kernel.group import Group
from tilewright.kernel.nest import start
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import parse_group
from tilewright.runtime.program_data import KernelInfo

LOOKED_AT = 48  # kernels of a program: those that are given most bytes


@dataclass(frozen=True)
class Roofed:
    """A kernel's estimate, in seconds per run of its program."""

    number: int
    kernel: KernelInfo
    seconds: float
    roof: float
    bound: str  # "memory" or "arithmetic"

    @property
    def share(self) -> float:
        """1: it is as fast as it can be."""
        return min(1.0, self.roof / self.seconds) if self.seconds else 1.0

    @property
    def lost(self) -> float:
        return self.seconds - self.roof


def roofed(kernels: Iterable[tuple[int, KernelInfo]], target: Target) -> list[Roofed]:
    """Those that lose most first. Of GPUs the model knows nothing."""
    if target.grid is not None:
        return []
    parsed = [(number, info, parse_group(info.group)) for number, info in kernels if info.group]
    largest = sorted(parsed, key=lambda x: -_bytes(x[2]) * x[1].calls)[:LOOKED_AT]
    found = [r for r in (_roofed(*x, target) for x in largest) if r is not None]
    return sorted(found, key=lambda r: -r.lost)


def _bytes(group: Group) -> float:
    given = (*group.inputs, *group.outputs)
    return sum(prod(guess(d) for d in b.shape) * b.dtype.bits / 8 for b in given)


def _roofed(number: int, info: KernelInfo, group: Group, target: Target) -> Roofed | None:
    try:
        found = cost(apply(start(group), parse_trace(info.trace)), target)
    except TilewrightError:  # a kernel that the model has no numbers for
        return None
    cycles, bound = _roof(found, target)
    second = target.mhz * 1e6 / max(1, info.calls)
    return Roofed(number, info, found.cycles / second, min(cycles, found.cycles) / second, bound)


def _roof(found: Cost, target: Target) -> tuple[float, str]:
    """Cycles, and what sets them."""
    rates = (
        (target.l2, target.l2_bandwidth),
        (target.l3, target.l3_bandwidth),
    )
    fitting = (rate for size, rate in rates if found.once <= size * SHARE)
    moved = found.once / next(fitting, target.memory_bandwidth)
    bound = "memory" if moved >= found.products else "arithmetic"
    return max(moved, found.products) / max(1.0, found.threads), bound
