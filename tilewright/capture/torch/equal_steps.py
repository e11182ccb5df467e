"""Equal steps among the calls that Dynamo captured, in the order of the program.

Calls that repeat with some period are steps of a loop if their operands are of the same step, of
the step before (carried values), the same in all steps, or slices of one tensor at positions that
move by the same number. What is done takes time in proportion to the number of calls.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.fx
from torch.fx import Node

from tilewright.capture.torch.slices import Slice, slice_of, value_of

LEAST = 8  # steps; fewer are left written out, since kernels take some of them together
PERIODS = 8  # distances between equal calls that are tried, the most frequent ones …
MULTIPLES = 4  # … and so many times these: a step may have equal parts
FAR = 1000  # what a boundary costs that cannot be one, in carried values


def in_order(gm: torch.fx.GraphModule) -> list[Node]:
    """All calls; items of long tuples where they are first read, which is in their step. Those of
    a short one are of the step that makes it, even if only what follows the loop reads them."""
    out: list[Node] = []
    waiting: set[Node] = set()
    for n in gm.graph.nodes:
        source = n.args[0] if n.target is operator.getitem else None
        if isinstance(source, Node) and isinstance(value_of(source), (tuple, list)):
            if len(value_of(source)) >= LEAST or source in waiting:
                waiting.add(n)
                continue
        for x in n.all_input_nodes:
            while x in waiting:  # an item may be a tuple
                inner = x.args[0]
                first = inner if inner in waiting else x
                waiting.remove(first)
                out.append(first)
        if n.op != "output":
            out.append(n)
    return out


class Calls:
    """What was captured, in its order, with the operands of each call in one row."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.index = {n: k for k, n in enumerate(nodes)}
        self.leaves: list[list[Any]] = []
        numbers: dict[Any, int] = {}
        kinds: list[int] = []
        for k, n in enumerate(nodes):
            leaves: list[Any] = []
            alone = n.op, k  # equal to no other
            kind: Any = alone
            if n.op in ("call_function", "call_method"):
                form = _form(n.args, leaves), _form(n.kwargs, leaves)
                free = n.target in (operator.getitem, operator.setitem)
                kind = (n.target, form, *[_kind(x, free) for x in leaves])
            self.leaves.append(leaves)
            try:
                kinds.append(numbers.setdefault(kind, len(numbers)))
            except TypeError:  # an operand that has no hash
                kinds.append(numbers.setdefault(alone, len(numbers)))
        self.kinds = np.array(kinds)


def _form(x: Any, leaves: list[Any]) -> Any:
    """How an operand is put together; its parts are added to the leaves."""
    if isinstance(x, (tuple, list)):
        return (type(x).__name__, *[_form(y, leaves) for y in x])
    if isinstance(x, dict):
        return (*x, *[_form(y, leaves) for y in x.values()])
    if isinstance(x, slice):
        return ("slice", *[_form(y, leaves) for y in (x.start, x.stop, x.step)])
    leaves.append(x)
    return None


def _kind(x: Any, free: bool) -> Any:
    """What has to agree of two equal calls; of free numbers only that they are numbers."""
    if isinstance(x, Node):
        return Node
    if type(x) in (float, complex):
        return (type(x), repr(x))  # 0.0 and -0.0 are equal, and not the same
    return int if free and type(x) is int else (type(x), x)


@dataclass
class Chain:
    """`count` equal steps of `period` calls each, from `start` on."""

    calls: Calls
    start: int
    period: int
    count: int
    # The calls whose results the next step reads, and what that is in the first step.
    carried: dict[int, Node] = field(default_factory=dict)
    slices: dict[int, Slice] = field(default_factory=dict)  # by the call that takes them
    written: dict[int, Slice] = field(default_factory=dict)  # by the call that sets them
    captured: dict[Node, None] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        return self.start + self.period * self.count

    def nodes(self, step: int) -> list[Node]:
        first = self.start + step * self.period
        return self.calls.nodes[first : first + self.period]

    def place(self, n: Node) -> tuple[int, int]:
        """(step, position in it) of one of its calls."""
        return divmod(self.calls.index[n] - self.start, self.period)

    def set_to(self, j: int) -> int:
        """The call whose result call j sets a slice to."""
        made: Any = self.nodes(1)[j].args[2]
        return self.place(made)[1]

    def has(self, n: Node) -> bool:
        return self.start <= self.calls.index.get(n, -1) < self.stop


def chains_of(calls: Calls) -> list[Chain]:
    """Chains that do not overlap, those that leave out most first."""
    found = [
        chain
        for period in _periods(calls.kinds)
        for begin, end in _runs(calls.kinds, period)
        for chain in _chains(calls, period, begin, end)
    ]
    taken = np.zeros(len(calls.nodes), bool)
    out: list[Chain] = []
    for c in sorted(found, key=lambda c: -(c.count - 1) * c.period):
        if not taken[c.start : c.stop].any():
            taken[c.start : c.stop] = True
            out.append(c)
    return sorted(out, key=lambda c: c.start)


def _periods(kinds: np.ndarray) -> list[int]:
    """Periods to try: distances from a call to the one before that is equal."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for k, kind in enumerate(kinds.tolist()):
        if kind in last:
            distances[k - last[kind]] += 1
        last[kind] = k
    some = {d * m for d, _ in distances.most_common(PERIODS) for m in range(1, MULTIPLES + 1)}
    return sorted(p for p in some if p * LEAST <= len(kinds))


def _runs(kinds: np.ndarray, period: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of calls that are each equal to the one a period later, or are that one."""
    same = np.concatenate(([False], kinds[:-period] == kinds[period:], [False]))
    changes = np.flatnonzero(same[1:] != same[:-1]).tolist()
    for begin, end in zip(changes[::2], changes[1::2], strict=True):
        if end + period - begin >= period * LEAST:
            yield begin, end + period


def _chains(calls: Calls, period: int, begin: int, end: int) -> Iterator[Chain]:
    """The chains of steps among calls that repeat. Where operands do not fit, another begins."""
    start = begin + _boundary(calls, period, begin, end)
    while end - start >= period * LEAST:
        chain = Chain(calls, start, period, (end - start) // period)
        chain.count = _fitting(chain)
        # Steps without a carried value are independent of each other: kernels take all together.
        if chain.count >= LEAST and chain.carried and _slices_fit(chain):
            yield chain
        start += max(1, chain.count) * period


def _boundary(calls: Calls, period: int, begin: int, end: int) -> int:
    """Where among the calls of a step another begins, so that it hands on the fewest values."""
    middle = begin + (end - begin) // period // 2 * period  # a step like most of them
    last = dict.fromkeys(range(middle, middle + period), 0)
    for user in range(middle, min(middle + 3 * period, end)):
        for x in calls.leaves[user]:
            if isinstance(x, Node) and calls.index[x] in last:
                last[calls.index[x]] = user
    changes = np.zeros(4 * period, np.int64)  # of the cost, from each position on
    for made, user in last.items():
        if user:
            cost = 1 if isinstance(value_of(calls.nodes[made]), torch.Tensor) else FAR
            changes[made + 1 - middle] += cost
            if user > made + period:  # a step begins in between for the second time
                changes[made + 1 + period - middle] += FAR
                changes[user + 1 - middle] -= FAR
            changes[user + 1 - middle] -= cost
    costs = changes.cumsum().reshape(4, period).sum(0)
    return int(costs.argmin())


def _fitting(chain: Chain) -> int:
    """How many steps have operands that fit; what the first two say of the chain is added to it."""
    calls, start, period = chain.calls, chain.start, chain.period
    moving: dict[tuple[int, int], int] = {}  # numbers of indices, and by how much they move
    for j in range(period):
        first, second = calls.leaves[start + j], calls.leaves[start + period + j]
        moves = {s: second[s] - x for s, x in enumerate(first) if _differs(x, second[s])}
        taken: Slice | None = None
        if moves:
            source, index = calls.nodes[start + j].args[:2]
            taken = slice_of(source, index, moves)
            if taken is None:
                return 1
            sets = calls.nodes[start + j].target is operator.setitem
            if sets and not isinstance(calls.nodes[start + j].args[2], Node):
                return 1  # what is set has to be computed by the step
            (chain.written if sets else chain.slices)[j] = taken
            moving |= {(j, s): step for s, step in moves.items()}
        for x, y in zip(first, second, strict=True):
            if not isinstance(x, Node):
                continue
            if taken is not None and x is not taken.source:
                if j in chain.slices or calls.index[y] - calls.index[x] != period:
                    return 1
                continue
            before, after = calls.index[x], calls.index[y]
            if after < start:  # of none
                if x is not y:
                    return 1
                if taken is None:
                    chain.captured[x] = None
            elif taken is not None:
                return 1
            elif after < start + period:  # of the step before
                if before >= start or chain.carried.setdefault(after - start, x) is not x:
                    return 1
                if not _alike(value_of(x), value_of(y)):
                    return 1
            elif after - before != period:  # of the same step
                return 1
    if not all(isinstance(value_of(x), torch.Tensor) for x in chain.captured):
        return 1
    return next((k for k in range(2, chain.count) if not _fits(chain, k, moving)), chain.count)


def _fits(chain: Chain, k: int, moving: dict[tuple[int, int], int]) -> bool:
    """Is a step like the second one, further on?"""
    calls, moved = chain.calls, (k - 1) * chain.period
    for j in range(chain.period):
        second = chain.start + chain.period + j
        pairs = zip(calls.leaves[second], calls.leaves[second + moved], strict=True)
        for slot, (x, y) in enumerate(pairs):
            if isinstance(x, Node):
                before = calls.index[x]
                if calls.index[y] != (before if before < chain.start else before + moved):
                    return False
            elif type(x) is int and y != x + moving.get((j, slot), 0) * (k - 1):
                return False
    return True


def _differs(x: Any, y: Any) -> bool:
    return type(x) is int and x != y


def _alike(x: Any, y: Any) -> bool:
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    known = all(type(d) is int for d in (*x.shape, *y.shape))
    return known and (x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device)


def _slices_fit(chain: Chain) -> bool:
    """Are all slices within their tensors, and of the same type?"""
    for s in (*chain.slices.values(), *chain.written.values()):
        value = value_of(s.source)
        size = value.shape[s.axis] if isinstance(value, torch.Tensor) else len(value)
        if type(size) is not int:
            return False
        low, high = s.places(chain.count, size)
        if low < 0 or high > size:
            return False
        if not isinstance(value, torch.Tensor) and not all(_alike(value[0], x) for x in value):
            return False
    return True
