"""Expressions of a loop that random kernels draw: what it carries, counts, reads and knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.lang.tile import random_bounds as B
from tests.lang.tile.random_bounds import Bounds, Effect, Region, Term
from tests.lang.tile.random_values import Shape, Value, limits
from tests.lang.tile.random_writer import Statement, Writer

LARGE = {"int32": [2**30, 1 << 24, -(2**31) + 5], "int64": [2**62, 2**40], "uint32": [2**31]}


@dataclass
class Terms:
    w: Writer
    carried: list[Value] = field(default_factory=list)
    counters: list[Value] = field(default_factory=list)
    locals: list[Value] = field(default_factory=list)
    bounds: Bounds = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    arrays: list[tuple[str, str, Region, tuple[float, float, float], bool]] = field(
        default_factory=list
    )
    error: float = 0.0
    focus: Value | None = None  # the variable that is to be changed

    # ---- text and its effect

    def say(self, text: str, *effects: Effect) -> None:
        self.w.say(text)
        self.effects += effects

    def let(self, name: str, x: Term) -> None:
        self.say(f"{name} = {x.text}", B.assigned(name, x))

    @contextmanager
    def suite(self, header: str, orelse: Statement | None = None) -> Iterator[Statement]:
        """A block of statements; what it defines is gone after it."""
        w, saved, locals_, counters = self.w, self.effects, list(self.locals), list(self.counters)
        self.effects = []
        made = orelse or Statement(header)
        body: list[Statement] = []
        if orelse is None:
            w.body.append(made)
        with w.inside(body, True, made, "orelse" if orelse is not None else "body"):
            yield made
        self.inner, self.effects = self.effects, saved
        self.locals, self.counters = locals_, counters

    inner: list[Effect] = field(default_factory=list)  # of the suite that ended last

    # ---- what is at hand

    def variables(self, dtype: str | None = None) -> list[Value]:
        known = [*self.carried, *self.carried, *self.locals]
        return [v for v in known if dtype in (None, v.dtype)]

    def integer(self) -> Term:
        """One number that may be a position: a counter, or what is carried."""
        w = self.w
        found = [
            v
            for v in (*self.counters, *self.counters, *self.variables())
            if v.shape == () and v.dtype in ("int32", "int64")
        ]
        if not found:
            return B.number("0", 0, "int32")
        v = B.variable(w.rng.choice(found))
        kind = w.rng.random()
        if kind < 0.15:
            return Term(
                f"({v.text} & 7)",
                v.dtype,
                (),
                lambda b: replace(v.bounds(b), low=0, high=7, index=False),
            )
        if kind < 0.3:
            n = w.rng.choice([2, 3, -1])
            k = B.number(w.number(n), n, v.dtype)
            return replace(x := B.combined("*", v, k), text=f"({x.text})")
        return v

    def term(self, dtype: str, shape: Shape) -> Term:
        """A number, or a tile of a shape or of one number."""
        w, rng = self.w, self.w.rng
        fitting = [v for v in self.variables(dtype) if v.shape in ((), shape)]
        kind = rng.random()
        if kind < 0.45 and fitting:
            return B.variable(rng.choice(fitting))
        if kind < 0.6 and self.counters and dtype in ("int32", "int64"):
            return B.cast(B.variable(rng.choice(self.counters)), dtype)
        if kind < 0.7:
            others = [v for v in self.variables() if v.shape in ((), shape) and v.is_int]
            if others and not dtype.startswith("float"):
                return B.cast(B.variable(rng.choice(others)), dtype)
        if kind < 0.82:
            return self.loaded(dtype, shape if w.chance(0.6) else ())
        if kind < 0.86 and dtype in LARGE:
            n = rng.choice(LARGE[dtype])
            text = f"({n})" if n < 0 else str(n)
            if dtype == "int32" and w.chance(0.5):
                text = w.argument(n)
            return B.number(text, n, dtype)
        if kind < 0.9 and dtype == "int32":
            outside = [v for v in w.values if v.dtype == dtype and v.shape in ((), shape)]
            if outside:
                v = rng.choice(outside)
                return Term(v.name, dtype, v.shape, lambda b: v)
        n = rng.choice([1, 1, 2, 3, 5] if dtype.startswith("u") else [1, 1, 2, 3, 5, -1, -2])
        return self.constant(n, dtype)

    def constant(self, n: int, dtype: str) -> Term:
        """A number that does not change the type of what it is added to: one of the launch is an
        int32."""
        narrow = dtype in ("int8", "int16", "uint8", "uint32")
        return B.number(str(n) if narrow else self.w.number(n), n, dtype)

    def filling(self, dtype: str) -> tuple[float, float, float]:
        if dtype.startswith("float"):
            return -2.0, 2.0, 0.5
        if self.w.chance(0.15):
            return (*limits(dtype), 1.0)
        return (0, 4, 1.0) if dtype.startswith("u") or self.w.chance(0.5) else (-3, 4, 1.0)

    def contents(self, dtype: str, shape: Shape, fill: tuple[float, float, float]) -> Value:
        if dtype.startswith("float"):
            return Value("", dtype, shape, mag=max(abs(fill[0]), abs(fill[1])), grain=fill[2])
        return Value("", dtype, shape, int(fill[0]), int(fill[1]))

    def loaded(self, dtype: str, shape: Shape) -> Term:
        """Read at a position that may be carried."""
        name, region, fill = self.w.fresh("x"), Region(), self.filling(dtype)
        self.arrays.append((name, dtype, region, fill, False))
        at = self.integer()
        contents, reach = self.contents(dtype, shape, fill), (shape[0] - 1 if shape else 0)

        def bounds(b: Bounds) -> Value:
            region.reach(at.bounds(b), after=reach)
            return contents

        row = f" + tl.arange(0, {shape[0]})" if shape else ""
        return Term(f"tl.load({name} + {at.text}{row})", dtype, shape, bounds)

    def condition(self) -> str:
        v = self.w.rng.choice(
            [v for v in (*self.counters, *self.variables()) if v.shape == () and v.is_int]
            or [Value("pid", "int32", ())]
        )
        op = self.w.rng.choice(["<", ">", "==", "!=", ">="])
        return f"{v.name} {op} {self.w.number(self.w.rng.randrange(0, 5))}"
