"""Folding: what depends on constants only is computed now, what depends on weights only, once.

`FoldConstants` evaluates nodes over literals (small ones: the result is part of the program text).
`split_weights` moves what depends on weights only into a graph of its own, the prologue, that runs
once; its outputs are weights of the main graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.events import Log
from tilewright.base.traverse import operands_first
from tilewright.graph.classify import classify, facts, guess
from tilewright.graph.specialise import node_symbols
from tilewright.ir.in_double import in_double
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import (
    Constant,
    Graph,
    Input,
    Item,
    Node,
    constant,
    input,
    node,
    rebuild,
)
from tilewright.ir.operator import is_composed
from tilewright.ir.passes import Pass
from tilewright.ir.pattern import filled_value, make
from tilewright.ir.rewrite import map_subgraphs
from tilewright.ir.scalar import WORTH_STORING
from tilewright.ir.types import DType, TensorType, f32, f64

# A folded weight may be this many times larger than the weights it is made of: Winograd's tiles of
# 4x4 take four times as many elements and packing pads a little; an expand multiplies without end.
GROWTH = 5


@dataclass(frozen=True)
class FoldConstants(Pass, repeats=True, inside=True, regions=True):
    """Replace nodes over constants by their value, where it has at most `limit` elements.

    What is filled with one value stays so (`full`), whatever its size. Index ramps (`iota`) are
    left to the kernels, which compute them in registers, and so is what is made of them, up to a
    scan: its steps wait for each other, on a GPU for a microsecond each three. Up to `steps`
    elements those are folded, which takes as long as interpreting them. Nor are functions of floats
    left to kernels that take longer to compute than to read, such as the sines of positions: each
    call would compute the same again.
    """

    limit: int = 1 << 16
    steps: int = 1 << 12

    def apply(self, program: Graph, log: Log) -> Graph:
        known: dict[Node, bool] = {}

        def change(n: Node) -> Node:
            if not isinstance(n.type, TensorType) or isinstance(n.op, Input):
                op = map_subgraphs(n.op, lambda g: self.apply(g, log))
                return n if op is n.op else node(op, *n.inputs)
            uniform = _uniform(n)
            if uniform is not None:
                return uniform
            if self._is_closed_function(n, known):
                value = _rounded_once(n)
            elif self._foldable(n) or self._is_closed_scan(n, known):
                (value,) = evaluate(Graph("fold", (), (n,)), ())
            else:
                return n
            log.add("fold", f"{n.op} computed", where=program.place(n), detail=True)
            return constant_of(value, n.dtype)

        return rebuild(program, change)

    def _foldable(self, n: Node) -> bool:
        """Is n an operator over constants, one of them a literal? (Operands were folded before.)"""
        maker = n.inputs[0] if isinstance(n.op, Item) else n
        operands = maker.inputs
        if not operands or maker.op.random or hasattr(maker.op, "interpret"):
            return False
        known = all(
            x.op.name == "full" or (isinstance(x.op, Constant) and not x.op.passed)
            for x in operands
        )
        literal = any(isinstance(x.op, Constant) for x in operands)
        sizes = [x.ttype.size for x in (n, *operands)]
        return known and literal and all(isinstance(s, int) and s <= self.limit for s in sizes)

    def _is_closed_scan(self, n: Node, known: dict[Node, bool]) -> bool:
        """Is n a program that depends on no input?"""
        if is_composed(n.op) or classify(n) != "program" or not _sizes_within(n, self.steps):
            return False
        return _is_closed(n, known)

    def _is_closed_function(self, n: Node, known: dict[Node, bool]) -> bool:
        """Is n a costly function of floats that depends on no input?"""
        if is_composed(n.op) or n.dtype not in (f32, f64) or not _sizes_within(n, self.limit):
            return False
        if classify(n) != "map" or facts(n).flops < WORTH_STORING or not _is_closed(n, known):
            return False
        small: dict[Node, bool] = {}
        for x in operands_first(n, lambda y: y.inputs, small):
            small[x] = _sizes_within(x, self.limit)
        return all(small.values())


def _rounded_once(n: Node) -> np.ndarray:
    """A function of floats as exact as its dtype allows: numpy's own functions of float32 are a few
    units in the last place away, which grow with the angle that they are multiplied by."""
    given = evaluate(Graph("fold", (), n.inputs), ())
    operands = [constant_of(v, x.dtype) for v, x in zip(given, n.inputs, strict=True)]
    (value,) = in_double(Graph("fold", (), (node(n.op, *operands),)), ())
    with np.errstate(over="ignore"):
        return value.astype(n.dtype.numpy)


def _is_closed(n: Node, known: dict[Node, bool]) -> bool:
    """Does n depend on no input, and is it the same in each call?"""
    for x in operands_first(n, lambda y: y.inputs, known):
        own = not isinstance(x.op, Input) and not x.op.random and not any(node_symbols(x))
        own = own and not hasattr(x.op, "interpret")
        own = own and not (isinstance(x.op, Constant) and x.op.passed)
        known[x] = own and all(known[y] for y in x.inputs)
    return known[n]


def _sizes_within(n: Node, limit: int) -> bool:
    sizes = [x.ttype.size for x in (n, *n.inputs) if isinstance(x.type, TensorType)]
    return all(isinstance(s, int) and s <= limit for s in sizes)


def _uniform(n: Node) -> Node | None:
    """n as `full`, where it is a view or an elementwise function of operands of one value each."""
    if not n.inputs or not (n.op.view or n.op.elementwise):
        return None
    values = [filled_value(x) for x in n.inputs]
    known = [v for v in values if v is not None]
    if len(known) != len(values):
        return None
    if n.op.view:
        return make("full", shape=n.shape, value=known[0], dtype=n.dtype)
    scalars = [
        make("full", shape=(), value=v, dtype=x.dtype) for v, x in zip(known, n.inputs, strict=True)
    ]
    (value,) = evaluate(Graph("fold", (), (node(n.op, *scalars),)), ())
    return make("full", shape=n.shape, value=_number(value, n.dtype), dtype=n.dtype)


def _number(value: np.ndarray, dtype: DType) -> float | int | bool:
    x = value.reshape(-1)[0]
    return float(x) if dtype.is_float else bool(x) if dtype.is_bool else int(x)


def constant_of(value: np.ndarray, dtype: DType) -> Node:
    """The value as a node: `full` where every element is the same, else a literal."""
    n = constant(value, dtype)
    uniform = filled_value(n)
    if uniform is not None:
        return make("full", shape=value.shape, value=uniform, dtype=dtype)
    return n


# ---- weights


@dataclass(frozen=True)
class _Facts:
    """What is known of a node over weights: do only weights and constants reach it, and which? Of
    others nobody asks, and there would be as many as there are weights before them.

    A symbol's value differs from call to call, so that nothing that mentions one is `only`: neither
    a weight of symbolic size, nor a node whose attribute is symbolic.
    """

    only: bool
    weights: frozenset[Node]


def weight_facts(graph: Graph, symbolic: bool = False) -> dict[Node, _Facts]:
    """`symbolic`: symbols are of one value wherever the weights are."""

    def open_size(n: Node) -> bool:
        return not symbolic and any(node_symbols(n))

    facts: dict[Node, _Facts] = {}
    for n in graph.nodes():
        if isinstance(n.op, Input):
            weight = n.op.role == "weight"
            only = weight and not open_size(n)
            facts[n] = _Facts(only, frozenset({n}) if weight else frozenset())
            continue
        below = [facts[x] for x in n.inputs]
        only = all(f.only for f in below) and not n.op.random and not open_size(n)
        known = [f.weights for f in below if f.weights] if only else ()
        facts[n] = _Facts(only, known[0] if len(known) == 1 else frozenset().union(*known))
    return facts


def split_weights(
    graph: Graph, growth: int = GROWTH, views: bool = True, symbolic: bool = False
) -> tuple[Graph, Graph]:
    """(prologue, main). Output k of the prologue is the input `folded{k}` of the main graph. Views
    of weights are copied there, unless `views` says that kernels read through them. `symbolic`:
    what mentions symbols may be moved, as in a body whose weights are those of one call.

    The inputs of main are those of the graph, less the weights it needs no more, then the folded.
    """
    facts = weight_facts(graph, symbolic)
    outputs: list[Node] = []
    taken = {n.op.label for n in graph.inputs if isinstance(n.op, Input)}
    new: dict[Node, Node] = {}

    def moved(n: Node) -> Node:
        label = f"folded{len(outputs)}"
        while label in taken:
            label = f"{label}_"
        outputs.append(n)
        return input(label, n.ttype, "weight")

    def stays(n: Node) -> bool:
        f = facts[n]
        if not f.only or not f.weights or n in f.weights or not isinstance(n.type, TensorType):
            return True
        if n.op.told:  # memory of the host, where zero is not written: nothing may read it
            return True
        # A kernel reads through such a view at no cost. Behind a barrier the packed form is
        # stored, and read through.
        reads = not n.op.barrier and _reads_packed(n) and not _is_product(n)
        if n.op.ordered or reads or (n.op.view and not views):
            return True
        size, made_of = n.type.size, sum(guess(w.ttype.size) for w in f.weights)
        return (not symbolic and not isinstance(size, int)) or guess(size) > growth * made_of

    # Only what the main graph reads is moved: visit from the outputs and stop at what moves.
    stack: list[tuple[Node, bool]] = [(o, False) for o in reversed(graph.outputs)]
    while stack:
        n, ready = stack.pop()
        if n in new:
            continue
        if not stays(n):
            new[n] = moved(n)
        elif ready or not n.inputs:
            ins = tuple(new[x] for x in n.inputs)
            new[n] = n if ins == n.inputs else node(n.op, *ins)
        else:
            stack.append((n, True))
            stack.extend((x, False) for x in reversed(n.inputs))

    used = set(new)
    still_read = [
        n
        for n in graph.inputs
        if n in used or not (isinstance(n.op, Input) and n.op.role == "weight")
    ]
    reached = frozenset[Node]().union(*(facts[o].weights for o in outputs))
    prologue = Graph(
        f"{graph.name}_weights",
        tuple(n for n in graph.inputs if n in reached),
        tuple(outputs),
        graph.places,
    )
    main = Graph(
        graph.name,
        (*still_read, *(new[o] for o in outputs)),
        tuple(new[o] for o in graph.outputs),
        _moved_places(graph, new),
    )
    return prologue, main


def _is_product(n: Node) -> bool:
    """Is it more than reading: sums of products?"""
    return not is_composed(n.op) and classify(n) == "contract"


def _reads_packed(n: Node) -> bool:
    """Is it computed from what a barrier stores, perhaps through views of that?"""
    seen: set[Node] = set()
    stack = list(n.inputs)
    while stack:
        x = stack.pop()
        if x.op.barrier:
            return True
        if x.op.view and x not in seen:
            seen.add(x)
            stack.extend(x.inputs)
    return False


def _moved_places(graph: Graph, new: dict[Node, Node]) -> dict[Node, Any]:
    places: dict[Node, Any] = {}
    for old, n in new.items():
        if old in graph.places:
            places[n] = places.get(n, frozenset()) | graph.places[old]
    return places
