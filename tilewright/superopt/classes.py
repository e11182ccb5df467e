"""Classes of equal nodes: an e-graph of the graph's own nodes.

Members of a class have leaders of classes as operands. Nodes are interned, so two members that
became alike are one node, and classes that share a member are one class.

Why two nodes are equal is kept: every class is a tree of nodes whose edges are applications of
rules or say that operands are equal. The way between two nodes is a proof that they are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilewright.base.errors import Invalid
from tilewright.base.traverse import operands_first
from tilewright.ir.node import Node, node, topological

Pair = tuple[Node, Node]


@dataclass(frozen=True)
class Because:
    """Why two nodes are equal: by a rule, or (without one) because they do the same with equal
    operands; and which other nodes had to be equal for that."""

    rule: str = ""
    of: tuple[Pair, ...] = ()


@dataclass(frozen=True)
class Proved:
    """A rule was applied to `before` and gave `after`; the other way round if `back`."""

    rule: str
    before: Node
    after: Node
    back: bool


@dataclass(frozen=True)
class _Edge:
    to: Node
    why: Because
    back: bool  # it was said of `to` first


class Classes:
    """Nodes and what they are equal to. After `join`, call `settle` before the next look."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._up: dict[Node, Node] = {}  # towards the leader
        self._members: dict[Node, dict[Node, None]] = {}  # by leader, in the order they came
        self._users: dict[Node, dict[Node, None]] = {}  # members that read a class
        self._order: dict[Node, int] = {}  # the older leader stays
        self._pending: list[Node] = []
        self._edges: dict[Node, _Edge] = {}  # towards the root of the tree of a class
        self._count = 0
        self.changed: dict[Node, None] = {}  # leaders of classes that got members, since asked
        self._roots = tuple(nodes)
        for n in topological(self._roots):
            self.add(n)

    def __iter__(self) -> Iterator[Node]:
        """Leaders, the oldest first."""
        return iter(tuple(self._members))

    def __len__(self) -> int:
        """Members of all classes."""
        return self._count

    @property
    def roots(self) -> set[Node]:
        """Leaders of the classes of the nodes that were given."""
        return set(map(self.leader, self._roots))

    def leader(self, n: Node) -> Node:
        up = self._up
        root = n
        while up[root] is not root:
            root = up[root]
        while up[n] is not root:
            up[n], n = root, up[n]
        return root

    def members(self, n: Node) -> tuple[Node, ...]:
        return tuple(self._members[self.leader(n)])

    def users(self, n: Node) -> Iterator[Node]:
        """Leaders of the classes with a member that reads this class."""
        return map(self.leader, self.readers(n))

    def readers(self, n: Node) -> Iterator[Node]:
        """Members that read this class."""
        return iter(self._users[self.leader(n)])

    def find(self, n: Node) -> Node | None:
        """The leader of the class of an operator on operands that are known; None where it is in
        no class."""
        member = self.over_leaders(n)
        return self.leader(member) if member in self._up else None

    def add(self, n: Node) -> Node:
        """The leader of a node's class, which may be new, as those of its operands."""
        for x in operands_first(n, lambda x: x.inputs, self._up):
            member = self.over_leaders(x)
            if member not in self._up:
                self._up[member] = member
                self._order[member] = len(self._order)
                self._members[member] = {member: None}
                self._count += 1
                self._users.setdefault(member, {})
                self.changed[member] = None
                for y in member.inputs:
                    self._users[y][member] = None
            if x not in self._up:
                self._up[x] = member
                self._edges[x] = self._alike(x, member)
        return self.leader(n)

    def join(self, one: Node, other: Node, why: Because) -> bool:
        """Say that two nodes are equal, the second one because of the first; False where that was
        known."""
        a, b = sorted(map(self.leader, (one, other)), key=self._order.__getitem__)
        if a is b:
            return False
        if a.type != b.type:
            raise Invalid(f"{a!r} and {b!r} cannot be equal: their types differ")
        self._link(one, other, why)
        self._up[b] = a
        self._members[a] |= self._members.pop(b)
        users = self._users.pop(b)
        self._users[a] |= users
        self._pending += users
        self.changed.pop(b, None)
        self.changed[a] = None
        return True

    def settle(self) -> None:
        """Members over leaders again; what becomes alike by that is joined."""
        while self._pending:
            old = self._pending.pop()
            home = self.leader(old)
            if old not in self._members[home]:
                continue  # was replaced before
            new = self.over_leaders(old)
            if new is old:
                continue
            del self._members[home][old]
            self._count -= 1
            for y in old.inputs:
                self._users[self.leader(y)].pop(old, None)
            if new in self._up:
                self.join(old, new, self._alike(old, new).why)
            else:
                self._up[new] = home
                self._edges[new] = self._alike(new, old)
                self._members[home][new] = None
                self._count += 1
                for y in new.inputs:
                    self._users[y][new] = None

    def _link(self, one: Node, other: Node, why: Because) -> None:
        """An edge between two trees: the smaller one gets its end as its root."""
        size = {n: len(self._members[self.leader(n)]) for n in (one, other)}
        back = size[one] > size[other]
        n, to = (other, one) if back else (one, other)
        edge = _Edge(to, why, back)
        while True:
            old = self._edges.get(n)
            self._edges[n] = edge
            if old is None:
                return
            n, edge = old.to, _Edge(n, old.why, not old.back)

    def why(self, pairs: Iterable[Pair]) -> list[Proved]:
        """Applications of rules that prove the two nodes of each pair equal, each after those that
        it needs."""
        out: dict[Proved, None] = {}
        done: set[Pair] = set()
        work: list[Pair | Proved] = [*reversed([*pairs])]
        while work:
            task = work.pop()
            if isinstance(task, Proved):
                out.setdefault(task)
                continue
            if task[0] is task[1] or task in done:
                continue
            done.add(task)
            for n, edge in reversed(self._way(*task)):
                if edge.why.rule:
                    ends = (edge.to, n) if edge.back else (n, edge.to)
                    work.append(Proved(edge.why.rule, *ends, edge.back))
                work += edge.why.of
        return list(out)

    def _way(self, a: Node, b: Node) -> list[tuple[Node, _Edge]]:
        """The edges from one node to another, each with where it begins."""
        up: dict[Node, int] = {}
        rising: list[tuple[Node, _Edge]] = []
        n: Node | None = a
        while n is not None:
            up[n] = len(rising)
            edge = self._edges.get(n)
            if edge is not None:
                rising.append((n, edge))
            n = edge.to if edge is not None else None
        falling: list[tuple[Node, _Edge]] = []
        n = b
        while n not in up:
            edge = self._edges.get(n)
            if edge is None:
                raise Invalid(f"{a!r} and {b!r} are not known to be equal")
            falling.append((edge.to, _Edge(n, edge.why, not edge.back)))
            n = edge.to
        return rising[: up[n]] + falling[::-1]

    def over_leaders(self, n: Node) -> Node:
        """The member that a node is: its operator on the leaders of its operands, in the order in
        which there is one."""
        leaders = tuple(map(self.leader, n.inputs))
        made = n if leaders == n.inputs else node(n.op, *leaders)
        if n.op.commutative and made not in self._up:
            swapped = node(n.op, *leaders[::-1])
            return swapped if swapped in self._up else made
        return made

    def _alike(self, n: Node, other: Node) -> _Edge:
        """Of two nodes that do the same with equal operands."""
        given, others = n.inputs, other.inputs
        same = all(self.leader(x) is self.leader(y) for x, y in zip(given, others, strict=True))
        pairs = zip(given, others if same else others[::-1], strict=True)
        return _Edge(other, Because(of=tuple(x for x in pairs if x[0] is not x[1])), False)
