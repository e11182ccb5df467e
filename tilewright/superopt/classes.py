"""Classes of equal nodes: an e-graph of the graph's own nodes.

Members of a class have leaders of classes as operands. Nodes are interned, so two members that
became alike are one node, and classes that share a member are one class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.base.errors import Invalid
from tilewright.ir.node import Node, node, topological


class Classes:
    """Nodes and what they are equal to. After `join`, call `settle` before the next look."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._up: dict[Node, Node] = {}  # towards the leader
        self._members: dict[Node, dict[Node, None]] = {}  # by leader, in the order they came
        self._users: dict[Node, dict[Node, None]] = {}  # members that read a class
        self._order: dict[Node, int] = {}  # the older leader stays
        self._pending: list[Node] = []
        self._count = 0
        self.changed: dict[Node, None] = {}  # leaders of classes that got members, since asked
        for n in topological(nodes):
            self.add(n)

    def __iter__(self) -> Iterator[Node]:
        """Leaders, the oldest first."""
        return iter(tuple(self._members))

    def __len__(self) -> int:
        """Members of all classes."""
        return self._count

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
        return (self.leader(u) for u in self._users[self.leader(n)])

    def add(self, n: Node) -> Node:
        """The leader of a node's class, which may be new, as those of its operands."""
        for x in topological((n,), stop=self._up):
            member = self._over_leaders(x)
            if member not in self._up:
                self._up[member] = member
                self._order[member] = len(self._order)
                self._members[member] = {member: None}
                self._count += 1
                self._users.setdefault(member, {})
                self.changed[member] = None
                for y in member.inputs:
                    self._users[y][member] = None
            self._up.setdefault(x, member)
        return self.leader(n)

    def join(self, a: Node, b: Node) -> bool:
        """Say that two nodes are equal; False where that was known."""
        a, b = sorted(map(self.leader, (a, b)), key=self._order.__getitem__)
        if a is b:
            return False
        if a.type != b.type:
            raise Invalid(f"{a!r} and {b!r} cannot be equal: their types differ")
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
            new = self._over_leaders(old)
            if new is old:
                continue
            del self._members[home][old]
            self._count -= 1
            for y in old.inputs:
                self._users[self.leader(y)].pop(old, None)
            if new in self._up:
                self.join(new, home)
            else:
                self._up[new] = home
                self._members[home][new] = None
                self._count += 1
            if new in self._members[self.leader(new)]:
                for y in new.inputs:
                    self._users[y][new] = None

    def _over_leaders(self, n: Node) -> Node:
        leaders = tuple(map(self.leader, n.inputs))
        return n if leaders == n.inputs else node(n.op, *leaders)
