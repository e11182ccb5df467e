"""Products of one matrix with several weights as one product with all of them: the queries, keys
and values of attention.

`x @ a`, `x @ b` become slices of `x @ concat(a, b)`; the weights are put together once, which takes
their memory again. What all of them do next with weights (a bias, a cast) is done once too. A
product whose result goes on to other elementwise work stays alone, since that is its epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.graph.aligned_rows import only_weights
from tilewright.graph.classify import facts
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Node, node
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.target import Target
from tilewright.ops.linear import Matmul
from tilewright.ops.views import Permute, concat, slice
from tilewright.ops.wide_matmul import WideMatmul

MOST = 64 << 20  # bytes of weights that are put together


def _launches(t: Target) -> bool:
    """Does each kernel have to be launched, and fill many multiprocessors?"""
    return t.grid is not None


@dataclass(frozen=True)
class MergeProducts(
    Pass, needs=("Decompose",), after=("NarrowProducts", "SinkReshapes"), regions=True
):
    """Products that share their first operand are one product."""

    wanted: bool = of_target(False, _launches)

    def apply(self, program: Graph, log: Log) -> Graph:
        families = _families(program) if self.wanted else []
        if not families:
            return program
        ends = {chain[-1]: (f, k) for f in families for k, chain in enumerate(f.chains)}
        new: dict[Node, Node] = {}
        made: dict[int, Node] = {}
        for n in program.nodes():
            found = ends.get(n)
            if found is None:
                new[n] = node(n.op, *(new[x] for x in n.inputs)) if n.inputs else n
                continue
            family, k = found
            if id(family) not in made:
                made[id(family)] = family.merged(new)
                said = f"{len(family.chains)} products of one operand are one"
                log.add("pack", f"{said}: {family.chains[0][0]!r}", where=program.place(n))
            start = sum(family.columns[:k])
            new[n] = slice(made[id(family)], n.rank - 1, start, start + family.columns[k])
        return program.with_outputs((new[o] for o in program.outputs), new)


@dataclass(frozen=True)
class _Family:
    """Products of one operand, each with what follows it, as long as that is the same for all."""

    chains: tuple[tuple[Node, ...], ...]
    columns: tuple[int, ...]

    def merged(self, new: dict[Node, Node]) -> Node:
        """The last results of all chains beside each other."""
        first = self.chains[0][0]
        value = node(first.op, new[first.inputs[0]], _beside([c[0].inputs[1] for c in self.chains]))
        for step in zip(*(c[1:] for c in self.chains), strict=True):
            before = [c[c.index(n) - 1] for c, n in zip(self.chains, step, strict=True)]
            at = step[0].inputs.index(before[0])
            operands: list[Node] = []
            for k, x in enumerate(step[0].inputs):
                same = all(n.inputs[k] is x for n in step)
                others = x if same else _beside([n.inputs[k] for n in step])
                operands.append(value if k == at else others)
            value = node(step[0].op, *operands)
        return value


def _beside(xs: Sequence[Node]) -> Node:
    """The columns of all, in memory as each is: transposed ones are put together before that."""
    op, last = xs[0].op, xs[0].rank - 1
    if isinstance(op, Permute) and all(x.op == op for x in xs):
        return node(op, concat([x.inputs[0] for x in xs], op.perm[last]))
    return concat(xs, last)


def _families(program: Graph) -> list[_Family]:
    users = program.users()
    products: dict[tuple[Node, object, int], list[Node]] = {}
    for n in program.nodes():
        if _mergeable(n):
            products.setdefault((n.inputs[0], n.op, n.inputs[1].rank), []).append(n)
    results = set(program.outputs)
    out: list[_Family] = []
    for group in products.values():
        sized = sum(D.bounds(_bytes(n.inputs[1]))[1] for n in group)
        if len(group) < 2 or sized > MOST or only_weights(group[0].inputs[0]):
            continue
        chains = _common([_chain(n, users, results) for n in group])
        if any(_epilogue(c[-1], users) for c in chains):
            continue
        columns = tuple(int(str(n.shape[-1])) for n in group)
        out.append(_Family(tuple(map(tuple, chains)), columns))
    return out


def _mergeable(n: Node) -> bool:
    """A product with a matrix of weights, of known columns."""
    if not isinstance(n.op, (Matmul, WideMatmul)) or min(x.rank for x in n.inputs) < 2:
        return False
    w = n.inputs[1]
    return w.rank == 2 and all(isinstance(d, int) for d in w.shape) and only_weights(w)


def _bytes(x: Node) -> D.Dim:
    total: D.Dim = x.dtype.bytes
    for d in x.shape:
        total = total * d
    return total


def _chain(n: Node, users: dict[Node, list[Node]], results: set[Node]) -> list[Node]:
    """The product, and elementwise work with weights that alone follows it."""
    chain = [n]
    while chain[-1] not in results and len(users[chain[-1]]) == 1:
        (after,) = users[chain[-1]]
        others = [x for x in after.inputs if x is not chain[-1]]
        fits = len(others) == len(after.inputs) - 1 and all(map(only_weights, others))
        if not (after.op.elementwise and fits and after.shape == n.shape):
            break
        chain.append(after)
    return chain


def _common(chains: list[list[Node]]) -> list[list[Node]]:
    """The chains, as far as all do the same with values of their own columns."""
    length = min(map(len, chains))
    for k in range(1, length):
        if not _alike([(c[k], c[k - 1]) for c in chains]):
            length = k
            break
    return [c[:length] for c in chains]


def _alike(steps: list[tuple[Node, Node]]) -> bool:
    first, before = steps[0]
    at = first.inputs.index(before)
    for n, x in steps:
        if n.op != first.op or len(n.inputs) != len(first.inputs) or n.inputs[at] is not x:
            return False
    for k in range(len(first.inputs)):
        others = [n.inputs[k] for n, _ in steps]
        if k == at or all(x is others[0] for x in others):
            continue
        if any(x.rank != others[0].rank or x.rank == 0 for x in others):
            return False
        if any(x.shape[-1] != n.shape[-1] for x, (n, _) in zip(others, steps, strict=True)):
            return False
        if any(x.shape[:-1] != others[0].shape[:-1] for x in others):
            return False
    return True


def _epilogue(n: Node, users: dict[Node, list[Node]]) -> bool:
    """Does elementwise work read it, which a kernel of the product does to its registers?"""
    return any(u.op.elementwise and facts(u).pointwise for u in users[n])
