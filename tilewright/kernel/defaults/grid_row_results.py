"""Results of a chain with one value for each row, such as the logarithms of its denominators.

They are stored beside the tile that the other results are, by one of the threads that have a row.
"""

from __future__ import annotations

from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.steps.complete import Complete
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.split import Split


def place_rows(s: Scheduler, stage: str, tiles: str, rows: int) -> tuple[str, str]:
    """The rows of a stage in the loop over tiles of `rows` of them; (the loop over the rows of a
    tile, one that is done once for each)."""
    loop = s.path(stage)[-1].name
    s.do(Split(loop, rows))
    s.do(ComputeWith(stage, tiles))
    within = f"{loop}.1"
    if s.loops(within)[0].extent != rows:
        s.do(Complete(within, rows))
    s.do(Split(within, 1))
    return f"{within}.0", f"{within}.1"
