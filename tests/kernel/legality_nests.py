"""Small random nests over integers, made to depend on themselves in every way there is."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Value, all_of, const, extent, fn, index, load, select
from tilewright.ir.types import i32, i64
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Alloc, Loop, Nest, Stmt, Store

SIZE = 12  # of every axis


def random_nest(rng: random.Random) -> Nest:
    return _Maker(rng).make()


@dataclass
class _Maker:
    rng: random.Random
    stages: int = 1
    loops: int = 0
    ranks: dict[str, int] = field(default_factory=dict)

    def make(self) -> Nest:
        r = self.rng
        self.ranks = {"x": 2, "a": r.choice([1, 2, 2]), "b": r.choice([1, 1, 2]), "t": 1}
        buffers = [
            Buffer(name, i32, (SIZE,) * rank, {"x": "in", "t": "local"}.get(name, "out"))
            for name, rank in self.ranks.items()
        ]
        buffers.append(Buffer("k", i64, (SIZE,), "in"))
        self.extents = [r.choice([2, 3, 4, 5]) for _ in range(2)]
        fill = D.var("t.i", SIZE)
        start = Store("t", "t", (fill,), load("x", (fill, 0), i32))
        body: list[Stmt] = [Alloc("t"), Loop(D.the_sym(fill), "serial", (start,))]
        for _ in range(r.choice([1, 1, 2, 2, 3])):
            body.append(self.nest(r.choice([1, 2, 2, 3]), ()))
        # What is in t in the end is seen.
        see = D.var("u.i", SIZE)
        seen = Store("u", "u", (see,), load("t", (see,), i32))
        body.append(Loop(D.the_sym(see), "serial", (seen,)))
        buffers.append(Buffer("u", i32, (SIZE,), "out"))
        order = {"in": 0, "out": 1}
        buffers.sort(key=lambda b: order.get(b.scope, 2))
        return Nest("random", tuple(buffers), tuple(body))

    def nest(self, depth: int, around: tuple[Sym, ...]) -> Loop:
        r = self.rng
        self.loops += 1
        v = D.the_sym(D.var(f"l{self.loops}", r.choice(self.extents)))
        inside = (*around, v)
        body: list[Stmt] = []
        if depth > 1:
            body.append(self.nest(depth - 1, inside))
            if r.random() < 0.15:
                body.insert(r.randint(0, 1), self.store(inside))
            elif depth == 2 and r.random() < 0.15:
                body.append(self.nest(1, inside))
        else:
            body += (self.store(inside) for _ in range(r.choice([1, 1, 1, 2, 2, 3])))
        return Loop(v, "serial", tuple(body))

    def store(self, around: tuple[Sym, ...]) -> Store:
        r = self.rng
        # Now and then a stage has several nests: first values and an update, say.
        self.stages += self.rng.random() < 0.8
        name = r.choice(["a", "a", "b", "b", "t"])
        at = tuple(self.index(around, writes=True) for _ in range(self.ranks[name]))
        value = self.read(around)
        if r.random() < 0.6:
            value = fn(r.choice(["add", "sub", "mul", "max"]), value, self.read(around))
        combine = r.choice([None, None, None, "add", "add", "max"])
        return Store(f"s{self.stages}", name, at, value, combine)

    def read(self, around: tuple[Sym, ...]) -> Value:
        r = self.rng
        name = r.choice(["x", "x", "a", "b", "t"])
        at = [self.index(around, writes=False) for _ in range(self.ranks[name])]
        tests = []
        for i in at:
            low, high = D.bounds(i)
            if low < 0:
                tests.append(index(i) >= 0)
            if high >= SIZE:
                tests.append(index(i) < SIZE)
        v: Value = load(name, at, i32)
        if r.random() < 0.1:
            tests.append(index(D.as_int(r.choice(around))) < r.randint(1, 3))
        return select(all_of(*tests), v, const(r.randint(-3, 3), i32)) if tests else v

    def index(self, around: tuple[Sym, ...], writes: bool) -> Dim:
        """Some index function; of a store always inside."""
        for _ in range(20):
            i = self.any_index(around)
            low, high = D.bounds(i)
            if not writes and low >= -SIZE and high < 2 * SIZE:
                return i
            if low >= 0 and high < SIZE:
                return i
        return D.as_int(around[-1])

    def any_index(self, around: tuple[Sym, ...]) -> Dim:
        r = self.rng
        v, w = (D.as_int(r.choice(around)) for _ in range(2))
        kind = r.choice(
            ["plain"] * 9
            + ["shift"] * 3
            + ["reverse", "stride", "odd", "diagonal", "difference", "fused", "fixed"]
            + ["quotient", "remainder", "wrapped", "gather"]
        )
        match kind:
            case "shift":
                return v + r.choice([-2, -1, -1, 1, 1, 2])
            case "reverse":
                return r.choice([4, 5, 11]) - v
            case "stride":
                return 2 * v + r.choice([0, 0, 1, -1])
            case "odd":
                return 3 * v + w
            case "diagonal":
                return v + w
            case "difference":
                return v - w + r.choice([0, 4])
            case "fused":
                return v + w * extent(D.the_sym(v))
            case "fixed":
                return r.randint(0, 3)
            case "quotient":
                return v // 2
            case "remainder":
                return v % r.choice([2, 3])
            case "wrapped":
                return (v + r.randint(1, 3)) % r.choice([3, 4, 5])
            case "gather":
                return fn("max", fn("min", load("k", (v,), i64), SIZE - 1), 0).as_dim()
        return v
