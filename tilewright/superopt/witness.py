"""A third witness: Z3, an SMT solver that others wrote, asked whether a rule follows from axioms.

Operators are functions that nothing is known of, one for each choice of attributes and ranks.
Axioms are facts for all tensors, under the condition that their sizes and signs fit: without it
they would prove rules that have no meaning. Sizes are whole numbers, functions of a tensor;
attributes that depend on sizes are further arguments. Z3 looks for tensors for which the axioms
hold and the rule does not. Where there are none, the rule follows; where it finds no end, nothing
is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import reduce
from typing import Any

from tilewright.base.errors import MissingExtra
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.types import f64
from tilewright.superopt.axioms import Window, axioms, variants
from tilewright.superopt.blocks import Block, Sizes, Times
from tilewright.superopt.terms import Equality, Leaf, Term, Tree, as_node, kind_of

SECONDS = 2.0
# Attributes that are sizes, or made of them: arguments of a function, not a part of its name.
SIZE_ATTRIBUTES = ("start", "stop", "shape", "size")


def _z3() -> Any:
    try:
        import z3
    except ImportError:
        raise MissingExtra("prove", "asking Z3 whether a rule follows from axioms") from None
    return z3


def version() -> str:
    return f"z3 {_z3().get_version_string()}"


def follows(e: Equality, known: Iterable[Equality] | None = None, seconds: float = SECONDS) -> bool:
    """Does the equality follow from what is known, the axioms but for itself if nothing is said?
    False: Z3 found no proof in the time."""
    z3 = _z3()
    if known is None:
        known = (v for x in _about(e) for v in variants(x, *_needs(e)))
    encoder = _Encoder(z3)
    solver = z3.SimpleSolver()
    solver.set("timeout", int(1000 * seconds))
    solver.set("auto_config", False)
    solver.set("mbqi", False)
    solver.set("random_seed", 0)
    wrong = encoder.negated(e)
    for fact in dict.fromkeys(known):
        solver.add(*encoder.axiom(fact))
    solver.add(*encoder.commutative())
    solver.add(*wrong)
    return solver.check() == z3.unsat


def _about(e: Equality) -> list[Equality]:
    """The axioms but for itself that lead on from its operators: a side of them has no others."""
    canonical, mine = e.canonical(), _names(e.left) | _names(e.right)
    return [
        x
        for x in axioms().values()
        if (_names(x.left) <= mine or _names(x.right) <= mine) and x.canonical() != canonical
    ]


def _names(t: Tree) -> frozenset[str]:
    """Operators of a term."""
    if isinstance(t, Leaf):
        return frozenset()
    return frozenset((t.instance.name,)).union(*map(_names, t.operands))


def _needs(e: Equality) -> tuple[set[int], set[Window]]:
    """The ranks and windows that occur in an equality."""
    ranks: set[int] = set()
    windows: set[Window] = set()
    sizes = Sizes.symbolic(e.symbols)
    stack: list[Tree] = [e.left, e.right]
    while stack:
        t = stack.pop()
        ranks.add(as_node(t, sizes, f64).rank)
        if isinstance(t, Leaf):
            continue
        given = dict(t.instance.attributes)
        if "stride" in given:
            kernel = given.get("kernel") or as_node(t.operands[1], sizes, f64).shape[2:]
            numbers = tuple(k for k in kernel if isinstance(k, int))
            if len(numbers) == len(kernel):
                around = given.get("dilation", (1,) * len(kernel))
                windows.add((numbers, given["stride"], given["padding"], around))
        stack += t.operands
    return ranks, windows


class _Encoder:
    """Terms and facts of Z3. One instance serves one question: its functions have names."""

    def __init__(self, z3: Any) -> None:
        self.z3 = z3
        self.tensor = z3.DeclareSort("Tensor")
        self.functions: dict[tuple[Any, ...], Any] = {}
        self.swaps: dict[tuple[Any, ...], Any] = {}  # functions of two operands of one rank
        self.positive = z3.Function("never_negative", self.tensor, z3.BoolSort())
        self.below = z3.Function("below", self.tensor, z3.IntSort())
        self.count = 0

    def size(self, x: Any, axis: int) -> Any:
        return self._function(("size", axis), 1, 0, self.z3.IntSort())(x)

    def _function(self, key: tuple[Any, ...], operands: int, numbers: int, result: Any) -> Any:
        found = self.functions.get((key, operands, numbers))
        if found is None:
            sorts = [self.tensor] * operands + [self.z3.IntSort()] * numbers + [result]
            name = f"{key[0]}{len(self.functions)}"
            found = self.functions[key, operands, numbers] = (
                self.z3.Function(name, *sorts) if len(sorts) > 1 else self.z3.Const(name, result)
            )
        return found

    # ---- facts

    def negated(self, e: Equality) -> list[Any]:
        """Facts on the leaves, and that both sides differ."""
        z3 = self.z3
        leaves = {x: z3.Const(x.name, self.tensor) for x in e.leaves}
        env = {name: z3.Int(f"size_{name}") for name in e.symbols}
        facts = [n >= 1 for n in env.values()]
        facts += [fact for x in e.leaves for fact in self._fits(x, leaves[x], env)]
        side = _Side(self, leaves, env, Sizes.symbolic(e.symbols))
        left, right = side.of(e.left), side.of(e.right)
        return [*facts, *side.facts, left != right]

    def _fits(self, x: Leaf, at: Any, env: dict[str, Any]) -> list[Any]:
        out = [self.size(at, k) == self._block(b, env) for k, b in enumerate(x.kind)]
        if x.positive:
            out.append(self.positive(at))
        if x.below is not None:
            out.append(self.below(at) == self._block(x.below, env))
        return out

    def _block(self, b: Block, env: dict[str, Any]) -> Any:
        if isinstance(b, tuple):
            return self._block(b[0], env) + self._block(b[1], env)
        if isinstance(b, Times):
            return self._block(b.first, env) * self._block(b.second, env)
        return env[b] if isinstance(b, str) else self.z3.IntVal(b)

    def axiom(self, e: Equality) -> list[Any]:
        """For all tensors that fit: both sides are equal, and of the sizes that they have. Once for
        each side that says what all of its leaves and sizes are."""
        z3 = self.z3
        leaves = {x: z3.Const(f"{x.name}?", self.tensor) for x in e.leaves}
        env: dict[str, Any] = {}
        for x in e.leaves:
            for k, b in enumerate(x.kind):
                if isinstance(b, str):
                    env.setdefault(b, self.size(leaves[x], k))
        free = {n: z3.Int(f"{n}?") for n in e.symbols if n not in env}
        env |= free
        out: list[Any] = []
        side = _Side(self, leaves, env, Sizes.symbolic(e.symbols))
        equal = side.of(e.left) == side.of(e.right)
        conclusion = z3.And(equal, *side.facts)
        fits = [fact for x in e.leaves for fact in self._fits(x, leaves[x], env)]
        fits += [n >= 1 for n in free.values()]
        for t in (e.left, e.right):
            if isinstance(t, Leaf):
                continue
            pattern = _Side(self, leaves, env, Sizes.symbolic(e.symbols), pattern=True)
            shown = pattern.of(t)
            bound = {*map(str, _constants(shown))}
            variables = [*leaves.values(), *free.values(), *pattern.numbers]
            if not variables or not all(str(v) in bound for v in variables):
                continue
            guard = z3.And(*fits, *pattern.guards)
            body = z3.Implies(guard, conclusion)
            out.append(z3.ForAll(variables, body, patterns=[shown]))
        return out

    def commutative(self) -> list[Any]:
        """Of functions whose operators say so."""
        a, b = self.z3.Consts("a? b?", self.tensor)
        return [
            self.z3.ForAll([a, b], f(a, b) == f(b, a), patterns=[f(a, b)])
            for f in self.swaps.values()
        ]

    def number(self, x: Dim, env: dict[str, Any]) -> Any | None:
        """A size as a number of Z3; None where it has no such form."""
        if isinstance(x, int):
            return self.z3.IntVal(x)
        total: Any = self.z3.IntVal(0)
        for mono, c in x.terms:
            factors = [self._atom(a, env) for a in mono]
            if any(f is None for f in factors):
                return None
            total = total + reduce(lambda a, b: a * b, factors, self.z3.IntVal(c))
        return total

    def _atom(self, a: D.Atom, env: dict[str, Any]) -> Any | None:
        if isinstance(a, D.Sym):
            return env.get(a.name)
        if isinstance(a, D.Quo) and a.op in ("floordiv", "mod") and isinstance(a.b, int):
            inside = self.number(a.a, env)
            if inside is not None:
                return inside / a.b if a.op == "floordiv" else inside % a.b
        return None

    def fresh(self) -> Any:
        self.count += 1
        return self.z3.Int(f"number{self.count}?")


class _Side:
    """One side of an equality over given leaves and sizes. In a pattern, numbers that are computed
    are variables of their own, and a guard says what they are."""

    def __init__(
        self,
        encoder: _Encoder,
        leaves: dict[Leaf, Any],
        env: dict[str, Any],
        sizes: Sizes,
        pattern: bool = False,
    ) -> None:
        self.encoder, self.leaves, self.env, self.sizes = encoder, leaves, env, sizes
        self.pattern = pattern
        self.facts: list[Any] = []
        self.guards: list[Any] = []
        self.numbers: list[Any] = []

    def of(self, t: Tree) -> Any:
        if isinstance(t, Leaf):
            return self.leaves[t]
        operands = list(t.operands)
        ranks = [as_node(x, self.sizes, f64).rank for x in operands]
        if t.instance.commutative:
            # Of operands of several ranks the one with more axes comes first.
            operands = [x for _, x in sorted(zip(ranks, operands), key=lambda p: -p[0])]
            ranks = sorted(ranks, reverse=True)
        key, numbers = self._attributes(t, tuple(ranks))
        encoder = self.encoder
        f = encoder._function(key, len(operands), len(numbers), encoder.tensor)
        if t.instance.commutative and len(operands) == 2 and ranks[0] == ranks[1] and not numbers:
            encoder.swaps[key] = f
        args = [*map(self.of, operands), *map(self._number, numbers)]
        made = f(*args) if args else f
        for k, d in enumerate(as_node(t, self.sizes, f64).shape):
            n = encoder.number(d, self.env)
            if n is not None:
                self.facts.append(encoder.size(made, k) == n)
        return made

    def _attributes(self, t: Term, ranks: tuple[int, ...]) -> tuple[tuple[Any, ...], list[Dim]]:
        """(what names the function, the sizes that are its arguments)."""
        kinds = [k for x in t.operands if (k := kind_of(x)) is not None]
        op = t.instance.op(self.sizes, kinds)
        key: list[Any] = [op.name, ranks]
        numbers: list[Dim] = []
        for x in fields(op):
            value = getattr(op, x.name)
            if x.name in SIZE_ATTRIBUTES:
                listed: Sequence[Dim] = value if isinstance(value, tuple) else (value,)
                numbers += listed
                key.append((x.name, len(listed)))
            else:
                key.append((x.name, repr(value)))
        return tuple(key), numbers

    def _number(self, x: Dim) -> Any:
        encoder = self.encoder
        value = encoder.number(x, self.env)
        if value is not None and not self.pattern:
            return value
        if isinstance(x, D.Int) and value is not None:
            bare = next((s for s in D.symbols(x) if D.as_int(s) is x), None)
            if bare is not None and encoder.z3.is_const(value):
                return value
        made = encoder.fresh()
        self.numbers.append(made)
        if value is not None:
            self.guards.append(made == value)
        else:
            self.guards.append(encoder.z3.BoolVal(False))
        return made


def _constants(x: Any) -> list[Any]:
    found, stack = [], [x]
    while stack:
        at = stack.pop()
        children = at.children()
        if not children:
            found.append(at)
        stack += children
    return found
