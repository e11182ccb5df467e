"""Random operators that run twice with the same numbers: what torch makes of checkpoints.

The forward graph saves the state of the generator from before the operator, the backward graph runs
the operator again from that state. Ours is the seed of the call and the number of the stream, in
the first bytes of a tensor as long as torch's; only these two graphs read it.
"""

from __future__ import annotations

from typing import Any

from tilewright import ops
from tilewright.capture.torch.context import Context, cast
from tilewright.capture.torch.registry import aten
from tilewright.ir.node import Node
from tilewright.ir.types import i64, u8

BYTES = 8  # of one number


@aten("higher_order::run_and_save_rng_state")
def run_and_save(c: Context, op: Any, *args: Any, **kwargs: Any) -> tuple[Node, Any]:
    seed, first = c.next_stream()
    out = c.apply(op, args, kwargs, c.val[1])
    numbers = ops.concat([_bytes(seed), _bytes(first)], 0)
    return ops.pad(numbers, (0,), (c.out(0).shape[0] - 2 * BYTES,), 0), out


@aten("higher_order::run_with_rng_state")
def run_with(c: Context, state: Node, op: Any, *args: Any, **kwargs: Any) -> Any:
    seed, first = (_number(ops.slice(state, 0, k, k + BYTES, 1)) for k in (0, BYTES))
    with c.from_stream(seed, first):
        return c.apply(op, args, kwargs, c.val)


def _shifts() -> Node:
    return ops.iota(BYTES, 0, 8, i64)


def _bytes(x: Node) -> Node:
    return cast(ops.shr(ops.expand(x, (BYTES,)), _shifts()), u8)


def _number(x: Node) -> Node:
    return ops.sum(ops.shl(cast(x, i64), _shifts()), (0,), False)
