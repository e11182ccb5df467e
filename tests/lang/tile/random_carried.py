"""Loops of random kernels that carry numbers, tiles and pointers which depend on each other.

What a loop carries is changed in any order: a sum takes the next term before or after it changes, a
pointer moves by a number that moves itself, values are swapped or handed on, inner loops run as
often as a carried number says, some of it only under a condition.
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass, replace

from tests.lang.tile import random_bounds as B
from tests.lang.tile.random_bounds import Effect, Term, Unbounded
from tests.lang.tile.random_functions import drawn
from tests.lang.tile.random_operations import operation, write
from tests.lang.tile.random_pointers import SPAN, Pointer, PointerStatements
from tests.lang.tile.random_values import Value, limits
from tests.lang.tile.random_writer import ArraySpec, Writer

NUMBERS = ["int32"] * 6 + ["int64"] * 2 + ["int8", "int16", "uint8", "uint32", "float32", "float32"]


@dataclass
class Recurrence(PointerStatements):
    # ---- statements

    def statements(self, count: int, depth: int) -> None:
        """So many; those that find nothing to work on are drawn again."""
        for _ in range(20 * count):
            before = len(self.w.body)
            self.statement(depth)
            count -= len(self.w.body) > before
            if count <= 0:
                return

    def statement(self, depth: int) -> None:
        kinds = [
            (self.add, 7),
            (self.subtract, 1.5),
            (self.hand_on, 3),
            (self.swap, 1.5),
            (self.two_at_once, 2),
            (self.affine, 1.5),
            (self.reload, 3),
            (self.limited, 1),
            (self.local, 2),
            (self.move, 4),
            (self.exchange, 1.5),
            (self.read, 4),
            (self.put, 3),
            (self.watch, 3),
            (self.summed, 1),
            (self.called, 2.5),
            (self.selected, 2),
        ]
        if depth < 3:
            kinds += [(self.conditional, 2.5), (self.nested, 2)]
        ((chosen, _),) = self.w.rng.choices(kinds, [k for _, k in kinds])
        chosen(depth) if chosen in (self.conditional, self.nested) else chosen()  # type: ignore

    def each_once(self) -> None:
        """Every variable changes once, in any order: what most loops of authors do."""
        rng = self.w.rng
        for v in rng.sample([*self.carried, *self.pointers], len(self.carried + self.pointers)):
            if isinstance(v, Pointer):
                if v.output and v.shape and self.w.chance(0.5):
                    self.selected(v)
                    continue
                for act in rng.sample([self.move, self.put if v.output else self.read], 2):
                    act(v)
                continue
            self.focus = v
            kinds = [self.add, self.add, self.add, self.hand_on, self.reload, self.affine]
            rng.choice(kinds)()
            self.focus = None
            if self.w.chance(0.3):
                self.watch()

    def one(self) -> Value:
        return self.focus or self.w.rng.choice(self.carried)

    def pair(self) -> tuple[Value, Value] | None:
        a = self.one()
        others = [
            v for v in self.carried if v is not a and (v.dtype, v.shape) == (a.dtype, a.shape)
        ]
        return (a, self.w.rng.choice(others)) if others else None

    def add(self) -> None:
        a = self.one()
        x, v = B.variable(a), self.term(a.dtype, a.shape)
        total, kind = B.combined("+", x, v), self.w.rng.randrange(3)
        effect = B.assigned(a.name, total)
        texts = (
            f"{a.name} += {v.text}",
            f"{a.name} = {total.text}",
            f"{a.name} = {v.text} + {x.text}",
        )
        self.say(texts[kind], effect)

    def subtract(self) -> None:
        a = self.one()
        v = self.term(a.dtype, a.shape)
        self.say(f"{a.name} -= {v.text}", B.assigned(a.name, B.combined("-", B.variable(a), v)))

    def hand_on(self) -> None:
        both = self.pair()
        if both is not None:
            self.let(both[0].name, B.variable(both[1]))

    def swap(self) -> None:
        both = self.pair()
        if both is not None:
            a, b = both
            effect = B.at_once([(a.name, B.variable(b)), (b.name, B.variable(a))])
            self.say(f"{a.name}, {b.name} = {b.name}, {a.name}", effect)

    def two_at_once(self) -> None:
        both = self.pair()
        if both is not None:
            a, b = both
            total = B.combined("+", B.variable(a), B.variable(b))
            effect = B.at_once([(a.name, B.variable(b)), (b.name, total)])
            self.say(f"{a.name}, {b.name} = {b.name}, {total.text}", effect)

    def affine(self) -> None:
        a = self.one()
        n = self.w.rng.choice([2, 3, 5] if a.dtype.startswith("u") else [2, 3, -1])
        scaled = B.combined("*", B.variable(a), self.constant(n, a.dtype))
        self.let(a.name, B.combined("+", scaled, self.term(a.dtype, a.shape)))

    def reload(self) -> None:
        a = self.one()
        self.let(a.name, self.loaded(a.dtype, a.shape))

    def limited(self) -> None:
        a = self.one()
        v = self.term(a.dtype, a.shape)
        # Beside a tile a number keeps the tile's type in sums, but is an int32 to tl.minimum.
        literal = re.fullmatch(r"\(?-?\d+\)?", v.text) is not None
        if a.is_int and (self.w.chance(0.5) or literal):
            n = self.w.rng.choice([3, 7, 15])
            self.let(a.name, B.combined("&", B.variable(a), self.constant(n, a.dtype)))
            return
        name = self.w.rng.choice(["minimum", "maximum"])
        text = f"tl.{name}({a.name}, {v.text})"
        self.let(a.name, B.combined("min", B.variable(a), v, text))

    def local(self) -> None:
        """A variable of the body alone."""
        a = self.one()
        x, y = B.variable(a), self.term(a.dtype, a.shape)
        v = replace(a, name=self.w.fresh("s"))
        self.let(v.name, B.combined(self.w.rng.choice("+-"), x, y))
        self.locals.append(v)

    def summed(self) -> None:
        """One number of a tile."""
        tiles = [v for v in self.variables() if v.shape and v.dtype in ("int32", "int64")]
        if not tiles:
            return
        t = self.w.rng.choice(tiles)
        into = [v for v in self.carried if v.dtype == t.dtype and v.shape == ()]
        if not into:
            return
        a, n = self.w.rng.choice(into), t.size
        x = Term(
            f"tl.sum({t.name}, 0)",
            t.dtype,
            (),
            lambda b: B.known(
                B.whole(t.dtype, (), n * min(0, b[t.name].low), n * max(0, b[t.name].high))
            ),
        )
        self.say(f"{a.name} += {x.text}", B.assigned(a.name, B.combined("+", B.variable(a), x)))

    def called(self) -> None:
        both = self.pair()
        if both is None or not both[0].is_int:
            return
        a, b = both
        two = self.w.chance(0.6)
        f = drawn(self.w, scalars=a.shape == (), both=two)
        any_a, any_b = (B.anything("", v.dtype, v.shape) for v in both)
        if two:
            effect = B.at_once([(a.name, any_a), (b.name, any_b)])
            self.say(f"{a.name}, {b.name} = {f}({a.name}, {b.name})", effect)
        else:
            effect = B.assigned(a.name, any_a)
            self.say(f"{a.name} = {f}({a.name}, {b.name})", effect)

    def conditional(self, depth: int) -> None:
        ways: list[Effect] = []
        with self.suite(f"if {self.condition()}:") as made:
            self.statements(self.w.rng.randrange(1, 3), depth + 1)
        ways.append(B.in_order(self.inner))
        if self.w.chance(0.4):
            with self.suite("", made):
                self.statements(1, depth + 1)
            ways.append(B.in_order(self.inner))
        else:
            ways.append(B.in_order([]))
        self.effects.append(B.either(ways))

    def nested(self, depth: int) -> None:
        """A loop in the loop, as long as a carried number says."""
        w = self.w
        index, most = w.fresh("j"), w.rng.randrange(0, 4)
        numbers = [
            v
            for v in (*self.counters, *self.variables())
            if v.shape == () and v.dtype in ("int32", "int64")
        ]
        least, kind, dtype = most, w.rng.random(), "int32"
        if kind < 0.2:
            header = f"for {index} in tl.static_range({most}):"
        elif kind < 0.6 and numbers:
            v, most, least = w.rng.choice(numbers), 3, 0
            dtype = v.dtype  # a counter has the type of the range's ends
            header = f"for {index} in range({v.name} & 3):"
            if w.chance(0.3):
                header = f"for {index} in range({v.name}, {v.name} + 2):"
                most = least = 2
        else:
            header = f"for {index} in range({w.number(most)}):"
        counter = Value(index, dtype, (), 0, 3)
        if "static_range" in header:
            counter = replace(counter, name=w.fresh("j"))
        with self.suite(header):
            if "static_range" in header:
                w.say(f"{counter.name} = pid * 0 + {index}")
            if ", " not in header:  # else it is as large as what is carried
                self.counters.append(counter)
            self.effects.append(lambda b: b.update({counter.name: counter}))
            self.statements(w.rng.randrange(1, 4), depth + 1)
        self.effects.append(B.repeated(B.in_order(self.inner), least, most))

    # ---- the whole

    def start(self) -> None:
        """Variables with their first values."""
        w, rng = self.w, self.w.rng
        row = 2 ** rng.randrange(1, 6)
        kinds = [rng.choice(NUMBERS)]
        for _ in range(rng.randrange(1, 5)):
            kinds.append(rng.choice(kinds) if w.chance(0.6) else rng.choice(NUMBERS))
        for dtype in kinds:
            shape = (row,) if w.chance(0.25) else ()
            name, n = w.fresh("c"), rng.randrange(0, 5)
            kind = rng.random()
            same = [v for v in w.values if (v.dtype, v.shape) == (dtype, shape) and v.exact]
            if kind < 0.2 and same and not (v := rng.choice(same)).special:
                w.say(f"{name} = {v.name}")
                made = replace(v, name=name, index=False)
            elif kind < 0.6 and dtype == "int32" and not shape:
                w.say(f"{name} = {n if w.chance(0.5) else w.number(n)}")
                made = Value(name, dtype, shape, n, n)
            elif kind < 0.4 and dtype == "int32":
                w.say(f"{name} = tl.arange(0, {row})")
                made = Value(name, dtype, shape, 0, row - 1)
            elif kind < 0.8 and shape:
                w.say(f"{name} = tl.full([{row}], {n}, tl.{dtype})")
                made = self.contents(dtype, shape, (n, n, 1.0)).named(name)
            else:
                x = self.loaded(dtype, shape)
                w.say(f"{name} = {x.text}")
                made = x.bounds(self.bounds).named(name)
            self.bounds[name] = made
            self.carried.append(made)
        for _ in range(rng.randrange(0, 3)):
            self.start_pointer()

    def loop(self) -> None:
        w, rng = self.w, self.w.rng
        self.start()
        trips, index = rng.choice([0, 1, 2, 3, 4, 5, 6, 6, 17, 40]), w.fresh("i")
        least, after, count = trips, "", index
        counter = Value(index, "int32", (), 0, max(0, trips - 1))
        kind = rng.random()
        if kind < 0.12:
            trips = least = min(trips, 6)  # written out
            header = f"for {index} in tl.static_range({trips}):"
            count = w.fresh("i")
        elif kind < 0.24:
            header = f"for {index} in range({w.number(trips)}, 0, {w.rng.choice(['-1', '-2'])}):"
            counter, trips = replace(counter, low=1, high=max(1, trips)), trips
            if header.endswith("-2):"):
                trips = least = (trips + 1) // 2
        elif kind < 0.36:
            step = rng.choice([2, 3])
            header = f"for {index} in range(1, {w.number(1 + step * trips)}, {w.number(step)}):"
            counter = replace(counter, low=1, high=1 + step * trips)
        elif kind < 0.6:
            w.say(f"{index} = 0")
            tests = [f"({index} < {w.number(trips)})"]
            scalars = [v for v in self.carried if v.shape == () and v.is_int]
            if scalars and w.chance(0.6):
                op = rng.choice(["<", "!=", ">="])
                tests.append(f"({rng.choice(scalars).name} {op} {w.number(rng.randrange(0, 9))})")
                least = 0
            rng.shuffle(tests)
            header, after = f"while {' & '.join(tests)}:", f"{index} += 1"
        else:
            header = f"for {index} in range({w.number(trips)}):"
        counter = replace(counter, name=count)
        with self.suite(header):
            if count != index:
                w.say(f"{count} = pid * 0 + {index}")
            self.counters.append(counter)
            self.effects.append(lambda b: b.update({counter.name: counter}))
            if w.chance(0.5):
                self.each_once()
            else:
                self.statements(rng.randrange(2, 8), w.depth)
            if w.chance(0.2) and w.depth < 3:
                w.values += [
                    replace(v, low=limits(v.dtype)[0], high=limits(v.dtype)[1])
                    for v in self.carried
                    if v.is_int
                ]
                write(w, 1)
            if after:
                w.say(after)
        self.effects.append(B.repeated(B.in_order(self.inner), least, trips))

    def finish(self) -> None:
        """Applies the effects, allots arrays, and has the results written."""
        w = self.w
        B.in_order(self.effects)(self.bounds)
        for name, dtype, region, fill, output in self.arrays:
            low, high = min(0, region.low or 0), max(1, region.high)
            if output and (high - low >= SPAN):
                raise Unbounded
            last = (w.programs_count() - 1) * SPAN if output else 0
            w.parameters[name] = ""
            w.arrays[name] = ArraySpec(dtype, low, high + last, fill, output, w.chance(0.7))
            if output:
                w.errors[name] = self.error
        for v in self.carried:
            end = self.bounds[v.name]
            w.values.append(end)
            if w.chance(0.7):
                w.store(end)


@operation(4.5, nests=True)
def recurrence(w: Writer) -> None:
    """A loop over what it carries; drawn again where its numbers cannot be bounded."""
    for _ in range(4):
        saved = copy(w)
        for name in ("helpers", "parameters", "arrays", "numbers", "errors"):
            setattr(saved, name, dict(getattr(w, name)))
        saved.body, saved.values, saved.stored = list(w.body), list(w.values), set(w.stored)
        saved.shared = list(w.shared)
        r = Recurrence(w)
        depth, body = w.depth, w.body
        try:
            r.loop()
            r.finish()
            return
        except Unbounded:
            w.depth = depth
            body[:] = saved.body
            for name in ("helpers", "parameters", "arrays", "numbers", "errors", "values"):
                setattr(w, name, getattr(saved, name))
            w.stored, w.shared, w.body = saved.stored, saved.shared, body
