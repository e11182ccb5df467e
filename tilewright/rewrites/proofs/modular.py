"""Exact evaluation modulo a prime: two programs that differ, differ at a random point.

Numbers that are floats in a program are remainders by a prime here. Sums, differences, products and
quotients are those of the field, so that nothing is rounded, and two programs that are different
polynomials of their inputs are equal at a random point with a chance of at most their degree over
the prime. Other functions are random ones: of equal arguments they have equal values, and nothing
else is known of them. Maxima, minima and comparisons are those of a random order of the remainders,
in which infinities are the ends. So programs that agree here are equal whatever these functions
are; ones that differ may still be equal, by a law of a function. Integers and bools are as they
are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isinf, isnan, prod
from typing import Any

import numpy as np

from tilewright.base.errors import Unsupported
from tilewright.base.traverse import operands_first
from tilewright.ir import dim as D
from tilewright.ir.expr import Const, Fn, Index, Load, Reduce, Value, extent
from tilewright.ir.interpret import Evaluator, node_value
from tilewright.ir.node import Constant, Item, Node, topological
from tilewright.ir.operator import composition, definition, is_composed, stages
from tilewright.ir.scalar import SCALARS
from tilewright.ir.types import DType

PRIME = (1 << 31) - 1  # products of two remainders have 62 bits
# Outside of the remainders: what no field has.
LOWEST, HIGHEST = -1, PRIME
_GREATER, _LESS = ("max", "maxnum"), ("min", "minnum")


def residue(value: float) -> int:
    """The remainder of a float, which is a fraction of whole numbers."""
    if isnan(value):
        raise Unsupported("NaN is no number")
    if isinf(value):
        return HIGHEST if value > 0 else LOWEST
    x = Fraction(value)
    return x.numerator * pow(x.denominator, -1, PRIME) % PRIME


def residues(array: np.ndarray) -> np.ndarray:
    flat = [residue(float(x)) for x in np.asarray(array, np.float64).reshape(-1)]
    return np.array(flat, np.int64).reshape(np.shape(array))


def random_residues(shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, PRIME, tuple(shape), dtype=np.int64)


class Residues(Evaluator):
    """Evaluates values modulo the prime; Unsupported where that has no meaning."""

    @classmethod
    def held(cls, dtype: DType) -> np.dtype:
        return np.dtype(np.int64) if dtype.is_float else dtype.numpy

    @classmethod
    def stored(cls, array: np.ndarray, dtype: DType) -> np.ndarray:
        return residues(array) if dtype.is_float else np.array(array)

    def number(self, value: Any, dtype: DType) -> np.ndarray:
        if dtype.is_float:
            return np.asarray(residue(float(value)), np.int64)
        return super().number(value, dtype)

    def fitted(self, x: Any, dtype: DType) -> np.ndarray:
        return np.asarray(x) if dtype.is_float else super().fitted(x, dtype)

    def function(self, v: Fn, args: Sequence[Any], dtype: DType) -> Any:
        floats = [a.dtype.is_float for a in v.args]
        if v.name == "cast":
            return self._cast(v, np.asarray(args[0]))
        if not any(floats) and not v.dtype.is_float:
            return super().function(v, args, dtype)
        if not all(floats):
            raise Unsupported(f"{v.name} of numbers and others is not evaluated modulo a prime")
        return _applied(v.name, [np.asarray(a) for a in args])

    def _cast(self, v: Fn, x: np.ndarray) -> np.ndarray:
        before, after = v.args[0].dtype, v.dtype
        if before.is_float and after.is_float:
            return x
        if before.is_float:
            raise Unsupported(f"a float as {after} is not evaluated modulo a prime")
        if not after.is_float:
            return super().function(v, [x], after)
        return np.mod(x.astype(np.int64), PRIME)

    def folded(self, combine: str, x: np.ndarray, n: int, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return super().folded(combine, x, n, dtype)
        flat = x.reshape(*x.shape[: x.ndim - n], prod(x.shape[x.ndim - n :]))
        if combine == "add":
            return np.mod(_numbers(flat).sum(-1), PRIME)
        if combine in (*_GREATER, *_LESS):
            keys = _order(flat)
            at = keys.argmax(-1) if combine in _GREATER else keys.argmin(-1)
            return np.take_along_axis(flat, at[..., None], -1)[..., 0]
        acc = flat[..., 0]
        for k in range(1, flat.shape[-1]):
            acc = _applied(combine, [acc, flat[..., k]])
        return acc

    def joined(self, combine: str, a: Any, b: Any, dtype: DType) -> Any:
        if not dtype.is_float:
            return super().joined(combine, a, b, dtype)
        return _applied(combine, [np.asarray(a), np.asarray(b)])


def _numbers(x: np.ndarray) -> np.ndarray:
    if x.size and (x.min() < 0 or x.max() >= PRIME):
        raise Unsupported("an infinity is no number modulo a prime")
    return x


def _mixed(x: np.ndarray) -> np.ndarray:
    """Another number of 64 bits for each: a random one to all appearances."""
    with np.errstate(over="ignore"):
        z = x.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _order(x: np.ndarray) -> np.ndarray:
    """Keys that order remainders at random, between the infinities."""
    inner = _mixed(x) >> np.uint64(1)
    ends = np.where(x == LOWEST, np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF))
    return np.where((x == LOWEST) | (x == HIGHEST), ends, inner + np.uint64(1))


def _inverse(x: np.ndarray) -> np.ndarray:
    """One over x, by the power of Fermat; a division by 0 has no value."""
    if (x == 0).any():
        raise Unsupported("a division by 0 has no value modulo a prime")
    out, power, left = np.ones_like(x), x, PRIME - 2
    while left:
        if left & 1:
            out = out * power % PRIME
        power = power * power % PRIME
        left >>= 1
    return out


def _applied(name: str, args: Sequence[np.ndarray]) -> np.ndarray:
    """A function of remainders."""
    if name in ("eq", "ne"):
        return (args[0] == args[1]) == (name == "eq")
    if name in ("lt", "le", "gt", "ge"):
        a, b = map(_order, args)
        return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[name]
    if name in (*_GREATER, *_LESS):
        a, b = map(_order, args)
        return np.where((a >= b) == (name in _GREATER), *args)
    if name in ("add", "sub", "mul", "div", "neg", "fma"):
        x = [_numbers(a) for a in args]
        if name == "neg":
            return np.mod(-x[0], PRIME)
        if name == "div":
            return x[0] * _inverse(x[1]) % PRIME
        if name == "fma":
            return (x[0] * x[1] % PRIME + x[2]) % PRIME
        return np.mod({"add": np.add, "sub": np.subtract, "mul": np.multiply}[name](*x), PRIME)
    return _uninterpreted(name, args)


def _uninterpreted(name: str, args: Sequence[np.ndarray]) -> np.ndarray:
    """A random function, odd or even where this one is."""
    parity, x, sign = SCALARS[name].parity, list(args), np.asarray(False)
    if parity:
        low = _numbers(x[0])
        sign = low > PRIME // 2
        x = [np.where(sign, PRIME - low, low)]
    key = np.uint64(int.from_bytes(name.encode()[:8], "little"))
    for a in x:
        key = _mixed(_mixed(a) ^ key)
    if SCALARS[name].result == "bool":
        return (key & np.uint64(1)).astype(bool)
    found = (np.asarray(key) % np.uint64(PRIME)).astype(np.int64)
    return np.where(sign, np.mod(-found, PRIME), found) if parity == "odd" else found


# ---- graphs


def values_of(
    roots: Sequence[Node], leaves: Mapping[Node, np.ndarray], sizes: Mapping[str, int]
) -> list[np.ndarray]:
    """The roots modulo the prime, over what the leaves are."""
    env: dict[Node, Any] = dict(leaves)
    with np.errstate(all="ignore"):
        for n in topological(roots, stop=leaves):
            env[n] = node_value(n, [env[x] for x in n.inputs], sizes, Residues)
    return [env[r] for r in roots]


Degree = tuple[int, bool]  # of the larger of numerator and denominator; is there a denominator?


def degree(root: Node, leaves: Mapping[Node, Any]) -> int:
    """The degree of a node as a quotient of polynomials of the leaves, at most."""
    known: dict[Node, Degree] = dict.fromkeys(leaves, (1, False))
    for n in topological((root,), stop=leaves):
        known[n] = _degree_of_node(n, known)
    return known[root][0]


def _degree_of_node(n: Node, known: dict[Node, Degree]) -> Degree:
    if isinstance(n.op, Constant):
        return 0, False
    if isinstance(n.op, Item):
        return known[n.inputs[0]]
    if hasattr(n.op, "interpret"):
        raise Unsupported(f"{n.op.name} chooses by data what is computed")
    if is_composed(n.op):
        outs = composition(n)
        inner = {x: known[x] for x in n.inputs}
        for x in topological(outs, stop=n.inputs):
            inner[x] = _degree_of_node(x, inner)
        return max(inner[o] for o in outs)
    ins, outs = definition(n.op, tuple(x.ttype for x in n.inputs))
    memory = {t: known[x] for t, x in zip(ins, n.inputs, strict=True)}
    for t in stages(outs):
        if t.kind != "compute" or t.body is None:
            raise Unsupported(f"the degree of a {t.kind} depends on how often it is repeated")
        memory[t] = _degree_of_value(t.body, memory)
    return max(memory[o] for o in outs)


def _degree_of_value(v: Value, memory: Mapping[Any, Degree]) -> Degree:
    found: dict[Value, Degree] = {}
    below = lambda x: (x.body,) if isinstance(x, Reduce) else x.operands()  # noqa: E731
    for x in operands_first(v, below, found):
        if isinstance(x, (Const, Index)):
            found[x] = 0, False
        elif isinstance(x, Load):
            found[x] = memory[x.source]
        elif isinstance(x, Reduce):
            count = prod(D.bounds(extent(a))[1] for a in x.axes)
            found[x] = _reduced(x.combine, found[x.body], int(min(count, PRIME)))
        else:
            assert isinstance(x, Fn)
            found[x] = _degree_of_function(x, [found[a] for a in x.args])
    return found[v]


def _reduced(combine: Any, d: Degree, count: int) -> Degree:
    if combine == "mul" or (combine == "add" and d[1]):
        return d[0] * count, d[1]
    return d


def _degree_of_function(v: Fn, args: list[Degree]) -> Degree:
    fraction = v.name == "div" or any(f for _, f in args)
    if v.name in ("mul", "div", "fma") or (v.name in ("add", "sub") and fraction):
        return sum(d for d, _ in args), fraction
    if v.name in ("add", "sub", "neg", "cast", "select", *_GREATER, *_LESS):
        return max(d for d, _ in args), fraction
    return 1, False  # a random function's value is like another input
