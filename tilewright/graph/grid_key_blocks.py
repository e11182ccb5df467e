"""GridKeyBlocks: attention over blocks of keys, for GPUs: what one block of threads walks over."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright import rewrites
from tilewright.base.events import Log
from tilewright.graph.classify import guess
from tilewright.ir.node import Graph, Item, Node, rebuild
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.rewrite import rewrite
from tilewright.ir.target import Target
from tilewright.ir.types import bf16, f16
from tilewright.ops.attention import AttentionBackward, AttentionForward
from tilewright.ops.elementwise import Cast
from tilewright.ops.linear import Matmul
from tilewright.rewrites.key_blocks import Cut, attention_in_blocks, key_block_rules

FEW_ROWS = 16  # of queries: fewer leave most of a product's rows empty
WIDEST = 128  # a head: twice its sums, and scores, are in the registers of one group of warps
GROUP_ROWS = 64  # of an instruction of a group of warps
MANY_KEYS = 1024  # from which on few rows are a tile all the same: reading the keys takes longest
RESIDENT: int = 2  # blocks of threads on a multiprocessor
# What takes as long as so many blocks of keys: to start with the first one, and another launch.
START, LAUNCH = 2, 8
VECTOR = 8  # elements that are copied at a time
# Keys of a block, a multiple of the steps of the sum that an instruction takes. More of them have
# fewer instructions for each, but scores of heads wider than this leave no registers for them,
# unless one block of threads has a multiprocessor for itself, which takes many keys to be worth it.
KEYS = (64, 128)
NARROW = 64
ALONE: bool = True  # is it done?
ALONE_ROWS = 128  # of a tile then
MORE = 1.05  # keys that there are not, for larger blocks
FIXED: int = 0  # keys of a block whatever the sizes are, to measure them


def _resident(target: Target) -> int:
    return RESIDENT * target.grid.multiprocessors if target.grid is not None else RESIDENT


def _multiplies(target: Target) -> bool:
    """By groups of warps, which the schedule of the chain has."""
    tiles = (p.tile for p in target.products if p.a in (bf16, f16))
    return any(t is not None and t[0] >= GROUP_ROWS for t in tiles)


@dataclass(frozen=True)
class GridKeyBlocks(Pass, before=("Decompose",), rounds=True, regions=True):
    """`softmax(scores) values` of 16-bit floats over blocks of keys, put together as they come. The
    chain of both products is one kernel (kernel/defaults/grid_chains.py)."""

    block: int = 0  # keys; 0: what suits the sizes
    resident: int = of_target(264, _resident)  # blocks of threads at a time
    multiplies: bool = of_target(True, _multiplies)  # by an instruction, 16-bit floats
    # Are all gradients one kernel, which adds those of queries up in any order?
    atomic: bool = False

    def apply(self, program: Graph, log: Log) -> Graph:
        if not self.multiplies:
            return program
        known = rewrites.rules("rounding", families=("spelled", "scaled"))
        program = rewrite(program, known, log, 3)
        cut = Cut(self.size, self.parts, FEW_ROWS)
        program = rewrite(program, key_block_rules(cut), log, 1)

        def several(n: Node) -> Node:
            """Attention whose gradient needs the logarithms of denominators, and that gradient."""
            if not isinstance(n.op, Item):
                return n
            source = n.inputs[0]
            made: tuple[Node, ...] | None = None
            if isinstance(source.op, AttentionForward):
                made = attention_in_blocks(source.op, cut, True, *source.inputs)
            elif isinstance(source.op, AttentionBackward):
                grad, q, k, *rest = source.inputs
                least = min(guess(q.shape[-2]), guess(k.shape[-2]))
                rows = source.op.rows(q, k, *rest[:1])[0]
                if least >= FEW_ROWS and self.size(rows) is not None:
                    made = source.op.recomputed(grad, q, k, *rest, once=self._once(q, k))
            return n if made is None else made[n.op.k]

        return rebuild(program, several)

    def _once(self, q: Node, k: Node) -> bool:
        """Whole tiles of wide heads, and enough of them for all multiprocessors. Where heads share
        keys, blocks are fewer and longer, and two kernels were measured to be faster."""
        *outer, keys, width = k.shape
        *others, rows, _ = q.shape
        if not self.atomic or width != WIDEST or not isinstance(keys, int) or outer != others:
            return False
        whole = isinstance(rows, int) and rows % GROUP_ROWS == keys % ALONE_ROWS == 0
        return whole and RESIDENT * prod(map(guess, outer)) * (keys // ALONE_ROWS) >= self.resident

    def size(self, scores: Node) -> int | None:
        """Of a block; None where the products are none of warps."""
        rows, keys = scores.shape[-2:]
        found = _product(scores)
        if found is None or not isinstance(rows, int) or not isinstance(keys, int):
            return None
        width = found.inputs[0].shape[-1]
        narrow = all(
            isinstance(x.op, Cast) and x.inputs[0].dtype in (bf16, f16)
            for x in map(_unviewed, found.inputs)
        )
        fits = isinstance(width, int) and width <= WIDEST and width % VECTOR == 0
        enough = rows >= FEW_ROWS or keys >= MANY_KEYS
        if not narrow or not isinstance(width, int) or not fits or not enough or not keys:
            return None
        tiles = prod(map(guess, scores.shape[:-2])) * (rows // ALONE_ROWS)
        many = keys >= MANY_KEYS and RESIDENT * tiles >= self.resident
        alone = ALONE and many and width == WIDEST
        return self.block or FIXED or _keys(rows, keys, alone or width <= NARROW)

    def parts(self, scores: Node, blocks: int) -> int:
        """Parts of the keys, where tiles of rows are too few for all multiprocessors."""
        tiles = -(-prod(map(guess, scores.shape[:-1])) // GROUP_ROWS)
        if isinstance(rows := scores.shape[-2], int):
            tiles = prod(map(guess, scores.shape[:-2])) * -(-rows // GROUP_ROWS)

        def turns(parts: int) -> float:
            """Blocks of keys that one block of threads walks over, one after the other."""
            again = -(-tiles * parts // self.resident)
            more = LAUNCH + parts / 16 if parts > 1 else 0
            # Blocks without a rest need no condition that positions are below the number of keys.
            return again * (-(-blocks // parts) + START) + more + START * (blocks % parts > 0)

        return min(range(1, blocks + 1), key=turns)


def _keys(rows: int, keys: int, registers: bool) -> int:
    """More where there are registers for their scores, and several blocks: the second one comes
    while the first one is multiplied."""
    few, many = (-(-keys // k) * k for k in KEYS)
    several = many > KEYS[1] and many <= MORE * few
    return KEYS[registers and rows >= GROUP_ROWS and several]


def _product(scores: Node) -> Node | None:
    """The product that scores are made of, element by element."""
    stack, seen = [scores], {scores}
    while stack:
        x = stack.pop()
        if isinstance(x.op, Matmul):
            return x
        if x.op.elementwise:
            stack += (y for y in x.inputs if y not in seen)
            seen.update(x.inputs)
    return None


def _unviewed(x: Node) -> Node:
    while x.op.view and len(x.inputs) == 1:
        (x,) = x.inputs
    return x
