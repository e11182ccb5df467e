"""Patterns over graphs, and rules: pairs of patterns with a name, a guard and a proof.

    x, s, p, q = Var("x"), Var("s"), Attr("p"), Attr("q")
    Rule("double-neg", op.neg(op.neg(x)), x)
    Rule("permutes", op.permute(op.permute(x, perm=p), perm=q), lambda m: …)

A variable stands for a node (the same node wherever it is repeated), `Attr` for an attribute,
`Rest` for the remaining operands, a plain number for any tensor filled with it. Operators that say
they are commutative match in both orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.node import Constant, Item, Node, node
from tilewright.ir.operator import OPERATORS
from tilewright.ir.types import TensorType

Number = int | float


class Pattern:
    """Something that matches a node. Arithmetic builds larger patterns."""

    def __add__(self, o: Pattern | Number) -> Apply:
        return op.add(self, o)

    def __radd__(self, o: Number) -> Apply:
        return op.add(o, self)

    def __sub__(self, o: Pattern | Number) -> Apply:
        return op.sub(self, o)

    def __rsub__(self, o: Number) -> Apply:
        return op.sub(o, self)

    def __mul__(self, o: Pattern | Number) -> Apply:
        return op.mul(self, o)

    def __rmul__(self, o: Number) -> Apply:
        return op.mul(o, self)

    def __truediv__(self, o: Pattern | Number) -> Apply:
        return op.div(self, o)

    def __rtruediv__(self, o: Number) -> Apply:
        return op.div(o, self)

    def __neg__(self) -> Apply:
        return op.neg(self)


@dataclass(frozen=True)
class Var(Pattern):
    """Any node; the same one wherever the name is repeated."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Rest(Pattern):
    """The remaining operands, as a tuple."""

    name: str

    def __repr__(self) -> str:
        return f"*{self.name}"


@dataclass(frozen=True)
class Filled(Pattern):
    """A tensor whose every element is this number (0.0 is not -0.0)."""

    value: Number

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class Attr:
    """The value of an attribute."""

    name: str

    def __repr__(self) -> str:
        return f"?{self.name}"


@dataclass(frozen=True)
class Apply(Pattern):
    """An operator by name, applied; attributes that are not mentioned may be anything."""

    op: str
    args: tuple[Pattern, ...]
    attrs: tuple[tuple[str, Any], ...] = ()

    def __repr__(self) -> str:
        attrs = ", ".join(f"{k}={v!r}" for k, v in self.attrs)
        return f"{self.op}{f'{{{attrs}}}' if attrs else ''}({', '.join(map(repr, self.args))})"


class _Namespace:
    """`op.reshape(x, shape=s)` is the pattern of a reshape."""

    def __getattr__(self, name: str) -> Callable[..., Apply]:
        if name.startswith("_"):
            raise AttributeError(name)

        def build(*args: Pattern | Number, **attrs: Any) -> Apply:
            lifted = tuple(a if isinstance(a, Pattern) else Filled(a) for a in args)
            return Apply(name, lifted, tuple(attrs.items()))

        return build


op = _Namespace()


# ---- matching


@dataclass(frozen=True)
class Match:
    """What the variables of a pattern stand for: `m.x` is a node, `m.perm` an attribute."""

    root: Node
    bindings: Mapping[str, Any]
    nodes: tuple[Node, ...]  # those the pattern's operators matched, the root first
    uses: Mapping[Node, int] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.bindings[name]
        except KeyError:
            raise AttributeError(f"the pattern has no variable {name}") from None

    def op(self, k: int) -> Any:
        """What the k-th operator of the pattern matched (0: the root), for its attributes."""
        return self.nodes[k].op

    def used_once(self, n: Node) -> bool:
        """Is n known to have one user?"""
        return self.uses.get(n, 1) <= 1


Forms = Callable[[Node], Iterable[Node]]
"""Nodes known to be equal to an operand, that one among them: a pattern may match any of them."""


def itself(n: Node) -> tuple[Node, ...]:
    """The one form of a node of which nothing else is known."""
    return (n,)


def match(
    pattern: Pattern,
    n: Node,
    uses: Mapping[Node, int] | None = None,
    forms: Forms = itself,
) -> Iterator[Match]:
    """Every way in which the pattern matches at n, whose operands may be any of their forms."""
    for bindings, nodes in _match(pattern, n, {}, (), forms):
        yield Match(n, bindings, nodes, uses or {})


_State = tuple[dict[str, Any], tuple[Node, ...]]


def _match(
    p: Pattern, n: Node, env: dict[str, Any], seen: tuple[Node, ...], forms: Forms
) -> Iterator[_State]:
    if isinstance(p, Var):
        bound = env.get(p.name)
        if bound is None:
            yield {**env, p.name: n}, seen
        elif bound is n:
            yield env, seen
    elif isinstance(p, Apply):
        if n.op.name != p.op:
            return
        for name, want in p.attrs:
            have = getattr(n.op, name, _MISSING)
            if isinstance(want, Attr):
                if want.name not in env:
                    env = {**env, want.name: have}
                elif env[want.name] != have:
                    return
            elif have != want:
                return
        seen = (*seen, n)
        yield from _match_all(p.args, n.inputs, env, seen, forms)
        if n.op.commutative and len(p.args) == 2 and n.inputs[0] is not n.inputs[1]:
            yield from _match_all(p.args, n.inputs[::-1], env, seen, forms)
    elif isinstance(p, Filled):
        value = filled_value(n)
        if value is not None and same_number(value, p.value):
            yield env, seen
    else:
        raise Invalid(f"{p!r} stands alone in a pattern")


_MISSING = object()


def _match_all(
    ps: tuple[Pattern, ...],
    ns: tuple[Node, ...],
    env: dict[str, Any],
    seen: tuple[Node, ...],
    forms: Forms,
) -> Iterator[_State]:
    if not ps:
        if not ns:
            yield env, seen
        return
    first = ps[0]
    if isinstance(first, Rest):
        bound = env.get(first.name)
        for some in _alike(ns, forms):
            if bound is None or bound == some:
                yield {**env, first.name: some}, seen
        return
    if not ns:
        return
    for form in (ns[0],) if isinstance(first, Var) else forms(ns[0]):
        for inner, nodes in _match(first, form, env, seen, forms):
            yield from _match_all(ps[1:], ns[1:], inner, nodes, forms)


def _alike(ns: tuple[Node, ...], forms: Forms) -> Iterator[tuple[Node, ...]]:
    """Operands of any number, as they are and by forms that are alike: all that have one of the
    same operator, and two or more with the same attributes too."""
    yield ns
    if forms is itself:
        return
    found: dict[Any, dict[int, Node]] = {}
    for k, n in enumerate(ns):
        for form in forms(n):
            for key in (form.op.name, form.op):
                found.setdefault(key, {}).setdefault(k, form)
    known = {ns}
    for key, some in found.items():
        taken = tuple(some.get(k, n) for k, n in enumerate(ns))
        if taken not in known and (len(some) > 1 or isinstance(key, str)):
            known.add(taken)
            yield taken


def same_number(a: Number, b: Number) -> bool:
    """Equal, with -0.0 apart from 0.0 where both are floats, and NaN equal to itself."""
    if a != a or b != b:
        return a != a and b != b
    if isinstance(a, float) and isinstance(b, float) and a == 0 == b:
        return str(a) == str(b)
    return a == b


def filled_value(n: Node) -> Number | None:
    """The one value of every element of n, where that is known."""
    for _ in range(8):
        if isinstance(n.op, Constant):
            a = n.op.literal.array
            if a.size == 0 or n.op.passed:
                return None
            first = a.reshape(-1)[0]
            # By bytes: 0.0 is not -0.0.
            return first.item() if a.size == 1 or a.tobytes() == first.tobytes() * a.size else None
        if n.op.name == "full":
            value, dtype = n.op.value, n.op.dtype  # type: ignore[attr-defined]
            if dtype.is_float:
                return float(np.asarray(value, dtype=dtype.numpy))
            return value
        if not n.op.view or len(n.inputs) != 1:
            return None
        n = n.inputs[0]  # a view of one value is that value
    return None


# ---- guards and rules


@dataclass(frozen=True)
class Guard:
    """A condition on a match, with a text for people. Guards combine with `&`, `|` and `~`."""

    text: str
    holds: Callable[[Match], bool]

    def __call__(self, m: Match) -> bool:
        return self.holds(m)

    def __and__(self, o: Guard) -> Guard:
        return Guard(f"{self.text} and {o.text}", lambda m: self(m) and o(m))

    def __or__(self, o: Guard) -> Guard:
        return Guard(f"({self.text} or {o.text})", lambda m: self(m) or o(m))

    def __invert__(self) -> Guard:
        return Guard(f"not {self.text}", lambda m: not self(m))

    def __repr__(self) -> str:
        return self.text


def guard(text: str) -> Callable[[Callable[[Match], bool]], Guard]:
    """`@guard("x is whole")` over a function of the match."""
    return lambda fn: Guard(text, fn)


# How a rewritten program may differ from the original.
CHANGES = ("nothing", "sign of zero", "rounding")


@dataclass(frozen=True)
class Rule:
    """`left` may be replaced by `right` where `when` holds.

    right     a pattern, or a function of the match that gives the new node (None: not here)
    tested    empty: the rule is proved, both sides have one normal form for all sizes
              (docs/proofs.md). Otherwise why it is not: then it is evaluated at points only
    changes   what may differ: "nothing" means the same bits, NaN and -0.0 included
    subject   builds a left side to try the rule on, from a `rewrites.subject.Maker`; without it one
              is made from the pattern
    at        a quick look at the root, before operands are matched: False where nothing can match
    """

    name: str
    left: Pattern
    right: Pattern | Callable[[Match], Node | None]
    when: Guard | None = None
    tested: str = ""
    changes: str = "nothing"
    subject: Callable[[Any], Node] | None = None
    dtypes: str = "fiub"  # kinds of the dtypes that the subject is tried with
    at: Callable[[Node], bool] | None = None

    def __post_init__(self) -> None:
        if self.changes not in CHANGES:
            raise Invalid(f"rule {self.name}: changes is one of {CHANGES}")
        if not isinstance(self.left, Apply):
            raise Invalid(f"rule {self.name}: its left side is not an operator")

    @property
    def label(self) -> str:
        """Its name, for wherever rules are shown: one that is not proved says so."""
        return f"{self.name} (tested)" if self.tested else self.name

    @property
    def root(self) -> str:
        """The operator at the root of the left side."""
        assert isinstance(self.left, Apply)
        return self.left.op

    def apply(self, n: Node, uses: Mapping[Node, int] | None = None) -> tuple[Node, Match] | None:
        """The first replacement of n and how it matched, or None. The type never changes."""
        return next(self._replacements(match(self.left, n, uses)), None) if self._fits(n) else None

    def everywhere(
        self, n: Node, forms: Forms, new: Callable[[Match], bool] | None = None
    ) -> Iterator[tuple[Node, Match]]:
        """Every replacement of n, whose operands may be any of their forms, by matches that are
        new."""
        if self.at is not None and not self.at(n):
            return iter(())
        return self._replacements(filter(new, match(self.left, n, None, forms)))

    def _replacements(self, matches: Iterable[Match]) -> Iterator[tuple[Node, Match]]:
        for m in matches:
            n = m.root
            if self.when is not None and not self.when(m):
                continue
            out = build(self.right, m) if isinstance(self.right, Pattern) else self.right(m)
            if out is None or out is n:
                continue
            if n.op.elementwise:
                out = fit(out, n)
            if out.type != n.type:
                raise Invalid(f"rule {self.name} turns {n!r} into {out!r}: the types differ")
            yield out, m

    def _fits(self, n: Node) -> bool:
        """A quick look at the operands' operators, which refuses most nodes."""
        assert isinstance(self.left, Apply)
        if self.at is not None and not self.at(n):
            return False
        for k, a in enumerate(self.left.args):
            if isinstance(a, Rest) or k >= len(n.inputs):
                break
            if isinstance(a, Apply) and n.inputs[k].op.name != a.op:
                if not n.op.commutative or all(x.op.name != a.op for x in n.inputs):
                    return False
        return True

    def __repr__(self) -> str:
        right = repr(self.right) if isinstance(self.right, Pattern) else "…"
        when = f" when {self.when!r}" if self.when else ""
        return f"{self.label}: {self.left!r} -> {right}{when}"


def make(name: str, *args: Node, **attrs: Any) -> Node:
    """A node of a registered operator by name, for code below ops/."""
    cls = OPERATORS.get(name)
    if cls is None:
        if name == "item":
            return node(Item(**attrs), *args)
        raise Invalid(f"there is no operator {name}; import tilewright.ops first")
    return node(cls(**attrs), *args)


def build(p: Pattern, m: Match) -> Node:
    """The node that the right side of a rule stands for."""
    if isinstance(p, Var):
        return m.bindings[p.name]
    if isinstance(p, Filled):
        return make("full", shape=(), value=p.value, dtype=m.root.dtype)
    if isinstance(p, Apply):
        args: list[Node] = []
        for a in p.args:
            if isinstance(a, Rest):
                args.extend(m.bindings[a.name])
            else:
                args.append(build(a, m))
        attrs = {k: m.bindings[v.name] if isinstance(v, Attr) else v for k, v in p.attrs}
        return make(p.op, *args, **attrs)
    raise Invalid(f"{p!r} cannot be built")


def fit(x: Node, like: Node) -> Node:
    """x repeated to the shape of `like`: what an elementwise operator did by broadcasting."""
    if isinstance(x.type, TensorType) and isinstance(like.type, TensorType):
        if x.type.shape != like.type.shape:
            return make("expand", x, shape=like.type.shape)
    return x
