"""Mining rules: programs enumerated, equalities among them proved, made general and reduced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.pattern import Rule
from tilewright.superopt.connect import Edges, Nodes, Parts
from tilewright.superopt.enumerate import Space
from tilewright.superopt.generalise import generalised, has_proof
from tilewright.superopt.records import Record, proved
from tilewright.superopt.shorten import LeftOut, Progress, order, shortened
from tilewright.superopt.terms import Equality, Tree, Trees

# Told what is done, and of how many equalities nothing is known yet.
Watch = Callable[[str, int], None]
# Open equalities that are looked at together, of which the smallest few are tried.
TOGETHER, BATCH = 256, 16


class Reduced:
    """Rules from which all equalities of a space follow that are proved.

    The smallest equality that does not follow from the rules so far is proved, made general and
    is one more rule. So few are proved, and the others follow from them. Rules that are known from
    an earlier run that ended too soon come first. What was found stays where `run` is ended."""

    def __init__(
        self,
        space: Space,
        watch: Watch = lambda what, left: None,
        known: Sequence[Equality] = (),
    ) -> None:
        self.trees, self.nodes = Trees(space), Nodes(space)
        self.parts = Parts(self.nodes)
        self.watch = watch
        self.rules = list(known)
        self.tried: dict[Equality, bool] = {}  # is it proved?
        self.left_out = LeftOut()

    def run(self) -> Reduced:
        for n in range(1, len(self.trees.space.levels) + 1):
            # Operands are smaller programs, so that rules are small: what follows only from larger
            # ones is a rule of its own. What was refused is not taken for equal as an operand.
            self.nodes.use(self.parts.aside[self.parts.label] == 0, n)
            self.parts.begin(n)
            self._apply(self.rules)
            while self._step(n):
                pass
        return self

    @property
    def equalities(self) -> int:
        return len(self.nodes) - len(np.unique(self.nodes.of))

    @property
    def open(self) -> int:
        """How many were refused."""
        return int((self.parts.aside[self.parts.label] > 0).sum())

    def _step(self, level: int) -> bool:
        """A few equalities more; False where none is left."""
        pairs = self.parts.open()
        self.watch(f"{level} operators", len(pairs))
        edges: list[Edges] = []
        batch: dict[Equality, tuple[int, int]] = {}
        for a, b in pairs[:TOGETHER].tolist():
            e = self._equality(a, b)
            known = self.tried.get(e)
            if known:
                edges.append(_edge(a, b))
            elif known is not None:
                self.parts.put_aside(a)
            else:
                batch.setdefault(e, (a, b))
        new: list[Equality] = []
        for e in sorted(batch, key=order)[:BATCH]:
            a, b = batch[e]
            if self._follows(a, b, new):
                continue
            self.tried[e] = False
            with self.left_out.where_it_fails(e, "proof"):
                if has_proof(e):
                    new.append(generalised(e))
                    self.rules.append(new[-1])
                    self.tried[e] = True
            if self.tried[e]:
                edges.append(_edge(a, b))
            else:
                self.parts.put_aside(a)
        self.parts.join(edges)
        self._apply(new)
        return len(pairs) > 0

    def _apply(self, rules: Sequence[Equality]) -> None:
        self.parts.join([self.nodes.connected_by(e, self.parts.active) for e in rules])
        self.parts.settle()

    def _follows(self, a: int, b: int, rules: Sequence[Equality]) -> bool:
        """Do these rules, of which all nodes do not know yet, connect two nodes?"""
        if not rules:
            return False
        parts, of = self.parts, self.nodes.of
        some = parts.active[of[parts.active] == of[a]]
        near = {int(parts.label[a])}
        edges = [self.nodes.connected_by(e, some) for e in rules]
        pairs = [(int(x), int(y)) for e in edges for x, y in zip(*(parts.label[z] for z in e))]
        for _ in pairs:
            near |= {x for pair in pairs for x in pair if near & set(pair)}
        return int(parts.label[b]) in near

    def _equality(self, a: int, b: int) -> Equality:
        left, right = self._tree(a), self._tree(b)
        return Equality(left, right).canonical()

    def _tree(self, node: int) -> Tree:
        if node < len(self.trees.space.programs):
            return self.trees.of(node)
        return self.trees.at(self.nodes.programs, node)


@dataclass(frozen=True)
class Mined:
    """How many equalities there were, and the rules that are left."""

    equalities: int
    open: int  # of those: what follows from no rule
    tried: int  # that did not follow from smaller ones, up to names of leaves
    proved: int  # of those, by normal form
    rules: Sequence[Record]  # from which they follow, as rules of any shapes
    refused: Sequence[str]  # what the second prover refused, and why
    left_out: Sequence[str]  # what a stage could not treat, and why


class Mining:
    """The rules of a space that both provers take, but for those that gain nothing and those that
    follow from others or from what is known. Few are left, and only these are proved again; what
    is refused then is no reason to leave out another, so the others are looked at once more.

    Whatever ends `run`: what was found by then stays, in `so_far`."""

    def __init__(
        self,
        found: Reduced,
        seed: int = 0,
        known: Sequence[Rule] = (),
        progress: Progress = lambda found, what: found,
        judged: Mapping[Equality, Record] | None = None,
    ) -> None:
        self.found, self.seed, self.known, self.progress = found, seed, known, progress
        self.judged: dict[Equality, Record | str] = dict(judged or {})

    def run(self) -> Mined:
        found, failed = self.found.run(), self.found.left_out
        refused: dict[Equality, str] = {}
        while True:
            general = [e for e in self._general() if e not in refused and e not in failed]
            short = shortened(general, self.known, self.progress, failed)
            for e in self.progress([e for e in short if e not in self.judged], "second proofs"):
                with failed.where_it_fails(e, "second proof"):
                    self.judged[e] = proved(e, self.seed)
            wrong = {e: how for e in short if isinstance(how := self.judged.get(e), str)}
            if not wrong and not any(e in failed for e in short):
                break
            refused |= wrong
        rules = [how for e in short if isinstance(how := self.judged[e], Record)]
        said = [f"{e}: {how}" for e, how in refused.items()]
        numbers = found.equalities, found.open, len(found.tried), len(found.rules)
        return Mined(*numbers, rules, said, [f"{e}: {why}" for e, why in failed.items()])

    def _general(self) -> list[Equality]:
        return [e for e in dict.fromkeys(self.found.rules) if e.is_rule]

    @property
    def so_far(self) -> list[Record]:
        """All that is proved once, whether or not it follows from others; with records of both
        proofs where there are two."""
        left = [e for e in self._general() if e not in self.found.left_out]
        found = (self.judged.get(e, Record(str(e))) for e in left)
        return [r for r in found if isinstance(r, Record)]


def _edge(a: int, b: int) -> Edges:
    return np.array([a]), np.array([b])
