"""Tile IR → nest: every tile that has to be stored gets a buffer and loops that fill it; all
others are expressions where they are read. The result is naive and runnable; schedule steps make
it fast (kernel/defaults/tile_kernels.py).

Programs of the grid are the iterations of one parallel loop: that they do not depend on each other
is the language's promise, not something to prove.
"""

from __future__ import annotations

from tilewright.lang.tile.ir import Kernel
from tilewright.lang.tile.lowering.control import (
    lower_for,
    lower_if,
    lower_while,
)
from tilewright.lang.tile.lowering.memory import (
    lower_assert,
    lower_atomic,
    lower_cas,
    lower_load,
    lower_print,
    lower_store,
)
from tilewright.lang.tile.lowering.positions import Positions
from tilewright.lang.tile.lowering.state import APART, Aliasing, Lowered, Lowering
from tilewright.lang.tile.lowering.sums import (
    lower_dot,
    lower_histogram,
    lower_reduce,
    lower_scan,
)
from tilewright.lang.tile.lowering.values import (
    lower_bitcast,
    lower_broadcast,
    lower_cast,
    lower_cat,
    lower_const,
    lower_gather,
    lower_iota,
    lower_join,
    lower_map,
    lower_num_programs,
    lower_offset,
    lower_permute,
    lower_program_id,
    lower_reshape,
    lower_split,
)

_OPERATIONS = {
    "const": lower_const,
    "program_id": lower_program_id,
    "num_programs": lower_num_programs,
    "iota": lower_iota,
    "map": lower_map,
    "cast": lower_cast,
    "bitcast": lower_bitcast,
    "offset": lower_offset,
    "broadcast": lower_broadcast,
    "reshape": lower_reshape,
    "permute": lower_permute,
    "join": lower_join,
    "split": lower_split,
    "cat": lower_cat,
    "gather": lower_gather,
    "reduce": lower_reduce,
    "scan": lower_scan,
    "histogram": lower_histogram,
    "dot": lower_dot,
    "load": lower_load,
    "store": lower_store,
    "atomic": lower_atomic,
    "cas": lower_cas,
    "print": lower_print,
    "assert": lower_assert,
    "if": lower_if,
    "for": lower_for,
    "while": lower_while,
}


def lower(
    kernel: Kernel,
    aliasing: Aliasing = APART,
    wraps: bool = False,
    threads: bool = False,
    rounds: bool = False,
) -> Lowered:
    """The naive nest of a kernel, for arguments that overlap in memory as described; `wraps`: for
    launches in which positions may overflow; `threads`: for a machine whose threads share every
    tile; `rounds`: for one with instructions for products of tf32 and bfloat16."""
    positions = Positions(wraps)
    return Lowering(kernel, _OPERATIONS, aliasing, positions, threads, rounds).done()
