"""Which equalities follow from others: by rewriting both sides, all ways at once, in an e-graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.superopt.terms import Equality, Leaf, Tree, kind_of, leaves, occurrences
from tilewright.superopt.vocabulary import Instance

# Equalities of one e-graph, and how many are tried between two looks at all that are left.
TOGETHER, BATCH = 600, 12
ROUNDS = 3


def _bindings() -> Any:
    try:
        from egglog import bindings
    except ImportError:
        raise Unsupported(
            "equality saturation needs egglog", hint="pip install 'tilewright[superopt]'"
        ) from None
    return bindings


class _Graph:
    """An e-graph of terms, with equalities as rewrites in both directions."""

    def __init__(self, known: Iterable[Equality], terms: Iterable[Equality]) -> None:
        bindings = _bindings()
        self.graph, self.error = bindings.EGraph(), bindings.EggSmolError
        # By the ranks of operands: axes of an operator mean others where ranks differ.
        self.names: dict[tuple[Instance, tuple[int, ...]], str] = {}
        known, terms = list(known), list(terms)
        rules = "".join(map(self._rules, known))
        sides = [(self._text(e.left), self._text(e.right)) for e in terms]
        declared = "".join(f"({f} {' '.join('T' for _ in n)})" for (_, n), f in self.names.items())
        swaps = "".join(
            f"(rewrite ({f} a b) ({f} b a))"
            for (x, n), f in self.names.items()
            if x.commutative and len(n) == 2 and n[0] == n[1]
        )
        self._run(f"(datatype T (V String) {declared}) (relation positive (T)) {swaps} {rules}")
        for name in sorted({x for e in terms for x in e.positive}):
            self._run(f'(positive (V "{name}"))')
        for k, (left, right) in enumerate(sides):
            self._run(f"(let $l{k} {left}) (let $r{k} {right})")

    def _run(self, text: str) -> None:
        self.graph.run_program(*self.graph.parse_program(text))

    def _text(self, t: Tree, pattern: bool = False) -> str:
        if isinstance(t, Leaf):
            return t.name if pattern else f'(V "{t.name}")'
        operands = sorted(t.operands, key=_rank) if t.instance.commutative else t.operands
        inside = " ".join(self._text(x, pattern) for x in operands)
        ranks = tuple(map(_rank, operands))
        name = self.names.setdefault((t.instance, ranks), f"f{len(self.names)}")
        return f"({name} {inside})"

    def _rules(self, e: Equality) -> str:
        out = ""
        for a, b in ((e.left, e.right), (e.right, e.left)):
            if not isinstance(a, Leaf) and set(leaves(b)) <= set(leaves(a)):
                known = " ".join(f"(positive {x.name})" for x in set(leaves(a)) if x.positive)
                when = f":when ({known})" if known else ""
                out += f"(rewrite {self._text(a, True)} {self._text(b, True)} {when})\n"
        return out

    def run(self, rounds: int) -> None:
        self._run(f"(run {rounds})")

    def equal(self, k: int) -> bool:
        try:
            self._run(f"(check (= $l{k} $r{k}))")
        except self.error:  # the check's way to say no
            return False
        return True


def _rank(t: Tree) -> int:
    return len(kind_of(t) or ())


def derivable(candidates: Sequence[Equality], known: Sequence[Equality], rounds: int) -> list[bool]:
    """Do these follow from the known ones, within so many rounds of rewriting?"""
    out: list[bool] = []
    for k in range(0, len(candidates), TOGETHER):
        some = candidates[k : k + TOGETHER]
        graph = _Graph(known, some)
        graph.run(rounds)
        out += [graph.equal(j) for j in range(len(some))]
    return out


def basis(candidates: Sequence[Equality]) -> list[Equality]:
    """A few from which the others follow: the smallest and most general first."""
    left = sorted(candidates, key=order)
    kept: list[Equality] = []
    while left:
        batch, left = left[:BATCH], left[BATCH:]
        before = len(kept)
        for e in batch:
            if not kept or not derivable([e], kept, ROUNDS)[0]:
                kept.append(e)
        if len(kept) > before:
            follows = derivable(left, kept, ROUNDS - 1)
            left = [e for e, known in zip(left, follows, strict=True) if not known]
    for e in reversed(kept[:]):
        others = [x for x in kept if x is not e]
        if others and derivable([e], others, ROUNDS)[0]:
            kept = others
    return kept


def order(e: Equality) -> tuple[int, int, int, str]:
    """Small and general equalities first."""
    sizes = occurrences(e.left), occurrences(e.right)
    distinct = len({*leaves(e.left), *leaves(e.right)})
    return sum(sizes), max(sizes), -distinct, str(e)
