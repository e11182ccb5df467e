"""Pointers that a loop of random kernels moves by numbers that it carries, to read and to write."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.lang.tile import random_bounds as B
from tests.lang.tile.random_bounds import Bounds, Effect, Region, Term, Unbounded
from tests.lang.tile.random_terms import Terms
from tests.lang.tile.random_values import Shape, Value, limits

SPAN = 640  # elements of each program in what a loop writes


@dataclass
class Pointer:
    name: str
    array: str
    dtype: str
    shape: Shape  # of what is read or written there at once
    region: Region
    output: bool
    tiled: bool  # is it a tile of pointers itself?


@dataclass
class PointerStatements(Terms):
    pointers: list[Pointer] = field(default_factory=list)

    def start_pointer(self) -> None:
        w, tiles = self.w, [v for v in self.carried if v.shape]
        v = w.rng.choice(tiles if tiles and w.chance(0.3) else self.carried)
        p, output = w.fresh("p"), w.chance(0.5)
        array, region = w.fresh("o" if output else "x"), Region()
        self.arrays.append((array, v.dtype, region, self.filling(v.dtype), output))
        place = f" + pid * {SPAN}" if output else w.rng.choice(["", "", " + 2"])
        tiled = v.shape != () and w.chance(0.5)
        row = f" + tl.arange(0, {v.shape[0]})" if tiled else ""
        w.say(f"{p} = {array}{place}{row}")
        at = 2 if place == " + 2" else 0
        self.bounds[p] = Value(p, v.dtype, (), at, at)
        self.pointers.append(Pointer(p, array, v.dtype, v.shape, region, output, tiled))
        if w.chance(0.35):
            q = w.fresh("p")
            w.say(f"{q} = {p} + 3")
            self.bounds[q] = Value(q, v.dtype, (), at + 3, at + 3)
            self.pointers.append(replace(self.pointers[-1], name=q))

    def pointer(self, output: bool) -> Pointer | None:
        found = [p for p in self.pointers if p.output == output]
        return self.w.rng.choice(found) if found else None

    def move(self, p: Pointer | None = None) -> None:
        if not self.pointers:
            return
        p, by = p or self.w.rng.choice(self.pointers), self.integer()
        if self.w.chance(0.2):
            n = self.w.rng.choice([1, 2, -1])
            by = B.number(self.w.number(n), n, "int32")

        def effect(b: Bounds) -> None:
            x, v = b[p.name], by.bounds(b)
            b[p.name] = replace(x, low=x.low + v.low, high=x.high + v.high)

        self.say(f"{p.name} += {by.text}", effect)

    def exchange(self) -> None:
        """Two pointers into one array change places, or one goes where the other is."""
        twins = [
            (p, q)
            for p in self.pointers
            for q in self.pointers
            if p is not q and p.array == q.array
        ]
        if not twins:
            return
        p, q = self.w.rng.choice(twins)
        swap = self.w.chance(0.6)

        def effect(b: Bounds) -> None:
            x, y = b[p.name], b[q.name]
            b[p.name] = replace(y, name=p.name)
            if swap:
                b[q.name] = replace(x, name=q.name)

        both = f"{p.name}, {q.name} = {q.name}, {p.name}"
        self.say(both if swap else f"{p.name} = {q.name}", effect)

    def place(self, p: Pointer) -> tuple[str, Effect]:
        row = f" + tl.arange(0, {p.shape[0]})" if p.shape and not p.tiled else ""
        reach = p.shape[0] - 1 if p.shape else 0
        return f"{p.name}{row}", lambda b: p.region.reach(b[p.name], after=reach)

    def read(self, p: Pointer | None = None) -> None:
        p = p or self.pointer(self.w.chance(0.25)) or self.pointer(False)
        if p is None:
            return
        into = [v for v in self.carried if (v.dtype, v.shape) == (p.dtype, p.shape)]
        if not into:
            return
        a, (place, reach) = self.w.rng.choice(into), self.place(p)
        content = self.contents(p.dtype, p.shape, self.content(p))
        x = Term(f"tl.load({place})", p.dtype, p.shape, lambda b: content)
        self.effects.append(reach)
        if self.w.chance(0.5):
            self.let(a.name, x)
        else:
            effect = B.assigned(a.name, B.combined("+", B.variable(a), x))
            self.say(f"{a.name} += {x.text}", effect)

    def content(self, p: Pointer) -> tuple[float, float, float]:
        if not p.output:
            return next(fill for n, _, _, fill, _ in self.arrays if n == p.array)
        if p.dtype.startswith("float"):
            raise Unbounded  # what was written there has bounds of its own
        return (*limits(p.dtype), 1.0)

    def put(self, p: Pointer | None = None) -> None:
        """Written where a pointer is, which perhaps moves on."""
        p = p or self.pointer(True)
        if p is None:
            return
        found = [v for v in self.variables(p.dtype) if v.shape in ((), p.shape)]
        if not found:
            return
        v, (place, reach) = self.w.rng.choice(found), self.place(p)
        self.say(f"tl.store({place}, {v.name})", reach, self.noted(v))
        if self.w.chance(0.5):
            self.move(p)

    def noted(self, v: Value) -> Effect:
        def effect(b: Bounds) -> None:
            self.error = max(self.error, b[v.name].err)

        return effect

    def watch(self) -> None:
        """Written from inside the loop, at a position that may be carried."""
        v, at = self.w.rng.choice(self.variables()), self.integer()
        name, region = self.w.fresh("o"), Region()
        self.arrays.append((name, v.dtype, region, self.filling(v.dtype), True))
        reach = v.shape[0] - 1 if v.shape else 0
        row = f" + tl.arange(0, {v.shape[0]})" if v.shape else ""

        def effect(b: Bounds) -> None:
            region.reach(at.bounds(b), after=reach)

        place = f"{name} + pid * {SPAN} + {at.text}{row}"
        self.say(f"tl.store({place}, {v.name})", effect, self.noted(v))

    def selected(self, p: Pointer | None = None) -> None:
        """Elements that a mask picks are written one after the other: the pointer moves by their
        number."""
        p = p or self.pointer(True)
        if p is None or not p.shape or p.tiled:
            return
        found = [v for v in self.variables(p.dtype) if v.shape == p.shape and v.exact]
        if not found:
            return
        v, m, c = self.w.rng.choice(found), self.w.fresh("m"), self.w.fresh("m")
        n = p.shape[0]
        self.w.say(f"{m} = {v.name} > {self.w.number(1)}")
        self.w.say(f"{c} = {m}.to(tl.int32)")
        place = f"{p.name} + tl.cumsum({c}, 0) - 1"
        self.say(
            f"tl.store({place}, {v.name}, mask={m})",
            lambda b: p.region.reach(b[p.name], after=n - 1),
            self.noted(v),
        )

        def moved(b: Bounds) -> None:
            b[p.name] = replace(b[p.name], high=b[p.name].high + n)

        self.say(f"{p.name} += tl.sum({c}, 0)", moved)
