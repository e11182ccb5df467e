"""How much work an iteration is, where sizes that only the call knows decide.

A schedule says how many iterations of a parallel loop are one piece of work, for sizes that are
usual. In code for any size the number follows from the sizes of the call: where these are larger,
a piece has fewer iterations, which are as much work as those of usual sizes.
"""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.extremes import guess
from tilewright.kernel.nest import Loop, Store, walk

USUAL_PRAGMA = "usual"
# So many pieces for each thread are enough for others to help when it falls behind.
PIECES = 64
ENOUGH = 8  # with as many for each thread, pieces are made no smaller
REST = 64  # what tiles and vectors leave over is no more


def work_inside(s: Loop) -> Dim:
    """How often the stores in an iteration of a loop run, about, as a function of sizes. What tiles
    leave over counts as the most that this may be."""
    most: dict[frozenset[Dim], int] = {}
    for x, path in walk(s.body):
        if not isinstance(x, Store):
            continue
        known, open_ = 1, set[Dim]()
        begin: dict[D.Sym, Dim] = dict.fromkeys((s.var, *(q.var for q in path)), 0)
        for q in path:
            high, varies = D.bounds(q.extent)[1], not begin.keys().isdisjoint(D.symbols(q.extent))
            extent = D.substitute(q.extent, begin)  # of blocks, the first one
            if isinstance(extent, int):
                known *= max(1, extent)
            elif high <= REST and not varies:
                known *= max(1, int(high))
            elif not any(D.data_values(extent)):
                open_.add(extent)
        key = frozenset(open_)
        most[key] = max(known, most.get(key, 0))
    total: Dim = 0
    for extents, times in sorted(most.items(), key=lambda x: (x[1], sorted(map(str, x[0])))):
        part: Dim = times
        for e in sorted(extents, key=str):
            part = part * D.maximum(e, 1)
        total = total + part
    return total


def work_at(work: Dim, usual: int) -> int:
    """The same for one size in the place of all that are not known."""
    return max(1, guess(work, usual))


def usual_of(s: Loop) -> int:
    """For which size in the place of all unknown ones a loop's grain was chosen; 0: for any."""
    return dict(s.pragmas).get(USUAL_PRAGMA, 0)
