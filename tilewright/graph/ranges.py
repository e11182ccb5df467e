"""Which integers a node can hold, read off its operator's definition.

An interval per node, with ends that may be symbolic. It follows from the definition (clamping,
remainders, positions, choices between such); only operators that search say which of their results
are positions (`Op.positions`). Whatever is not understood can be anything its dtype can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.node import Constant, Item, Node
from tilewright.ir.operator import definition, expand, is_composed
from tilewright.ir.types import DType, TensorType, TupleType

# Beyond this, sums of two ends might leave 64 bits.
_FAR = 1 << 61


@dataclass(frozen=True)
class Range:
    """Both ends belong to it; None is no end."""

    low: Dim | None = None
    high: Dim | None = None

    def within(self, low: Dim, high: Dim) -> bool:
        """Is every one of its integers proved to be in [low, high)?"""
        return (
            self.low is not None
            and self.high is not None
            and D.known_le(low, self.low)
            and D.known_lt(self.high, high)
        )

    @property
    def numbers(self) -> tuple[int, int] | None:
        """The ends as plain numbers."""
        if self.low is None or self.high is None:
            return None
        low, high = D.bounds(self.low)[0], D.bounds(self.high)[1]
        return (low, high) if -_FAR < low and high < _FAR else None


ANY = Range()


class Ranges:
    """Ranges of nodes, each found once."""

    def __init__(self) -> None:
        self._known: dict[Node, Range] = {}

    def of(self, n: Node) -> Range:
        stack = [(n, _rule(n))] if n not in self._known else []
        while stack:
            x, (needed, found) = stack[-1]
            missing = [y for y in needed if y not in self._known]
            if missing:
                stack += [(y, _rule(y)) for y in missing]
            else:
                self._known[x] = _of_dtype(found(self._known), x.ttype.dtype)
                stack.pop()
        return self._known[n]


Known = Mapping[Node, Range]


def _rule(n: Node) -> tuple[tuple[Node, ...], Callable[[Known], Range]]:
    """The nodes whose ranges are needed, and the range of n from them."""
    if not isinstance(n.type, TensorType):
        return (), lambda _: ANY
    if n.op.name == "where":
        return _chosen(n)
    if n.dtype.is_float:
        return (), lambda _: ANY
    if n.dtype.is_bool:
        return (), lambda _: Range(0, 1)
    if isinstance(n.op, Constant):
        a = n.op.literal.array
        ends = Range(int(a.min()), int(a.max())) if a.size else Range(0, 0)
        return (), lambda _: ends
    source, k = (n.inputs[0], n.op.k) if isinstance(n.op, Item) else (n, 0)
    if k in source.op.positions:
        size = source.inputs[0].shape[source.op.axis]  # type: ignore[attr-defined]
        return (), lambda _: Range(0, size - 1)
    if is_composed(source.op):
        same = expand(n)
        return (same,), lambda known: known[same]
    if not hasattr(source.op, "compute") or any(
        isinstance(x.type, TupleType) for x in source.inputs
    ):
        return (), lambda _: ANY
    ins, outs = definition(source.op, tuple(x.ttype for x in source.inputs))
    body = outs[k].body
    assert body is not None
    given = dict(zip(ins, source.inputs, strict=True))
    read = {x.source for x in E.loads(body)}
    summed = (a for v in E.walk(body) if isinstance(v, E.Reduce) for a in v.axes)
    axes = frozenset((*outs[k].axes, *summed))
    return tuple(x for t, x in given.items() if t in read), lambda known: _Body(
        given, known, axes
    ).range(body)


def _chosen(n: Node) -> tuple[tuple[Node, ...], Callable[[Known], Range]]:
    """A choice: where it tests what it chooses, that is as it was tested."""
    condition, a, b = n.inputs
    tested = _tested(condition, a)

    def found(known: Known) -> Range:
        return _either(ANY, _meet(known[a], tested), known[b])

    return (a, b), found


def _tested(condition: Node, x: Node) -> Range:
    """What is known of x, or of the float that it is the whole part of, where this holds."""
    same = {x, x.inputs[0]} if x.op.name == "cast" else {x}
    out, waiting = ANY, [condition]
    while waiting:
        c = waiting.pop()
        if c.op.name in ("logical_and", "bitwise_and") and c.dtype.is_bool:
            waiting += c.inputs
        elif c.op.name in _COMPARISONS:
            left, right = c.inputs
            if left in same and (k := _number(right)) is not None:
                out = _meet(out, _COMPARISONS[c.op.name](k))
            elif right in same and (k := _number(left)) is not None:
                out = _meet(out, _COMPARISONS[_TURNED[c.op.name]](k))
    return out


def _number(n: Node) -> int | None:
    """A whole number that all elements are."""
    while n.op.name in ("expand", "reshape"):
        n = n.inputs[0]
    value = getattr(n.op, "value", None) if n.op.name == "full" else None
    if isinstance(n.op, Constant) and n.op.literal.array.size == 1:
        value = n.op.literal.array.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        return None
    return int(value) if abs(value) < _FAR else None


# Ends of x, or of its whole part where it is a float, given how it compares with a number: of one
# below 1 the whole part may be 0, of one above -1 too.
_COMPARISONS: dict[str, Callable[[int], Range]] = {
    "ge": lambda k: Range(k, None),
    "gt": lambda k: Range(k if k >= 0 else k + 1, None),
    "le": lambda k: Range(None, k),
    "lt": lambda k: Range(None, k - 1 if k > 0 else k),
}
_TURNED = {"ge": "le", "gt": "lt", "le": "ge", "lt": "gt"}


def _meet(a: Range, b: Range) -> Range:
    """What is in both."""
    low = [x for x in (a.low, b.low) if x is not None]
    high = [x for x in (a.high, b.high) if x is not None]
    return Range(D.maximum(*low) if len(low) == 2 else (low or [None])[0], _least(high))


def _of_dtype(r: Range, dtype: DType) -> Range:
    """A range that may leave the dtype wraps around: everything is possible then."""
    if not dtype.is_int or (dtype.kind == "i" and dtype.bits == 64):
        return r
    low, high = int(dtype.lowest), int(dtype.highest)
    return r if r.within(low, high + 1) else Range(low, high)


@dataclass(frozen=True)
class _Body:
    """The body of a definition: what its operands hold, and its variables."""

    given: Mapping[E.Tensor, Node]
    known: Known
    axes: frozenset[Sym]

    def range(self, body: E.Value) -> Range:
        done: dict[int, Range] = {}
        stack: list[E.Value] = [body]
        while stack:
            v = stack[-1]
            missing = [a for a in v.args if id(a) not in done]
            if missing and not v.dtype.is_bool:
                stack += missing
                continue
            stack.pop()
            args = [done.get(id(a), ANY) for a in v.args]
            done[id(v)] = _of_dtype(self._one(v, args), v.dtype)
        return done[id(body)]

    def _one(self, v: E.Value, args: list[Range]) -> Range:
        if v.dtype.is_bool:
            return Range(0, 1)
        if isinstance(v, E.Const):
            return Range(int(v.value), int(v.value)) if v.dtype.is_int else ANY
        if isinstance(v, E.Index):
            return self._index(v.dim)
        if isinstance(v, E.Load):
            node = self.given.get(v.source) if isinstance(v.source, E.Tensor) else None
            return ANY if node is None else self.known[node]
        if isinstance(v, E.Reduce):
            # Of nothing an extreme is the end of the dtype.
            some = all(D.known_lt(0, E.extent(a)) for a in v.axes)
            return args[0] if some and v.combine in ("max", "min") else ANY
        if isinstance(v, E.Fn) and v.dtype.is_int:
            if v.name == "cast":
                return args[0]  # of a float the whole part, which is what its range is of
            rule = _FUNCTIONS.get(v.name)
            return ANY if rule is None else rule(*args)
        return ANY

    def _index(self, x: Dim) -> Range:
        """Variables are at the ends of their ranges, sizes stay as they are."""
        if D.data_values(x):
            return ANY
        low = high = x
        for s in D.symbols(x) & self.axes:
            c = D.coefficient(x, s)
            if c is None or not (D.known_le(0, c) or D.known_le(c, 0)):
                a, b = D.bounds(x)
                return Range(a if a > -_FAR else None, b if b < _FAR else None)
            assert s.hi is not None
            up = D.known_le(0, c)
            low = D.substitute(low, {s: s.lo if up else s.hi})
            high = D.substitute(high, {s: s.hi if up else s.lo})
        return Range(low, high)


# ---- scalar functions


def _both(a: Dim | None, b: Dim | None, f: Callable[[Dim, Dim], Dim]) -> Dim | None:
    if a is None or b is None:
        return None
    out = f(a, b)
    return out if not isinstance(out, int) or abs(out) < _FAR else None


def _add(a: Range, b: Range) -> Range:
    plus = lambda x, y: x + y  # noqa: E731
    return Range(_both(a.low, b.low, plus), _both(a.high, b.high, plus))


def _sub(a: Range, b: Range) -> Range:
    minus = lambda x, y: x - y  # noqa: E731
    return Range(_both(a.low, b.high, minus), _both(a.high, b.low, minus))


def _mul(a: Range, b: Range) -> Range:
    x, y = a.numbers, b.numbers
    if x is None or y is None:
        return ANY
    ends = [p * q for p in x for q in y]
    return Range(min(ends), max(ends)) if max(map(abs, ends)) < _FAR else ANY


def _min(a: Range, b: Range) -> Range:
    high = [x for x in (a.high, b.high) if x is not None]
    return Range(_both(a.low, b.low, D.minimum), _least(high))


def _max(a: Range, b: Range) -> Range:
    low = [x for x in (a.low, b.low) if x is not None]
    return Range(
        D.maximum(*low) if len(low) == 2 else (low or [None])[0], _both(a.high, b.high, D.maximum)
    )


def _least(ends: list[Dim]) -> Dim | None:
    return D.minimum(*ends) if len(ends) == 2 else (ends or [None])[0]


def _either(_: Range, a: Range, b: Range) -> Range:
    return Range(_both(a.low, b.low, D.minimum), _both(a.high, b.high, D.maximum))


def _mod(a: Range, b: Range) -> Range:
    """Of the divisor's sign."""
    if b.low is None or b.high is None or not D.known_lt(0, b.low):
        return ANY
    return Range(0, b.high - 1)


def _rem(a: Range, b: Range) -> Range:
    """Of the dividend's sign."""
    if b.low is None or b.high is None or not D.known_lt(0, b.low):
        return ANY
    positive = a.low is not None and D.known_le(0, a.low)
    return Range(0 if positive else 1 - b.high, b.high - 1)


def _floordiv(a: Range, b: Range) -> Range:
    x, y = a.numbers, b.numbers
    if x is None or y is None or y[0] <= 0:
        return ANY
    ends = [p // q for p in x for q in y]
    return Range(min(ends), max(ends))


def _and(a: Range, b: Range) -> Range:
    """Bits that one of them does not have are not in the result."""
    masks = [r.high for r in (a, b) if r.low is not None and D.known_le(0, r.low)]
    ends = [m for m in masks if m is not None]
    return Range(0, _least(ends)) if ends else ANY


def _abs(a: Range) -> Range:
    x = a.numbers
    return ANY if x is None else Range(0, max(abs(x[0]), abs(x[1])))


_FUNCTIONS: dict[str, Callable[..., Range]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "neg": lambda a: _sub(Range(0, 0), a),
    "abs": _abs,
    "min": _min,
    "max": _max,
    "select": _either,
    "mod": _mod,
    "rem": _rem,
    "floordiv": _floordiv,
    "and": _and,
}
