"""Rewriting a graph by rules, to a fixpoint.

Operands are rewritten before their users, and what a rule makes is rewritten again, so one round
reaches most of the way; rounds repeat until nothing changes. Rules are found by the operator at
their root. The user's places follow: what replaces a node, and what a rule makes new, takes the
places of all that matched.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tilewright.base.errors import Refused
from tilewright.base.events import Log
from tilewright.ir.node import Graph, Node, Op, Place, node, topological
from tilewright.ir.pattern import Rule

Places = dict[Node, frozenset[Place]]


@dataclass(frozen=True)
class Application:
    """A rule at work: it put one node in the place of another."""

    rule: Rule
    before: Node
    after: Node


class RewriteLog(Log):
    """A log that also has the nodes that rules replaced, for whoever checks them."""

    def __init__(self) -> None:
        super().__init__()
        self.applications: list[Application] = []

    def taken(self) -> list[Application]:
        """Those since the last call."""
        found, self.applications = self.applications, []
        return found


@dataclass(frozen=True)
class RuleSet:
    """Rules by root operator, in the order given."""

    by_root: Mapping[str, tuple[Rule, ...]]

    @staticmethod
    def of(rules: Iterable[Rule]) -> RuleSet:
        table: dict[str, list[Rule]] = {}
        for r in rules:
            table.setdefault(r.root, []).append(r)
        return RuleSet({k: tuple(v) for k, v in table.items()})


def rewrite(
    graph: Graph, rules: Sequence[Rule] | RuleSet, log: Log | None = None, rounds: int = 8
) -> Graph:
    """Apply the rules until none applies, or `rounds` times over the whole graph."""
    table = rules if isinstance(rules, RuleSet) else RuleSet.of(rules)
    for _ in range(rounds):
        done = _Round(graph, table, log, rounds).run()
        if done is graph:
            break
        graph = done
    return graph


def subgraphs(op: Op) -> tuple[Graph, ...]:
    """The graphs inside an operator of control flow; of another one, none."""
    if not hasattr(op, "interpret"):
        return ()
    found = (getattr(op, f.name) for f in dataclasses.fields(op))
    return tuple(x for x in found if isinstance(x, Graph))


def map_subgraphs(op: Op, change: Callable[[Graph], Graph]) -> Op:
    """The operator with the graphs among its attributes changed (operators of control flow)."""
    if not hasattr(op, "interpret"):
        return op
    new = {
        f.name: change(x)
        for f in dataclasses.fields(op)
        if isinstance(x := getattr(op, f.name), Graph)
    }
    return dataclasses.replace(op, **new) if new else op


class _Round:
    def __init__(self, graph: Graph, table: RuleSet, log: Log | None, rounds: int) -> None:
        self.graph, self.table, self.log, self.rounds = graph, table, log, rounds
        self.new: dict[Node, Node] = {}
        self.places: Places = dict(graph.places)
        nodes = graph.nodes()
        self.uses = Counter(x for n in nodes for x in n.inputs)
        self.uses.update(graph.outputs)
        # Rules that undo each other would run for ever.
        self.left = 50 * len(nodes) + 1000
        self.last = ""

    def run(self) -> Graph:
        for n in self.graph.inputs:
            self.new[n] = n
        try:
            self.visit(self.graph.outputs)
        except RecursionError:
            self.refuse()
        outputs = tuple(self.new[o] for o in self.graph.outputs)
        if outputs == self.graph.outputs:
            return self.graph
        live = topological(outputs, first=self.graph.inputs)
        for old, new in self.new.items():
            self.follow(new, self.places.get(old))
        places = {n: self.places[n] for n in live if n in self.places}
        return Graph(self.graph.name, self.graph.inputs, outputs, places)

    def visit(self, roots: Iterable[Node]) -> None:
        """Fill `new` for the roots and all below them."""
        for n in pending(roots, self.new):
            fresh = self.rebuilt(n)
            done = self.new.get(fresh)
            if done is None:
                done = self.reduced(fresh)
                self.new[fresh] = done
            self.new[n] = done

    def rebuilt(self, n: Node) -> Node:
        """n over the new operands."""
        op = map_subgraphs(n.op, lambda g: rewrite(g, self.table, self.log, self.rounds))
        ins = tuple(self.new[x] for x in n.inputs)
        if op is n.op and all(a is b for a, b in zip(ins, n.inputs, strict=True)):
            return n
        fresh = node(op, *ins)
        self.follow(fresh, self.places.get(n))
        if fresh not in self.uses:
            self.uses[fresh] = self.uses[n]
        return fresh

    def reduced(self, n: Node) -> Node:
        """n after the rules that apply at its root, and to what they make."""
        while (out := self.replaced(n)) is not None:
            if out in self.new:
                return self.new[out]
            self.visit(out.inputs)
            n = self.rebuilt(out)
            if n in self.new:
                return self.new[n]
        return n

    def replaced(self, n: Node) -> Node | None:
        """What the first rule that applies at n makes of it."""
        for rule in self.table.by_root.get(n.op.name, ()):
            applied = rule.apply(n, self.uses)
            if applied is None:
                continue
            out, m = applied
            self.count(rule)
            where: frozenset[Place] = frozenset()
            for x in m.nodes:
                where |= self.places.get(x, frozenset())
            for x in pending((out,), self.new):
                if x not in self.uses:
                    self.follow(x, where)
                    self.uses[x] = 1
            self.follow(out, where)
            if isinstance(self.log, RewriteLog):
                self.log.applications.append(Application(rule, n, out))
            if self.log is not None:
                said = f"{rule.label}: {n.op} to {out.op}"
                place = str(min(where, key=str)) if where else None
                self.log.add("rewrite", said, where=place, detail=True, rule=rule.name)
            return out
        return None

    def count(self, rule: Rule) -> None:
        self.left -= 1
        self.last = rule.label
        if self.left < 0:
            self.refuse()

    def refuse(self) -> NoReturn:
        raise Refused(
            f"rewriting {self.graph.name} does not end; the last rule was {self.last}",
            hint="two of the rules undo each other, or one makes its own left side",
        )

    def follow(self, n: Node, where: frozenset[Place] | None) -> None:
        if where:
            self.places[n] = self.places.get(n, frozenset()) | where


def pending(roots: Iterable[Node], done: Mapping[Node, Node]) -> list[Node]:
    """Nodes under the roots that are not done, operands first."""
    order: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(r, False) for r in roots]
    while stack:
        n, ready = stack.pop()
        if n in done or n in order:
            continue
        if ready:
            order[n] = None
        else:
            stack.append((n, True))
            stack.extend((x, False) for x in n.inputs)
    return list(order)
