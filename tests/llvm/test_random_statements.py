"""Random nests of branches, masks and pointers: native code leaves what the interpreter leaves."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.llvm.test_statements import nest, same, strays
from tests.seeds import drawn

SIZE = 24


class Writer:
    """Statements on pointers p (read), q and the rows t, u, whose accesses are inside where they
    are chosen."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self.lane = False

    def pick(self, *options: str) -> str:
        return self.random.choice(options)

    def index(self, loops: list[str]) -> str:
        """Any index function: from -8 to far outside."""
        parts = [
            f"{self.pick('1', '2', '3', '8')}*{x}" for x in loops if self.random.random() < 0.7
        ]
        if self.random.random() < 0.3:
            parts.append(f"${{{self.pick('t', 'u')}[{self.inside(loops)}]}}")
        return "+".join([*parts, str(self.random.randint(0, 9))]) + self.pick("", "-8")

    def inside(self, loops: list[str]) -> str:
        """An index of the rows, which have eight cells."""
        return self.random.choice([*loops, "0", "5"]) if loops else "3"

    def there(self, e: str) -> str:
        return f"(cast<i64>(#({e})) >= 0) & (cast<i64>(#({e})) < {SIZE})"

    def value(self, loops: list[str], depth: int = 0) -> str:
        kind = self.random.random()
        if depth > 3 or kind < 0.2:
            row = f"{self.pick('t', 'u')}[{self.inside(loops)}]"
            return self.pick(row, f"{self.random.randint(-3, 30)}:i32")
        if kind < 0.5:
            e = self.index(loops)
            read = self.pick(f"p[{e}]", f"q[{e}]", f"p[{e}] + {self.value(loops, depth + 2)}")
            return f"select({self.there(e)}, {read}, {self.value(loops, depth + 1)})"
        if kind < 0.7:
            a, b = (self.value(loops, depth + 1) for _ in range(2))
            return f"select({self.condition(loops, depth + 1)}, {a}, {b})"
        return (
            self.pick("max", "min") + f"({', '.join(self.value(loops, depth + 1) for _ in '12')})"
        )

    def condition(self, loops: list[str], depth: int = 0) -> str:
        if self.random.random() < 0.5:
            e, sign = self.index(loops), self.pick("<", "<=", ">", ">=", "==")
            return f"(cast<i64>(#({e})) {sign} #({self.random.randint(0, 20)}+n))"
        return f"({self.value(loops, depth + 2)} {self.pick('<', '>', '!=')} 4:i32)"

    def store(self, loops: list[str], pad: str) -> list[str]:
        if self.random.random() < 0.5:
            row = self.pick("t", "u")
            cell = f"{row}[{loops[-1] if self.lane else self.inside(loops)}]"
            return [f"{pad}s: {cell} {self.pick('', '', 'add')}= {self.value(loops)}"]
        e = self.index(loops)
        lines = [f"{pad}if {self.there(e)}:"]
        return [*lines, f"{pad}  s: q[{e}] {self.pick('', '', 'max')}= {self.value(loops)}"]

    def body(self, loops: list[str], depth: int) -> list[str]:
        pad = "  " * (depth + 1)
        lines: list[str] = []
        for _ in range(self.random.randint(1, 2)):
            kind = self.random.random()
            if kind < 0.35 and depth < 4 and not self.lane:
                self.count += 1
                name = f"i{self.count}"
                how = self.pick("for", "lane", "lane", "unroll")
                extent = self.pick("2", "3") if how == "unroll" else "8"
                extent = "min(n,8)" if how == "for" and self.random.random() < 0.5 else extent
                self.lane = how == "lane"
                inside = self.body([*loops, name], depth + 1)
                self.lane = False
                lines += [f"{pad}{how} {name} in {extent}:", *inside]
            elif kind < 0.6 and depth < 5:
                lines += [f"{pad}if {self.condition(loops)}:", *self.body(loops, depth + 1)]
                if self.random.random() < 0.5:
                    lines += [f"{pad}else:", *self.body(loops, depth + 1)]
            else:
                lines += self.store(loops, pad)
        return lines

    def text(self) -> str:
        head = ["nest k where n: 1..", "  in p: *i32", "  out q: *i32", "  local t: i32[8]"]
        head += ["  local u: i32[8]", "  alloc t", "  alloc u"]
        for k, x in enumerate("tu"):
            head += [f"  for z{k} in 8:", f"    s: {x}[z{k}] = cast<i32>(#({3 - 2 * k}*z{k}-{k}))"]
        tail = ["  for y0 in 8:", "    s: q[y0] add= t[y0] - u[y0]"]
        return "\n".join([*head, *self.body([], 0), *self.body([], 0), *tail]) + "\n"


@pytest.mark.parametrize("seed", drawn(range(16), quick=6))
def test_random_nests(seed: int) -> None:
    text = Writer(seed).text()
    p = np.arange(SIZE, dtype=np.int32) * 3 % 17
    q = np.arange(SIZE, dtype=np.int32) % 5
    for n in (1, 9):
        same(text, {"p": p, "q": q}, {"n": n})
    assert strays(nest(text), {"p": p, "q": q}, {"n": 9}) is None
