"""In which ways a chain of products, such as attention or its gradients, may be done on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir import dim as D
from tilewright.ir.target import Grid
from tilewright.kernel.group import Group

ROWS = 64  # of one instruction
WIDE = 64  # steps of the sum of one use of it, and elements of a row of a tile
REGISTERS = 240  # of a thread, where one block of threads has a multiprocessor


@dataclass(frozen=True)
class Way:
    """How the blocks of keys come, and what goes on meanwhile."""

    roles: int = 0  # versions of keys and values that a warp of its own brings; 0: no warp does
    # 1: the second product goes on while the next block of keys begins; 2: during its softmax
    slack: int = 0
    walks: bool = False  # do as many blocks of threads as run at a time walk over all tiles?
    groups: int = 0  # of warps, each with 64 rows of a tile; all read the same keys. 0: what suits
    cluster: int = 1  # tiles of one head that get keys and values by one copy


PLAIN = Way()
# Where one block of threads has a multiprocessor: that of the rules, then others for a clock.
ALONE = (Way(3, 2, walks=True), Way(3, 2))
WAY: Way | None = None  # the only one, to measure it


def ways(group: Group) -> tuple[Way, ...]:
    """That of the rules first; none where the group is no chain. One block of threads has a
    multiprocessor where scores and sums of a thread take the registers of more than one."""
    found: tuple[Way, ...] = ()
    roles = dict(group.roles)
    if "scores" in roles and "end" in roles:
        found = ALONE if _wide(group, roles["scores"], roles["end"]) else (PLAIN,)
    elif "last0" in roles:
        found = (PLAIN,)
    return (WAY,) if WAY is not None and found else found


def tried(group: Group, skip: int) -> tuple[Way, ...]:
    """The ways to try in turn, so many of them skipped; the plain one may always be there."""
    found = ways(group)
    return (found[0], PLAIN) if len(found) > 1 and not skip else found[skip : skip + 1]


def _wide(group: Group, *stages: str) -> bool:
    return all(D.bounds(group.buffer(x).shape[-1])[1] > WIDE for x in stages)


def groups_of(group: Group, grid: Grid, way: Way) -> int:
    """Of warps: two where heads are wide, so that shared memory is what bounds the number of warps,
    and there are rows for both and tiles enough for all multiprocessors. Of a product across tiles
    of rows each group has half of the columns."""
    end = group.role("end")
    if end is None:
        across = group.role("across0")
        return way.groups or (2 if across is not None and _wide(group, across.name) else 1)
    *outer, rows, width = (D.bounds(d)[1] for d in group.buffer(end.name).shape)
    many = prod(outer) * -(-rows // (2 * ROWS)) >= grid.multiprocessors
    return way.groups or (2 if width > WIDE and rows > ROWS and many else 1)
