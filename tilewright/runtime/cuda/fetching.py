"""What launches fetch for later ones.

A launch of few blocks, such as attention of one token, leaves most multiprocessors and most of the
memory's rate unused. The next launch has begun by then and waits (llvm/awaiting.py): meanwhile its
blocks bring to the cache what the launch after it will read first. A fetch reads nothing into the
program, so it may ask for memory that is written later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

from tilewright.runtime.cuda.plan import FIXED, Planned, PlannedBranch, PlannedCall

Action = TypeVar("Action", Planned | PlannedCall, Planned | PlannedCall | PlannedBranch)

MOST: int = 24 << 20  # bytes that a launch fetches: half of the cache of a large GPU
LINE = 128  # bytes that are fetched at least


def fetching(
    actions: Sequence[Action], multiprocessors: int, most: int | None = None
) -> tuple[Action, ...]:
    """The same launches, of which some fetch up to `most` bytes for the one after them."""
    out = list(actions)
    for k in range(1, len(out) - 1):
        before, own, after = actions[k - 1 : k + 2]
        if isinstance(before, Planned) and isinstance(own, Planned) and isinstance(after, Planned):
            few, many = (2 * prod(x.blocks) <= multiprocessors for x in (before, after))
            if few and not many and own.ranges and own.blocks[1:] == (1, 1):
                out[k] = _fetching(own, after, MOST if most is None else most)
    return tuple(out)


def _fetching(p: Planned, later: Planned, most: int) -> Planned:
    """A launch that fetches the beginnings of what a later one reads early, the blocks in equal
    parts: those of the later launch that find their operands there do not use memory's rate while
    the others do."""
    places = zip(later.arguments, later.base, later.source, later.uses or (), strict=False)
    early = [(base, source, u.size) for a, base, source, u in places if a in later.early]
    early = early[: p.ranges]
    base: list[int] = []
    source: list[int] = []
    for start, address, size in early:
        part = min(size, most // len(early)) // p.blocks[0] // LINE * LINE
        base += [start, part]
        source += [address, FIXED]
    rest = 2 * p.ranges - len(base)
    first = len(p.base) - 2 * p.ranges
    return replace(
        p,
        base=(*p.base[:first], *base, *(0 for _ in range(rest))),
        source=(*p.source[:first], *source, *(FIXED for _ in range(rest))),
    )
