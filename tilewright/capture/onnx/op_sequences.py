"""Sequences and optionals, which are static: their length is known while translating."""

from __future__ import annotations

from tilewright import ops
from tilewright.capture.onnx.context import Context, Value, axis_in, static, translation
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.types import b1, i64


@translation("SequenceConstruct", narrow=True)
def sequence_construct(c: Context, *xs: Value) -> list[Value]:
    return list(xs)


@translation("SequenceEmpty", narrow=True)
def sequence_empty(c: Context) -> list[Value]:
    return []


def _place(c: Context, sequence: list[Value], at: Node, more: int = 0) -> int:
    k, n = c.one(at), len(sequence) + more
    if not -n <= k < n:
        c.refuse(f"position {k} is not one of a sequence of {len(sequence)}")
    return k + n if k < 0 else k


@translation("SequenceAt", narrow=True)
def sequence_at(c: Context, sequence: list[Value], at: Node) -> Value:
    return sequence[_place(c, sequence, at)]


@translation("SequenceLength", narrow=True)
def sequence_length(c: Context, sequence: list[Value]) -> Node:
    return ops.number(len(sequence), i64)


@translation("SequenceInsert", narrow=True)
def sequence_insert(
    c: Context, sequence: list[Value], x: Value, at: Node | None = None
) -> list[Value]:
    n = len(sequence)
    k = n if at is None else c.one(at)
    if not -n <= k <= n:
        c.refuse(f"position {k} is not one of a sequence of {n}")
    out = list(sequence)
    out.insert(k, x)
    return out


@translation("SequenceErase", narrow=True)
def sequence_erase(c: Context, sequence: list[Value], at: Node | None = None) -> list[Value]:
    out = list(sequence)
    del out[-1 if at is None else _place(c, sequence, at)]
    return out


@translation("ConcatFromSequence")
def concat_from_sequence(c: Context, sequence: list[Node]) -> Node:
    axis = c.get("axis", 0)
    if c.get("new_axis", 0):
        return ops.stack(sequence, axis_in(c, axis, sequence[0].rank + 1))
    return ops.concat(sequence, axis_in(c, axis, sequence[0].rank))


@translation("SplitToSequence")
def split_to_sequence(c: Context, x: Node, sizes: Node | None = None) -> list[Node]:
    axis = axis_in(c, c.get("axis", 0), x.rank)
    (n,) = static((x.shape[axis],), "SplitToSequence")
    given: list[Dim]
    if sizes is None:
        given = [1] * n
    elif sizes.rank == 0:
        step = c.one(sizes)
        given = [min(step, n - k) for k in range(0, n, step)]
    else:
        given = c.dims(sizes)
    parts = list(ops.split(x, given, axis))
    if sizes is None and not c.get("keepdims", 1):
        parts = [ops.squeeze(p, [axis]) for p in parts]
    return parts


@translation("Optional", narrow=True)
def optional(c: Context, x: Value = None) -> Value:
    return x


@translation("OptionalHasElement", narrow=True)
def optional_has_element(c: Context, x: Value = None) -> Node:
    return ops.full((), x is not None, b1)


@translation("OptionalGetElement", narrow=True)
def optional_get_element(c: Context, x: Value = None) -> Value:
    if x is None:
        c.refuse("the optional is empty")
    return x
