"""What orders the blocks of a launch on the executor of kernel/simt.py: atomic operations.

A thread that releases hands on what its block did before the block's last barrier; whoever acquires
by the same cell later has that, and the other threads of its block do from their next barrier on.
Anything else that two blocks do to one cell is a race. This is for launches that have counters. In
others blocks may also wait for each other, and here they run one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.kernel.nest import Atomic
from tilewright.kernel.races import NOBODY, Watch

Cells = dict[str, np.ndarray]  # of each buffer, by number
RELEASES, ACQUIRES = ("release", "acq_rel"), ("acquire", "acq_rel")


class Order:
    """The blocks run one after the other; of each cell `by_block` has the last one that wrote it,
    or that got it handed on."""

    def __init__(self, by_block: Mapping[str, Watch]) -> None:
        self.by_block = by_block
        self.given: dict[tuple[str, int], list[Cells]] = {}
        self.taken: dict[int, list[Cells]] = {}  # by blocks since their last barrier

    def atomic(
        self, block: int, s: Atomic, cells: np.ndarray, since: Mapping[str, Watch] | None
    ) -> None:
        """Threads of a block have done an atomic operation on some cells. `since` is what its
        threads did after their last barrier; None where it has one thread."""
        for cell in cells if self.by_block else ():
            found = self.given.setdefault((s.buffer, int(cell)), [])
            if s.order in ACQUIRES:
                self.taken.setdefault(block, []).extend(found)
            if s.order in RELEASES:
                found.append(self._done(block, since))
        if since is None:
            self.barrier(block)

    def _done(self, block: int, since: Mapping[str, Watch] | None) -> Cells:
        """What a block has written, before its last barrier."""
        mine = {name: w.writer == block for name, w in self.by_block.items()}
        if since is not None:
            mine = {name: own & (since[name].writer == NOBODY) for name, own in mine.items()}
        return {name: np.flatnonzero(own) for name, own in mine.items()}

    def barrier(self, block: int) -> None:
        for cells in self.taken.pop(block, ()):
            for name, at in cells.items():
                self.by_block[name].writer[at] = block
