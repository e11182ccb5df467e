"""KeyBlocks: attention over more keys than one block of scores holds, or nobody knows how many.

Keys in blocks are one more axis of a batch: the softmax of a block and its product with the values
are what `graph/chains.py` makes one kernel of, and `softmax_parts` puts the blocks together with
running maxima. The axis is put in where keys, masks and positions come from, so that a condition on
positions still is one. Past the last key there is nothing to see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from tilewright.base.events import Log
from tilewright.graph.chains import FEW_ROWS, TILE_ROWS
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Node, node, topological
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.pattern import filled_value
from tilewright.ir.register_tile import register_tile
from tilewright.ir.target import Target
from tilewright.ir.types import f32, i64
from tilewright.ops import elementwise as ew
from tilewright.ops.creation import Full, Iota, full, iota, number
from tilewright.ops.linear import matmul
from tilewright.ops.online_softmax import softmax_parts
from tilewright.ops.reductions import Amax, AnyOf, Sum, amax, sum
from tilewright.ops.views import pad, permute, reshape

NOTHING = float("-inf")
# Lanes of the kernels that work on rows of scores, of which a block is a multiple.
LANES = 16
# More keys than this are in blocks where positions hide some: one block of 1024 took 15.3 ms, parts
# of it 17.2; one of 4096 took 261 ms, parts of it 250 (on one thread of a Neoverse N1).
MANY_KEYS = 1024


def _unit(target: Target) -> int:
    columns = register_tile(target, f32).columns
    return lcm(columns, LANES)


@dataclass(frozen=True)
class KeyBlocks(Pass, needs=("Decompose",), rounds=True):
    """Rewrite `softmax(scores) values` where a block of rows of all scores leaves the cache, where
    conditions on positions hide parts of many keys, and where nobody knows how many keys there are.
    """

    unit: int = of_target(48, _unit)  # what the size of a block is a multiple of
    scratch: int = of_target(256 * 1024, lambda t: t.scratch)  # bytes of rows of all scores
    block: int = 1024  # keys at most, as the next two
    hidden: int = 512  # one sum of registers over each block: then what is hidden is left out
    unknown: int = 256  # packed whole, and there may be few keys

    def apply(self, program: Graph, log: Log) -> Graph:
        users = program.users()
        results = set(program.outputs)
        found = {}
        for n in users:
            rows = _rows(n, users, results)
            if rows is not None and self.size(rows) is not None:
                found[rows.root] = rows
        if not found:
            return program
        new: dict[Node, Node] = {}
        places = dict(program.places)
        for n in program.nodes():
            ins = tuple([new[x] for x in n.inputs])
            new[n] = n if ins == n.inputs else node(n.op, *ins)
            rows = found.get(n)
            if rows is not None:
                made = self.blocked(rows, new)
                if made is not None:
                    log.add("layout", f"{rows.keys} keys in blocks", where=program.place(n))
                    for x in topological([made]):
                        if n in program.places and x not in places:
                            places[x] = program.places[n]
                    new[n] = made
        return Graph(program.name, program.inputs, program.outputs, places).with_outputs(
            (new[o] for o in program.outputs), new
        )

    def size(self, rows: _Rows) -> int | None:
        """Of a block; None where all keys are one."""
        keys = rows.keys
        if isinstance(rows.many, int) and rows.many < FEW_ROWS:
            return None  # each key is read once or a few times: there is no block to keep
        if not isinstance(keys, int):
            return self._whole(self.unknown)
        most = self.scratch // (TILE_ROWS * rows.scores.dtype.accumulator.bytes)
        block = self.block
        if rows.positions:
            most, block = MANY_KEYS, self.hidden
        if keys <= most:
            return None
        count = -(-keys // self._whole(block))
        return -(-keys // (count * self.unit)) * self.unit

    def _whole(self, most: int) -> int:
        return max(1, most // self.unit) * self.unit

    def blocked(self, rows: _Rows, new: Mapping[Node, Node]) -> Node | None:
        size = self.size(rows)
        assert size is not None
        b = _Blocks(rows.keys, size)
        x = b.along_last(new[rows.scores])
        if not b.products:
            return None
        inside = None if b.even else ew.lt(b.positions(), number(rows.keys, i64))
        seen = inside
        if rows.visible is not None:
            shown = b.along_last(new[rows.visible])
            seen = shown if seen is None else ew.logical_and(shown, seen)
        if inside is not None:
            x = ew.where(inside, x, NOTHING)
        axis = (x.rank - 1,)
        top = amax(x, axis, True)
        e = ew.exp(ew.sub(x, ew.where(ew.eq(top, NOTHING), 0.0, top)))
        if seen is not None:
            e = ew.where(seen, e, 0.0)
        values = b.along_rows(ew.cast(new[rows.values], e.dtype))
        weighted = matmul(e, values)
        if not all(map(D.known_eq, weighted.shape[:-1], top.shape[:-1])):
            return None
        out = softmax_parts(top, sum(e, axis, True), weighted, rows.zeros)
        return ew.cast(out, rows.root.dtype)


@dataclass(frozen=True)
class _Rows:
    """`softmax(scores) values`, as it is spelled out in a graph."""

    root: Node
    scores: Node
    visible: Node | None  # beyond which weights are zero
    values: Node
    zeros: bool  # is a row that sees nothing zero, or no number?

    @property
    def keys(self) -> Dim:
        return self.scores.shape[-1]

    @property
    def many(self) -> Dim:
        return self.scores.shape[-2]

    @cached_property
    def positions(self) -> bool:
        """Do scores depend on where they stand?"""
        stack, seen = [self.scores], {self.scores}
        while stack:
            x = stack.pop()
            if isinstance(x.op, Iota):
                return True
            if x.op.elementwise or x.op.view:
                stack += (y for y in x.inputs if y not in seen)
                seen.update(x.inputs)
        return False


def _rows(n: Node, users: Mapping[Node, list[Node]], results: set[Node]) -> _Rows | None:
    """Where n is a product of weights, divided by their sum before or after it."""
    if n.op.name != "matmul":
        return None
    given = weights = _uncast(n.inputs[0])
    safe = _safe(weights)  # of rows that see nothing
    weights = safe[0] if safe else weights
    if weights.op.name == "div":
        e, total = weights.inputs
        root: Node | None = n
    else:
        e, total = weights, None
        root, total = _divided(n, e, users)
    if root is None or total is None or not _over_last(total, "sum") or total.inputs[0] is not e:
        return None
    visible = None
    inner = e
    if e.op.name == "where" and filled_value(e.inputs[2]) == 0:
        visible, inner, _ = e.inputs
    if inner.op.name != "exp" or inner.inputs[0].op.name != "sub":
        return None
    scores, top = inner.inputs[0].inputs
    if top.op.name == "where" and filled_value(top.inputs[1]) == 0:
        top = top.inputs[2]
    if not _over_last(top, "amax") or top.inputs[0] is not scores or not scores.dtype.is_float:
        return None
    if safe and safe[1] is not scores:
        return None
    private = (n.inputs[0], given, weights, e, total, top, inner, inner.inputs[0], scores)
    inside = _between(root, scores)
    if any(x in results or not inside.issuperset(users[x]) for x in private):
        return None
    return _Rows(root, scores, visible, n.inputs[1], safe is not None or root is not n)


def _safe(weights: Node) -> tuple[Node, Node] | None:
    """(w, x) of `where(any(x != -inf), w, 0)`."""
    if weights.op.name != "where" or filled_value(weights.inputs[2]) != 0:
        return None
    some, w, _ = weights.inputs
    if not _over_last(some, "any") or some.inputs[0].op.name != "ne":
        return None
    x, nothing = some.inputs[0].inputs
    return (w, x) if filled_value(nothing) == NOTHING else None


def _between(root: Node, scores: Node) -> set[Node]:
    """What is computed from the scores on the way to the root."""
    out: set[Node] = set()
    for x in topological([root]):
        if any(y is scores or y in out for y in x.inputs):
            out.add(x)
    return out


def _divided(n: Node, e: Node, users: Mapping[Node, list[Node]]) -> tuple[Node | None, Node | None]:
    """The product over the sum of its weights, or over one where that is zero; and the sum."""
    if len(users[n]) != 1 or users[n][0].op.name != "div" or users[n][0].inputs[0] is not n:
        return None, None
    (root,) = users[n]
    safe = root.inputs[1]
    if safe.op.name != "where" or filled_value(safe.inputs[1]) != 1:
        return None, None
    condition, _, total = safe.inputs
    zero = condition.op.name == "eq" and condition.inputs[0] is total
    if not zero or filled_value(condition.inputs[1]) != 0 or total.inputs[:1] != (e,):
        return None, None
    return root, total


def _uncast(x: Node) -> Node:
    while x.op.name == "cast" and x.dtype.is_float and x.inputs[0].dtype.is_float:
        (x,) = x.inputs
    return x


def _over_last(x: Node, name: str) -> bool:
    if not isinstance(x.op, (Amax, AnyOf, Sum)) or x.op.name != name:
        return False
    return x.op.axes == (x.inputs[0].rank - 1,) and x.op.keepdims


class _Blocks:
    """Values over keys as values over blocks: [.., rows, keys] -> [.., blocks, rows, block], and 1
    where an axis has one element for all of them."""

    def __init__(self, keys: Dim, size: int) -> None:
        self.keys, self.size = keys, size
        self.count = D.ceildiv(keys, size)
        self.even = D.known_eq(self.count * size, keys)
        self.known: dict[Node, Node] = {}
        self.products = 0  # that were taken apart

    def positions(self) -> Node:
        return self._in_blocks(iota(self.count * self.size, dtype=i64))

    def _in_blocks(self, x: Node) -> Node:
        return reshape(x, (self.count, 1, self.size))

    def along_last(self, x: Node) -> Node:
        if x not in self.known:
            self.known[x] = self._along_last(x)
        return self.known[x]

    def _along_last(self, x: Node) -> Node:
        if x.rank == 0 or (x.rank == 1 and x.shape[0] == 1):
            return x
        op = x.op
        if x.shape[-1] == 1:
            return self._each(x)
        if op.elementwise:
            return node(op, *map(self.along_last, x.inputs))
        if isinstance(op, Full):
            return full((), op.value, op.dtype)
        if isinstance(op, Iota):
            return self._in_blocks(iota(self.count * self.size, op.start, op.step, op.dtype))
        if op.name == "matmul":
            self.products += 1
            rows, columns = x.inputs
            return matmul(self._each(rows), self._stored(columns))
        if op.view and x.inputs[0].rank and D.known_eq(x.inputs[0].shape[-1], x.shape[-1]):
            seen = self._through(x)
            if seen is not None:
                return seen
        return self._stored(x)

    def _through(self, x: Node) -> Node | None:
        """What a view shows, where it leaves keys alone; broadcasting does the rest."""
        (y,) = x.inputs
        if x.op.name == "expand":
            return self.along_last(y)
        if x.op.name != "reshape":
            return None
        if y.rank == 1:
            return self.along_last(y)
        if x.rank == 1 or not D.known_eq(y.shape[-2], x.shape[-2]):
            return None
        inner = self.along_last(y)
        whole = (*y.shape[:-2], self.count, y.shape[-2], self.size)
        if len(whole) != inner.rank or not all(map(D.known_eq, whole, inner.shape)):
            return None
        return reshape(inner, (*x.shape[:-2], *inner.shape[-3:]))

    def _each(self, x: Node) -> Node:
        """The same for all blocks."""
        return reshape(x, (*x.shape[:-2], 1, *x.shape[-2:]))

    def _stored(self, x: Node) -> Node:
        """What is taken as it is: the last axis cut into blocks, each with all rows."""
        if x.rank == 1:
            return self._in_blocks(self._filled(x, 0))
        x = self._filled(x, x.rank - 1)
        x = reshape(x, (*x.shape[:-1], self.count, self.size))
        return permute(x, (*range(x.rank - 3), x.rank - 2, x.rank - 3, x.rank - 1))

    def along_rows(self, x: Node) -> Node:
        """[.., keys, width] -> [.., blocks, block, width]"""
        x = self._filled(x, x.rank - 2)
        return reshape(x, (*x.shape[:-2], self.count, self.size, x.shape[-1]))

    def _filled(self, x: Node, axis: int) -> Node:
        if self.even:
            return x
        more = [self.count * self.size - self.keys if k == axis else 0 for k in range(x.rank)]
        return pad(x, (0,) * x.rank, more, False if x.dtype.is_bool else 0)
