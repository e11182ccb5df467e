"""What launches fetch for later ones.

Between the last copies of a launch and the first ones of the next, memory has little to do. So a
block that has begun its last copies (`Fetch`, or `Await`; llvm/awaiting.py) brings to the cache
what the next launch reads first. A launch of few blocks, such as attention of one token, leaves
most multiprocessors and most of the memory's rate unused: the launch after it has begun by then and
waits, and fetches much more. A fetch reads nothing into the program, so it may ask for memory that
is written later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.runtime.cuda.plan import FIXED, Planned, PlannedBranch, PlannedCall

Action = Planned | PlannedCall | PlannedBranch

# Bytes that a launch fetches after one of few blocks (half of the cache of a large GPU), and after
# another one (what memory gives in two microseconds).
MOST: int = 24 << 20
SOME: int = 8 << 20
LEAST: int = 0  # bytes that the later launch reads: a short one waits for other things than memory
LINE = 128  # bytes that are fetched at least


def fetching(
    actions: Sequence[Action],
    multiprocessors: int,
    most: int = MOST,
    some: int = SOME,
    least: int = LEAST,
) -> tuple[Action, ...]:
    """The same launches, of which some fetch up to so many bytes for others."""

    def few(k: int) -> bool:
        p = actions[k]
        return isinstance(p, Planned) and 2 * prod(p.blocks) <= multiprocessors

    out = list(actions)
    for k, p in enumerate(actions[:-1]):
        # Few blocks wait for other things than memory, and the next launch begins beside them.
        if isinstance(p, Planned) and p.ranges and p.blocks[1:] == (1, 1) and not few(k):
            later = next(
                (x for j in (k + 1, k + 2) for x in actions[j : j + 1] if not few(j)), None
            )
            if isinstance(later, Planned):
                size = most if k and few(k - 1) else some
                out[k] = _fetching(p, later, size if _read_early(later) >= least else 0)
    return tuple(out)


def _read_early(p: Planned) -> int:
    """Bytes of what a launch reads before it needs anything of earlier ones."""
    uses = zip(p.arguments, p.uses or (), strict=False)
    return sum(u.size for a, u in uses if a in p.early)


def _fetching(p: Planned, later: Planned, most: int) -> Planned:
    """A launch that fetches the beginnings of what a later one reads early, the blocks in equal
    parts. Blocks of the later one that find all their operands in the cache leave the memory's rate
    to the others."""
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
