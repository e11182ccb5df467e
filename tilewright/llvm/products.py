"""Bodies of instructions that add products to a tile, for targets to declare on their vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.kernel.intrinsic import Sizes


class _Body:
    """LLVM text of a function's body under construction."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def put(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %x{self.count} = {text}")
        return f"%x{self.count}"

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

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

    def load(self, type_: str, p: str, align: int) -> str:
        return self.put(f"load {type_}, ptr {p}, align {align}")

    def spread(self, element: str, x: str, lanes: int) -> str:
        """One value in every lane."""
        v = f"<{lanes} x {element}>"
        one = self.put(f"insertelement {v} poison, {element} {x}, i64 0")
        return self.put(f"shufflevector {v} {one}, {v} poison, <{lanes} x i32> zeroinitializer")

    def pick(self, element: str, x: str, lane: int, lanes: int) -> str:
        """One lane of a vector in every lane."""
        v = f"<{lanes} x {element}>"
        which = ", ".join([f"i32 {lane}"] * lanes)
        return self.put(f"shufflevector {v} {x}, {v} poison, <{lanes} x i32> <{which}>")

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True)
class FmaTile:
    """c[i,j] += a[i,k] * b[k,j] in float32, the tile of c in registers while k runs.

    Where a lies evenly `along` its rows or its columns ("i" or "k"), it is loaded in vectors along
    them, and their lanes are multiplied; otherwise each element is spread where it is read.
    """

    lanes: int
    along: str = ""

    def __call__(self, sizes: Sizes, lines: int = 0) -> str:
        """The body; `lines` cache lines from %ahead on are asked for while k runs."""
        rows, columns, depth = sizes["i"], sizes["j"], sizes["k"]
        assert rows is not None and columns is not None
        b, v, step = _Body(), self.vector, 4
        places = [
            [
                b.at("float", "%c", ("%c.0", r), (self.lanes, c))
                for c in range(columns // self.lanes)
            ]
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
                if lines and steps:
                    _ask(b, k, lines, steps)
                self.some(b, k, "0", step, now)

            acc = _counted(b, "wide", blocks, v, acc, wide)
        if rest != "0":
            acc = _counted(b, "last", rest, v, acc, lambda k, now: self.some(b, k, done, 1, now))
        for row, where in zip(acc, places, strict=True):
            for x, p in zip(row, where, strict=True):
                b.line(f"store {v} {x}, ptr {p}, align 4")
        b.line("ret void")
        return b.text()

    @property
    def vector(self) -> str:
        return f"<{self.lanes} x float>"

    def some(self, b: _Body, k: str, base: str, count: int, acc: list[list[str]]) -> None:
        """Products for `count` values of k from base + k * count on."""
        v, n = self.vector, self.lanes
        first = b.put(f"mul i64 {k}, {count}")
        first = b.put(f"add i64 {first}, {base}")
        down = b.put(f"mul i64 {first}, %b.0")
        p = b.put(f"getelementptr float, ptr %b, i64 {down}")
        factors = self.factors(b, first, count, len(acc))
        for u in range(count):
            p = b.at("float", p, ("%b.0", min(u, 1)))
            columns = [b.load(v, b.at("float", p, (n, c)), 4) for c in range(len(acc[0]))]
            for row, spread in zip(acc, factors(u), strict=True):
                x = spread()
                for c, y in enumerate(columns):
                    fma = f"@llvm.fma.v{n}f32({v} {x}, {v} {y}, {v} {row[c]})"
                    row[c] = b.put(f"call {v} {fma}")

    def factors(
        self, b: _Body, first: str, count: int, rows: int
    ) -> Callable[[int], list[Callable[[], str]]]:
        """Per value of k, each row's element of a in every lane, written when it is asked for."""
        n, row, step = self.lanes, "%a.0", "%a.1"
        if self.along == "k":
            step = 1
        elif self.along == "i":
            row, step = 1, "%a.0"
        at = first if step == 1 else b.put(f"mul i64 {first}, {step}")
        start = b.put(f"getelementptr float, ptr %a, i64 {at}")

        def one(r: int, u: int) -> str:
            p = b.at("float", start, (row, r), (step, u))
            return b.spread("float", b.load("float", p, 4), n)

        if self.along == "k" and count == n:
            held = [b.load(self.vector, b.at("float", start, (row, r)), 4) for r in range(rows)]
            return lambda u: [lambda x=x: b.pick("float", x, u, n) for x in held]

        # Vectors of rows beside each other; the last one begins early enough to be whole.
        starts = [min(r, rows - n) for r in range(0, rows, n)]

        def of(u: int) -> list[Callable[[], str]]:
            if self.along != "i" or rows < n:
                return [lambda r=r: one(r, u) for r in range(rows)]
            beside = [
                b.load(self.vector, b.at("float", start, (row, r), (step, u)), 4) for r in starts
            ]
            places = [(beside[r // n], r - starts[r // n]) for r in range(rows)]
            return [lambda x=x, k=k: b.pick("float", x, k, n) for x, k in places]

        return of


def _ask(b: _Body, k: str, lines: int, steps: int) -> None:
    """The share of step k, kept out of the first cache, which is full of what is multiplied."""
    first = b.put(f"mul i64 {k}, {-(-64 * lines // steps)}")
    for n in range(-(-lines // steps)):
        at = b.put(f"add i64 {first}, {64 * n}")
        p = b.put(f"getelementptr i8, ptr %ahead, i64 {at}")
        b.line(f"call void @llvm.prefetch.p0(ptr {p}, i32 0, i32 2, i32 1)")


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
    at = len(b.lines)
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
    b.lines[at:at] = phis
    b.label(f"{name}.after")
    b.lines.extend(joins)
    return out


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
