"""KeyBlocks: attention over more keys than one block of scores has. An unknown number of them is
one block, filled up to whole vectors."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from tilewright import rewrites
from tilewright.base.events import Log
from tilewright.graph.chains import FEW_ROWS, TILE_ROWS
from tilewright.ir.node import Graph, Node
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.register_tile import register_tile
from tilewright.ir.rewrite import rewrite
from tilewright.ir.target import Target
from tilewright.ir.types import f32
from tilewright.rewrites.key_blocks import Cut, has_positions, key_block_rules

# Lanes of the kernels that work on rows of scores, of which a block is a multiple.
LANES = 16
# More keys than this are in blocks where positions hide some: one sum of registers over more of
# them is taken apart, and then what is hidden is not left out. Causal, 8 heads of width 64 on one
# thread of a Neoverse N1, whole and in blocks: 512 keys took 11.6 and 12.6 ms, 640 keys 23.4 and
# 18.9, 1024 keys 57.7 and 44.0.
MANY_KEYS = 512


def _unit(target: Target) -> int:
    columns = register_tile(target, f32).columns
    return lcm(columns, LANES)


@dataclass(frozen=True)
class KeyBlocks(Pass, before=("Decompose",), rounds=True, regions=True):
    """Rewrite `softmax(scores) values` where a block of rows of all scores leaves the cache, where
    conditions on positions hide parts of many keys, and where the number of keys is not known:
    then there are whole vectors of them, and nothing is seen past the last one.
    """

    unit: int = of_target(48, _unit)  # what the size of a block is a multiple of
    scratch: int = of_target(256 * 1024, lambda t: t.scratch)  # bytes of rows of all scores
    block: int = 1024  # keys at most, as the next one
    hidden: int = 512  # one sum of registers over each block: then what is hidden is left out

    def apply(self, program: Graph, log: Log) -> Graph:
        program = rewrite(program, rewrites.rules(families=("spelled",)), log, 1)
        return rewrite(program, key_block_rules(Cut(self.size, fill=self.fill)), log, 1)

    def size(self, scores: Node) -> int | None:
        """Of a block; None where all keys are one."""
        rows, keys = scores.shape[-2:]
        if isinstance(rows, int) and rows < FEW_ROWS:
            return None  # each key is read once or a few times: there is no block to reuse
        if not isinstance(keys, int):
            return None  # rows of usual numbers stay in the cache
        most = self.scratch // (TILE_ROWS * scores.dtype.accumulator.bytes)
        block = self.block
        if has_positions(scores):
            most, block = MANY_KEYS, self.hidden
        if keys <= most:
            return None
        # Blocks without a rest need no condition that positions are below the number of keys.
        even = [n for n in range(LANES, block + 1, LANES) if keys % n == 0 and 2 * n > block]
        if even:
            return even[-1]
        count = -(-keys // self._whole(block))
        return -(-keys // (count * self.unit)) * self.unit

    def fill(self, scores: Node) -> int:
        """What a number of keys that is not known is filled up to a multiple of."""
        rows, keys = scores.shape[-2:]
        few = isinstance(rows, int) and rows < FEW_ROWS
        return 1 if few or isinstance(keys, int) else LANES

    def _whole(self, most: int) -> int:
        return max(1, most // self.unit) * self.unit
