"""Which of millions of equalities follow from rules.

The programs of a space are an e-graph: a class of programs is a value, a node an operator on
classes, and nodes of one class are what enumeration found to be equal. A rule connects two nodes of
a class where its left side matches one and its right side is the other; both are found for all
nodes at once, by joining columns of numbers. Nodes that are connected are equal by rules; between
two parts of a class that are not, there is an equality that does not follow from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.superopt.blocks import Block, Kind, Times
from tilewright.superopt.enumerate import Programs, Space
from tilewright.superopt.terms import Equality, Leaf, Term, Tree, leaves

Table = dict[Any, np.ndarray]  # columns of classes, by leaf
Edges = tuple[np.ndarray, np.ndarray]
# Matches of one rule that are built at a time.
MOST = 1 << 20


def _least_connected(a: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
    """Of each of so many nodes, the least that edges from a to b connect it with."""
    least = np.arange(count)
    while True:
        x, y = least[a], least[b]
        if np.array_equal(x, y):
            return least
        np.minimum.at(least, np.maximum(x, y), np.minimum(x, y))
        while not np.array_equal(least, further := least[least]):
            least = further


class Nodes:
    """The nodes of a space. The first ones are its programs, each the first of its class."""

    def __init__(self, space: Space) -> None:
        self.space = space
        all_ = Programs.joined([space.programs, *(e.programs for e in space.equalities)])
        self._wide = len(space.place) + 2
        keys = self._packed(all_.instance, all_.first, all_.second)
        keys[all_.instance < 0] = -1 - np.arange(len(space.vocabulary.leaves))
        # A part that both operands share is found as such, and as one that they do not share.
        self._keys, once = np.unique(keys, return_index=True)
        kept = np.sort(once)
        self._order = np.searchsorted(kept, once)
        self.programs = all_.only(kept)
        count = len(space.programs)
        of = [np.arange(count, dtype=np.int32), *(e.equal_to for e in space.equalities)]
        self.of = np.concatenate(of)[kept]
        self.numbers = {x: n for n, x in enumerate(space.instances)}
        self.kinds = space.kind
        v = space.vocabulary
        self.positive = np.array([n for n, (x, _) in enumerate(v.leaves) if x in v.positive], int)
        self._fit: dict[Leaf, np.ndarray] = {}
        self.size, self.leaves = self._measured()
        self.use(np.ones(len(self.programs), bool), len(space.levels))

    def __len__(self) -> int:
        return len(self.programs)

    def _measured(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each node: how many operators it has, a shared part counted as often as it is used,
        and its leaves, each a bit."""
        p, count = self.programs, len(self.space.vocabulary.leaves)
        size, found = np.zeros(len(self), np.int32), np.zeros(len(self), np.int64)
        found[:count] = 1 << np.arange(count)
        for level in range(1, len(self.space.levels) + 1):
            some = np.nonzero(p.level == level)[0]
            a, b = p.first[some], p.second[some]
            size[some] = 1 + size[a] + np.where(b < 0, 0, size[b])
            found[some] = found[a] | np.where(b < 0, 0, found[b])
        return size, found

    def use(self, trusted: np.ndarray, below: int) -> None:
        """Nodes that are taken for equal to their class where one is an operand: those of fewer
        operators than so many."""
        p = self.programs
        inner = np.nonzero(trusted & (self.of < len(self.space.place)) & (p.instance >= 0))[0]
        self._inner = inner[p.level[inner] < below]
        self._by_class: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def _of_classes(self, instance: int) -> tuple[np.ndarray, np.ndarray]:
        """The nodes of an operator that may be operands, class by class, and where each class
        begins."""
        found = self._by_class.get(instance)
        if found is None:
            nodes = self._inner[self.programs.instance[self._inner] == instance]
            nodes = nodes[np.argsort(self.of[nodes], kind="stable")]
            starts = np.searchsorted(self.of[nodes], np.arange(len(self.space.place) + 1))
            found = self._by_class[instance] = nodes, starts
        return found

    def _packed(self, x: np.ndarray | int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (np.int64(x) * self._wide + (a + 1)) * self._wide + (b + 1)

    # ---- rules

    def connected_by(self, e: Equality, roots: np.ndarray) -> Edges:
        """Pairs of nodes that a rule says are equal, of which one is among the roots."""
        left, right = e.left, e.right
        if not set(leaves(right)) <= set(leaves(left)) or isinstance(left, Leaf):
            left, right = right, left
        if not set(leaves(right)) <= set(leaves(left)) or isinstance(left, Leaf):
            return np.zeros(0, int), np.zeros(0, int)
        number = self.numbers.get(left.instance)
        roots = roots[self.programs.instance[roots] == number]
        found: list[Edges] = []
        for k in range(0, len(roots), MOST):
            some = roots[k : k + MOST]
            for table in self._operands({"root": some}, left, some, []):
                table = self._fitting(e, table)
                if len(table["root"]):
                    found.append(self._other(right, table))
        a, b = (np.concatenate(x) for x in zip(*found)) if found else (np.zeros(0, int),) * 2
        same = (b >= 0) & (self.of[a] == self.of[b]) & (a != b)
        return a[same], b[same]

    def _operands(
        self, table: Table, t: Term, nodes: np.ndarray, rest: list[tuple[Tree, int]]
    ) -> Iterator[Table]:
        """The table, with a row for each way to match the operands of nodes."""
        p = self.programs
        keep = (p.first[nodes] >= 0).astype(int) + (p.second[nodes] >= 0) == len(t.operands)
        nodes, table = nodes[keep], _rows(table, keep)
        columns = p.first[nodes], p.second[nodes]
        orders = [columns]
        if t.instance.commutative and len(t.operands) == 2:
            orders.append(columns[::-1])
        for order in orders:
            # Leaves are last: they are looked at first.
            both = sorted(zip(t.operands, order), key=lambda x: isinstance(x[0], Leaf))
            keys = range(len(rest), len(rest) + len(both))
            wide = {**table, **{k: column for k, (_, column) in zip(keys, both, strict=True)}}
            yield from self._matches(wide, [*rest, *((x, k) for k, (x, _) in zip(keys, both))])

    def _matches(self, table: Table, pending: list[tuple[Tree, int]]) -> Iterator[Table]:
        """The table, with a row for each way to match the trees that are left, whose classes are
        columns by number. A tree that occurs twice is one class, and is matched once."""
        if not pending or not len(table["root"]):
            yield table
            return
        *rest, (tree, key) = pending
        table = dict(table)
        column = table.pop(key)
        known = table.setdefault(tree, column)
        if known is not column:
            yield from self._matches(_rows(table, known == column), rest)
            return
        if isinstance(tree, Leaf):
            yield from self._matches(_rows(table, self._may_be(tree)[self.kinds[column]]), rest)
            return
        number = self.numbers.get(tree.instance)
        if number is None:
            return
        nodes, starts = self._of_classes(number)
        low = starts[column]
        count = starts[column + 1] - low
        rows = np.repeat(np.arange(len(column)), count)
        if not len(rows):
            return
        ends = np.cumsum(count)
        within = np.arange(len(rows)) - np.repeat(ends - count, count)
        found = nodes[np.repeat(low, count) + within]
        yield from self._operands(_rows(table, rows), tree, found, rest)

    def _may_be(self, leaf: Leaf) -> np.ndarray:
        """Of each kind: can the leaf be a tensor of it?"""
        found = self._fit.get(leaf)
        if found is None:
            found = np.array([fits([leaf], [k]) for k in self.space.kinds])
            self._fit[leaf] = found
        return found

    def _fitting(self, e: Equality, table: Table) -> Table:
        """Rows whose classes are of the leaves' kinds."""
        if not all(x in table for x in e.leaves):
            return {k: v[:0] for k, v in table.items()}
        keep = np.ones(len(table["root"]), bool)
        for x in e.leaves:
            if x.positive:
                keep &= np.isin(table[x], self.positive)
        if e.leaves and keep.any():
            code, kinds = self._coded([self.kinds[table[x]] for x in e.leaves])
            all_ = self.space.kinds
            right = [fits(e.leaves, [all_[k] for k in row]) for row in kinds.tolist()]
            keep &= np.array(right)[code]
        return _rows(table, keep)

    def _coded(self, columns: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """A number for each different row of numbers of kinds, and the different rows. There are
        few kinds: what occurs is marked in a table, and nothing is sorted."""
        count = len(self.space.kinds)
        code, rows = np.zeros(len(columns[0]), int), np.zeros((1, 0), int)
        for column in columns:
            code = code * count + column
            occurs = np.zeros(len(rows) * count, bool)
            occurs[code] = True
            some = np.nonzero(occurs)[0]
            rows = np.concatenate([rows[some // count], some[:, None] % count], axis=1)
            code = (np.cumsum(occurs) - 1)[code]
        return code, rows

    def _other(self, t: Tree, table: Table) -> Edges:
        """The roots, and the nodes that are the other side; -1 where there is none."""
        if isinstance(t, Leaf):
            return table["root"], table[t]
        return table["root"], self._node(t, table)

    def _node(self, t: Term, table: Table) -> np.ndarray:
        number = self.numbers.get(t.instance)
        classes = [
            table[x] if isinstance(x, Leaf) else self._class(self._node(x, table))
            for x in t.operands
        ]
        if number is None:
            return np.full(len(table["root"]), -1)
        missing = np.zeros(len(table["root"]), bool)
        for x in classes:
            missing |= x < 0
        none = np.full(len(missing), -1)
        a, b = (*classes, none, none)[:2]
        if t.instance.commutative:
            ka, kb = self.kinds[a], self.kinds[b]
            swap = (ka > kb) | ((ka == kb) & (a > b))
            a, b = np.where(swap, b, a), np.where(swap, a, b)
        wanted = self._packed(number, a, b)
        place = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return np.where(~missing & (self._keys[place] == wanted), self._order[place], -1)

    def _class(self, nodes: np.ndarray) -> np.ndarray:
        """Of nodes that may be operands."""
        found = np.where(nodes < 0, -1, self.of[nodes])
        return np.where(found < len(self.space.place), found, -1)


def _rows(table: Table, some: np.ndarray) -> Table:
    return {k: v[some] for k, v in table.items()}


def fits(given: Sequence[Leaf], kinds: Sequence[Kind]) -> bool:
    """Are tensors of these kinds what a rule's leaves stand for?"""
    named: dict[Block, Block] = {}
    for x, kind in zip(given, kinds, strict=True):
        if len(x.kind) != len(kind):
            return False
        if not all(_is(a, b, named) for a, b in zip(x.kind, kind, strict=True)):
            return False
    return True


def _is(a: Block, b: Block, named: dict[Block, Block]) -> bool:
    """Is the second block what the first stands for, whose names stand for others?"""
    if isinstance(a, Times) and isinstance(b, Times):
        return _is(a.first, b.first, named) and _is(a.second, b.second, named)
    return (named.setdefault(a, b) if isinstance(a, str) else a) == b


class Parts:
    """Nodes of classes with several, in parts that rules connect."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.label = np.arange(len(nodes))  # of each node: the first one of its part
        self.aside = np.zeros(len(nodes), np.int16)  # equalities of it that were refused
        self.active = np.zeros(0, int)  # nodes of classes of several parts

    def begin(self, level: int) -> None:
        """Take the nodes of up to so many operators."""
        n = self.nodes
        self.active = np.nonzero(n.programs.level <= level)[0]
        self.settle()

    def join(self, edges: Sequence[Edges]) -> None:
        a = np.concatenate([self.label[x] for x, _ in edges]) if edges else np.zeros(0, int)
        b = np.concatenate([self.label[x] for _, x in edges]) if edges else np.zeros(0, int)
        if not len(a):
            return
        old = np.unique(np.concatenate([a, b]))
        a, b = np.searchsorted(old, a), np.searchsorted(old, b)
        new = np.arange(len(self.label))
        new[old] = old[_least_connected(a, b, len(old))]
        self.label = new[self.label]

    def settle(self) -> None:
        """Leave out classes that are of one part."""
        group = self._groups(self.active)
        label = self.label[self.active]
        order = np.lexsort((label, group))
        g, x = group[order], label[order]
        changes = (g[1:] == g[:-1]) & (x[1:] != x[:-1])
        several = np.unique(g[1:][changes])
        self.active = self.active[np.isin(group, several)]

    def _groups(self, nodes: np.ndarray) -> np.ndarray:
        """A class, but for what is put aside."""
        return self.nodes.of[nodes].astype(np.int64) * 4096 + self.aside[self.label[nodes]]

    def open(self) -> np.ndarray:
        """Pairs of parts of one class, each by its first node: small and general ones first."""
        label = np.unique(self.label[self.active])
        group = self._groups(label)
        order = np.lexsort((label, group))
        label, group = label[order], group[order]
        starts = np.concatenate([[True], group[1:] != group[:-1]])[: len(group)]
        base = label[np.maximum.accumulate(np.where(starts, np.arange(len(label)), 0))]
        pairs = np.stack([label, base], axis=1)[~starts]
        size, leaves = self.nodes.size[pairs], self.nodes.leaves[pairs]
        both = leaves[:, 0] | leaves[:, 1]
        distinct = np.zeros(len(pairs), int)
        for k in range(len(self.nodes.space.vocabulary.leaves)):
            distinct += (both >> k) & 1
        keys = pairs[:, 0], -distinct, size.max(axis=1), size.sum(axis=1)
        return pairs[np.lexsort(keys)]

    def put_aside(self, label: int) -> None:
        """A part that is not proved equal to the first one of its class: it may be to others."""
        self.aside[label] += 1
