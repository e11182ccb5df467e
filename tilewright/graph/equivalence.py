"""Are two graphs equal, and how is that known?

A pass takes one graph to another with the same inputs. Their nodes are paired: shared ones are
equal, and others are paired by their values at random points in float64. A pair with the same
operator over pairs says nothing new. Every other pair is a piece that changed, two small graphs
over the pairs below it, and is judged alone, by the first of these that reaches:

    proved     both sides have one normal form, for all inputs: bit for bit, or over the reals
    modular    both are equal modulo a prime at random points, other functions being random ones;
               wrong with a chance below the degree over the prime (rewrites/proofs/modular.py)
    float64    equal at the random points within a tolerance: that is what paired them
    rounded    the same, within the rounding of the program's dtype: the second graph has constants
               that were computed, and rounded, by the pass

Outputs that are no pair are a difference. What rules replaced is looked at rule by rule, at points
with zeros of both signs, infinities and NaN too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.graph.values import Point, Values, is_tensor, signature, work
from tilewright.ir.agreement import TOLERANCES, disagreement, tolerance
from tilewright.ir.expr import walk
from tilewright.ir.node import Constant, Graph, Input, Item, Node, input, node, topological
from tilewright.ir.operator import composition, definition, is_composed, stages
from tilewright.ir.rewrite import Application
from tilewright.ir.text import print_graph
from tilewright.rewrites.facts import is_weight
from tilewright.rewrites.proofs.equality import nodes_equal
from tilewright.rewrites.proofs.modular import PRIME, degree, random_residues, values_of
from tilewright.rewrites.proofs.prove import difference

BITS, REALS = "proved bit for bit", "proved over the reals"
MODULAR, DOUBLE, ROUNDED = "modular", "float64", "float64, constants rounded"
METHODS = (BITS, REALS, MODULAR, DOUBLE, ROUNDED)  # the strongest first
MODULAR_POINTS = 2
# Scalar functions and reads in the definitions of a piece that is proved by its normal form, and
# operations of one that is computed modulo a prime: more may take long.
PROVED_SIZE, MODULAR_WORK = 100, 1 << 22


@dataclass(frozen=True)
class Difference:
    """Two nodes that should be equal and are not, over operands that are."""

    before: Node
    after: Node
    said: str
    rule: str = ""
    piece: Graph | None = None  # the node before, over equal operands as inputs

    @property
    def operator(self) -> str:
        return self.before.op.name


@dataclass(frozen=True)
class Judged:
    """What two graphs were found to be: how many pieces were judged by each method, the largest
    chance that one modulo a prime is wrong, the largest error of others that is allowed, of the
    largest value, and what differs."""

    new: int = 0  # nodes of the second graph that the first does not have
    methods: Counter[str] = field(default_factory=Counter)
    chance: float = 0.0
    error: float = TOLERANCES["f64"]
    difference: Difference | None = None

    @property
    def method(self) -> str:
        """The weakest that was needed."""
        used = [m for m in METHODS if self.methods[m]]
        return used[-1] if used else ""

    @property
    def how(self) -> str:
        counts = ", ".join(f"{self.methods[m]} {m}" for m in METHODS if self.methods[m])
        return counts or ("the same operators" if self.new else "unchanged")

    @property
    def bound(self) -> str:
        """What the weakest method leaves open."""
        if self.method in (DOUBLE, ROUNDED):
            return f"error below {self.error:.0e} of the largest value"
        return f"chance of a miss below {self.chance:.0e}" if self.method == MODULAR else ""


class Equivalence:
    """Judges graphs over the same inputs, such as those before and after each pass. What was found
    of a piece is remembered: layers are alike."""

    def __init__(
        self, graph: Graph, points: Sequence[Point], special: Sequence[Point] = ()
    ) -> None:
        self.points = list(points)
        self.values = [Values(graph, p) for p in points]
        self.plain = [Values(graph, p, double=False) for p in (*points, *special)]
        self.rounds = False
        self._known: dict[str, tuple[str, float]] = {}

    def judge(self, before: Graph, after: Graph, applied: Iterable[Application] = ()) -> Judged:
        """How the second graph was found to be equal to the first, or where it is not."""
        wrong = self._wrong_rule(applied)
        if wrong is not None:
            return Judged(_new(before, after), difference=wrong)
        if before.outputs == after.outputs:
            return Judged(_new(before, after))
        self.rounds = _has_new_constants(before, after)
        pairs = self._pairs(before, after)
        for a, b in zip(before.outputs, after.outputs, strict=True):
            if pairs.get(b) is not a and self._differ(a, b):
                return Judged(_new(before, after), difference=self._narrowed(a, b, pairs))
            pairs.setdefault(b, a)
        methods: Counter[str] = Counter()
        chance, error = 0.0, TOLERANCES["f64"]
        for b in after.nodes():
            a = pairs.get(b)
            if a is None or a is b or a is _over(b, pairs):
                continue
            method, risk = self._method(a, b, pairs)
            if method == DOUBLE and self._differ(a, b, exactly=True):
                method, error = ROUNDED, max(error, tolerance(a.dtype))
            methods[method] += 1
            chance = max(chance, risk)
        return Judged(_new(before, after), methods, chance, error)

    # ---- pairs

    def _differ(self, a: Node, b: Node, exactly: bool = False) -> str | None:
        """How two nodes differ at a point; unless `exactly`, within what rounding constants does
        where the pass may have done so."""
        if a.type != b.type:
            return f"its type is {b.type!r}, not {a.type!r}"
        for v in self.values:
            loose = self.rounds and not exactly
            said = disagreement(v(b), v(a), a.dtype if loose else v.dtype(a))
            if said is not None:
                return said
        return None

    def _pairs(self, before: Graph, after: Graph) -> dict[Node, Node]:
        """For nodes of the second graph, those of the first that are equal to them: the same
        operator over pairs, or the same values at the points."""
        old = before.nodes()
        known = set(old)
        pairs: dict[Node, Node] = {}
        by_type: dict[object, list[tuple[list[float], Node]]] = {}
        for a in old:
            if is_tensor(a) and (mine := signature(self.values, a)):
                by_type.setdefault(a.type, []).append((mine, a))
        for b in after.nodes():
            alike = _over(b, pairs)
            if b in known or alike in known:
                pairs[b] = b if b in known else alike
            elif is_tensor(b) and b.type in by_type:
                found = self._of_value(b, by_type[b.type])
                if found is not None:
                    pairs[b] = found
        return pairs

    def _of_value(self, b: Node, candidates: list[tuple[list[float], Node]]) -> Node | None:
        """The latest node with the values of b, so that pieces are small; within rounding where b
        is a constant and there is no other."""
        mine = signature(self.values, b)
        near = [a for x, a in reversed(candidates) if mine and np.allclose(mine, x, 1e-3, 1e-3)]
        exact = next((a for a in near if self._differ(a, b, exactly=True) is None), None)
        if exact is not None or b.inputs or not b.dtype.is_float:
            return exact
        fits = lambda v, a: np.allclose(v(a), v(b), tolerance(b.dtype), 0.0)  # noqa: E731
        return next((a for a in near if all(fits(v, a) for v in self.values)), None)

    # ---- differences

    def _wrong_rule(self, applied: Iterable[Application]) -> Difference | None:
        for one in dict.fromkeys(applied):
            said = self._misapplied(one)
            if said is not None:
                piece = over_inputs([one.before], set(_below(one.before, one.after)))
                return Difference(one.before, one.after, said, one.rule.name, piece)
        return None

    def _misapplied(self, one: Application) -> str | None:
        """What is wrong with what a rule did, by what it says that it changes."""
        if not is_tensor(one.before):
            return None
        changes = one.rule.changes
        for v in self.values if changes == "rounding" else self.plain:
            try:
                a, b = v(one.before), v(one.after)
            except (TilewrightError, IndexError):
                return None  # inside a branch, whose inputs have no values here
            dtype = v.dtype(one.before)
            if changes == "rounding" or _adds_up(one):
                said = disagreement(b, a, dtype)
            else:
                said = difference(a, b, changes)
            if said is not None:
                return said
        return None

    def _narrowed(self, a: Node, b: Node, pairs: dict[Node, Node]) -> Difference:
        """The first pair below that differs, of nodes with the same operator over nodes that
        should be equal."""
        while type(a.op) is type(b.op) and a.op == b.op and len(a.inputs) == len(b.inputs):
            below = zip(a.inputs, b.inputs, strict=True)
            tensors = [(x, y) for x, y in below if x is not y and is_tensor(x) and is_tensor(y)]
            wrong = next(((x, y) for x, y in tensors if self._differ(x, y)), None)
            if wrong is None or wrong[1] in pairs:  # right, and in the wrong place
                break
            a, b = wrong
        a = self._lowest(a, b, pairs)
        said = self._differ(a, b) or "it differs"
        return Difference(a, b, said, piece=over_inputs([a], set(pairs.values()) - {a}))

    def _lowest(self, a: Node, b: Node, pairs: dict[Node, Node]) -> Node:
        """The lowest operator before that has no equal one after: what was made wrong of it is
        part of b."""
        there = set(pairs.values())
        for n in topological((a,)):
            fits = is_tensor(n) and n not in there and not isinstance(n.op, (Input, Constant))
            if fits and all(x in there for x in n.inputs) and n.type == b.type:
                return n
        return a

    # ---- methods

    def _method(self, a: Node, b: Node, pairs: dict[Node, Node]) -> tuple[str, float]:
        left, right, leaves = _piece(a, b, pairs)
        text = print_graph(Graph("piece", _inputs_of(left, right), (left, right)), places=False)
        if text not in self._known:
            proof = _proved(left, right)
            found = (proof, 0.0) if proof else self._modular(left, right, leaves)
            self._known[text] = found or (DOUBLE, 0.0)
        return self._known[text]

    def _modular(
        self, left: Node, right: Node, leaves: dict[Node, Node]
    ) -> tuple[str, float] | None:
        """Equal modulo a prime? Integers and bools are those of the graph."""
        rng = np.random.default_rng(0)
        values = self.plain[0]
        if work(Graph("", tuple(leaves), (left, right))) > MODULAR_WORK:
            return None
        try:
            for _ in range(MODULAR_POINTS):
                given: dict[Node, np.ndarray] = {}
                for x, n in leaves.items():
                    real = values(n)
                    given[x] = random_residues(real.shape, rng) if n.dtype.is_float else real
                p, q = values_of((left, right), given, values.sizes)
                if not np.array_equal(p, q):
                    return None
            most = degree(left, leaves) + degree(right, leaves)
        except (Unsupported, IndexError):
            return None
        return MODULAR, (most / PRIME) ** MODULAR_POINTS


def _adds_up(one: Application) -> bool:
    """Are there sums, whose order numpy chooses by how arrays lie?"""
    leaves = set(_below(one.before, one.after))
    inside = topological((one.before, one.after), stop=leaves)
    return any(not (n.op.elementwise or n.op.view or not n.inputs) for n in inside)


def _below(before: Node, after: Node) -> list[Node]:
    """Nodes under both sides, the nearest ones first."""
    theirs = set(topological((after,))) - {after}
    mine = [n for n in topological((before,)) if n is not before and n in theirs]
    return mine[::-1]


def _new(before: Graph, after: Graph) -> int:
    known = set(before.nodes())
    return sum(n not in known for n in after.nodes())


def _has_new_constants(before: Graph, after: Graph) -> bool:
    known = set(before.nodes())
    return any(not n.inputs and n.dtype.is_float and n not in known for n in after.nodes())


def _over(b: Node, pairs: dict[Node, Node]) -> Node:
    """The operator of b over what its operands are pairs of."""
    ins = tuple(pairs.get(x, x) for x in b.inputs)
    return b if ins == b.inputs else node(b.op, *ins)


def _piece(a: Node, b: Node, pairs: dict[Node, Node]) -> tuple[Node, Node, dict[Node, Node]]:
    """Both sides over the nearest pairs below b as inputs, and which nodes these inputs are."""
    cut: dict[Node, Node] = {}  # nodes of either side: inputs in their place
    leaves: dict[Node, Node] = {}
    for n in _frontier(b, pairs, set(topological((a,)))):
        image = pairs[n]
        if image not in cut:
            made = input(
                f"piece{len(leaves)}", image.ttype, "weight" if is_weight(image) else "arg"
            )
            cut[image], leaves[made] = made, image
        cut[n] = cut[image]
    left, right = _rebuilt(a, cut), _rebuilt(b, {n: x for n, x in cut.items() if n is not b})
    for n in _inputs_of(left, right):
        leaves.setdefault(n, n)
    return left, right, leaves


def _frontier(b: Node, pairs: dict[Node, Node], theirs: set[Node]) -> list[Node]:
    """The nearest nodes below b that are equal to some of theirs."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(b.inputs)
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if pairs.get(n) in theirs and is_tensor(n) and not isinstance(n.op, Constant):
            found[n] = None
        else:
            stack.extend(n.inputs)
    return list(found)


def _rebuilt(root: Node, cut: dict[Node, Node]) -> Node:
    new = dict(cut)
    for n in topological((root,), stop=cut):
        ins = tuple(new[x] for x in n.inputs)
        new[n] = n if ins == n.inputs else node(n.op, *ins)
    return new[root]


def over_inputs(roots: Sequence[Node], leaves: set[Node]) -> Graph:
    """Nodes as a graph over the nearest of the leaves."""
    cut: dict[Node, Node] = {}
    seen: set[Node] = set()
    stack = [x for r in roots for x in r.inputs]
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        computed = bool(n.inputs) or isinstance(n.op, Input)
        if n in leaves and is_tensor(n) and computed:
            role = "weight" if is_weight(n) else "arg"
            cut[n] = n if isinstance(n.op, Input) else input(f"piece{len(cut)}", n.ttype, role)
        else:
            stack.extend(n.inputs)
    made = tuple(_rebuilt(r, cut) for r in roots)
    return Graph("piece", _inputs_of(*made), made)


def _inputs_of(*nodes: Node) -> tuple[Node, ...]:
    return tuple(n for n in topological(nodes) if isinstance(n.op, Input))


def _size(n: Node) -> int:
    """Of an operator's definition."""
    if not n.inputs or isinstance(n.op, Item) or hasattr(n.op, "interpret"):
        return 1
    if is_composed(n.op):
        return sum(map(_size, topological(composition(n), stop=n.inputs)))
    _, outs = definition(n.op, tuple(x.ttype for x in n.inputs))
    return sum(len(list(walk(t.body))) for t in stages(outs) if t.body is not None)


def _proved(left: Node, right: Node) -> str:
    """The strongest reading in which both have one normal form; "": in none."""
    if sum(map(_size, topological((left, right)))) > PROVED_SIZE:
        return ""
    for method, reading in ((BITS, "bits"), (REALS, "reals")):
        try:
            if nodes_equal(left, right, reading):
                return method
        except Unsupported:
            return ""
    return ""
