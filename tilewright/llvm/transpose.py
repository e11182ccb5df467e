"""As many vectors as they have lanes, transposed in registers.

Machines move elements freely within 128 bits, and pieces of 128 bits as a whole; whatever crosses
both takes more instructions, or ones that need a table. So squares of four by four are transposed
inside of the pieces first, then the pieces. Each step is two shuffles for two vectors: 16 vectors
of 16 lanes take 64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

PIECE = 4  # elements of 32 bits


def is_square(count: int, lanes: int, bits: int) -> bool:
    """Can so many vectors be transposed, as adjacent squares?"""
    return bits == 32 and lanes in (PIECE, 2 * PIECE, 4 * PIECE) and count % lanes == 0


def transposed(put: Callable[[str], str], rows: Sequence[str], element: str) -> list[str]:
    """Vector k has lane k of every one of the given vectors, which are as many as their lanes."""
    lanes = len(rows)

    def shuffled(x: str, y: str, places: Sequence[int]) -> str:
        v, which = f"<{lanes} x {element}>", ", ".join(f"i32 {k}" for k in places)
        return put(f"shufflevector {v} {x}, {v} {y}, <{lanes} x i32> <{which}>")

    def zipped(x: str, y: str, size: int) -> list[str]:
        """Runs of `size` elements of both, in turns: the first runs of all pieces, the others."""
        runs = range(0, PIECE // 2, size)
        out: list[str] = []
        for first in (0, PIECE // 2):
            starts = [p + first + r for p in range(0, lanes, PIECE) for r in runs]
            places = [k + side for k in starts for side in (0, lanes)]
            out.append(shuffled(x, y, [p + n for p in places for n in range(size)]))
        return out

    def halved(x: str, y: str) -> list[str]:
        """The pieces of both with an even number, and those with an odd one."""
        starts = range(0, 2 * lanes, PIECE)
        return [shuffled(x, y, [p + n for p in starts[k::2] for n in range(PIECE)]) for k in (0, 1)]

    # columns[c] has, of every four rows, a vector whose pieces are lanes c, c + 4, … of these.
    columns: list[list[str]] = [[] for _ in range(PIECE)]
    for at in range(0, lanes, PIECE):
        a, b, c, d = rows[at : at + PIECE]
        (low, high), (lower, higher) = zipped(a, b, 1), zipped(c, d, 1)
        for k, x in enumerate((*zipped(low, lower, 2), *zipped(high, higher, 2))):
            columns[k].append(x)
    for k, own in enumerate(columns):
        for _ in range((lanes // PIECE).bit_length() - 1):
            pairs = [halved(x, y) for x, y in zip(own[::2], own[1::2], strict=True)]
            own = [p[side] for side in (0, 1) for p in pairs]
        columns[k] = own
    return [columns[k % PIECE][k // PIECE] for k in range(lanes)]
