"""Recurrent layers: a step over all positions of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.node import Graph, Node, input
from tilewright.ir.operator import outputs_of
from tilewright.ir.types import TensorType
from tilewright.ops.control import scan
from tilewright.ops.creation import full
from tilewright.ops.elementwise import where

# New states of states, one slice of each sequence, and what is the same at all positions.
Step = Callable[[Sequence[Node], Sequence[Node], Sequence[Node]], Sequence[Node]]


def over_positions(
    step: Step,
    states: Sequence[Node],
    sequences: Sequence[Node],
    captured: Sequence[Node] = (),
    back: bool = False,
    mask: Node | None = None,
) -> tuple[Node, tuple[Node, ...]]:
    """(the first state at all positions, the last states) of a step over sequences along axis 0, or
    `back` from their end. Where the mask, one more sequence, is false, states stay as they are, and
    the result is 0."""
    given = [*sequences, *([] if mask is None else [mask])]
    seen = [input(f"state{k}", x.ttype) for k, x in enumerate(states)]
    slices = [input(f"slice{k}", TensorType(x.dtype, x.shape[1:])) for k, x in enumerate(given)]
    same = [input(f"same{k}", x.ttype) for k, x in enumerate(captured)]
    new = list(step(seen, slices[: len(sequences)], same))
    result = new[0]
    if mask is not None:
        live = slices[-1]
        result = where(live, result, full(result.shape, 0.0, result.dtype))
        new = [where(live, a, b) for a, b in zip(new, seen, strict=True)]
    body = Graph("step", (*seen, *slices, *same), (*new, result))
    flags = (back,) * (len(given) + 1)
    *last, whole = outputs_of(scan(body, states, given, captured, reverse=flags))
    return whole, tuple(last)
