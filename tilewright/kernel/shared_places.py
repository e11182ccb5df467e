"""Where the shared buffers of a block lie: what is used at different times may have one place.

The emitter places them so, and schedules ask whether all fit before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.kernel.group import Buffer

ALL_BANKS = 128  # bytes


def alignment_of(b: Buffer) -> int:
    """All banks; of swizzled memory, what instructions that read swizzled tiles need."""
    if b.swizzle is None:
        return ALL_BANKS
    return min(1024, max(ALL_BANKS, b.swizzle.period * b.dtype.bytes))


def shared_places(
    buffers: Sequence[Buffer], sizes: Mapping[str, int], apart: Collection[tuple[str, str]]
) -> tuple[dict[str, int], int]:
    """The first byte of each buffer of so many bytes, and how many there are in all. Buffers that
    are `apart` may have one place."""
    places: dict[str, int] = {}
    total = 0
    for b in sorted(buffers, key=lambda b: -alignment_of(b)):
        whole, size = alignment_of(b), sizes[b.name]
        others = [x for x in places if (x, b.name) not in apart and (b.name, x) not in apart]
        ends = [places[x] + sizes[x] for x in others]
        fits = (-(-end // whole) * whole for end in sorted([0, *ends]))
        places[b.name] = next(
            at
            for at in fits
            if all(at >= end or at + size <= places[x] for x, end in zip(others, ends))
        )
        total = max(total, places[b.name] + -(-size // ALL_BANKS) * ALL_BANKS)
    return places, total
