"""Writing random kernels: statements, arguments, places in memory.

A kernel is a tree of statements. Every variable is known by its type and by bounds (see
random_values.py), so that nothing a kernel does is left open by the language: indices are inside
their arrays, programs write different places or only what commutes, divisors are not zero, and
branches depend on numbers that every implementation has to agree on.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.lang.tile.random_values import (
    BOOL,
    FLOATS,
    FP8,
    INTS,
    Shape,
    Value,
    limits,
)


@dataclass
class Statement:
    """Lines of a kernel, or a header with a body (and perhaps one for `else`)."""

    text: str
    body: list[Statement] | None = None
    orelse: list[Statement] | None = None

    def lines(self, depth: int) -> Iterator[str]:
        pad = "    " * depth
        yield pad + self.text
        for header, body in (("", self.body), ("else:", self.orelse)):
            if body is None:
                continue
            if header:
                yield pad + header
            for s in body:
                yield from s.lines(depth + 1)
            if not body:
                yield pad + "    pass"


@dataclass(frozen=True)
class ArraySpec:
    """An array of a launch: elements low to high around the address that is given."""

    dtype: str
    low: int
    high: int
    # What is in it: integers of a range, multiples of a grain, or any numbers up to a magnitude.
    fill: tuple[float, float, float | None]
    output: bool = False
    aligned: bool = True


@dataclass
class Kernel:
    """A kernel's text in parts, and what it is launched with."""

    seed: int
    grid: Shape
    helpers: list[str]
    body: list[Statement]
    parameters: dict[str, str]  # annotations by name
    arrays: dict[str, ArraySpec]
    numbers: dict[str, Any]  # scalars and constants
    errors: dict[str, float]  # of outputs: how far results may be apart

    def source(self) -> str:
        shown = ", ".join(f"{n}: {a}" if a else n for n, a in self.parameters.items())
        lines = [f"{h}\n" for h in self.helpers]
        lines += ["@tw.jit", f"def kernel({shown}):"]
        for s in self.body:
            lines += s.lines(1)
        if not self.body:
            lines.append("    pass")
        return "\n".join(lines) + "\n"


# Functions that kernels call; @ stands for a number of the kernel's own.
HELPERS = {
    "twice_plus": "@tw.jit\ndef twice_plus(x, y):\n    return x + y + x",
    "either": (
        "@tw.jit\ndef either(x, y, FIRST: tl.constexpr = True):\n    if FIRST:\n"
        "        return x\n    return y"
    ),
    "swapped": "@tw.jit\ndef swapped(x, y):\n    return y, x",
    "larger": "@tw.jit\ndef larger(a, b):\n    return tl.where(a > b, a, b)",
    "xored": "@tw.jit\ndef xored(a, b):\n    return a ^ b",
    "added": "@tw.jit\ndef added(a, b):\n    return a + b",
    "branching": (
        "@tw.jit\ndef branching(a, b):\n    if a > b:\n        r = a\n    else:\n        r = b\n"
        "    return r"
    ),
    "best": (
        "@tw.jit\ndef best(a, i, b, j):\n    first = (a > b) | ((a == b) & (i < j))\n"
        "    return tl.where(first, a, b), tl.where(first, i, j)"
    ),
    "mixed": (
        "@tw.jit\ndef mixed(a, b):\n    if a > b:\n        r = a + a\n    else:\n"
        "        r = b - a\n    return r"
    ),
    "linear": "@tw.jit\ndef linear(a, b, c, d):\n    return a * c, b * c + d",
}


@dataclass
class Writer:
    """Writes one kernel."""

    rng: random.Random
    grid: Shape = (1,)
    helpers: dict[str, str] = field(default_factory=dict)
    body: list[Statement] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, ArraySpec] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    # Memory of each program's own: address as text, elements, and what is in it.
    shared: list[tuple[str, int, Value]] = field(default_factory=list)
    count: int = 0
    depth: int = 0
    at_once: int = 2048  # elements of the largest tile

    # ---- words

    def fresh(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def say(self, text: str) -> None:
        self.body.append(Statement(text))

    def helper(self, name: str) -> str:
        self.helpers[name] = HELPERS[name]
        return name

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def define(self, text: str, v: Value | None) -> Value | None:
        """A new variable. None where the value was refused."""
        if v is None or v.size > self.at_once:
            return None
        v = v.named(self.fresh())
        self.say(f"{v.name} = {text}")
        self.values.append(v)
        return v

    def number(self, n: int, constant: bool = False) -> str:
        """An integer: as a literal, as a constant of the launch, or as an argument."""
        kind = self.rng.random()
        if kind < 0.5:
            return str(n) if n >= 0 else f"({n})"
        known = [k for k, v in self.numbers.items() if v == n and type(v) is int]
        if constant or kind < 0.65:
            known = [k for k in known if self.parameters[k]]
            name = known[0] if known else self.fresh("C")
            self.parameters.setdefault(name, "tl.constexpr")
        else:
            known = [k for k in known if not self.parameters[k]]
            name = known[0] if known else self.fresh("n")
            self.parameters.setdefault(name, "")
        self.numbers[name] = n
        return name

    def argument(self, n: int) -> str:
        """An integer that a launch gives."""
        name = self.fresh("n")
        self.parameters[name], self.numbers[name] = "", n
        return name

    def scalar_float(self) -> tuple[str, float]:
        x = self.rng.choice([-2.0, -0.5, 0.25, 1.0, 1.5, 3.0])
        if self.chance(0.5):
            return str(x) if x >= 0 else f"({x})", x
        name = self.fresh("f")
        self.parameters[name], self.numbers[name] = "", x
        return name, x

    def choose(self, good: Callable[[Value], bool], special: bool = False) -> Value | None:
        """A value that is good; one with infinities and NaNs only where these are welcome."""
        found = [v for v in self.values if good(v) and v.special <= special]
        # Later values more often: chains of operations are what goes wrong.
        return self.rng.choice([*found, *found[-3:], *found[-3:]]) if found else None

    @contextmanager
    def suite(self, header: str, loop: bool) -> Iterator[Statement]:
        made = Statement(header, [])
        self.body.append(made)
        with self.inside(made.body or [], loop, made, "body"):
            yield made

    @contextmanager
    def inside(
        self, into: list[Statement], loop: bool, owner: Statement, part: str
    ) -> Iterator[None]:
        setattr(owner, part, into)
        outer, known = self.body, list(self.values)
        self.body = into
        self.depth += 1
        yield
        self.depth -= 1
        self.body, self.values = outer, known

    # ---- shapes and places

    def shape(self, rank: int | None = None, most: int | None = None) -> Shape:
        rank = self.rng.choice([0, 1, 1, 1, 2, 2, 2, 3]) if rank is None else rank
        most = most or self.at_once
        while True:
            sizes = tuple(2 ** self.rng.randrange(0, 7) for _ in range(rank))
            n = 1
            for k in sizes:
                n *= k
            if n <= most:
                return sizes

    def axis(self, n: int, k: int, rank: int) -> str:
        """Positions along one axis of a tile."""
        inner = f"tl.arange(0, {n})"
        if rank == 1:
            return inner
        return f"{inner}[{', '.join(':' if j == k else 'None' for j in range(rank))}]"

    def strided(self, shape: Shape, unique: bool) -> tuple[str, int, int]:
        """Offsets of a tile's elements, with their least and greatest. With `unique` no two are
        the same."""
        rank, rng = len(shape), self.rng
        order = list(range(rank))
        if self.chance(0.3):
            rng.shuffle(order)
        steps, run = [0] * rank, 1
        for k in reversed(order):
            if self.chance(0.2):
                run += rng.choice([1, 3, 16])
            steps[k] = run
            if not unique and self.chance(0.08):
                steps[k] = 0
            elif not unique and self.chance(0.08):
                steps[k] = -run
            run *= shape[k]
        terms, low, high = [], 0, 0
        for k, (n, step) in enumerate(zip(shape, steps, strict=True)):
            where = self.axis(n, k, rank)
            if self.chance(0.1):
                where = f"{where}.to(tl.int64)"
            if step == 1 and self.chance(0.8):
                terms.append(where)
            else:
                terms.append(f"{where} * {self.number(step)}")
            low, high = low + min(0, step * (n - 1)), high + max(0, step * (n - 1))
        return " + ".join(terms) or "0", low, high

    def programs_count(self) -> int:
        return math.prod(self.grid)

    def programs(self, step: int) -> tuple[str, int, int]:
        """An offset of its own for every program, so many elements apart."""
        n = self.programs_count()
        if n == 1 and self.chance(0.5):
            return "0", 0, 0
        return f"pid * {self.number(step)}", 0, (n - 1) * step

    # ---- arrays

    def data(self, dtype: str) -> tuple[float, float, float | None]:
        """What an array holds: (low, high, grain); a grain of None is any number between."""
        rng = self.rng
        if dtype == BOOL:
            return 0, 1, 1.0
        if dtype in INTS:
            low, high = limits(dtype)
            if self.chance(0.4):
                return low, high, 1.0
            return max(low, -7), rng.choice([3, 8, 100]), 1.0
        if dtype not in FP8 and self.chance(0.12):
            return -math.inf, math.inf, 1.0  # numbers of -4 to 4, and special ones
        if self.chance(0.6):
            grain = rng.choice([1.0, 1.0, 0.5, 0.25])
            return -4 * grain, 4 * grain, grain
        return -2.0, 2.0, None

    def filled(self, dtype: str, shape: Shape, fill: tuple[float, float, float | None]) -> Value:
        low, high, grain = fill
        if dtype in FLOATS and math.isinf(high):
            return Value("", dtype, shape, mag=4.0, grain=1.0, special=True)
        if dtype in FLOATS:
            return Value("", dtype, shape, mag=max(abs(low), abs(high)), grain=grain)
        return Value("", dtype, shape, int(low), int(high))

    def array(
        self,
        dtype: str,
        low: int,
        high: int,
        fill: tuple[float, float, float | None],
        output: bool = False,
    ) -> str:
        name = self.fresh("o" if output else "x")
        self.parameters[name] = ""
        aligned = self.chance(0.7)
        self.arrays[name] = ArraySpec(dtype, low, high, fill, output, aligned)
        return name

    def element(self, floats: float = 0.55) -> str:
        rng = self.rng
        if self.chance(floats):
            return rng.choice(["float32"] * 4 + ["float16", "bfloat16", "float64", *FP8])
        return rng.choice(["int32"] * 4 + [*INTS, BOOL])

    def condition(self, shape: Shape) -> tuple[str, str] | None:
        """A mask for a tile as text, in short terms, with how it came about."""
        rank, rng = len(shape), self.rng
        if not rank:
            return None
        v = self.choose(lambda v: v.is_bool and v.shape == shape)
        if v is not None and self.chance(0.4):
            return v.name, "data"
        terms = []
        for k, n in enumerate(shape):
            if self.chance(0.6):
                most = self.number(rng.randrange(0, n + 2))
                compared = rng.choice(["<", "<", "<", ">=", "!="])
                terms.append(f"({self.axis(n, k, rank)} {compared} {most})")
        if not terms:
            return None
        return f" {rng.choice('&&&|')} ".join(terms), "bounds"

    def stores(self) -> None:
        """What nobody used is written, and some of the rest."""
        words = self._words(self.body)
        for v in [x for x in self.values if x.name not in self.stored]:
            if words.get(v.name, 0) < 2 or self.chance(0.15):
                self.store(v)

    def _words(self, body: list[Statement]) -> dict[str, int]:
        found: dict[str, int] = {}
        for s in body:
            for line in s.lines(0):
                for word in re.findall(r"[a-z]\w*", line):
                    found[word] = found.get(word, 0) + 1
        return found

    def store(self, v: Value) -> None:
        self.stored.add(v.name)
        dtype = v.dtype
        offsets, low, high = self.strided(v.shape, unique=True)
        place, first, last = self.programs(high - low + 1)
        out = self.array(dtype, low + first, high + last, self.data(dtype), output=True)
        self.errors[out] = v.err
        mask = self.condition(v.shape) if self.chance(0.3) else None
        where = f"{out} + {place} + {offsets}" if v.shape else f"{out} + {place}"
        masked = f", mask={self.spread(mask[0], v.shape)}" if mask else ""
        self.say(f"tl.store({where}, {v.name}{masked})")

    def spread(self, mask: str, shape: Shape) -> str:
        """Masks that do not name all axes are broadcast by the language."""
        return mask
