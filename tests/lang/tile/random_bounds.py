"""Bounds of the variables of a loop, before anything is run.

Statements of a loop are written once. Each leaves behind what it does to the bounds of variables
(an `Effect`), and these are applied as often as the loop runs. So pointers that carried values move
have arrays of the right size, and what cannot be bounded is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.lang.tile.random_values import (
    Shape,
    Value,
    bound,
    converted,
    finer,
    limits,
    real,
    union,
    whole,
)

Bounds = dict[str, Value]
Effect = Callable[[Bounds], None]

FARTHEST = 3000  # elements that a pointer of a loop may reach


class Unbounded(Exception):
    """A loop whose numbers nobody can know enough of."""


def known(v: Value | None) -> Value:
    if v is None:
        raise Unbounded
    return v


@dataclass(frozen=True)
class Term:
    """An expression as text, and its bounds by those of the variables."""

    text: str
    dtype: str
    shape: Shape
    bounds: Callable[[Bounds], Value]


def variable(v: Value) -> Term:
    return Term(v.name, v.dtype, v.shape, lambda b: b[v.name])


def number(text: str, n: int, dtype: str) -> Term:
    if dtype.startswith(("float", "bfloat")):
        v = Value("", dtype, (), mag=float(abs(n)), grain=1.0)
    else:
        v = Value("", dtype, (), n, n)
    return Term(text, dtype, (), lambda b: v)


def combined(op: str, x: Term, y: Term, text: str = "") -> Term:
    """Two numbers of one dtype: +, -, *, &, min or max."""
    shape = x.shape or y.shape
    return Term(
        text or f"{x.text} {op} {y.text}",
        x.dtype,
        shape,
        lambda b: _combined(op, x.dtype, shape, x.bounds(b), y.bounds(b)),
    )


def _combined(op: str, dtype: str, shape: Shape, x: Value, y: Value) -> Value:
    if op in ("min", "max"):
        return union(x, y).shaped(shape)
    if x.is_float:
        (m, g, e), (n, h, f) = bound(x), bound(y)
        if op == "*":
            grain = None if g is None or h is None else g * h
            return known(real(dtype, shape, m * n, grain, m * f + n * e))
        return known(real(dtype, shape, m + n, finer(g, h), e + f))
    if op == "&":
        if y.low < 0:
            return Value("", dtype, shape, *limits(dtype))
        return Value("", dtype, shape, 0, y.high)
    ends = {
        "+": [x.low + y.low, x.high + y.high],
        "-": [x.low - y.high, x.high - y.low],
        "*": [p * q for p in (x.low, x.high) for q in (y.low, y.high)],
    }[op]
    return known(whole(dtype, shape, min(ends), max(ends), x.index or y.index))


def anything(text: str, dtype: str, shape: Shape) -> Term:
    """An integer that may be any of its dtype."""
    v = Value("", dtype, shape, *limits(dtype))
    return Term(text, dtype, shape, lambda b: v)


def cast(x: Term, dtype: str) -> Term:
    if x.dtype == dtype:
        return x
    return Term(
        f"({x.text}).to(tl.{dtype})" if " " in x.text else f"{x.text}.to(tl.{dtype})",
        dtype,
        x.shape,
        lambda b: known(converted(x.bounds(b), dtype)),
    )


# ---- effects


def assigned(name: str, x: Term) -> Effect:
    def effect(b: Bounds) -> None:
        b[name] = replace(x.bounds(b), name=name, index=False)

    return effect


def at_once(pairs: Sequence[tuple[str, Term]]) -> Effect:
    def effect(b: Bounds) -> None:
        found = {n: replace(x.bounds(b), name=n, index=False) for n, x in pairs}
        b.update(found)

    return effect


def in_order(effects: Sequence[Effect]) -> Effect:
    def effect(b: Bounds) -> None:
        for e in effects:
            e(b)

    return effect


def merge(b: Bounds, other: Bounds) -> None:
    """Variables as one of two ways left them; those of one way only are gone."""
    for name in list(b):
        if name not in other:
            del b[name]
        else:
            b[name] = union(b[name], other[name])


def either(ways: Sequence[Effect]) -> Effect:
    def effect(b: Bounds) -> None:
        ends = []
        for way in ways:
            ends.append(dict(b))
            way(ends[-1])
        b.update(ends[0])
        for end in ends[1:]:
            merge(b, end)
        for name in set(b) - set.intersection(*map(set, ends)):
            del b[name]

    return effect


def repeated(body: Effect, least: int, most: int) -> Effect:
    """A body that runs at least and at most so often."""

    def effect(b: Bounds) -> None:
        now = dict(b)
        found: Bounds | None = dict(b) if least <= 0 else None
        for k in range(1, most + 1):
            body(now)
            if k >= least:
                if found is None:
                    found = dict(now)
                else:
                    merge(found, {**found, **{n: v for n, v in now.items() if n in found}})
        for name in b:
            b[name] = (found or now)[name]

    return effect


@dataclass
class Region:
    """What is reached through a pointer, in elements from where its array begins."""

    low: int | None = None
    high: int = 0

    def reach(self, v: Value, before: int = 0, after: int = 0) -> None:
        low, high = v.low + before, v.high + after
        self.low = low if self.low is None else min(self.low, low)
        self.high = max(self.high, high)
        if self.high > FARTHEST or self.low < -FARTHEST:
            raise Unbounded
