"""Mined rules that need no search: each leaves out a product of a tensor and of weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from operator import le

from tilewright.graph.classify import contractions
from tilewright.ir.node import Node, topological
from tilewright.ir.pattern import Match, Pattern, Rule
from tilewright.ir.rewrite import RuleSet
from tilewright.ir.target import Target
from tilewright.rewrites.facts import is_weight
from tilewright.superopt.applied import of_several, rules_of
from tilewright.superopt.blocks import Sizes
from tilewright.superopt.search import mined_rules
from tilewright.superopt.seconds import Seconds


@cache
def fewer_products() -> tuple[Rule, ...]:
    """The mined rules that leave out a product and add no operator, where what is made of its
    operands is made of weights."""
    found: list[Rule] = []
    for name, e in mined_rules().items():
        sides = [topological((n,)) for n in e.nodes(Sizes.symbolic(e.symbols))]
        for rule in rules_of(e, name):
            old, new = sides if rule.name == name else sides[::-1]
            names = (Counter(n.op.name for n in side if n.inputs) for side in (new, old))
            if sum(map(contractions, new)) < sum(map(contractions, old)) and le(*names):
                found.append(_of_weights(rule))
    return (*found, *(r for rule in found if (r := of_several(rule)) is not None))


def where_cheaper(target: Target) -> RuleSet:
    """Those rules, where what they make costs less than what is not needed any more."""
    return RuleSet.of(_where_cheaper(r, target) for r in fewer_products())


def _of_weights(rule: Rule) -> Rule:
    def right(m: Match) -> Node | None:
        out = _made(rule, m)
        fits = out is not None and all(
            is_weight(n) or contractions(n) for n in _new(m.root, out) if n is not out
        )
        return out if fits else None

    return replace(rule, right=right)


def _where_cheaper(rule: Rule, target: Target) -> Rule:
    def right(m: Match) -> Node | None:
        out = _made(rule, m)
        if out is None:
            return None
        new, gone = _new(m.root, out), _gone(m, out)
        constant = {x for n in (*new, *gone) for x in n.inputs if is_weight(x)}
        cost = Seconds(target, constant)
        return out if sum(map(cost, new)) < sum(map(cost, gone)) else None

    return replace(rule, right=right)


def _made(rule: Rule, m: Match) -> Node | None:
    assert not isinstance(rule.right, Pattern), "mined rules are functions of what they match"
    return rule.right(m)


def _new(root: Node, out: Node) -> list[Node]:
    """What has to be computed for `out` that is no part of the root."""
    old = set(topological((root,)))
    return [n for n in topological((out,)) if n not in old]


def _gone(m: Match, out: Node) -> list[Node]:
    """What nobody needs when `out` is in the place of the root."""
    needed, gone = set(topological((out,))), [m.root]
    for n in gone:
        gone += (x for x in dict.fromkeys(n.inputs) if x not in needed and m.used_once(x))
    return gone
