"""Schedules worth comparing for a group: what may differ, and only where something can be gained.

The schedule by the rules comes first. What it loses, by the model, says which other choices could
help: bytes moved more than once (another order of the tiles, blocks of rows), threads that wait
(another order), tiles that the rows do not fill (another height).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.graph.classify import guess
from tilewright.ir.dim import Dim
from tilewright.ir.expr import extent
from tilewright.ir.register_tile import in_registers, register_tile
from tilewright.ir.target import Target
from tilewright.ir.types import DType
from tilewright.kernel.cost import Cost, cost
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.defaults.contractions import product_operands
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import RULES, default_schedule
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split

# Where less than this part of the time is lost, nothing else is tried.
WORTH = 0.03


@dataclass(frozen=True)
class Candidate:
    """A schedule of a group, by which choices it was made, and what it should cost."""

    choices: Choices
    trace: Trace
    nest: Nest
    cost: Cost


@dataclass(frozen=True)
class Tiles:
    """What a trace makes of a contraction: rows and columns, and how many of them are a tile."""

    rows: int
    tall: int
    columns: int
    wide: int
    outer: str  # which loop over tiles is around the other
    deep: int  # products of each sum


def candidate(
    group: Group, target: Target, choices: Choices, applied: Applied | None = None
) -> Candidate:
    trace, nest = default_schedule(group, target, choices, applied)
    return Candidate(choices, trace, nest, cost(nest, target))


class _Found:
    """Distinct candidates of a group, the one by the rules first."""

    def __init__(self, group: Group, target: Target) -> None:
        self.group, self.target, self.applied = group, target, Applied()
        self.all: list[Candidate] = []

    def add(self, choices: Choices) -> None:
        new = candidate(self.group, self.target, choices, self.applied)
        if all(new.trace != c.trace for c in self.all):
            self.all.append(new)

    @property
    def best(self) -> Candidate:
        return min(self.all, key=lambda c: c.cost.cycles)


def candidates(group: Group, target: Target, thorough: bool = False) -> list[Candidate]:
    """The schedule by the rules, then distinct others; `thorough`: wherever anything may differ."""
    found = _Found(group, target)
    found.add(RULES)
    sums = [st for st in group.stages if _multiplies(st)]
    if len(sums) == 1 and (tiles := tiles_of(found.all[0].trace, group, sums[0])) is not None:
        if tiles.rows <= 1:
            _few_rows(found, thorough)
        else:
            _many_rows(found, tiles, group.buffer(sums[0].name).dtype, thorough)
    elif len(sums) == 2 and thorough:  # a chain: more or fewer rows pass through all of it
        dtype = group.buffer(sums[0].name).dtype
        tall = register_tile(target, dtype).rows
        for count in (2, 4, 8, 16):
            found.add(Choices(block=count * tall))
    elif not sums and thorough:
        for vectors in (1, 2, 4, 8):
            found.add(Choices(lanes=vectors * target.lanes(32)))
    return found.all


def points(group: Group) -> int:
    """Of all stages together, how often something is computed."""
    return sum(prod(guess(extent(a)) for a in (*st.axes, *st.raxes)) for st in group.stages)


def multiplies(group: Group) -> bool:
    """Is there a contraction among its stages? The model knows these best."""
    return any(map(_multiplies, group.stages))


def _multiplies(st: Stage) -> bool:
    found = product_operands(st.value) if st.raxes and st.combine == "add" else None
    # Narrower ones have instructions of their own, which the model does not know.
    if found is None or any(x.dtype.name not in ("f32", "f64") for x in found):
        return False
    # Nor does it know sums of a few products that share nothing (a depthwise convolution).
    wide = [a for a in st.axes if extent(a) != 1]
    both = [a for a in wide if all(a in x.symbols() for x in found)]
    own = [any(a in x.symbols() and a not in both for a in wide) for x in found]
    return not both or all(own)


def _few_rows(found: _Found, thorough: bool) -> None:
    """One row: how many sums are under way at once, against how many streams memory has to serve,
    which the model does not know."""
    if thorough:
        for side in (1, 2, 3, 4, 6):
            found.add(Choices(side=side))


def _many_rows(found: _Found, t: Tiles, dtype: DType, thorough: bool) -> None:
    """Another order of tiles where bytes or threads wait, then other heights where rows do not
    fill tiles."""
    c, target = found.all[0].cost, found.target
    idle = c.threads < (1 - WORTH) * (target.cores if c.threads > 1 else 1)
    moves = thorough or idle or c.waiting(target) > WORTH
    ragged = c.stalling(target) > WORTH and _filled(t.rows, t.tall) < 1
    most = register_tile(target, dtype).adjacent
    if moves:
        _orders(found, t, None, dtype, thorough)
    if thorough:  # lines that collide, or begin in between, are nothing that the model knows
        for panels in (True, False):
            found.add(Choices(panels=panels))
    # The tallest that rows fill best.
    heights = sorted(range(max(2, t.tall - 2), max(most, t.tall + 1) + 1), reverse=True)
    vectors = -(-t.wide // target.lanes(dtype.bits))
    heights = [r for r in heights if in_registers(target, r, vectors)]
    heights.sort(key=lambda r: _filled(t.rows, r), reverse=True)
    heights = [r for r in heights if r != t.tall]
    for rows in heights[: 2 if thorough else 1 if ragged else 0]:
        if thorough:
            _orders(found, t, rows, dtype, thorough)
        best = found.best.choices
        if best.block is None or best.block % rows == 0:
            found.add(replace(best, rows=rows))


def _orders(found: _Found, t: Tiles, rows: int | None, dtype: DType, thorough: bool) -> None:
    """The other loop over tiles outside, and blocks of rows. Where all columns stay in the second
    cache, rows outside read everything once: blocks gain nothing then, whatever the model says."""
    found.add(Choices(rows=rows, outer="rows" if t.outer == "columns" else "columns"))
    stay = t.deep * t.columns * dtype.bytes <= found.target.l2 // 2
    block = _block(t, rows or t.tall, dtype.bytes, found.target)
    if block is not None and (thorough or not stay):
        found.add(Choices(rows=rows, outer="columns", block=block))


def _filled(rows: int, tall: int) -> float:
    """The part of the rows of all tiles that are rows of the product."""
    return rows / (-(-rows // tall) * tall)


def _block(t: Tiles, tall: int, size: int, target: Target) -> int | None:
    """The most whole tiles of rows that take half of the second cache, if they divide the rows."""
    most = target.l2 // 2 // max(1, t.deep * size)
    fits = [d for d in range(2 * tall, min(most, t.rows - 1) + 1, tall) if t.rows % d == 0]
    return fits[-1] if fits else None


def tiles_of(trace: Trace, group: Group, acc: Stage) -> Tiles | None:
    """The register tile that a default trace splits rows and columns into; None: it has none."""
    for k, (m, n, order) in enumerate(zip(trace, trace[1:], trace[2:], strict=False)):
        if not (isinstance(m, Split) and isinstance(n, Split) and isinstance(order, Reorder)):
            continue
        if order.order[-2:] != (f"{m.loop}.1", f"{n.loop}.1"):
            continue
        rows, columns = (_size(x.loop, trace[:k], group) for x in (m, n))
        if rows is None or columns is None:
            return None
        above = [x for x in order.order if x in (f"{m.loop}.0", f"{n.loop}.0")]
        outer = "rows" if above[:1] == [f"{m.loop}.0"] else "columns"
        deep = 1
        for r in acc.raxes:
            deep *= guess(extent(r))
        return Tiles(rows, m.factor, columns, n.factor, outer, deep)
    return None


def _size(loop: str, trace: Trace, group: Group) -> int | None:
    """Iterations of a loop, from the steps that made it."""
    for step in trace:
        if isinstance(step, Fuse) and step.into == loop:
            outer, inner = _size(step.outer, trace, group), _size(step.inner, trace, group)
            return None if outer is None or inner is None else outer * inner
        if isinstance(step, Split) and loop in (f"{step.loop}.0", f"{step.loop}.1"):
            whole = _size(step.loop, trace, group)
            if whole is None or loop == f"{step.loop}.1":
                return whole and min(whole, step.factor)
            return -(-whole // step.factor)
    sizes: dict[str, Dim] = {a.name: extent(a) for st in group.stages for a in st.axes}
    return guess(sizes[loop]) if loop in sizes else None
