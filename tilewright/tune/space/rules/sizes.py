"""How many iterations the inner loop of a split has: lanes, rows and columns of a tile in
registers, blocks that stay in a cache."""

from __future__ import annotations

from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.join import Join
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.tune.space.decision import factors
from tilewright.tune.space.draft import WRITTEN_OUT, Draft, Item, trips

# Of a loop that is written out: more would not fit the registers of any target.
MOST_ROWS = 16
# Vectors of lanes, and of columns of a tile.
VECTORS = (1, 2, 3, 4, 6, 8)
# Values of one decision about a block.
MOST_BLOCKS = 12


def open_sizes(draft: Draft) -> None:
    joins = [k for k, i in enumerate(draft.items) if isinstance(i.step, (ComputeWith, Join))]
    last = max(joins, default=-1)
    by_instruction = any(isinstance(i.step, Tensorize) for i in draft.items)
    shared: dict[tuple[int, int], str] = {}
    for k, item in enumerate(draft.items):
        if not isinstance(item.step, Split) or not item.step.factor:
            continue
        # Loops that become one later have to be split alike: they share a decision.
        alike = trips(item.nest, item.step.loop), item.step.factor
        name = shared.get(alike) if k < last else None
        if name is None:
            values = _values(draft, item, item.step)
            if len(values) < 2:
                continue
            name = draft.decide(f"size_{item.step.loop}", values, item.step.factor, True)
            shared[alike] = name
            if by_instruction and draft.kinds(f"{item.step.loop}.1") <= WRITTEN_OUT:
                draft.tested[name] = {}  # an instruction takes some sizes only
        draft.open(item, factor=name)


def _values(draft: Draft, item: Item, step: Split) -> list[int]:
    extent, factor = trips(item.nest, step.loop), step.factor
    inner, outer = draft.kinds(f"{step.loop}.1"), draft.kinds(f"{step.loop}.0")
    lanes = draft.target.lanes(32)
    if inner == {"lane"} and outer == {"unroll"}:
        return [factor]  # vectors of a tile, whose size is decided where the tile is
    if "lane" in inner or ("tensor" in inner and factor % lanes == 0):
        one = lanes if factor % lanes == 0 else factor
        return [n * one for n in VECTORS if n * one < extent + one]
    if inner and inner <= WRITTEN_OUT:
        return list(range(1, min(MOST_ROWS, extent) + 1))
    return _near(factor, {*factors(extent), *_powers(extent)})


def _powers(extent: int) -> list[int]:
    return [1 << k for k in range(extent.bit_length()) if 1 << k <= extent]


def _near(factor: int, values: set[int]) -> list[int]:
    """Those nearest to a factor, by their ratio."""
    order = sorted(values, key=lambda v: max(v, factor) / min(v, factor))
    return order[:MOST_BLOCKS]
