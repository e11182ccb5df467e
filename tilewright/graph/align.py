"""Reshapes move past elementwise work, so that the epilogue of a contraction or of a norm has its
shape, and transpositions that are taken back behind it are not made.

Frontends flatten the batch for a matrix product and restore it right after:
`gelu(reshape(x @ w))` becomes `reshape(gelu(x @ w))`, which is one kernel and an alias. So does
`silu(group_norm(x))`, which has an axis of groups inside. Users transpose for an operator that
wants it so, such as a spectrum's frames, and back for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.base.events import Log
from tilewright.graph.classify import facts
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Node, node
from tilewright.ir.operator import is_composed
from tilewright.ir.passes import Pass
from tilewright.ir.types import TupleType
from tilewright.ops.reductions import Reduction
from tilewright.ops.views import Permute, reshape


@dataclass(frozen=True)
class SinkReshapes(Pass, regions=True):
    """`f(reshape(x), …)` -> `reshape(f(x, …))` where x is a contraction, a row with its own sums or
    an epilogue of these. What is written in other operators stays."""

    def apply(self, program: Graph, log: Log) -> Graph:
        graph = program
        new: dict[Node, Node] = {}
        places = dict(graph.places)
        epilogue: set[Node] = set()  # contractions and elementwise work of their shape
        sums: dict[Node, Node] = {}  # numbers of rows: a reduction that they are made of
        changed = False
        for n in graph.nodes():
            ins = tuple([new[x] for x in n.inputs])
            fresh = n if ins == n.inputs else node(n.op, *ins)
            if isinstance(fresh.type, TupleType) or is_composed(fresh.op):
                new[n] = fresh
                continue
            f = facts(fresh)
            row = _row_of(fresh, sums)
            if row is not None and f.pointwise:
                sums[fresh] = row
            if f.kind == "contract":
                epilogue.add(fresh)
            elif _is_reshape(fresh) and _is_reshape(ins[0]):
                fresh = reshape(ins[0].inputs[0], fresh.shape)
            elif isinstance(fresh.op, Reduction) and (moved := _reduced(fresh, epilogue)):
                epilogue.add(moved)
                fresh, changed = reshape(moved, fresh.shape), True
            elif isinstance(fresh.op, Reduction) and _is_of_rows(fresh.op, ins[0].rank):
                sums[fresh] = fresh
            elif f.pointwise and f.kind == "map":
                if any(x in epilogue and _same(x.shape, fresh.shape) for x in ins):
                    epilogue.add(fresh)
                elif any(x in sums and _same(sums[x].inputs[0].shape, fresh.shape) for x in ins):
                    epilogue.add(fresh)  # a reshape before the row is the row's own
                elif fresh.op.elementwise:  # others name axes of the shape that they are given
                    moved = _sink(fresh, epilogue)
                    if moved is not None:
                        epilogue.add(moved)
                        if n in graph.places:
                            places[moved] = places.get(moved, frozenset()) | graph.places[n]
                        fresh, changed = reshape(moved, fresh.shape), True
            new[n] = fresh
            if fresh is not n and n in graph.places:
                places[fresh] = places.get(fresh, frozenset()) | graph.places[n]
        if not changed:
            return graph
        log.add("pass", "reshapes moved past epilogues", detail=True)
        return Graph(graph.name, graph.inputs, tuple(new[o] for o in graph.outputs), places)


@dataclass(frozen=True)
class UndoPermutes(Pass, regions=True):
    """`permute(f(permute(x), …))` -> `f(x, …)` where the second one takes the first one back."""

    def apply(self, program: Graph, log: Log) -> Graph:
        graph = program
        new: dict[Node, Node] = {}
        # Elementwise work on permuted operands: the permutation, and the same work without it.
        before: dict[Node, tuple[tuple[int, ...], Node]] = {}
        places = dict(graph.places)
        changed = False
        for n in graph.nodes():
            ins = tuple([new[x] for x in n.inputs])
            fresh = n if ins == n.inputs else node(n.op, *ins)
            if isinstance(fresh.op, Permute):
                known, q = before.get(ins[0]), fresh.op.perm
                if known is not None and all(known[0][k] == i for i, k in enumerate(q)):
                    fresh, changed = known[1], True
                else:
                    before[fresh] = q, ins[0]
            elif fresh.op.elementwise and (found := _without(fresh, before)) is not None:
                before[fresh] = found
                if n in graph.places:
                    places[found[1]] = places.get(found[1], frozenset()) | graph.places[n]
            new[n] = fresh
            if fresh is not n and n in graph.places:
                places[fresh] = places.get(fresh, frozenset()) | graph.places[n]
        if not changed:
            return graph
        log.add("pass", "transpositions that are taken back left out", detail=True)
        return Graph(graph.name, graph.inputs, tuple(new[o] for o in graph.outputs), places)


def _without(
    n: Node, before: dict[Node, tuple[tuple[int, ...], Node]]
) -> tuple[tuple[int, ...], Node] | None:
    """Elementwise work whose operands are all permuted alike, or numbers, without that."""
    perms = {before[x][0] for x in n.inputs if x in before and _same(x.shape, n.shape)}
    known = all(x.rank == 0 or (x in before and _same(x.shape, n.shape)) for x in n.inputs)
    if len(perms) != 1 or not known:
        return None
    return perms.pop(), node(n.op, *(before[x][1] if x in before else x for x in n.inputs))


def _is_of_rows(op: Reduction, rank: int) -> bool:
    """Does it reduce the innermost axes?"""
    return op.keepdims and sorted(op.axes) == list(range(rank - len(op.axes), rank))


def _row_of(n: Node, sums: dict[Node, Node]) -> Node | None:
    """The reduction whose numbers n is made of, one for one."""
    rows = (sums[x] for x in n.inputs if x in sums and _same(x.shape, n.shape))
    return next(rows, None)


def _reduced(n: Node, epilogue: set[Node]) -> Node | None:
    """A reduction over the shape from before a reshape that only adds or removes axes of one."""
    (x,) = n.inputs
    if not _is_reshape(x) or x.inputs[0] not in epilogue:
        return None
    assert isinstance(n.op, Reduction)
    base = x.inputs[0]
    old, new = _long_axes(x.shape), _long_axes(base.shape)
    if not _same([x.shape[k] for k in old], [base.shape[k] for k in new]):
        return None
    if any(k not in old for k in n.op.axes):
        return None
    axes = tuple(new[old.index(k)] for k in n.op.axes)
    return node(replace(n.op, axes=axes, keepdims=True), base)


def _is_reshape(n: Node) -> bool:
    """Is it only another shape of the same memory? A copy that is stored on purpose is not,
    although it may have its operand's elements in the same order: its readers need that order."""
    return not is_composed(n.op) and not n.op.barrier and facts(n).reshape


def _long_axes(shape: Sequence[Dim]) -> list[int]:
    return [k for k, d in enumerate(shape) if not D.known_eq(d, 1)]


def _same(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    return len(a) == len(b) and all(D.known_eq(x, y) for x, y in zip(a, b, strict=True))


def _sink(n: Node, epilogue: set[Node]) -> Node | None:
    """n over the shape from before a reshape, or None where an operand has no such form."""
    for x in n.inputs:
        if _is_reshape(x) and x.inputs[0] in epilogue and _same(x.shape, n.shape):
            shape = x.inputs[0].shape
            moved = [_in_shape(o, n.shape, shape) for o in n.inputs]
            operands = [o for o in moved if o is not None]
            if len(operands) < len(moved):
                continue
            out = node(n.op, *operands)
            if _same(out.shape, shape):
                return out
    return None


def _in_shape(x: Node, old: Sequence[Dim], new: Sequence[Dim]) -> Node | None:
    """x, which broadcasts to `old`, as what broadcasts to `new` with the same elements."""
    if _same(x.shape, old):
        base = x.inputs[0] if _is_reshape(x) else x
        return reshape(base, new)
    common = 0
    while common < min(len(old), len(new)) and D.known_eq(old[-1 - common], new[-1 - common]):
        common += 1
    own = list(x.shape)
    while own and D.known_eq(own[0], 1):
        own.pop(0)
    if len(own) > common:
        return None
    if _is_reshape(x) and _same(x.inputs[0].shape, own):
        return x.inputs[0]
    return reshape(x, own)
