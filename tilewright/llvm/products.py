"""Bodies of instructions that add products to a tile, for targets to declare on their vectors.

Each is a whole micro-kernel: a tile of sums in registers while k runs. Unrolled loops around an
instruction that multiplies one vector would say the same, but an instruction is called by addresses
and loads its own operands: for each k a tile of R rows and C vectors would load 2*R*C times instead
of R + C, since the short LLVM pipeline has no pass that finds equal loads. Here they are written in
the order of their use, with prefetches between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from tilewright.kernel.intrinsic import Ask, Sizes
from tilewright.llvm.opaque import in_place, opaque
from tilewright.llvm.text import Text, splat


class _Body(Text):
    """The body of an instruction's function."""

    def __init__(self) -> None:
        super().__init__("x")

    def at(self, element: str, base: str, *steps: tuple[str | int, int]) -> str:
        """base + sum of stride * count, in elements."""
        p = base
        for stride, count in steps:
            if count == 0 or stride == 0:
                continue
            by = stride * count if isinstance(stride, int) else stride
            if not isinstance(stride, int) and count != 1:
                by = self.put(f"mul i64 {stride}, {count}")
            p = self.put(f"getelementptr {element}, ptr {p}, i64 {by}")
        return p

    def moving(self, element: str, base: str, by: str) -> str:
        """The pointer of one iteration of a loop, from which others are constant steps away."""
        return self.put(opaque(self.put(f"getelementptr {element}, ptr {base}, i64 {by}")))

    def load(self, type_: str, p: str, align: int) -> str:
        return self.put(f"load {type_}, ptr {p}, align {align}")

    def spread(self, element: str, x: str, lanes: int) -> str:
        """One value in every lane."""
        return splat(self.put, x, element, lanes)

    def pick(self, element: str, x: str, lane: int, lanes: int) -> str:
        """One lane of a vector in every lane."""
        v = f"<{lanes} x {element}>"
        which = ", ".join([f"i32 {lane}"] * lanes)
        return self.put(f"shufflevector {v} {x}, {v} poison, <{lanes} x i32> <{which}>")

    def text(self) -> str:
        return "\n".join(self.out) + "\n"


# (body, vector type, sums, factors, columns) -> the sums with their products added
Add = Callable[[_Body, str, str, str, str], str]


def fused(function: str) -> Add:
    """By one instruction of three operands: the factors first, then the sum."""

    def add(b: _Body, v: str, acc: str, x: str, y: str) -> str:
        return b.put(f"call {v} @{function}({v} {x}, {v} {y}, {v} {acc})")

    return add


@dataclass(frozen=True)
class FmaTile:
    """c[i,j] += a[i,k] * b[k,j] in float32, the tile of c in registers while k runs.

    Where a lies evenly `along` its rows or its columns ("i" or "k"), it is loaded in vectors along
    them, and their lanes are multiplied; otherwise each element is spread where it is read.

    `apart`: products are not fused with additions, and so many are under way before the first of
    them is added to its sum. Code for WebAssembly keeps this order, which LLVM would not: it puts
    each product right before its addition, which then waits for it, and nobody orders instructions
    again. On a Neoverse N1, Chromium's code of a 4x3 tile makes 8.5 products a nanosecond in LLVM's
    order and 9.4 with three under way; with more, x86-64 has too few registers.

    `ordered`: fused products stay in this order too. LLVM's order for WebAssembly adds all products
    of one sum after each other, which keeps every operand of four values of k in a register, and
    V8 has fifteen on x86-64. `each`: an element of a is loaded into every lane where it is
    multiplied, however a lies: x86-64 loads and spreads in one instruction.
    """

    lanes: int
    along: str = ""
    add: Add | None = None  # None: by LLVM's fused multiply-add
    apart: int = 0
    ordered: bool = False
    each: bool = False

    def __call__(self, sizes: Sizes, ahead: tuple[Ask, ...] = ()) -> str:
        """The body, which prefetches while k runs."""
        step = 1 if self.along == "i" else "%a.0"
        return _tile_body(sizes, ahead, Vector("float", self.lanes), ("float", step), self.some)

    @property
    def vector(self) -> str:
        return f"<{self.lanes} x float>"

    def some(self, b: _Body, a: str, k: str, base: str, count: int, acc: list[list[str]]) -> None:
        """Products for `count` values of k from base + k * count on."""
        v, n = self.vector, self.lanes
        first = b.put(f"mul i64 {k}, {count}")
        first = b.put(f"add i64 {first}, {base}")
        down = b.put(f"mul i64 {first}, %b.0")
        p = b.moving("float", "%b", down)
        factors = self.factors(b, a, first, count, len(acc))
        add = self.add or fused(f"llvm.fma.v{n}f32")
        waiting: list[tuple[list[str], int, str]] = []

        def join(most: int) -> None:
            while len(waiting) > most:
                row, c, product = waiting.pop(0)
                product = b.put(in_place(v, product))  # nothing is added before
                row[c] = b.put(in_place(v, b.put(f"fadd {v} {row[c]}, {product}")))

        for u in range(count):
            p = b.at("float", p, ("%b.0", min(u, 1)))
            columns = [b.load(v, b.at("float", p, (n, c)), 4) for c in range(len(acc[0]))]
            for row, spread in zip(acc, factors(u), strict=True):
                x = spread()
                for c, y in enumerate(columns):
                    if self.apart:
                        waiting.append((row, c, b.put(in_place(v, b.put(f"fmul {v} {x}, {y}")))))
                        join(self.apart - 1)
                    else:
                        total = add(b, v, row[c], x, y)
                        row[c] = b.put(in_place(v, total)) if self.ordered else total
        join(0)

    def factors(
        self, b: _Body, a: str, first: str, count: int, rows: int
    ) -> Callable[[int], list[Callable[[], str]]]:
        """Per value of k, each row's element of a in every lane, written on first use."""
        n, row, step = self.lanes, "%a.0", "%a.1"
        if self.along == "k":
            step = 1
        elif self.along == "i":
            row, step = 1, "%a.0"
        at = first if step == 1 else b.put(f"mul i64 {first}, {step}")
        start = b.moving("float", a, at)

        def one(r: int, u: int) -> str:
            p = b.at("float", start, (row, r), (step, u))
            x = b.spread("float", b.load("float", p, 4), n)
            return b.put(in_place(self.vector, x)) if self.each else x

        if self.along == "k" and count == n and not self.each:

            @cache
            def vector(r: int) -> str:
                return b.load(self.vector, b.at("float", start, (row, r)), 4)

            for r in range(0 if self.apart or self.ordered else rows):
                vector(r)  # all before the first product: their order is LLVM's
            return lambda u: [lambda r=r: b.pick("float", vector(r), u, n) for r in range(rows)]

        # Vectors of adjacent rows; the last one begins early enough to be whole.
        starts = [min(r, rows - n) for r in range(0, rows, n)]

        def of(u: int) -> list[Callable[[], str]]:
            if self.along != "i" or rows < n or self.each:
                return [lambda r=r: one(r, u) for r in range(rows)]
            vectors = [
                b.load(self.vector, b.at("float", start, (row, r), (step, u)), 4) for r in starts
            ]
            places = [(vectors[r // n], r - starts[r // n]) for r in range(rows)]
            return [lambda x=x, k=k: b.pick("float", x, k, n) for x, k in places]

        return of


class Vector(NamedTuple):
    """A vector of sums, and how many values of k a step of the loop takes."""

    sums: str
    lanes: int
    step: int = 4


# (body, a's first row, k, its first value, how many of them, sums): adds products to the sums
Some = Callable[[_Body, str, str, str, int, list[list[str]]], None]
# Rows that are added up together where only the running program knows how many there are.
CHUNKS = (4, 1)


def _tile_body(
    sizes: Sizes, ahead: tuple[Ask, ...], vector: Vector, row: tuple[str, str | int], some: Some
) -> str:
    """The tile of c in registers while k runs; `row` is an element of a and the way to the next
    row in them."""
    b, rows, sums = _Body(), sizes["i"], vector.sums
    if rows is not None:
        _rows(b, "", ("%a", "%c"), rows, sizes, ahead, vector, some)
        b.line("ret void")
        return b.text()
    left, done = "%size.i", "0"
    for count in CHUNKS:
        blocks = b.put(f"udiv i64 {left}, {count}")
        whole = b.put(f"mul i64 {blocks}, {count}")
        name = f"rows{count}"
        b.line(f"br label %{name}.before")
        b.label(f"{name}.before")
        any_ = b.put(f"icmp ne i64 {blocks}, 0")
        b.line(f"br i1 {any_}, label %{name}, label %{name}.after")
        b.label(name)
        b.line(f"%{name}.n = phi i64 [ 0, %{name}.before ], [ %{name}.next, %{name}.latch ]")
        at = b.put(f"mul i64 %{name}.n, {count}")
        at = b.put(f"add i64 {at}, {done}")
        places = []
        for p, element, stride in (("%a", *row), ("%c", sums, "%c.0")):
            by = b.put(f"mul i64 {at}, {stride}")
            places.append(b.put(f"getelementptr {element}, ptr {p}, i64 {by}"))
        _rows(b, f"{name}.", (places[0], places[1]), count, sizes, (), vector, some)
        b.line(f"br label %{name}.latch")
        b.label(f"{name}.latch")
        b.line(f"%{name}.next = add nuw nsw i64 %{name}.n, 1")
        more = b.put(f"icmp ult i64 %{name}.next, {blocks}")
        b.line(f"br i1 {more}, label %{name}, label %{name}.after")
        b.label(f"{name}.after")
        left, done = b.put(f"sub i64 {left}, {whole}"), b.put(f"add i64 {done}, {whole}")
    b.line("ret void")
    return b.text()


def _rows(
    b: _Body,
    name: str,
    first: tuple[str, str],
    rows: int,
    sizes: Sizes,
    ahead: tuple[Ask, ...],
    vector: Vector,
    some: Some,
) -> None:
    """A known number of rows, from the given addresses of a and c on."""
    columns, depth = sizes["j"], sizes["k"]
    assert columns is not None
    (a, c), sums, lanes, step = first, vector.sums, vector.lanes, vector.step
    v = f"<{lanes} x {sums}>"
    places = [
        [b.at(sums, c, ("%c.0", r), (lanes, k)) for k in range(columns // lanes)]
        for r in range(rows)
    ]
    acc = [[b.load(v, p, 4) for p in row] for row in places]
    if depth is None:
        blocks = b.put(f"udiv i64 %size.k, {step}")
        rest = b.put(f"urem i64 %size.k, {step}")
        done = b.put(f"mul i64 {blocks}, {step}")
    else:
        blocks, rest, done = map(str, (depth // step, depth % step, depth // step * step))
    if blocks != "0":
        steps = depth // step if depth is not None else 0

        def wide(k: str, now: list[list[str]]) -> None:
            for n, ask in enumerate(ahead if steps else ()):
                _ask(b, k, f"%ahead.{n}", ask, steps)
            some(b, a, k, "0", step, now)

        acc = _counted(b, f"{name}wide", blocks, v, acc, wide)
    if rest != "0":

        def last(k: str, now: list[list[str]]) -> None:
            some(b, a, k, done, 1, now)

        acc = _counted(b, f"{name}last", rest, v, acc, last)
    for row, where in zip(acc, places, strict=True):
        for x, p in zip(row, where, strict=True):
            b.line(f"store {v} {x}, ptr {p}, align 4")


def _ask(b: _Body, k: str, start: str, ask: Ask, steps: int) -> None:
    """The share of step k."""
    first = b.moving("i8", start, b.put(f"mul i64 {k}, {-(-64 * ask.lines // steps)}"))
    for n in range(-(-ask.lines // steps)):
        b.line(prefetch(b.at("i8", first, (64, n)), ask.level))


def prefetch(p: str, level: int) -> str:
    """The call that brings a line into the cache of a level."""
    return f"call void @llvm.prefetch.p0(ptr {p}, i32 0, i32 {4 - level}, i32 1)"


def _counted(
    b: _Body,
    name: str,
    trips: str,
    v: str,
    acc: list[list[str]],
    body: Callable[[str, list[list[str]]], None],
) -> list[list[str]]:
    """A loop that carries the accumulators; `trips` may be zero at run time."""
    b.line(f"br label %{name}.before")
    b.label(f"{name}.before")
    some = b.put(f"icmp ne i64 {trips}, 0")
    b.line(f"br i1 {some}, label %{name}, label %{name}.after")
    b.label(name)
    b.line(f"%{name}.k = phi i64 [ 0, %{name}.before ], [ %{name}.next, %{name} ]")
    carried = [[f"%{name}.c{r}.{c}" for c in range(len(row))] for r, row in enumerate(acc)]
    at = len(b.out)
    now = [list(row) for row in carried]
    body(f"%{name}.k", now)
    b.line(f"%{name}.next = add nuw nsw i64 %{name}.k, 1")
    more = b.put(f"icmp ult i64 %{name}.next, {trips}")
    b.line(f"br i1 {more}, label %{name}, label %{name}.after")
    phis, joins, out = [], [], []
    for old, ssa, new in zip(acc, carried, now, strict=True):
        line = []
        for x, y, z in zip(old, ssa, new, strict=True):
            phis.append(f"  {y} = phi {v} [ {x}, %{name}.before ], [ {z}, %{name} ]")
            joins.append(f"  {y}.out = phi {v} [ {x}, %{name}.before ], [ {z}, %{name} ]")
            line.append(f"{y}.out")
        out.append(line)
    b.out[at:at] = phis
    b.label(f"{name}.after")
    b.out.extend(joins)
    return out


# (body, sums, 32 bits of a in every lane, a vector of b) -> sums
Multiply = Callable[[_Body, str, str, str], str]


def dot_call(function: str, sums: str, lanes: int, operand: str, swapped: bool = False) -> Multiply:
    """An instruction that multiplies and adds; `swapped`: it takes b before a."""
    c = f"<{lanes} x {sums}>"

    def multiply(b: _Body, acc: str, x: str, q: str) -> str:
        x = b.put(f"bitcast <{lanes} x i32> {x} to {operand}")
        first, second = (q, x) if swapped else (x, q)
        return b.put(f"call {c} {function}({c} {acc}, {operand} {first}, {operand} {second})")

    return multiply


def pair_call(function: str, lanes: int, extension: str) -> Multiply:
    """An instruction that adds up two products of 16 bits, where b has 8 (`sext` or `zext`)."""
    c, pairs, bytes_ = f"<{lanes} x i32>", f"<{2 * lanes} x i16>", f"<{2 * lanes} x i8>"

    def multiply(b: _Body, acc: str, x: str, q: str) -> str:
        x = b.put(f"bitcast {c} {x} to {pairs}")
        wide = b.put(f"{extension} {bytes_} {q} to {pairs}")
        both = b.put(f"call {c} {function}({pairs} {x}, {pairs} {wide})")
        return b.put(f"add {c} {acc}, {both}")

    return multiply


@dataclass(frozen=True)
class DotTile:
    """c[i,j] += a[i,g*k+p] * b[k,j,p], the tile of c in registers while k runs; g of a are 32 bits.

    With `picks`, four groups of a row are loaded at once and multiplied lane by lane; otherwise
    each group is spread where it is read.
    """

    lanes: int
    sums: str  # LLVM's name of an element of c
    sizes: tuple[int, int]  # bytes of an element of a and of b
    operand: str  # a vector of b, as it is loaded
    multiply: Multiply
    picks: bool = False
    step: int = 4  # groups of a step of the loop

    def __call__(self, sizes: Sizes, ahead: tuple[Ask, ...] = ()) -> str:
        """The body, which prefetches while k runs."""
        of_a, v = f"i{8 * self.sizes[0]}", Vector(self.sums, self.lanes, self.step)
        return _tile_body(sizes, ahead, v, (of_a, "%a.0"), self.some)

    def some(self, b: _Body, a: str, k: str, base: str, count: int, acc: list[list[str]]) -> None:
        """Products for `count` groups from base + k * count on."""
        of_a, of_b = (f"i{8 * size}" for size in self.sizes)
        group = 4 // self.sizes[0]
        first = b.put(f"mul i64 {k}, {count}")
        first = b.put(f"add i64 {first}, {base}")
        down = b.put(f"mul i64 {first}, %b.0")
        p = b.moving(of_b, "%b", down)
        along = b.put(f"mul i64 {first}, {group}")
        start = b.moving(of_a, a, along)
        rows = [b.at(of_a, start, ("%a.0", r)) for r in range(len(acc))]
        four = f"<{count} x i32>"
        vectors = [b.load(four, q, self.sizes[0]) for q in rows] if self._picks(count) else []
        for u in range(count):
            p = b.at(of_b, p, ("%b.0", min(u, 1)))
            each = self.lanes * group
            columns = [
                b.load(self.operand, b.at(of_b, p, (each, c)), self.sizes[1])
                for c in range(len(acc[0]))
            ]
            for r, row in enumerate(acc):
                if vectors:
                    x = b.pick("i32", vectors[r], u, count)
                else:
                    at = b.at(of_a, rows[r], (group, u))
                    x = b.spread("i32", b.load("i32", at, self.sizes[0]), self.lanes)
                for c, q in enumerate(columns):
                    row[c] = self.multiply(b, row[c], x, q)

    def _picks(self, count: int) -> bool:
        return self.picks and count == self.lanes


def dot(function: str, lanes: int, accumulator: str, operand: str) -> Callable[[Sizes], str]:
    """c[j] += sum over p of a[p] * b[j,p]: the 32 bits of a are spread over a vector, b is read in
    whole vectors; both reach `function` as vectors of type `operand`."""
    c = f"<{lanes} x {accumulator}>"

    def body(sizes: Sizes) -> str:
        columns = sizes["j"]
        assert columns is not None
        b = _Body()
        bits = b.load("i32", "%a", 1)
        x = b.spread("i32", bits, lanes)
        x = b.put(f"bitcast <{lanes} x i32> {x} to {operand}")
        for k in range(columns // lanes):
            q = b.load(operand, b.at("i32", "%b", (lanes, k)), 1)
            p = b.at(accumulator, "%c", (lanes, k))
            old = b.load(c, p, 4)
            new = b.put(f"call {c} {function}({c} {old}, {operand} {x}, {operand} {q})")
            b.line(f"store {c} {new}, ptr {p}, align 4")
        b.line("ret void")
        return b.text()

    return body
