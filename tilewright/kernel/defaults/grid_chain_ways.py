"""In which ways a chain of two products, such as attention, may be done on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir import dim as D
from tilewright.ir.target import Grid
from tilewright.kernel.group import Group

ROWS = 64  # of one instruction
WIDE = 64  # steps of the sum of one use of it, and elements of a row of a tile
GROUPS: int = 0  # of warps, each with 64 rows of a tile; all read the same keys. 0: what suits
REGISTERS = 240  # of a thread, where one block of threads has a multiprocessor


@dataclass(frozen=True)
class Way:
    """How the blocks of keys come, and what goes on meanwhile."""

    roles: int = 0  # versions of keys and values that a warp of its own brings; 0: no warp does
    # 1: the second product goes on while the next block of keys begins; 2: during its softmax
    slack: int = 0
    walks: bool = False  # do as many blocks of threads as run at a time walk over all tiles?
    turns: bool = False  # do groups of warps begin their products one after the other?
    cluster: int = 1  # tiles of one head that get keys and values by one copy


PLAIN = Way()
# Where one block of threads has a multiprocessor: that of the rules, then others for a clock.
ALONE = (Way(3, 2), Way(3, 2, walks=True), Way(3, 2, walks=True, turns=True))
WAY: Way | None = None  # the only one, to measure it


def ways(group: Group) -> tuple[Way, ...]:
    """That of the rules first; none where the group is no chain. One block of threads has a
    multiprocessor where scores and sums of a thread take the registers of more than one."""
    scores, end = (group.role(x) for x in ("scores", "end"))
    if scores is None or end is None:
        return ()
    wide = all(D.bounds(group.buffer(x.name).shape[-1])[1] > WIDE for x in (scores, end))
    return (WAY,) if WAY is not None else ALONE if wide else (PLAIN,)


def groups_of(group: Group, grid: Grid) -> int:
    """Of warps: two where heads are wide, so that shared memory is what bounds the number of warps,
    and there are rows for both and tiles enough for all multiprocessors."""
    end = group.role("end")
    assert end is not None
    *outer, rows, width = (D.bounds(d)[1] for d in group.buffer(end.name).shape)
    many = prod(outer) * -(-rows // (2 * ROWS)) >= grid.multiprocessors
    return GROUPS or (2 if width > WIDE and rows > ROWS and many else 1)
