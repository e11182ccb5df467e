"""What launches fetch for later ones.

A launch of few blocks, such as attention of one token, leaves most multiprocessors and most of the
memory's rate unused. The next launch has begun by then and waits (llvm/awaiting.py): meanwhile its
blocks bring to the cache what the launch after it will read first. So does the launch before the
one of few blocks for the one after that. A fetch reads nothing into the program, so it may ask for
memory that is written later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.runtime.cuda.plan import FIXED, Planned, PlannedBranch, PlannedCall

Action = Planned | PlannedCall | PlannedBranch

MOST: int = 24 << 20  # bytes that a launch fetches: half of the cache of a large GPU
SOONER: int = 0  # the same, of a launch before one of few blocks
LINE = 128  # bytes that are fetched at least


def fetching(
    actions: Sequence[Action], multiprocessors: int, most: int = MOST, sooner: int = SOONER
) -> tuple[Action, ...]:
    """The same launches, of which some fetch up to so many bytes for others."""
    out = list(actions)
    for k, p in enumerate(actions):
        if not isinstance(p, Planned) or 2 * prod(p.blocks) > multiprocessors:
            continue
        for own, later, size in ((k - 1, k + 1, sooner), (k + 1, k + 2, most)):
            if own >= 0 and later < len(out):
                out[own] = _fetching(out[own], out[later], size, multiprocessors)
    return tuple(out)


def _fetching(p: Action, later: Action, most: int, multiprocessors: int) -> Action:
    """A launch that fetches the beginnings of what a later one reads early, the blocks in equal
    parts. Blocks of the later one that find all their operands in the cache leave the memory's rate
    to the others. One of few blocks waits for other things than memory."""
    if not isinstance(p, Planned) or not isinstance(later, Planned):
        return p
    if not p.ranges or p.blocks[1:] != (1, 1) or 2 * prod(later.blocks) <= multiprocessors:
        return p
    places = zip(later.arguments, later.base, later.source, later.uses or (), strict=False)
    early = [(base, source, u.size) for a, base, source, u in places if a in later.early]
    early = early[: p.ranges]
    base: list[int] = []
    source: list[int] = []
    for start, address, size in early:
        part = min(size, most // len(early)) // p.blocks[0] // LINE * LINE
        base += [start, part] if part else []
        source += [address, FIXED] if part else []
    rest = 2 * p.ranges - len(base)
    first = len(p.base) - 2 * p.ranges
    return replace(
        p,
        base=(*p.base[:first], *base, *(0 for _ in range(rest))),
        source=(*p.source[:first], *source, *(FIXED for _ in range(rest))),
    )
